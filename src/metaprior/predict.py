r"""The posterior predictive: what an adapted prior says of new inputs, and how sure it is.

Three ways to carry the uncertainty of weights to outputs, one result: an equally weighted mixture of Gaussians.

* `sampled`: weights drawn from q; each draw is one component.
* `linearised`: outputs linear in the weights around the adapted mean (the generalised Gauss–Newton predictive). A Gaussian q has
  $J\,\mathrm{cov}(q)\,J^\top$. A point has no widths, so those of the prior are conditioned on the support, in function space:
  $$k_{**} - k_{*s}\,(k_{ss} + \text{noise}^2 I)^{-1}\, k_{s*}, \qquad k = J\,\mathrm{diag}(c^2\sigma^2)\,J^\top .$$
* `exact`: a conjugate last layer.

Widths and noise are fitted on validation tasks: learned widths are step sizes first, and mean what they should only after
that (`calibration`). Five numbers do it. The width $c\,r^a$ of weights, where r is the size (root mean square) of the
support's targets: tasks of large amplitude get wide bands. The contrast γ: variances $v$ that come from weights count as
$v^\gamma$, so that doubt grows faster, or slower, with the distance from the support than the tangent says. The noise. And
the spread τ of a log-normal scale mixture, $\mathrm{std}\cdot e^{\tau z}$ with z standard normal: how much the scale of
errors differs from task to task beyond all that.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from metaprior import metrics
from metaprior.families import Full, MeanField, cholesky, variance
from metaprior.last_layer import HeadParams
from metaprior.likelihoods import Weighted
from metaprior.types import Data, Dist, Family, Key, Prior

Apply = Callable[..., Any]
NUM_LEVELS = 9  # components that stand for the log-normal spread of scales


class Calibration(NamedTuple):
    """Five numbers fitted on validation tasks; the last three may be left alone."""

    log_width: Float[Array, "..."]  # log c: every width of weights times c
    log_noise: Float[Array, "..."]  # log of the observation noise
    power: Float[Array, "..."] | float = 0.0  # a: … times the size of the support's targets to this power
    spread: Float[Array, "..."] | float = 0.0  # τ: of the log-scale of errors; zero is a plain Gaussian
    contrast: Float[Array, "..."] | float = 1.0  # γ: variances from weights to this power


class Predictive(NamedTuple):
    """A mixture of S Gaussians per output, and draws of the noise-free function."""

    mean: Float[Array, "S N O"]
    std: Float[Array, "S N O"]
    functions: Float[Array, "F N O"]

    def log_density(self, y: ArrayLike) -> Float[Array, "N O"]:
        """Log p(y), output by output; `y` is [N, O], or [N] where there is one output."""
        given, shape = jnp.asarray(y, self.mean.dtype), self.mean.shape[1:]
        targets = given[:, None] if given.ndim == 1 and shape[1] == 1 else given
        if targets.shape != shape:  # [N] beside [N, 1] would broadcast to N² densities
            raise ValueError(f"y has shape {list(given.shape)} and predictions {list(shape)}: they must agree")
        return metrics.mixture_log_density(targets, self.mean, self.std)

    def moments(self) -> tuple[Float[Array, "N O"], Float[Array, "N O"]]:
        """Mean and standard deviation of the mixture."""
        mean = self.mean.mean(axis=0)
        second = (jnp.square(self.std) + jnp.square(self.mean - mean[None])).mean(axis=0)
        return mean, jnp.sqrt(second)

    def quantile(self, level: float) -> Float[Array, "N O"]:
        """The point below which a share `level` of the mixture lies."""
        _require_share(level)
        if self.mean.shape[0] == 1:
            return self.mean[0] + self.std[0] * jax.scipy.special.ndtri(level)
        return metrics.mixture_quantile(level, self.mean, self.std)

    def interval(self, level: float = 0.9) -> tuple[Float[Array, "N O"], Float[Array, "N O"]]:
        """The central interval that holds a share `level`."""
        _require_share(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)


class Predictor(NamedTuple):
    """A way to predict, in two halves: what calibration does not touch, and what it does."""

    name: str
    prepare: Callable[..., Any]  # (key, prior, q, support, x) -> parts
    finish: Callable[[Any, Calibration], Any]  # -> what has a `log_density`: a Predictive, or a ClassPredictive


def sampled(apply: Apply, family: Family, *, num_samples: int = 30) -> Predictor:
    """By weights drawn from q, their deviations from the mean scaled by c."""

    def prepare(key, prior, q, support, x):
        del prior
        return family.mean(q), family.samples(key, q, num_samples), x, log_size(support)

    def finish(parts, calibration):
        mean, draws, x, size = parts
        width = jnp.exp(calibration.log_width + calibration.power * size)
        scaled = jax.tree.map(lambda m, d: m[None] + width * (d - m[None]), mean, draws)
        outputs = jax.vmap(lambda params: apply(params, x))(scaled)
        # Each draw has a level of its own: the mixture over levels costs no further components.
        noise = jnp.exp(calibration.log_noise + calibration.spread * levels(outputs.shape[0]))
        return Predictive(outputs, jnp.broadcast_to(noise[:, None, None], outputs.shape), outputs)

    return Predictor("sampled", prepare, finish)


def linearised(apply: Apply, family: Family, *, condition: bool, num_functions: int = 20) -> Predictor:
    """By the tangent of the network; `condition` takes the prior's widths and conditions them on the support.

    Whole covariances between inputs are needed to draw functions only: `num_functions=0` saves them.
    """

    def prepare(key, prior, q, support, x):
        mean, first = family.mean(q), support.x.shape[0] if condition else 0
        inputs = jnp.concatenate([support.x, x]) if condition else x
        outputs, roots = tangent_roots(apply, mean, prior.dist if condition else q, inputs)
        known, asked = roots[:first], roots[first:]
        if first and (weight := weight_of(support)) is not None:
            known = known * weight[:, None, None]  # what only fills up says nothing: its row of the gram matrix is zero
        covariance = lambda a, b: jnp.einsum("now,mow->onm", a, b)  # of two sets of inputs, output by output
        between = covariance(asked, asked) if num_functions else jnp.square(asked).sum(axis=2).T
        given = (covariance(known, known), covariance(known, asked)) if first else None
        return outputs[first:], given, between, _unit_noise(key, num_functions, outputs[first:]), log_size(support)

    def finish(parts, calibration):
        outputs, given, covariance, noise, size = parts
        width, noise_variance = _variances(calibration, size)
        if given is not None:
            within, across = given
            # (c²K + n²I)⁻¹ c²k = (K + (n/c)²I)⁻¹ k
            ridge = noise_variance / width * jnp.eye(within.shape[1])[None]
            product = "osn,osm->onm" if num_functions else "osn,osn->on"
            covariance = covariance - jnp.einsum(product, across, jnp.linalg.solve(within + ridge, across))
        covariance = _contrasted(covariance, calibration.contrast)
        return _gaussian_predictive(outputs, width * covariance, noise_variance, noise, calibration.spread)

    return Predictor("linearised", prepare, finish)


def exact(apply: Apply, *, num_functions: int = 20) -> Predictor:
    """By the exact Gaussian over the head of a last layer."""

    def prepare(key, prior, q, support, x):
        del prior
        outputs = apply(HeadParams(q.features, q.mean), x)
        roots = apply(HeadParams(q.features, jnp.eye(q.mean.shape[0])), x) @ cholesky(Full(q.mean, q.tril))
        covariance = roots @ roots.T if num_functions else jnp.square(roots).sum(axis=1)
        return outputs, covariance, _unit_noise(key, num_functions, outputs), log_size(support)

    def finish(parts, calibration):
        outputs, covariance, noise, size = parts
        width, noise_variance = _variances(calibration, size)
        covariance = width * _contrasted(jnp.stack([covariance] * outputs.shape[1]), calibration.contrast)
        return _gaussian_predictive(outputs, covariance, noise_variance, noise, calibration.spread)

    return Predictor("exact", prepare, finish)


def tangent_roots(apply: Apply, mean, dist: Dist, x) -> tuple[Float[Array, "N O"], Float[Array, "N O W"]]:
    """Outputs, and J·root(cov) such that roots · rootsᵀ is the covariance of linearised outputs under `dist`.

    Each input is differentiated by itself: N backward passes of one point, where a whole batch would cost N².
    """
    flat, unravel = ravel_pytree(mean)
    jacobian = jax.vmap(lambda point: jax.jacrev(lambda vector: apply(unravel(vector), point[None])[0])(flat))(x)
    if isinstance(dist, Full):
        return apply(mean, x), jacobian @ cholesky(dist)
    if isinstance(dist, MeanField):
        return apply(mean, x), jacobian * jnp.sqrt(ravel_pytree(variance(dist))[0])[None, None]
    return apply(mean, x), jacobian


def default_predictor(apply: Apply, family: Family, inference: str, *, num_functions: int = 20) -> Predictor:
    """The predictor that suits a posterior: points and held widths are conditioned through the tangent."""
    if family.name == "last-layer":
        return exact(apply, num_functions=num_functions)
    if family.name == "delta" or inference == "preconditioned":
        return linearised(apply, family, condition=True, num_functions=num_functions)
    if family.name == "full" or inference == "laplace":
        return linearised(apply, family, condition=False, num_functions=num_functions)
    return sampled(apply, family)


def predict(
    predictor: Predictor, key: Key, prior: Prior, q: Dist, support: Data, x: Array, calibration: Calibration
) -> Predictive:
    """The predictive at new inputs."""
    return predictor.finish(predictor.prepare(key, prior, q, support, x), calibration)


def _require_share(level):
    if not 0 < level < 1:
        raise ValueError(f"a level is a share between 0 and 1, got {level}: pass 0.9 for nine tenths")


def log_size(support: Data | Weighted) -> Float[Array, ""]:
    """Log of the root mean square of the support's targets; zero where there is no support."""
    if support.y.size == 0:
        return jnp.zeros((), support.y.dtype)
    weight, size = weight_of(support), jnp.square(support.y)
    if weight is None:
        return 0.5 * jnp.log(size.mean() + 1e-6)
    count = weight.sum()
    mean = (weight * size.mean(axis=1)).sum() / jnp.maximum(count, 1)
    return jnp.where(count > 0, 0.5 * jnp.log(mean + 1e-6), 0.0)


