r"""Draws of f(x; θ) under factorised Gaussian weights q(θ) = N(m, s²), with less variance than drawing the weights.

A draw of the weights is shared by all points of a batch, so that its noise does not average out over them. Two
estimators give each point noise of its own, at the cost of a second product per layer:

- `local` draws pre-activations instead of weights (Kingma, Salimans and Welling 2015, arXiv:1506.02557),
  $$h_n \sim N(\langle x_n, m\rangle,\ \langle x_n^2, s^2\rangle)$$
- `flipout` draws one change ΔW = s ε for the batch and flips its signs per point (Wen et al. 2018, arXiv:1803.04386),
  $$h_n = \langle x_n, m\rangle + \langle x_n \circ r_n, \Delta W\rangle \circ t_n,\qquad r_n, t_n \in \{-1, 1\}$$

What stays exact is the distribution of one point's outputs, and so the expectation of any sum over points. `local`
needs dense layers for that: in a convolution it draws every position by itself and forgets that positions share their
weights, so that only the marginals of the pre-activations are right; `flipout` keeps the positions of a point together.
Batch normalisation mixes points, and under it both are approximations.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from metaprior import trees
from metaprior.models.base import Model, choose
from metaprior.models.layers import Conv, Dense, NoisyWeight, Product, over_points
from metaprior.types import Key, Params


def local(
    product: Product, weight: NoisyWeight, bias: NoisyWeight | None, x: Float[Array, "N ..."]
) -> Float[Array, "N ..."]:
    """⟨x, m⟩ + b + √(⟨x², s²⟩ + s_b²) ε, with ε drawn per point, position and channel."""
    mean, variance = product(x, weight.mean), product(x**2, weight.std**2)
    if bias is not None:
        mean, variance = mean + over_points(bias.mean, mean), variance + over_points(bias.std**2, variance)
    return mean + _root(variance) * jax.random.normal(weight.key, mean.shape, mean.dtype)


def flipout(
    product: Product, weight: NoisyWeight, bias: NoisyWeight | None, x: Float[Array, "N ..."]
) -> Float[Array, "N ..."]:
    """⟨x, m⟩ + b + (⟨x ∘ r, ΔW⟩ + Δb) ∘ t, with signs r per point and input channel, t per point and output channel."""
    inputs, outputs = weight.mean.shape[-2:]
    # Equal at all positions, as the weights are; one call, because every random call costs compile time.
    shape = (x.shape[0], *(1,) * (x.ndim - 2), inputs + outputs)
    r, t = jnp.split(jax.random.rademacher(weight.key, shape, x.dtype), [inputs], axis=-1)
    mean, change = product(x, weight.mean), product(x * r, weight.std * weight.noise)
    if bias is not None:
        change = change + over_points(bias.std * bias.noise, change)
        mean = mean + over_points(bias.mean, mean)
    return mean + change * t


ESTIMATORS = {"weights": None, "local": local, "flipout": flipout}


def noisy_params(key: Key, mean: Params, std: Params, how: str) -> PyTree:
    """Weights for one draw of the stochastic outputs: `model.apply(noisy_params(key, mean, std, how), x)`.

    Gradients with respect to `mean` and `std` flow through the draw (it is reparameterised). Leaves that belong to no
    dense or convolutional layer, such as the scale of a batch normalisation, are drawn plainly whatever `how` says.

    Args:
        key: consumed.
        mean: weights of a built-in network; with "weights", of any model.
        std: standard deviations, the same structure as `mean`; a leaf may be one number for a whole array.
        how: "weights" (draw θ itself), "local" or "flipout".

    >>> from metaprior.models.mlp import mlp
    >>> model = mlp((1, 8, 1))
    >>> mean = model.init(jax.random.key(0))
    >>> params = noisy_params(jax.random.key(1), mean, jax.tree.map(lambda m: jnp.full_like(m, 0.1), mean), "local")
    >>> model.apply(params, jnp.ones((4, 1))).shape
    (4, 1)
    """
    estimator = choose("estimator", how, ESTIMATORS)
    # One width for an array must not become one draw for it.
    std = jax.tree.map(lambda m, s: jnp.broadcast_to(s, m.shape), mean, std)
    if estimator is None:
        return jax.tree.map(_draw, mean, std, trees.normal_like(key, mean))
    if not any(map(_is_layer, jax.tree.leaves(mean, is_leaf=_is_layer))):
        raise ValueError(_refusal(how))
    noise_key, points_key = jax.random.split(key)
    noise, structure = trees.normal_like(noise_key, mean), jax.tree.structure(mean)
    keys = structure.unflatten(jax.random.split(points_key, structure.num_leaves))

    def replace(mean, *others):
        return jax.tree.map(partial(NoisyWeight, estimator=estimator) if _is_layer(mean) else _draw, mean, *others)

    return jax.tree.map(replace, mean, std, noise, keys, is_leaf=_is_layer)


def require_noisy(model: Model, how: str) -> None:
    """Refuses an estimator which the layers of `model` do not know."""
    if choose("estimator", how, ESTIMATORS) is not None and not model.noisy:
        raise ValueError(f"model {model.name!r}: {_refusal(how)}")


def variance_ratio(
    key: Key, loss: Callable[[PyTree], Float[Array, ""]], mean: Params, std: Params, how: str, *, num_draws: int = 1000
) -> Float[Array, ""]:
    r"""How noisy the gradient of E_q loss is under `how`, relative to drawing weights; below 1 is a gain.

    $$\frac{\sum_i \operatorname{var} \hat g_i(\text{how})}{\sum_i \operatorname{var} \hat g_i(\text{weights})},
      \qquad \hat g = \nabla_{m, s}\,\text{loss}(\text{one draw})$$

    Args:
        key: consumed.
        loss: params -> scalar, with `params` as `noisy_params` makes them.
        mean: m.
        std: s.
        how: the estimator to judge.
        num_draws: gradients drawn of each.
    """

    def total(how: str) -> Float[Array, ""]:
        gradient = jax.grad(lambda q, k: loss(noisy_params(k, q[0], q[1], how)))
        draws = jax.lax.map(
            partial(gradient, (mean, std)), jax.random.split(key, num_draws), batch_size=min(num_draws, 100)
        )
        return sum((leaf.var(0).sum() for leaf in jax.tree.leaves(draws)), jnp.zeros(()))

    return total(how) / total("weights")


def _is_layer(node: object) -> bool:
    return isinstance(node, Dense | Conv)


def _refusal(how: str) -> str:
    name = {"local": "local reparameterisation"}.get(how, how)
    return f"{name} needs the layers of a built-in network; use how='weights'"


def _draw(mean: Array, std: Array, noise: Array, key: Key | None = None) -> Array:
    del key
    return mean + std * noise


def _root(variance: Float[Array, "..."]) -> Float[Array, "..."]:
    # √ has no derivative at 0, met where inputs or widths are all zero; the inner `where` keeps NaN out of gradients.
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)
