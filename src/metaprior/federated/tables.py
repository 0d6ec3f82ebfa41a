"""A client's tasks from tables: every group of rows, or every file of a folder, is one."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.federated.holders import Holder, number_of
from metaprior.federated.steps import Held
from metaprior.meta import numbered_keys
from metaprior.settings import Setup
from metaprior.tasks.tables import Points, padded, rows


def grouped(setup: Setup, groups: Mapping[str, Points], *, name: str = "") -> Holder:
    """Tasks that are groups of points. In each round every group is divided anew into support and query.

    Args:
        setup: says how many points a support and a query have.
        groups: points of each. Those with too few are left out.
        name: of the client, so that its groups are not taken for those of another.
    """
    tasks = setup.tasks
    names, points, counts = padded(tasks, groups)
    numbers = jnp.asarray([number_of(name, group) for group in names], jnp.int32)

    def episode(key, points, count):
        return rows(key, points, count, inputs=tasks.inputs, shots=tasks.shots, queries=tasks.queries)

    def held(key, numbers, points, counts):
        return Held(numbers, jax.vmap(episode)(numbered_keys(key, numbers), points, counts))

    left_out = tuple(sorted(set(groups) - set(names)))
    return Holder(f"{len(names)} groups of points", held, (numbers, points, counts), left_out)


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
