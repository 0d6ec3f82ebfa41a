"""Images of training tasks varied at random, so that a network cannot learn them by heart: as suits photographs, or characters.

A mirrored photograph shows the same thing. A mirrored character is another character: classes are mirrored as a whole, which
gives twice as many of them, and single images are bent a little instead, as a hand does that writes the same again.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Float

from metaprior.types import Data, Episode, Key

SHIFT = 0.1  # of the side of an image, at most


def augmented(key: Key, episode: Episode) -> Episode:
    """Every image mirrored or not, and shifted by up to a tenth of its side; what comes in at the edge is an edge repeated."""

    def one(key, image):
        key_mirror, key_shift = jax.random.split(key)
        height, width, _ = image.shape
        up, left = round(SHIFT * height), round(SHIFT * width)
        image = jnp.where(jax.random.bernoulli(key_mirror), image[:, ::-1], image)
        wide = jnp.pad(image, ((up, up), (left, left), (0, 0)), mode="edge")
        rows, columns = jax.random.randint(key_shift, (2,), 0, jnp.array([2 * up + 1, 2 * left + 1]))
        return jax.lax.dynamic_slice(wide, (rows, columns, 0), image.shape)

    return _each_image(key, episode, one)


class Bend(NamedTuple):
    """How far a character may go from how it was written, at most."""

    shift: float = SHIFT  # of its side
    turn: float = 10.0  # degrees
    stretch: float = 0.1  # of height and of width, each by a factor of 1 ± this
    shear: float = 0.1


USUAL = Bend()


def augmented_characters(key: Key, episode: Episode, *, classes: int, bend: Bend = USUAL) -> Episode:
    """Every class mirrored or not, all its images alike; then every image bent by an affine map of its own.

    Args:
        key: of the draws.
        episode: a task whose labels are class numbers.
        classes: how many there are.
        bend: the largest shift, turn, stretch and shear.
    """
    key_mirror, key_bend = jax.random.split(key)
    mirrored = jax.random.bernoulli(key_mirror, shape=(classes,))

    def mirror(data: Data) -> Data:
        return data._replace(x=jnp.where(mirrored[data.y][:, None, None, None], data.x[:, :, ::-1], data.x))

    return _each_image(key_bend, Episode(*map(mirror, episode)), lambda key, image: bent(key, image, bend))


def bent(key: Key, image: Float[Array, "H W C"], bend: Bend) -> Float[Array, "H W C"]:
    """By an affine map drawn at random, as far as `bend` allows."""
    height, width, _ = image.shape
    down, right, turn, tall, wide, slant = jax.random.uniform(key, (6,), image.dtype, -1, 1)
    angle, slant = turn * math.radians(bend.turn), slant * bend.shear
    tall, wide = 1 + tall * bend.stretch, 1 + wide * bend.stretch
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    # A turn of a sheared and stretched image: [[cos, −sin], [sin, cos]] · [[1, 0], [slant, 1]] · diag(tall, wide).
    matrix = ((cos - sin * slant) * tall, -sin * wide), ((sin + cos * slant) * tall, cos * wide)
    return affine(image, matrix, (down * bend.shift * height, right * bend.shift * width))


def affine(image: Float[Array, "H W C"], matrix, shift) -> Float[Array, "H W C"]:
    """What lies at matrix · (place − centre) + centre − shift comes to each place; beyond the edge, the edge goes on.

    Between pixels values are interpolated linearly, in both directions.

    Args:
        image: of floating-point numbers.
        matrix: two rows of two numbers, for (row, column).
        shift: by how many pixels (down, right).
    """
    height, width, _ = image.shape
    middle = (height - 1) / 2, (width - 1) / 2
    rows, columns = jnp.mgrid[:height, :width].astype(image.dtype)
    rows, columns = rows - middle[0], columns - middle[1]
    # Written out: as a product of matrices it would be rounded to few digits on some devices.
    places = [a * rows + b * columns + (centre - by) for (a, b), centre, by in zip(matrix, middle, shift, strict=True)]
    channel = lambda plane: map_coordinates(plane, places, order=1, mode="nearest")
    return jax.vmap(channel, in_axes=2, out_axes=2)(image)


def _each_image(key: Key, episode: Episode, change) -> Episode:
    def each(key, data):
        return data._replace(x=jax.vmap(change)(jax.random.split(key, data.x.shape[0]), data.x))

    key_support, key_query = jax.random.split(key)
    return Episode(each(key_support, episode.support), each(key_query, episode.query))
