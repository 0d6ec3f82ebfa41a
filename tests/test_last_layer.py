"""A conjugate last layer: the posterior of the head is exact, so the Gradient-EM gradient is the gradient of the evidence."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from worlds import KEY, close, stats

from metaprior import likelihoods, matrix
from metaprior.families import Full, cholesky
from metaprior.inference import conjugate
from metaprior.last_layer import HeadParams, LastLayer, last_layer
from metaprior.tasks.linear import exact_posterior, log_evidence
from metaprior.types import Data, Episode, Prior

FAMILY, NOISE, SIZE, OUTPUTS = last_layer(), 0.4, 3, 2


def apply(params, x):
    """Features tanh(x W), then the head."""
    return jnp.tanh(x @ params.features["w"]) @ params.head


def setting(temperature=1.0, seed=0):
    """A likelihood, a prior with correlated heads, and an episode of 5 + 4 points with two outputs."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))
    likelihood = likelihoods.gaussian(apply, noise_std=NOISE, temperature=temperature)
    prior = Prior(LastLayer({"w": normal(2, SIZE)}, normal(SIZE, OUTPUTS), jnp.tril(0.5 * normal(SIZE, SIZE))))
    episode = Episode(Data(normal(5, 2), normal(5, OUTPUTS)), Data(normal(4, 2), normal(4, OUTPUTS)))
    return likelihood, prior, episode


def adapted(likelihood, prior, source, steps=1):
    return worlds.adapted(conjugate(likelihood, FAMILY, noise_std=NOISE), FAMILY, prior, source, steps)


def covariance(dist):
    lower = cholesky(Full(dist.mean, dist.tril))
    return lower @ lower.T


def features(dist, data):
    return jnp.tanh(data.x @ dist.features["w"])


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_the_posterior_is_exact(temperature):
    likelihood, prior, (support, _) = setting(temperature)
    q = adapted(likelihood, prior, support)
    phi, weight = np.asarray(features(prior.dist, support)), 1 / (temperature * NOISE**2)
    precision = np.linalg.inv(covariance(prior.dist))
    expected = np.linalg.inv(precision + weight * phi.T @ phi)
    close(covariance(q), expected)
    close(q.mean, expected @ (precision @ np.asarray(prior.dist.mean) + weight * phi.T @ np.asarray(support.y)))
    close(q.features, prior.dist.features, 0)
    # and as the linear world has it, output by output
    for column in range(OUTPUTS):
        known = exact_posterior(
            prior.dist.mean[:, column],
            covariance(prior.dist),
            jnp.asarray(phi),
            support.y[:, column],
            NOISE,
            temperature,
        )
        close((q.mean[:, column], covariance(q)), known)


def test_the_posterior_is_a_mode_and_a_curvature():
    """By brute force: the gradient of the log joint vanishes at its mean, and its Hessian is minus the precision."""
    likelihood, prior, (support, _) = setting(2.0)
    q, p = adapted(likelihood, prior, support), prior.dist

    def log_joint(head):
        white = jax.scipy.linalg.solve_triangular(cholesky(Full(p.mean, p.tril)), head - p.mean, lower=True)
        return likelihood.log_prob(HeadParams(p.features, head), support) / 2.0 - 0.5 * jnp.square(white).sum()

    slope, hessian = jax.jit(lambda head: (jax.grad(log_joint)(head), jax.hessian(log_joint)(head)))(q.mean)
    close(slope, jnp.zeros_like(q.mean), 1e-9)
    close(-hessian[:, 0, :, 0], np.linalg.inv(covariance(q)), 1e-9)
    close(hessian[:, 0, :, 1], np.zeros((SIZE, SIZE)), 1e-9)  # outputs do not talk to each other


def test_more_steps_change_nothing_and_no_data_leave_the_prior():
    likelihood, prior, (support, _) = setting()
    close(adapted(likelihood, prior, support, 3), adapted(likelihood, prior, support, 1), 0)
    close(adapted(likelihood, prior, Data(support.x[:0], support.y[:0])), prior.dist, 0)


def sequential(likelihood_of, prior, episode):
    q1 = adapted(likelihood_of(episode.support), prior, episode.support)
    return adapted(likelihood_of(episode.query), prior._replace(dist=FAMILY.as_prior(q1, prior.dist)), episode.query)


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_sequential_and_joint_inference_agree(temperature):
    likelihood, prior, episode = setting(temperature)
    joint = adapted(likelihood, prior, likelihood.join(*episode))
    close(sequential(lambda _: likelihood, prior, episode), joint, 1e-9)


