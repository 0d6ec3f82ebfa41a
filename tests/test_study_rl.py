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
from experiments import rl, rl_measures, rl_navigation, rl_settings, rl_training, study
from experiments.rl_measures import Found
from metaprior.evaluation import TEST_SEED
from metaprior.models.base import foreign
from metaprior.recipes import RECIPES
from metaprior.rl.evaluation import adapted_returns
from metaprior.rl.rollouts import Rollouts
from metaprior.settings import Settings as CommandLine
from metaprior.settings import method_of

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


@pytest.mark.parametrize("name", ["gem-bml+", pytest.param("maml-trpo", marks=pytest.mark.slow)])
def test_trainings_side_by_side_are_those_that_take_turns(monkeypatch, name):
    """As on an accelerator, with another number and another seed in each. One iteration: steps of TRPO amplify rounding."""
    plan = rl.plan_of(TINY, name)
    in_turn = rl_training.programs(plan)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        together = rl_training.programs(plan)
    trainings = rl_training.crossed(rl.numbers_of(TINY, name), (0, 1))
    found, reference = (rl_training.train(plan, advance, *trainings, 1) for advance in (together, in_turn))
    assert len({float(look) for look in reference.looks[:, 0, 1]}) == 4  # no two are the same
    np.testing.assert_allclose(found.looks, reference.looks, rtol=1e-7)
    np.testing.assert_array_equal(found.finite, reference.finite)


def kept(looks, finite, seconds=0.0):
    """What trainings leave, made by hand."""
    nothing: Any = None
    none = jnp.zeros(len(finite), jnp.int32)
    return rl_training.Kept(nothing, jnp.asarray(looks, float), jnp.asarray(finite), none, jnp.asarray(seconds))


def test_every_number_is_trained_with_every_seed():
    numbers, seeds = rl_training.crossed([0.1, 0.2], (5, 6, 7))
    assert list(zip(numbers, seeds, strict=True)) == [(n, s) for n in (0.1, 0.2) for s in (5, 6, 7)]
    looks = [[[0, number * seed]] for number, seed in zip(numbers, seeds, strict=True)]
    found = rl_training.by_number([0.1, 0.2], kept(looks, [True] * 5 + [False], 3.5))
    np.testing.assert_allclose(found[0.1].looks[:, 0, 1], [0.5, 0.6, 0.7])
    np.testing.assert_allclose(found[0.2].looks[:, 0, 1], [1.0, 1.2, 1.4])
    assert found[0.1].finite.all() and found[0.2].finite.tolist() == [True, True, False]
    assert found[0.1].seconds == found[0.2].seconds == 3.5


def test_the_best_mean_over_seeds_wins_and_not_the_best_training():
    """By the last look alone, and after updates alone: the first number has the best seed, the second the best mean."""
    looks = [
        [[0, 9, 9], [0, -1, -1]],
        [[0, 9, 9], [0, -9, -9]],
        [[0, -9, -9], [-50, -3, -5]],
        [[0, -9, -9], [-50, -3, -3]],
    ]
    found = rl_training.search(lambda numbers: kept(looks, [True] * 4, 7.0), [0.1, 0.2], 0)
    assert found.tried == [{"number": 0.1, "validation": -5.0}, {"number": 0.2, "validation": -3.5}]
    assert found.number == 0.2
    np.testing.assert_array_equal(found.kept.looks, looks[2:])
    assert (found.side_by_side, found.seconds) == (4, 7.0)


def test_a_number_of_which_one_training_ran_away_is_out():
    looks = [[[0, -9]], [[0, -9]], [[0, 7]], [[0, 7]], [[0, 8]], [[0, np.nan]]]
    found = rl_training.search(lambda numbers: kept(looks, [True, True, False, True, True, True]), [0.1, 0.2, 0.3], 0)
    assert [each["validation"] for each in found.tried] == [-9.0, None, None]
    assert found.number == 0.1
    with pytest.raises(ValueError, match=r"of no number did all trainings stay finite: tried 0\.1"):
        rl_training.search(lambda numbers: kept([[[0, 1]], [[0, np.nan]]], [True, True]), [0.1], 1)


