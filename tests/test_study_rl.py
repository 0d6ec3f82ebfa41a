"""The studies of reinforcement learning: from cells to figure, trainings that go on, measures beside other ways to find them."""

import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import experiments
from experiments import rl, rl_measures, rl_navigation, rl_remarks, rl_training, study
from experiments.rl_measures import Found
from metaprior.evaluation import TEST_SEED
from metaprior.models.base import foreign
from metaprior.rl.evaluation import adapted_returns
from metaprior.rl.rollouts import Rollouts

STUDIES = ("rl-navigation", "rl-cheetah-velocity", "rl-cheetah-direction")
TINY = replace(rl_navigation.SMOKE, horizon=4, methods=("gem-bml+",))


@pytest.fixture(autouse=True)
def kept_apart(monkeypatch, tmp_path, quick_compile):
    """Trainings are kept in a folder of the test."""
    monkeypatch.setattr(rl_training, "STATES", tmp_path / "states")


SLOW = ("rl-cheetah-velocity", "rl-cheetah-direction")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in STUDIES])
def test_studies_run_from_cells_to_figure(name):
    one = experiments.get(name)
    settings = replace(one.scales["smoke"], horizon=4)
    if name not in SLOW:
        settings = replace(settings, methods=("pretrain",))
    results = json.loads(json.dumps(study.run(one, settings, scale="smoke")))
    assert results["rows"] and all(tuple(row) == study.COLUMNS for row in results["rows"])
    one.figure(results).canvas.draw()
    assert isinstance(one.figure(results), Figure)
    assert all(isinstance(sentence, str) and sentence for sentence in one.remarks(results))
    shown = one.shown(results)
    assert len(shown) == len(results["rows"]) and all(row in results["rows"] for row in shown)


@pytest.mark.slow
def test_the_control_without_a_prior_is_measured():
    found = rl.measure(TINY, ("scratch",))
    curve = found["curves"]["scratch"]
    assert [row["metric"] for row in found["rows"]] == ["return after 0", "return after 1", "return after 2"]
    # Before the first update it is the same fresh policy, whatever follows.
    assert curve["returns"][0] == pytest.approx(np.mean(curve["few"][:, 0]), abs=2e-3)
    assert curve["steps"] == [0, 4 * 3, 2 * 4 * 3]


@pytest.fixture(scope="module")
def trained():
    """A method at a few random weights: what is asked here does not depend on training."""
    setup = rl.put(TINY, "gem-bml+")
    return setup, setup.init(jax.random.key(3))


def test_returns_are_those_of_adapted_returns(trained):
    """The same tasks and noise, though trajectories are kept here and not there."""
    setup, state = trained
    found = jax.jit(lambda state: rl_measures.explore(setup, state, updates=2, num_tasks=3, count=3, drawn=1))(state)
    expected = adapted_returns(
        jax.random.key(TEST_SEED), setup.learner, setup.environment, setup.policy, state, steps=2, num_tasks=3, count=3
    )
    np.testing.assert_allclose(found.returns, expected, rtol=1e-9)
    assert found.paths.observations.shape == (1, 3, 2, 4, 2)
    assert found.log_std == pytest.approx(0.0)  # a policy begins with a std of one


def test_spread_of_policies_whose_weights_are_known():
    """Four tasks that go the same length in directions of their own: √2 apart, nothing in common."""
    length, ones = 0.3, jnp.ones((1, 4))
    found = Found(
        returns=ones, away=length**2 * jnp.eye(4)[None], first=0.1 * ones, first_kl=ones, around=2 * ones,
        log_std=jnp.zeros(()), shown=(), paths=Rollouts(*[jnp.zeros((1, 1))] * 4),
    )  # fmt: skip
    measured = rl_measures.spread(found)
    np.testing.assert_allclose(measured["distance between / first step"], 2**0.5 * 3.0)
    np.testing.assert_allclose(measured["share in common"], 0.0, atol=1e-12)
    same = rl_measures.spread(found._replace(away=length**2 * jnp.ones((1, 4, 4))))
    np.testing.assert_allclose(same["distance between / first step"], 0.0, atol=1e-7)
    np.testing.assert_allclose(same["share in common"], 1.0)


def test_divergence_of_two_constant_policies_counts_what_was_lived(trained):
    """KL of Gaussians of one width: half the squared distance of their means; steps beyond an end do not count."""
    setup, _ = trained
    constant = foreign(lambda key: (), lambda mean, x: jnp.concatenate([x * 0 + mean[None], x * 0], axis=1), "constant")
    mask = jnp.array([[1.0, 1.0, 0.0]])
    seen = jnp.array([[[0.0, 0.0], [1.0, 0.0], [jnp.inf, 0.0]]])
    lived = Rollouts(jnp.where(mask[..., None] > 0, seen, 5.0), jnp.zeros((1, 3, 2)), mask, mask)
    one, other = jnp.array([0.3, 0.0]), jnp.array([0.0, 0.4])
    found = rl_measures._divergence(setup._replace(policy=constant), one, other, lived)
    assert found == pytest.approx(0.5 * 0.5**2)


