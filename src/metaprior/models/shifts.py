r"""Answers that do not hang on a pixel: averaged over small shifts of an image.

$$\bar f(x) = \frac{1}{(2r+1)^2} \sum_{|i|, |j| \le r} f(x \text{ shifted by } i, j)$$

A network that halves images by striding sees every second pixel, and a character moved by one may get other features. The average
needs no training of its own: a prior learned without shifts is adapted and asked with them.
"""

from itertools import product

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model


def shift_averaged(model: Model, pixels: int) -> Model:
    """The model whose answers are those of `model`, averaged over shifts of up to so many pixels in both directions.

    A batch is shifted as a whole, so that statistics are of images that were all shifted alike. Where a head is linear, and
    inferred exactly, its features are averaged.

    >>> from metaprior.models import conv4
    >>> model = shift_averaged(conv4((28, 28, 1), 5, filters=2), 1)
    >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((3, 28, 28, 1))).shape
    (3, 5)
    """
    if pixels < 0:
        raise ValueError(f"images are shifted by zero pixels or more, got {pixels}")
    if pixels == 0:
        return model
    offsets = jnp.array(list(product(range(2 * pixels + 1), repeat=2)))

    def average(answer, *images):
        wide = [_widened(x, pixels) for x in images]
        at = lambda offset: answer(*(_cut(x, y.shape, offset) for x, y in zip(wide, images, strict=True)))
        return jax.lax.map(at, offsets).mean(axis=0)

    def shifted(answer):
        return lambda params, *images: average(lambda *shifted: answer(params, *shifted), *images)

    return model._replace(
        apply=shifted(model.apply),
        name=f"{model.name}-shifted-{pixels}",
        inductive=None if model.inductive is None else shifted(model.inductive),
    )


def _widened(x: Float[Array, "N H W C"], pixels: int) -> Float[Array, "N H2 W2 C"]:
    """With a margin that repeats the edge: what is moved in from outside looks like what was there."""
    return jnp.pad(x, [(0, 0), (pixels, pixels), (pixels, pixels), (0, 0)], mode="edge")


def _cut(x: Array, shape: tuple[int, ...], offset: Array) -> Array:
    return jax.lax.dynamic_slice(x, (0, offset[0], offset[1], 0), shape)
