"""Omniglot from packed files, or from the authors' PNG files as folders or as zip files that stay packed."""

import hashlib
import io
import re
import shlex
import threading
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from metaprior.data import contents, drawings, images
from metaprior.data.images import ImageSet, Source
from metaprior.data.layouts import Layout, present
from metaprior.data.packed import read_npz
from metaprior.data.pictures import reason
from metaprior.data.problems import DataError, first_few

SHAPE = (drawings.SMALL, drawings.SMALL, 1)
PACKED, BITMAPS = "omniglot_28x28.npz", "omniglot_105x105_packed.npz"
HALVES = ("images_background", "images_evaluation")
LARGEST = 1 << 20  # bytes of one drawing; the real ones have a few hundred


class Half(NamedTuple):
    """One of the two public files, as a zip file or as a folder."""

    names: tuple[str, ...]  # ALPHABET/characterNN/IDIDID_DD.png
    read: Callable[[str], bytes]
    mend: str  # what to do where something is wrong with it


def _get(folder: Path) -> str:
    return f"metaprior data get omniglot --out {shlex.quote(str(folder))}"


def _unpacked_instead(path: Path) -> str:
    """Packed files are read before all others, so a broken one has to go."""
    return f"move {path.name} away, and {_get(path.parent)} downloads zip files that are read in its place"


def read_packed(folder: Path) -> ImageSet:
    """From the drawings in small."""
    arrays = read_npz(folder / PACKED, ("images", "names"), mend=_unpacked_instead(folder / PACKED))
    pixels, names = arrays["images"], arrays["names"].astype(str).tolist()
    return _from_array(folder / PACKED, names, pixels, (28, 28), lambda drawn: drawn)


def read_bitmaps(folder: Path) -> ImageSet:
    """From the bitmaps, a bit per pixel."""
    arrays = read_npz(folder / BITMAPS, ("packed", "names"), mend=_unpacked_instead(folder / BITMAPS))
    packed, names = arrays["packed"], arrays["names"].astype(str).tolist()
    unpack = lambda drawn: drawings.shrink(np.unpackbits(drawn, axis=-1, count=drawings.SIDE).astype(bool))
    return _from_array(folder / BITMAPS, names, packed, (105, 14), unpack)


def read_public(folder: Path) -> ImageSet:
    """From images_background and images_evaluation, each a zip file or a folder."""
    problems, places = [], defaultdict(list)
    for half in HALVES:
        try:
            found = open_half(folder, half)
        except ValueError as error:
            problems.append(str(error))
            continue
        members = _by_character(found.names)
        problems += _incomplete(half, members, found.mend)
        for name, files in members.items():
            places[name] += [(half, found, file) for file in files]
    counts = {name: len(files) for name, files in places.items()}
    source = Source(counts, SHAPE, lambda name, room: _read_drawings(places[name], room))
    return _image_set(f"omniglot in {folder}", source, problems)


LAYOUTS = (
    Layout("packed, 28 × 28", present(PACKED), read_packed),
    Layout("packed bitmaps, 105 × 105", present(BITMAPS), read_bitmaps),
    Layout("public PNG files", present(*(half + ending for half in HALVES for ending in (".zip", ""))), read_public),
)


def open_half(folder: Path, half: str) -> Half:
    """The zip file if there is one, since unlike a folder it cannot have lost a file; otherwise the folder."""
    packed, plain = folder / f"{half}.zip", folder / half
    if packed.is_file():
        return _open_zip(packed, half)
    if not plain.is_dir():
        raise ValueError(f"{half}.zip is missing, and so is the folder {half}: {_get(folder)} downloads it")
    inner = plain / half  # where zip files are unpacked into a folder of their name
    root = inner if inner.is_dir() else plain
    names = (path.relative_to(root).as_posix() for path in root.glob("*/character*/*.png"))
    mend = f"{_get(folder)} downloads {half}.zip, which is read instead of the folder"
    members = tuple(name for name in names if _MEMBER.fullmatch(name))
    return Half(members, lambda name: (root / name).read_bytes(), mend)


def _open_zip(path: Path, half: str) -> Half:
    """Members are looked up by their names and decoded in memory: nothing is written, whatever the names say."""
    mend = f"move {path.name} away, and {_get(path.parent)} downloads it again"
    try:
        archive = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"{path.name} is not a whole zip file ({error}): {mend}") from None
    members = {info.filename.removeprefix(f"{half}/"): info for info in archive.infolist()}
    one_at_a_time = threading.Lock()  # a ZipFile counts its open members without one

    def read(name: str) -> bytes:
        if members[name].file_size > LARGEST:
            raise ValueError(f"{members[name].file_size:,} bytes, too many for a drawing")
        with one_at_a_time:
            return archive.read(members[name])

    return Half(tuple(name for name in members if _MEMBER.fullmatch(name)), read, mend)