@pytest.mark.parametrize(
    ("peak", "beyond", "expected"),
    [
        (1.1, 2, [0.3, 1.0, 3.0]),  # inside at once
        (25.0, 2, [0.3, 1.0, 3.0, 9.0, 27.0]),  # two more, and the best is still the last
        (8.0, 4, [0.3, 1.0, 3.0, 9.0, 27.0]),  # ends when it is inside
        (0.1, 1, [0.09, 0.3, 1.0, 3.0]),
        (100.0, 0, [0.3, 1.0, 3.0]),
    ],
)
def test_a_search_goes_on_beyond_its_ends(peak, beyond, expected):
    """Rates that are better the closer they are to a peak, in logarithms, with two seeds that differ."""
    asked = []

    def trial(numbers):
        asked.append(list(numbers))
        each = [-abs(np.log(n / peak)) + seed for n in numbers for seed in (0, 1)]
        return kept([[[0, value]] for value in each], [True] * len(each), len(each))

    found = rl_training.search(trial, [0.3, 1.0, 3.0], beyond)
    assert [each["number"] for each in found.tried] == sorted(n for some in asked for n in some) == expected
    assert asked[0] == [0.3, 1.0, 3.0] and all(len(more) == 1 for more in asked[1:])  # at once, then one at a time
    assert found.number == min(expected, key=lambda number: abs(np.log(number / peak)))
    score = -abs(np.log(found.number / peak))
    np.testing.assert_allclose(found.kept.looks[:, 0, 1], [score, score + 1])
    assert (found.side_by_side, found.seconds) == (6, 6.0)  # of the first program, wherever the best comes from


def test_what_is_tested_are_the_trainings_of_the_search():
    """The chosen number's looks are those of its trainings alone, seed by seed; nothing is trained once more."""
    settings = replace(TINY, seeds=(0, 1), methods=("pretrain",), beyond=0)
    curve = rl.measure(settings, ("pretrain",))["curves"]["pretrain"]
    assert curve["side_by_side"] == 4 and [each["number"] for each in curve["tried"]] == [0.001, 0.003]
    plan = rl.plan_of(settings, "pretrain")
    alone = rl_training.train(plan, rl_training.programs(plan), [curve["number"]] * 2, (0, 1), settings.iterations)
    np.testing.assert_allclose(curve["looks"], alone.looks, atol=6e-4)  # rounded to three digits
    assert len(curve["task_returns"]) == len(curve["finite"]) == 2
    best = max(curve["tried"], key=lambda each: each["validation"])
    assert best["number"] == curve["number"]
    assert best["validation"] == pytest.approx(np.asarray(alone.looks)[:, -1, 1:].mean())


@pytest.mark.parametrize("name", STUDIES)
def test_every_method_tries_as_many_rates_around_its_own(name):
    settings = experiments.get(name).scales["full"]
    tried = {method: rl.numbers_of(settings, method) for method in settings.methods if method != "scratch"}
    assert {len(numbers) for numbers in tried.values()} == {len(settings.factors)}
    assert tried["gem-bml+"] == tried["maml"] == tried["reptile"] and 0.001 in tried["maml"]  # the paper's
    assert tried["maml-trpo"] == list(settings.bounds)
    for method in ("gem-bml+", "maml", "reptile", "pretrain"):
        assert rl.put(settings, method).learner.method.rate == 0.1
    assert all(rl.iterations_of(settings, method) % settings.looks == 0 for method in settings.methods)
    tasks, count = settings.test
    assert (settings.updates, count, settings.rollouts) == (3, 40, 20) and tasks >= 40


def test_more_queries_are_lived_through_in_training_alone():
    """The row is that of GEM-BML+, its second stage has four times the rollouts, and adaptation has no more than before."""
    settings = experiments.get("rl-navigation").scales["full"]
    plain, more = (rl.put(settings, name) for name in ("gem-bml+", "gem-bml+queries"))
    assert more.method == plain.method and more.tasks.shots == plain.tasks.shots == settings.rollouts
    assert more.tasks.queries == 4 * plain.tasks.queries
    assert more.steps_per_iteration == 2.5 * plain.steps_per_iteration  # 20 + 80 against 20 + 20
    assert rl_training.identity(more) != rl_training.identity(plain)


