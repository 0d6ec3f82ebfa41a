"""The problems on which speed on images is measured: which tasks, how many of them, and the images that they are made of."""

import os
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from metaprior.data.sets import VARIABLE
from metaprior.settings import Settings, Setup, assemble
from metaprior.tasks import IMAGE_SETS
from metaprior.tasks import get as get_tasks

STEPS, QUERY_STEPS = 5, 1  # inner steps on the support, and of the second stage on the query

Pool = tuple[UInt8[np.ndarray, "M H W C"], Int[np.ndarray, "K I"]]  # images, and those of each class by their numbers


class Setting(NamedTuple):
    """Tasks of images and a network for them."""

    tasks: str
    ways: int
    shots: int
    queries: int  # of each class
    meta_batch: int
    filters: int
    target: float | None  # what a meta-iteration may cost, in floors

    @property
    def support(self) -> int:
        """Support images of a meta-batch."""
        return self.meta_batch * self.ways * self.shots

    @property
    def query(self) -> int:
        """Query images of a meta-batch."""
        return self.meta_batch * self.ways * self.queries


SETTINGS = {
    "omniglot-5w1s": Setting("omniglot", 5, 1, 5, 32, 64, 1.2),
    "omniglot-20w1s": Setting("omniglot", 20, 1, 5, 16, 64, 1.2),
    "miniimagenet-5w1s": Setting("miniimagenet", 5, 1, 15, 4, 32, 1.4),
    "miniimagenet-5w1s, 16 tasks": Setting("miniimagenet", 5, 1, 15, 16, 32, None),
}
SIZES = {"omniglot": (1200, 20), "miniimagenet": (64, 600)}  # classes of the training split, and images of each


def passes(setting: Setting) -> str:
    """What the floor is made of, in words.

    >>> passes(SETTINGS["omniglot-5w1s"])
    '5 passes over 160 support images and 1 over 800 query images'
    """
    return f"{STEPS} passes over {setting.support} support images and {QUERY_STEPS} over {setting.query:,} query images"


def pool(setting: Setting) -> tuple[Pool, str]:
    """The images that tasks pick from, and what they are: real ones where METAPRIOR_DATA says where they lie."""
    if os.environ.get(VARIABLE):
        tasks = get_tasks(setting.tasks, ways=setting.ways, shots=setting.shots, queries=setting.queries)
        return tasks.pool("train"), f"the training images of {setting.tasks}"
    words = f"random bytes, as many as the training images of {setting.tasks} ({VARIABLE} is not set): time does not see them"
    return random_pool(setting.tasks, *SIZES[setting.tasks]), words


def random_pool(tasks: str, classes: int, count: int) -> Pool:
    """Random bytes in the shape of `count` images of each class."""
    pixels = np.random.default_rng(0).integers(0, 256, (classes * count, *IMAGE_SETS[tasks].shape), np.uint8)
    return pixels, np.arange(classes * count, dtype=np.int32).reshape(classes, count)


def set_up(setting: Setting, method: str, *, precision: str | None) -> Setup:
    """A row of the table as everybody trains it, with 5 steps on the support and in GEM-BML+ one on the query after them."""
    chosen: dict[str, Any] = {name: value for name, value in setting._asdict().items() if name != "target"}
    chosen |= {"method": method, "steps": STEPS, "query_steps": 0, "precision": precision}
    if method == "gem-bml+":
        chosen |= {"query_steps": QUERY_STEPS, "second_stage": "sequential"}
    return assemble(Settings(**chosen))
