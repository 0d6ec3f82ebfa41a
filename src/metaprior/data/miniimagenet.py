"""miniImageNet from packed files, or from a folder of images with train.csv, val.csv and test.csv. Never from a pickle."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from metaprior.data import contents, images
from metaprior.data.folders import class_folders
from metaprior.data.images import ImageSet, Source
from metaprior.data.layouts import Layout, present
from metaprior.data.packed import read_npz
from metaprior.data.pictures import read_image, reason
from metaprior.data.problems import DataError, first_few

SHAPE = (84, 84, 3)
ROWS, COLUMNS, TILE = (
    20,
    30,
    96,
)  # a class is one JPEG: tiles of 96 × 96 pixels, the image in the top left corner of each
PACKED = {
    "train": ("miniimagenet_train_a.npz", "miniimagenet_train_b.npz"),
    "validation": ("miniimagenet_val.npz",),
    "test": ("miniimagenet_test.npz",),
}
FOLDER, TABLES = "images", {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}
PICKLES = "mini-imagenet-cache-*.pkl"


def read_packed(folder: Path) -> ImageSet:
    """From mosaics: each class one JPEG, all in four npz files."""
    return _read(folder, open_packed, {split: _copied(*files) for split, files in PACKED.items()})


def read_public(folder: Path) -> ImageSet:
    """From images/ and three tables of filename and label; images of another size are resized."""
    if not (folder / FOLDER).is_dir():
        tables = f"put the pictures that {', '.join(TABLES.values())} list into {folder / FOLDER}"
        raise DataError(f"miniimagenet in {folder}", [f"the folder {FOLDER} is missing: {tables}"])
    mend = {split: f"correct {table} to the split that docs/data.md names" for split, table in TABLES.items()}
    return _read(folder, open_listed, mend)


def refuse_pickles(folder: Path) -> ImageSet:
    """Pickles are not opened."""
    raise DataError(
        f"miniimagenet in {folder}",
        [
            f"{name} is a pickle, and loading a pickle runs whatever code its author put into it, so it is not opened: "
            "convert it to images and CSV files by the recipe in docs/data.md"
            for name in _pickles(folder)
        ],
    )


def _pickles(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(PICKLES))


def _public_files(folder: Path) -> list[str]:
    """A folder `images` alone may be anything, and so may tables without it that lie beside folders of classes."""
    tables = present(*TABLES.values())(folder)
    if (folder / FOLDER).exists():
        return [FOLDER, *tables] if tables else []
    return tables if len(tables) == len(TABLES) and len(class_folders(folder)) < 2 else []


LAYOUTS = (
    Layout("packed mosaics", present(*(file for files in PACKED.values() for file in files)), read_packed),
    Layout("images and CSV files", _public_files, read_public),
    Layout("pickles", _pickles, refuse_pickles),
)


def _copied(*files: str) -> str:
    return f"copy {' and '.join(files)} anew from where you have it, docs/data.md says what has to be in it"


def _read(
    folder: Path, open_split: Callable[[Path, str], tuple[Source, list[str]]], mend: Mapping[str, str]
) -> ImageSet:
    """All three splits, or all that is wrong with them, and how to mend each."""
    splits, problems = {}, []
    for split in contents.MINIIMAGENET.classes:
        source, missing = open_split(folder, split)
        splits[split], unreadable = images.read(source)
        problems += [*(missing or _unexpected(split, source.counts, mend[split])), *unreadable]
    if problems:
        raise DataError(f"miniimagenet in {folder}", problems)
    return images.checked(ImageSet("miniimagenet", **splits))


def _unexpected(split: str, counts: Mapping[str, int], mend: str) -> list[str]:
    """Where a split differs from that of Ravi & Larochelle: results on another one could not be compared."""
    expected, number = contents.MINIIMAGENET.classes[split], contents.MINIIMAGENET.images
    missing = [name for name in expected if name not in counts]
    strange = sorted(set(counts) - set(expected))
    problems = []
    if missing:
        problems.append(f"{split} lacks {len(missing)} of {len(expected)} classes ({first_few(missing, 5)}): {mend}")
    if strange:
        problems.append(f"{split} has {len(strange)} classes of other splits or none ({first_few(strange, 5)}): {mend}")
    return problems + [
        f"{split} has {count} of {number} images of {name}: {mend}"
        for name, count in counts.items()
        if name not in strange and count != number
    ]


def open_packed(folder: Path, split: str) -> tuple[Source, list[str]]:
    """One split from its npz files, and what is wrong with these."""
    sources, problems = {}, []
    for file in PACKED[split]:
        try:
            found = _mosaics(folder / file)
        except DataError as error:
            problems += error.problems
            continue
        sources |= dict.fromkeys(found.counts, found)
    counts = {name: source.counts[name] for name, source in sources.items()}
    return Source(counts, SHAPE, lambda name, room: sources[name].read(name, room)), problems


def _mosaics(path: Path) -> Source:
    arrays = read_npz(path, ("classes", "names", "jpeg", "offset"), mend=_copied(path.name))
    classes, jpeg, offset = arrays["classes"].astype(str).tolist(), arrays["jpeg"], arrays["offset"].tolist()
    if len(offset) != len(classes) + 1 or arrays["names"].shape != (len(classes), ROWS * COLUMNS):
        raise DataError(str(path), [f"{path.name} has arrays that do not fit each other: {_copied(path.name)}"])
    places = {name: slice(*offset[place : place + 2]) for place, name in enumerate(classes)}

    def read(name: str, room: UInt8[np.ndarray, "N 84 84 3"]) -> list[str]:
        try:
            room[:] = _tiles(jpeg[places[name]].tobytes())
        except Exception as error:  # decoders raise whatever a broken file makes them stumble over
            return [f"the mosaic of {name} in {path.name} is broken ({reason(error)}): {_copied(path.name)}"]
        return []

    return Source(dict.fromkeys(classes, ROWS * COLUMNS), SHAPE, read)


def _tiles(data: bytes) -> UInt8[np.ndarray, "600 84 84 3"]:
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as mosaic:
        if mosaic.size != (COLUMNS * TILE, ROWS * TILE):
            raise ValueError("{} × {} pixels instead of 2880 × 1920".format(*mosaic.size))
        tiles = np.asarray(mosaic.convert("RGB")).reshape(ROWS, TILE, COLUMNS, TILE, 3)
    height, width, _ = SHAPE
    return tiles[:, :height, :, :width].swapaxes(1, 2).reshape(ROWS * COLUMNS, *SHAPE)


def open_listed(folder: Path, split: str) -> tuple[Source, list[str]]:
    """One split from its table, and what is wrong with that."""
    try:
        files = _read_table(folder / TABLES[split])
    except DataError as error:
        return Source({}, SHAPE, lambda name, room: []), list(error.problems)

    def read(name: str, room: UInt8[np.ndarray, "N 84 84 3"]) -> list[str]:
        problems = []
        for place, file in enumerate(files[name]):
            try:
                room[place] = read_image(folder / FOLDER / file, size=SHAPE[:2], channels=SHAPE[2])
            except ValueError as error:
                problems.append(str(error))
        return problems

    return Source({name: len(found) for name, found in files.items()}, SHAPE, read), []


def _read_table(path: Path) -> dict[str, list[str]]:
    """Label -> file names, sorted."""
    found, problems, seen = defaultdict(list), [], set()
    expected = f"save a table of the columns filename,label there, in UTF-8, with a row for each picture in {FOLDER}"
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise DataError(str(path), [f"{path.name} is missing: {expected}"]) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(str(path), [f"{path.name} cannot be read ({error}): {expected}"]) from None
    for line, row in enumerate(rows, start=2):
        name, label = row.get("filename"), row.get("label")
        if not name or not label:
            problems.append(f"{path.name}, line {line}, has no filename and label: its header must be filename,label")
        elif PurePath(name).name != name or name in seen:
            wrong = f"{path.name}, line {line}: {name} is listed twice, or is not a plain file name"
            problems.append(f"{wrong}: list each picture of {FOLDER} once, by its name alone")
        else:
            found[label].append(name)
            seen.add(name)
    if problems:
        raise DataError(str(path), problems)
    return {label: sorted(names) for label, names in found.items()}
