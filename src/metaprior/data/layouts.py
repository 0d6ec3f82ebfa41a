"""A layout: one way in which a data set may lie in a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from metaprior.data.images import ImageSet


class Layout(NamedTuple):
    """How to recognise it and how to read it."""

    name: str
    files: Callable[[Path], list[str]]  # those of it that a folder holds; none: the folder has another layout
    read: Callable[[Path], ImageSet]


def present(*names: str) -> Callable[[Path], list[str]]:
    """Which of these a folder holds."""
    return lambda folder: [name for name in names if (folder / name).exists()]
