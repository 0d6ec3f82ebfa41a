"""Natural-gradient steps in precision space: exact where a step can be, positive everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import KEY, adapted, close, collinear, flat, network, predict, weights, words, world

from metaprior import families, likelihoods
from metaprior.families import Delta, MeanField
from metaprior.inference import infer, natural_vi, trajectory
from metaprior.types import Prior

FAMILY = families.mean_field()
ORTHOGONAL = world(correlated=False, orthogonal=True, temperature=2.0, shots=6, queries=5)


@pytest.mark.parametrize("num_samples", [0, 3])
def test_one_whole_step_is_exact_in_an_orthogonal_world(num_samples):
    """β = 1: the precision is exact with any draws (curvature is constant); the mean too, taken at the mean."""
    data = ORTHOGONAL.episode.support
    inference = natural_vi(ORTHOGONAL.likelihood, FAMILY, rate=1.0, num_samples=num_samples)
    q = adapted(inference, FAMILY, ORTHOGONAL.mean_field_prior, data, 1)
    mean, covariance = ORTHOGONAL.posterior(data)
    close(np.asarray(covariance), np.diag(np.diag(covariance)), 1e-12)  # the world is what it says
    close(2 * flat(q.log_std), np.log(np.diag(covariance)), 1e-11)
    if num_samples == 0:
        close(flat(q.mean), mean, 1e-11)
        again = adapted(inference, FAMILY, ORTHOGONAL.mean_field_prior, data, 3)
        close(again, q, 1e-11)


def test_sequential_and_joint_agree_in_an_orthogonal_world():
    inference = natural_vi(ORTHOGONAL.likelihood, FAMILY, rate=1.0, num_samples=0)
    support, query = ORTHOGONAL.episode
    prior = ORTHOGONAL.mean_field_prior
    q1 = adapted(inference, FAMILY, prior, support, 1)
    q2 = adapted(inference, FAMILY, Prior(FAMILY.as_prior(q1, prior.dist)), query, 1)
    close(q2, adapted(inference, FAMILY, prior, ORTHOGONAL.all_data, 1), 1e-10)


def test_steps_are_those_by_hand():
    """Correlated inputs, β < 1: the update of the docstring in NumPy."""
    known, beta = world(correlated=False, temperature=0.5), 0.3
    data = known.episode.support
    x, y = np.asarray(data.x), np.asarray(data.y)[:, 0]
    prior_precision = 1 / np.diag(known.covariance)
    mean, precision = known.mean, prior_precision
    for _ in range(4):
        pull = x.T @ (x @ mean - y) / (0.5 * known.noise_std**2) + prior_precision * (mean - known.mean)
        h = np.square(x).sum(axis=0) / (0.5 * known.noise_std**2)
        precision = (1 - beta) * precision + beta * (h + prior_precision)
        mean = mean - beta * pull / precision
    q = adapted(natural_vi(known.likelihood, FAMILY, rate=beta, num_samples=0), FAMILY, known.mean_field_prior, data, 4)
    close(flat(q.mean), mean, 1e-12)
    close(np.exp(-2 * flat(q.log_std)), precision, 1e-12)


def test_it_converges_to_the_best_factorised_gaussian():
    """Exact mean, precision the diagonal of the exact precision; from one draw per step on average too."""
    known = world(correlated=False)
    mean, covariance = known.posterior(known.all_data)
    q = adapted(
        natural_vi(known.likelihood, FAMILY, rate=0.2, num_samples=0),
        FAMILY,
        known.mean_field_prior,
        known.all_data,
        400,
    )
    close(flat(q.mean), mean, 1e-9)
    close(np.exp(-2 * flat(q.log_std)), np.diag(np.linalg.inv(covariance)), 1e-9)


def test_mini_batches_and_draws_are_unbiased():
    """One step from the prior: precision and mean average to those of all points, at the mean."""
    known = world(correlated=False, shots=6)
    data, prior = known.episode.support, known.mean_field_prior
    noisy = natural_vi(known.likelihood, FAMILY, rate=0.1, num_samples=2, batch_size=3)
    one = lambda key: noisy.step(key, noisy.init(key, prior, prior.dist, data, ()), prior, data).precision
    draws = np.asarray(jax.vmap(flat)(jax.jit(jax.vmap(one))(jax.random.split(KEY, 2000))))
    exact = adapted(natural_vi(known.likelihood, FAMILY, rate=0.1, num_samples=0), FAMILY, prior, data, 1)
    expected = np.exp(-2 * flat(exact.log_std))
    assert (np.abs(draws.mean(axis=0) - expected) < 4 * draws.std(axis=0) / np.sqrt(2000)).all()


def test_precisions_stay_positive_and_never_below_the_priors():
    """200 steps of a network from one draw each; the loss falls."""
    net = network()
    likelihood = likelihoods.gaussian(net.apply, noise_std=0.1, temperature=0.1)
    prior = Prior(FAMILY.init(KEY, net.params, 0.3))
    path = jax.jit(
        lambda key: trajectory(natural_vi(likelihood, FAMILY), key, prior, prior.dist, net.episode.support, 200)
    )(KEY)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(path))
    assert max(float(leaf.max()) for leaf in jax.tree.leaves(path.log_std)) <= np.log(0.3) + 1e-12
    fit = jax.jit(jax.vmap(lambda mean: likelihood.log_prob(mean, net.episode.support)))(path.mean)
    assert fit[-1] > fit[0]


def test_classification_keeps_precisions_positive():
    """The curvature of cross-entropy is positive semi-definite, so no β can make a precision negative."""
    net = network(sizes=(1, 3, 2))
    likelihood = likelihoods.categorical(net.apply)
    data = net.episode.support._replace(y=jnp.asarray([0, 1, 1, 0, 1, 0]))
    prior = Prior(FAMILY.init(KEY, net.params, 0.5))
    q = jax.jit(lambda key: infer(natural_vi(likelihood, FAMILY, rate=1.0), key, prior, prior.dist, data, 20)[0])(KEY)
    assert max(float(leaf.max()) for leaf in jax.tree.leaves(q.log_std)) <= np.log(0.5) + 1e-12
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(q))


def test_a_probe_is_exact_where_there_is_one_output():
    """One point of one output: a sign squared is one, so the curvature is not estimated at all."""
    known = world(correlated=False, shots=1)
    data, prior = known.episode.support, known.mean_field_prior
    by_probe, exact = (
        adapted(
            natural_vi(known.likelihood, FAMILY, rate=0.5, num_samples=0, num_probes=probes), FAMILY, prior, data, 3
        )
        for probes in (1, None)
    )
    close(flat(by_probe.mean), flat(exact.mean), 1e-5)
    close(flat(by_probe.log_std), flat(exact.log_std), 1e-5)


@pytest.mark.parametrize("share", [0.98, 1.02])
def test_check_knows_where_weights_that_pull_together_diverge(share):
    """β·λmax(D⁻¹P) = 2, with P the exact precision and D its diagonal: below 1 in β for correlated inputs."""
    data, likelihood = collinear(), likelihoods.gaussian(predict, noise_std=0.1)
    prior = Prior(FAMILY.init(KEY, weights(np.zeros(3)), 0.5))
    precision = np.asarray(data.x.T @ data.x) / 0.1**2 + np.eye(3) / 0.5**2
    root = np.sqrt(np.diag(precision))
    beta = share * 2 / np.linalg.eigvalsh(precision / np.outer(root, root))[-1]
    assert beta < 1
    inference = natural_vi(likelihood, FAMILY, rate=beta, num_samples=0)
    path = jax.jit(lambda key: trajectory(inference, key, prior, prior.dist, data, 201))(KEY)
    moved = np.linalg.norm(np.diff(np.asarray(jax.vmap(flat)(path.mean)), axis=0), axis=1)
    assert (moved[200] < moved[100]) == (share < 1)  # the check tells the truth
    said = words(inference, prior, data)
    assert (said == "") == (share < 1)
    if said:
        assert "inner steps would diverge" in said and f"reaches {2 * share:.3g}" in said


def test_bad_arguments_are_refused():
    for rate in (0.0, 1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"rate β in \(0, 1\]"):
            natural_vi(ORTHOGONAL.likelihood, FAMILY, rate=rate)
    with pytest.raises(ValueError, match="cannot be negative, got num_samples=-1"):
        natural_vi(ORTHOGONAL.likelihood, FAMILY, num_samples=-1)
    with pytest.raises(ValueError, match="at least one probe, got num_probes=0: None takes it exactly"):
        natural_vi(ORTHOGONAL.likelihood, FAMILY, num_probes=0)


def test_only_a_factorised_prior_will_do():
    inference = natural_vi(ORTHOGONAL.likelihood, FAMILY)
    assert inference.check(ORTHOGONAL.mean_field_prior, ORTHOGONAL.all_data) is None
    point = Prior(Delta(weights(np.zeros(3))))
    assert "needs a mean-field prior" in words(inference, point, ORTHOGONAL.all_data)
    assert isinstance(ORTHOGONAL.mean_field_prior.dist, MeanField)
