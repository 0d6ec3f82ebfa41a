r"""Per-weight steps without a KL: a learned preconditioner.

$$m_i \leftarrow m_i - \alpha_i\, \partial_i \overline{\text{loss}}(m + \sigma \odot \epsilon), \qquad s = \sigma \text{ held}$$

The rate of each weight is either its own (`prior.log_rate`: αᵢ = α·exp(log_rateᵢ)) or tied to the width of the prior as in a
natural step from the prior, where Δm = −β N_eff σ² ∇loss: αᵢ = α·(σᵢ/σ₀)².
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior import trees
from metaprior.families import MeanField
from metaprior.inference.base import mean_loss, mini_batch, require_batch_size
from metaprior.scalars import Scalar, log, require_positive
from metaprior.types import Dist, Family, Inference, Likelihood, Params, Prior

OVERSHOOT = 4.0


class PreconditionedState(NamedTuple):
    """The posterior so far, and the rate of each weight, which the prior of the first stage sets for both."""

    q: Dist
    rates: Params


def preconditioned(
    likelihood: Likelihood,
    family: Family,
    *,
    rate: Scalar = 0.01,
    tied_to: Scalar | None = None,
    batch_size: int | None = None,
    first_order: bool = False,
) -> Inference:
    """Gradient steps with a rate per weight; `tied_to` is σ₀ when rates follow the widths of the prior."""
    require_positive("the inner rate", rate)
    if tied_to is not None:
        require_positive("the width to which rates are tied", tied_to, "pass tied_to=the prior's first width")
    require_batch_size(batch_size)

    def init(key, prior, start, source, memory):
        del key, source, memory
        return PreconditionedState(start, weight_rates(prior, rate, tied_to))

    def step(key, state, prior, source):
        key_draw, key_batch, key_observe = jax.random.split(key, 3)
        points = mini_batch(key_batch, source, batch_size)

        def loss(mean):
            q = state.q._replace(mean=mean)
            params = jax.tree.map(lambda leaf: leaf[0], family.samples(key_draw, q, 1))
            batch = likelihood.observe(key_observe, likelihood.actor(mean, params), points)
            return mean_loss(likelihood, params, batch)

        value, grads = jax.value_and_grad(loss)(state.q.mean)
        grads = jax.lax.stop_gradient(grads) if first_order else grads
        share = step_share(value - likelihood.least_loss(points), state.rates, grads)
        mean = jax.tree.map(lambda m, a, g: m - share.astype(m.dtype) * a * g, state.q.mean, state.rates, grads)
        return state._replace(q=state.q._replace(mean=mean))

    def check(prior, source):
        return rate_stability(likelihood, prior.dist.mean, weight_rates(prior, rate, tied_to), source)

    return Inference(
        name="preconditioned",
        init=init,
        step=step,
        posterior=lambda state, prior, source: state.q,
        check=check,
        soft_limit=True,
    )


def step_share(excess: Float[Array, ""], rates: Params, grads: Params) -> Float[Array, ""]:
    r"""The share of a step that can be taken without overshooting: $\min(1,\; 4\,(\text{loss} - \text{least}) / g^\top R\, g)$.

    On a quadratic h·x²/2 the second is 2/(R·h), beyond which a step climbs instead of descending. Learned rates sit at that edge;
    a rare task beyond it then stays where it is instead of running away.
    """
    # Of the loss, to first order. One sum of all: a sum for each array would mean many more calls on a card.
    decrease = trees.vector(jax.tree.map(lambda a, g: a * jnp.square(g), rates, grads)).sum()
    return jnp.minimum(1.0, OVERSHOOT * excess / jnp.maximum(decrease, 1e-30))


def weight_rates(prior: Prior, rate: Scalar, tied_to: Scalar | None) -> Params:
    """αᵢ of every weight."""
    if tied_to is not None:
        if not isinstance(prior.dist, MeanField):
            raise ValueError("rates tied to widths need a mean-field prior: pass tied_to=None or a mean-field prior")
        return jax.tree.map(lambda s: rate * jnp.exp(2 * (s - log(tied_to))), prior.dist.log_std)
    if prior.log_rate is None:
        return jax.tree.map(lambda m: jnp.full_like(m, rate), prior.dist.mean)
    return jax.tree.map(lambda r: rate * jnp.exp(r), prior.log_rate)


def rate_stability(
    likelihood, mean, rates, source, *, pull: Params | None = None, limit: float = 2.0, num_iterations: int = 20
) -> str | None:
    """The largest curvature of the loss along the rates, by power iteration: steps contract only while it is below 2."""
    if likelihood.size(source) == 0 or likelihood.normalised or not likelihood.given:
        return None
    roots = jax.tree.map(jnp.sqrt, rates)

    def scaled_curvature(v):  # R^½ H R^½ v, which has the eigenvalues of R H
        direction = jax.tree.map(jnp.multiply, roots, v)
        gradient = jax.grad(lambda params: mean_loss(likelihood, params, source))
        curved = jax.jvp(gradient, (mean,), (direction,))[1]
        if pull is not None:  # of a prior, per point
            curved = jax.tree.map(lambda c, p, d: c + p * d, curved, pull, direction)
        return jax.tree.map(jnp.multiply, roots, curved)

    def iterate(v, _):
        w = scaled_curvature(v)
        norm = jnp.sqrt(trees.total(jax.tree.map(jnp.square, w)))
        return jax.tree.map(lambda x: x / (norm + 1e-30).astype(x.dtype), w), norm

    start = trees.normal_like(jax.random.key(0), mean)
    _, norms = jax.jit(lambda v: jax.lax.scan(iterate, v, None, length=num_iterations))(start)
    sharpness = float(norms[-1])
    if sharpness < limit:
        return None
    return (
        f"inner steps would diverge: rate × curvature of the loss reaches {sharpness:.3g} on a first task, "
        f"and it must stay below {limit:g}. Lower the inner rate by a factor of {2 * sharpness / limit:.3g}"
    )
