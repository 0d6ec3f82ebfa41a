"""The studies of A* and of many steps: small runs of them, and the truths on which they rest."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from experiments import a_star, a_star_report, many_steps, many_steps_report, regression, search, study
from metaprior import figures
from metaprior.evaluation import TEST_SEED, scores
from metaprior.predict import Calibration
from metaprior.training import initial_state

STUDIES = {"a-star": a_star, "many-steps": many_steps}
close = np.testing.assert_allclose


@pytest.fixture(scope="module")
def results():
    """Both at the smallest scale, as they come back from their files; float32 outside, as for a user."""
    with jax.enable_x64(False):
        found = {name: study.run(module.STUDY, module.SMOKE, scale="smoke") for name, module in STUDIES.items()}
    return json.loads(json.dumps(found))


# -- as studies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_rows_are_whole_and_not_repeated(results, name):
    rows = results[name]["rows"]
    for row in rows:
        assert set(row) == set(study.COLUMNS)
        assert row["experiment"] == name and row["mean"] is not None
    assert len({(row["setting"], row["method"], row["metric"]) for row in rows}) == len(rows)


@pytest.mark.parametrize("name", STUDIES)
def test_results_alone_give_figure_remarks_and_table(results, name, tmp_path):
    chosen = STUDIES[name].STUDY
    figures.save(chosen.figure(results[name]), tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    said = chosen.remarks(results[name])
    assert said and all(text.endswith(".") and "nan" not in text for text in said)
    table = chosen.shown(results[name])
    assert table and all(row in results[name]["rows"] for row in table)


# -- A* --------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31 - 1), mixed=st.sampled_from([1, 3, 7]))
def test_shares_are_convex_and_as_many_as_asked(seed, mixed):
    shares = np.asarray(_shares(seed, mixed))
    assert (shares >= 0).all()
    close(shares.sum(axis=1), 1.0, rtol=1e-12)
    assert ((shares > 0).sum(axis=1) == mixed).all()


def _shares(seed, mixed):
    return jax.jit(a_star.hull_weights, static_argnums=(1, 2, 3))(jax.random.key(seed), 5, 7, mixed)


def test_shares_are_uniform_on_the_simplex():
    """Of Dirichlet(1, 1, 1): mean 1/3, variance 1/18."""
    shares = np.asarray(a_star.hull_weights(jax.random.key(0), 20_000, 3, 3))
    close(shares.mean(axis=0), 1 / 3, atol=0.006)
    close(shares.var(axis=0), 1 / 18, atol=0.002)


def test_points_lie_in_the_hull():
    vertices = jax.random.normal(jax.random.key(1), (12, 2))
    points = np.asarray(a_star.hull_points(a_star.hull_weights(jax.random.key(2), 50, 12, 3), vertices))
    faces = ConvexHull(vertices).equations  # n·x + d ≤ 0 inside
    assert (points @ faces[:, :-1].T + faces[:, -1] < 1e-9).all()


def test_controls_are_as_far_away_as_their_points():
    theta, points = jax.random.normal(jax.random.key(3), (6,)), jax.random.normal(jax.random.key(4), (9, 6))
    inside, random, mirrored = a_star.beside(jax.random.key(5), theta, points)
    close(inside, points)
    away, aside = np.asarray(points) - np.asarray(theta), np.asarray(random) - np.asarray(theta)
    close(np.linalg.norm(aside, axis=1), np.linalg.norm(away, axis=1), rtol=1e-12)
    close((mirrored + points) / 2, np.broadcast_to(theta, points.shape), rtol=1e-12)
    cosines = (aside * away).sum(axis=1) / np.square(away).sum(axis=1)
    assert np.unique(np.round(cosines, 6)).size == 9 and (np.abs(cosines) < 0.999).all()


@pytest.fixture(scope="module")
def setup():
    return regression.set_up(search.best("maml", "sinusoid"), tasks="sinusoid", iterations=0)


def test_errors_are_those_of_the_evaluation(setup):
    """Same tasks, same numbers as the judge of all other studies."""
    state = initial_state(setup, 0)
    at = (0, 1, 2)
    anyhow = Calibration(*jnp.zeros((2, 3)))  # widths and noise do not move the mean
    judged = scores(setup, state, anyhow, at=at, num_tasks=3)
    found = jax.jit(lambda state: a_star.adapt(setup, state, jax.random.key(TEST_SEED), 3, 2)[0])(state)
    close(found["MSE"], judged.mse, rtol=1e-9)


def test_a_moved_prior_keeps_its_widths():
    gem = regression.set_up(search.best("gem-bml+", "sinusoid"), tasks="sinusoid", iterations=0)
    state = initial_state(gem, 0)
    elsewhere = jax.tree.map(lambda leaf: leaf + 1.0, state.prior.dist.mean)
    moved = a_star.with_mean(state, elsewhere)
    jax.tree.map(close, moved.prior.dist.mean, elsewhere)
    jax.tree.map(close, moved.prior.dist.log_std, state.prior.dist.log_std)


def test_one_of_one_is_the_adapted_weights(setup):
    """With a single task, every point of A* is its θ, and starts are judged as that."""
    settings = replace(a_star.SMOKE, adapted=1, mixed=(1,), points=2, steps=2, test_tasks=2)
    state = initial_state(setup, 0)
    found = jax.jit(lambda state: a_star.explore(settings, setup, state))(state)
    close(found.where[0], np.broadcast_to(found.adapted, found.where[0].shape))
    starts = found.starts["MSE"]
    close(starts[0, 0, 0], starts[0, 0, 1])
    assert np.abs(found.adapted[0]).max() > 0
    assert np.abs(starts[0, 0, 0] - found.trained["MSE"]).max() > 0


def test_the_outline_in_the_plane():
    points = np.random.default_rng(0).normal(size=(40, 2))
    assert set(a_star_report._hull(points)) == set(ConvexHull(points).vertices)


def test_remarks_on_a_star_follow_the_numbers(results):
    one = json.loads(json.dumps(results["a-star"]))
    for row in one["rows"]:
        if "minus" in row["metric"]:
            row["mean"], row["ci95"] = -1.0 if row["metric"] == "MSE after 0 minus Θ" else 1.0, 0.5
    said = a_star.STUDY.remarks(one)
    assert "is best after adaptation holds:" in said[1]
    assert "less error before adaptation holds:" in said[3]
    assert "lying near Θ is enough" in said[4]
    for row in one["rows"]:
        row["mean"] = -row["mean"]
    said = a_star.STUDY.remarks(one)
    assert "is best after adaptation does not show" in said[1]
    assert "less error before adaptation does not hold" in said[3]
    assert "it does" in said[4]


# -- many steps ------------------------------------------------------------------------------------


def costs(results):
    return (results["many-steps"]["curves"][f"cost/{name}"] for name in ("gem-bml+, mini-batches", "maml, all points"))


def test_memory_of_gem_stays_and_that_of_maml_grows_in_a_line(results):
    gem, maml = costs(results)
    assert gem["steps"] == [10, 100]
    assert gem["bytes"][0] == gem["bytes"][1]
    assert 7 < maml["bytes"][1] / maml["bytes"][0] < 10
    said = many_steps.STUDY.remarks(results["many-steps"])
    assert "stays for gem-bml+" in said[0] and "grows for none" in said[0]
    assert said[1].startswith("maml, all points: every further step keeps") and not said[2].startswith("gem-bml+")


def test_what_maml_keeps_of_a_step_holds_its_weights(results):
    """Back-propagation needs the weights before every step: no less than one copy a step, of all tasks."""
    _, maml = costs(results)
    slope = (maml["bytes"][1] - maml["bytes"][0]) / 90
    weights = 5 * 4 * (2 * 40 + 40 * 40 + 40 + 40 + 1)
    assert maml["bytes of the weights of all tasks"] == weights
    assert weights < slope < 10 * weights


def test_steps_looked_at():
    assert many_steps.steps_at(many_steps.Settings())[-1] == 500
    assert many_steps.steps_at(many_steps.SMOKE) == [0, 1, 2, 5, 6]


def test_arms_differ_in_steps_and_length():
    settings = many_steps.Settings()
    for name in settings.trained:
        changes = many_steps.variant_of(settings, name, 7, 20).changes
        assert changes["steps"] == (7, 0 if name == "maml" else 7)
        assert changes["options"]["batch_size"] == 20
    assert ("train", "maml", many_steps.SAME_TIME) in many_steps.cells(settings)
    assert many_steps_report.LINES.keys() == set(many_steps.ARMS)


def test_adaptations_that_diverge_are_counted_and_left_out():
    found = np.ones((2, 3, 5)) * np.arange(1.0, 4.0)[None, :, None]
    found[1, 2, 3:] = np.nan
    more = {"iterations": 1, "seconds": 1.0}
    scored = many_steps._scored(many_steps.SMOKE, "reptile", many_steps.LONG, found, [], more)
    values = {row["metric"]: row["mean"] for row in scored["rows"]}
    assert values["MSE after 6"] == 1.5
    assert values["adaptations that diverged"] == 1
    assert "adaptations that diverged" not in {
        row["metric"]
        for row in many_steps._scored(many_steps.SMOKE, "reptile", many_steps.LONG, found[:1], [], more)["rows"]
    }


def test_the_verdict_on_many_steps_follows_the_numbers(results):
    one = json.loads(json.dumps(results["many-steps"]))
    mine = one["curves"]["train/reptile/many steps"]
    for factor, verdict in (
        (2.0, "it pays: 0.5 (0.5 to 0.5) times the mean error"),
        (0.5, "it does not pay: 2 (2 to 2) times"),
    ):
        theirs = mine | {"task_mse": np.multiply(mine["task_mse"], factor).tolist()}
        one["curves"]["train/reptile/few steps, same time"] = theirs
        assert any(verdict in text for text in many_steps.STUDY.remarks(one))