def weight_of(support: Data | Weighted) -> Float[Array, " N"] | None:
    """How often each point counts, where points carry weights (`likelihoods.Weighted`), which are zeros and ones here."""
    return getattr(support, "weight", None)


def levels(count: int) -> Float[Array, " S"]:
    """`count` equally likely values of a standard normal."""
    z = jax.scipy.special.ndtri((jnp.arange(count) + 0.5) / count)
    return z / jnp.sqrt(jnp.maximum(jnp.square(z).mean(), 1e-12))


def _variances(calibration: Calibration, size):
    width = calibration.log_width + calibration.power * size
    return jnp.exp(2 * width), jnp.exp(2 * calibration.log_noise)


def _contrasted(covariance, contrast):
    """Variances to a power, correlations as they are; from [O, N, N], or its diagonal [O, N]."""
    if isinstance(contrast, float) and contrast == 1:
        return covariance
    diagonal = covariance if covariance.ndim == 2 else jnp.diagonal(covariance, axis1=1, axis2=2)
    factors = jnp.maximum(diagonal, 1e-10) ** ((contrast - 1) / 2)
    return covariance * (jnp.square(factors) if covariance.ndim == 2 else factors[:, :, None] * factors[:, None, :])


def _unit_noise(key, num_functions, outputs):
    return jax.random.normal(key, (num_functions, *outputs.shape), outputs.dtype) if num_functions else None


