"""Steps with a rate per weight: by hand, with tied and free rates, and the limit of stability in a quadratic world."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from worlds import KEY, adapted, close, flat, network, silent_data, weights, words, world

from metaprior import families, likelihoods
from metaprior.families import Delta, MeanField
from metaprior.inference import infer, preconditioned
from metaprior.inference.base import mean_loss
from metaprior.inference.preconditioned import weight_rates
from metaprior.types import Data, Prior

DELTA, MEAN_FIELD = families.delta(), families.mean_field()
KNOWN = world(correlated=False)
DATA = KNOWN.episode.support
LOG_STD = np.array([-1.0, -2.0, 0.5])
LOG_RATE = np.array([0.3, -0.7, 1.1])


def prior(log_rate=None):
    dist = MeanField(weights(KNOWN.mean), weights(LOG_STD))
    return Prior(dist, log_rate=None if log_rate is None else weights(log_rate))


def slope(vector):
    """∇ of the mean loss, by hand."""
    x, y = np.asarray(DATA.x), np.asarray(DATA.y)[:, 0]
    return x.T @ (x @ vector - y) / (len(y) * KNOWN.noise_std**2)


def excess(vector):
    """The mean loss above that of perfect answers, by hand."""
    residual = np.asarray(DATA.x) @ vector - np.asarray(DATA.y)[:, 0]
    return (residual**2).mean() / (2 * KNOWN.noise_std**2)


RATES = {
    "tied": ({"tied_to": 0.2}, None, 0.05 * np.exp(2 * LOG_STD) / 0.2**2),
    "free": ({}, LOG_RATE, 0.05 * np.exp(LOG_RATE)),
    "one": ({}, None, np.full(3, 0.05)),
}


@pytest.mark.parametrize(("options", "log_rate", "rates"), RATES.values(), ids=RATES.keys())
def test_steps_are_those_by_hand(options, log_rate, rates):
    start = prior(log_rate)
    q = adapted(preconditioned(KNOWN.likelihood, DELTA, rate=0.05, **options), DELTA, start, DATA, 4)
    expected = KNOWN.mean
    for _ in range(4):
        step = slope(expected)
        share = min(1.0, 4 * excess(expected) / (rates * step**2).sum())
        expected = expected - share * rates * step
    close(flat(q.mean), expected, 1e-12)
    close(flat(weight_rates(start, 0.05, options.get("tied_to"))), rates, 1e-14)


@pytest.mark.parametrize(("edge", "factor"), [(0.5, 0.5), (1.9, -0.9), (2.1, -1.0), (50.0, -1.0)])
def test_a_step_beyond_the_edge_is_cut_to_it(edge, factor):
    """On h·x²/2 a step multiplies x by 1 − R·h; beyond R·h = 2 it is cut so that x changes sign and does not grow."""
    line = likelihoods.gaussian(lambda w, x: x * w["w"][None], noise_std=0.5)  # h = 1/noise² for one point at x = 1
    data = Data(jnp.ones((1, 1)), jnp.zeros((1, 1)))
    dist = MeanField({"w": jnp.array([3.0])}, {"w": jnp.zeros(1)})
    inference = preconditioned(line, DELTA, rate=edge * 0.5**2)
    q, _ = infer(inference, KEY, Prior(dist), Delta(dist.mean), data, 1)
    close(q.mean["w"], factor * dist.mean["w"], 1e-12)


def test_the_rates_of_a_natural_step_are_tied_to_the_width():
    """Δm = −β N_eff σ² ∇loss is the tied step with rate β N_eff σ₀²."""
    beta, sigma0 = 0.01, 0.3
    num_eff = KNOWN.likelihood.effective_size(DATA)
    q = adapted(
        preconditioned(KNOWN.likelihood, DELTA, rate=beta * num_eff * sigma0**2, tied_to=sigma0),
        DELTA,
        prior(),
        DATA,
        1,
    )
    close(flat(q.mean) - KNOWN.mean, -beta * num_eff * np.exp(2 * LOG_STD) * slope(KNOWN.mean), 1e-12)


def test_widths_are_held_and_gradients_taken_at_draws():
    """Mean-field: the gradient is taken at m + σε, so that in a linear world the step is unbiased; s = σ stays."""
    inference = preconditioned(KNOWN.likelihood, MEAN_FIELD, rate=0.05)
    start = prior()
    one = lambda key: infer(inference, key, start, start.dist, DATA, 1)[0]
    draws = jax.jit(jax.vmap(one))(jax.random.split(KEY, 2000))
    close(draws.log_std, jax.tree.map(lambda s: np.broadcast_to(s, (2000, *s.shape)), start.dist.log_std), 0)
    means = np.asarray(jax.vmap(flat)(draws.mean))
    assert (
        np.abs(means.mean(axis=0) - (KNOWN.mean - 0.05 * slope(KNOWN.mean))) < 4 * means.std(axis=0) / np.sqrt(2000)
    ).all()
    hessian = np.asarray(DATA.x.T @ DATA.x) / 5 / KNOWN.noise_std**2
    spread = 0.05**2 * hessian @ np.diag(np.exp(2 * LOG_STD)) @ hessian
    np.testing.assert_allclose(np.cov(means.T), spread, atol=0.15 * np.abs(spread).max())


def test_the_second_stage_keeps_the_rates():
    """A point as tomorrow's prior keeps the widths, and with them the tied rates."""
    inference = preconditioned(KNOWN.likelihood, DELTA, rate=0.05, tied_to=0.2)
    q1 = Delta(weights(KNOWN.mean + 1))
    second = prior()._replace(dist=DELTA.as_prior(q1, prior().dist))
    state = inference.init(KEY, second, q1, DATA, ())
    close(flat(state.rates), RATES["tied"][2], 1e-14)


