"""The problem on which speed is measured: second-order MAML on 10-shot sinusoids, from given weights on given batches.

A network 1-40-40-1 with ReLU, meta-batches of five tasks of ten support and ten query points, one inner step on the mean
squared error of the support, Adam on the mean squared error of the query. First weights and batches are drawn once, as
arrays, so that every implementation sees the same and differences are differences of the programs alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from metaprior.meta import task_keys
from metaprior.models import Model, mlp
from metaprior.tasks import Tasks
from metaprior.tasks import get as get_tasks

SIZES = (1, 40, 40, 1)
NUM_TASKS, SHOTS, QUERIES = 5, 10, 10
INNER_RATE, META_RATE = 0.01, 1e-3
COMPARED_AT = 200  # meta-iterations after which the losses must agree
HELD_OUT = 500  # unseen tasks on which they are compared
# Not zero: with the first weights of seed 0 the losses of Optax's and PyTorch's Adam part by a thousandth in float32, and in
# float64 they do not. A likely cause, not isolated: Optax rounds Adam's 1 − 0.999ᵗ to float32, where PyTorch has doubles.
SEED = 1

Weights = tuple[Float[np.ndarray, "..."], ...]  # W, b of each layer; W is [inputs, outputs]


class Batches(NamedTuple):
    """Meta-batches, one after the other: every array is [iterations, tasks, points, 1]."""

    support_x: Float[np.ndarray, "I T N 1"]
    support_y: Float[np.ndarray, "I T N 1"]
    query_x: Float[np.ndarray, "I T M 1"]
    query_y: Float[np.ndarray, "I T M 1"]


class Problem(NamedTuple):
    """What every implementation is given, in JAX's default precision."""

    weights: Weights
    batches: Batches
    held_out: Batches  # one batch of many tasks


class Runner(NamedTuple):
    """An implementation, ready to be timed: `train` alone is on the clock, and returns when the work is done."""

    load: Callable[[Batches], Any]  # -> batches as the library wants them
    begin: Callable[[Weights], Any]  # -> its state before the first iteration
    train: Callable[[Any, Any], tuple[Any, Any]]  # (state, loaded batches) -> (state, query loss of every iteration)
    weights: Callable[[Any], Weights]


def problem(num_batches: int, *, seed: int = SEED) -> Problem:
    """First weights, so many meta-batches, and unseen tasks."""
    key_weights, key_batches, key_held_out = jax.random.split(jax.random.key(seed), 3)
    weights = jax.tree.leaves(network().init(key_weights))
    return Problem(
        weights=tuple(np.asarray(leaf) for leaf in weights),
        batches=_drawn(key_batches, num_batches, NUM_TASKS),
        held_out=_drawn(key_held_out, 1, HELD_OUT),
    )


def network() -> Model:
    """The network of all implementations, as ours has it."""
    return mlp(SIZES, init="glorot")


def sinusoids() -> Tasks:
    """Where the tasks come from: amplitude, phase and inputs as in Finn et al. (2017)."""
    return get_tasks("sinusoid", shots=SHOTS, queries=QUERIES)


def first(batches: Batches, count: int) -> Batches:
    """The first so many meta-batches."""
    return Batches(*(array[:count] for array in batches))


def _drawn(key, num_batches: int, num_tasks: int) -> Batches:
    sample = jax.jit(jax.vmap(jax.vmap(sinusoids().sample)))
    support, query = sample(jax.vmap(lambda k: task_keys(k, num_tasks))(jax.random.split(key, num_batches)))
    return Batches(*(np.asarray(array) for array in (support.x, support.y, query.x, query.y)))
