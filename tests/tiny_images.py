"""A set of images small enough to know by heart: every image says in its pixels which class and which number it is."""

import numpy as np

from metaprior.data import Images, ImageSet

SIDE = 6


def images(classes: int, counts, *, first_class: int = 0, channels: int = 1) -> Images:
    """Pixel (0, 0) holds the class, (0, 1) the number of the image; the corner (5, 0) is bright, so that turns show."""
    counts = np.broadcast_to(counts, (classes,)).astype(np.int32)
    pixels = np.zeros((counts.sum(), SIDE, SIDE, channels), np.uint8)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
    for kind in range(classes):
        for number in range(counts[kind]):
            pixels[starts[kind] + number, 0, 0] = first_class + kind
            pixels[starts[kind] + number, 0, 1] = number
            pixels[starts[kind] + number, 5, 0] = 255
    return Images(pixels, starts, counts, tuple(f"class{first_class + kind}" for kind in range(classes)))


def image_set(counts=8) -> ImageSet:
    """Three splits of classes 0–11, 12–17 and 18–24."""
    return ImageSet("tiny", images(12, counts), images(6, counts, first_class=12), images(7, counts, first_class=18))
