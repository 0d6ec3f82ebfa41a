"""A user's own folder of classes as a data set: its classes are split once and for all, by their names."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from metaprior.data import images
from metaprior.data.folders import class_folders, load_folder, pictures
from metaprior.data.images import ImageSet

SHARES = {"test": 0.2, "validation": 0.16}  # of the classes, as in miniImageNet; the rest is for training


def load_own(folder: str | Path, *, size: tuple[int, int], channels: int) -> ImageSet:
    """The pictures FOLDER/class/*.jpg or *.png, with some classes kept for validation and some for testing.

    Which ones follows from the SHA-256 of their names alone, so that adding pictures never moves a class to another split.
    """
    everything = load_folder(folder, size=size, channels=channels)
    parts = _split(everything.classes)
    if empty := [split for split, names in parts.items() if not names]:
        raise ValueError(
            f"{folder} has {len(everything.classes)} classes, too few to keep some for {' and '.join(empty)}: add classes, or "
            "learn a prior from other images and adapt it to these, metaprior adapt --help"
        )
    return images.checked(ImageSet("images", **{split: images.select(everything, parts[split]) for split in parts}))


def fewest_kept(folder: str | Path) -> int:
    """How many pictures the smallest class kept for validation or testing has, counted without reading them; 0: no such class."""
    folder = Path(folder)
    counts = {place.name: len(pictures(place)) for place in class_folders(folder)} if folder.is_dir() else {}
    parts = _split(counts)
    return min((counts[name] for split in SHARES for name in parts[split]), default=0)


def _split(classes: Iterable[str]) -> dict[str, list[str]]:
    order = sorted(classes, key=lambda name: sha256(name.encode()).hexdigest())
    counts = {split: round(share * len(order)) for split, share in SHARES.items()}
    test, validation = order[: counts["test"]], order[counts["test"] : sum(counts.values())]
    return {"train": order[sum(counts.values()) :], "validation": validation, "test": test}
