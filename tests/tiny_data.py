"""Data sets of a few images, in every layout of the real ones."""

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from metaprior.data import contents

OMNIGLOT = contents.Omniglot(
    halves={"images_background": {"Runes": 3, "Dots": 2}, "images_evaluation": {"Knots": 2}},
    drawings=3,
    split=(4, 1, 2),
)
CHARACTERS = [name for half in OMNIGLOT.halves for name in OMNIGLOT.characters(half)]
MINIIMAGENET = contents.MiniImageNet(
    classes={"train": ("n01", "n02"), "validation": ("n03",), "test": ("n04",)}, images=2
)


def bitmaps() -> dict[str, np.ndarray]:
    """Character -> drawings, bool [3, 105, 105], True where there is ink."""
    rng = np.random.default_rng(0)
    return {name: rng.random((OMNIGLOT.drawings, 105, 105)) < 0.3 for name in CHARACTERS}


def encoded(pixels: np.ndarray, kind: str = "PNG", **options) -> bytes:
    """A picture file, of one bit per pixel where pixels are bool."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def omniglot_files() -> dict[str, bytes]:
    """The public PNG files by name: black ink on white, one bit deep."""
    return {
        f"{half}/{name}/{CHARACTERS.index(name):04d}_{drawer:02d}.png": encoded(~drawn)
        for half in OMNIGLOT.halves
        for name in OMNIGLOT.characters(half)
        for drawer, drawn in enumerate(bitmaps()[name], start=1)
    }


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """As files."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_zips(folder: Path, files: dict[str, bytes]) -> Path:
    """As a zip file for each half."""
    folder.mkdir(parents=True, exist_ok=True)
    for half in OMNIGLOT.halves:
        with zipfile.ZipFile(folder / f"{half}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                if half in name:
                    archive.writestr(name, data)
    return folder


def pack_bitmaps(folder: Path) -> Path:
    """As omniglot_105x105_packed.npz."""
    drawn = np.stack([bitmaps()[name] for name in CHARACTERS])
    np.savez(folder / "omniglot_105x105_packed.npz", packed=np.packbits(drawn, axis=-1), names=np.array(CHARACTERS))
    return folder


def photographs() -> dict[str, np.ndarray]:
    """File name -> uint8 [84, 84, 3], two for each class of the tiny miniImageNet."""
    rng = np.random.default_rng(1)
    names = [f"{name}0{number}.png" for split in MINIIMAGENET.classes.values() for name in split for number in (1, 2)]
    return {name: rng.integers(0, 256, (84, 84, 3), np.uint8) for name in names}


def miniimagenet_files() -> dict[str, bytes]:
    """images/ and CSV files; PNG keeps pixels as they are."""
    files = {f"images/{name}": encoded(pixels) for name, pixels in photographs().items()}
    for split, file in (("train", "train.csv"), ("validation", "val.csv"), ("test", "test.csv")):
        # Latest first: the order of the table must not matter.
        rows = [f"{name},{name[:3]}" for name in sorted(photographs(), reverse=True)]
        rows = [row for row in rows if row.endswith(MINIIMAGENET.classes[split])]
        files[file] = "\n".join(["filename,label", *rows, ""]).encode()
    return files
