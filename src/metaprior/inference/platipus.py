r"""PLATIPUS, the probabilistic MAML of Finn et al. (2018), with its own parts.

Θ holds μ and σ of the weights, a second width v for the query posterior, and two learned rates γ_p, γ_q. In training

$$\theta \sim \mathcal N(\mu_{val}, v^2), \quad \mu_{val} = \mu - \gamma_q \nabla \overline{\text{loss}}_{val}(\mu), \quad
\phi = \text{GD}(\theta; D_{tr}),$$
$$\max\; E \log p(D_{val} \mid \phi) - \mathrm{KL}\big(\mathcal N(\mu_{val}, v^2) \,\|\,
\mathcal N(\mu - \gamma_p \nabla \overline{\text{loss}}_{tr}(\mu), \sigma^2)\big)$$

and at test θ is drawn from the latter, then adapted: the posterior is a set of adapted draws.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.families import MeanField, Particles, mean_field
from metaprior.inference.base import mean_loss
from metaprior.scalars import Scalar, require_positive
from metaprior.types import Episode, Family, Inference, Key, Likelihood, Params, Posteriors, Prior


class PlatipusExtra(NamedTuple):
    """What PLATIPUS adds to the prior."""

    query_log_std: Params  # log v
    log_rate_support: Float[Array, ""]  # log γ_p
    log_rate_query: Float[Array, ""]  # log γ_q


def platipus_extra(params: Params, std: Scalar, rate: Scalar) -> PlatipusExtra:
    """Widths and rates before training."""
    log_rate = jnp.log(jnp.full((), rate))
    return PlatipusExtra(jax.tree.map(lambda m: jnp.full_like(m, jnp.log(std)), params), log_rate, log_rate)


def platipus(
    likelihood: Likelihood, family: Family, *, rate: Scalar = 0.01, steps: int = 5, num_particles: int = 10
) -> Inference:
    """Draws around a shifted mean, each adapted by gradient descent; `steps` of them in training."""
    del family
    require_positive("the inner rate", rate)
    if steps < 0 or num_particles < 1:
        raise ValueError(
            f"platipus needs zero steps or more and at least one particle, got steps={steps}, num_particles={num_particles}"
        )

    def descend(params, source, step_size):
        slope = jax.grad(lambda p: mean_loss(likelihood, p, source))(params)
        return jax.tree.map(lambda p, g: p - step_size * g, params, slope)

    def conditional(prior, source, log_rate, log_std):
        return MeanField(descend(prior.dist.mean, source, jnp.exp(log_rate)), log_std)

    def adapt(params, source):
        once = lambda params, _: (descend(params, source, rate), None)
        return jax.lax.scan(once, params, None, length=steps)[0]

    def score(key: Key, prior: Prior, episode: Episode):
        extra = prior.extra
        q1 = conditional(prior, episode.support, extra.log_rate_support, prior.dist.log_std)
        q2 = conditional(prior, episode.query, extra.log_rate_query, extra.query_log_std)
        draw = jax.tree.map(lambda leaf: leaf[0], mean_field().samples(key, q2, 1))
        fit = likelihood.log_prob(adapt(draw, episode.support), episode.query) / likelihood.temperature
        return fit - mean_field().kl(q2, q1), Posteriors(q1, q2)

    def init(key, prior, start, source, memory):
        del start, memory
        draws_from = prior.dist
        if likelihood.size(source) > 0:
            draws_from = conditional(prior, source, prior.extra.log_rate_support, prior.dist.log_std)
        return Particles(mean_field().samples(key, draws_from, num_particles))

    def step(key, state, prior, source):
        del key, prior
        return Particles(jax.vmap(lambda params: descend(params, source, rate))(state.params))

    return Inference(
        name="platipus",
        init=init,
        step=step,
        posterior=lambda state, prior, source: state,
        check=lambda prior, source: None,
        score=score,
    )
