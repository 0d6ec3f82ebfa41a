"""Every experiment runs at smoke scale, and what the studies of curves share does what it says."""

import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import experiments
from experiments import figure_2a, regression, search, study
from metaprior.evaluation import pool
from metaprior.meta import trainer
from metaprior.training import initial_state, require_stable

IMAGES = ("omniglot", "miniimagenet", "calibration", "inner-optimisers", "time-to-accuracy")  # see test_study_images
IMAGES += (
    "image-search",
    "long-trials",
    "adaptation-steps",
    "a-star-omniglot",
)  # see test_study_image_search, _long_trials, _adaptation_steps, _a_star_omniglot
RL = ("rl-navigation", "rl-cheetah-velocity", "rl-cheetah-direction")  # see test_study_rl
STEPS = "rl-step-sizes"  # see test_study_rl_steps


# What others show as well: these train the methods of `sinusoid-default` on other tasks or with other numbers of steps.
LONG = ("sinusoid-challenging", "multi-modal", "matrix", "inner-steps", "federated")
# By tests of their own: see test_study_linear, test_study_curves, test_study_memory and test_docs_tables.
LONG += ("gradient-error", "estimator-variance", "a-star", "many-steps", "compute-memory", "mixed-model")
LONG += ("leakage-images", "estimator-defaults", "search")  # by leakage, fertility and the image search
# One method is enough to see a study run; what the others train is trained by the slow ones.
FEWER = {"sinusoid-default": {"methods": ("gem-bml+last-layer",)}}
SMOKE = [
    pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
    for name in experiments.NAMES
    if name not in (*IMAGES, *RL, STEPS)
]


@pytest.mark.parametrize("name", SMOKE)
@pytest.mark.usefixtures("quick_compile")
def test_smoke_scale_runs_from_cells_to_figure(name):
    one = experiments.get(name)
    settings = replace(one.scales["smoke"], **FEWER.get(name, {}))
    results = json.loads(json.dumps(study.run(one, settings, scale="smoke")))
    assert results["rows"]
    assert all(tuple(row) == study.COLUMNS for row in results["rows"])
    assert {row["experiment"] for row in results["rows"]} == {name}
    assert results["settings"]["scale"] == "smoke"
    assert isinstance(one.figure(results), Figure)
    assert all(isinstance(sentence, str) and sentence for sentence in one.remarks(results))
    shown = one.shown(results)
    assert shown and all(row in results["rows"] for row in shown)


def _lost(name):
    """Results of a study, made by hand: every mean of the first method is missing on one seed."""
    if name == "inner-steps":
        settings = {"seeds": [0, 1], "steps": [1, 5], "methods": ["bmaml", "maml"], "at": [0, 10]}
        mse = {"bmaml": [0.3, None], "maml": [0.2, 0.4]}
        cells = {f"{s}/{m}/{k}": {"mse": mse[m]} for s in figure_2a.SETTINGS for m in mse for k in (1, 5)}
    elif name == "multi-modal":
        settings = {"seeds": [0, 1], "methods": ["maml"], "shots": [3], "steps": 2}
        cells = {
            f"maml/{t}/{k}/3": {"mse": [0.3, None]} for k in ("sinusoid", "lines", "parabolas") for t in ("mixture", k)
        }
    else:
        settings = {"tasks": "t", "posteriors": ["point"], "rows": ["elbo", "gem"], "columns": ["joint"], "at": [0, 10]}
        settings |= {"methods": ["bmaml", "maml"]}
        lost, kept = {"mse": [[4.0, 0.3], [4.0, None]]}, {"mse": [[4.0, 0.2], [4.0, 0.4]]}
        cells = {"cell/point/elbo/joint": lost, "cell/point/gem/joint": kept, "row/bmaml": lost, "row/maml": kept}
    return {"settings": settings, "rows": [], "curves": cells}


@pytest.mark.parametrize("name", ["inner-steps", "multi-modal", "matrix"])
def test_what_ran_away_is_said_and_not_averaged_over(name):
    """A null of the JSON breaks neither figure nor remarks, and no mean over the other seeds stands in for it."""
    one, results = experiments.get(name), json.loads(json.dumps(_lost(name)))
    one.figure(results).canvas.draw()
    words = " ".join(one.remarks(results))
    assert "ran away" in words
    assert "nan" not in words.replace("gem as a share of elbo's: joint nan", "")
    assert np.isnan(study.average([0.3, None])) and study.average([0.2, 0.4]) == pytest.approx(0.3)


@pytest.mark.parametrize("name", experiments.NAMES)
def test_full_scale_is_what_was_promised(name):
    """Three seeds, six of agents, and 40,000 iterations where methods are compared."""
    settings = experiments.get(name).scales["full"]
    once = ("image-search", "long-trials", "inner-optimisers", "time-to-accuracy")
    assert len(settings.seeds) == (1 if name in once else 6 if name in RL else 3)
    if name in ("sinusoid-default", "sinusoid-challenging", "inner-steps", "multi-modal", "matrix"):
        assert settings.iterations == 40_000


