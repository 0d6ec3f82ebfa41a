r"""Natural-gradient variational inference for a factorised Gaussian, in precision space.

$$s^{-2} \leftarrow (1-\beta)\, s^{-2} + \beta\,(N_{\text{eff}}\, h + \sigma^{-2}), \qquad
m \leftarrow m - \beta\, s^2 \big[ N_{\text{eff}} \nabla \overline{\text{loss}} + (m-\mu)/\sigma^2 \big]$$

h is the diagonal of the generalised Gauss–Newton matrix of the mean loss, so precisions stay positive by construction; h
from a reparameterised sample does not, and diverges. β = 1 in an orthogonal linear-Gaussian model is exact in one step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from metaprior.families import MeanField
from metaprior.inference.base import mean_loss, mini_batch, require_batch_size
from metaprior.inference.curvature import ggn_diagonal, probed_ggn_diagonal
from metaprior.inference.preconditioned import rate_stability
from metaprior.scalars import Scalar
from metaprior.types import Family, Inference, Likelihood, Params, Source


class NaturalState(NamedTuple):
    """Mean and precision of each weight."""

    mean: Params
    precision: Params


def natural_vi(
    likelihood: Likelihood,
    family: Family,
    *,
    rate: Scalar = 0.05,
    num_samples: int = 1,
    batch_size: int | None = None,
    num_probes: int | None = None,
) -> Inference:
    """Natural steps.

    Args:
        likelihood: what the data say.
        family: mean-field.
        rate: β, the size of a step.
        num_samples: weight draws of a step; 0 takes gradient and curvature at the mean.
        batch_size: points of a step; None takes all.
        num_probes: random signs by which h is estimated, which costs as many backward passes; None takes h exactly, which costs
            one for every output of every point: too many for networks of images.
    """
    if not isinstance(rate, Tracer) and not 0 < rate <= 1:
        raise ValueError(f"a natural step needs a rate β in (0, 1], got {rate}: 0.05 is a good start")
    if num_samples < 0:
        raise ValueError(f"samples per step cannot be negative, got num_samples={num_samples}: 0 takes the mean")
    if num_probes is not None and num_probes < 1:
        raise ValueError(f"the curvature needs at least one probe, got num_probes={num_probes}: None takes it exactly")
    require_batch_size(batch_size)

    def init(key, prior, start, source, memory):
        del key, prior, source, memory
        return NaturalState(start.mean, jax.tree.map(lambda s: jnp.exp(-2 * s), start.log_std))

    def posterior(state, prior, source):
        del prior, source
        return MeanField(state.mean, jax.tree.map(lambda p: -0.5 * jnp.log(p), state.precision))

    def step(key, state, prior, source):
        key_draw, key_batch, key_observe, key_probe = jax.random.split(key, 4)
        q, num_eff = posterior(state, prior, source), likelihood.effective_size(source)
        points = mini_batch(key_batch, source, batch_size)

        def gradient_and_curvature(params):
            batch = likelihood.observe(key_observe, params, points)
            slope = jax.grad(lambda p: mean_loss(likelihood, p, batch))(params)
            if num_probes is None:
                return slope, ggn_diagonal(likelihood, params, batch)
            return slope, probed_ggn_diagonal(key_probe, likelihood, params, batch, num_probes)

        if num_samples == 0:
            slope, h = gradient_and_curvature(q.mean)
        else:
            many = jax.vmap(gradient_and_curvature)(family.samples(key_draw, q, num_samples))
            slope, h = jax.tree.map(lambda leaf: leaf.mean(axis=0), many)

        prior_precision = jax.tree.map(lambda s: jnp.exp(-2 * s), prior.dist.log_std)
        precision = jax.tree.map(
            lambda p, h, p0: (1 - rate) * p + rate * (num_eff * h + p0), state.precision, h, prior_precision
        )
        mean = jax.tree.map(
            lambda m, p, g, p0, mu: m - rate / p * (num_eff * g + p0 * (m - mu)),
            state.mean, precision, slope, prior_precision, prior.dist.mean,
        )  # fmt: skip
        return NaturalState(mean, precision)

    def check(prior, source):
        if not isinstance(prior.dist, MeanField):
            return "natural_vi needs a mean-field prior: set the prior's family to mean-field"
        return diagonal_stability(likelihood, prior.dist, source, rate)

    return Inference("natural_vi", init, step, posterior, check, soft_limit=True)


def diagonal_stability(likelihood: Likelihood, prior: MeanField, source: Source, rate: Scalar) -> str | None:
    """Newton steps with the diagonal D of a precision P contract only while β·λmax(D⁻¹P) < 2.

    Weights that pull together make λmax large: three inputs that are nearly one make it 3, a network hundreds.
    """
    num_eff = likelihood.effective_size(source)
    if num_eff == 0:
        return None
    pull = jax.tree.map(lambda s: jnp.exp(-2 * s) / num_eff, prior.log_std)
    rates = jax.tree.map(lambda h, p: rate / (h + p), ggn_diagonal(likelihood, prior.mean, source), pull)
    return rate_stability(likelihood, prior.mean, rates, source, pull=pull)
