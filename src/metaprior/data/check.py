"""What a folder holds, whether it is whole, and what is missing or broken."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from metaprior.data.folders import load_folder
from metaprior.data.images import Images
from metaprior.data.problems import DataError
from metaprior.data.sets import LAYOUTS, Found, find

CLASS_FOLDER = "folder of classes"


class Report(NamedTuple):
    """On one data set; a plain folder of classes has a single split `all`."""

    name: str
    folder: Path
    layout: str
    files: tuple[str, ...]
    splits: Mapping[str, Images]  # none, if there are problems
    problems: tuple[str, ...]


def check(folder: str | Path) -> list[Report]:
    """Read all that a folder holds: the data sets known by name or else anyone's pictures, sorted by class in sub-folders.

    Images are decoded, so that a broken one is found; they are in the report.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: check the path")
    found = {name: place for name in LAYOUTS if (place := find(name, folder))}
    return [_data_set(name, place) for name, place in found.items()] or [_class_folder(folder)]


def _data_set(name: str, found: Found) -> Report:
    splits, problems = {}, ()
    try:
        splits = found.layout.read(found.folder).splits
    except DataError as error:
        problems = error.problems
    return Report(name, found.folder, found.layout.name, tuple(found.layout.files(found.folder)), splits, problems)


def _class_folder(folder: Path) -> Report:
    splits, problems = {}, ()
    try:
        splits = {"all": load_folder(folder)}
    except DataError as error:
        problems = error.problems
    return Report(folder.resolve().name, folder, CLASS_FOLDER, (), splits, problems)
