"""The two studies on linear models with exact answers: small runs of them, and what their numbers rest on."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import estimator_variance, exact_linear, gradient_error, study
from experiments.exact_linear import Regime
from metaprior import figures
from metaprior.families import MeanField
from metaprior.likelihoods import gaussian
from metaprior.tasks.linear import log_conditional_evidence
from metaprior.types import Data

STUDIES = {"gradient-error": gradient_error, "estimator-variance": estimator_variance}
close = np.testing.assert_allclose


@pytest.fixture(scope="module")
def results():
    """Both at the smallest scale, as they come back from their files; float32 outside, as for a user."""
    with jax.enable_x64(False):
        found = {name: study.run(module.STUDY, module.SMOKE, scale="smoke") for name, module in STUDIES.items()}
    return json.loads(json.dumps(found))


def mean_of(rows, **wanted):
    return [row["mean"] for row in rows if all(row[key] == value for key, value in wanted.items())]


# -- as studies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_says_where_it_comes_from(results, name):
    rows = results[name]["rows"]
    assert len(rows) > 20
    for row in rows:
        assert set(row) == set(study.COLUMNS)
        assert row["experiment"] == name
        assert row["command"].startswith(f"metaprior reproduce {name} --scale smoke")
        # all that may be missing is the direction of an estimate that is zero
        assert row["mean"] is not None or (row["metric"], row["method"]) == ("cosine", "gem")
    assert len({(row["setting"], row["method"], row["metric"]) for row in rows}) == len(rows)


@pytest.mark.parametrize("name", STUDIES)
def test_results_alone_give_figure_remarks_and_table(results, name, tmp_path):
    chosen = STUDIES[name].STUDY
    figures.save(chosen.figure(results[name]), tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert all(text.endswith(".") and "nan" not in text for text in chosen.remarks(results[name]))
    table = chosen.shown(results[name])
    assert table and all(row in results[name]["rows"] for row in table)
    assert len(table) < len(results[name]["rows"])


def test_figure_and_remarks_of_one_regime_only(results):
    """What was not measured is left out."""
    one = results["gradient-error"]
    kept = {
        name: curve for name, curve in one["curves"].items() if name not in ("regime informative", "bound informative")
    }
    fewer = one | {"curves": kept, "rows": [row for row in one["rows"] if not row["setting"].startswith("informative")]}
    gradient_error.STUDY.figure(fewer)
    assert "informative after" not in gradient_error.STUDY.remarks(fewer)[1]
    assert "informative after" in gradient_error.STUDY.remarks(one)[1]


def test_remarks_follow_the_numbers(results):
    """Shares turned round turn the verdict round."""
    one = json.loads(json.dumps(results["gradient-error"]))
    assert "holds in all of them" in gradient_error.STUDY.remarks(one)[1]
    curve = one["curves"]["regime informative"]
    curve["gem GEM closer"] = [0.0 for _ in curve["steps"]]
    assert "informative never (0% to 0%" in gradient_error.STUDY.remarks(one)[1]
    assert "holds throughout for tight (noisy) only" in gradient_error.STUDY.remarks(one)[1]


# -- the laws --------------------------------------------------------------------------------------


def test_the_scalar_laws(results):
    """20 points of variance .25 and a prior of variance one: a/b = 80, steps of a quarter: ρ = 3/4."""
    curve = results["gradient-error"]["curves"]["law informative"]
    powers = 0.75 ** np.array(curve["steps"])
    for measured, law in (("gem", 1 - powers), ("elbo", 1 + 80 * powers**2)):
        close(curve[measured], law, rtol=1e-9)
        close(curve[f"{measured}_law"], law, rtol=1e-9)
    assert max(mean_of(results["gradient-error"]["rows"], metric="largest distance from the law")) < 1e-9


def test_the_laws_of_several_weights(results):
    gaps = mean_of(results["gradient-error"]["rows"], metric="largest relative distance from the law")
    assert len(gaps) == 2 and max(gaps) < 1e-9


def test_before_any_step(results):
    """GEM says nothing: its error is all of the gradient, and it has no direction."""
    rows = results["gradient-error"]["rows"]
    close(mean_of(rows, setting="informative, 0 steps", method="gem", metric="error in μ"), 1.0)
    assert mean_of(rows, setting="informative, 0 steps", method="gem", metric="cosine") == [None]
    assert mean_of(rows, setting="informative, 0 steps", method="elbo", metric="error in μ")[0] > 10


# -- the exact world -------------------------------------------------------------------------------

REGIME = Regime(6, 0.7, 0.8)


def one_task(regime=REGIME, num_weights=3, seed=0):
    data = exact_linear.draw_tasks(regime, (seed,), 1, num_weights)
    return data, Data(data.x[0], data.y[0])


def test_expectations_in_closed_form():
    """The log-likelihood is quadratic in the weights, so 2d sigma points m ± √d sᵢ give its expectation exactly."""
    likelihood, family, _ = exact_linear.in_closed_form(REGIME)
    _, data = one_task()
    q = MeanField(jnp.array([0.3, -1.0, 2.0]), jnp.array([-0.5, 0.2, 0.4]))
    offsets = np.sqrt(3) * np.diag(np.exp(q.log_std))
    plain = gaussian(exact_linear.predict, noise_std=REGIME.noise_std)
    points = np.asarray(q.mean)[None] + np.concatenate([offsets, -offsets])
    reference = np.mean([plain.log_prob(jnp.asarray(point), data) for point in points])
    close(family.expected_log_prob(jax.random.key(0), likelihood, q, data), reference, rtol=1e-12)


def test_gem_at_the_exact_posterior_is_the_exact_gradient():
    """Theorem 1; inputs are orthogonal, so the posterior factorises and its variances are all there is."""
    regime = REGIME._replace(orthogonal=True)
    data, task = one_task(regime)
    close(task.x.T @ task.x, 6 * np.eye(3), atol=1e-12)
    mean, cov = exact_linear.posterior(regime, task)
    found = exact_linear.gem_gradient(regime, MeanField(mean, 0.5 * jnp.log(jnp.diagonal(cov))))
    exact = exact_linear.exact_gradients(regime, exact_linear.split(data, 0))
    close(found.mean, exact.mean[0], rtol=1e-10)
    close(found.log_std, exact.log_std[0], rtol=1e-10)


@jax.jit
def error_and_bounds(shift, log_scale):
    """Of one task and a q that is anywhere, in any width."""
    _, task = one_task()
    mean, cov = exact_linear.posterior(REGIME, task)
    q = MeanField(mean + shift, 0.5 * jnp.log(jnp.diagonal(cov)) + log_scale)
    found = exact_linear.gem_gradient(REGIME, q)
    # E_p f, by Theorem 1 the exact gradient, needs the variances of p alone
    exact = exact_linear.gem_gradient(REGIME, MeanField(mean, 0.5 * jnp.log(jnp.diagonal(cov))))
    error = jnp.sqrt(jnp.square(found.mean - exact.mean).sum() + jnp.square(found.log_std - exact.log_std).sum())
    return error, exact_linear.bounds(REGIME, q, mean, cov), (mean, cov)


VECTORS = st.lists(st.floats(-6, 6), min_size=3, max_size=3).map(np.array)


@settings(max_examples=100)
@given(shift=VECTORS, log_scale=VECTORS)
def test_the_valid_bound_holds_wherever_q_is(shift, log_scale):
    error, bounds, _ = error_and_bounds(shift, log_scale)
    assert error <= bounds.valid * (1 + 1e-9) + 1e-9


def test_the_valid_bound_is_not_idle_and_the_printed_one_breaks(results):
    rows = results["gradient-error"]["rows"]
    assert 0.3 < max(mean_of(rows, metric="largest error over the valid bound")) < 1
    curve = {key: np.array(value) for key, value in results["gradient-error"]["curves"]["displaced"].items()}
    assert (curve["error"] <= curve["valid"]).all()
    assert (curve["error"] > curve["printed"]).any()
    # prior and posterior are N(0, 1) and N(0, .8): error² = .8δ² + .64δ⁴ and 2M²KL = 2.12δ²
    away = curve["away"]
    close(curve["error"] ** 2, 0.8 * away**2 + 0.64 * away**4, rtol=1e-9)
    close(curve["printed"] ** 2, 2.12 * away**2, rtol=1e-9)
    close(curve["kl"], away**2 / 2, rtol=1e-9)


def test_the_printed_bound_and_its_divergence():
    """KL from its textbook form, M² = E_p‖f‖² by Gauss–Hermite in each weight."""
    shift, log_scale = np.array([0.5, -0.2, 1.0]), np.array([0.3, -0.4, 0.1])
    _, bounds, (mean, cov) = error_and_bounds(shift, log_scale)
    q_cov = np.diag(np.diag(cov) * np.exp(2 * log_scale))
    inverse = np.linalg.inv(cov)
    kl = 0.5 * (
        np.trace(inverse @ q_cov) + shift @ inverse @ shift - 3 + np.log(np.linalg.det(cov) / np.linalg.det(q_cov))
    )
    close(bounds.kl, kl, rtol=1e-10)
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    theta = np.asarray(mean)[:, None] + np.sqrt(np.diag(cov))[:, None] * nodes[None]
    var = REGIME.std**2
    square = (theta / var) ** 2 + (theta**2 / var - 1) ** 2
    close(bounds.printed**2, 2 * (square @ weights / weights.sum()).sum() * kl, rtol=1e-10)


# -- the spread of the learned prior ---------------------------------------------------------------

VARIANCE = replace(estimator_variance.SMOKE, points=6, support=(0, 2, 5), variance=0.7, noise_variance=1.3)


def library_evidence(theta, y, support):
    """L[2] of one task by the library, at (μ, log σ²)."""
    ones = jnp.ones((y.shape[0], 1))
    parts = (ones[:support], y[:support]), (ones[support:], y[support:])
    return log_conditional_evidence(theta[:1], jnp.exp(theta[1:])[None], *parts, VARIANCE.noise_variance**0.5)


@pytest.mark.parametrize("support", [0, 2])
def test_the_corrected_formula_is_the_inverse_of_the_expected_curvature(support):
    """Evidence is quadratic in the data: 2m sigma points ±√m·L of their covariance LLᵀ give the expected Hessian exactly."""
    size = VARIANCE.points
    root = np.linalg.cholesky(VARIANCE.variance + VARIANCE.noise_variance * np.eye(size))
    points = jnp.asarray(np.sqrt(size) * np.concatenate([root.T, -root.T]))
    truth = jnp.array([0.0, np.log(VARIANCE.variance)])
    curvature = jax.jit(jax.vmap(lambda y: jax.hessian(library_evidence)(truth, y, support)))(points).mean(axis=0)
    close(-np.linalg.inv(curvature), np.diag(estimator_variance.corrected(VARIANCE, support)), rtol=1e-9, atol=1e-9)


def test_the_known_case():
    """With m = 20, k = 10, σ² = v = 1: 2.1 by the paper's formula, 23.1 in truth."""
    full = estimator_variance.Settings()
    close(estimator_variance.printed(full, 10)[0], 2.1)
    close(estimator_variance.corrected(full, 10)[0], 23.1)
    close(estimator_variance.corrected(full, 0), estimator_variance.printed(full, 0))


