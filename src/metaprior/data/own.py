"""A user's own folder of classes as a data set: its classes are split once and for all, by their names."""

from hashlib import sha256
from pathlib import Path

import numpy as np

from metaprior.data.folders import load_folder
from metaprior.data.images import Images, ImageSet

SHARES = {"test": 0.2, "validation": 0.16}  # of the classes, as in miniImageNet; the rest is for training


def load_own(folder: str | Path, *, size: tuple[int, int], channels: int) -> ImageSet:
    """The pictures FOLDER/class/*.jpg or *.png, with some classes kept for validation and some for testing.

    Which ones follows from the SHA-256 of their names alone, so that adding pictures never moves a class to another split.
    """
    everything = load_folder(folder, size=size, channels=channels)
    order = sorted(range(len(everything.classes)), key=lambda i: sha256(everything.classes[i].encode()).hexdigest())
    counts = {split: round(share * len(order)) for split, share in SHARES.items()}
    test, validation = order[: counts["test"]], order[counts["test"] : sum(counts.values())]
    parts = {"train": order[sum(counts.values()) :], "validation": validation, "test": test}
    if empty := [split for split, kinds in parts.items() if not kinds]:
        raise ValueError(
            f"{folder} has {len(order)} classes, too few to keep some for {' and '.join(empty)}: add classes, or learn a prior "
            "from other images and adapt it to these, metaprior adapt --help"
        )
    return ImageSet("images", **{split: _chosen(everything, sorted(kinds)) for split, kinds in parts.items()})


def _chosen(images: Images, kinds: list[int]) -> Images:
    """Some of the classes."""
    counts = images.counts[kinds]
    rows = np.concatenate([np.arange(images.starts[k], images.starts[k] + images.counts[k]) for k in kinds])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
    return Images(images.pixels[rows], starts, counts, tuple(images.classes[k] for k in kinds))
