r"""Points that are not there: a support of fixed shape, so that no number of points has a program compiled for it.

Every input gets a weight $w$ as a further column, and the network answers $w\,f_\theta(x)$. A row with $w = 0$ and target 0 is
answered rightly by all weights: it has no gradient, no tangent and no feature, and so changes no posterior and no band. What it
does change is the number of points by which losses are averaged and the size of targets; both are put right here.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models import Model
from metaprior.predict import Calibration
from metaprior.types import Data


class Points(NamedTuple):
    """Up to N points of one task; those with `present` 0 are not there, whatever their numbers."""

    x: Float[Array, " N"]
    y: Float[Array, " N"]
    present: Float[Array, " N"]


def weighted(model: Model) -> Model:
    """The network with the weight of each answer as the last column of its inputs."""
    return model._replace(apply=lambda params, x: model.apply(params, x[:, :-1]) * x[:, -1:])


def inputs(x: Float[Array, " N"]) -> Float[Array, "N 2"]:
    """Where the network is asked: every answer counts."""
    return jnp.stack([x, jnp.ones_like(x)], axis=1)


def support(points: Points, *, averaged: bool) -> Data:
    r"""Points as inference takes them.

    `averaged` is for inference on the mean loss: with weights $\sqrt{N/n}$ the mean over N rows is that over the n present.
    """
    count = jnp.maximum(points.present.sum(), 1.0)
    factor = jnp.sqrt(points.present.shape[0] / count) if averaged else jnp.ones((), points.x.dtype)
    weight = points.present * factor
    return Data(jnp.stack([points.x * points.present, weight], axis=1), (points.y * weight)[:, None])


def sized(calibration: Calibration, points: Points) -> Calibration:
    """The calibration for a support of N rows whose targets have the size of those present; see `predict.log_size`."""
    total, count = jnp.square(points.y * points.present).sum(), points.present.sum()
    seen = 0.5 * jnp.log(total / points.y.shape[0] + 1e-6)
    true = jnp.where(count > 0, 0.5 * jnp.log(total / jnp.maximum(count, 1.0) + 1e-6), 0.0)
    return calibration._replace(log_width=calibration.log_width + calibration.power * (true - seen))
