"""The studies of few-shot images, on pictures made here: every one runs from cells to figure, and long trainings go on."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import experiments
from experiments import (
    calibration,
    few_shot,
    images,
    inner_optimisers,
    omniglot,
    study,
    time_to_accuracy,
    trainings,
)
from experiments.images import PROTOCOLS, Variant
from metaprior import data
from metaprior.classes import ClassScores
from metaprior.data import Images, ImageSet
from metaprior.evaluation import TEST_SEED, calibrate_steps, class_parts, scores
from metaprior.predict import Calibration
from metaprior.training import initial_state

STUDIES = ("omniglot", "miniimagenet", "calibration", "inner-optimisers", "time-to-accuracy")


def pictures(classes: int, seed: int) -> Images:
    """Twenty noisy copies of a random picture for each class."""
    rng = np.random.default_rng(seed)
    means = rng.integers(0, 255, (classes, 1, 28, 28, 1))
    pixels = np.clip(means + rng.normal(0, 30, (classes, 20, 28, 28, 1)), 0, 255).astype(np.uint8)
    starts = np.arange(classes, dtype=np.int32) * 20
    return Images(
        pixels.reshape(-1, 28, 28, 1), starts, np.full(classes, 20, np.int32), tuple(map(str, range(classes)))
    )


@pytest.fixture
def small_omniglot(monkeypatch, tmp_path, quick_compile):
    """In the place of Omniglot, and trainings kept in a folder of the test."""
    found = ImageSet("omniglot", pictures(12, 0), pictures(7, 1), pictures(8, 2))
    monkeypatch.setattr(data, "load", lambda name, folder=None: found)
    monkeypatch.setattr(trainings, "STATES", tmp_path / "states")
    return found


def tiny(name):
    """The smoke settings, on characters, smaller still."""
    settings = experiments.get(name).scales["smoke"]
    around = (("filters", 4), ("queries", 2))
    if name == "calibration":
        trained = replace(settings.trained, tasks="omniglot", iterations=3, around=around)
        return replace(settings, trained=trained, test_tasks=4)
    if name in ("omniglot", "miniimagenet"):
        few = {"tasks": "omniglot", "iterations": 3, "around": around, "validation": 4, "tasks_share": 0.005}
        return replace(settings, **few, literal=("gem-bml+",) if name == "omniglot" else ())
    return replace(settings, around=around)


SLOW = ("omniglot", "calibration", "inner-optimisers", "time-to-accuracy")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in STUDIES])
@pytest.mark.usefixtures("small_omniglot")
def test_studies_run_from_cells_to_figure(name):
    one = experiments.get(name)
    results = json.loads(json.dumps(study.run(one, tiny(name), scale="smoke")))
    assert results["rows"] and all(tuple(row) == study.COLUMNS for row in results["rows"])
    assert isinstance(one.figure(results), Figure)
    assert all(isinstance(sentence, str) and sentence for sentence in one.remarks(results))
    shown = one.shown(results)
    assert shown and all(row in results["rows"] for row in shown)


@pytest.mark.slow
@pytest.mark.usefixtures("small_omniglot")
def test_a_training_that_was_cut_off_goes_on_to_the_same_end(monkeypatch):
    """Killed after the second of four chunks: the last states equal those of a run without a break, bit for bit."""
    variant = Variant("gem-bml+", {"meta_batch": 2}, {"filters": 2, "queries": 1})
    setup = images.set_up(variant, tasks="omniglot", setting="3w1s", iterations=4)
    whole = trainings.train(setup, (0, 1), chunk=1)
    folder = trainings.state_folder(setup, (0, 1))
    assert folder.exists()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            path.unlink()
    monkeypatch.setattr(trainings, "SAVE_SECONDS", 0.0)

    class Killed(Exception):
        pass

    real, saves = trainings.checkpoints.save, []

    def save(place, done, tree):
        real(place, done, tree)
        saves.append(done)
        if done == 2:
            raise Killed

    monkeypatch.setattr(trainings.checkpoints, "save", save)
    with pytest.raises(Killed):
        trainings.train(setup, (0, 1), chunk=1)
    again = trainings.train(setup, (0, 1), chunk=1)
    assert saves == [1, 2, 3, 4]
    plain = lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    for a, b in zip(jax.tree.leaves(whole.states), jax.tree.leaves(again.states), strict=True):
        np.testing.assert_array_equal(plain(a), plain(b))
    np.testing.assert_array_equal(whole.query_nll, again.query_nll)


@pytest.mark.parametrize(("tasks", "iterations", "chunk"), [("omniglot", 4000, 1000), ("miniimagenet", 300, 100)])
@pytest.mark.usefixtures("small_omniglot")
def test_photographs_are_computed_in_shorter_parts(monkeypatch, tasks, iterations, chunk):
    """So that a training of 300 iterations of a large network can be saved on its way, too."""

    class Begun(Exception):
        pass

    def advance(put, chunk):
        raise Begun(chunk)

    monkeypatch.setattr(trainings, "_advance", advance)
    setup = images.set_up(Variant("fomaml", around={"filters": 2}), tasks=tasks, setting="3w1s", iterations=iterations)
    with pytest.raises(Begun) as begun:
        trainings.train(setup, (0,))
    assert begun.value.args == (chunk,)


@pytest.mark.slow
@pytest.mark.usefixtures("small_omniglot")
def test_seeds_side_by_side_are_seeds_alone():
    variant = Variant("gem-bml+last-layer", {"meta_batch": 2}, {"filters": 2, "queries": 1})
    setup = images.set_up(variant, tasks="omniglot", setting="3w1s", iterations=3)
    both, alone = trainings.train(setup, (4, 5), chunk=3), trainings.train(setup, (5,), chunk=3)
    for a, b in zip(jax.tree.leaves(both.states.prior.dist), jax.tree.leaves(alone.states.prior.dist), strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("small_omniglot")
def test_seeds_that_fill_a_card_are_kept_one_by_one(monkeypatch):
    """`calibration` judges the first seed of a table: where all are trained, it finds that one and trains nothing."""
    variant = Variant("gem-bml+last-layer", {"meta_batch": 2}, {"filters": 2, "queries": 1})
    setup = images.set_up(variant, tasks="omniglot", setting="3w1s", iterations=2)
    both = trainings.train(setup, (4, 5), chunk=1)
    calls = []
    monkeypatch.setattr(trainings, "by_turns", lambda function: lambda *given: calls.append(given))
    alone = trainings.train(setup, (5,), chunk=1)
    assert not calls
    for a, b in zip(jax.tree.leaves(both.states.prior.dist), jax.tree.leaves(alone.states.prior.dist), strict=True):
        np.testing.assert_array_equal(a[1], b[0])
    np.testing.assert_array_equal(both.query_nll[1], alone.query_nll[0])
    trainings.forget(setup, (4, 5))
    assert not trainings.state_folder(setup, (5,)).exists()


@pytest.mark.usefixtures("small_omniglot")
def test_fresh_forgets_the_trainings_of_the_study_alone(tmp_path):
    settings = replace(tiny("omniglot"), literal=())
    cell = few_shot.cells(settings)[0]
    mine = trainings.state_folder(few_shot.put(settings, cell), few_shot.seeds_of(settings, cell))
    other = mine.with_name("another")
    for folder in (mine, other):
        folder.mkdir(parents=True)
    study.forget(omniglot.STUDY, settings, tmp_path)
    assert not mine.exists() and other.exists()


@pytest.mark.slow  # test_evaluation.py says so of what it calls
@pytest.mark.usefixtures("small_omniglot")
def test_a_look_at_a_training_says_what_two_programs_say(monkeypatch):
    """The slow way: fit the temperature in one program, score in another, both anew for every state."""
    monkeypatch.setattr(time_to_accuracy, "CALIBRATED", 5)
    variant = Variant("gem-bml+last-layer", {}, {"filters": 2, "queries": 1})
    setup = images.set_up(variant, tasks="omniglot", setting="3w1s", iterations=1, protocol=PROTOCOLS["strict"])
    states = [initial_state(setup, seed) for seed in range(2)]
    look, at = time_to_accuracy.looker(setup, states[0], 7), (images.TEST_STEPS,)
    found = [look(state) for state in states]
    assert len(set(found)) == 2, "another state, another answer"
    asked = {"num_tasks": 7, "seed": images.JUDGED_SEED["validation"], "split": "validation"}
    for state, accuracy in zip(states, found, strict=True):
        fitted = calibrate_steps(setup, state, at=at, num_tasks=5)
        slow = scores(setup, state, fitted, at=at, **asked)
        assert accuracy == pytest.approx(100 * float(slow.accuracy.mean()), abs=1e-9)


@pytest.mark.slow  # test_evaluation.py says so of what it calls
@pytest.mark.usefixtures("small_omniglot")
def test_probabilities_with_a_temperature_and_without_are_those_of_two_programs():
    variant = Variant("gem-bml+last-layer", {}, {"filters": 2, "queries": 1})
    setup = images.set_up(variant, tasks="omniglot", setting="3w1s", iterations=1, protocol=PROTOCOLS["strict"])
    state, at = initial_state(setup, 0), (images.TEST_STEPS,)
    pools = {"known": setup.tasks.pool("validation"), "asked": setup.tasks.pool("test")}
    own, others = class_parts(setup, state, at=at, validation=5, num_tasks=7, seed=TEST_SEED, **pools)
    found, _ = calibration.judge_of(setup)(own, others)
    fitted = calibrate_steps(setup, state, at=at, num_tasks=5)
    plain = Calibration(jnp.full(1, -20.0), jnp.zeros(1))
    for words, expected in (("temperature fitted", fitted), ("as it is", plain)):
        judged = found[words]
        np.testing.assert_allclose(judged.way.log_noise, expected.log_noise, rtol=1e-4)
        slow = scores(setup, state, expected, at=at, num_tasks=7)
        for a, b in zip(judged.scores, slow, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("small_omniglot")
def test_answers_that_are_kept_are_judged_without_their_training(monkeypatch):
    settings, cell = tiny("calibration"), (calibration.EXACT,)
    first = calibration.measure(settings, cell)
    folder = calibration.parts_folder(settings, cell, settings.seeds[0])
    assert folder.exists()
    monkeypatch.setattr(trainings, "train", None)
    again = calibration.measure(settings, cell)
    assert json.dumps(study.plain(again)) == json.dumps(study.plain(first))
    calibration.forget(settings, cell)
    assert not folder.exists()


@pytest.mark.usefixtures("small_omniglot")
def test_all_looks_at_a_training_are_traced_once(monkeypatch):
    """What is looked at is the number of the iteration, so that looks can be told apart."""
    traced = []

    def asked(setup, state, **options):
        traced.append(options["num_tasks"])
        return ClassScores(*(state.iteration / 100 * jnp.ones((options["num_tasks"], 1)) for _ in ClassScores._fields))

    monkeypatch.setattr(time_to_accuracy, "calibrated_class_scores", asked)
    settings = replace(tiny("time-to-accuracy"), iterations=6, looks=3, goal=3.9)
    cell = time_to_accuracy.cells(settings)[0]
    found = time_to_accuracy.measure(settings, cell)
    np.testing.assert_allclose(found["curves"][cell[0]]["accuracy"], [2.0, 4.0, 6.0])
    assert found["rows"][0]["mean"] == found["curves"][cell[0]]["seconds"][1], (
        "the second look is the first at the goal"
    )
    assert traced == [settings.validation]


@pytest.mark.usefixtures("small_omniglot")
def test_fresh_forgets_the_trainings_of_inner_optimisers(tmp_path):
    settings = replace(tiny("inner-optimisers"), steps=(1, 5))
    folders = [
        trainings.state_folder(*inner_optimisers.sweep(settings, cell)) for cell in inner_optimisers.cells(settings)
    ]
    other = trainings.state_folder(*inner_optimisers.sweep(settings, ("adam, fresh for each task", "1")))
    for folder in (*folders, other):
        folder.mkdir(parents=True)
    study.forget(inner_optimisers.STUDY, settings, tmp_path, only=lambda cell: cell[1] == "5")
    assert [folder.exists() for folder in folders] == [True, False, True, False], "the others were not asked for"
    study.forget(inner_optimisers.STUDY, settings, tmp_path)
    assert not any(folder.exists() for folder in folders) and other.exists()


@pytest.mark.usefixtures("small_omniglot")
def test_fresh_forgets_the_trainings_that_calibration_judges(tmp_path):
    """Those are trainings of few-shot images, under their own seeds: of a method that is not judged they stay."""
    settings = tiny("calibration")
    trained = replace(settings.trained, seeds=settings.seeds)
    mine, other = (
        trainings.state_folder(few_shot.put(trained, cell), few_shot.seeds_of(trained, cell))
        for cell in (("5w1s", "best", name) for name in (settings.methods[0], "maml"))
    )
    for folder in (mine, other):
        folder.mkdir(parents=True)
    study.forget(calibration.STUDY, settings, tmp_path)
    assert not mine.exists() and other.exists()


def test_a_prior_is_trained_once_for_all_numbers_of_classes_that_it_is_asked_with(small_omniglot):
    """With 3 classes of one image in training and asked with 2, with 3, or with 2 images: one training, and the same."""
    wide, narrow, more = (
        images.set_up(
            Variant("gem-bml+", {"meta_batch": 2, "steps": (1, 1)}, {"filters": 4, **trained}), tasks="omniglot",
            setting=setting, iterations=1,
        )
        for setting, trained in (("3w1s", {}), ("2w1s", {"train_ways": 3}), ("3w2s", {"train_shots": 1}))
    )  # fmt: skip
    assert (
        trainings.state_folder(wide, (0,)) == trainings.state_folder(narrow, (0,)) == trainings.state_folder(more, (0,))
    )
    assert trainings.state_folder(wide, (0,)).name.startswith("omniglot-3w1s-gem-bml+-")
    assert images.identity(wide) != images.identity(narrow)
    one, *others = (trainings.train(setup, (0,)).states for setup in (wide, narrow, more))
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, one.prior, other.prior)
