"""Worlds in which everything is known: linear-Gaussian tasks with their exact posterior and evidence, and a small network.

θ ~ N(mean, covariance), y = xθ + noise, temperature T. The weights are a pytree of two leaves, so that nothing may rely on a
vector. NumPy draws the numbers: the references share no randomness with what they judge.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.flatten_util import ravel_pytree

from metaprior import families, likelihoods
from metaprior.inference import infer
from metaprior.models import mlp
from metaprior.tasks.linear import exact_posterior, log_evidence
from metaprior.types import Data, Episode, Prior

KEY = jax.random.key(0)
stats: Any = scipy.stats  # its own types know scalars only


class World(NamedTuple):
    """A prior, a noise, a temperature, and one task."""

    mean: np.ndarray
    covariance: np.ndarray
    noise_std: float
    temperature: float
    episode: Episode

    @property
    def likelihood(self):
        return likelihoods.gaussian(predict, noise_std=self.noise_std, temperature=self.temperature)

    @property
    def all_data(self):
        return self.likelihood.join(*self.episode)

    @property
    def full_prior(self):
        return Prior(families.from_covariance(weights(self.mean), jnp.asarray(self.covariance)))

    @property
    def mean_field_prior(self):
        """The same means and variances, without correlations."""
        return Prior(families.MeanField(weights(self.mean), weights(0.5 * np.log(np.diag(self.covariance)))))

    def posterior(self, data, mean=None, covariance=None):
        """Mean and covariance of p(θ | data), exact; from the world's prior or from another."""
        mean = self.mean if mean is None else mean
        covariance = self.covariance if covariance is None else covariance
        return exact_posterior(
            jnp.asarray(mean), jnp.asarray(covariance), data.x, data.y, self.noise_std, self.temperature
        )

    def log_evidence(self, mean, covariance, data):
        """The log of ∫ p(θ) p(data | θ)^{1/T} dθ, up to a constant that depends on n and T alone (none at T = 1)."""
        return log_evidence(mean, covariance, data.x, data.y, self.noise_std * self.temperature**0.5)


def world(
    seed=0, *, size=3, shots=5, queries=4, noise_std=0.7, temperature=1.0, correlated=True, orthogonal=False
) -> World:
    """A random prior and a task drawn from it; `orthogonal` inputs make the posterior factorise if the prior does."""
    rng = np.random.default_rng(seed)
    root = np.diag(rng.uniform(0.5, 1.5, size)) + (0.4 * rng.normal(size=(size, size)) if correlated else 0.0)
    mean, covariance = rng.normal(size=size), root @ root.T
    theta = mean + root @ rng.normal(size=size)

    def points(number):
        x = rng.normal(size=(number, size))
        if orthogonal:
            x = np.linalg.qr(x)[0] * rng.uniform(1.0, 3.0, (1, size))
        return Data(jnp.asarray(x), jnp.asarray(x @ theta + noise_std * rng.normal(size=number))[:, None])

    return World(mean, covariance, noise_std, temperature, Episode(points(shots), points(queries)))


def scalar_world(*, inputs, targets, noise_std, mean, std) -> World:
    """One weight, y = θx + noise, all of the data in the support set."""
    column = lambda values: jnp.asarray(values, float)[:, None]
    data = Data(column(inputs), column(targets))
    return World(np.array([mean]), np.array([[std**2]]), noise_std, 1.0, Episode(data, data))


def weights(vector):
    """A vector as a pytree of two leaves (the second may be empty)."""
    vector = jnp.asarray(vector)
    return {"bias": vector[:1], "slope": vector[1:]}


def flat(params):
    return ravel_pytree(params)[0]


def predict(params, x):
    """Outputs [N, 1] of the linear model."""
    return x @ flat(params)[:, None]


def silent_data(number, size=1):
    """Points that say nothing about the weights: every input is zero."""
    return Data(jnp.zeros((number, size)), jnp.ones((number, 1)))


def adapted(inference, family, prior, source, steps, *, key=KEY, start=None):
    """The posterior after `steps` steps, compiled whole: many small programs would take longer to compile than one."""
    start = family.start(prior.dist) if start is None else start
    return jax.jit(lambda *args: infer(inference, *args, steps=steps)[0])(key, prior, start, source)


def words(inference, prior, source) -> str:
    """What its check has to say; nothing is the empty string."""
    return inference.check(prior, source) or ""


def collinear(number=8, size=3):
    """Inputs that are nearly one and the same, so that steps weight by weight add up; λmax(D⁻¹P) is nearly `size`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, 1)) + 0.05 * rng.normal(size=(number, size))
    y = x.sum(axis=1, keepdims=True) + 0.1 * rng.normal(size=(number, 1))
    return Data(jnp.asarray(x), jnp.asarray(y))


class Network(NamedTuple):
    """A small smooth network with data it does not fit."""

    params: Any
    apply: Any
    episode: Episode


def network(seed=0, sizes=(1, 4, 1), *, shots=6, queries=5) -> Network:
    """1-4-1 by default: 13 weights, a dense Hessian is cheap."""
    model = mlp(sizes, activation=jnp.tanh)
    rng = np.random.default_rng(seed)

    def points(number):
        x = rng.uniform(-2, 2, (number, sizes[0]))
        y = np.sin(1.5 * x.sum(axis=1, keepdims=True)) + 0.1 * rng.normal(size=(number, 1))
        return Data(jnp.asarray(x), jnp.asarray(np.broadcast_to(y, (number, sizes[-1]))))

    return Network(model.init(jax.random.key(seed)), model.apply, Episode(points(shots), points(queries)))


def close(actual, expected, tolerance=1e-10):
    """Every leaf agrees, relative to the largest entry of the leaf (or to one)."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)
