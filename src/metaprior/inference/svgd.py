r"""Stein variational gradient descent: particles that climb the posterior and keep apart (Liu & Wang 2016; BMAML).

$$\theta_i \leftarrow \theta_i + \frac{\alpha}{N_{\text{eff}} P} \sum_j \big[ k(\theta_j, \theta_i) \nabla \log p(\theta_j \mid D)
+ \nabla_{\theta_j} k(\theta_j, \theta_i) \big], \qquad k = \exp(-\lVert\theta_j - \theta_i\rVert^2 / h)$$

with h the median of all squared distances over log P, held fixed. Steps are per point, so that one particle takes MAML's steps.
"""

import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from metaprior.families import Particles
from metaprior.inference.base import mini_batch, require_batch_size
from metaprior.inference.preconditioned import rate_stability
from metaprior.scalars import Scalar, at_least_one, require_positive
from metaprior.types import Family, Inference, Likelihood


def svgd(
    likelihood: Likelihood,
    family: Family,
    *,
    rate: Scalar = 0.01,
    weight_std: float | None = None,
    batch_size: int | None = None,
) -> Inference:
    """SVGD steps; `weight_std` adds a zero-centred Gaussian prior of that width on every weight."""
    del family
    require_positive("the inner rate", rate)
    if weight_std is not None:
        require_positive("the width of weights", weight_std, "pass weight_std=None for no prior")
    require_batch_size(batch_size)

    def log_posterior(params, batch, num_eff):
        log_prior = 0.0
        if weight_std is not None:
            log_prior = -0.5 * jnp.square(ravel_pytree(params)[0] / weight_std).sum()
        return num_eff * likelihood.log_prob(params, batch) / at_least_one(likelihood.size(batch)) + log_prior

    def step(key, state, prior, source):
        del prior
        key_batch, key_observe = jax.random.split(key)
        points, num_eff = mini_batch(key_batch, source, batch_size), likelihood.effective_size(source)

        def score(params):
            batch = likelihood.observe(key_observe, params, points)
            return jax.grad(log_posterior)(params, batch, num_eff)

        one = jax.tree.map(lambda leaf: leaf[0], state.params)
        unravel = ravel_pytree(one)[1]
        flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])
        positions = flat(state.params)
        moved = positions + rate / num_eff * stein_direction(positions, flat(jax.vmap(score)(state.params)))
        return Particles(jax.vmap(unravel)(moved))

    def check(prior, source):
        first = jax.tree.map(lambda leaf: leaf[0], prior.dist.params)
        rates = jax.tree.map(lambda m: jnp.full_like(m, rate), first)
        if weight_std is None or likelihood.size(source) == 0:
            return rate_stability(likelihood, first, rates, source)
        pull = 1 / (likelihood.effective_size(source) * weight_std**2)
        return rate_stability(
            likelihood, first, rates, source, pull=jax.tree.map(lambda m: jnp.full_like(m, pull), first)
        )

    return Inference(
        name="svgd",
        init=lambda key, prior, start, source, memory: start,
        step=step,
        posterior=lambda state, prior, source: state,
        check=check,
        soft_limit=True,
    )


def stein_direction(positions: Float[Array, "P W"], scores: Float[Array, "P W"]) -> Float[Array, "P W"]:
    """φ(θᵢ): the kernel-weighted scores plus the repulsion of the other particles."""
    num_particles = positions.shape[0]
    # Squared distances from inner products, which are matrix products; about the mean, so that nothing cancels.
    positions = positions - positions.mean(axis=0)[None]
    gram = positions @ positions.T
    lengths = jnp.diagonal(gram)
    squared = jnp.maximum(lengths[:, None] + lengths[None, :] - 2 * gram, 0.0)
    if num_particles == 1:
        kernel, repulsion = jnp.ones_like(squared), jnp.zeros_like(positions)
    else:
        bandwidth = jax.lax.stop_gradient(jnp.median(squared) / math.log(num_particles) + 1e-12)
        kernel = jnp.exp(-squared / bandwidth)
        # Σ_j ∇_{θ_j} k(θ_j, θ_i) = Σ_j 2 k (θ_i − θ_j)/h: away from the neighbours
        repulsion = 2 / bandwidth * (kernel.sum(axis=1)[:, None] * positions - kernel @ positions)
    return (kernel @ scores + repulsion) / num_particles
