"""The posterior predictive against exact Bayesian linear regression, and calibration against a known truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from metaprior import predict
from metaprior.calibration import calibrate
from metaprior.families import Delta, MeanField, delta, from_covariance, full, mean_field
from metaprior.last_layer import LastLayer
from metaprior.predict import Calibration
from metaprior.tasks.linear import exact_posterior
from metaprior.types import Data, Prior

NOISE, WIDTH = 0.3, 2.0
X = jnp.linspace(-2.0, 3.0, 6)[:, None]
SUPPORT = Data(X, jnp.sin(X))
ASKED = jnp.linspace(-3.0, 4.0, 9)[:, None]
PRIOR = MeanField({"w": jnp.array([0.2, -0.4, 0.1])}, {"w": jnp.log(jnp.array([1.0, 0.5, 0.2]))})


def features(x):
    return jnp.concatenate([jnp.ones_like(x), x, x**2], axis=1)


def linear(params, x):
    return features(x) @ params["w"][:, None]


def exact(width=1.0, noise=NOISE):
    """Mean and covariance of the weights, and mean and std of y at the asked inputs."""
    covariance = jnp.diag(width**2 * jnp.exp(2 * PRIOR.log_std["w"]))
    mean, covariance = exact_posterior(PRIOR.mean["w"], covariance, features(X), SUPPORT.y, noise)
    phi = features(ASKED)
    variance = jnp.einsum("nf,fg,ng->n", phi, covariance, phi)
    return mean, covariance, phi @ mean, jnp.sqrt(variance + noise**2)


def calibration(width=1.0, noise=NOISE):
    return Calibration(jnp.log(width), jnp.log(noise))


@pytest.mark.parametrize("num_functions", [0, 4])
@pytest.mark.parametrize("width", [1.0, WIDTH])
def test_linearised_point_is_exact_regression(width, num_functions):
    mean, _, y, std = exact(width)
    predictor = predict.linearised(linear, delta(), condition=True, num_functions=num_functions)
    q = Delta({"w": mean})
    parts = predictor.prepare(jax.random.key(0), Prior(PRIOR), q, SUPPORT, ASKED)
    got_mean, got_std = predictor.finish(parts, calibration(width)).moments()
    np.testing.assert_allclose(got_mean[:, 0], y, atol=1e-10)
    np.testing.assert_allclose(got_std[:, 0], std, atol=1e-8)


def test_linearised_prior_predictive_without_support():
    predictor = predict.linearised(linear, delta(), condition=True)
    nothing = Data(X[:0], X[:0])
    parts = predictor.prepare(jax.random.key(0), Prior(PRIOR), Delta(PRIOR.mean), nothing, ASKED)
    _, std = predictor.finish(parts, calibration()).moments()
    variance = (features(ASKED) ** 2) @ jnp.exp(2 * PRIOR.log_std["w"]) + NOISE**2
    np.testing.assert_allclose(std[:, 0] ** 2, variance, atol=1e-10)


def test_linearised_gaussian_and_exact_head_agree_with_regression():
    mean, covariance, y, std = exact()
    q = from_covariance({"w": mean}, covariance)
    tangent = predict.linearised(linear, full(), condition=False)
    head = predict.exact(lambda params, x: features(x) @ params.head)
    of_head = LastLayer({}, mean[:, None], q.tril)
    for predictor, posterior in ((tangent, q), (head, of_head)):
        parts = predictor.prepare(jax.random.key(0), Prior(PRIOR), posterior, SUPPORT, ASKED)
        got = predictor.finish(parts, calibration())
        np.testing.assert_allclose(got.moments()[0][:, 0], y, atol=1e-10)
        np.testing.assert_allclose(got.moments()[1][:, 0], std, atol=1e-8)


def test_functions_have_the_covariance_of_the_posterior():
    mean, covariance, y, _ = exact()
    predictor = predict.linearised(linear, full(), condition=False, num_functions=20_000)
    q = from_covariance({"w": mean}, covariance)
    drawn = predict.predict(predictor, jax.random.key(1), Prior(PRIOR), q, SUPPORT, ASKED, calibration()).functions
    phi = features(ASKED)
    truth = phi @ covariance @ phi.T
    np.testing.assert_allclose(jnp.cov(drawn[:, :, 0].T), truth, atol=0.05 * float(jnp.abs(truth).max()))
    np.testing.assert_allclose(drawn.mean(axis=0)[:, 0], y, atol=0.05)


def test_sampled_weights_approach_the_gaussian():
    q = MeanField(PRIOR.mean, PRIOR.log_std)
    predictor = predict.sampled(linear, mean_field(), num_samples=20_000)
    got = predict.predict(predictor, jax.random.key(0), Prior(PRIOR), q, SUPPORT, ASKED, calibration(WIDTH))
    variance = WIDTH**2 * (features(ASKED) ** 2) @ jnp.exp(2 * PRIOR.log_std["w"]) + NOISE**2
    np.testing.assert_allclose(got.moments()[1][:, 0] ** 2, variance, rtol=0.05)
    low, high = got.interval(0.9)
    np.testing.assert_allclose(high - low, 2 * 1.645 * jnp.sqrt(variance)[:, None], rtol=0.05)


def test_log_density_of_one_gaussian_is_scipys():
    mean, _, y, std = exact()
    predictor = predict.linearised(linear, delta(), condition=True)
    got = predict.predict(predictor, jax.random.key(0), Prior(PRIOR), Delta({"w": mean}), SUPPORT, ASKED, calibration())
    np.testing.assert_allclose(got.log_density(jnp.ones((9, 1)))[:, 0], stats.norm.logpdf(1.0, y, std), atol=1e-9)
    np.testing.assert_allclose(got.quantile(0.05)[:, 0], stats.norm.ppf(0.05, y, std), atol=1e-9)


def test_log_density_takes_targets_of_one_output_as_a_list():
    """[N] beside [N, 1] must never broadcast to N² densities."""
    got = predict.Predictive(jnp.zeros((2, 3, 1)), jnp.ones((2, 3, 1)), jnp.zeros((0, 3, 1)))
    np.testing.assert_array_equal(got.log_density([0.0, 1.0, 2.0]), got.log_density(jnp.array([[0.0], [1.0], [2.0]])))
    with pytest.raises(ValueError, match=r"y has shape \[2\] and predictions \[3, 1\]"):
        got.log_density([0.0, 1.0])


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0, float("nan")])
def test_levels_are_shares(level):
    got = predict.Predictive(jnp.zeros((2, 3, 1)), jnp.ones((2, 3, 1)), jnp.zeros((0, 3, 1)))
    for ask in (got.interval, got.quantile):
        with pytest.raises(ValueError, match="a share between 0 and 1"):
            ask(level)


def test_calibration_recovers_width_and_noise():
    """Tasks drawn with widths 2σ and noise .3, seen through σ: the fit must say 2 and .3."""
    predictor = predict.linearised(linear, delta(), condition=True, num_functions=0)

    def task(key):
        key_w, key_x, key_noise = jax.random.split(key, 3)
        w = PRIOR.mean["w"] + WIDTH * jnp.exp(PRIOR.log_std["w"]) * jax.random.normal(key_w, (3,))
        x = jax.random.uniform(key_x, (34, 1), minval=-3, maxval=3)
        y = features(x) @ w[:, None] + NOISE * jax.random.normal(key_noise, (34, 1))
        mean, _ = exact_posterior(
            PRIOR.mean["w"], jnp.diag(WIDTH**2 * jnp.exp(2 * PRIOR.log_std["w"])), features(x[:4]), y[:4], NOISE
        )
        parts = predictor.prepare(key, Prior(PRIOR), Delta({"w": mean}), Data(x[:4], y[:4]), x[4:])
        return parts, y[4:]

    parts, targets = jax.vmap(task)(jax.random.split(jax.random.key(0), 200))
    fitted = jax.jit(lambda p, y: calibrate(predictor, p, y))(parts, targets)
    assert float(jnp.exp(fitted.log_noise)) == pytest.approx(NOISE, rel=0.05)
    assert float(jnp.exp(fitted.log_width)) == pytest.approx(WIDTH, rel=0.15)


def test_calibration_recovers_the_spread_of_scales():
    """Tasks whose noise differs by e^{0.6 z}: the fit must say 0.6, and that widths do not follow the size of targets."""
    predictor = predict.linearised(linear, delta(), condition=True, num_functions=0)
    nothing, x = Data(X[:0], X[:0]), jnp.linspace(-3.0, 3.0, 30)[:, None]
    narrow = Prior(PRIOR._replace(log_std=jax.tree.map(lambda s: s - 12.0, PRIOR.log_std)))  # all is noise

    def task(key):
        key_scale, key_noise = jax.random.split(key)
        noise = NOISE * jnp.exp(0.6 * jax.random.normal(key_scale))
        y = linear(PRIOR.mean, x) + noise * jax.random.normal(key_noise, (30, 1))
        return predictor.prepare(key, narrow, Delta(PRIOR.mean), nothing, x), y

    parts, targets = jax.vmap(task)(jax.random.split(jax.random.key(1), 400))
    fitted = jax.jit(lambda p, y: calibrate(predictor, p, y))(parts, targets)
    assert abs(float(fitted.spread)) == pytest.approx(0.6, abs=0.08)
    assert float(jnp.exp(fitted.log_noise)) == pytest.approx(NOISE, rel=0.1)


def test_spread_is_a_scale_mixture():
    """Nine equally likely scales: the density by hand, and a standard deviation of E[e^{2τz}]^½."""
    outputs, std, tau = jnp.zeros((3, 1)), jnp.full((3, 1), 0.5), 0.4
    made = predict._gaussian_predictive(outputs, jnp.square(std).T, 0.0, None, jnp.asarray(tau))
    scales = 0.5 * np.exp(tau * np.asarray(predict.levels(predict.NUM_LEVELS)))
    y = jnp.array([[0.0], [0.3], [-2.0]])
    by_hand = np.log(stats.norm.pdf(np.asarray(y)[None], scale=scales[:, None, None]).mean(axis=0))
    np.testing.assert_allclose(made.log_density(y), by_hand, rtol=1e-9)
    np.testing.assert_allclose(made.moments()[1], np.sqrt((scales**2).mean()), rtol=1e-9)
    np.testing.assert_allclose(np.square(predict.levels(9)).mean(), 1.0, rtol=1e-9)


@pytest.mark.parametrize("size", [0.2, 3.0])
def test_widths_follow_the_size_of_the_support(size):
    """At power a, a support r times as large is predicted with widths r^a times as large; noise stays."""
    predictor = predict.linearised(linear, delta(), condition=True, num_functions=0)
    q = Delta(PRIOR.mean)
    unit = Data(SUPPORT.x, SUPPORT.y / jnp.sqrt(jnp.square(SUPPORT.y).mean()))
    scaled = Data(unit.x, size * unit.y)
    parts = [predictor.prepare(jax.random.key(0), Prior(PRIOR), q, data, ASKED) for data in (unit, scaled)]
    noise = jnp.log(NOISE)
    by_power = predictor.finish(parts[1], Calibration(jnp.zeros(()), noise, 0.7, 0.0)).std
    by_width = predictor.finish(parts[0], Calibration(jnp.log(size**0.7), noise)).std
    np.testing.assert_allclose(by_power, by_width, rtol=1e-5)
    assert predict.log_size(Data(X[:0], X[:0])) == 0.0


@pytest.mark.parametrize("num_functions", [0, 4])
def test_contrast_is_a_power_of_the_variance_from_weights(num_functions):
    """At γ the variance from weights is v^γ beside the same noise, and correlations between inputs stay as they are."""
    predictor = predict.linearised(linear, delta(), condition=True, num_functions=num_functions)
    q = Delta({"w": exact()[0]})
    parts = predictor.prepare(jax.random.key(0), Prior(PRIOR), q, SUPPORT, ASKED)
    plain = predictor.finish(parts, calibration()).std[0] ** 2 - NOISE**2
    powered = predictor.finish(parts, calibration()._replace(contrast=1.5)).std[0] ** 2 - NOISE**2
    np.testing.assert_allclose(powered, plain**1.5, rtol=1e-6)
    covariance = jnp.array([[[4.0, 1.0], [1.0, 0.25]]])
    np.testing.assert_allclose(predict._contrasted(covariance, 0.5), [[[2.0, 1.0], [1.0, 0.5]]], rtol=1e-9)


def test_draws_share_the_levels_of_the_spread():
    predictor = predict.sampled(linear, mean_field(), num_samples=12)
    parts = predictor.prepare(jax.random.key(0), Prior(PRIOR), PRIOR, SUPPORT, ASKED)
    made = predictor.finish(parts, Calibration(jnp.zeros(()), jnp.log(NOISE), 0.0, jnp.asarray(0.5)))
    expected = NOISE * np.exp(0.5 * np.asarray(predict.levels(12)))
    np.testing.assert_allclose(made.std[:, 0, 0], expected, rtol=1e-9)
