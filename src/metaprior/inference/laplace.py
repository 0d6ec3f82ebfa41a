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

from metaprior.families import Full, MeanField, cholesky, from_covariance, variance
from metaprior.inference.base import mean_loss
from metaprior.inference.curvature import ggn_dense, ggn_diagonal, output_hessian, output_jacobian
from metaprior.types import Batch, Dist, Family, Inference, Likelihood, Params


class LaplaceState(NamedTuple):
    """The mode so far."""

    mean: Params


def laplace(likelihood: Likelihood, family: Family, *, rate: float = 0.5) -> Inference:
    """Damped Newton steps to the mode, then the curvature; dense for a `full` family, diagonal for `mean-field`."""
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
        del prior, source
        return None if 0 < rate < 2 else f"Newton steps contract only for a rate in (0, 2), got {rate}: use 0.5"

    return Inference(
        name="laplace",
        init=lambda key, prior, start, source, memory: LaplaceState(start.mean),
        step=step,
        posterior=posterior,
        check=check,
    )


def log_evidence_correction(likelihood: Likelihood, mean: Params, prior: Dist, batch: Batch) -> Float[Array, ""]:
    r"""$-\tfrac12 \log\det(I + \tfrac1T H J \Lambda^{-1} J^\top)$: the Occam factor of the Laplace evidence (LLAMA).

    The determinant is taken over outputs, not weights: a few points make a small matrix whatever the size of the network.
    """
    jacobian = output_jacobian(likelihood, mean, batch)
    points, outputs, weights = jacobian.shape
    variances = ravel_pytree(variance(prior) if isinstance(prior, MeanField) else jax.tree.map(jnp.ones_like, mean))[0]
    rows = jacobian.reshape(points * outputs, weights)
    kernel = ((rows * variances[None, :]) @ rows.T).reshape(points, outputs, points * outputs)
    hessian = output_hessian(likelihood, mean, batch) / likelihood.temperature
    product = jnp.einsum("nop,npk->nok", hessian, kernel).reshape(points * outputs, points * outputs)
    return -0.5 * jnp.linalg.slogdet(jnp.eye(points * outputs) + product)[1]


class _Curvature(NamedTuple):
    solve: Callable[[Params], Params]  # gradient -> (N_eff G + Λ)⁻¹ gradient
    gaussian: Callable[[Params], Dist]  # mean -> the Gaussian with that precision


def _dense_curvature(likelihood, mean, prior, source) -> _Curvature:
    unravel = ravel_pytree(mean)[1]
    precision = likelihood.effective_size(source) * ggn_dense(likelihood, mean, source) + _prior_precision(prior)
    factor = jax.scipy.linalg.cho_factor(precision)
    return _Curvature(
        solve=lambda g: unravel(jax.scipy.linalg.cho_solve(factor, ravel_pytree(g)[0])),
        gaussian=lambda m: from_covariance(m, jax.scipy.linalg.cho_solve(factor, jnp.eye(precision.shape[0]))),
    )


def _diagonal_curvature(likelihood, mean, prior, source) -> _Curvature:
    num_eff = likelihood.effective_size(source)
    log_std = prior.log_std if isinstance(prior, MeanField) else jax.tree.map(jnp.zeros_like, mean)
    precision = jax.tree.map(
        lambda h, s: num_eff * h + jnp.exp(-2 * s), ggn_diagonal(likelihood, mean, source), log_std
    )
    return _Curvature(
        solve=lambda g: jax.tree.map(lambda x, p: x / p, g, precision),
        gaussian=lambda m: MeanField(m, jax.tree.map(lambda p: -0.5 * jnp.log(p), precision)),
    )


def _prior_precision(prior: Dist) -> Float[Array, "W W"]:
    if isinstance(prior, Full):
        lower = cholesky(prior)
        return jax.scipy.linalg.cho_solve((lower, True), jnp.eye(lower.shape[0]))
    if isinstance(prior, MeanField):
        return jnp.diag(jnp.exp(-2 * ravel_pytree(prior.log_std)[0]))
    return jnp.eye(ravel_pytree(prior.mean)[0].size)


def _negative_log_joint(likelihood, mean, prior, source):
    deviation = ravel_pytree(mean)[0] - ravel_pytree(prior.mean)[0]
    pull = 0.5 * deviation @ _prior_precision(prior) @ deviation
    return likelihood.effective_size(source) * mean_loss(likelihood, mean, source) + pull
