"""Bands of the page: what they promise they keep on curves that nobody saw, whatever the number of points."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import page_curves, page_priors, page_report
from metaprior.evaluation import TEST_SEED
from metaprior.page import bands, curves, priors
from metaprior.page.bands import Bands
from metaprior.page.curves import Truth
from metaprior.predict import Calibration
from metaprior.settings import Settings
from metaprior.tasks.sinusoid import SETTINGS

pytestmark = pytest.mark.usefixtures("quick_compile_here")

DEFAULT = Settings().method
CASES = [*itertools.product(priors.CURVES, priors.METHODS)]


@pytest.fixture(scope="module")
def opened():
    return curves.opened()


def card(tasks, method):
    return json.loads((priors.FOLDER / f"{priors.curve_name(tasks, method)}.json").read_text())


def values(calibration):
    return np.stack([np.asarray(part) for part in calibration])


# --- between numbers of points ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "method"), CASES)
def test_fitted_numbers_of_points_have_the_fitted_bands(opened, tasks, method):
    kept = card(tasks, method)["calibration"]
    assert kept["points"] == list(page_curves.POINTS)
    for row, count in enumerate(page_curves.POINTS):
        expected = np.array([kept[name][row] for name in Calibration._fields])
        assert expected.shape == (5, curves.STEPS + 1) and np.isfinite(expected).all()
        np.testing.assert_allclose(values(bands.at(opened.bands[tasks, method], count)), expected, rtol=1e-9, atol=1e-9)


def test_between_them_numbers_are_linear_in_the_logarithm(opened):
    some = opened.bands["sinusoid", DEFAULT]
    three, four, five = (values(bands.at(some, count)) for count in (3, 4, 5))
    share = np.log(4 / 3) / np.log(5 / 3)
    np.testing.assert_allclose(four, (1 - share) * three + share * five, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(
        values(bands.at(some, 0)), values(bands.at(some, 1))
    )  # the prior, whose numbers are shared
    assert np.ptp(values(some.calibration)[:, :, 0], axis=1).max() == 0


def test_what_a_card_holds_is_read_as_it_was():
    given = Bands(jnp.array([1.0, 3.0]), Calibration(*jnp.arange(20.0).reshape(5, 2, 2)))
    again = bands.of_card(json.loads(json.dumps(bands.card_values(given))))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), given, again))


# --- coverage ---------------------------------------------------------------------------------------------------------


def coverages(opened, tasks, method, count, num_curves):
    """Through the page's own answers, on curves drawn by numpy, no task of any split."""
    rng, ranges, found = np.random.default_rng(7), SETTINGS[tasks], []
    for _ in range(num_curves):
        truth = Truth(*(rng.uniform(*getattr(ranges, name)) for name in ("amplitude", "frequency", "phase")))
        x = rng.uniform(curves.LEFT, curves.RIGHT, count)
        points = [*zip(x, truth.amplitude * np.sin(truth.frequency * x + truth.phase), strict=True)]
        found.append(opened.answer(tasks, method, points, curves.STEPS, truth)["coverage"])
    return np.array(found)


@pytest.mark.parametrize("tasks", priors.CURVES)
def test_nine_tenths_of_unseen_curves_lie_in_the_band_after_three_points(opened, tasks):
    assert 0.8 < coverages(opened, tasks, DEFAULT, 3, 100).mean() < 0.97


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "method"), CASES)
def test_coverage_after_any_number_of_points_is_that_of_the_card(opened, tasks, method):
    """Within four standard errors of both; it is about nine tenths, but for methods that diverge on a tenth of the tasks."""
    scores = card(tasks, method)["scores"]
    said = zip(scores["points"], scores["coverage90"], scores["coverage90_ci95"], scores["ran_away"], strict=True)
    for count, share, half, ran_away in said:
        found = coverages(opened, tasks, method, count, 150)
        error = np.hypot(half / 1.96, found.std() / len(found) ** 0.5)
        assert abs(found.mean() - share) < 4 * error, (count, found.mean(), share)
        assert share > 0.85 - ran_away and share < 0.98, (count, share)