@pytest.mark.parametrize("name", [name for name in regression.VARIANTS if name not in figure_2a.NOT_IN_PAPER])
def test_the_papers_settings_are_the_papers(name):
    variant = regression.as_in_the_paper(name)
    setup = regression.set_up(variant, tasks="sinusoid-challenging", iterations=40_000)
    method = setup.learner.method
    assert (method.rate, method.meta_rate, method.meta_batch, method.steps[0]) == (1e-3, 1e-3, 5, 1)
    assert setup.settings.decay is False
    if method.posterior == "mean-field":  # the mean loss beside a KL of weight one
        support = setup.tasks.sample(jax.random.key(0)).support
        assert setup.likelihood.effective_size(support) == pytest.approx(1.0)
    require_stable(setup, initial_state(setup))


def test_training_error_is_the_squared_error():
    """−log p of the squared-error likelihood, and of an exact head with noise of its own, come back as errors."""
    for name in ("maml", "gem-bml+last-layer"):
        setup = regression.set_up(regression.VARIANTS[name], tasks="sinusoid", iterations=1)
        episode = setup.tasks.sample(jax.random.key(3))
        state = initial_state(setup, 7)
        params = setup.learner.cell.family.mean(setup.learner.cell.family.start(state.prior.dist))
        nll = -setup.likelihood.log_prob(params, episode.query) / episode.query.y.shape[0]
        error = jnp.square(setup.model.apply(params, episode.query.x) - episode.query.y).mean()
        np.testing.assert_allclose(regression.training_error(setup, nll), error, rtol=1e-9)


@pytest.mark.slow
def test_seeds_side_by_side_are_the_seeds_one_by_one():
    setup = regression.set_up(regression.VARIANTS["maml"], tasks="sinusoid", iterations=5)
    states, errors, finite = regression.train(setup, (3, 8))
    for place, seed in enumerate((3, 8)):
        alone, infos = trainer(setup.learner, setup.tasks.sample, 5)(initial_state(setup, seed), 5)
        for a, b in zip(jax.tree.leaves(alone.prior), jax.tree.leaves(states.prior), strict=True):
            np.testing.assert_allclose(a, b[place], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(regression.training_error(setup, infos.query_nll), errors[place], rtol=1e-9)
    assert finite.all()


@pytest.mark.slow
def test_a_traced_setting_trains_as_a_plain_one():
    """The search in one program finds what one training after the other would."""
    rates = (0.003, 0.02)

    def trained(rate):
        variant = search.changed(regression.VARIANTS["gem-bml+"], {"rate": rate, "meta_rate": 2e-3, "steps": (2, 2)})
        setup = regression.set_up(variant, tasks="sinusoid", iterations=6)
        return trainer(setup.learner, setup.tasks.sample, 5)(initial_state(setup, 1), 6)[0].prior

    together = jax.jit(jax.vmap(trained))(jnp.asarray(rates))
    for place, rate in enumerate(rates):
        for a, b in zip(jax.tree.leaves(trained(rate)), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(a, b[place], rtol=1e-7, atol=1e-10)


def test_the_best_setting_is_the_one_of_least_validation_nll(monkeypatch):
    tried = lambda *values: [{"changes": {"rate": nll, "steps": [2, 0]}, "nll": nll, "mse": 0.0} for nll in values]
    results = {
        "curves": {
            "sinusoid/maml/1": tried(3.0, None),
            "sinusoid/maml/5": tried(1.0, 2.0),
            "sinusoid/maml2/1": tried(0.1),
        }
    }
    monkeypatch.setattr(search, "_results", lambda: results)
    best = search.best("maml", "sinusoid")
    assert best.changes["rate"] == 1.0
    assert best.changes["steps"] == (2, 0)  # lists of JSON are tuples again
    assert best.changes["clip"] == regression.VARIANTS["maml"].changes["clip"]
    with pytest.raises(ValueError, match="no result for reptile on sinusoid: run metaprior reproduce search"):
        search.best("reptile", "sinusoid")


def test_rows_pool_coverage_over_points_and_not_over_tasks():
    """Two tasks with 1 of 4 and 3 of 4 points near: shares are weighted by points."""
    from metaprior.evaluation import TaskScores

    near, inside_near, inside_far = np.array([0.25, 0.75]), np.array([0.0, 0.75]), np.array([0.75, 0.0])
    other: dict[str, Any] = {name: np.zeros((1, 2, 1)) for name in TaskScores._fields}
    given = {"share_near": near, "coverage90_near": inside_near, "coverage90_far": inside_far}
    filled: dict[str, Any] = other | {name: value[None, :, None] for name, value in given.items()}
    found = regression.rows(TaskScores(**filled), setting="s", method="m", at=(0,), shown=(0,))
    values = {row["metric"]: row["mean"] for row in found}
    assert values["coverage near after 0"] == pytest.approx(0.75 / 1.0)
    assert values["coverage far after 0"] == pytest.approx(0.75 / 1.0)
    assert np.isnan(pool(TaskScores(**{**other, "share_near": np.ones((1, 2, 1))})).coverage90_far).all()