def test_outlines_are_where_the_model_puts_its_limbs():
    """At rest the trunk reaches from −.5 to .5 m at its height; at 2 m/s it is a tenth of a metre on after every step."""
    observations = np.zeros((3, 17))
    observations[:, rl_measures.SPEED] = 2.0
    first, last = rl_measures.outlines(observations, (0, 2))
    trunk = np.asarray(first["ends"])[0]
    np.testing.assert_allclose(sorted(trunk[:, 0]), [-0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(trunk[:, 1], trunk[0, 1], atol=1e-6)
    np.testing.assert_allclose(np.asarray(last["ends"])[:, :, 0] - np.asarray(first["ends"])[:, :, 0], 0.2, atol=2e-3)
    assert len(first["ends"]) == len(first["radii"]) == 8


def test_a_training_that_was_cut_off_goes_on_to_the_same_end(monkeypatch, tmp_path):
    """Killed after the second of three pieces: states and looks equal those of a run without a break, bit for bit."""
    plan = rl.plan_of(replace(TINY, iterations=3, looks=3), "pretrain")
    advance = rl_training.programs(plan)
    train = lambda folder: rl_training.train(plan, advance, (1e-3, 3e-3), (0, 1), 3, folder)
    whole = train(None)
    monkeypatch.setattr(rl_training, "SAVE_SECONDS", 0.0)

    class Killed(Exception):
        pass

    real, saves = rl_training.checkpoints.save, []

    def save(place, done, tree):
        real(place, done, tree)
        saves.append(done)
        if done == 2 and len(saves) == 2:
            raise Killed

    monkeypatch.setattr(rl_training.checkpoints, "save", save)
    with pytest.raises(Killed):
        train(tmp_path / "cut")
    again = train(tmp_path / "cut")
    assert saves == [1, 2, 3]
    plain = lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    for a, b in zip(jax.tree.leaves(whole[:-1]), jax.tree.leaves(again[:-1]), strict=True):
        np.testing.assert_array_equal(plain(a), plain(b))
    assert np.isfinite(whole.looks).all() and not np.array_equal(whole.looks[0], whole.looks[1])


def kept(looks, finite):
    """What a search leaves, made by hand."""
    nothing: Any = None
    none = jnp.zeros(len(finite), jnp.int32)
    return rl_training.Kept(nothing, jnp.asarray(looks, float), jnp.asarray(finite), none, jnp.zeros(()))


def test_the_best_rate_is_chosen_by_its_last_look_and_one_that_ran_away_is_out():
    looks = [[[0, -1, -1], [0, -9, -9]], [[0, -9, -9], [-50, -3, -5]], [[0, 5, 5], [0, 7, 7]]]
    number, tried = rl_training.chosen([0.1, 0.2, 0.3], kept(looks, [True, True, False]))
    assert number == 0.2
    assert [each["validation"] for each in tried] == [-9.0, -4.0, None]
    with pytest.raises(ValueError, match="no training of the search stayed finite"):
        rl_training.chosen([0.1], kept([[[0, np.nan, 0]]], [True]))


def test_every_method_tries_as_many_rates_around_its_own():
    settings = rl_navigation.FULL
    tried = {name: rl.numbers_of(settings, name) for name in settings.methods if name != "scratch"}
    assert {len(numbers) for numbers in tried.values()} == {len(settings.scratch_rates)} == {3}
    assert tried["gem-bml+"] == tried["maml"] == [0.0003, 0.001, 0.003]  # the paper's in the middle
    assert tried["maml-trpo"] == [0.003, 0.01, 0.03]
    for name in ("gem-bml+", "maml", "reptile", "pretrain"):
        assert rl.put(settings, name).learner.method.rate == 0.1
    assert settings.search_seed not in settings.seeds
    for name in STUDIES:
        full = experiments.get(name).scales["full"]
        assert all(rl.iterations_of(full, method) % full.looks == 0 for method in full.methods)
        assert (full.updates, full.test, full.rollouts) == (3, (40, 40), 20)


def test_what_a_kept_cell_rests_on():
    """Other methods and their lengths leave a cell alone; its own length does not."""
    settings = rl_navigation.FULL
    place = lambda settings, name: study._place(rl_navigation.STUDY, settings, (name,), study.ROOT)
    other = replace(settings, methods=("maml",), shortened=(("maml", 15),))
    assert place(settings, "gem-bml") == place(other, "gem-bml")
    assert place(settings, "maml") != place(other, "maml")
    assert place(settings, "gem-bml") != place(replace(settings, factors=(1.0,)), "gem-bml")
    assert rl._folder(settings, "maml", [1e-3], (0,), 300) != rl._folder(other, "maml", [1e-3], (0,), 300)


def test_fresh_forgets_the_trainings_of_the_study_alone():
    training = rl._trainings(TINY, "gem-bml+")[0]
    mine = rl._folder(TINY, "gem-bml+", *training)
    other = mine.with_name("another")
    for folder in (mine, other):
        folder.mkdir(parents=True)
    rl.forget(TINY)
    assert not mine.exists() and other.exists()


# --- in words ---------------------------------------------------------------------------------------------------------


def written(ours, maml, control):
    """Results by hand: returns [seeds, tasks, updates] of three methods."""
    found = {
        "gem-bml+": np.asarray(ours, float),
        "maml": np.asarray(maml, float),
        "pretrain": np.asarray(control, float),
    }
    rows, curves = [], {}
    for name, returns in found.items():
        for step in range(returns.shape[2]):
            mean, ci95 = study.mean_and_ci(returns[..., step])
            rows.append(study.row(setting=rl.RETURNS, method=name, metric=f"return after {step}", mean=mean, ci95=ci95))
        curves[name] = {
            "task_returns": returns.tolist(), "by_trust": (returns - 1).tolist(), "number": 1e-3, "tried": [],
            "finite": [True], "left_out": [0],
        }  # fmt: skip
    curves["scratch"] = {
        "updates": [0, 1, 10],
        "steps": [0, 100, 1000],
        "returns": [-9, -5, -1],
        "number": 0.01,
        "tried": [],
    }
    settings = {"updates": 1, "environment": "rl-navigation", "iterations": 3, "shortened": []}
    return {"settings": settings, "rows": rows, "curves": curves}


def test_remarks_say_what_the_numbers_say():
    noise = np.random.default_rng(0).normal(0, 0.01, (2, 6, 1))
    of = lambda mean: np.concatenate([np.full((2, 6, 1), -9.0), mean + noise], axis=2)
    words = " ".join(rl_remarks.remarks(written(of(-2), of(-4), of(-8))))
    assert "the intervals are apart, GEM-BML+ above" in words
    assert "GEM-BML+ minus maml, task by task: +2.00 ± 0.00 after 1 update (better)" in words
    assert "1,000 steps for the -2 of gem-bml+" in words and "100 steps for the -8 of pretrain" in words
    assert "gem-bml+ -1.00 ± 0.00 after 1 update (worse)" in words  # trust regions
    words = " ".join(rl_remarks.remarks(written(of(-8), of(-4), of(-2))))
    assert "the intervals are apart, GEM-BML+ below" in words and "(worse)" in words.partition("maml, task by task")[2]
    wide = of(-4) + np.random.default_rng(1).normal(0, 5, (2, 6, 2))
    words = " ".join(rl_remarks.remarks(written(of(-4), wide, wide)))
    assert "the intervals overlap" in words and "(not apart)" in words


def test_the_hypothesis_on_trust_regions_is_told_with_the_spread_and_held_against_the_paper(monkeypatch):
    monkeypatch.setattr(rl_remarks, "_other", lambda name: None)
    results = written(np.zeros((1, 3, 2)), np.zeros((1, 3, 2)), np.zeros((1, 3, 2)))
    for setting, metric, mean in (
        (rl.POLICIES, "KL of the first step", 0.3), (rl.POLICIES, "KL around the mean", 0.7), (rl.TRUST, "return after 1", 2.5),
    ):  # fmt: skip
        results["rows"].append(study.row(setting=setting, method="gem-bml+", metric=metric, mean=mean))
    words = rl_remarks._hypothesis(results)
    assert "a KL of 0.3 (30 times the bound)" in words and "lie 0.7 around their mean" in words
    assert "change the last return by +2.5, as the paper finds" in words
    results["settings"]["environment"] = "rl-cheetah-velocity"
    assert "+2.5, other than the paper finds" in rl_remarks._hypothesis(results)
    results["rows"][-1]["ci95"] = 3.0
    assert "+2.5, which settles nothing, the intervals overlap" in rl_remarks._hypothesis(results)


def test_what_ran_away_is_said():
    lost = np.full((1, 3, 2), np.nan)
    fine = np.zeros((1, 3, 2))
    results = json.loads(json.dumps(study.plain(written(lost, fine, fine))))
    words = " ".join(rl_remarks.remarks(results))
    assert "some task ran away" in words
    assert "of pretrain" in words and "of gem-bml+, " not in words
