"""Which cells the studies of few-shot images have, what each of them trains, and what it rests on."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import (
    authors,
    calibration,
    calibration_report,
    few_shot,
    images,
    miniimagenet,
    omniglot,
    study,
    trainings,
)
from experiments.images import PROTOCOLS
from metaprior.classes import ClassScores
from metaprior.families import MeanField


def test_asides_differ_in_one_thing_and_say_how_long_they_train():
    settings = replace(
        omniglot.SMOKE, settings=("5w1s", "5w5s"), aside=(("bf16", ("maml",)),), shortened=(("*/bf16/*", 7),)
    )
    aside, *others = (cell for cell in few_shot.cells(settings) if cell[1] == "bf16")
    assert aside == ("5w1s", "bf16", "maml") and not others
    changed, plain = (few_shot.put(settings, (aside[0], kind, aside[2])) for kind in ("bf16", "best"))
    assert replace(changed.settings, precision=None, iterations=settings.iterations) == plain.settings
    assert (changed.settings.precision, changed.settings.iterations) == ("bf16", 7)


def test_longer_trainings_differ_in_their_length_alone_and_may_be_of_any_setting():
    settings = replace(
        omniglot.SMOKE, settings=("5w1s", "5w5s"), seeds=(0, 1), aside=(("longer", ("5w5s/maml", "maml")),),
        shortened=(("*/longer/*", 900),),
    )  # fmt: skip
    named, first = (cell for cell in few_shot.cells(settings) if cell[1] == "longer")
    assert named == ("5w5s", "longer", "maml") and first == ("5w1s", "longer", "maml")
    longer, plain = (images.identity(few_shot.put(settings, ("5w5s", kind, "maml"))) for kind in ("longer", "best"))
    assert (longer["settings"].pop("iterations"), plain["settings"].pop("iterations")) == (900, settings.iterations)
    assert longer == plain
    assert few_shot.seeds_of(settings, named) == (0, 1) and few_shot._shorter(settings, named) == ", 900 iterations"


def test_baselines_as_their_authors_train_them():
    """By their public code: one step, a start for each class, as many queries as shots; Reptile ten images, then 50 steps."""
    settings = replace(
        omniglot.SMOKE, settings=("5w1s", "5w5s"), aside=(("authors", ("maml", "5w5s/fomaml", "reptile")),)
    )
    maml, fomaml, reptile = (cell for cell in few_shot.cells(settings) if cell[1] == few_shot.AUTHORS)
    for cell, shots in ((maml, 1), (fomaml, 5)):
        found = few_shot.put(settings, cell)
        method = found.learner.method
        assert (method.steps, method.rate, method.meta_rate, method.meta_batch) == ((1, 0), 0.4, 1e-3, 32)
        assert (found.settings.queries, found.settings.head, found.settings.decay) == (shots, "own", False)
        assert few_shot.test_steps(settings, cell) == images.TEST_STEPS
    photographs = few_shot.variant_of(miniimagenet.FULL, ("5w1s", few_shot.AUTHORS, "fomaml"))
    assert photographs.changes["steps"] == (5, 0) and photographs.changes["rate"] == 0.05
    assert photographs.around["queries"] == 15 and not photographs.around["augmented"]  # unlike the others there
    photographs = few_shot.variant_of(miniimagenet.FULL, ("5w1s", few_shot.AUTHORS, "reptile"))
    assert photographs.changes["steps"] == (0, 8) and photographs.around["queries"] == 15
    method = few_shot.put(settings, reptile).learner.method
    assert (method.steps, method.optimizer, method.options["batch_size"]) == ((0, 5), "shared-adam", 10)
    assert few_shot.test_steps(settings, reptile) == few_shot.rests_on(settings, reptile)["test_steps"] == 50
    assert "test_steps" not in few_shot.rests_on(settings, ("5w1s", "best", "maml"))  # what was kept before them stays
    assert few_shot._shorter(settings, maml) == f", {settings.iterations} iterations"
    every = replace(settings, protocols=tuple(PROTOCOLS))
    assert set(few_shot.protocols_of(every, maml)) == set(PROTOCOLS) - {"views"}
    assert few_shot.protocols_of(every, ("5w1s", "best", "maml")) == tuple(PROTOCOLS)


def test_imaml_solves_for_the_direction_that_its_authors_code_does():
    """(2 + H/12) v = g there, (Λ + nH + damping) v = g here, n being the images of a task; 16 steps, 25 with 20 classes."""
    noise = np.random.default_rng(0)
    root, slope = noise.normal(size=(4, 4)), noise.normal(size=4)
    curvature = root @ root.T
    for setting, ways, shots, steps in (("5w1s", 5, 1, 16), ("20w5s", 20, 5, 25)):
        row, around, test_steps = authors.training("omniglot", setting, "imaml")
        damped = (row["std"] ** -2 + row["options"]["damping"]) * np.eye(4) + ways * shots * curvature
        ours, theirs = np.linalg.solve(damped, slope), np.linalg.solve(2 * np.eye(4) + curvature / 12, slope)
        np.testing.assert_allclose(ours / np.linalg.norm(ours), theirs / np.linalg.norm(theirs), rtol=1e-12)
        assert row["steps"] == (steps, 0) and test_steps == steps and around["queries"] == shots


def test_the_first_pattern_that_fits_says_how_long_a_cell_trains():
    settings = replace(omniglot.SMOKE, shortened=(("*5s/*", 20), ("*/maml", 30)))
    found = [
        few_shot.iterations_of(settings, cell)
        for cell in (("5w5s", "best", "maml"), ("5w1s", "best", "maml"), ("5w1s", "best", "fomaml"))
    ]
    assert found == [20, 30, omniglot.SMOKE.iterations]


def test_a_cell_that_is_added_leaves_the_kept_ones_alone():
    cell, place = ("5w1s", "best", "maml"), lambda settings: study._place(omniglot.STUDY, settings, cell, Path())
    more = replace(omniglot.SMOKE, settings=("5w1s", "5w5s"), methods=("maml",), shortened=(("5w5s/*", 7),))
    assert place(more) == place(omniglot.SMOKE)
    for changed in ({"shortened": (("5w1s/*", 7),)}, {"seeds": (5,)}, {"validation": 3}, {"around": (("filters", 7),)}):
        assert place(replace(omniglot.SMOKE, **changed)) != place(omniglot.SMOKE), changed


def test_a_recipe_that_changes_leaves_no_kept_cell(monkeypatch):
    cell = ("5w1s", "best", "maml")
    before = few_shot.rests_on(omniglot.SMOKE, cell)
    assert few_shot.rests_on(omniglot.SMOKE, cell) == before
    monkeypatch.setattr(images, "recipe", lambda tasks, method, network: {"rate": 0.123})
    assert few_shot.rests_on(omniglot.SMOKE, cell) != before


def test_calibration_is_compared_with_that_of_maml_task_by_task():
    """Draws that go up and down together tell apart what two intervals would not; seeds that differ blur it again."""
    luck = 0.01 * np.random.default_rng(0).normal(size=400)
    curve = lambda seeds, again: {
        "by_seed": {metric: seeds for metric in ("ECE", "MCE", "NLL")},
        "again": {metric: list(again) for metric in ("ECE", "MCE", "NLL")},
    }
    mine, theirs = f"{calibration.EXACT}/{calibration.FITTED}", f"maml/{calibration.FITTED}"
    ran_away = {f"gem-bml+/{calibration.FITTED}": curve([float("nan")], luck)}
    settings = {"methods": []}

    def told(mine_by_seed, theirs_by_seed, other=luck):
        curves = {mine: curve(mine_by_seed, luck + 0.002), theirs: curve(theirs_by_seed, other), **ran_away}
        return calibration_report._differences({"curves": curves, "settings": settings})

    exact, inner = told([0.004], [0.005])
    assert "(1 and 1 seeds): ECE -0.0010 ± 0.0000 (better), MCE" in exact
    assert "gem-bml+ minus maml (1 and 1 seeds): ECE unknown: some task ran away" in inner
    blurred = 1.96 * np.std(luck - luck[::-1])
    assert f"ECE -0.0010 ± {blurred:.4f} (not apart)" in told([0.004], [0.005], luck[::-1])[0]
    wide = study.over_seeds([0.003, 0.005])
    assert f"(2 and 1 seeds): ECE -0.0010 ± {wide:.4f} (not apart)" in told([0.003, 0.005], [0.005])[0]


def test_what_chance_alone_does_to_calibration_is_the_closed_form():
    """Of n answers that are all p sure, in one bin: E|mean − p| = √(2 p (1 − p) / (π n)); twenty draws know it to a sixth."""
    nothing = jnp.zeros((100, 1))
    found = ClassScores(nothing, nothing, jnp.full((100, 1, 40), 0.3), jnp.ones((100, 1, 40)))
    expected = (2 * 0.3 * 0.7 / (np.pi * 4000)) ** 0.5
    assert calibration.by_chance(calibration.Settings(), found) == pytest.approx(expected, rel=0.4)
    sure = found._replace(confidence=jnp.ones((100, 1, 40)))
    assert calibration.by_chance(calibration.Settings(), sure) == 0.0


def test_calibration_judges_the_training_that_a_row_names():
    """With 20 classes for the row that says so, with five for the others: what it rests on is the cell of the table."""
    full = calibration.Settings()
    of_table = lambda kind, method: few_shot.rests_on(miniimagenet.FULL, ("5w1s", kind, method))
    wide, exact = (calibration.rests_on(full, (name,)) for name in (calibration.WIDE, calibration.EXACT))
    assert wide == of_table("trained 20-way", "gem-bml+last-layer")
    assert wide["settings"]["train_ways"] == 20
    assert exact == of_table("best", "gem-bml+last-layer") | {"judged": [0, 1, 2]}


def test_a_prior_that_learned_from_one_image_is_asked_with_five_and_not_trained_again():
    full = miniimagenet.FULL
    cells = [cell for cell in few_shot.cells(full) if cell[1] == few_shot.ONE_IMAGE]
    assert [cell[0] for cell in cells] == ["5w5s", "5w5s"]
    for cell in cells:
        usual = ("5w1s", "best", cell[2])
        folders = [trainings.state_folder(few_shot.put(full, each), [2]) for each in (cell, usual)]
        assert folders[0] == folders[1] and few_shot.seeds_of(full, cell) == few_shot.seeds_of(full, usual)
        assert folders[0] != trainings.state_folder(few_shot.put(full, ("5w5s", "best", cell[2])), [2])
        made = few_shot.put(full, cell, PROTOCOLS["paper"]).settings
        assert (made.ways, made.shots, made.train_shots, made.queries) == (5, 5, 1, None)


def test_what_explains_another_number_is_asked_as_the_paper_asks():
    """A while at authors' settings differs from their row in its length alone; printed settings of photographs learn nothing."""
    full, short, long = (
        miniimagenet.FULL,
        *(("5w1s", kind, "reptile") for kind in (few_shot.AUTHORS_SHORT, few_shot.AUTHORS)),
    )
    assert {short, long} < set(few_shot.cells(full))
    one, other = (few_shot.rests_on(full, cell) for cell in (short, long))
    assert (one["settings"].pop("iterations"), other["settings"].pop("iterations")) == (600, 20_000)
    assert one == other and one["test_steps"] == 50
    printed = ("5w1s", "paper", "gem-bml+")
    assert few_shot.protocols_of(full, short) == few_shot.protocols_of(full, printed) == ("paper",)
    assert few_shot.protocols_of(omniglot.FULL, printed) == tuple(PROTOCOLS)


@pytest.mark.parametrize("posterior", ["mean-field", "delta"])
def test_widths_of_weights_that_are_drawn_are_told(posterior):
    """Three of four weights are smaller than their width of .2; of points, where widths are rates, nothing is said."""
    mean = {"a": jnp.array([[0.1, -0.1]]), "b": jnp.array([0.0, -1.0])}
    dist = MeanField(mean, jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.log(0.2)), mean))
    found = few_shot._widths(posterior, dist)
    assert found == (
        {"widths": {"median": pytest.approx(0.2), "above_weights": 0.75}} if posterior == "mean-field" else {}
    )
