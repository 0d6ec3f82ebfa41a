"""Tasks that are groups of rows of a table: whoever has the rows brings them along.

A run of these knows how many inputs and outputs a row has, and what they are called; the rows are with clients, who show them to
nobody (`federated`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from metaprior.tasks.base import Tasks, check_sizes
from metaprior.types import Data, Episode, Key

NAME = "tables"
Points = Float[np.ndarray, "N columns"]  # inputs and then outputs of each


def tables(
    *,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    shots: int = 10,
    queries: int = 10,
    eval_queries: int | None = None,
) -> Tasks:
    """Tasks of groups of rows that are not here: `sample` and `evaluation` are called with those that `padded` makes.

    Args:
        inputs: names of the columns that are inputs.
        outputs: names of the columns that are to be predicted.
        shots: support rows of a task.
        queries: query rows of a task.
        eval_queries: query rows of a task in evaluation; None: as many as in training.
    """
    judged = queries if eval_queries is None else eval_queries
    check_sizes(shots=shots, queries=queries, eval_queries=judged)
    if not inputs or not outputs or len({*inputs, *outputs}) < len(inputs) + len(outputs):
        raise ValueError(f"name inputs and outputs, each column once: got {list(inputs)} and {list(outputs)}")

    def one_of(count: int):
        def draw(key: Key, points: Float[Array, "G N C"], counts: Int[Array, " G"]) -> Episode:
            key_group, key_rows = jax.random.split(key)
            group = jax.random.randint(key_group, (), 0, counts.shape[0])
            return rows(key_rows, points[group], counts[group], inputs=len(inputs), shots=shots, queries=count)

        return draw

    def nowhere(split: str):
        raise ValueError(
            "tables tasks are made of rows that clients have, and there are none here: learn with metaprior federate server "
            f"{NAME}, and fit noise and widths with metaprior.load(folder).calibrated(groups)"
        )

    describe = f"rows of your own tables, group by group: {', '.join(inputs)} → {', '.join(outputs)}"
    sizes: dict[str, Any] = {"inputs": len(inputs), "outputs": len(outputs), "shots": shots, "queries": queries}
    return Tasks(NAME, one_of(queries), one_of(judged), describe, **sizes, pool=nowhere, elsewhere=True)


def rows(
    key: Key, points: Float[Array, "N C"], count: Int[Array, ""], *, inputs: int, shots: int, queries: int
) -> Episode:
    """A task of one group: support and query from the first `count` points, divided by chance."""
    most = points.shape[0]
    order = jnp.argsort(jnp.where(jnp.arange(most) < count, jax.random.uniform(key, (most,)), jnp.inf))
    chosen = points[order[: shots + queries]]
    part = lambda some: Data(chosen[some, :inputs], chosen[some, inputs:])
    return Episode(part(slice(None, shots)), part(slice(shots, None)))


def padded(
    tasks: Tasks, groups: Mapping[str, Points], needed: int | None = None
) -> tuple[tuple[str, ...], Array, Array]:
    """Groups that have rows enough, in the order of their names, as arrays of one size: names, points and their numbers.

    Args:
        tasks: says how many inputs, outputs and rows there must be.
        groups: points of each, as inputs and then outputs.
        needed: rows of a task, if not as many as in training.
    """
    columns = next((np.asarray(points).shape[-1] for points in groups.values()), 0)
    if tasks.shape is not None or columns != tasks.inputs + tasks.outputs:
        have = "images" if tasks.shape else f"{tasks.inputs} inputs and {tasks.outputs} outputs"
        raise ValueError(
            f"{tasks.name} tasks have {have}, and these rows {columns} numbers: name as many columns as the server's tasks have"
        )
    needed = tasks.shots + tasks.queries if needed is None else needed
    large = {group: np.asarray(points) for group, points in sorted(groups.items()) if len(points) >= needed}
    if not large:
        raise ValueError(
            f"no group has the {needed} points that {tasks.shots} shots and {needed - tasks.shots} queries need: "
            "ask the server for fewer --shots or --queries"
        )
    counts = jnp.asarray([len(points) for points in large.values()])
    most = int(counts.max())
    points = np.stack([np.pad(some, ((0, most - len(some)), (0, 0))) for some in large.values()])
    return tuple(large), jnp.asarray(points, float), counts
