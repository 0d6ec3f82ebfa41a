r"""p(D | θ): what the data say about one set of weights, and what temperature means.

One meaning of temperature throughout: n points at temperature T count as $N_{\text{eff}} = n/T$ points,

$$\log p_T(D \mid \theta) = \frac{1}{T} \sum_{i=1}^{n} \log p(y_i \mid x_i, \theta) = -N_{\text{eff}} \cdot \text{mean loss}.$$

T multiplies the KL of a per-point objective: mean loss + (T/n)·KL. Because N_eff grows with the data, inference on the support
and then the query agrees with inference on both at once, and log p(D_val | D_tr) = log p(D_tr ∪ D_val) − log p(D_tr) holds.

The paper's "−log P = mean squared error" is `gaussian(noise_std=sqrt(1/2), temperature=n)`: one squared error per point.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from metaprior.scalars import Scalar, log, require_positive
from metaprior.types import Batch, Key, Likelihood, Params, Region, Source

Apply = Callable[[Params, Array], Array]  # (weights, inputs [N, ...]) -> outputs [N, O]

SQUARED_ERROR = math.sqrt(0.5)  # the noise at which −log p is the squared error, up to a constant


class WithNoise(NamedTuple):
    """Weights of a network together with the logarithm of its observation noise, adapted like any other weight."""

    weights: Params
    log_noise: Float[Array, ""]


class Weighted(NamedTuple):
    """Points of which each counts as often as its weight says: those of weight zero only fill up an array."""

    x: Float[Array, "N ..."]
    y: Array
    weight: Float[Array, " N"]


def weighted(likelihood: Likelihood) -> Likelihood:
    """The same likelihood of `Weighted` points: tasks of different sizes then have arrays of one size.

    >>> from metaprior.types import Data
    >>> line = gaussian(lambda slope, x: slope * x, noise_std=1.0)
    >>> points = Weighted(x=jnp.ones((3, 1)), y=jnp.ones((3, 1)), weight=jnp.array([1.0, 1.0, 0.0]))
    >>> round(float(weighted(line).log_prob(jnp.ones((1, 1)), points)), 4)
    -1.8379
    """

    def log_density(outputs, batch):
        return batch.weight * likelihood.log_density(outputs, batch)

    # Regions are made of densities without weights: what is drawn around a step would count what only fills up.
    return likelihood._replace(log_density=log_density, size=lambda source: source.weight.sum(), region=None)


def gaussian(apply: Apply, *, noise_std: Scalar = SQUARED_ERROR, temperature: float = 1.0) -> Likelihood:
    r"""Regression with known noise: $\log \mathcal N(y \mid f_\theta(x), \text{noise}^2)$, summed over outputs.

    >>> from metaprior.types import Data
    >>> line = gaussian(lambda slope, x: slope * x, noise_std=1.0)
    >>> points = Data(x=jnp.ones((2, 1)), y=jnp.ones((2, 1)))
    >>> round(float(line.log_prob(jnp.ones((1, 1)), points)), 4)
    -1.8379
    """
    _require_positive(noise_std=noise_std, temperature=temperature)

    def log_density(outputs, batch):
        return _normal_log_density(batch.y, outputs, log(noise_std))

    def least_loss(batch):
        return batch.y.shape[1] * (log(noise_std) + 0.5 * math.log(2 * math.pi))

    def kl(before, outputs, batch):
        return 0.5 * jnp.square(outputs - before).sum(axis=1) * jnp.exp(-2 * jnp.asarray(log(noise_std), outputs.dtype))

    likelihood = _supervised(lambda params, batch: apply(params, batch.x), log_density, temperature, least_loss)
    return likelihood._replace(region=_region(log_density, kl))


def gaussian_learned_noise(apply: Apply, *, temperature: float = 1.0) -> Likelihood:
    """Regression whose noise is one of the weights: θ is a `WithNoise`, and its outputs end in a column of log noise."""
    _require_positive(temperature=temperature)

    def outputs(params, batch):
        means = apply(params.weights, batch.x)
        return jnp.concatenate([means, jnp.broadcast_to(params.log_noise, (means.shape[0], 1))], axis=1)

    def log_density(outputs, batch):
        return _normal_log_density(batch.y, outputs[:, :-1], outputs[:, -1:])

    return _supervised(outputs, log_density, temperature)


def gaussian_shared_noise(apply: Apply, *, temperature: float = 1.0, least: float = 1e-3) -> Likelihood:
    """Regression whose noise is one for all tasks, learned with the features of a last layer and not adapted.

    θ is a `HeadParams` whose features are a `WithNoise`; outputs end in a column of log noise, never below that of `least`.
    """
    _require_positive(temperature=temperature, least=least)

    def outputs(params, batch):
        means, floor = apply(params, batch.x), math.log(least)
        # The head may be a unit matrix, off which features are read: the column stays the last.
        log_noise = floor + jax.nn.softplus(params.features.log_noise - floor)
        return jnp.concatenate([means, jnp.broadcast_to(log_noise, (means.shape[0], 1))], axis=1)

    def log_density(outputs, batch):
        return _normal_log_density(batch.y, outputs[:, :-1], outputs[:, -1:])

    return _supervised(outputs, log_density, temperature)


def categorical(apply: Apply, *, temperature: float = 1.0) -> Likelihood:
    """Classification: labels `y` [N] are class numbers, outputs [N, C] are logits, the loss is cross-entropy."""
    _require_positive(temperature=temperature)

    def log_density(outputs, batch):
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), batch.y[:, None], axis=1)[:, 0]

    def kl(before, outputs, batch):
        old, new = jax.nn.log_softmax(before), jax.nn.log_softmax(outputs)
        return (jnp.exp(old) * (old - new)).sum(axis=1)

    likelihood = _supervised(lambda params, batch: apply(params, batch.x), log_density, temperature, lambda batch: 0.0)
    return likelihood._replace(region=_region(log_density, kl))


def _normal_log_density(targets, means, log_noise):
    if targets.shape != means.shape:  # [N] beside [N, 1] would broadcast to N² residuals
        raise ValueError(
            f"targets have shape {targets.shape} and outputs {means.shape}: they must agree, both [N, outputs]"
        )
    residual = targets - means
    log_noise = jnp.asarray(log_noise, residual.dtype)
    densities = -0.5 * jnp.square(residual) * jnp.exp(-2 * log_noise) - log_noise - 0.5 * math.log(2 * math.pi)
    return densities.sum(axis=1)


def _supervised(outputs, log_density, temperature, least_loss=lambda batch: -math.inf) -> Likelihood:
    return Likelihood(
        observe=_data_as_they_are,
        outputs=outputs,
        log_density=log_density,
        size=lambda source: source.x.shape[0],
        join=lambda first, second: jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second),
        temperature=temperature,
        least_loss=least_loss,
    )


def _region(log_density, kl) -> Region:
    """Given data gain in log-density, whatever was there before."""
    return Region(lambda outputs, before, batch: log_density(outputs, batch), kl)


def _data_as_they_are(key: Key, params: PyTree, source: Source) -> Batch:
    del key, params  # given data do not depend on who looks at them; rollouts would
    return source


def _require_positive(**values: Scalar) -> None:
    for name, value in values.items():
        require_positive(name.replace("_", " "), value)
