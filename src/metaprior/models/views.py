r"""Answers that do not hang on how an image happens to lie: averaged over views of it.

$$\bar f(x) = \frac1V \sum_v f(v(x))$$

A network that halves images by striding sees every second pixel, and a character moved by one may get other features; a
photograph shows the same thing in a mirror. The average needs no training of its own: a prior that was learned without it is
adapted and asked with it.
"""

from collections.abc import Callable, Sequence
from itertools import product

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model

View = Callable[[Float[Array, "N H W C"]], Float[Array, "N H W C"]]


def seen(model: Model, views: Sequence[View]) -> Model:
    """The model whose answers are those of `model`, averaged over views.

    A batch is turned as a whole, so that statistics are of images that were all turned alike. Where a head is linear, and
    inferred exactly, its features are averaged.

    >>> from metaprior.models import conv4
    >>> model = seen(conv4((28, 28, 1), 5, filters=2), MIRRORED)
    >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((3, 28, 28, 1))).shape
    (3, 5)
    """
    if not views:
        raise ValueError("answers are averaged over one view or more, got none")

    def averaged(answer):
        def average(params, *images):
            turned = [jnp.stack([view(x) for view in views]) for x in images]
            return jax.lax.map(lambda each: answer(params, *each), turned).mean(axis=0)

        return average

    return model._replace(
        apply=averaged(model.apply),
        name=f"{model.name}-{len(views)}-views",
        inductive=None if model.inductive is None else averaged(model.inductive),
    )


def shifted(down: int, right: int) -> View:
    """Moved by so many pixels; the edge is repeated, so that what comes in from outside looks like what was there."""
    moves = (0, 0), (max(down, 0), max(-down, 0)), (max(right, 0), max(-right, 0)), (0, 0)

    def view(x):
        height, width = x.shape[1:3]
        wide = jnp.pad(x, moves, mode="edge")
        return wide[:, max(-down, 0) :][:, :height, max(-right, 0) :][:, :, :width]

    return view


def mirrored(x: Float[Array, "N H W C"]) -> Float[Array, "N H W C"]:
    """Left is right."""
    return x[:, :, ::-1]


SHIFTED: tuple[View, ...] = tuple(shifted(*by) for by in product((-1, 0, 1), repeat=2))
MIRRORED: tuple[View, ...] = (lambda x: x, mirrored)
