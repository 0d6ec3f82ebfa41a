"""Omniglot's drawings: bitmaps of 105 × 105, of which networks see 28 × 28."""

import io

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image

SIDE, SMALL = 105, 28
PERIOD = 7  # both sides are multiples of it: 15 pixels lie under 4 areas, and so on
# Quarters of each of 15 pixels under each of 4 areas: an area is 15 quarters wide.
_QUARTERS = np.array([np.bincount(piece // 4, minlength=15) for piece in np.arange(60).reshape(4, 15)], np.uint8)


def decode(data: bytes) -> Bool[np.ndarray, "105 105"]:
    """Where there is ink, from one of the public PNG files: black on white, one bit per pixel."""
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        if image.size != (SIDE, SIDE):
            raise ValueError("{} × {} pixels instead of 105 × 105".format(*image.size))
        return np.asarray(image.convert("L")) < 128


def shrink(ink: Bool[np.ndarray, "N 105 105"]) -> UInt8[np.ndarray, "N 28 28"]:
    """The exact share of ink in each of 28 × 28 equal areas, from 0 to 255.

    Sums of quarters are whole numbers up to 15² = 225, and 255/225 of one is never half-way between two others.

    >>> int(shrink(np.ones((1, 105, 105), bool)).min())
    255
    """
    narrow = _sum_rows(_sum_rows(ink.view(np.uint8)).swapaxes(1, 2)).swapaxes(1, 2)
    return np.rint(narrow * np.float32(255 / 225)).astype(np.uint8)


def _sum_rows(pixels: UInt8[np.ndarray, "N 105 W"]) -> UInt8[np.ndarray, "N 28 W"]:
    """Without matrix products: small ones are slow where several threads of ours meet those of the BLAS."""
    number, _, width = pixels.shape
    blocks = pixels.reshape(number, PERIOD, SIDE // PERIOD, width)
    sums = np.zeros((number, PERIOD, SMALL // PERIOD, width), np.uint8)
    for area, pixel in zip(*np.nonzero(_QUARTERS), strict=True):
        sums[:, :, area] += _QUARTERS[area, pixel] * blocks[:, :, pixel]
    return sums.reshape(number, SMALL, width)
