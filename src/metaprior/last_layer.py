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


def conjugate(likelihood: Likelihood, family: Family, *, noise_std: Scalar | None) -> Inference:
    """The exact posterior of the head under Gaussian noise; every step after the first changes nothing.

    Args:
        likelihood: Gaussian in its outputs.
        family: the last layer.
        noise_std: of the likelihood; None asks the likelihood, point by point: where noise is learned or points have weights.
    """
    del family
    if noise_std is not None:
        require_positive("noise std", noise_std)

    def step(key, state, prior, source):
        del key
        dist, unit = prior.dist, jnp.eye(state.mean.shape[0], dtype=state.mean.dtype)
        features, rest = read_features(likelihood, dist, source)
        lower = cholesky(Full(dist.mean, dist.tril))
        with exact_products():
            # Points that say nothing (of weight zero) and points of other noise: rows, and answers, of another length.
            scale = _root_precision(likelihood, features @ dist.mean, rest, source, noise_std)
            rows, gap = scale * features, scale * (source.y - features @ dist.mean)
            white = rows @ lower
            # S = L (I + AᵀA)⁻¹ Lᵀ with A = ΦL/noise: no eigenvalue of what is inverted is below one, however narrow the prior.
            root = lower @ inverse_root(unit + white.T @ white)
            mean = dist.mean + root @ (root.T @ (rows.T @ gap))
        return LastLayer(dist.features, mean, with_log_diagonal(root))

    def check(prior, source):
        """The exact posterior of another likelihood is not exact."""
        outputs = likelihood.outputs(HeadParams(prior.dist.features, prior.dist.mean), source)
        size = prior.dist.mean.shape[1]
        if noise_std is None or likelihood.size(source) == 0:
            return None
        precisions = -_curvature(likelihood, outputs[:, :size], outputs[:, size:], source)
        if jnp.allclose(precisions * noise_std**2, 1.0, rtol=1e-3):
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
    features, rest = read_features(likelihood, q, batch)
    with exact_products():
        means = features @ q.mean
        variances = jnp.square(features @ cholesky(Full(q.mean, q.tril))).sum(axis=1)
    curvature = _curvature(likelihood, means, rest, batch)
    outputs = jnp.concatenate([means, rest], axis=1)
    return likelihood.log_density(outputs, batch).sum() + 0.5 * (curvature * variances[:, None]).sum()


def read_features(
    likelihood: Likelihood, dist: LastLayer, batch: Batch
) -> tuple[Float[Array, "N F"], Float[Array, "N R"]]:
    """Features, and what the likelihood puts beside the answers (a column of log noise, say).

    Outputs are linear in the head, so a unit head reads the features off.
    """
    size = dist.mean.shape[0]
    outputs = likelihood.outputs(HeadParams(dist.features, jnp.eye(size, dtype=dist.mean.dtype)), batch)
    return outputs[:, :size], outputs[:, size:]


def _root_precision(likelihood, means, rest, batch, noise_std) -> Float[Array, "N 1"]:
    """1/(noise √T) of each point, equal for all outputs."""
    if noise_std is not None:
        return jnp.full((means.shape[0], 1), 1 / (likelihood.temperature**0.5 * noise_std), means.dtype)
    precision = -_curvature(likelihood, means, rest, batch)[:, :1] / likelihood.temperature
    positive = precision > 0  # √ has no derivative at zero
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, precision, 1)), 0)


def _curvature(likelihood, means, rest, batch):
    """∂² log p / ∂f², output by output: −1/noise² for Gaussian noise."""
    log_density = lambda f: likelihood.log_density(jnp.concatenate([f, rest], axis=1), batch).sum()
    return jax.grad(lambda f: jax.grad(log_density)(f).sum())(means)


__all__ = ["HeadParams", "LastLayer", "conjugate", "last_layer"]
