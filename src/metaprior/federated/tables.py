"""A client's tasks from tables: every group of rows, or every file of a folder, is one."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from metaprior.federated.holders import Holder, number_of
from metaprior.federated.steps import Held
from metaprior.meta import numbered_keys
from metaprior.settings import Setup
from metaprior.types import Data, Episode

Points = Float[np.ndarray, "N columns"]  # inputs and then outputs of each


def grouped(setup: Setup, groups: Mapping[str, Points], *, name: str = "") -> Holder:
    """Tasks that are groups of points. In each round every group is divided anew into support and query.

    Args:
        setup: says how many points a support and a query have.
        groups: points of each. Those with too few are left out.
        name: of the client, so that its groups are not taken for those of another.
    """
    tasks = setup.tasks
    columns = next((points.shape[1] for points in groups.values()), 0)
    if tasks.shape is not None or columns != tasks.inputs + tasks.outputs:
        raise ValueError(
            f"{tasks.name} tasks have {'images' if tasks.shape else f'{tasks.inputs} inputs and {tasks.outputs} outputs'}, and "
            f"these rows {columns} numbers: name as many columns as the server's tasks have"
        )
    needed = tasks.shots + tasks.queries
    large = {group: np.asarray(points) for group, points in sorted(groups.items()) if len(points) >= needed}
    if not large:
        raise ValueError(
            f"no group has the {needed} points that {tasks.shots} shots and {tasks.queries} queries need: "
            "ask the server for fewer --shots or --queries"
        )
    numbers = jnp.asarray([number_of(name, group) for group in large], jnp.int32)
    counts = jnp.asarray([len(points) for points in large.values()])
    most = int(counts.max())
    padded = jnp.asarray(np.stack([np.pad(p, ((0, most - len(p)), (0, 0))) for p in large.values()]), float)

    def episode(key, points, count):
        order = jnp.argsort(jnp.where(jnp.arange(most) < count, jax.random.uniform(key, (most,)), jnp.inf))
        chosen = points[order[:needed]]
        part = lambda rows: Data(chosen[rows, : tasks.inputs], chosen[rows, tasks.inputs :])
        return Episode(part(slice(None, tasks.shots)), part(slice(tasks.shots, None)))

    def held(key, numbers, padded, counts):
        return Held(numbers, jax.vmap(episode)(numbered_keys(key, numbers), padded, counts))

    left_out = tuple(sorted(set(groups) - set(large)))
    return Holder(f"{len(large)} groups of points", held, (numbers, padded, counts), left_out)


def read_groups(path: Path, *, group: str | None, x: Sequence[str], y: Sequence[str]) -> dict[str, Points]:
    """The groups of a table, or of a folder of tables in which each file is a group; rows are inputs and then outputs."""
    columns = (*x, *y)
    if path.is_dir():
        files = sorted(path.glob("*.csv"))
        if not files:
            raise ValueError(f"{path} holds no .csv file: put one there for each task")
        points = {file.stem: [point for _, point in _rows(file, None, columns)] for file in files}
        return {name: np.asarray(some).reshape(-1, len(columns)) for name, some in points.items()}
    if group is None:
        raise ValueError(f"say which column of {path} names the group of a row, --group-column NAME")
    found: dict[str, list] = {}
    for name, point in _rows(path, group, columns):
        found.setdefault(name, []).append(point)
    return {name: np.asarray(points) for name, points in found.items()}


def _rows(path: Path, group: str | None, columns: Sequence[str]) -> list[tuple[str, list[float]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets begin their files with a mark
            reader = csv.DictReader(file)
            for name in (*columns, *([] if group is None else [group])):
                if name not in (reader.fieldnames or ()):
                    raise ValueError(
                        f"{path} has no column {name!r}: its columns are {', '.join(reader.fieldnames or ())}"
                    )
            return [
                ("" if group is None else (row[group] or "").strip(), _point(path, reader.line_num, row, columns))
                for row in reader
            ]
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file ({error}): save it as CSV in UTF-8") from None


def _point(path: Path, line: int, row: Mapping[str, str | None], columns: Sequence[str]) -> list[float]:
    words = [row[name] for name in columns]
    try:
        point = [float(word or "") for word in words]
    except ValueError:
        raise ValueError(f"{path}, line {line}: {' and '.join(map(repr, words))} are not all numbers") from None
    if not np.isfinite(point).all():
        raise ValueError(f"{path}, line {line}: {' and '.join(map(str, words))} are not all finite")
    return point