@pytest.mark.parametrize("first_order", [False, True])
def test_derivatives_reach_the_rates(first_order):
    """After one step d m/d log α is −α∇loss, first order or not; d m/dμ is the identity only at first order."""
    inference = preconditioned(KNOWN.likelihood, DELTA, rate=0.05, first_order=first_order)

    def end(mean, log_rate):
        start = prior(LOG_RATE)._replace(dist=MeanField(weights(mean), weights(LOG_STD)), log_rate=weights(log_rate))
        return flat(infer(inference, KEY, start, Delta(weights(mean)), DATA, 1)[0].mean)

    by_mean, by_rate = jax.jit(jax.jacobian(end, (0, 1)))(jnp.asarray(KNOWN.mean), jnp.asarray(LOG_RATE))
    rates, hessian = 0.05 * np.exp(LOG_RATE), np.asarray(DATA.x.T @ DATA.x) / 5 / KNOWN.noise_std**2
    close(by_rate, -np.diag(rates * slope(KNOWN.mean)), 1e-12)
    close(by_mean, np.eye(3) - (0.0 if first_order else 1.0) * rates[:, None] * hessian, 1e-12)


# Stability: in a quadratic world steps contract exactly below rate · λmax = 2


def sharpest(rates):
    """λmax of R^½ H R^½."""
    hessian = np.asarray(DATA.x.T @ DATA.x) / 5 / KNOWN.noise_std**2
    return np.linalg.eigvalsh(np.sqrt(np.outer(rates, rates)) * hessian)[-1]


@pytest.mark.parametrize("log_rate", [None, LOG_RATE], ids=["one", "free"])
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_check_knows_the_limit(log_rate, share):
    relative = np.ones(3) if log_rate is None else np.exp(log_rate)
    rate = share * 2 / sharpest(relative)
    inference = preconditioned(KNOWN.likelihood, DELTA, rate=rate)
    said = words(inference, prior(log_rate), DATA)
    assert (said == "") == (share < 1)
    path = lambda steps: flat(adapted(inference, DELTA, prior(log_rate), DATA, steps).mean)
    moved = [np.linalg.norm(path(steps + 1) - path(steps)) for steps in (300, 400)]
    assert (moved[1] < moved[0]) == (share < 1)  # the check tells the truth
    if said:
        assert f"reaches {2 * share:.3g} on a first task" in said and "below 2" in said
        assert f"by a factor of {2 * share:.3g}" in said


def test_check_sees_the_network_through_its_widths():
    """Tied rates scale the curvature: a prior wide in one weight is refused, the same rate on a narrow one is not."""
    net = network()
    likelihood = likelihoods.gaussian(net.apply)
    at = lambda log_std: Prior(MeanField(net.params, jax.tree.map(lambda m: jnp.full_like(m, log_std), net.params)))
    inference = preconditioned(likelihood, DELTA, rate=0.01, tied_to=0.1)
    loss = lambda v: mean_loss(likelihood, unflatten(net.params, v), net.episode.support)
    hessian = jax.jit(jax.hessian(loss))(flat(net.params))
    largest = np.abs(np.linalg.eigvalsh(hessian)).max()
    limit = 0.5 * np.log(2 / (0.01 * largest)) + np.log(0.1)
    assert inference.check(at(limit - 0.05), net.episode.support) is None
    assert "inner steps would diverge" in words(inference, at(limit + 0.05), net.episode.support)


def unflatten(like, vector):
    return ravel_pytree(like)[1](vector)


def test_no_data_cannot_diverge():
    assert preconditioned(KNOWN.likelihood, DELTA, rate=1e6).check(prior(), silent_data(0, 3)) is None


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="inner rate must be above zero and finite, got 0"):
        preconditioned(KNOWN.likelihood, DELTA, rate=0.0)
    with pytest.raises(ValueError, match="width to which rates are tied must be above zero and finite, got 0"):
        preconditioned(KNOWN.likelihood, DELTA, tied_to=0.0)
    inference = preconditioned(KNOWN.likelihood, DELTA, tied_to=0.1)
    with pytest.raises(ValueError, match="tied to widths need a mean-field prior"):
        inference.init(KEY, Prior(Delta(weights(KNOWN.mean))), Delta(weights(KNOWN.mean)), DATA, ())
