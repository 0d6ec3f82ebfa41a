"""Anyone's pictures: a folder with a sub-folder for each class."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from metaprior.data import images
from metaprior.data.images import Images, Source
from metaprior.data.pictures import MODES, read_image
from metaprior.data.problems import DataError, first_few

READ = (".jpg", ".jpeg", ".png")
UNREAD = (".avif", ".bmp", ".gif", ".heic", ".heif", ".tif", ".tiff", ".webp")  # pictures nonetheless


def load_folder(path: str | Path, *, size: tuple[int, int] = (84, 84), channels: int = 3) -> Images:
    """The pictures FOLDER/class/*.jpg, *.jpeg and *.png, by class, resized to (height, width).

    Other files are left alone, except for pictures that cannot be used as they are: those are named.

    Raises:
        ValueError: with the names of all files and folders that cannot be used.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder: name one that holds a sub-folder with pictures for each class")
    if channels not in MODES or min(size) < 1:
        raise ValueError(f"pictures are read with 1 or 3 channels and at least one pixel, got {channels} and {size}")
    classes = {folder.name: _pictures(folder, READ) for folder in class_folders(path)}
    problems = _misplaced(path)

    def read(name: str, room: UInt8[np.ndarray, "N H W C"]) -> list[str]:
        unreadable = []
        for place, file in enumerate(classes[name]):
            try:
                room[place] = read_image(file, size=size, channels=channels)
            except ValueError as error:
                unreadable.append(f"{error}, or remove it")
        return unreadable

    counts = {name: len(files) for name, files in classes.items()}
    found, unreadable = images.read(Source(counts, (*size, channels), read))
    if problems or unreadable:
        raise DataError(str(path), [*problems, *unreadable])
    return found


def class_folders(path: Path) -> list[Path]:
    """The sub-folders of a folder, without hidden ones and what zip files of a Mac bring along."""
    return sorted(
        folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith((".", "__MACOSX"))
    )


def _pictures(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    found = (file for file in folder.iterdir() if file.suffix.lower() in endings and not file.name.startswith("."))
    return sorted(file for file in found if not file.is_dir())


def _misplaced(path: Path) -> list[str]:
    """Pictures that would be passed over, and classes without any."""
    folders = class_folders(path)
    problems = [] if folders else [f"{path} has no sub-folders: make one for each class, with its pictures in it"]
    if loose := [file.name for file in _pictures(path, (*READ, *UNREAD))]:
        words = "belongs to no class: move it" if len(loose) == 1 else "belong to no class: move each"
        problems.append(f"{first_few(loose, 3)} in {path} {words} into the folder of its class")
    for folder in folders:
        for file in _pictures(folder, UNREAD):
            problems.append(f"{file} is neither JPEG nor PNG: convert it, or remove it")
        deeper = [inner for inner in class_folders(folder) if _pictures(inner, (*READ, *UNREAD))]
        if not _pictures(folder, (*READ, *UNREAD)):
            hint = f"its sub-folders do, so {folder} may be the folder to name" if deeper else "add some, or remove it"
            problems.append(f"{folder} holds no pictures: {hint}")
        else:  # whose class would those be?
            problems += [
                f"{inner} lies within a class: move its pictures up into {folder}, or out of {path}" for inner in deeper
            ]
    return problems
