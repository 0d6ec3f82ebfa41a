"""Data sets by name, whatever the layout of the folder they lie in."""

import os
from pathlib import Path
from typing import NamedTuple

from metaprior.data import miniimagenet, omniglot
from metaprior.data.images import ImageSet
from metaprior.data.layouts import Layout
from metaprior.names import require_known

VARIABLE = "METAPRIOR_DATA"
LAYOUTS: dict[str, tuple[Layout, ...]] = {"omniglot": omniglot.LAYOUTS, "miniimagenet": miniimagenet.LAYOUTS}
HOW = {
    "omniglot": "metaprior data get omniglot downloads it",
    "miniimagenet": "docs/data.md says where it comes from and which files are read",
}


class Found(NamedTuple):
    """A data set, or part of one, and the folder with its files."""

    folder: Path
    layout: Layout


def load(name: str, folder: str | Path | None = None) -> ImageSet:
    """A data set in its three splits.

    Args:
        name: omniglot or miniimagenet.
        folder: where it lies, in any of the layouts of docs/data.md; without one, the folder that the environment
            variable METAPRIOR_DATA names.

    Raises:
        ValueError: if it is not there, or with the names of all that is missing or broken.
    """
    require_known("data set", name, LAYOUTS)
    folder = folder or os.environ.get(VARIABLE)
    if not folder:
        raise ValueError(f"where is {name}? name its folder with --data-dir or in {VARIABLE}; {HOW[name]}")
    if not Path(folder).is_dir():
        raise ValueError(f"{folder} is not a folder: name that of {name} with --data-dir or in {VARIABLE}; {HOW[name]}")
    found = find(name, Path(folder))
    if found is None:
        raise ValueError(f"{folder} holds no {name}: name its folder with --data-dir or in {VARIABLE}; {HOW[name]}")
    return found.layout.read(found.folder)


def find(name: str, folder: Path) -> Found | None:
    """The first layout of a data set of which anything is there: packed files go before all others."""
    places = _places(name, folder)
    return next((Found(place, way) for way in LAYOUTS[name] for place in places if way.files(place)), None)


def _places(name: str, folder: Path) -> list[Path]:
    """The folder, and those in it that are called like the data set; `python` is where the authors of Omniglot keep it."""
    plain = lambda path: "".join(filter(str.isalnum, path.name.lower()))
    alike = [path for path in sorted(folder.iterdir()) if path.is_dir() and plain(path).startswith(name)]
    return [place for path in (folder, *alike) for place in (path, path / "python")]
