"""A user's own folder of classes as a data set: its classes are split once and for all, by their names."""

from hashlib import sha256
from pathlib import Path

from metaprior.data import images
from metaprior.data.folders import load_folder
from metaprior.data.images import ImageSet

SHARES = {"test": 0.2, "validation": 0.16}  # of the classes, as in miniImageNet; the rest is for training


def load_own(folder: str | Path, *, size: tuple[int, int], channels: int) -> ImageSet:
    """The pictures FOLDER/class/*.jpg or *.png, with some classes kept for validation and some for testing.

    Which ones follows from the SHA-256 of their names alone, so that adding pictures never moves a class to another split.
    """
    everything = load_folder(folder, size=size, channels=channels)
    order = sorted(everything.classes, key=lambda name: sha256(name.encode()).hexdigest())
    counts = {split: round(share * len(order)) for split, share in SHARES.items()}
    test, validation = order[: counts["test"]], order[counts["test"] : sum(counts.values())]
    parts = {"train": order[sum(counts.values()) :], "validation": validation, "test": test}
    if empty := [split for split, names in parts.items() if not names]:
        raise ValueError(
            f"{folder} has {len(order)} classes, too few to keep some for {' and '.join(empty)}: add classes, or learn a prior "
            "from other images and adapt it to these, metaprior adapt --help"
        )
    return images.checked(ImageSet("images", **{split: images.select(everything, parts[split]) for split in parts}))
