r"""Laplace: a Gaussian at the mode, with the curvature there.

$$q = \mathcal N\big(\theta^*, (N_{\text{eff}}\, G + \Lambda)^{-1}\big), \qquad
\theta \leftarrow \theta - \eta\, (N_{\text{eff}}\, G + \Lambda)^{-1}
\big[ N_{\text{eff}} \nabla \overline{\text{loss}} + \Lambda(\theta-\mu) \big]$$

G is the generalised Gauss–Newton matrix, whole for a full posterior and its diagonal for a mean-field one. Steps are damped
Newton steps with the same matrix. In a linear-Gaussian model one whole step (η = 1, full) is exact.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from metaprior import trees
from metaprior.families import Delta, Full, MeanField, as_mean_field, cholesky, cross_entropy, from_covariance
from metaprior.inference.base import mean_loss
from metaprior.inference.curvature import ggn_dense, ggn_diagonal, output_hessian, output_jacobian
from metaprior.inference.natural import diagonal_stability
from metaprior.types import Batch, Dist, Family, Inference, Likelihood, Params


class LaplaceState(NamedTuple):
    """The mode so far."""

    mean: Params


def laplace(likelihood: Likelihood, family: Family, *, rate: float = 0.5) -> Inference:
    """Damped Newton steps to the mode, then the curvature; dense for a `full` family, diagonal for `mean-field`."""
    if not 0 < rate < 2:
        raise ValueError(f"Newton steps contract only for a rate in (0, 2), got {rate}: use 0.5")
    dense = family.name == "full"
    curvature = _dense_curvature if dense else _diagonal_curvature

    def step(key, state, prior, source):
        del key
        pull = jax.grad(lambda m: _negative_log_joint(likelihood, m, prior.dist, source))(state.mean)
        direction = curvature(likelihood, state.mean, prior.dist, source).solve(pull)
        return LaplaceState(jax.tree.map(lambda m, d: m - rate * d, state.mean, direction))

    def posterior(state, prior, source):
        return curvature(likelihood, state.mean, prior.dist, source).gaussian(state.mean)

    def check(prior, source):
        if not trees.all_finite(posterior(LaplaceState(prior.dist.mean), prior, source)):
            return (
                "the data do not curve upwards in every direction at the prior's mean, so Laplace has no Gaussian there: "
                "use a mean-field posterior, gradient inference, or a likelihood whose noise is known"
            )
        if dense or isinstance(prior.dist, Full):
            return None
        return diagonal_stability(likelihood, as_mean_field(prior.dist), source, rate)

    return Inference(
        name="laplace",
        init=lambda key, prior, start, source, memory: LaplaceState(start.mean),
        step=step,
        posterior=posterior,
        check=check,
        soft_limit=True,
    )


def log_evidence_correction(likelihood: Likelihood, mean: Params, prior: Dist, batch: Batch) -> Float[Array, ""]:
    r"""$-\tfrac12 \log\det(I + \tfrac1T H J \Lambda^{-1} J^\top)$: the Occam factor of the Laplace evidence (LLAMA).

    The determinant is taken over outputs, not weights: a few points make a small matrix whatever the size of the network.
    """
    jacobian = output_jacobian(likelihood, mean, batch)
    points, outputs, weights = jacobian.shape
    roots = _times_root(jacobian.reshape(points * outputs, weights), prior)
    kernel = (roots @ roots.T).reshape(points, outputs, points * outputs)
    hessian = output_hessian(likelihood, mean, batch) / likelihood.temperature
    product = jnp.einsum("nop,npk->nok", hessian, kernel).reshape(points * outputs, points * outputs)
    return -0.5 * jnp.linalg.slogdet(jnp.eye(points * outputs, dtype=product.dtype) + product)[1]


class _Curvature(NamedTuple):
    solve: Callable[[Params], Params]  # gradient -> (N_eff G + Λ)⁻¹ gradient
    gaussian: Callable[[Params], Dist]  # mean -> the Gaussian with that precision


def _dense_curvature(likelihood, mean, prior, source) -> _Curvature:
    unravel = ravel_pytree(mean)[1]
    precision = likelihood.effective_size(source) * ggn_dense(likelihood, mean, source) + _prior_precision(prior)
    factor = jax.scipy.linalg.cho_factor(precision)
    return _Curvature(
        solve=lambda g: unravel(jax.scipy.linalg.cho_solve(factor, ravel_pytree(g)[0])),
        gaussian=lambda m: from_covariance(
            m, jax.scipy.linalg.cho_solve(factor, jnp.eye(*precision.shape, dtype=precision.dtype))
        ),
    )


def _diagonal_curvature(likelihood, mean, prior, source) -> _Curvature:
    num_eff = likelihood.effective_size(source)
    if isinstance(prior, Full):
        prior_precision = ravel_pytree(mean)[1](jnp.diagonal(_prior_precision(prior)))
    else:  # never a matrix: a network may have many weights
        prior_precision = jax.tree.map(lambda s: jnp.exp(-2 * s), as_mean_field(prior).log_std)
    precision = jax.tree.map(lambda h, p: num_eff * h + p, ggn_diagonal(likelihood, mean, source), prior_precision)
    return _Curvature(
        solve=lambda g: jax.tree.map(lambda x, p: x / p, g, precision),
        gaussian=lambda m: MeanField(m, jax.tree.map(lambda p: -0.5 * jnp.log(p), precision)),
    )


def _prior_precision(prior: Dist) -> Float[Array, "W W"]:
    if isinstance(prior, Full):
        lower = cholesky(prior)
        return jax.scipy.linalg.cho_solve((lower, True), jnp.eye(*lower.shape, dtype=lower.dtype))
    return jnp.diag(jnp.exp(-2 * ravel_pytree(as_mean_field(prior).log_std)[0]))


def _times_root(rows, prior):
    """Rows · L, with L Lᵀ the covariance of the prior."""
    if isinstance(prior, Full):
        return rows @ cholesky(prior)
    return rows * jnp.exp(ravel_pytree(as_mean_field(prior).log_std)[0])[None, :]


def _negative_log_joint(likelihood, mean, prior, source):
    return likelihood.effective_size(source) * mean_loss(likelihood, mean, source) + cross_entropy(Delta(mean), prior)
