"""Tasks: what is drawn has the distribution that is promised, and the exact linear world is exact."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from metaprior import tasks
from metaprior.tasks.linear import Truth, affine, exact_posterior, linear, log_conditional_evidence, log_evidence
from metaprior.tasks.sinusoid import SETTINGS, Ranges, sinusoid

# Of images see test_tasks_images, of rows test_tasks_tables.
CURVES = [name for name in tasks.TASKS if name not in (*tasks.IMAGE_SETS, tasks.OWN_ROWS)]
NUM_TASKS = 3000
SINUSOIDS = list(SETTINGS)
Pair = tuple[Any, Any]  # a mean and a covariance, or features and targets


def many(draw, num_tasks=NUM_TASKS, seed=0):
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(seed), num_tasks)))


def is_uniform(values, low, high):
    return scipy.stats.kstest((values - low) / (high - low), scipy.stats.uniform.cdf).pvalue > 1e-3


def is_normal(values, std):
    return scipy.stats.kstest(values / std, scipy.stats.norm.cdf).pvalue > 1e-3


# --- every family -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
def test_sizes_and_dtype_are_as_asked(name):
    family = tasks.get(name, shots=3, queries=4, eval_queries=7)
    assert family.name == name and family.describe
    for draw, queries in ((family.sample, 4), (family.evaluation, 7)):
        episode = draw(jax.random.key(0))
        for data, size in ((episode.support, 3), (episode.query, queries)):
            assert data.x.shape == (size, family.inputs) and data.y.shape == (size, family.outputs)
            assert data.x.dtype == data.y.dtype == jnp.zeros(()).dtype


@pytest.mark.parametrize("name", CURVES)
def test_dtype_follows_the_default_float(name):
    with jax.enable_x64(False):
        leaves = jax.tree.leaves(jax.vmap(tasks.get(name).sample)(jax.random.split(jax.random.key(0), 2)))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    with jax.enable_x64(True):
        leaves = jax.tree.leaves(tasks.get(name).evaluation(jax.random.key(0)))
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float64")}


@pytest.mark.parametrize("name", CURVES)
def test_same_key_same_task_other_key_other_task(name):
    family = tasks.get(name)
    one, again, other = (family.sample(jax.random.key(seed)) for seed in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, one, again))
    assert not jnp.any(one.query.x == other.query.x) and not jnp.any(one.query.y == other.query.y)


@pytest.mark.parametrize("name", CURVES)
def test_a_batch_equals_a_loop(name):
    family = tasks.get(name)
    keys = jax.random.split(jax.random.key(5), 4)
    for draw in (family.sample, family.evaluation):
        batch, loop = jax.vmap(draw)(keys), [draw(key) for key in keys]
        for got, *expected in zip(jax.tree.leaves(batch), *map(jax.tree.leaves, loop), strict=True):
            np.testing.assert_allclose(got, np.stack(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CURVES)
def test_support_and_query_are_distinct_uniform_draws(name):
    family = tasks.get(name)
    episode = many(family.sample, 500)
    support, query = episode.support.x, episode.query.x
    assert not np.any(support[:, :, None, 0] == query[:, None, :, 0])
    assert is_uniform(support.ravel(), *family.input_range) and is_uniform(query.ravel(), *family.input_range)
    assert abs(np.corrcoef(support[:, 0, 0], query[:, 0, 0])[0, 1]) < 0.15


@pytest.mark.parametrize("name", CURVES)
def test_evaluation_keeps_the_support_and_asks_for_the_truth_on_a_grid(name):
    family = tasks.get(name, eval_queries=41)
    key = jax.random.key(7)
    sampled, evaluated = family.sample(key), family.evaluation(key)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, sampled.support, evaluated.support))
    np.testing.assert_allclose(evaluated.query.x[:, 0], np.linspace(*family.input_range, 41), atol=1e-12)


@pytest.mark.parametrize("name", CURVES)
def test_no_shots_is_legal(name):
    episode = tasks.get(name, shots=0).sample(jax.random.key(0))
    assert episode.support.x.shape == (0, 1) and episode.support.y.shape == (0, 1)
    assert episode.query.x.shape == (10, 1)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("wrong", [{"shots": -1}, {"queries": 0}, {"eval_queries": 0}, {"queries": True}])
def test_impossible_sizes_are_refused_in_words(name, wrong):
    (word,) = wrong
    with pytest.raises(ValueError, match=f"^{word} must be a whole number"):
        tasks.get(name, **wrong)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean sinusoid-easier.*choose from sinusoid, .*linear"):
        tasks.get("sinusoid_easy")
    with pytest.raises(ValueError, match=r"'qqq': choose from "):
        tasks.get("qqq")


# --- sinusoids --------------------------------------------------------------------------------------------------------


@functools.cache
def fitted_sinusoids(name):
    """Amplitude, frequency and phase of each task, recovered from its noise-free grid alone."""
    query = many(tasks.get(name, eval_queries=64).evaluation).query
    x, y = query.x[:, :, 0], query.y[:, :, 0]
    middle = y[:, 1:-1]
    cosine = (middle * (y[:, 2:] + y[:, :-2])).sum(axis=1) / (2 * (middle**2).sum(axis=1))  # y₊ + y₋ = 2 cos(wh) y
    frequency = np.arccos(cosine) / (x[0, 1] - x[0, 0])
    waves = np.stack([np.sin(frequency[:, None] * x), np.cos(frequency[:, None] * x)], axis=-1)
    a, b = np.linalg.solve(waves.transpose(0, 2, 1) @ waves, waves.transpose(0, 2, 1) @ y[..., None])[..., 0].T
    return np.hypot(a, b), frequency, np.arctan2(b, a) % (2 * math.pi)


@pytest.mark.parametrize("name", SINUSOIDS)
def test_sinusoids_have_the_promised_ranges(name):
    ranges = SETTINGS[name]
    amplitude, frequency, phase = fitted_sinusoids(name)
    assert is_uniform(amplitude, *ranges.amplitude)
    assert is_uniform(phase, *ranges.phase)
    if ranges.frequency[0] == ranges.frequency[1]:
        np.testing.assert_allclose(frequency, ranges.frequency[0], atol=1e-9)
    else:
        assert is_uniform(frequency, *ranges.frequency)
    assert abs(np.corrcoef(np.stack([amplitude, phase]))[0, 1]) < 0.06


def test_the_three_settings_are_the_published_ones():
    pi = math.pi
    rows = [(r.amplitude, r.frequency, r.phase, r.noise_factor, r.input_range) for r in SETTINGS.values()]
    assert list(SETTINGS) == ["sinusoid", "sinusoid-challenging", "sinusoid-easier"]
    assert rows == [
        ((0.1, 5), (1, 1), (0, pi), 0, (-5, 5)),
        ((0.1, 5), (0.5, 2), (0, 2 * pi), 0.01, (-5, 5)),
        ((0.1, 5), (0.5, 1), (0, 2 * pi), 0, (-5, 5)),
    ]


@pytest.mark.parametrize("name", ["sinusoid-challenging", "sinusoid-easier"])
def test_the_zero_predictor_errs_as_computed(name):
    # E y² = E A² · E sin² with E A² = (5³ − .1³)/(3·4.9), and E sin² = ½ exactly where all phases are equally likely
    y = many(tasks.get(name).sample, 10000).query.y
    assert np.mean(y**2) == pytest.approx((5**3 - 0.1**3) / (3 * 4.9) / 2, rel=0.04)


@pytest.mark.parametrize("name", SINUSOIDS)
def test_noise_is_normal_and_proportional_to_the_amplitude(name):
    factor = {"sinusoid-challenging": 0.01}.get(name, 0.0)
    amplitude, frequency, phase = fitted_sinusoids(name)
    episode = many(tasks.get(name).sample)  # the same keys, so the same tasks
    for data in episode:
        truth = amplitude[:, None] * np.sin(frequency[:, None] * data.x[:, :, 0] + phase[:, None])
        noise = (data.y[:, :, 0] - truth) / amplitude[:, None]
        if factor == 0:
            np.testing.assert_allclose(noise, 0, atol=1e-9)
        else:
            assert is_normal(noise.ravel(), factor)
            assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.06  # fresh noise at every point
            assert abs(np.corrcoef(noise.ravel(), data.x.ravel())[0, 1]) < 0.03  # and not the inputs' random numbers


def test_ranges_of_ones_own_and_their_checks():
    family = sinusoid("mine", ranges=Ranges(amplitude=(2.0, 2.0), phase=(0.0, 0.0), input_range=(0.0, 1.0)))
    query = family.evaluation(jax.random.key(0)).query
    np.testing.assert_allclose(query.y, 2 * np.sin(query.x), atol=1e-12)
    assert family.name == "mine" and family.input_range == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"pass ranges=Ranges"):
        sinusoid("mine")
    with pytest.raises(ValueError, match="amplitude must be"):
        Ranges(amplitude=(5.0, 0.1))
    with pytest.raises(ValueError, match="noise_factor must be"):
        Ranges(noise_factor=-0.1)


# --- mixture ----------------------------------------------------------------------------------------------------------


def test_mixture_draws_three_kinds_equally_often_within_bounds():
    query = many(tasks.get("mixture", eval_queries=51).evaluation).query
    x, y = query.x[0, :, 0], query.y[:, :, 0]
    assert np.abs(y).max() <= 5 + 1e-9
    residual = lambda degree: np.abs(y.T - np.vander(x, degree + 1) @ np.polyfit(x, y.T, degree)).max(axis=0)
    line = residual(1) < 1e-9
    parabola = (residual(2) < 1e-9) & ~line
    counts = np.array([line.sum(), parabola.sum(), (~line & ~parabola).sum()])
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    slope, intercept = np.polyfit(x, y[line].T, 1)
    assert is_uniform(slope, -0.8, 0.8) and is_uniform(intercept, -1, 1)
    for coefficient, largest in zip(np.polyfit(x, y[parabola].T, 2), (0.15, 0.15, 0.5), strict=True):
        assert is_uniform(coefficient, -largest, largest)
    waves = np.stack([np.sin(x), np.cos(x)], axis=1)
    (a, b), squares, *_ = np.linalg.lstsq(waves, y[~line & ~parabola].T)
    assert squares.max() < 1e-18
    assert is_uniform(np.hypot(a, b), 0.1, 5) and is_uniform(np.arctan2(b, a), 0, math.pi)


@pytest.mark.parametrize(("name", "degree"), [("lines", 1), ("parabolas", 2)])
def test_tasks_of_one_kind_are_of_that_kind(name, degree):
    """Differences of order degree + 1 on a regular grid vanish, those of order degree do not."""
    query = many(tasks.get(name, eval_queries=21).evaluation, 50).query
    y = np.asarray(query.y)[..., 0]
    np.testing.assert_allclose(np.diff(y, degree + 1, axis=1), 0.0, atol=1e-9)
    assert (np.abs(np.diff(y, degree, axis=1)).max(axis=1) > 0).all()
    assert np.abs(y).max() <= 5.0


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="unknown kind of curve 'circles'"):
        tasks.mixture(kinds=("circles",))


def test_mixture_noise():
    quiet, noisy = (many(tasks.get("mixture", noise_std=std).sample, 500) for std in (0.0, 0.3))
    noise = (noisy.query.y - quiet.query.y).ravel()
    assert is_normal(noise, 0.3)
    with pytest.raises(ValueError, match="noise_std must be"):
        tasks.get("mixture", noise_std=-1.0)


# --- linear: what is drawn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "truth",
    [
        Truth(mean=(1.0, -0.5), std=(1.0, 0.5)),
        Truth(mean=(0.0, 2.0), cov=((1.0, -0.6), (-0.6, 0.5)), noise_std=0.2),
        Truth(mean=(0.0, 2.0), cov=((1.0, 1.0), (1.0, 1.0))),  # singular: intercept and slope move together
        Truth(mean=(3.0, 2.0), std=(0.0, 1.0)),  # the intercept is known
    ],
)
def test_linear_tasks_have_the_moments_of_their_truth(truth):
    family = linear(truth=truth)
    query = many(family.evaluation).query
    theta = np.linalg.lstsq(affine(jnp.asarray(query.x[0])), query.y[:, :, 0].T)[0].T
    spread = np.sqrt(np.diag(truth.covariance))
    assert np.all(np.abs(theta.mean(axis=0) - truth.mean) <= 4 * spread / math.sqrt(NUM_TASKS) + 1e-9)
    np.testing.assert_allclose(np.cov(theta.T), truth.covariance, atol=0.1 * truth.covariance.max())
    sampled = many(family.sample).query
    noise = sampled.y[:, :, 0] - (theta[:, :1] + theta[:, 1:] * sampled.x[:, :, 0])
    assert is_normal(noise.ravel(), truth.noise_std)
    assert abs(np.corrcoef(noise.ravel(), sampled.x.ravel())[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"std": (1.0,)}, "std must hold 2"),
        ({"std": (1.0, -1.0)}, "std must hold 2"),
        ({"std": (1.0, 1.0), "cov": ((1.0, 0.0), (0.0, 1.0))}, "give one of them"),
        ({"cov": ((1.0, 2.0), (2.0, 1.0))}, "positive semi-definite"),
        ({"cov": ((1.0, 0.5), (0.0, 1.0))}, "symmetric"),
        ({"cov": ((1.0,),)}, "2 x 2"),
        ({"noise_std": 0.0}, "noise_std must be positive"),
    ],
)
def test_an_impossible_truth_is_refused_in_words(wrong, words):
    with pytest.raises(ValueError, match=words):
        Truth(**wrong)


# --- linear: the exact world ------------------------------------------------------------------------------------------


def problem(seed=0, size=3, support=4, query=5) -> tuple[Pair, Pair, Pair, float]:
    """(mean, cov), (support features, y), (query features, y), noise_std."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    sets = [(rng.normal(size=(n, size)), rng.normal(size=n)) for n in (support, query)]
    world = ((rng.normal(size=size), root @ root.T + 0.1 * np.eye(size)), *sets)
    prior, support_set, query_set = jax.tree.map(jnp.asarray, world)
    return prior, support_set, query_set, 0.7