def test_a_constant_effective_size_breaks_the_agreement():
    likelihood, prior, episode = setting()
    at = lambda source: likelihood._replace(temperature=source.x.shape[0] / 5.0)
    whole = likelihood.join(*episode)
    difference = sequential(at, prior, episode).mean - adapted(at(whole), prior, whole).mean
    assert np.abs(difference).max() > 0.01


def test_expected_log_prob_is_exact():
    """Σ over points and outputs of log N(y | φm, s²) − φSφᵀ/2s², and the average of draws."""
    likelihood, prior, (support, query) = setting()
    q = adapted(likelihood, prior, support)
    phi = np.asarray(features(q, query))
    spread = OUTPUTS * np.einsum("ni,ij,nj->", phi, covariance(q), phi) / (2 * NOISE**2)
    expected = stats.norm(phi @ np.asarray(q.mean), NOISE).logpdf(np.asarray(query.y)).sum() - spread
    exact = FAMILY.expected_log_prob(KEY, likelihood, q, query)
    close(exact, expected)
    log_prob = jax.jit(jax.vmap(lambda params: likelihood.log_prob(params, query)))
    draws = log_prob(FAMILY.samples(KEY, q, 20_000))
    assert abs(draws.mean() - exact) < 4 * draws.std() / np.sqrt(20_000)


def test_kl_is_that_of_the_whole_head():
    """One Gaussian over all F·O weights of the head, its covariance block-diagonal."""
    _, prior, _ = setting(seed=1)
    _, other, _ = setting(seed=2)
    q, p = prior.dist, other.dist
    S, P = (np.kron(np.asarray(covariance(d)), np.eye(OUTPUTS)) for d in (q, p))
    difference = np.asarray(q.mean - p.mean).ravel()
    expected = 0.5 * (
        np.trace(np.linalg.solve(P, S)) + difference @ np.linalg.solve(P, difference) - SIZE * OUTPUTS
        + np.linalg.slogdet(P)[1] - np.linalg.slogdet(S)[1]
    )  # fmt: skip
    close(FAMILY.kl(q, p), expected)
    close(FAMILY.kl(q, q), 0.0)


def test_samples_have_the_moments():
    _, prior, _ = setting()
    number = 20_000
    draws = FAMILY.samples(KEY, prior.dist, number)
    heads = np.asarray(draws.head)
    std = np.sqrt(np.diag(covariance(prior.dist)))[:, None]
    assert (np.abs(heads.mean(axis=0) - prior.dist.mean) < 4 * std / np.sqrt(number)).all()
    S = np.kron(np.asarray(covariance(prior.dist)), np.eye(OUTPUTS))
    error = np.sqrt((np.outer(np.diag(S), np.diag(S)) + S**2) / number)
    assert (np.abs(np.cov(heads.reshape(number, -1).T) - S) < 4 * error).all()
    close(draws.features["w"][7], prior.dist.features["w"], 0)


# Gradient-EM is exact here, in the head's prior and in the weights of the features


def exact_evidence(dist, data, temperature):
    """The exact log p(data; Θ) of all outputs, the features read from Θ."""
    phi, S = features(dist, data), covariance(dist)
    noise = NOISE * temperature**0.5
    return sum(log_evidence(dist.mean[:, o], S, phi, data.y[:, o], noise) for o in range(OUTPUTS))


EXACT = {
    "joint": lambda dist, episode, whole, T: exact_evidence(dist, whole, T),
    "difference": lambda dist, episode, whole, T: (
        exact_evidence(dist, whole, T) - exact_evidence(dist, episode.support, T)
    ),
}


EXACT["conditional"] = EXACT["difference"]  # log p(D_val | D_tr) either way
CELLS = [
    ("joint", "sequential", 1.0),
    ("conditional", "sequential", 1.0),
    ("difference", "sequential", 1.0),
    ("difference", "joint-from-prior", 3.0),
]
every_cell = pytest.mark.parametrize(("column", "second_stage", "temperature"), CELLS)


