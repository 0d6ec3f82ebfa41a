r"""A conjugate last layer: features by the network, an exact Gaussian posterior on the head.

$$y = \phi_w(x)\,\theta + \text{noise}, \quad \theta_{\cdot o} \sim \mathcal N(M_{\cdot o}, L L^\top), \qquad
\theta \mid D \sim \mathcal N(m, S), \quad S^{-1} = (LL^\top)^{-1} + \tfrac{1}{T\,\text{noise}^2} \Phi^\top\Phi$$

The feature weights w belong to Θ and are not adapted. The posterior is exact, so the Gradient-EM gradient is the gradient of the
evidence: in the head's prior through −KL(q‖p), in w through E_q log p(D | θ, w) at fixed q.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.families import Full, cholesky, inverse_cholesky, require_width, with_log_diagonal
from metaprior.scalars import Scalar, log, require_positive
from metaprior.types import Batch, Family, Inference, Key, Likelihood, Params


class LastLayer(NamedTuple):
    """Feature weights, and a Gaussian over the head whose columns (outputs) share one covariance."""

    features: Params
    mean: Float[Array, "F O"]
    tril: Float[Array, "F F"]  # as in `Full`: L below the diagonal, log Lᵢᵢ on it


class HeadParams(NamedTuple):
    """θ of a model with a last layer: feature weights and one head."""

    features: Params
    head: Float[Array, "F O"]


def last_layer() -> Family:
    """The family of exact heads on shared features."""
    return Family(
        name="last-layer",
        init=_init,
        start=lambda prior: prior,
        mean=lambda q: HeadParams(q.features, q.mean),
        samples=_samples,
        kl=_kl,
        as_prior=lambda q, prior: q,
        expected_log_prob=_expected_log_prob,
    )


def conjugate(likelihood: Likelihood, family: Family, *, noise_std: Scalar) -> Inference:
    """The exact posterior of the head under Gaussian noise; every step after the first changes nothing."""
    del family
    require_positive("noise std", noise_std)

    def step(key, state, prior, source):
        del key
        dist, unit = prior.dist, jnp.eye(state.mean.shape[0], dtype=state.mean.dtype)
        # Outputs are linear in the head, so a unit head reads the features off.
        features = likelihood.outputs(HeadParams(dist.features, unit), source)
        weight = 1 / (likelihood.temperature * noise_std**2)
        lower = cholesky(Full(dist.mean, dist.tril))
        with exact_products():
            white = features @ lower
            # S = L (I + w AᵀA)⁻¹ Lᵀ with A = ΦL: no eigenvalue of what is inverted is below one, however narrow the prior.
            root = lower @ inverse_root(unit + weight * white.T @ white)
            mean = dist.mean + weight * root @ (root.T @ (features.T @ (source.y - features @ dist.mean)))
        return LastLayer(dist.features, mean, with_log_diagonal(root))

    def check(prior, source):
        """The exact posterior of another likelihood is not exact."""
        outputs = likelihood.outputs(HeadParams(prior.dist.features, prior.dist.mean), source)
        precisions = -_curvature(likelihood, outputs, source)
        if likelihood.size(source) == 0 or jnp.allclose(precisions * noise_std**2, 1.0, rtol=1e-3):
            return None
        return (
            f"the head is inferred with noise_std={noise_std:g}, but the likelihood's own noise is "
            f"{float(precisions.mean()) ** -0.5:.3g}: give both the same number"
        )

    return Inference(
        name="conjugate",
        init=lambda key, prior, start, source, memory: start,
        step=step,
        posterior=lambda state, prior, source: state,
        check=check,
    )


def exact_products():
    """Inside, products are not rounded to a few bits, as cards do by default: what is inverted afterwards would not stand it."""
    return jax.default_matmul_precision("highest")


def inverse_root(matrix: Float[Array, "F F"]) -> Float[Array, "F F"]:
    """The lower triangle R with R Rᵀ = matrix⁻¹: from the Cholesky factor of the matrix read backwards."""
    factor = jnp.linalg.cholesky(matrix[::-1, ::-1])
    unit = jnp.eye(*matrix.shape, dtype=matrix.dtype)
    return jax.scipy.linalg.solve_triangular(factor, unit, lower=True).T[::-1, ::-1]


def _init(key: Key, params: HeadParams, std: Scalar) -> LastLayer:
    del key
    require_width(std)
    size = params.head.shape[0]
    return LastLayer(params.features, params.head, log(std) * jnp.eye(size, dtype=params.head.dtype))


def _samples(key, q, num_samples):
    noise = jax.random.normal(key, (num_samples, *q.mean.shape), q.mean.dtype)
    heads = q.mean[None] + jnp.einsum("fg,sgo->sfo", cholesky(Full(q.mean, q.tril)), noise)
    features = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_samples, *leaf.shape)), q.features)
    return HeadParams(features, heads)


def _kl(q, p):
    """KL of the heads, summed over outputs."""
    size, outputs = q.mean.shape
    lower_q = cholesky(Full(q.mean, q.tril))
    inverse = inverse_cholesky(Full(p.mean, p.tril))
    with exact_products():
        spread, moved = inverse @ lower_q, inverse @ (q.mean - p.mean)
    shape = jnp.trace(p.tril) - jnp.trace(q.tril) - 0.5 * size + 0.5 * jnp.square(spread).sum()
    return outputs * shape + 0.5 * jnp.square(moved).sum()


def _expected_log_prob(key: Key, likelihood: Likelihood, q: LastLayer, batch: Batch, num_samples: int = 1):
    r"""$\log p(y|\bar f) - \tfrac12 \sum \mathrm{var}(f) / \text{noise}^2$: exact, the log density being quadratic in f."""
    del key, num_samples
    # A unit head reads the features off; answers by the mean follow from them, without a second way through the network.
    features = likelihood.outputs(HeadParams(q.features, jnp.eye(q.mean.shape[0], dtype=q.mean.dtype)), batch)
    with exact_products():
        outputs = features @ q.mean
        variances = jnp.square(features @ cholesky(Full(q.mean, q.tril))).sum(axis=1)
    curvature = _curvature(likelihood, outputs, batch)
    return likelihood.log_density(outputs, batch).sum() + 0.5 * (curvature * variances[:, None]).sum()


def _curvature(likelihood, outputs, batch):
    """∂² log p / ∂f², output by output: −1/noise² for Gaussian noise."""
    return jax.grad(lambda f: jax.grad(lambda g: likelihood.log_density(g, batch).sum())(f).sum())(outputs)


__all__ = ["HeadParams", "LastLayer", "conjugate", "last_layer"]
