"""Metrics against scipy, numerical integration, hand-made tables, and properties that hold for any input."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprior import metrics

QUICK = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def random_mixture(seed=0, components=4, shape=(6,)):
    """(y, mean, std) with widely different widths, as float64 numpy."""
    rng = np.random.default_rng(seed)
    mean = 3 * rng.normal(size=(components, *shape))
    std = np.exp(rng.normal(size=(components, *shape)))
    return 3 * rng.normal(size=shape), mean, std


def random_classes(seed=0, points=50, classes=4):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), points), rng.integers(0, classes, points)


def arrays(*values):
    return tuple(jnp.asarray(v) for v in values)


def binned(confidence, correct):
    """Two-class predictions with these confidences (all above a half), right where `correct`."""
    confidence, correct = np.asarray(confidence), np.asarray(correct)
    return jnp.stack([jnp.asarray(confidence), jnp.asarray(1 - confidence)], axis=1), jnp.asarray(1 - correct)


# --- regression -------------------------------------------------------------------------------------------------------


def test_mse_is_the_mean_of_squares():
    assert metrics.mse(jnp.array([1.0, 2.0]), jnp.array([1.0, 5.0])) == 4.5
    assert metrics.mse(jnp.array([1.0, 2.0]), jnp.array([1.0, 5.0]), where=jnp.array([False, True])) == 9.0


@pytest.mark.parametrize("components", [1, 5])
def test_log_density_agrees_with_scipy(components):
    y, mean, std = random_mixture(components=components, shape=(3, 2))
    expected = np.asarray(scipy.special.logsumexp(scipy.stats.norm.logpdf(y, mean, std), axis=0, b=1 / components))
    np.testing.assert_allclose(metrics.mixture_log_density(*arrays(y, mean, std)), expected, rtol=1e-12)
    np.testing.assert_allclose(metrics.nll(*arrays(y, mean, std)), -expected.mean(), rtol=1e-12)


def test_log_density_of_a_far_point_does_not_underflow():
    value = metrics.mixture_log_density(jnp.array([1e3]), jnp.zeros((2, 1)), jnp.ones((2, 1)))
    np.testing.assert_allclose(value, scipy.stats.norm.logpdf(1e3), rtol=1e-12)


def test_cdf_agrees_with_scipy():
    y, mean, std = random_mixture()
    expected = scipy.stats.norm.cdf(y, mean, std).mean(axis=0)
    np.testing.assert_allclose(metrics.mixture_cdf(*arrays(y, mean, std)), expected, rtol=1e-10)


def test_quantile_of_one_gaussian_is_scipys():
    _, mean, std = random_mixture(components=1)
    for p in (0.001, 0.05, 0.5, 0.95, 0.999):
        expected = scipy.stats.norm.ppf(p, mean[0], std[0])
        np.testing.assert_allclose(metrics.mixture_quantile(p, *arrays(mean, std)), expected, rtol=1e-9, atol=1e-9)


@QUICK
@given(SEEDS, st.floats(0.001, 0.999))
def test_quantile_inverts_cdf(seed, p):
    _, mean, std = arrays(*random_mixture(seed))
    quantile, cdf = jax.jit(metrics.mixture_quantile), jax.jit(metrics.mixture_cdf)
    np.testing.assert_allclose(cdf(quantile(p, mean, std), mean, std), p, atol=1e-9)


def test_twenty_halvings_reach_a_millionth_of_the_bracket():
    _, mean, std = arrays(*random_mixture())
    ends = np.asarray(mean + std * scipy.stats.norm.ppf(0.3))
    exact, rough = (metrics.mixture_quantile(0.3, mean, std, num_steps=n) for n in (60, 20))
    assert np.all(np.abs(exact - rough) <= 1e-6 * np.ptp(ends, axis=0))
    assert np.any(exact != rough)


def test_quantile_takes_one_probability_for_each_point_and_both_ends():
    _, mean, std = arrays(*random_mixture(shape=(3,)))
    p = jnp.array([0.0, 0.3, 1.0])
    low, middle, high = metrics.mixture_quantile(p, mean, std)
    assert low == -jnp.inf and high == jnp.inf
    assert middle == metrics.mixture_quantile(0.3, mean, std)[1]


@pytest.mark.parametrize("components", [1, 2, 6])
def test_crps_agrees_with_numerical_integration(components):
    y, mean, std = random_mixture(seed=components, components=components, shape=(4,))

    def integral(y, mean, std):
        cdf = lambda z: scipy.stats.norm.cdf(z, mean, std).mean()
        ends = [*(mean - 12 * std), *(mean + 12 * std), y]
        below = scipy.integrate.quad(lambda z: cdf(z) ** 2, min(ends), y, epsabs=1e-10, limit=500)[0]
        return below + scipy.integrate.quad(lambda z: (1 - cdf(z)) ** 2, y, max(ends), epsabs=1e-10, limit=500)[0]

    expected = [integral(y[i], mean[:, i], std[:, i]) for i in range(y.size)]
    np.testing.assert_allclose(metrics.mixture_crps(*arrays(y, mean, std)), expected, rtol=1e-6)
    np.testing.assert_allclose(metrics.crps(*arrays(y, mean, std)), np.mean(expected), rtol=1e-6)


def test_crps_of_points_is_the_energy_form():
    y, mean, _ = random_mixture()
    pairs = np.abs(mean[:, None] - mean[None]).mean(axis=(0, 1))
    expected = np.abs(y - mean).mean(axis=0) - 0.5 * pairs
    np.testing.assert_allclose(metrics.mixture_crps(*arrays(y, mean, 0 * mean)), expected, rtol=1e-12)


@QUICK
@given(SEEDS, st.sampled_from([1, 5]))
def test_crps_is_never_negative_and_scales_with_the_unit(seed, components):
    y, mean, std = random_mixture(seed, components)
    score = jax.jit(metrics.mixture_crps)
    value = score(*arrays(y, mean, std))
    assert np.all(value >= 0)
    np.testing.assert_allclose(score(*arrays(7 * y, 7 * mean, 7 * std)), 7 * value, rtol=1e-9)


def test_perfect_predictions_score_perfectly():
    y, _, _ = random_mixture()
    y = jnp.asarray(y)
    assert metrics.mse(y, y) == 0
    assert metrics.crps(y, y[None], jnp.zeros_like(y)[None]) == 0
    assert metrics.coverage(y, y, y) == 1


@QUICK
@given(SEEDS)
def test_order_of_components_and_points_is_immaterial(seed):
    y, mean, std = random_mixture(seed)
    rng = np.random.default_rng(seed)
    points, components = rng.permutation(y.size), rng.permutation(len(mean))
    shuffled = arrays(y[points], mean[components][:, points], std[components][:, points])
    for score in map(jax.jit, (metrics.nll, metrics.crps, metrics.interval_coverage)):
        np.testing.assert_allclose(score(*shuffled), score(*arrays(y, mean, std)), rtol=1e-10)


def test_coverage_counts_ends_as_inside():
    y, low, high = arrays([0.0, 1.0, 2.0, 3.0], [0.0, 1.5, 1.0, 0.0], [1.0, 2.0, 2.0, 2.9])
    assert metrics.coverage(y, low, high) == 0.5


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_interval_coverage_is_the_level_when_the_predictive_is_right(level):
    rng = np.random.default_rng(3)
    num_points = 20000
    mean, std = np.array([-2.0, 0.0, 4.0]), np.array([0.2, 1.0, 0.5])
    which = rng.integers(0, 3, num_points)
    y = jnp.asarray(rng.normal(mean[which], std[which]))
    tiled = (jnp.tile(jnp.asarray(v)[:, None], (1, num_points)) for v in (mean, std))
    got = metrics.interval_coverage(y, *tiled, level=level)
    assert abs(got - level) < 4 * np.sqrt(level * (1 - level) / num_points)


def test_masks_restrict_to_the_points_they_keep():
    y, mean, std = random_mixture()
    keep = np.array([True, False, True, True, False, False])
    for score in (metrics.nll, metrics.crps, metrics.interval_coverage):
        kept = score(*arrays(y[keep], mean[:, keep], std[:, keep]))
        np.testing.assert_allclose(score(*arrays(y, mean, std), where=jnp.asarray(keep)), kept, rtol=1e-12)
        assert jnp.isnan(score(*arrays(y, mean, std), where=jnp.zeros(6, bool)))


def test_near_and_far_split_by_the_nearest_support_input():
    x, support = jnp.array([[-4.0], [0.5], [1.0], [2.0], [9.0]]), jnp.array([[0.0], [8.5]])
    near, far = metrics.near_and_far(x, support, 1.0)
    assert near.tolist() == [False, True, True, False, True]
    assert far.tolist() == [True, False, False, True, False]
    plane, corner = jnp.array([[3.0, 4.0]]), jnp.zeros((1, 2))
    assert [bool(metrics.near_and_far(plane, corner, r)[0][0]) for r in (4.99, 5.0)] == [False, True]


def test_without_support_every_point_is_far():
    near, far = metrics.near_and_far(jnp.zeros((3, 1)), jnp.zeros((0, 1)), 1e9)
    assert not near.any() and far.all()


@QUICK
@given(SEEDS, st.sampled_from([3, 5, 1000]))
def test_rank_correlation_agrees_with_scipy_with_ties(seed, distinct):
    rng = np.random.default_rng(seed)
    std = rng.integers(0, distinct, 40).astype(float)
    error = std + rng.integers(-distinct, distinct, 40)
    expected = np.asarray(scipy.stats.spearmanr(std, error))[0]
    np.testing.assert_allclose(metrics.rank_correlation(*arrays(std, error)), expected, atol=1e-12)


def test_rank_correlation_sees_only_order():
    std = jnp.array([[0.1, 0.2], [0.3, 0.4]])
    assert metrics.rank_correlation(std, jnp.exp(9 * std)) == pytest.approx(1.0, abs=1e-15)
    assert metrics.rank_correlation(std, -std) == pytest.approx(-1.0, abs=1e-15)
    assert jnp.isnan(metrics.rank_correlation(std, jnp.ones_like(std)))


# --- classes ----------------------------------------------------------------------------------------------------------


def test_class_scores_of_a_table_made_by_hand():
    p, labels = jnp.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]), jnp.array([0, 1])
    assert metrics.accuracy(p, labels) == 0.5
    np.testing.assert_allclose(metrics.log_loss(p, labels), -(np.log(0.7) + np.log(0.3)) / 2, rtol=1e-12)
    np.testing.assert_allclose(metrics.brier(p, labels), (0.09 + 0.04 + 0.01 + 0.01 + 0.49 + 0.36) / 2, rtol=1e-12)


def test_certain_and_right_or_wrong():
    p = jnp.eye(3)
    right, wrong = jnp.arange(3), (jnp.arange(3) + 1) % 3
    assert (metrics.accuracy(p, right), metrics.log_loss(p, right), metrics.brier(p, right)) == (1, 0, 0)
    assert (metrics.accuracy(p, wrong), metrics.brier(p, wrong)) == (0, 2)
    assert jnp.isfinite(metrics.log_loss(p, wrong)) and metrics.log_loss(p, wrong) > 700
    for labels, error in ((right, 0.0), (wrong, 1.0)):
        table = metrics.reliability(p, labels)
        assert (metrics.ece(table), metrics.mce(table)) == (error, error)


def test_bins_made_by_hand():
    # (0.5, 0.75]: 4 predictions of mean confidence .65, half right; (0.75, 1]: 2 of mean .85, all right.
    p, labels = binned([0.6, 0.7, 0.6, 0.7, 0.8, 0.9], [1, 0, 0, 1, 1, 1])
    table = metrics.reliability(p, labels, num_bins=4)
    assert table.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert table.count.tolist() == [0, 0, 4, 2]
    np.testing.assert_allclose(table.confidence, [0, 0, 0.65, 0.85], atol=1e-15)
    np.testing.assert_allclose(table.accuracy, [0, 0, 0.5, 1.0], atol=1e-15)
    np.testing.assert_allclose(metrics.ece(table), (4 * 0.15 + 2 * 0.15) / 6, atol=1e-15)
    np.testing.assert_allclose(metrics.mce(table), 0.15, atol=1e-15)


def test_mce_is_the_worst_bin_and_can_ignore_rare_ones():
    p, labels = binned([0.55] * 10 + [0.95], [1] * 6 + [0] * 4 + [0])
    table = metrics.reliability(p, labels, num_bins=10)
    np.testing.assert_allclose(metrics.ece(table), (10 * 0.05 + 0.95) / 11, atol=1e-14)
    np.testing.assert_allclose(metrics.mce(table), 0.95, atol=1e-14)
    np.testing.assert_allclose(metrics.mce(table, min_count=2), 0.05, atol=1e-14)
    assert jnp.isnan(metrics.mce(table, min_count=11))
    with pytest.raises(ValueError, match="at least 1"):
        metrics.mce(table, min_count=0)


@pytest.mark.parametrize("bins", [10, 15])
def test_calibration_errors_are_those_of_torchmetrics(bins):
    """Recorded by reference/record_calibration.py, which computes in single precision."""
    with np.load(Path(__file__).parent / "reference" / "torchmetrics_calibration.npz") as recorded:
        table = metrics.reliability(
            jnp.asarray(recorded["probabilities"]), jnp.asarray(recorded["labels"]), num_bins=bins
        )
        assert float(metrics.ece(table)) == pytest.approx(float(recorded[f"ece_{bins}"]), abs=1e-6)
        assert float(metrics.mce(table)) == pytest.approx(float(recorded[f"mce_{bins}"]), abs=1e-6)


def test_empty_bins_are_skipped():
    p, labels = binned([0.9] * 10, [1] * 9 + [0])
    for num_bins in (1, 7, 100):
        table = metrics.reliability(p, labels, num_bins=num_bins)
        assert np.count_nonzero(table.count) == 1
        np.testing.assert_allclose([metrics.ece(table), metrics.mce(table)], 0, atol=1e-14)


@pytest.mark.parametrize("num_bins", [10, 15, 20])
def test_an_edge_belongs_to_the_bin_below(num_bins):
    edges = np.linspace(0, 1, num_bins + 1)
    above_half = edges[edges > 0.5]
    table = metrics.reliability(*binned(above_half, np.ones(above_half.size, int)), num_bins=num_bins)
    expected = np.zeros(num_bins, int)
    expected[-above_half.size :] = 1
    assert table.count.tolist() == expected.tolist()


def test_no_bins_is_refused():
    with pytest.raises(ValueError, match="num_bins"):
        metrics.reliability(*arrays(*random_classes()), num_bins=0)


@QUICK
@given(SEEDS, st.sampled_from([1, 7, 15]))
def test_reliability_agrees_with_a_loop(seed, num_bins):
    p, labels = random_classes(seed)
    table = jax.jit(metrics.reliability, static_argnames="num_bins")(*arrays(p, labels), num_bins=num_bins)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    gaps = []
    for low, high in itertools.pairwise(np.asarray(table.edges)):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gaps.append((inside.sum(), abs(right[inside].mean() - confidence[inside].mean())))
    np.testing.assert_allclose(metrics.ece(table), sum(n * gap for n, gap in gaps) / len(p), atol=1e-12)
    np.testing.assert_allclose(metrics.mce(table), max(gap for _, gap in gaps), atol=1e-12)


@QUICK
@given(SEEDS)
def test_class_metrics_are_bounded_and_ignore_order(seed):
    p, labels = random_classes(seed)
    order = np.random.default_rng(seed).permutation(len(p))
    got, shuffled = (np.array(class_scores(*arrays(p[rows], labels[rows]))) for rows in (slice(None), order))
    assert np.all(got >= 0) and np.all(got <= [1, 2, np.inf, 1, 1])
    assert got[3] <= got[4] + 1e-12  # a mean of gaps is at most the largest
    np.testing.assert_allclose(shuffled, got, atol=1e-12)


@jax.jit
def class_scores(p, labels):
    table = metrics.reliability(p, labels)
    classes = [metric(p, labels) for metric in (metrics.accuracy, metrics.brier, metrics.log_loss)]
    return [*classes, metrics.ece(table), metrics.mce(table)]


def test_the_printed_table_names_every_full_bin_and_its_rule():
    p, labels = binned([0.55] * 10 + [0.95], [1] * 6 + [0] * 5)
    text = metrics.format_reliability(metrics.reliability(p, labels, num_bins=10), min_count=2)
    lines = text.splitlines()
    assert len(lines) == 4
    assert lines[1].split() == ["(0.50,", "0.60]", "10", "0.5500", "0.6000", "+0.0500"]
    assert lines[2].split() == ["(0.90,", "1.00]", "1", "0.9500", "0.0000", "-0.9500"]
    assert lines[3] == "ECE 0.1318, MCE 0.0500 over 11 predictions (bins of fewer than 2 ignored in MCE)"
    assert len({len(line) for line in lines[:3]}) == 1


# --- everything -------------------------------------------------------------------------------------------------------


def every_metric(y, mean, std, p, labels):
    table = metrics.reliability(p, labels)
    near, _ = metrics.near_and_far(y[:, None], mean[0][:, None], 1.0)
    return {
        "mse": metrics.mse(y, mean[0], where=near),
        "nll": metrics.nll(y, mean, std),
        "crps": metrics.crps(y, mean, std),
        "interval_coverage": metrics.interval_coverage(y, mean, std, level=0.8),
        "rank_correlation": metrics.rank_correlation(std[0], jnp.abs(y - mean[0])),
        "accuracy": metrics.accuracy(p, labels),
        "log_loss": metrics.log_loss(p, labels),
        "brier": metrics.brier(p, labels),
        "ece": metrics.ece(table),
        "mce": metrics.mce(table, min_count=2),
    }


def test_jitted_and_in_single_precision_the_numbers_are_the_same():
    inputs = (*random_mixture(), *random_classes())
    plain, jitted = every_metric(*arrays(*inputs)), jax.jit(every_metric)(*arrays(*inputs))
    single = jax.jit(every_metric)(*(jnp.asarray(v, jnp.float32 if v.dtype.kind == "f" else jnp.int32) for v in inputs))
    for name, value in plain.items():
        np.testing.assert_allclose(jitted[name], value, rtol=1e-10, err_msg=name)
        np.testing.assert_allclose(single[name], value, rtol=1e-4, err_msg=name)
        assert single[name].dtype == jnp.float32, name
