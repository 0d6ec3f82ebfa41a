"""The studies of few-shot images, on pictures made here: every one runs from cells to figure, and long trainings go on."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import experiments
from experiments import (
    calibration,
    few_shot,
    few_shot_report,
    images,
    inner_optimisers,
    miniimagenet,
    omniglot,
    paper,
    study,
    time_to_accuracy,
)
from experiments.images import PROTOCOLS, Variant, setting_of
from experiments.report.beside.line import Value, compared
from experiments.report.verdicts import AGREES, BETTER, WORSE
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
    monkeypatch.setattr(images, "STATES", tmp_path / "states")
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
    whole = images.train(setup, (0, 1), chunk=1)
    folder = images.state_folder(setup, (0, 1))
    assert folder.exists()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            path.unlink()
    monkeypatch.setattr(images, "SAVE_SECONDS", 0.0)

    class Killed(Exception):
        pass

    real, saves = images.checkpoints.save, []

    def save(place, done, tree):
        real(place, done, tree)
        saves.append(done)
        if done == 2:
            raise Killed

    monkeypatch.setattr(images.checkpoints, "save", save)
    with pytest.raises(Killed):
        images.train(setup, (0, 1), chunk=1)
    again = images.train(setup, (0, 1), chunk=1)
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

    monkeypatch.setattr(images, "_advance", advance)
    setup = images.set_up(Variant("fomaml", around={"filters": 2}), tasks=tasks, setting="3w1s", iterations=iterations)
    with pytest.raises(Begun) as begun:
        images.train(setup, (0,))
    assert begun.value.args == (chunk,)


@pytest.mark.slow
@pytest.mark.usefixtures("small_omniglot")
def test_seeds_side_by_side_are_seeds_alone():
    variant = Variant("gem-bml+last-layer", {"meta_batch": 2}, {"filters": 2, "queries": 1})
    setup = images.set_up(variant, tasks="omniglot", setting="3w1s", iterations=3)
    both, alone = images.train(setup, (4, 5), chunk=3), images.train(setup, (5,), chunk=3)
    for a, b in zip(jax.tree.leaves(both.states.prior.dist), jax.tree.leaves(alone.states.prior.dist), strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("small_omniglot")
def test_seeds_that_fill_a_card_are_kept_one_by_one(monkeypatch):
    """`calibration` judges the first seed of a table: where all are trained, it finds that one and trains nothing."""
    variant = Variant("gem-bml+last-layer", {"meta_batch": 2}, {"filters": 2, "queries": 1})
    setup = images.set_up(variant, tasks="omniglot", setting="3w1s", iterations=2)
    both = images.train(setup, (4, 5), chunk=1)
    calls = []
    monkeypatch.setattr(images, "by_turns", lambda function: lambda *given: calls.append(given))
    alone = images.train(setup, (5,), chunk=1)
    assert not calls
    for a, b in zip(jax.tree.leaves(both.states.prior.dist), jax.tree.leaves(alone.states.prior.dist), strict=True):
        np.testing.assert_array_equal(a[1], b[0])
    np.testing.assert_array_equal(both.query_nll[1], alone.query_nll[0])
    images.forget(setup, (4, 5))
    assert not images.state_folder(setup, (5,)).exists()


@pytest.mark.usefixtures("small_omniglot")
def test_fresh_forgets_the_trainings_of_the_study_alone(tmp_path):
    settings = replace(tiny("omniglot"), literal=())
    cell = few_shot.cells(settings)[0]
    mine = images.state_folder(few_shot.put(settings, cell), few_shot.seeds_of(settings, cell))
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
    monkeypatch.setattr(images, "train", None)
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
        images.state_folder(*inner_optimisers.sweep(settings, cell)) for cell in inner_optimisers.cells(settings)
    ]
    other = images.state_folder(*inner_optimisers.sweep(settings, ("adam, fresh for each task", "1")))
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
        images.state_folder(few_shot.put(trained, cell), few_shot.seeds_of(trained, cell))
        for cell in (("5w1s", "best", name) for name in (settings.methods[0], "maml"))
    )
    for folder in (mine, other):
        folder.mkdir(parents=True)
    study.forget(calibration.STUDY, settings, tmp_path)
    assert not mine.exists() and other.exists()


def optimised(*measured):
    """Results of inner optimisers with these cells of four: (optimiser, steps, accuracy)."""
    rows = [
        study.row(setting=f"5w1s, {steps} step{'s' * (steps > 1)} in training", method=name, metric="accuracy, paper",
                  mean=mean, ci95=1.0)
        for name, steps, mean in measured
    ]  # fmt: skip
    told = {"optimisers": ["sgd", "natural"], "steps": [1, 5], "tasks": "omniglot", "setting": "5w1s"}
    curves = {f"{name}/{steps}": {"best": 0.1, "rates": {"0.1": 90.0}} for name, steps, _ in measured}
    return {"settings": told, "rows": rows, "curves": curves}


def test_inner_optimisers_that_are_missing_are_left_out():
    given = optimised(("sgd", 1, 90.0), ("natural", 1, 80.0), ("natural", 5, 95.0))
    bars = inner_optimisers.figure(given).axes[0].patches
    middle = {
        round(bar.get_y() + bar.get_height() / 2, 6): bar.get_width() for bar in bars if isinstance(bar, Rectangle)
    }
    assert middle == {-0.2: 90.0, 0.8: 80.0, 1.2: 95.0}, "where they are when nothing is missing"
    said = inner_optimisers.remarks(given)
    assert said[0] == "Best: natural (5w1s, 5 steps in training), 95.00 ± 1.00 %." and "sgd with 5" not in said[1]
    nothing = optimised()
    assert not inner_optimisers.figure(nothing).axes[0].patches and inner_optimisers.remarks(nothing) == []


def test_settings_have_the_names_of_the_literature():
    assert setting_of("20w5s") == (20, 5) and setting_of("5w1s") == (5, 1)


def test_rows_are_the_scores():
    """Accuracy and its interval by hand; ECE of two bins by hand."""
    correct = np.array([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]])
    confidence = np.array([[[0.9, 0.3], [0.9, 0.9], [0.3, 0.3]]])
    found = ClassScores(*map(jnp.asarray, (correct.mean(axis=2), [[1.0, 2.0, 3.0]], confidence, correct)))
    rows = {row["metric"]: row for row in images.rows(found, setting="s", method="m", protocol="paper", paper=60.0)}
    assert rows["accuracy, paper"]["mean"] == pytest.approx(50.0) and rows["accuracy, paper"]["paper"] == 60.0
    assert rows["accuracy, paper"]["ci95"] == pytest.approx(1.96 * np.std([50, 100, 0], ddof=1) / 3**0.5)
    assert rows["ECE, paper"]["mean"] == pytest.approx(0.5 * 0.1 + 0.5 * 0.3)
    assert rows["NLL, paper"]["mean"] == 2.0


def test_seeds_are_repeated_where_the_table_says():
    settings = omniglot.FULL
    assert few_shot.seeds_of(settings, ("5w1s", "best", "maml")) == (0, 1, 2)
    assert few_shot.seeds_of(settings, ("5w1s", "best", "reptile")) == (0,)
    assert few_shot.seeds_of(settings, ("5w1s", "paper", "gem-bml+")) == (0,)


def test_protocols_are_those_of_the_paper_and_a_strict_one():
    assert (PROTOCOLS["paper"].queries, PROTOCOLS["paper"].tasks, PROTOCOLS["paper"].inductive) == (1, 600, False)
    assert PROTOCOLS["strict"].queries == PROTOCOLS["inductive"].queries == 15 and PROTOCOLS["strict"].tasks >= 1000


# Table 5 as it is printed: meta-rate, inner rate, inner steps of training, tasks; by classes, whatever the shots.
TABLE_5 = {
    ("omniglot", 5): (0.001, 0.01, 1, 32),
    ("omniglot", 20): (0.001, 0.01, 5, 16),
    ("miniimagenet", 5): (0.001, 0.001, 5, 4),
}


@pytest.mark.parametrize("full", [omniglot.FULL, miniimagenet.FULL], ids=["omniglot", "miniimagenet"])
def test_the_printed_settings_are_those_of_table_5_in_every_setting_that_the_paper_has(full):
    cells = [cell for cell in few_shot.cells(full) if cell[1] == "paper"]
    assert [cell[0] for cell in cells] == (["5w1s"] if full.tasks == "miniimagenet" else list(full.settings))
    for cell in cells:
        meta_rate, rate, steps, tasks = TABLE_5[full.tasks, setting_of(cell[0]).ways]
        row = few_shot.put(full, cell).learner.method
        assert (row.meta_rate, row.rate, row.steps, row.meta_batch) == (meta_rate, rate, (steps, steps), tasks), cell


SETTINGS = {"tasks": "omniglot", "iterations": 5000, "seeds": [0]}


@pytest.mark.parametrize(
    ("mean", "verdict"), [(98.19, "below"), (98.21, "within both"), (99.19, "within both"), (99.21, "above")]
)
def test_remarks_call_a_number_another_as_the_report_does(mean, verdict):
    """98.7 ± 0.4 is printed; beside ± 0.3 that allows 0.5, where the interval of ours alone would be 0.3."""
    row = study.row(setting="5w1s, best", method="maml", metric="accuracy, paper", mean=mean, ci95=0.3, paper=98.7)
    said = few_shot_report.remarks({"settings": SETTINGS, "rows": [row], "curves": {}})[0]
    assert (
        said.startswith(f"5w1s, maml: {mean:.2f} ± 0.30, {verdict}") and "the 98.7 ± 0.4 that the paper prints" in said
    )
    judged = compared(paper.ACCURACY["omniglot"]["maml"]["5w1s"], Value(mean, 0.3))[0]
    assert judged == {"below": WORSE, "within both": AGREES, "above": BETTER}[verdict]


def test_remarks_put_an_exact_head_beside_gem_bml_plus():
    """As the paper asks and with views, at its best; not what is changed aside, nor another protocol."""
    put = lambda kind, metric: study.row(
        setting=f"20w5s, {kind}", method="gem-bml+last-layer", metric=metric, mean=98.0, ci95=0.1
    )
    shown = [put("best", "accuracy, paper"), put("trained 20-way, 9 iterations", "accuracy, views")]
    silent = [put("best", "accuracy, strict"), put("float32", "accuracy, paper")]
    said = few_shot_report.remarks({"settings": SETTINGS, "rows": shown + silent, "curves": {}})
    compared_ones = [one for one in said if "the 98.94 ± 0.25 that the paper prints for GEM-BML+ (-0.94)" in one]
    assert compared_ones == said[:2] and not any("gem-bml+last-layer" in one for one in said[2:])


def test_a_prior_is_trained_once_for_all_numbers_of_classes_that_it_is_asked_with(small_omniglot):
    """With 3 classes of one image in training and asked with 2, with 3, or with 2 images: one training, and the same."""
    wide, narrow, more = (
        images.set_up(
            Variant("gem-bml+", {"meta_batch": 2, "steps": (1, 1)}, {"filters": 4, **trained}), tasks="omniglot",
            setting=setting, iterations=1,
        )
        for setting, trained in (("3w1s", {}), ("2w1s", {"train_ways": 3}), ("3w2s", {"train_shots": 1}))
    )  # fmt: skip
    assert images.state_folder(wide, (0,)) == images.state_folder(narrow, (0,)) == images.state_folder(more, (0,))
    assert images.state_folder(wide, (0,)).name.startswith("omniglot-3w1s-gem-bml+-")
    assert images.identity(wide) != images.identity(narrow)
    one, *others = (images.train(setup, (0,)).states for setup in (wide, narrow, more))
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, one.prior, other.prior)


def test_what_rounding_does_to_accuracy_is_told_task_by_task():
    """Paired: tasks that differ a lot between themselves hide nothing; of a cell without its fellow nothing is said."""
    usual = np.array([50.0, 90.0, 70.0, 30.0])
    curve = lambda values, seeds: {
        "task_accuracy": {"strict": values},
        "seeds": list(range(seeds)),
        "iterations": 5,
        "finite": [True],
    }
    curves = {
        "5w1s/best/maml": curve(usual, 3),
        "5w1s/float32/maml": curve(usual + np.array([1.0, -1.0, 1.0, -1.0]), 1),
        "5w1s/bf16/maml": curve(usual - 3, 1),
        "20w1s/bf16/maml": curve(usual, 1),
    }
    told = [
        words
        for words in few_shot_report.remarks({"settings": SETTINGS, "rows": [], "curves": curves})
        if " minus " in words
    ]
    half = 1.96 * np.std([1, -1, 1, -1], ddof=1) / 2
    assert [words.split(", seeds")[0].split(" minus")[0] for words in told] == [
        "5w1s, maml, float32",
        "5w1s, maml, bf16",
    ]
    assert told[0].endswith(f"seeds of the two 1 and 3: strict +0.00 ± {half:.2f} (not apart).")
    assert told[1].endswith("strict -3.00 ± 0.00 (worse).")
