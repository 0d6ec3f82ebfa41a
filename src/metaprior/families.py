r"""Distributions over weights: a point, a factorised Gaussian, a full Gaussian, particles.

KL(q‖p) is split as cross-entropy − entropy, so that prior and posterior may differ in family: against a Gaussian prior only the
first two moments of q matter. A point has no entropy; its "KL" is −log p(θ), which has the same gradient.

The fifth family, an exact Gaussian on the last layer, is in `last_layer`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from metaprior import trees
from metaprior.scalars import Scalar, log, require_positive
from metaprior.types import Dist, Family, Key, Likelihood, Params, Source

LOG_2PI = math.log(2 * math.pi)
OBSERVE = 1 << 20  # sets the key of rollouts apart from that of the weights which collect them


class Delta(NamedTuple):
    """q(θ) = δ(θ − mean); as a prior, an isotropic Gaussian of width one."""

    mean: PyTree[Float[Array, "..."]]


class MeanField(NamedTuple):
    """q(θ) = ∏ᵢ N(θᵢ | meanᵢ, exp(log_stdᵢ)²), one pair of leaves per parameter."""

    mean: PyTree[Float[Array, "..."]]
    log_std: PyTree[Float[Array, "..."]]


class Full(NamedTuple):
    """q(θ) = N(mean, L Lᵀ) over all weights as one vector; `tril` holds L below the diagonal and log Lᵢᵢ on it."""

    mean: PyTree[Float[Array, "..."]]
    tril: Float[Array, "W W"]


class Particles(NamedTuple):
    """A set of P weight vectors, stacked on the first axis of every leaf."""

    params: PyTree[Float[Array, "P ..."]]


def delta() -> Family:
    """A point posterior; as a prior it is an isotropic Gaussian of width one."""
    return Family(
        name="delta",
        init=lambda key, params, std: Delta(params),
        start=lambda prior: Delta(prior.mean),
        mean=lambda q: q.mean,
        samples=lambda key, q, num_samples: jax.tree.map(
            lambda m: jnp.broadcast_to(m, (num_samples, *m.shape)), q.mean
        ),
        kl=cross_entropy,
        # A point has no width of its own: what follows is pulled towards it with the width of the prior.
        as_prior=lambda q, prior: prior._replace(mean=q.mean),
        expected_log_prob=lambda key, likelihood, q, source, num_samples=1: likelihood.observed_log_prob(
            key, q.mean, source
        ),
    )


def mean_field() -> Family:
    """A Gaussian that factorises over weights: the family of the paper."""
    return Family(
        name="mean-field",
        init=_mean_field_init,
        start=as_mean_field,
        mean=lambda q: q.mean,
        samples=_stacked(mean_field_sample),
        kl=lambda q, p: cross_entropy(q, p) - _mean_field_entropy(q),
        as_prior=lambda q, prior: q,
        expected_log_prob=_sampled(mean_field_sample),
    )


def full() -> Family:
    """A Gaussian with every covariance (Appendix B.7), for up to about 2,000 weights."""
    return Family(
        name="full",
        init=_full_init,
        start=as_full,
        mean=lambda q: q.mean,
        samples=_stacked(full_sample),
        kl=lambda q, p: cross_entropy(q, p) - jnp.trace(q.tril) - 0.5 * q.tril.shape[0] * (1 + LOG_2PI),
        as_prior=lambda q, prior: q,
        expected_log_prob=_sampled(full_sample),
    )


def particles(num_particles: int = 10) -> Family:
    """Particles: they have no density, so a prior is a starting set and "KL" half a paired squared distance."""
    if num_particles < 1:
        raise ValueError(f"particles need a count of at least 1, got {num_particles}")

    def init(key, params, std):
        return Particles(_stacked(mean_field_sample)(key, _mean_field_init(key, params, std), num_particles))

    def kl(q, p):
        return trees.total(jax.tree.map(lambda a, b: 0.5 * jnp.square(a - b), q.params, p.params))

    return Family(
        name="particles",
        init=init,
        start=lambda prior: prior,
        mean=lambda q: jax.tree.map(lambda leaf: leaf.mean(axis=0), q.params),
        samples=_particle_samples,
        kl=kl,
        as_prior=lambda q, prior: q,
        expected_log_prob=lambda key, likelihood, q, source, num_samples=1: log_probs(
            key, likelihood, q, source
        ).mean(),
    )


def cross_entropy(q: Dist, p: Dist) -> Float[Array, ""]:
    r"""$-E_q \log p(\theta)$ for a Gaussian p and any q with a mean and a variance."""
    if isinstance(p, Full):
        return _full_cross_entropy(q, p)
    log_std = p.log_std if isinstance(p, MeanField) else jax.tree.map(jnp.zeros_like, p.mean)

    def per_leaf(m, v, mu, log_sigma):
        return log_sigma + 0.5 * LOG_2PI + 0.5 * (jnp.square(m - mu) + v) * jnp.exp(-2 * log_sigma)

    return trees.total(jax.tree.map(per_leaf, q.mean, variance(q), p.mean, log_std))


def variance(q: Dist) -> Params:
    """The variance of each weight under q, in the shape of the weights."""
    if isinstance(q, MeanField):
        return jax.tree.map(lambda s: jnp.exp(2 * s), q.log_std)
    if isinstance(q, Full):
        return ravel_pytree(q.mean)[1](jnp.square(cholesky(q)).sum(axis=1))
    return jax.tree.map(jnp.zeros_like, q.mean)


def as_mean_field(prior: Dist) -> MeanField:
    """The factorised Gaussian with the mean and the variances of a prior; a point's width is one."""
    if isinstance(prior, MeanField):
        return prior
    if isinstance(prior, Full):
        return MeanField(prior.mean, jax.tree.map(lambda v: 0.5 * jnp.log(v), variance(prior)))
    return MeanField(prior.mean, jax.tree.map(jnp.zeros_like, prior.mean))


