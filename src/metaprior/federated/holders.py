"""Where a client's tasks come from: a folder of images, its share of a built-in task set, or `tables`.

Whatever they come from, a client is asked for the tasks of a round by the round's key, and answers with `Held`.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from metaprior.data.folders import load_folder
from metaprior.federated.steps import Held
from metaprior.meta import numbered_keys
from metaprior.settings import Setup
from metaprior.tasks.images import member_table
from metaprior.types import Key


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


def own_images(setup: Setup, folder: Path, *, tasks: int | None = None, name: str = "") -> Holder:
    """Tasks of a client's own pictures, FOLDER/class/*.jpg or *.png, as many a round as a meta-batch has unless told otherwise.

    Args:
        setup: says how many classes and images of each a task has, and of what size.
        folder: classes with too few pictures are left out.
        tasks: a round.
        name: of the client, so that its draws are not those of another.
    """
    task_set = setup.tasks
    if task_set.shape is None:
        raise ValueError(f"{task_set.name} tasks are not made of images: give this client a --table")
    height, width, channels = task_set.shape
    images = load_folder(folder, size=(height, width), channels=channels)
    needed = task_set.shots + task_set.queries
    large = [place for place, count in enumerate(images.counts) if count >= needed]
    if len(large) < task_set.outputs_in_training:
        raise ValueError(
            f"{folder} has {len(large)} classes with {needed} pictures or more, and a task needs "
            f"{task_set.outputs_in_training}: add pictures, or ask the server for fewer --ways, --shots or --queries"
        )
    count = setup.learner.method.meta_batch if tasks is None else tasks
    numbers = jnp.asarray([number_of(name, str(place)) for place in range(count)], jnp.int32)
    left_out = tuple(images.classes[place] for place in range(len(images.classes)) if place not in large)
    data = (numbers, images.pixels, member_table(images)[large])
    return Holder(f"{count} tasks a round of {len(large)} classes", _drawn(setup), data, left_out)


def number_of(client: str, group: str) -> int:
    """A number for a task that no other is likely to have."""
    return int.from_bytes(sha256(f"{client}\n{group}".encode()).digest()[:4]) >> 1