def moments_of(y, *counts):
    means = {count: y[:, :count].mean(axis=1) for count in counts}
    return {count: np.array([[mean.mean()], [np.square(mean).mean()]]) for count, mean in means.items()}


def some_tasks(seed=1, num_tasks=300):
    theta, noise = np.random.default_rng(seed).normal(size=(2, num_tasks, VARIANCE.points))
    return 0.4 + VARIANCE.variance**0.5 * theta[:, :1] + VARIANCE.noise_variance**0.5 * noise


def test_the_learned_prior_is_where_the_library_s_evidence_is_flat():
    y = some_tasks()
    best = np.concatenate(estimator_variance.learn(VARIANCE, moments_of(y, 2, 6), 2))
    total = lambda theta: jax.vmap(lambda task: library_evidence(theta, task, 2))(jnp.asarray(y)).mean()
    gradient, hessian = jax.jit(lambda theta: (jax.grad(total)(theta), jax.hessian(total)(theta)))(jnp.asarray(best))
    assert (np.linalg.eigvalsh(hessian) < 0).all()
    close(np.linalg.solve(hessian, gradient), 0.0, atol=1e-5)  # how far the maximum still is


def test_the_prior_learned_by_l1_is_that_of_the_task_means():
    """Their variance is σ² + v/m."""
    y = some_tasks()
    mean, log_var = estimator_variance.learn(VARIANCE, moments_of(y, 6), 0)
    close(mean[0], y.mean(), rtol=1e-9)
    close(np.exp(log_var[0]), y.mean(axis=1).var() - VARIANCE.noise_variance / 6, rtol=1e-5)


