"""p(D | θ) against SciPy, and the one meaning of temperature: N_eff = |D| / T."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from worlds import close, predict, stats, weights, world

from metaprior import likelihoods
from metaprior.inference.base import kl_weight, mean_loss
from metaprior.likelihoods import WithNoise
from metaprior.types import Data

RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))
WEIGHT = RNG.normal(size=(3, 2))
DATA = Data(jnp.asarray(X), jnp.asarray(Y))
LABELLED = Data(jnp.asarray(X), jnp.asarray([0, 1, 1, 0, 1, 0]))


def matmul(params, x):
    return x @ params


def test_gaussian_is_the_normal_density():
    likelihood = likelihoods.gaussian(matmul, noise_std=0.3)
    expected = stats.norm(X @ WEIGHT, 0.3).logpdf(Y)
    close(likelihood.log_density(likelihood.outputs(jnp.asarray(WEIGHT), DATA), DATA), expected.sum(axis=1))
    close(likelihood.log_prob(jnp.asarray(WEIGHT), DATA), expected.sum())


def test_default_noise_makes_the_loss_the_squared_error():
    likelihood = likelihoods.gaussian(matmul)
    loss = lambda w: -likelihood.log_prob(jnp.asarray(w), DATA)
    close(loss(WEIGHT) - loss(0 * WEIGHT), np.square(Y - X @ WEIGHT).sum() - np.square(Y).sum())


def test_mean_squared_error_is_temperature_n():
    """The paper's −log P = mean squared error, as the module says it."""
    likelihood = likelihoods.gaussian(predict, temperature=6.0)
    w, data = jnp.asarray(WEIGHT[:, :1]), DATA._replace(y=DATA.y[:, :1])
    tempered = lambda w: -likelihood.effective_size(data) * mean_loss(likelihood, w, data)
    expected = np.square(0 * Y[:, :1] - Y[:, :1]).mean() - np.square(Y[:, :1] - X @ WEIGHT[:, :1]).mean()
    close(tempered(w) - tempered(0 * w), expected)


def test_learned_noise_is_the_normal_density_at_that_noise():
    likelihood = likelihoods.gaussian_learned_noise(matmul)
    params = WithNoise(jnp.asarray(WEIGHT), jnp.asarray(-0.4))
    close(likelihood.log_prob(params, DATA), stats.norm(X @ WEIGHT, np.exp(-0.4)).logpdf(Y).sum())
    assert likelihood.outputs(params, DATA).shape == (6, 3)  # two means and a log noise
    residual = np.square(Y - X @ WEIGHT).sum()
    slope = jax.grad(lambda p: likelihood.log_prob(p, DATA))(params).log_noise
    close(slope, residual * np.exp(0.8) - Y.size)  # d/dlog s of −r²/2s² − n log s


def test_categorical_is_cross_entropy():
    likelihood = likelihoods.categorical(matmul)
    expected = log_softmax(X @ WEIGHT, axis=1)[np.arange(6), np.asarray(LABELLED.y)].sum()
    close(likelihood.log_prob(jnp.asarray(WEIGHT), LABELLED), expected)


def test_categorical_survives_huge_logits():
    likelihood = likelihoods.categorical(matmul)
    assert np.isfinite(likelihood.log_prob(1e4 * jnp.asarray(WEIGHT), LABELLED))


MADE = {
    "gaussian": (likelihoods.gaussian(matmul, noise_std=0.3), jnp.asarray(WEIGHT), DATA),
    "learned noise": (likelihoods.gaussian_learned_noise(matmul), WithNoise(jnp.asarray(WEIGHT), jnp.zeros(())), DATA),
    "categorical": (likelihoods.categorical(matmul), jnp.asarray(WEIGHT), LABELLED),
}
every_likelihood = pytest.mark.parametrize(("likelihood", "params", "data"), MADE.values(), ids=MADE.keys())


@every_likelihood
def test_points_are_independent(likelihood, params, data):
    """Their log p adds over points, whatever their order; no points say nothing; join puts sets together."""
    cut = lambda rows: Data(data.x[rows], data.y[rows])
    first, second, none = cut(slice(0, 2)), cut(slice(2, None)), cut(slice(0, 0))
    whole = likelihood.log_prob(params, data)
    close(likelihood.log_prob(params, first) + likelihood.log_prob(params, second), whole)
    close(likelihood.log_prob(params, cut(jnp.array([3, 0, 5, 1, 4, 2]))), whole)
    close(likelihood.join(first, second), data, 0)
    close(likelihood.join(none, data), data, 0)
    assert likelihood.log_prob(params, none) == 0
    assert (likelihood.size(none), likelihood.size(first), likelihood.size(data)) == (0, 2, 6)


