"""Strokes of real characters: Omniglot's bitmaps thinned to lines and walked along, so that a mouse can draw them again."""

import os
from pathlib import Path

import numpy as np

from metaprior.data import omniglot

AROUND = [(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)]
STRAIGHT_FIRST = [(-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1)]


def unseen_characters(count, seed=0):
    """Bitmaps bool [count, 20, 105, 105] of characters that no prior was trained on; None where there is no data."""
    path = Path(os.environ.get("METAPRIOR_DATA", "")) / omniglot.BITMAPS
    if not path.is_file():
        return None
    with np.load(path) as arrays:
        names, packed = arrays["names"].astype(str).tolist(), arrays["packed"]
    unseen = [names.index(name) for name in omniglot.split(names)[2]]
    chosen = np.random.default_rng(seed).choice(unseen, count, replace=False)
    return np.unpackbits(packed[chosen], axis=-1, count=105).astype(bool)


def thinned(ink):
    """The skeleton of a bitmap, by the algorithm of Zhang and Suen (1984)."""
    ink = np.pad(np.asarray(ink, bool), 1)
    while True:
        removed = False
        for odd in (False, True):
            p = np.stack([np.roll(ink, (-dy, -dx), (0, 1)) for dy, dx in AROUND])  # P2 … P9
            count = p.sum(axis=0)
            changes = (~p & np.roll(p, -1, axis=0)).sum(axis=0)
            first = ~(p[0] & p[2] & p[4]) if not odd else ~(p[0] & p[2] & p[6])
            second = ~(p[2] & p[4] & p[6]) if not odd else ~(p[0] & p[4] & p[6])
            gone = ink & (count >= 2) & (count <= 6) & (changes == 1) & first & second
            ink = ink & ~gone
            removed = removed or bool(gone.any())
        if not removed:
            return ink[1:-1, 1:-1]


def strokes(ink):
    """Polylines [(x, y), …] in parts of the sheet that together go along every line of the drawing."""
    left = {tuple(place) for place in np.argwhere(thinned(ink)).tolist()}
    neighbours = lambda place: [q for dy, dx in STRAIGHT_FIRST if (q := (place[0] + dy, place[1] + dx)) in left]
    found = []
    while left:
        start = min(left, key=lambda place: (len(neighbours(place)) != 1, place))  # ends of lines first
        line = [start]
        left.discard(start)
        while onward := neighbours(line[-1]):
            line.append(onward[0])
            left.discard(onward[0])
        found.append([(x / 105, y / 105) for y, x in line])
    longest = max(map(len, found))
    return [line for line in found if len(line) > 3 or longest <= 3]  # crumbs at crossings are no strokes
