"""A network whose last layer is kept apart: features first, then a linear head that may be inferred exactly."""

import jax.numpy as jnp
import jax.random as jr

from metaprior.last_layer import HeadParams
from metaprior.models.base import Model


def with_head(features: Model, width: int, outputs: int, *, activation=jnp.tanh) -> Model:
    """`features` (N inputs → width), an activation, a constant feature, and a linear head to `outputs`.

    Args:
        features: any model with `width` outputs.
        width: how many features it gives.
        outputs: columns of the head.
        activation: tanh by default: bounded features make a prior predictive of bounded width.
    """

    def init(key):
        key_features, key_head = jr.split(key)
        head = jr.normal(key_head, (width + 1, outputs)) / jnp.sqrt(width + 1)
        return HeadParams(features.init(key_features), head)

    def apply(params, x):
        hidden = activation(features.apply(params.features, x))
        return jnp.concatenate([hidden, jnp.ones((hidden.shape[0], 1), hidden.dtype)], axis=1) @ params.head

    return Model(init, apply, f"{features.name}-head", noisy=False)