def joined(support, query) -> Pair:
    return jnp.concatenate([support[0], query[0]]), jnp.concatenate([support[1], query[1]])


def by_conditioning(mean, cov, features, y, noise_std):
    """The posterior from the joint Gaussian of (θ, y), in numpy."""
    mean, cov, features, y = map(np.asarray, (mean, cov, features, y))
    cross = cov @ features.T
    joint = features @ cross + noise_std**2 * np.eye(len(y))
    return mean + cross @ np.linalg.inv(joint) @ (y - features @ mean), cov - cross @ np.linalg.inv(joint) @ cross.T


@pytest.mark.parametrize(("size", "points"), [(1, 1), (2, 10), (3, 2), (6, 4)])
def test_posterior_is_the_conditional_of_the_joint_gaussian(size, points):
    prior, support, _, noise_std = problem(1, size, points)
    expected_mean_and_cov = by_conditioning(*prior, *support, noise_std)
    for got, expected in zip(exact_posterior(*prior, *support, noise_std), expected_mean_and_cov, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-11)


def test_temperature_is_the_power_of_the_likelihood():
    # T = ½ counts every point twice; T = 4 doubles the noise
    prior, support, _, noise_std = problem(2)
    cold = exact_posterior(*prior, *support, noise_std, 0.5)
    twice = by_conditioning(*prior, *joined(support, support), noise_std)
    warm = exact_posterior(*prior, *support, noise_std, temperature=4.0)
    louder = by_conditioning(*prior, *support, 2 * noise_std)
    for got, expected in zip((*cold, *warm), (*twice, *louder), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-11)


