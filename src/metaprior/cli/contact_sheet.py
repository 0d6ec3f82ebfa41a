"""A sheet of thumbnails: what a prior was shown of each class, and what it says of new pictures."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox, TransformedBbox

from metaprior.figures import BLACK, BLUE, GREY

Pixels = UInt8[np.ndarray, "N H W C"]

# In inches. Everything is placed by hand on one pair of axes: hundreds of them would take minutes to lay out.
CELL, MARGIN, GAP = 3.25, 0.3, 0.06
SHOWN_HEIGHT, SHOWN_SIDE = 0.86, 0.56
NEW_HEIGHT, NEW_SIDE = 1.22, 0.95
BAR_LEFT, BAR_WIDTH, LINE = 1.02, 0.62, 0.19
COLUMNS, LEAST_COLUMNS = 4, 2
SHOWN_EACH, SHOWN_CLASSES, BARS = 5, 40, 4
LIMIT = 60  # new pictures on a sheet


class Shown(NamedTuple):
    """A class of the support."""

    name: str
    pixels: Pixels


class New(NamedTuple):
    """A new picture, and the probability of each class."""

    name: str
    pixels: UInt8[np.ndarray, "H W C"]
    probabilities: Float[np.ndarray, " C"]


def contact_sheet(shown: Sequence[Shown], new: Sequence[New], *, title: str) -> Figure:
    """The support class by class, then the first `LIMIT` new pictures with their most probable classes as bars."""
    columns = max(LEAST_COLUMNS, min(COLUMNS, max(len(new), len(shown))))
    first, pictures = shown[:SHOWN_CLASSES], new[:LIMIT]
    shown_rows, new_rows = -(-len(first) // columns), -(-len(pictures) // columns)
    top = 0.95
    middle = top + shown_rows * SHOWN_HEIGHT + 0.5
    width, height = 2 * MARGIN + columns * CELL, middle + new_rows * NEW_HEIGHT + 0.15
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    axes.set_axis_off()
    _text(axes, MARGIN, 0.32, title, size=11, weight="bold")
    count = sum(len(one.pixels) for one in shown)
    _text(
        axes, MARGIN, top - 0.22, f"shown: {_of(len(first), len(shown), 'class', 'classes')}, {count} pictures", size=10
    )
    for place, one in enumerate(first):
        _draw_shown(axes, MARGIN + place % columns * CELL, top + place // columns * SHOWN_HEIGHT, one)
    _text(axes, MARGIN, middle - 0.22, f"new: {_of(len(pictures), len(new), 'picture', 'pictures')}", size=10)
    names = [one.name for one in shown]
    for place, one in enumerate(pictures):
        _draw_new(axes, MARGIN + place % columns * CELL, middle + place // columns * NEW_HEIGHT, one, names)
    return figure


def likely(probabilities: Float[np.ndarray, " C"], names: Sequence[str], count: int) -> list[tuple[str, float]]:
    """At most `count` lines: the most probable classes first, and all others together where they are more.

    >>> likely(np.array([0.1, 0.6, 0.25, 0.05]), ["ant", "bee", "cat", "dog"], 3)
    [('bee', 0.6), ('cat', 0.25), ('2 others', 0.15)]
    """
    order = np.argsort(-probabilities, kind="stable")
    alone = order if len(order) <= count else order[: count - 1]
    lines = [(names[int(place)], float(probabilities[place])) for place in alone]
    rest = order[len(alone) :]
    return lines + ([(f"{len(rest)} others", float(probabilities[rest].sum()))] if len(rest) else [])


def percent(probability: float) -> str:
    """Whole percents, and never a certainty that was not meant.

    >>> percent(0.999), percent(0.5), percent(0.001)
    ('>99 %', '50 %', '<1 %')
    """
    if probability >= 0.995:
        return ">99 %"
    return "<1 %" if probability < 0.005 else f"{100 * probability:.0f} %"


def cut(text: str, length: int) -> str:
    """The text with its middle left out, if it is longer than that.

    >>> cut("IMG_20250101_120000.jpg", 15)
    'IMG_202…000.jpg'
    """
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - half]}…{text[-half:]}"


def _draw_shown(axes: Axes, x: float, y: float, one: Shown) -> None:
    _text(axes, x, y, cut(one.name, 28), width=CELL - 0.9, size=8.5, weight="bold")
    for place, pixels in enumerate(one.pixels[:SHOWN_EACH]):
        _thumbnail(axes, x + place * (SHOWN_SIDE + GAP), y + 0.1, SHOWN_SIDE, pixels)
    if (more := len(one.pixels) - SHOWN_EACH) > 0:
        _text(axes, x + CELL - 0.1, y, f"and {more} more", size=7, color=GREY, ha="right")


def _draw_new(axes: Axes, x: float, y: float, one: New, names: Sequence[str]) -> None:
    _thumbnail(axes, x, y, NEW_SIDE, one.pixels)
    left = x + NEW_SIDE + 0.1
    _text(axes, left, y + 0.08, cut(one.name, 32), width=CELL - NEW_SIDE - 0.2, size=7, color=GREY)
    for place, (name, probability) in enumerate(likely(one.probabilities, names, BARS)):
        middle, chosen = y + 0.28 + place * LINE, place == 0
        weight = "bold" if chosen else "normal"
        _text(axes, left, middle, cut(name, 17), width=BAR_LEFT - 0.04, size=7.5, weight=weight)
        for share, colour in ((1.0, "0.92"), (probability, BLUE if chosen else "0.6")):
            bar = Rectangle((left + BAR_LEFT, middle - 0.055), share * BAR_WIDTH, 0.11, color=colour, linewidth=0)
            axes.add_patch(bar)
        _text(axes, left + BAR_LEFT + BAR_WIDTH + 0.05, middle, percent(probability), size=7.5)


def _thumbnail(axes: Axes, x: float, y: float, side: float, pixels: UInt8[np.ndarray, "H W C"]) -> None:
    height, width = pixels.shape[:2]
    across, down = side * width / max(height, width), side * height / max(height, width)
    picture = pixels if pixels.shape[2] == 3 else pixels[..., 0]
    axes.imshow(picture, extent=(x, x + across, y + down, y), cmap="gray", vmin=0, vmax=255, aspect="auto")


def _text(
    axes: Axes, x: float, y: float, text: str, *, width: float | None = None, color: str = BLACK, **options
) -> None:
    # Names are other people's: a dollar sign is not the beginning of a formula, and what is too wide must end somewhere.
    put = axes.text(x, y, " ".join(text.split()), color=color, va="center", parse_math=False, **options)
    if width is not None:
        put.set_clip_box(TransformedBbox(Bbox.from_bounds(x, y - 1, width, 2), axes.transData))
        put.set_clip_on(True)


def _of(first: int, all: int, one: str, many: str) -> str:
    return f"{first} {one if first == 1 else many}" if first == all else f"the first {first} of {all} {many}"