def test_shorter_and_longer_inner_steps_differ_in_their_rate_alone():
    settings = experiments.get("rl-navigation").scales["full"]
    plain = rl.put(settings, "gem-bml+").method.method
    rates = {name: rl.put(settings, f"gem-bml+{name}").method.method for name in ("short", "long")}
    assert rates == {name: plain._replace(rate=rate) for name, rate in (("short", 0.03), ("long", 0.3))}


def test_the_meta_rates_that_navigation_chose_are_those_of_the_command_line():
    """Where it has results: of every row that takes steps of Adam, unless the best was not of those that are tried first."""
    chosen = study.load("rl-navigation")["curves"]
    assert set(RECIPES["rl-navigation"]) <= set(chosen)
    for name, fields in RECIPES["rl-navigation"].items():
        assert fields == {"meta_rate": chosen[name]["number"]}, name
        assert method_of(CommandLine("rl-navigation", method=name)).meta_rate == chosen[name]["number"]


def test_rates_fall_along_half_a_cosine():
    """By hand, with steps of SGD on a constant gradient: one, a half, nothing of the rate at the start, the middle, the end."""
    steps = rl_settings._falling("sgd", lambda count: 0.2, 4.0)
    gradient, state, taken = jnp.ones(()), steps.init(jnp.zeros(())), []
    for _ in range(6):
        update, state = steps.update(gradient, state)
        taken.append(-np.asarray(update))
    np.testing.assert_allclose(
        taken, 0.2 * np.array([1, 0.5 + 0.5 * 0.5**0.5, 0.5, 0.5 - 0.5 * 0.5**0.5, 0, 0]), atol=1e-7
    )


def test_trainings_of_another_length_have_other_rates():
    """One program serves both: after the first of two iterations a rate has fallen further than after the first of four."""
    plan = rl.plan_of(replace(TINY, iterations=4, looks=4), "pretrain")
    advance = rl_training.programs(plan)
    short, long = (rl_training.train(plan, advance, (1e-2,), (0,), length) for length in (2, 4))
    np.testing.assert_array_equal(short.looks[0, 0], long.looks[0, 0])  # the first step is the same
    assert not np.array_equal(short.looks[0, 1], long.looks[0, 1])


def test_what_a_kept_cell_rests_on():
    """Other methods and their lengths leave a cell alone; its own length does not."""
    settings = rl_navigation.FULL
    place = lambda settings, name: study._place(rl_navigation.STUDY, settings, (name,), study.ROOT)
    other = replace(settings, methods=("maml",), shortened=(("maml", 15),), bounds=(0.5,))
    assert place(settings, "gem-bml") == place(other, "gem-bml")
    assert place(settings, "maml") != place(other, "maml")
    assert place(settings, "maml-trpo") != place(other, "maml-trpo")
    for change in ({"factors": (1.0,)}, {"seeds": (0,)}, {"beyond": 5}):
        assert place(settings, "gem-bml") != place(replace(settings, **change), "gem-bml")
    assert rl._folder(settings, "maml", [1e-3]) != rl._folder(other, "maml", [1e-3])
    assert rl._folder(settings, "maml", [1e-3]) != rl._folder(replace(settings, seeds=(0,)), "maml", [1e-3])


def test_fresh_forgets_the_trainings_of_the_study_alone(tmp_path):
    numbers = rl.numbers_of(TINY, "gem-bml+")
    ends = [rl_training.further(numbers, end) or 0.0 for end in (numbers[0], numbers[-1])]
    mine = [rl._folder(TINY, "gem-bml+", row) for row in (numbers, *([end] for end in ends))]
    other = mine[0].with_name("another")
    for folder in (*mine, other):
        folder.mkdir(parents=True)
    study.forget(rl_navigation.STUDY, TINY, tmp_path)
    assert not any(folder.exists() for folder in mine) and other.exists()
