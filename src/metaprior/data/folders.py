"""Anyone's pictures: a folder with a sub-folder for each class."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from metaprior.data import images
from metaprior.data.images import Images, Source
from metaprior.data.pictures import MODES, read_image
from metaprior.data.problems import DataError, first_few

READ = (".jpg", ".jpeg", ".jpe", ".jfif", ".png")
# Pictures nonetheless: named, never passed over.
UNREAD = tuple(
    f".{ending}"
    for ending in (
        "apng avif bmp gif heic heif hif j2k jif jp2 jxl jxr mpo pbm pgm pnm ppm psd svg tga tif tiff webp "
        "3fr arw cr2 cr3 crw dcr dng erf gpr iiq kdc mef mos mrw nef nrw orf pef raf raw rw2 rwl sr2 srf srw x3f"
    ).split()  # the second line: of cameras
)


def load_folder(path: str | Path, *, size: tuple[int, int] = (84, 84), channels: int = 3) -> Images:
    """The pictures FOLDER/class/*.jpg, *.png and so on (`READ`), by class, resized to (height, width).

    Other files are left alone, except for pictures that cannot be used as they are: those are named, however deep they lie.

    Raises:
        ValueError: with the names of all files and folders that cannot be used.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder: name one that holds a sub-folder with pictures for each class")
    if channels not in MODES or min(size) < 1:
        raise ValueError(f"pictures are read with 1 or 3 channels and at least one pixel, got {channels} and {size}")
    classes = {folder.name: pictures(folder) for folder in class_folders(path)}
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


def folders_of_pictures(path: Path) -> Iterator[Path]:
    """The folders below this one that hold pictures, however deep; those that links lead back to are not entered again."""
    entered, waiting = {path.resolve()}, class_folders(path)
    while waiting:
        folder = waiting.pop(0)
        if folder.resolve() not in entered:
            entered.add(folder.resolve())
            if pictures(folder, (*READ, *UNREAD)):
                yield folder
            waiting += class_folders(folder)


def pictures(folder: Path, endings: tuple[str, ...] = READ) -> list[Path]:
    """Files in a folder with such endings, but for hidden ones."""
    found = (file for file in folder.iterdir() if file.suffix.lower() in endings and not file.name.startswith("."))
    return sorted(file for file in found if not file.is_dir())


def _misplaced(path: Path) -> list[str]:
    """Pictures that would be passed over, and classes without any."""
    folders = class_folders(path)
    problems = [] if folders else [f"{path} has no sub-folders: make one for each class, with its pictures in it"]
    if loose := [file.name for file in pictures(path, (*READ, *UNREAD))]:
        words = "belongs to no class: move it" if len(loose) == 1 else "belong to no class: move each"
        problems.append(f"{first_few(loose, 3)} in {path} {words} into the folder of its class")
    for folder in folders:
        for file in pictures(folder, UNREAD):
            problems.append(f"{file} cannot be read: convert it to JPEG or PNG, or remove it")
        deeper = folders_of_pictures(folder)
        if pictures(folder, (*READ, *UNREAD)):  # whose class would those below be?
            problems += [
                f"{inner} lies within a class: move its pictures up into {folder}, or out of {path}" for inner in deeper
            ]
        else:
            outer = next((inner.parent for inner in deeper), None)
            hint = f"its sub-folders do, so {outer} may be the folder to name" if outer else "add some, or remove it"
            problems.append(f"{folder} holds no pictures: {hint}")
    return problems