# --- cards ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "method"), CASES)
def test_cards_have_scores_for_every_number_of_points(tasks, method):
    scores = card(tasks, method)["scores"]
    assert scores["points"] == list(page_curves.SCORED) and scores["steps"] == curves.STEPS
    assert all(len(scores[name]) == len(page_curves.SCORED) for name in ("mse", "nll", "coverage90"))
    assert f"{100 * scores['coverage90'][2]:.1f} %" in page_report.curves()


def test_scores_of_a_card_are_those_of_its_bands(opened):
    """On the first tasks of six hundred: within four standard errors of a mean over them."""
    tasks, few = "sinusoid", 60
    scores, where = card(tasks, DEFAULT)["scores"], (tasks, DEFAULT)
    test = page_curves.first(page_curves.shown(tasks, TEST_SEED, few, page_curves.TEST_INPUTS), 3)
    found = page_curves.programs(DEFAULT).score(opened.small[where].prior, opened.bands[where], test)
    error = scores["coverage90_ci95"][2] / 1.96 * (scores["tasks"] / few) ** 0.5
    assert float(found.coverage90.mean()) == pytest.approx(scores["coverage90"][2], abs=4 * error)


def test_tasks_with_fewer_points_are_the_same_tasks():
    whole = page_curves.shown("sinusoid-challenging", TEST_SEED, 3, 5)
    few = page_curves.first(whole, 2)
    assert few.points.present.sum(axis=1).tolist() == [2, 2, 2] and few.points.present[:, :2].all()
    np.testing.assert_array_equal(few.points.x, whole.points.x)
    assert whole.x.tolist() == [-5.0, -2.5, 0.0, 2.5, 5.0] and whole.y.shape == (3, 5)


def test_bands_are_fitted_again_and_the_prior_stays(tmp_path, monkeypatch):
    """The command on a copy: arrays and origin untouched, a new calibration that says where it comes from."""
    name = priors.curve_name("sinusoid", "gem-bml+last-layer")
    for end in ("json", "safetensors"):
        (tmp_path / f"{name}.{end}").write_bytes((priors.FOLDER / f"{name}.{end}").read_bytes())
    before, arrays = card("sinusoid", "gem-bml+last-layer"), (tmp_path / f"{name}.safetensors").read_bytes()
    for word, value in (("VALIDATION_TASKS", 5), ("TEST_TASKS", 5), ("FIT_STEPS", 2), ("SCORED", (1, 3))):
        monkeypatch.setattr(page_curves, word, value)
    words = ["page_priors", "sinusoid", "--methods", "gem-bml+last-layer", "--calibrate", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    page_curves.programs.cache_clear()
    page_priors.main()
    page_curves.programs.cache_clear()
    after = json.loads((tmp_path / f"{name}.json").read_text())
    assert (tmp_path / f"{name}.safetensors").read_bytes() == arrays
    assert after["origin"] == before["origin"] and after["settings"] == before["settings"]
    assert after["scores"]["tasks"] == 5 and after["scores"]["points"] == [1, 3]
    assert np.array(after["calibration"]["log_width"]).shape == (len(page_curves.POINTS), curves.STEPS + 1)
    assert "--calibrate" in after["calibrated"]["command"]


def test_a_prior_of_other_settings_is_not_calibrated(tmp_path):
    name = priors.curve_name("sinusoid", "maml")
    for end in ("json", "safetensors"):
        (tmp_path / f"{name}.{end}").write_bytes((priors.FOLDER / f"{name}.{end}").read_bytes())
    asked = page_priors.Asked(out=tmp_path, calibrate=True)
    with pytest.raises(SystemExit, match="trained with other settings"):
        page_priors.again(Settings("sinusoid", "maml", iterations=7), name, asked)
