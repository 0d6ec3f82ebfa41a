"""PLATIPUS by hand, in a world of one weight where every gradient is written out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import KEY, adapted, close, predict, silent_data, weights

from metaprior import families, likelihoods, matrix
from metaprior.families import MeanField, Particles
from metaprior.inference import platipus
from metaprior.inference.platipus import PlatipusExtra, platipus_extra
from metaprior.types import Data, Episode, Prior

NOISE, TEMPERATURE = 0.5, 0.7
LIKELIHOOD = likelihoods.gaussian(predict, noise_std=NOISE, temperature=TEMPERATURE)
MU, SIGMA, V, GAMMA_P, GAMMA_Q, RATE, STEPS = 0.4, 0.3, 0.2, 0.05, 0.02, 0.1, 3
SUPPORT_X, SUPPORT_Y = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.3, 2.5])
QUERY_X, QUERY_Y = np.array([1.5, -0.4]), np.array([0.9, -0.2])
FAMILY = families.particles(4)


def data(x, y):
    return Data(jnp.asarray(x)[:, None], jnp.asarray(y)[:, None])


EPISODE = Episode(data(SUPPORT_X, SUPPORT_Y), data(QUERY_X, QUERY_Y))
PRIOR = Prior(
    MeanField(weights([MU]), weights([np.log(SIGMA)])),
    extra=PlatipusExtra(weights([np.log(V)]), jnp.log(GAMMA_P), jnp.log(GAMMA_Q)),
)
INFERENCE: Any = platipus(LIKELIHOOD, FAMILY, rate=RATE, steps=STEPS, num_particles=4)


def slope(theta, x, y):
    """Of the mean loss of N(y | θx, noise²)."""
    return np.mean(x * (theta * x - y)) / NOISE**2


def test_score_is_the_formula():
    score, posteriors = jax.jit(INFERENCE.score)(KEY, PRIOR, EPISODE)
    mean_p, mean_q = MU - GAMMA_P * slope(MU, SUPPORT_X, SUPPORT_Y), MU - GAMMA_Q * slope(MU, QUERY_X, QUERY_Y)
    # the same standard normal number as inside
    standard = families.mean_field().samples(KEY, MeanField(weights([0.0]), weights([0.0])), 1)
    theta = mean_q + V * float(standard["bias"][0, 0])
    for _ in range(STEPS):
        theta -= RATE * slope(theta, SUPPORT_X, SUPPORT_Y)
    residuals = QUERY_Y - theta * QUERY_X
    log_likelihood = -0.5 * np.square(residuals / NOISE).sum() - len(QUERY_Y) * np.log(NOISE * np.sqrt(2 * np.pi))
    kl = np.log(SIGMA / V) + (V**2 + (mean_q - mean_p) ** 2) / (2 * SIGMA**2) - 0.5
    close(score, log_likelihood / TEMPERATURE - kl, 1e-10)
    close(posteriors.q1.mean["bias"], np.array([mean_p]), 1e-12)
    close(posteriors.q2.mean["bias"], np.array([mean_q]), 1e-12)


def test_every_part_of_theta_has_a_gradient():
    slopes = jax.jit(jax.grad(lambda prior: INFERENCE.score(KEY, prior, EPISODE)[0]))(PRIOR)
    assert all(np.isfinite(leaf).all() and (leaf != 0).all() for leaf in jax.tree.leaves(slopes))


def test_the_matrix_hands_over():
    """An inference with an objective of its own is asked for it."""
    cell = matrix.Cell(LIKELIHOOD, FAMILY, INFERENCE, "elbo", "conditional", "sequential", (STEPS, 1))
    key_score = jax.random.split(KEY)[1]
    value = jax.jit(lambda key, prior: matrix.score(cell, key, prior, EPISODE)[0])(KEY, PRIOR)
    close(value, jax.jit(INFERENCE.score)(key_score, PRIOR, EPISODE)[0], 1e-14)


def test_at_test_time_draws_around_the_shifted_mean_descend():
    q = adapted(INFERENCE, FAMILY, PRIOR, EPISODE.support, 2, start=PRIOR.dist)
    mean = MU - GAMMA_P * slope(MU, SUPPORT_X, SUPPORT_Y)
    key_init = jax.random.split(KEY)[0]
    draws = families.mean_field().samples(key_init, MeanField(weights([mean]), weights([np.log(SIGMA)])), 4)
    thetas = np.asarray(draws["bias"])[:, 0]
    for _ in range(2):
        thetas = np.array([theta - RATE * slope(theta, SUPPORT_X, SUPPORT_Y) for theta in thetas])
    assert isinstance(q, Particles)
    close(q.params["bias"][:, 0], thetas, 1e-12)


def test_without_data_draws_come_from_the_prior():
    q = adapted(INFERENCE, FAMILY, PRIOR, silent_data(0), 3, start=PRIOR.dist)
    close(q.params, families.mean_field().samples(jax.random.split(KEY)[0], PRIOR.dist, 4), 1e-14)


def test_extra_begins_at_the_given_numbers():
    extra = platipus_extra(weights([1.0, 2.0]), 0.3, 0.01)
    close(extra, PlatipusExtra(weights(np.log([0.3, 0.3])), jnp.log(0.01), jnp.log(0.01)), 1e-14)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="inner rate must be above zero and finite, got 0"):
        platipus(LIKELIHOOD, FAMILY, rate=0.0)
    with pytest.raises(ValueError, match="at least one particle, got steps=5, num_particles=0"):
        platipus(LIKELIHOOD, FAMILY, num_particles=0)
    with pytest.raises(ValueError, match=r"zero steps or more .*, got steps=-1"):
        platipus(LIKELIHOOD, FAMILY, steps=-1)