def test_posterior_with_a_weight_that_is_known():
    _, (features, y), _, noise_std = problem(3, size=2)
    prior = jnp.array([1.5, 0.0]), jnp.diag(jnp.array([0.0, 1.0]))
    mean, cov = exact_posterior(*prior, features, y, noise_std)
    expected_mean, expected_cov = by_conditioning(*prior, features, y, noise_std)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-12)
    np.testing.assert_allclose(cov, expected_cov, atol=1e-12)
    assert mean[0] == 1.5 and cov[0, 0] == 0


def test_one_set_after_another_is_their_union():
    prior, support, query, noise_std = problem(4)
    together = exact_posterior(*prior, *joined(support, query), noise_std, 0.3)
    in_turn = exact_posterior(*exact_posterior(*prior, *support, noise_std, 0.3), *query, noise_std, 0.3)
    for got, expected in zip(in_turn, together, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize(("size", "points"), [(1, 1), (2, 10), (6, 4)])
def test_evidence_agrees_with_scipy(size, points):
    (mean, cov), (features, y), _, noise_std = problem(5, size, points)
    marginal_cov = features @ cov @ features.T + noise_std**2 * np.eye(points)
    marginal = scipy.stats.multivariate_normal(features @ mean, marginal_cov)
    got = log_evidence(mean, cov, features, y, noise_std)
    assert got == pytest.approx(marginal.logpdf(np.asarray(y)), rel=1e-11)


def test_evidence_is_the_average_likelihood_under_the_prior():
    (mean, cov), (features, y), _, noise_std = problem(6, size=2, support=3)
    theta = np.random.default_rng(0).multivariate_normal(mean, cov, 200_000)
    likelihood = scipy.stats.norm.pdf(np.asarray(y), theta @ np.asarray(features).T, noise_std).prod(axis=1)
    error = likelihood.std() / math.sqrt(len(theta))
    assert abs(math.exp(log_evidence(mean, cov, features, y, noise_std)) - likelihood.mean()) < 4 * error


@pytest.mark.parametrize("seed", range(5))
def test_conditional_evidence_is_a_difference_of_evidences(seed):
    prior, support, query, noise_std = problem(seed)
    difference = log_evidence(*prior, *joined(support, query), noise_std) - log_evidence(*prior, *support, noise_std)
    conditional = log_conditional_evidence(*prior, support, query, noise_std)
    assert conditional == pytest.approx(float(difference), rel=1e-12, abs=1e-12)


def test_no_support_leaves_the_prior_and_no_points_have_evidence_one():
    prior, nothing, query, noise_std = problem(7, support=0)
    for got, expected in zip(exact_posterior(*prior, *nothing, noise_std), prior, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-15)
    assert log_evidence(*prior, *nothing, noise_std) == 0
    assert log_conditional_evidence(*prior, query, nothing, noise_std) == 0
    conditional = log_conditional_evidence(*prior, nothing, query, noise_std)
    assert conditional == pytest.approx(float(log_evidence(*prior, *query, noise_std)), rel=1e-12)


def test_exact_functions_jit_and_take_the_columns_of_an_episode():
    truth = Truth(mean=(1.0, -0.5), cov=((1.0, -0.6), (-0.6, 0.5)))
    prior = jnp.asarray(truth.mean), jnp.asarray(truth.covariance)
    support, query = linear(truth=truth).sample(jax.random.key(0))
    columns, vectors = (
        ((affine(support.x), shape(support.y)), (affine(query.x), shape(query.y)))
        for shape in (lambda y: y, lambda y: y[:, 0])
    )
    plain = log_conditional_evidence(*prior, *vectors, truth.noise_std)
    jitted = jax.jit(log_conditional_evidence)(*prior, *columns, truth.noise_std)
    assert jitted == pytest.approx(float(plain), rel=1e-12)
    posterior = jax.jit(exact_posterior)(*prior, *columns[0], truth.noise_std, 1.0)
    for got, expected in zip(posterior, exact_posterior(*prior, *vectors[0], truth.noise_std), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)


def test_the_true_prior_has_the_highest_evidence_on_average():
    truth = Truth(mean=(1.0, -0.5), std=(1.0, 0.5))
    support = many(linear(truth=truth).sample, 500).support

    def average(mean, cov, noise_std):
        one = lambda x, y: log_evidence(jnp.asarray(mean), jnp.asarray(cov), affine(x), y, noise_std)
        return jax.vmap(one)(support.x, support.y).mean()

    best = average(truth.mean, truth.covariance, truth.noise_std)
    for mean, cov, noise_std in (
        ((0.0, -0.5), truth.covariance, truth.noise_std),
        (truth.mean, 4 * truth.covariance, truth.noise_std),
        (truth.mean, truth.covariance / 4, truth.noise_std),
        (truth.mean, truth.covariance, 2 * truth.noise_std),
    ):
        assert average(mean, cov, noise_std) < best - 0.05
