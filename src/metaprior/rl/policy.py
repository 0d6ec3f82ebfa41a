r"""Gaussian policies: $\pi_\theta(a \mid o) = N(a \mid f_\theta(o), e^{2\,\text{log std}})$, the width being one of the weights.

Outputs of a policy are rows [mean | log std] of twice the action's size: what densities and divergences are made from. Actions
are not clipped here: what an environment cuts off would otherwise have no density.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model, built_in
from metaprior.models.mlp import MLP, mlp
from metaprior.types import Key

LEAST_LOG_STD = math.log(1e-6)  # a policy that has become certain would have infinite densities


class GaussianPolicy(eqx.Module):
    """A network for the mean, and a log std for each number of the action that does not depend on what is observed."""

    mean: MLP
    log_std: Float[Array, " A"]

    def __call__(self, x: Float[Array, "M O"]) -> Float[Array, "M B"]:
        means = self.mean(x)
        widths = jnp.maximum(self.log_std, LEAST_LOG_STD)[None]
        return jnp.concatenate([means, jnp.broadcast_to(widths, means.shape)], axis=1)


def gaussian_policy(
    observation_size: int, action_size: int, *, hidden: tuple[int, ...] = (100, 100), std: float = 1.0
) -> Model:
    """A policy as a model: `apply(weights, observations [M, O])` are its output rows [M, 2A].

    Args:
        observation_size: O.
        action_size: A.
        hidden: widths of the layers between; none is a linear policy.
        std: of every action before any training.

    >>> import jax
    >>> policy = gaussian_policy(2, 2)
    >>> policy.apply(policy.init(jax.random.key(0)), jnp.zeros((5, 2))).shape
    (5, 4)
    """
    if not 0 < std < math.inf:
        raise ValueError(f"the std of a policy must be above zero and finite, got {std}: 1 explores the whole range")
    network = mlp((observation_size, *hidden, action_size), init="glorot")

    def init(key: Key) -> GaussianPolicy:
        return GaussianPolicy(network.init(key), jnp.full((action_size,), math.log(std)))

    return built_in(init, network.name.replace("mlp", "policy"))


def moments(outputs: Float[Array, "*M B"]) -> tuple[Float[Array, "*M A"], Float[Array, "*M A"]]:
    """Means and log stds of rows of outputs."""
    size = outputs.shape[-1] // 2
    return outputs[..., :size], outputs[..., size:]


def act(outputs: Float[Array, "*M B"], noise: Float[Array, "*M A"]) -> Float[Array, "*M A"]:
    """The actions that standard normal noise makes of the outputs."""
    mean, log_std = moments(outputs)
    return mean + jnp.exp(log_std) * noise.astype(mean.dtype)


def log_density(outputs: Float[Array, "*M B"], actions: Float[Array, "*M A"]) -> Float[Array, "*M"]:
    """Log π(a | o), row by row."""
    mean, log_std = moments(outputs)
    standard = (actions - mean) * jnp.exp(-log_std)
    return -(0.5 * jnp.square(standard) + log_std + 0.5 * math.log(2 * math.pi)).sum(axis=-1)


def kl(outputs: Float[Array, "*M B"], others: Float[Array, "*M B"]) -> Float[Array, "*M"]:
    """KL(π ‖ π') between the policies that two sets of outputs stand for, row by row."""
    (mean, log_std), (other_mean, other_log_std) = moments(outputs), moments(others)
    ratio = 2 * (log_std - other_log_std)
    moved = jnp.square(mean - other_mean) * jnp.exp(-2 * other_log_std)
    return 0.5 * (jnp.exp(ratio) - 1 - ratio + moved).sum(axis=-1)
