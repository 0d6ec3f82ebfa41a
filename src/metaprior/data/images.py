"""Images sorted by class, in one array: what every reader makes, and what episodes are drawn from."""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from metaprior.data.problems import DataError, first_few

THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes outside of Python's lock


class Images(NamedTuple):
    """One split: K classes, sorted by name, M images, those of class k at `starts[k] : starts[k] + counts[k]`."""

    pixels: UInt8[np.ndarray, "M H W C"]  # Omniglot: 0 background, 255 ink
    starts: Int32[np.ndarray, " K"]
    counts: Int32[np.ndarray, " K"]
    classes: tuple[str, ...]


class ImageSet(NamedTuple):
    """A data set in three splits that share no class."""

    name: str
    train: Images
    validation: Images
    test: Images

    @property
    def splits(self) -> dict[str, Images]:
        """The splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


class Source(NamedTuple):
    """Where images come from: how many of each class, and a function that decodes one class.

    `read(name, room)` fills `room`, uint8 [count, H, W, C], and returns a sentence for each image it could not read.
    """

    counts: Mapping[str, int]
    shape: tuple[int, int, int]
    read: Callable[[str, UInt8[np.ndarray, "N H W C"]], list[str]]


def read(source: Source) -> tuple[Images, list[str]]:
    """All images of a source, a class per thread at a time, and what was wrong with them."""
    classes = tuple(sorted(source.counts))
    counts = np.array([source.counts[name] for name in classes], np.int32)
    starts = (np.cumsum(counts) - counts).astype(np.int32)
    pixels = np.empty((int(counts.sum()), *source.shape), np.uint8)
    rooms = [pixels[start : start + count] for start, count in zip(starts, counts, strict=True)]
    pool = ThreadPoolExecutor(THREADS)
    try:
        problems = [problem for found in pool.map(source.read, classes, rooms) for problem in found]
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for classes that were not begun
    return Images(pixels, starts, counts, classes), problems


def select(images: Images, names: Iterable[str]) -> Images:
    """Some of the classes."""
    places = [images.classes.index(name) for name in sorted(names)]
    counts = images.counts[places]
    slices = [np.arange(start, start + count) for start, count in zip(images.starts[places], counts, strict=True)]
    chosen = np.concatenate([np.zeros(0, int), *slices])
    return Images(
        pixels=images.pixels[chosen],
        starts=(np.cumsum(counts) - counts).astype(np.int32),
        counts=counts,
        classes=tuple(images.classes[place] for place in places),
    )


def checked(images: ImageSet) -> ImageSet:
    """The same, if no two of its splits share a class: otherwise its test would be no test."""
    problems = [
        f"{one} and {other} share {first_few(sorted(shared), 5)}"
        for (one, first), (other, second) in combinations(images.splits.items(), 2)
        if (shared := set(first.classes) & set(second.classes))
    ]
    if problems:
        raise DataError(images.name, problems)
    return images