@every_likelihood
def test_data_do_not_depend_on_who_looks(likelihood, params, data):
    assert likelihood.observe(jax.random.key(0), params, data) is data


@given(st.floats(0.01, 100.0), st.integers(1, 6))
def test_effective_size_is_size_over_temperature(temperature, number):
    likelihood = likelihoods.gaussian(matmul, temperature=temperature)
    data = Data(DATA.x[:number], DATA.y[:number])
    np.testing.assert_allclose(likelihood.effective_size(data), number / temperature, rtol=1e-15)
    np.testing.assert_allclose(kl_weight(likelihood, data) * likelihood.effective_size(data), 1.0, rtol=1e-12)
    # N_eff · mean loss is the tempered negative log-likelihood
    tempered = likelihood.effective_size(data) * mean_loss(likelihood, jnp.asarray(WEIGHT), data)
    np.testing.assert_allclose(tempered, -likelihood.log_prob(jnp.asarray(WEIGHT), data) / temperature, rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_sequential_and_joint_posteriors_agree(temperature):
    """Exact posteriors at N_eff = |D|/T: the query after the support is both at once."""
    known = world(temperature=temperature)
    first = known.posterior(known.episode.support)
    close(known.posterior(known.episode.query, *first), known.posterior(known.all_data), 1e-12)


def test_a_constant_effective_size_breaks_the_agreement():
    """N_eff held at 5 whatever the data, T = n / 5: two data sets then count as much as their union."""
    known, num_eff = world(), 5.0
    at = lambda data: known._replace(temperature=data.x.shape[0] / num_eff)
    support, query = known.episode
    first = at(support).posterior(support)
    sequential, joint = at(query).posterior(query, *first), at(known.all_data).posterior(known.all_data)
    assert np.abs(sequential[0] - joint[0]).max() > 0.01
    assert np.abs(sequential[1] - joint[1]).max() > 0.01


def test_conditional_evidence_is_a_difference_of_evidences():
    """It is log p(D_val | D_tr) = log p(D_tr ∪ D_val) − log p(D_tr), in value; and it fails for a constant N_eff."""
    known = world(3)
    prior = jnp.asarray(known.mean), jnp.asarray(known.covariance)

    def both_ways(known, at=lambda known, data: known):
        support, query = known.episode
        first = at(known, support).posterior(support)
        conditional = at(known, query).log_evidence(*first, query)
        whole = at(known, known.all_data).log_evidence(*prior, known.all_data)
        return conditional, whole - at(known, support).log_evidence(*prior, support)

    close(*both_ways(known), 1e-12)
    close(*both_ways(known._replace(temperature=2.5)), 1e-12)
    constant = both_ways(known, lambda known, data: known._replace(temperature=data.x.shape[0] / 5))
    assert abs(constant[0] - constant[1]) > 0.1


def test_evidence_reference_is_the_marginal_normal():
    """The reference itself, against SciPy."""
    known = world(5)
    x, y = np.asarray(known.all_data.x), np.asarray(known.all_data.y)[:, 0]
    covariance = x @ known.covariance @ x.T + known.noise_std**2 * np.eye(len(y))
    expected = stats.multivariate_normal(x @ known.mean, covariance).logpdf(y)
    close(known.log_evidence(jnp.asarray(known.mean), jnp.asarray(known.covariance), known.all_data), expected)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_noise_and_temperature_must_be_positive(value):
    with pytest.raises(ValueError, match="noise std must be above zero"):
        likelihoods.gaussian(matmul, noise_std=value)
    for make in (likelihoods.gaussian, likelihoods.gaussian_learned_noise, likelihoods.categorical):
        with pytest.raises(ValueError, match="temperature must be above zero"):
            make(matmul, temperature=value)


@pytest.mark.parametrize("make", [likelihoods.gaussian, likelihoods.gaussian_learned_noise])
def test_targets_of_another_shape_are_refused(make):
    """Targets [N] beside outputs [N, 1] would broadcast to N² residuals wherever ranks may be promoted."""
    likelihood = make(predict)
    params = weights(np.ones(3))
    params = WithNoise(params, jnp.zeros(())) if make is likelihoods.gaussian_learned_noise else params
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(ValueError, match=r"targets have shape \(6,\) and outputs \(6, 1\)"),
    ):
        likelihood.log_prob(params, DATA._replace(y=DATA.y[:, 0]))
