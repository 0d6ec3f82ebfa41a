"""Groups of different sizes as tasks: rows of one table, and episodes drawn from them inside the compiled program.

Nothing is padded but the episodes: the table stays as it is, rows of a group side by side, and an episode of a small group is
filled up with points of weight zero.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from metaprior.likelihoods import Weighted
from metaprior.types import Episode, Key


class Groups(NamedTuple):
    """Rows sorted by group, and where each group begins."""

    x: Float[Array | np.ndarray, "N D"]
    y: Array | np.ndarray
    starts: Int[Array | np.ndarray, " G"]
    counts: Int[Array | np.ndarray, " G"]


def gathered(x: Float[np.ndarray, "N D"], y: np.ndarray, labels: np.ndarray) -> Groups:
    """The rows of every group side by side, in the order in which they came."""
    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(numbers, kind="stable")
    return Groups(x[order], y[order], np.cumsum(counts) - counts, counts)


def chosen(groups: Groups, numbers: Int[np.ndarray, " K"]) -> Groups:
    """Only these groups, filled up with empty ones; rows stay where they are. One compiled program then serves any choice."""
    keep = lambda values: np.append(np.asarray(values)[numbers], np.zeros(len(values) - len(numbers), int))
    return groups._replace(starts=keep(groups.starts), counts=keep(groups.counts))


def draw_episode(
    key: Key, x: Array, y: Array, starts: Array, counts: Array, *, shots: tuple[int, int], queries: int
) -> Episode:
    """One task: a random group, some of its rows as support and up to `queries` others as query.

    The size of the support is drawn between the two `shots`, of what leaves one row for the query: a prior is to serve groups
    that are well known and groups of which little is known yet.
    """
    key_group, key_rows, key_size = jax.random.split(key, 3)
    group = jax.random.randint(key_group, (), 0, (counts > 0).sum())  # empty groups come last: `chosen`
    start, count, (least, most) = starts[group], counts[group], shots
    slots = most + queries
    order, there = shuffled(key_rows, count, slots)
    filled = jnp.minimum(count, slots)
    largest = jnp.clip(filled - 1, 0, most)
    size = jax.random.randint(key_size, (), jnp.minimum(least, largest), largest + 1)
    places = jnp.arange(slots)

    def points(wanted: Int[Array, " K"], valid) -> Weighted:
        rows = start + jnp.where(valid, order[wanted], 0)
        return Weighted(x[rows], y[rows], valid.astype(x.dtype))

    support = points(places[:most], places[:most] < size)
    query = jnp.minimum(size + places[:queries], slots - 1)
    return Episode(support, points(query, (size + places[:queries] < filled) & there[query]))


def shuffled(key: Key, count: Int[Array, ""], slots: int) -> tuple[Int[Array, " S"], Array]:
    """Different numbers below `count` in random order, and which slots hold one: fewer than all where `count` is smaller.

    Floyd's algorithm draws the set, whatever its size; a shuffle of the whole group would sort its every row.
    """
    key_set, key_order = jax.random.split(key)
    last = count - slots + jnp.arange(slots)
    picks = jax.random.randint(key_set, (slots,), 0, jnp.maximum(last + 1, 1), last.dtype)

    def one(index, found):
        taken = (found == picks[index]).any()
        new = jnp.where(last[index] < 0, -1, jnp.where(taken, last[index], picks[index]))
        return found.at[index].set(new)

    found = jax.lax.fori_loop(0, slots, one, jnp.full_like(last, -1))
    there = found >= 0
    order = jnp.argsort(jnp.where(there, jax.random.uniform(key_order, (slots,)), jnp.inf))
    return found[order], there[order]


def padded(x: Float[np.ndarray, "N D"], y: np.ndarray) -> Weighted:
    """Rows of one group, filled up to a power of two: groups of similar size then share one compiled program."""
    size = bucket(len(x))
    fill = lambda array: np.concatenate([array, np.zeros((size - len(x), *array.shape[1:]), array.dtype)])
    arrays: Any = (fill(x), fill(y), (np.arange(size) < len(x)).astype(float))
    return Weighted(*arrays)


def bucket(count: int) -> int:
    """The next power of two, eight at least.

    >>> [bucket(count) for count in (0, 8, 9, 100)]
    [8, 8, 16, 128]
    """
    return max(8, 1 << max(count - 1, 0).bit_length())