def as_full(prior: Dist) -> Full:
    """The same Gaussian with a covariance matrix."""
    return (
        prior if isinstance(prior, Full) else Full(prior.mean, jnp.diag(ravel_pytree(as_mean_field(prior).log_std)[0]))
    )


def cholesky(q: Full) -> Float[Array, "W W"]:
    """L of the covariance L Lᵀ."""
    return jnp.tril(q.tril, -1) + jnp.diag(jnp.exp(jnp.diagonal(q.tril)))


def inverse_cholesky(q: Full) -> Float[Array, "W W"]:
    """L⁻¹. A prior is shared by tasks: it is inverted once, where a solve for each task is slow."""
    return _inverse(cholesky(q))


@jax.custom_jvp
def _inverse(lower):
    return jax.scipy.linalg.solve_triangular(lower, jnp.eye(*lower.shape, dtype=lower.dtype), lower=True)


@_inverse.defjvp
def _inverse_jvp(primals, tangents):
    inverse = _inverse(*primals)
    return inverse, -inverse @ tangents[0] @ inverse  # d(L⁻¹) = −L⁻¹ dL L⁻¹: products, not solves, for every task


def from_covariance(mean: Params, covariance: Float[Array, "W W"]) -> Full:
    """The full Gaussian with this mean and covariance."""
    return Full(mean, with_log_diagonal(jnp.linalg.cholesky(covariance)))


def with_log_diagonal(lower: Float[Array, "W W"]) -> Float[Array, "W W"]:
    """A triangle L as `Full` stores it: log Lᵢᵢ on the diagonal."""
    return jnp.tril(lower, -1) + jnp.diag(jnp.log(jnp.diagonal(lower)))


def mean_field_sample(key: Key, q: MeanField) -> Params:
    """θ = m + s ⊙ ε."""
    return jax.tree.map(lambda m, s, noise: m + jnp.exp(s) * noise, q.mean, q.log_std, trees.normal_like(key, q.mean))


def full_sample(key: Key, q: Full) -> Params:
    """θ = m + L ε."""
    mean, unravel = ravel_pytree(q.mean)
    return unravel(mean + cholesky(q) @ jax.random.normal(key, mean.shape, mean.dtype))


def log_probs(key: Key, likelihood: Likelihood, q: Particles, source: Source) -> Float[Array, " P"]:
    """Log p(what θ observes | θ) of every particle."""
    return jax.vmap(lambda params: likelihood.observed_log_prob(key, params, source))(q.params)


def _stacked(sample):
    return lambda key, q, num_samples: jax.vmap(lambda k: sample(k, q))(jax.random.split(key, num_samples))


def _sampled(sample):
    def expected_log_prob(key, likelihood, q, source, num_samples=1):
        def of_one(key_draw):  # data use up no key: what they observe must not change what is drawn
            draw = sample(key_draw, q)
            key_observe = jax.random.fold_in(key_draw if likelihood.acting == "sample" else key, OBSERVE)
            return likelihood.log_prob(draw, likelihood.observe(key_observe, likelihood.actor(q.mean, draw), source))

        return jax.vmap(of_one)(jax.random.split(key, num_samples)).mean()

    return expected_log_prob


def _mean_field_init(key, params, std):
    del key
    require_width(std)
    return MeanField(params, jax.tree.map(lambda leaf: jnp.full_like(leaf, log(std)), params))


def _full_init(key, params, std):
    del key
    require_width(std)
    flat, _ = ravel_pytree(params)
    return Full(params, log(std) * jnp.eye(flat.size, dtype=flat.dtype))


def _mean_field_entropy(q):
    return trees.total(jax.tree.map(lambda s: s + 0.5 * (1 + LOG_2PI), q.log_std))


def _full_cross_entropy(q, p):
    (mu, _), (m, _) = ravel_pytree(p.mean), ravel_pytree(q.mean)
    # the square root of q's covariance as columns: L for a full q, a diagonal for the others
    root = cholesky(q) if isinstance(q, Full) else jnp.diag(jnp.sqrt(ravel_pytree(variance(q))[0]))
    whitened = inverse_cholesky(p) @ jnp.concatenate([(m - mu)[:, None], root], axis=1)
    return jnp.trace(p.tril) + 0.5 * mu.size * LOG_2PI + 0.5 * jnp.square(whitened).sum()


def _particle_samples(key, q, num_samples):
    num_particles = jax.tree.leaves(q.params)[0].shape[0]
    if num_samples == num_particles:
        return q.params
    chosen = jax.random.randint(key, (num_samples,), 0, num_particles)
    return jax.tree.map(lambda leaf: leaf[chosen], q.params)


def require_width(std: Scalar) -> None:
    """A prior's width must be a positive number."""
    require_positive("the width of a prior", std, "pass std=0.01, for example")
