"""Laplace: exact in linear-Gaussian worlds, its curvature, and the determinant of its evidence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from worlds import KEY, adapted, close, collinear, flat, network, predict, silent_data, weights, words, world

from metaprior import families, likelihoods
from metaprior.families import Delta, MeanField, cholesky
from metaprior.inference import laplace
from metaprior.inference.curvature import ggn_dense
from metaprior.inference.laplace import log_evidence_correction
from metaprior.likelihoods import WithNoise
from metaprior.types import Prior

FULL, MEAN_FIELD = families.full(), families.mean_field()


def moments(q):
    lower = cholesky(q)
    return flat(q.mean), lower @ lower.T


def exact(likelihood, prior, source):
    """One whole Newton step of the full family."""
    return adapted(laplace(likelihood, FULL, rate=1.0), FULL, prior, source, 1)


@pytest.mark.parametrize("kind", ["full", "mean-field", "delta"])
@pytest.mark.parametrize("temperature", [0.4, 3.0])
def test_one_whole_step_is_exact(temperature, kind):
    """Whatever the family of the prior; a point's width is one."""
    known = world(temperature=temperature, correlated=kind == "full")
    prior = {
        "full": known.full_prior,
        "mean-field": known.mean_field_prior,
        "delta": Prior(Delta(weights(known.mean))),
    }[kind]
    covariance = np.eye(3) if kind == "delta" else known.covariance
    q = exact(known.likelihood, prior, known.all_data)
    close(moments(q), known.posterior(known.all_data, known.mean, covariance), 1e-9)


@pytest.mark.parametrize("temperature", [0.4, 3.0])
def test_sequential_and_joint_inference_agree(temperature):
    known = world(temperature=temperature)
    q1 = exact(known.likelihood, known.full_prior, known.episode.support)
    q2 = exact(known.likelihood, Prior(FULL.as_prior(q1, known.full_prior.dist)), known.episode.query)
    close(q2, exact(known.likelihood, known.full_prior, known.all_data), 1e-9)


def test_a_constant_effective_size_breaks_the_agreement():
    known = world()
    at = lambda source: known.likelihood._replace(temperature=source.x.shape[0] / 5.0)
    support, query = known.episode
    q1 = exact(at(support), known.full_prior, support)
    q2 = exact(at(query), Prior(q1), query)
    joint = exact(at(known.all_data), known.full_prior, known.all_data)
    assert np.abs(flat(q2.mean) - flat(joint.mean)).max() > 0.01


def test_damped_steps_contract_by_one_minus_the_rate():
    known = world()
    q = adapted(laplace(known.likelihood, FULL, rate=0.5), FULL, known.full_prior, known.all_data, 3)
    mean = known.posterior(known.all_data)[0]
    close(flat(q.mean) - mean, 0.5**3 * (known.mean - mean), 1e-9)


@pytest.mark.parametrize("kind", ["full", "mean-field"])
def test_mean_field_takes_the_diagonal_of_the_precision(kind):
    known = world(temperature=2.0, correlated=kind == "full")
    prior = known.full_prior if kind == "full" else known.mean_field_prior
    q = adapted(laplace(known.likelihood, MEAN_FIELD, rate=0.3), MEAN_FIELD, prior, known.all_data, 300)
    mean, covariance = known.posterior(known.all_data)
    close(np.exp(-2 * flat(q.log_std)), np.diag(np.linalg.inv(covariance)), 1e-9)
    close(flat(q.mean), mean, 1e-8)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("family", [FULL, MEAN_FIELD], ids=lambda f: f.name)
def test_without_data_it_returns_the_prior(family, steps):
    known = world()
    prior = known.full_prior if family is FULL else known.mean_field_prior
    q = adapted(laplace(known.likelihood, family), family, prior, silent_data(0, 3), steps)
    close(q, prior.dist, 1e-13)


def test_it_stops_at_the_mode_of_a_network():
    net = network()
    likelihood = likelihoods.gaussian(net.apply, noise_std=0.5)
    prior = Prior(FULL.init(KEY, net.params, 0.7))
    q = adapted(laplace(likelihood, FULL), FULL, prior, net.episode.support, 200)
    log_joint = lambda p: (
        likelihood.log_prob(p, net.episode.support) - jnp.square(flat(p) - flat(net.params)).sum() / 2 / 0.49
    )
    assert np.abs(flat(jax.jit(jax.grad(log_joint))(q.mean))).max() < 1e-8
    curvature = jax.jit(lambda p: ggn_dense(likelihood, p, net.episode.support))(q.mean)
    precision = 6 * curvature + np.eye(13) / 0.49
    close(moments(q)[1] @ precision, np.eye(13), 1e-9)