def _gaussian_predictive(
    outputs, covariance, noise_variance, noise, spread: Float[Array, ""] | float = 0.0
) -> Predictive:
    """From a covariance [O, N, N], or its diagonal [O, N] where no functions are to be drawn."""
    diagonal = covariance if covariance.ndim == 2 else jnp.diagonal(covariance, axis1=1, axis2=2)
    std = jnp.sqrt(jnp.maximum(diagonal.T, 0) + noise_variance)
    functions = jnp.zeros((0, *outputs.shape), outputs.dtype)
    if noise is not None:
        # An eigendecomposition, because the covariance of a smooth function is singular to rounding; and the symmetric root,
        # which is continuous in it: functions of the same noise move when a point does, and do not jump with eigenvectors.
        values, vectors = jnp.linalg.eigh(covariance)
        roots = jnp.einsum("onk,ok,omk->onm", vectors, jnp.sqrt(jnp.maximum(values, 0)), vectors)
        functions = outputs[None] + jnp.einsum("onm,fmo->fno", roots, noise)
    if isinstance(spread, float) and spread == 0:
        return Predictive(outputs[None], std[None], functions)
    scales = jnp.exp(spread * levels(NUM_LEVELS))[:, None, None]
    return Predictive(jnp.broadcast_to(outputs[None], (NUM_LEVELS, *outputs.shape)), scales * std[None], functions)


__all__ = [
    "Calibration",
    "Predictive",
    "Predictor",
    "default_predictor",
    "exact",
    "linearised",
    "predict",
    "sampled",
]
