r"""Variational inference by gradient steps: the paper's subroutine VI, with any Optax optimiser.

$$\lambda \leftarrow \lambda - \text{optimiser}\Big(\nabla_\lambda \big[\,
\overline{\text{loss}}(\theta_\lambda) + \tfrac{T}{n}\, \mathrm{KL}(q_\lambda \,\|\, p_\Theta) \big]\Big),
\qquad \theta_\lambda = m + s \odot \epsilon$$

The objective is per point, so a learning rate means the same for five points as for five hundred. With a point posterior and
`pull=False` this is the inner loop of MAML and Reptile.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaprior.families import Full, MeanField, cholesky
from metaprior.inference.base import kl_weight, mean_loss, mini_batch, require_batch_size
from metaprior.inference.preconditioned import rate_stability, weight_rates
from metaprior.scalars import Scalar, require_positive
from metaprior.types import Dist, Family, Inference, Key, Likelihood, Params


class GradientState(NamedTuple):
    """The posterior so far and the optimiser's own state."""

    q: Dist
    opt_state: Any


def gradient(
    likelihood: Likelihood,
    family: Family,
    *,
    optimizer: optax.GradientTransformation | Scalar = 0.01,
    num_samples: int = 1,
    batch_size: int | None = None,
    pull: bool = True,
    first_order: bool = False,
    share_state: bool = False,
    draw: Callable[[Key, Dist], Params] | None = None,
) -> Inference:
    """Gradient steps on the per-point negative ELBO.

    Args:
        likelihood: what the data say.
        family: the posterior's family.
        optimizer: an Optax optimiser, or the rate of plain gradient descent.
        num_samples: reparameterised draws averaged per step.
        batch_size: points per step, drawn without replacement; None takes all.
        pull: whether the KL pulls the posterior back to the prior.
        first_order: hold each inner gradient fixed when the meta-gradient is taken (FOMAML).
        share_state: start every task from one optimiser state, averaged over tasks after each meta-step (Reptile's Adam).
        draw: how one weight sample is drawn; None samples weights, see `models.noise` for estimators of less variance.
    """
    rate = None if isinstance(optimizer, optax.GradientTransformation) else optimizer
    if rate is not None:
        require_positive("the inner rate", rate)
    if num_samples < 1:
        raise ValueError(f"inference needs at least one sample per step, got num_samples={num_samples}")
    require_batch_size(batch_size)
    chosen = optimizer if isinstance(optimizer, optax.GradientTransformation) else optax.sgd(optimizer)

    def negative_elbo(q, key, prior, source):
        key_draw, key_batch, key_observe = jax.random.split(key, 3)
        points = mini_batch(key_batch, source, batch_size)

        def loss(key):
            params = draw(key, q) if draw else jax.tree.map(lambda leaf: leaf[0], family.samples(key, q, 1))
            batch = likelihood.observe(key_observe, likelihood.actor(family.mean(q), params), points)
            return mean_loss(likelihood, params, batch)

        value = jax.vmap(loss)(jax.random.split(key_draw, num_samples)).mean() if num_samples > 1 else loss(key_draw)
        return value + kl_weight(likelihood, source) * family.kl(q, prior.dist) if pull else value

    def init(key, prior, start, source, memory):
        del key, prior, source
        return GradientState(start, memory if share_state else chosen.init(start))

    def step(key, state, prior, source):
        grads = jax.grad(negative_elbo)(state.q, key, prior, source)
        grads = jax.lax.stop_gradient(grads) if first_order else grads
        updates, opt_state = chosen.update(grads, state.opt_state, state.q)
        return GradientState(optax.apply_updates(state.q, updates), opt_state)

    def check(prior, source):
        if rate is None:
            return None  # an optimiser of its own scale: nothing can be said of its steps beforehand
        if not pull:
            return rate_stability(likelihood, prior.dist.mean, weight_rates(prior, rate, None), source)
        return kl_stability(rate, kl_weight(likelihood, source), prior.dist, widths=family.name != "delta")

    return Inference(
        name="gradient",
        init=init,
        step=step,
        posterior=lambda state, prior, source: state.q,
        check=check,
        soft_limit=not pull,
        memory=chosen.init if share_state else lambda start: (),
        recall=(lambda state: state.opt_state) if share_state else lambda state: (),
    )


def kl_stability(rate: Scalar, weight: Scalar, dist: Dist, *, widths: bool = False) -> str | None:
    """Plain gradient steps on the KL contract only while rate·(T/n)/σ² < 2 for the narrowest weight.

    Where the posterior has `widths`, the curvature of the KL in log s is 2 at s = σ, whatever σ is: rate·(T/n) < 1.
    """
    narrowest = _narrowest(dist)
    growth = rate * weight / narrowest**2
    if growth < 2:
        return _width_stability(rate, weight) if widths else None
    return (
        f"gradient steps would diverge: rate·(T/n)/σ² = {rate:g}·{weight:g}/{narrowest:.3g}² = {growth:.3g}, and it must stay "
        f"below 2. Lower the inner rate below {2 * narrowest**2 / weight:.3g}, lower the temperature, widen the prior above "
        f"σ = {(rate * weight / 2) ** 0.5:.3g}, or use preconditioned or natural_vi inference"
    )


def _width_stability(rate, weight) -> str | None:
    if rate * weight < 1:
        return None
    return (
        f"the widths of the posterior would not settle: rate·(T/n) = {rate:g}·{weight:g} = {rate * weight:.3g}, and it must stay "
        f"below 1. Lower the inner rate below {1 / weight:.3g} or lower the temperature"
    )


def _narrowest(dist) -> float:
    """The standard deviation of a prior in its narrowest direction."""
    if isinstance(dist, Full):
        return float(jnp.linalg.svd(cholesky(dist), compute_uv=False).min())
    if isinstance(dist, MeanField):
        return min(float(jnp.exp(s).min()) for s in jax.tree.leaves(dist.log_std) if s.size)
    return 1.0  # a point