@pytest.mark.parametrize("rate", [0.6, 0.75])
def test_check_knows_where_diagonal_steps_diverge(rate):
    """Three inputs that are nearly one: steps weight by weight contract below a rate of 2/3; whole steps always do."""
    data, likelihood = collinear(), likelihoods.gaussian(predict, noise_std=0.1)
    prior = Prior(MEAN_FIELD.init(KEY, weights(np.zeros(3)), 1.0))
    inference = laplace(likelihood, MEAN_FIELD, rate=rate)
    gap = lambda steps: np.linalg.norm(
        flat(adapted(inference, MEAN_FIELD, prior, data, steps + 1).mean)
        - flat(adapted(inference, MEAN_FIELD, prior, data, steps).mean)
    )
    assert (gap(40) < gap(20)) == (rate < 2 / 3)  # the check tells the truth
    assert (words(inference, prior, data) == "") == (rate < 2 / 3)
    assert words(laplace(likelihood, FULL, rate=rate), prior, data) == ""


def test_a_likelihood_that_curves_downwards_is_reported():
    """Beside a learned noise the loss is not convex in the outputs: far from the data there is no Gaussian."""
    net = network()
    likelihood = likelihoods.gaussian_learned_noise(net.apply)
    params = WithNoise(net.params, jnp.asarray(-2.0))
    dense, diagonal = laplace(likelihood, FULL), laplace(likelihood, MEAN_FIELD)
    assert "no Gaussian there" in words(dense, Prior(FULL.init(KEY, params, 1.0)), net.episode.support)
    q = adapted(diagonal, MEAN_FIELD, Prior(MEAN_FIELD.init(KEY, params, 1.0)), net.episode.support, 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(q))


# The determinant of the evidence: over outputs (dual) and over weights (primal)

NET = network(sizes=(1, 3, 2))
REGRESSION = likelihoods.gaussian(NET.apply, noise_std=0.4, temperature=2.0)
CLASSES = likelihoods.categorical(NET.apply, temperature=0.3)
BATCHES = {
    "regression": (REGRESSION, NET.episode.query),
    "classification": (CLASSES, NET.episode.query._replace(y=jnp.asarray([0, 1, 1, 0, 1]))),
}


def priors(params):
    size, rng = flat(params).size, np.random.default_rng(0)
    unravel = ravel_pytree(params)[1]
    log_std = np.linspace(-1, 1, size)
    root = np.eye(size) + 0.3 * np.tril(rng.normal(size=(size, size)), -1)
    return {
        "delta": (Delta(params), np.eye(size)),
        "mean-field": (MeanField(params, unravel(jnp.asarray(log_std))), np.diag(np.exp(2 * log_std))),
        "full": (families.from_covariance(params, jnp.asarray(root @ root.T)), root @ root.T),
    }


@pytest.mark.parametrize("kind", ["delta", "mean-field", "full"])
@pytest.mark.parametrize(("likelihood", "batch"), BATCHES.values(), ids=BATCHES.keys())
def test_the_small_determinant_is_the_large_one(likelihood, batch, kind):
    """−½[log det(N_eff G + Λ) − log det Λ], with the W×W matrices built."""
    prior, covariance = priors(NET.params)[kind]
    curvature = likelihood.effective_size(batch) * np.asarray(
        jax.jit(lambda p: ggn_dense(likelihood, p, batch))(NET.params)
    )
    precision = np.linalg.inv(covariance)
    primal = -0.5 * (np.linalg.slogdet(curvature + precision)[1] - np.linalg.slogdet(precision)[1])
    close(jax.jit(lambda p: log_evidence_correction(likelihood, NET.params, p, batch))(prior), primal, 1e-9)


def test_laplace_evidence_is_exact_in_a_linear_world():
    """It is log p(D) = log p(D|θ*) − ½(θ*−μ)ᵀΛ(θ*−μ) + the correction."""
    known = world()
    mean, _ = known.posterior(known.all_data)
    deviation = np.asarray(mean) - known.mean
    correction = jax.jit(lambda p: log_evidence_correction(known.likelihood, weights(mean), p, known.all_data))
    evidence = (
        known.likelihood.log_prob(weights(mean), known.all_data)
        - 0.5 * deviation @ np.linalg.solve(known.covariance, deviation)
        + correction(known.full_prior.dist)
    )
    expected = known.log_evidence(jnp.asarray(known.mean), jnp.asarray(known.covariance), known.all_data)
    close(evidence, expected, 1e-9)


def test_no_points_have_no_occam_factor():
    known = world()
    correction = jax.jit(lambda p: log_evidence_correction(known.likelihood, p.mean, p, silent_data(0, 3)))
    assert correction(known.full_prior.dist) == 0


@pytest.mark.parametrize("rate", [0.0, 2.0, -0.5, float("nan")])
def test_bad_rates_are_refused(rate):
    with pytest.raises(ValueError, match=r"rate in \(0, 2\)"):
        laplace(world().likelihood, FULL, rate=rate)
