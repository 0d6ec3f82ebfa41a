"""A network whose last layer is kept apart: features first, then a linear head that may be inferred exactly."""

import jax.numpy as jnp
import jax.random as jr

from metaprior.last_layer import HeadParams
from metaprior.likelihoods import WithNoise
from metaprior.models.base import Model
from metaprior.models.classifier import resize, shared


def with_head(
    features: Model,
    width: int,
    outputs: int,
    *,
    activation=jnp.tanh,
    scale: bool = False,
    noise_std: float | None = None,
) -> Model:
    """`features` (N inputs → width), an activation, a constant feature, and a linear head to `outputs`.

    Args:
        features: any model with `width` outputs.
        width: how many features it gives.
        outputs: columns of the head; `shared` and `resize` take them for classes.
        activation: tanh by default: bounded features make a prior predictive of bounded width. `None` leaves features as they
            are, for networks that end in an activation of their own.
        scale: divide features by √width, so that the answers of a head with weights of order one are of order one however
            many features there are.
        noise_std: where the noise is learned with the features (`likelihoods.gaussian_shared_noise`): before training.
    """
    weights = (lambda params: params) if noise_std is None else lambda params: params.weights

    def init(key):
        key_features, key_head = jr.split(key)
        head = jr.normal(key_head, (width + 1, outputs)) / (1 if scale else jnp.sqrt(width + 1))
        body = features.init(key_features)
        return HeadParams(body if noise_std is None else WithNoise(body, jnp.log(jnp.full((), noise_std))), head)

    def answer(params, hidden):
        hidden = hidden if activation is None else activation(hidden)
        hidden = hidden / width**0.5 if scale else hidden
        with_constant = jnp.concatenate([hidden, jnp.ones((hidden.shape[0], 1), hidden.dtype)], axis=1)
        return jnp.matmul(with_constant, params.head, precision="highest")  # cards would round features, too

    def apply(params, x):
        return answer(params, features.apply(weights(params.features), x))

    def inductive(params, support_x, x):
        assert features.inductive is not None
        return answer(params, features.inductive(weights(params.features), support_x, x))

    statistics = inductive if features.inductive is not None else None
    return Model(init, apply, f"{features.name}-head", False, inductive=statistics, shared=shared, resize=resize)
