"""Replies of clients: named arrays, and what is looked at before any arithmetic is done with them.

A reply comes from a machine that nobody here controls. One number that is not finite would spoil the prior for all, and an array
of another shape might be broadcast without a word, so a reply is believed only as a whole.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior import codec, trees
from metaprior.meta import State, Statistics

COUNTS = ("kept", "left_out")


class Refused(ValueError):
    """A reply that must not be used, and why."""


class Limits(NamedTuple):
    """What a reply of an honest client keeps to."""

    max_tasks: int = 100_000  # of one client in one round
    max_norm: float = 1e4  # of the mean meta-gradient over a client's tasks


USUAL = Limits()


def named(state: State, found: Statistics) -> dict[str, np.ndarray]:
    """A reply as arrays by name: the gradient part by part, the memory where the method has one, and two counts."""
    return codec.flatten(_told(state, found))


def believed(state: State, arrays: Mapping[str, Any], limits: Limits = USUAL) -> Statistics:
    """The statistics of a reply, if it is sound in every respect; else `Refused` with the first thing that is wrong.

    Args:
        state: of the server, which says what names, shapes and types a reply must have.
        arrays: as `named` made them, or as anybody made them.
        limits: beyond which a reply is refused.
    """
    like = expected(state)
    _require_names(like, arrays)
    for name, leaf in like.items():
        _require_array(name, leaf, arrays[name])
    kept, left_out = (_count(name, arrays[name]) for name in COUNTS)
    if kept < 1:
        raise Refused("no task was kept: there is nothing to learn from")
    if kept + left_out > limits.max_tasks:
        raise Refused(f"{kept + left_out:,} tasks are more than the {limits.max_tasks:,} that a client may have")
    entries = np.concatenate([np.ravel(arrays[name]) for name in like if name.startswith("gradient")])
    with np.errstate(over="ignore"):  # what overflows is infinite, and so too long
        norm = math.sqrt(float(np.square(entries.astype(np.float64) / kept).sum()))
    if not norm <= limits.max_norm:
        raise Refused(f"the mean gradient has norm {norm:.3g}, more than {limits.max_norm:g}")
    return _restored(state, arrays)


def expected(state: State) -> dict[str, jax.ShapeDtypeStruct]:
    """Names, shapes and types that a reply must have."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(state.prior))
    dtype = trees.vector(state.prior).dtype
    number = jnp.zeros((), dtype)
    like = _told(state, Statistics(jnp.zeros(entries, dtype), state.memory, number, number, number, number))
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in codec.flatten(like).items()}


def _told(state: State, found: Statistics) -> dict[str, Any]:
    """The arrays of a reply; how well the client's tasks do is not among them."""
    return {
        "gradient": trees.like(state.prior, found.gradient),
        "memory": found.memory,
        "kept": found.kept,
        "left_out": found.left_out,
    }


def _restored(state: State, arrays: Mapping[str, np.ndarray]) -> Statistics:
    number = jnp.asarray(arrays["kept"])
    like = {"gradient": state.prior, "memory": state.memory, "kept": number, "left_out": number}
    tree = codec.unflatten(like, arrays)
    unknown = jnp.full_like(number, jnp.nan)
    return Statistics(trees.vector(tree["gradient"]), tree["memory"], unknown, unknown, tree["kept"], tree["left_out"])


def _require_names(like: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    missing, unexpected = sorted(set(like) - set(arrays)), sorted(set(arrays) - set(like), key=str)
    if missing or unexpected:
        words = [f"{word} {names[0]}" for word, names in (("lacks", missing), ("has an unknown", unexpected)) if names]
        raise Refused(f"the reply {' and '.join(words)}")


def _require_array(name: str, like: jax.ShapeDtypeStruct, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise Refused(f"{name} is a {type(array).__name__}, not an array")
    if array.dtype != like.dtype:
        raise Refused(f"{name} has type {array.dtype}, not {like.dtype}")
    if array.shape != like.shape:
        raise Refused(f"{name} has shape {array.shape}, not {like.shape}")
    if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
        raise Refused(f"{name} is not finite")


def _count(name: str, array: np.ndarray) -> int:
    value = float(array)
    if value < 0 or value != int(value):
        raise Refused(f"{name} is {value:g}, not a number of tasks")
    return int(value)
