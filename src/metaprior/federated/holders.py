"""Where a client's tasks come from: a table with a column of groups, a folder of tables, or its share of a built-in task set.

Whatever they come from, a client is asked for the tasks of a round by the round's key, and answers with `Held`.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from metaprior.federated.steps import Held
from metaprior.meta import numbered_keys
from metaprior.settings import Setup
from metaprior.types import Data, Episode, Key

Points = Float[np.ndarray, "N 2"]  # input and output of each


class Holder(NamedTuple):
    """Tasks that a client has. `held(key, *data)` draws those of a round from the key of its draws, and can be compiled.

    Holders that share `held` and have data of equal shapes share a compiled program.
    """

    describe: str
    held: Callable[..., Held]
    data: tuple = ()
    left_out: tuple[str, ...] = ()  # groups that have too few points

    def draw(self, key: Key) -> Held:
        """The tasks of a round."""
        return self.held(key, *self.data)


def share(setup: Setup, client: int, clients: int) -> Holder:
    """Every `clients`-th task of a meta-batch of a built-in task set: all clients together have those of one machine."""
    if not 0 <= client < clients:
        raise ValueError(f"of {clients} clients there is no number {client}: they are counted from 0")
    return shares(setup, clients)[client]


def shares(setup: Setup, clients: int) -> list[Holder]:
    """Of all clients."""
    pool, meta_batch = setup.tasks.pool("train"), setup.learner.method.meta_batch
    describe = lambda numbers: f"{numbers.size} of {meta_batch} {setup.tasks.name} tasks a round"
    held = _drawn(setup)
    return [Holder(describe(numbers), held, (numbers, *pool)) for numbers in _dealt(setup, clients)]


def apart(setup: Setup, clients: int) -> list[Holder]:
    """As `shares`, of classes that no other client has: whole alphabets, where classes have alphabets."""
    names = setup.tasks.classes("train")
    if not names:
        raise ValueError(f"{setup.tasks.name} tasks are not made of classes that clients could have apart")
    pixels, members = (np.asarray(part) for part in setup.tasks.pool("train"))
    held, holders = _drawn(setup), []
    for numbers, chosen in zip(_dealt(setup, clients), dealt_classes(names, clients), strict=True):
        if len(chosen) < setup.tasks.outputs_in_training:
            raise ValueError(
                f"a client would have {len(chosen)} classes, fewer than a task needs: take fewer --clients"
            )
        own = members[chosen]
        places = np.unique(own[own >= 0])  # the images of others are not there
        own = np.where(own >= 0, np.searchsorted(places, own), -1).astype(members.dtype)
        holders.append(
            Holder(f"{numbers.size} tasks a round of {len(chosen)} classes", held, (numbers, pixels[places], own))
        )
    return holders


def dealt_classes(names: Sequence[str], clients: int) -> list[list[int]]:
    """Which classes each client has: all of a group go to one, the largest groups first and each to whom has least.

    >>> dealt_classes(("Greek/1", "Greek/2", "Latin/1", "Latin/2", "Latin/3", "Runes/1"), 2)
    [[2, 3, 4], [0, 1, 5]]
    """
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(name.rpartition("/")[0] or name, []).append(place)
    dealt: list[list[int]] = [[] for _ in range(clients)]
    for _, places in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        min(dealt, key=len).extend(places)
    return [sorted(places) for places in dealt]


def _drawn(setup: Setup) -> Callable[..., Held]:
    def held(key: Key, numbers: Int[Array, " T"], *pool: Any) -> Held:
        episodes = jax.vmap(lambda key: setup.tasks.sample(key, *pool))(numbered_keys(key, numbers))
        return Held(numbers, episodes)

    return held


def _dealt(setup: Setup, clients: int) -> list[Int[Array, " T"]]:
    """The numbers of the tasks of a meta-batch, one after the other to each client."""
    meta_batch = setup.learner.method.meta_batch
    if not 1 <= clients <= meta_batch:
        raise ValueError(
            f"a meta-batch of {meta_batch} tasks cannot be shared by {clients} clients: raise --meta-batch"
        )
    return [jnp.arange(client, meta_batch, clients) for client in range(clients)]


def grouped(setup: Setup, groups: Mapping[str, Points], *, name: str = "") -> Holder:
    """Tasks that are groups of points. In each round every group is divided anew into support and query.

    Args:
        setup: says how many points a support and a query have.
        groups: points of each. Those with too few are left out.
        name: of the client, so that its groups are not taken for those of another.
    """
    tasks = setup.tasks
    if tasks.shape is not None or tasks.inputs != 1 or tasks.outputs != 1:
        raise ValueError(f"groups of points have one input and one output, and {tasks.name} tasks do not")
    needed = tasks.shots + tasks.queries
    large = {group: np.asarray(points) for group, points in sorted(groups.items()) if len(points) >= needed}
    if not large:
        raise ValueError(
            f"no group has the {needed} points that {tasks.shots} shots and {tasks.queries} queries need: "
            "ask the server for fewer --shots or --queries"
        )
    numbers = jnp.asarray([_number(name, group) for group in large], jnp.int32)
    counts = jnp.asarray([len(points) for points in large.values()])
    most = int(counts.max())
    padded = jnp.asarray(np.stack([np.pad(p, ((0, most - len(p)), (0, 0))) for p in large.values()]), float)

    def episode(key, points, count):
        order = jnp.argsort(jnp.where(jnp.arange(most) < count, jax.random.uniform(key, (most,)), jnp.inf))
        chosen = points[order[:needed]]
        part = lambda rows: Data(chosen[rows, :1], chosen[rows, 1:])
        return Episode(part(slice(None, tasks.shots)), part(slice(tasks.shots, None)))

    def held(key, numbers, padded, counts):
        return Held(numbers, jax.vmap(episode)(numbered_keys(key, numbers), padded, counts))

    left_out = tuple(sorted(set(groups) - set(large)))
    return Holder(f"{len(large)} groups of points", held, (numbers, padded, counts), left_out)


def read_groups(path: Path, *, group: str | None, x: str, y: str) -> dict[str, Points]:
    """The groups of a table, or of a folder of tables in which each file is a group."""
    if path.is_dir():
        files = sorted(path.glob("*.csv"))
        if not files:
            raise ValueError(f"{path} holds no .csv file: put one there for each task")
        return {file.stem: np.asarray([point for _, point in _rows(file, None, x, y)]).reshape(-1, 2) for file in files}
    if group is None:
        raise ValueError(f"say which column of {path} names the group of a row, --group-column NAME")
    found: dict[str, list] = {}
    for name, point in _rows(path, group, x, y):
        found.setdefault(name, []).append(point)
    return {name: np.asarray(points) for name, points in found.items()}


def _rows(path: Path, group: str | None, x: str, y: str) -> list[tuple[str, tuple[float, float]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets begin their files with a mark
            reader = csv.DictReader(file)
            for name in (x, y, *([] if group is None else [group])):
                if name not in (reader.fieldnames or ()):
                    raise ValueError(
                        f"{path} has no column {name!r}: its columns are {', '.join(reader.fieldnames or ())}"
                    )
            return [
                ("" if group is None else (row[group] or "").strip(), _point(path, reader.line_num, row, x, y))
                for row in reader
            ]
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file ({error}): save it as CSV in UTF-8") from None


def _point(path: Path, line: int, row: Mapping[str, str | None], x: str, y: str) -> tuple[float, float]:
    try:
        point = float(row[x] or ""), float(row[y] or "")
    except ValueError:
        raise ValueError(f"{path}, line {line}: {row[x]!r} and {row[y]!r} are not two numbers") from None
    if not np.isfinite(point).all():
        raise ValueError(f"{path}, line {line}: {row[x]} and {row[y]} are not both finite")
    return point


def _number(client: str, group: str) -> int:
    """A number for a group that no other is likely to have."""
    return int.from_bytes(sha256(f"{client}\n{group}".encode()).digest()[:4]) >> 1