def test_an_evidence_that_rises_without_end():
    """Queries exaggerate their support: even an endless prior, which follows the support all the way, follows too little."""
    y = some_tasks()
    y[:, 5] = 1.5 * y[:, :5].mean(axis=1) + y[::-1, 5]
    mean, log_var = estimator_variance.learn(VARIANCE, moments_of(y, 5, 6), 5)
    assert np.isinf(mean).all() and np.isinf(log_var).all()


def test_the_spread_is_the_variance_of_a_normal():
    draws = scipy.stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000, scale=3.0)
    close(estimator_variance.spread(draws), 9.0, rtol=1e-3)
    draws[-100:] = np.inf
    close(estimator_variance.spread(draws), 9.0, rtol=0.02)
    draws[10_000:] = np.inf
    assert np.isinf(estimator_variance.spread(draws))


def test_measured_variances_follow_the_corrected_formula(results):
    curve = results["estimator-variance"]["curves"]["400 tasks"]
    for index, name in enumerate(estimator_variance.PARAMETERS):
        for place, support in enumerate(curve["support"][1:], 1):
            base = estimator_variance.corrected(estimator_variance.SMOKE, 0)[index]
            right = estimator_variance.corrected(estimator_variance.SMOKE, support)[index] / base
            wrong = estimator_variance.printed(estimator_variance.SMOKE, support)[index] / base
            ratio, half = curve[f"{name} ratio"][place], curve[f"{name} ci95"][place]
            assert abs(ratio - right) < 2 * half
            assert ratio - wrong > half
