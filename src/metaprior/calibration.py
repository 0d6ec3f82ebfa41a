"""How sure predictions may be: the five numbers of a `Calibration`, fitted on validation tasks."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from metaprior import trees
from metaprior.predict import Calibration, Predictor


def calibrate(
    predictor: Predictor,
    parts: Any,
    targets: Array,
    *,
    weights: Float[Array, "T N"] | None = None,
    steps: int = 300,
    rate: float = 0.05,
) -> Calibration:
    """The calibration of least NLL on validation tasks: `parts` of many tasks stacked, and their `targets` [T, N, …].

    With `weights` each target counts as often as its weight says, and each task as often as any other that has some.

    A coarse grid of width and noise finds the basin, Adam the bottom: the surface has plateaus where either number alone
    explains everything.
    """

    def loss(calibration):
        density = lambda part, y: predictor.finish(part, calibration).log_density(y)
        if weights is None:
            return -jax.vmap(lambda part, y: density(part, y).mean())(parts, targets).mean()
        of_task = lambda part, y, w: _weighted_mean(density(part, y), w)
        return -_weighted_mean(jax.vmap(of_task)(parts, targets, weights), weights.sum(axis=1) > 0)

    widths, noises = jnp.meshgrid(jnp.linspace(-3.0, 3.0, 7), jnp.linspace(-4.0, 1.0, 6), indexing="ij")
    ones = jnp.ones(widths.size, widths.dtype)
    grid = Calibration(widths.ravel(), noises.ravel(), 0.5 * ones, 0.3 * ones, ones)  # at τ = 0 its slope would vanish
    scores = jax.lax.map(loss, grid)
    best = jnp.argmin(jnp.where(jnp.isfinite(scores), scores, jnp.inf))
    start = jax.tree.map(lambda g: g[best], grid)
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def one(carry, _):
        calibration, opt_state = carry
        updates, opt_state = optimizer.update(jax.grad(loss)(calibration), opt_state)
        moved = optax.apply_updates(calibration, updates)
        return (trees.where(trees.all_finite(moved), moved, calibration), opt_state), None

    return jax.lax.scan(one, (start, optimizer.init(start)), None, length=steps)[0][0]


def _weighted_mean(values, weight):
    values = values.reshape(values.shape[0], -1).mean(axis=1)
    weight = weight.astype(values.dtype)
    return jnp.where(weight > 0, values * weight, 0).sum() / jnp.maximum(weight.sum(), 1e-12)
