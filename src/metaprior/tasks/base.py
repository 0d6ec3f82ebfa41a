"""What a family of tasks is: a way to draw a task from a key. Here, too: random curves, and points on them."""

from collections.abc import Callable
from numbers import Integral
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.types import Data, Episode, Key


class Tasks(NamedTuple):
    """A distribution over tasks, P(τ). `sample` draws ONE task; a meta-batch is `jax.vmap(tasks.sample)(keys)`.

    `sample` and `evaluation` are pure functions of the key. Under the same key they draw the same task and the same
    support set, unless training is to have another number of classes (`train_ways`); `evaluation` of a random curve asks for the
    noise-free truth on a regular grid over the whole input range, ends included. Tasks made of given data pick from a `pool`:
    `tasks.sample(key, *tasks.pool("train"))`.
    """

    name: str
    sample: Callable[..., Episode]  # (key, *pool) -> a task to learn from
    evaluation: Callable[..., Episode]  # (key, *pool) -> a task to be judged by
    describe: str
    input_range: tuple[float, float] = (0.0, 1.0)
    inputs: int = 1
    outputs: int = 1  # numbers per point, or classes
    shots: int = 10  # support points, or support points of each class
    queries: int = 10
    eval_queries: int | None = None  # query images of each class in `evaluation`, where inputs are images
    shape: tuple[int, int, int] | None = None  # of one input, where inputs are images
    # split ("train", "validation", "test") -> the arrays that draws pick from. They are arguments of compiled programs, never
    # constants inside them, and read from disk when they are first asked for.
    pool: Callable[[str], tuple] = lambda split: ()
    classes: Callable[[str], tuple[str, ...]] = (
        lambda split: ()
    )  # split -> their names, where tasks are made of classes
    train_ways: int | None = None  # classes of a task to learn from, where they are not as many as `outputs`
    elsewhere: bool = False  # whether the data are not here: others have them, and `pool` refuses
    turns: bool = False  # whether all images of a task, turned by 90°, are a task that is as likely

    @property
    def outputs_in_training(self) -> int:
        """Of a network that learns from these tasks."""
        return self.outputs if self.train_ways is None else self.train_ways


class Curve(NamedTuple):
    """One task's truth: y = value(x) + noise_std · N(0, 1). `None` is no noise, and no random numbers spent on it."""

    value: Callable[[Float[Array, "N 1"]], Float[Array, "N 1"]]
    noise_std: Float[Array, ""] | float | None = None


def regression(
    name: str,
    describe: str,
    draw: Callable[[Key], Curve],
    *,
    input_range: tuple[float, float],
    shots: int = 10,
    queries: int = 10,
    eval_queries: int = 100,
) -> Tasks:
    """Tasks that are random curves, seen at inputs drawn uniformly from `input_range`.

    Args:
        name: what the registry calls them.
        describe: one line for people.
        draw: key -> the curve of one task.
        input_range: lowest and highest input.
        shots: support points of a task; zero is legal.
        queries: query points of a task in `sample`.
        eval_queries: query points of a task in `evaluation`.
    """
    check_sizes(shots=shots, queries=queries, eval_queries=eval_queries)
    low, high = input_range

    def observed(key: Key) -> tuple[Curve, Data]:
        task_key, input_key, noise_key = jax.random.split(key, 3)
        curve = draw(task_key)
        x = jax.random.uniform(input_key, (shots + queries, 1), minval=low, maxval=high)
        return curve, Data(x, observe(noise_key, curve, x))

    def sample(key: Key) -> Episode:
        _, points = observed(key)
        return Episode(_rows(points, slice(None, shots)), _rows(points, slice(shots, None)))

    def evaluation(key: Key) -> Episode:
        curve, points = observed(key)
        x = jnp.linspace(low, high, eval_queries)[:, None]
        return Episode(_rows(points, slice(None, shots)), Data(x, curve.value(x)))

    return Tasks(name, sample, evaluation, describe, (low, high), shots=shots, queries=queries)


def observe(key: Key, curve: Curve, x: Float[Array, "N 1"]) -> Float[Array, "N 1"]:
    """Noisy values of the curve at `x`."""
    y = curve.value(x)
    return y if curve.noise_std is None else y + curve.noise_std * jax.random.normal(key, y.shape, y.dtype)


def uniform(key: Key, *ranges: tuple[float, float]) -> tuple[Float[Array, ""], ...]:
    """One number from each range; a range whose ends agree gives exactly that number."""
    low, high = jnp.asarray(ranges, float).T
    return tuple(low + (high - low) * jax.random.uniform(key, (len(ranges),)))


def check_sizes(**sizes: int) -> None:
    """Refuse, in words, numbers of points that no task can have: a support may have none, a query has one at least."""
    for word, value in sizes.items():
        least = 0 if word.endswith("shots") else 1
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{word} must be a whole number >= {least}, got {value!r}: pass for example {word}=10")


def _rows(data: Data, rows: slice) -> Data:
    return Data(data.x[rows], data.y[rows])