@cache
def gem_and_exact(column, second_stage, temperature):
    """Value and gradient in Θ, by Gradient-EM and of the exact evidence."""
    likelihood, prior, episode = setting(temperature)
    inference = conjugate(likelihood, FAMILY, noise_std=NOISE)
    cell = matrix.Cell(likelihood, FAMILY, inference, "gem", column, second_stage, (1, 1))
    score = lambda dist: matrix.score(cell, KEY, prior._replace(dist=dist), episode)[0]
    exact = lambda dist: EXACT[column](dist, episode, likelihood.join(*episode), temperature)
    return jax.jit(lambda dist: (jax.value_and_grad(score)(dist), jax.value_and_grad(exact)(dist)))(prior.dist)


@every_cell
def test_gem_is_the_gradient_of_the_evidence_in_the_head(column, second_stage, temperature):
    (value, slope), (expected, expected_slope) = gem_and_exact(column, second_stage, temperature)
    if temperature == 1:
        close(value, expected, 1e-9)  # the bound is tight
    close(slope.mean, expected_slope.mean, 1e-9)
    close(jnp.tril(slope.tril), jnp.tril(expected_slope.tril), 1e-9)


@every_cell
def test_gem_is_the_gradient_of_the_evidence_in_the_features(column, second_stage, temperature):
    """The weights of the features are Θ too: they are reached through E_q log p(D | θ, w) at fixed q."""
    (_, slope), (_, expected) = gem_and_exact(column, second_stage, temperature)
    close(slope.features, expected.features, 1e-9)


@pytest.mark.parametrize("column", ["joint", "conditional", "difference"])
def test_gem_is_exact_where_batches_are_normalised_apart(column):
    """As support and query are when a task is solved: normalised together, the support would be another one than q1 has seen."""

    def normalised(weights, x):
        h = x @ weights["w"]
        return jnp.tanh((h - h.mean(0, keepdims=True)) / h.std(0, keepdims=True))

    likelihood, prior, episode = setting()
    outputs = lambda params, batch: normalised(params.features, batch.x) @ params.head
    likelihood = likelihood._replace(outputs=outputs, normalised=True)
    inference = conjugate(likelihood, FAMILY, noise_std=NOISE)
    cell = matrix.Cell(likelihood, FAMILY, inference, "gem", column, "sequential", (1, 1))
    score = lambda dist: matrix.score(cell, KEY, prior._replace(dist=dist), episode)[0]

    def evidence(dist, *parts):
        phi = jnp.concatenate([normalised(dist.features, part.x) for part in parts])
        y = jnp.concatenate([part.y for part in parts])
        return sum(log_evidence(dist.mean[:, o], covariance(dist), phi, y[:, o], NOISE) for o in range(OUTPUTS))

    def exact(dist):
        return evidence(dist, *episode) - (0.0 if column == "joint" else evidence(dist, episode.support))

    both = jax.jit(lambda dist: (jax.value_and_grad(score)(dist), jax.value_and_grad(exact)(dist)))
    (value, slope), (expected, expected_slope) = both(prior.dist)
    close(value, expected, 1e-9)
    close(slope._replace(tril=jnp.tril(slope.tril)), expected_slope._replace(tril=jnp.tril(expected_slope.tril)), 1e-9)


def test_bad_arguments_are_refused():
    likelihood, prior, _ = setting()
    params = HeadParams(prior.dist.features, prior.dist.mean)
    with pytest.raises(ValueError, match="width of a prior must be above zero and finite, got 0"):
        FAMILY.init(KEY, params, 0.0)
    with pytest.raises(ValueError, match="noise std must be above zero and finite, got 0"):
        conjugate(likelihood, FAMILY, noise_std=0.0)


def test_a_noise_that_is_not_the_likelihoods_is_reported():
    """The head would be inferred under one noise and judged under another."""
    likelihood, prior, (support, _) = setting()
    assert conjugate(likelihood, FAMILY, noise_std=NOISE).check(prior, support) is None
    words = worlds.words(conjugate(likelihood, FAMILY, noise_std=2 * NOISE), prior, support)
    assert "noise_std=0.8" in words and "0.4" in words


def test_init_keeps_the_weights():
    params = HeadParams({"w": jnp.ones((2, SIZE))}, jnp.ones((SIZE, OUTPUTS)))
    prior = FAMILY.init(KEY, params, 0.5)
    close(FAMILY.mean(prior), params, 0)
    close(covariance(prior), 0.25 * np.eye(SIZE), 1e-15)