# A hidden file, such as those macOS leaves in zip files, is no drawing; nor is anything outside of the folders.
_MEMBER = re.compile(r"(?!\.)[^/]+/character\d+/(?!\.)[^/]+\.png")


def _by_character(names: Sequence[str]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name in sorted(names):
        found[name.rpartition("/")[0]].append(name)
    return found


def _incomplete(half: str, members: Mapping[str, Sequence[str]], mend: str) -> list[str]:
    """What one half lacks, or has too much of."""
    problems = _unexpected(half, members, contents.OMNIGLOT.characters(half), mend)
    for name, files in members.items():
        if len(files) != contents.OMNIGLOT.drawings:
            missing = _missing_drawings([file.rpartition("/")[2] for file in files])
            without = f", without {first_few(missing, 3)}" if missing else ""
            problems.append(f"{half}/{name} has {len(files)} of {contents.OMNIGLOT.drawings} drawings{without}: {mend}")
    return problems


def _missing_drawings(files: Sequence[str]) -> list[str]:
    """The drawers 01 to 20 of a character, 0709_01.png to 0709_20.png, that are not there."""
    number = files[0].partition("_")[0]
    every = [f"{number}_{drawer:02d}.png" for drawer in range(1, contents.OMNIGLOT.drawings + 1)]
    return [name for name in every if name not in files]


def _unexpected(where: str, found: Collection[str], expected: Sequence[str], mend: str) -> list[str]:
    """Characters that are missing, and those that Omniglot does not have: either would change the split."""
    missing = [name for name in expected if name not in found]
    strange = sorted(set(found) - set(expected))
    problems = []
    if missing:
        problems.append(f"{where} lacks {len(missing)} of {len(expected)} characters ({first_few(missing, 5)}): {mend}")
    if strange:
        problems.append(
            f"{where} has {len(strange)} characters that Omniglot has not ({first_few(strange, 5)}): {mend}"
        )
    return problems


def _read_drawings(places: Sequence[tuple[str, Half, str]], room: UInt8[np.ndarray, "N 28 28 1"]) -> list[str]:
    ink, problems = np.zeros((len(places), drawings.SIDE, drawings.SIDE), bool), []
    for place, (half, opened, name) in enumerate(places):
        try:
            ink[place] = drawings.decode(opened.read(name))
        except Exception as error:  # from the disk, zipfile, zlib or Pillow, and each of them raises many kinds
            problems.append(f"{half}/{name} is broken ({reason(error)}): {opened.mend}")
    room[..., 0] = drawings.shrink(ink)
    return problems


def _from_array(
    path: Path, names: list[str], packed: np.ndarray, size: tuple[int, int], unpack: Callable[[np.ndarray], np.ndarray]
) -> ImageSet:
    what, expected = f"omniglot in {path}", (len(names), contents.OMNIGLOT.drawings, *size)
    mend = _unpacked_instead(path)
    if packed.dtype != np.uint8 or packed.shape != expected:
        raise DataError(what, [f"{path.name} holds {packed.dtype} {packed.shape} instead of uint8 {expected}: {mend}"])
    everything = [name for half in HALVES for name in contents.OMNIGLOT.characters(half)]
    problems = _unexpected(path.name, names, everything, mend)
    places = {name: place for place, name in enumerate(names)}

    def read(name: str, room: UInt8[np.ndarray, "N 28 28 1"]) -> list[str]:
        room[..., 0] = unpack(packed[places[name]])
        return []

    counts = dict.fromkeys(names, contents.OMNIGLOT.drawings)
    return _image_set(what, Source(counts, SHAPE, read), problems)


def _image_set(what: str, source: Source, problems: list[str]) -> ImageSet:
    pool, unreadable = images.read(source)
    if problems or unreadable:
        raise DataError(what, [*problems, *unreadable])
    return images.checked(ImageSet("omniglot", *(images.select(pool, names) for names in split(pool.classes))))


def split(characters: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Train, validation and test: cuts of the order of their SHA-256, which no random generator of any library can change."""
    order = sorted(characters, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    train, validation, _ = contents.OMNIGLOT.split
    return order[:train], order[train : train + validation], order[train + validation :]
