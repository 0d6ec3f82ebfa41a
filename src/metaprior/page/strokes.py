"""Strokes of a mouse or finger as Omniglot's drawers would have left them: 105 × 105, a pen of five pixels, then 28 × 28.

Omniglot keeps drawings where and as large as they were drawn. In its training classes nine tenths of them are between 43 and
88 pixels long on their longer side, and their middle is near that of the sheet. A drawing on the page is moved to the middle,
and made larger or smaller only if it is outside of that range: size says something, where on a screen it was drawn does not.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw

from metaprior.data.drawings import SIDE, shrink

Stroke = Sequence[tuple[float, float]]  # points between 0 and 1: from the left, from the top

PEN = 5  # pixels
REACH = (PEN - 1) / 2  # of the pen around its middle pixel
SMALLEST, LARGEST = 43 - PEN, 88 - PEN  # of the longer side, from the middle of the pen
A_DOT = 8  # what is smaller than this is meant to be small


def pixels(strokes: Sequence[Stroke]) -> UInt8[np.ndarray, "28 28"]:
    """As the network is to see it: 0 is background, 255 ink."""
    return shrink(ink(fitted(strokes))[None])[0]


def fitted(strokes: Sequence[Stroke]) -> list[Float[np.ndarray, "_ 2"]]:
    """Strokes in pixels, in the middle of the sheet and of a size that Omniglot's drawings have."""
    drawn = [SIDE * np.asarray(stroke, float).reshape(-1, 2) for stroke in strokes if len(stroke)]
    if not drawn:
        return []
    every = np.concatenate(drawn)
    low, high = every.min(axis=0), every.max(axis=0)
    side = float((high - low).max())
    factor = 1.0 if side < A_DOT else min(max(side, SMALLEST), LARGEST) / side
    return [(SIDE - 1) / 2 + factor * (stroke - (low + high) / 2) for stroke in drawn]


def ink(strokes: Sequence[Float[np.ndarray, "_ 2"]]) -> Bool[np.ndarray, "105 105"]:
    """Where there is ink."""
    sheet = Image.new("L", (SIDE, SIDE))  # not "1", of which NumPy makes truths that are 255
    pen = ImageDraw.Draw(sheet)
    for stroke in strokes:
        points = [(float(x), float(y)) for x, y in stroke]
        pen.line(points, fill=1, width=PEN, joint="curve")
        # Pillow's slanting lines are thinner than its straight ones, Omniglot's are not; and a pen is round at its ends.
        for x, y in points:
            pen.ellipse((x - REACH, y - REACH, x + REACH, y + REACH), fill=1)
    return np.asarray(sheet) > 0
