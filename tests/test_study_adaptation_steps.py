"""How many steps to ask with: chosen on validation classes, by numbers of the very prior that the table asks."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_study_images import pictures

from experiments import adaptation_steps, few_shot, images, omniglot, study, trainings
from experiments.adaptation_steps import IMPLICIT, METHOD, STUDY, chosen
from metaprior import data

FULL = STUDY.scales["full"]


def test_the_table_asks_with_the_steps_that_validation_classes_chose():
    assert chosen(study.load("adaptation-steps")) == few_shot.STEPS[few_shot.MORE_STEPS]
    asked = {kind: few_shot.test_steps(omniglot.FULL, ("20w5s", kind, METHOD)) for kind in omniglot.ONE_PRIORS}
    assert asked == {few_shot.ONE_PRIOR: images.TEST_STEPS, few_shot.MORE_STEPS: 20}


def test_so_asked_one_prior_reaches_all_numbers_of_the_paper():
    """What docs/few-shot.md says: after the paper's ten steps three of them; three seeds, the paper's protocol, no views."""
    found = {kind: {} for kind in omniglot.ONE_PRIORS}
    for row in study.load("omniglot")["rows"]:
        setting, kind, *_ = row["setting"].split(", ")
        if kind in found and row["metric"] == "accuracy, paper":
            found[kind][setting] = row["mean"] >= row["paper"], row["seeds"]
    all_four = dict.fromkeys(omniglot.FULL.settings, (True, 3))
    assert found == {few_shot.MORE_STEPS: all_four, few_shot.ONE_PRIOR: all_four | {"20w5s": (False, 3)}}


def test_one_training_serves_all_settings_and_is_the_one_of_the_table():
    kinds = (*omniglot.ONE_PRIORS, few_shot.LONGER)
    cells = [(setting, kind, METHOD) for setting in omniglot.FULL.settings for kind in omniglot.ONE_PRIORS]
    folders = {
        trainings.state_folder(few_shot.put(omniglot.FULL, cell), few_shot.seeds_of(omniglot.FULL, cell))
        for cell in [*cells, ("20w1s", few_shot.LONGER, METHOD)]
    }
    assert len(folders) == 1 and set(few_shot.cells(omniglot.FULL)) >= set(cells)
    assert all(few_shot.seeds_of(omniglot.FULL, ("20w1s", kind, METHOD)) == (0, 1, 2) for kind in kinds)
    mine = [adaptation_steps.rests_on(FULL, cell) for cell in STUDY.cells(FULL) if len(cell) == 1]
    assert mine == [few_shot.rests_on(omniglot.FULL, (s, few_shot.ONE_PRIOR, METHOD)) for s in omniglot.FULL.settings]


def test_the_priors_of_imaml_are_those_of_the_table_and_asked_with_the_steps_that_were_chosen():
    kinds = {
        "5w1s": few_shot.LONGER_SOLVED,
        "5w5s": few_shot.LONGER_SOLVED,
        "20w1s": few_shot.SOLVED,
        "20w5s": few_shot.SOLVED,
    }
    for setting, kind in kinds.items():
        cell = (setting, kind, IMPLICIT)
        assert cell in few_shot.cells(omniglot.FULL) and few_shot.test_steps(omniglot.FULL, cell) == 40
        trained = adaptation_steps.rests_on(FULL, (setting, IMPLICIT))
        assert few_shot.rests_on(omniglot.FULL, cell) == trained | {"test_steps": 40}
        assert STUDY.seeds_of(FULL, (setting, IMPLICIT)) == (0,)
    assert chosen(study.load("adaptation-steps"), IMPLICIT) == few_shot.STEPS[few_shot.SOLVED]


def results_of(**by_steps):
    """Results made by hand: accuracies of the same tasks after each number of steps, in two settings that are alike."""
    curve = {"task_accuracy": {steps.removeprefix("after"): tasks for steps, tasks in by_steps.items()}}
    at = [int(steps) for steps in curve["task_accuracy"]]
    return {"settings": {"at": at}, "rows": [], "curves": {"5w1s": curve, "20w1s": curve}}


def test_the_fewest_steps_that_are_not_apart_from_the_best():
    few, level, best = [80.0, 90.0, 85.0, 82.0], [91.0, 98.0, 96.0, 93.0], [93.0, 97.0, 95.0, 94.0]
    assert chosen(results_of(after5=few, after10=level, after20=best)) == 10
    assert chosen(results_of(after5=few, after10=np.add(few, 1), after20=best)) == 20
    assert chosen(results_of(after5=best, after10=few)) == 5
    words = adaptation_steps.remarks(results_of(after5=few, after10=np.add(few, 1), after20=np.add(few, 3)))
    assert (
        "gem-bml+, mean accuracy" in words[0]
        and "5: 84.25 %, 10: 85.25 %, 20: 87.25 %." in words[0]
        and "are 20; rows *one prior at 20 steps*" in words[0]
    )
    assert words[1] == "gem-bml+, 5w1s, 20 steps instead of 10, task by task: +2.00 ± 0.00 points (better)."


@pytest.mark.usefixtures("quick_compile")
def test_it_asks_validation_classes_alone_and_each_number_as_if_it_were_the_only_one(monkeypatch, tmp_path):
    found = data.ImageSet("omniglot", pictures(22, 0), pictures(7, 1), pictures(8, 2))
    monkeypatch.setattr(data, "load", lambda name, folder=None: found._replace(test=None))
    monkeypatch.setattr(trainings, "STATES", tmp_path / "states")
    smoke = STUDY.scales["smoke"]
    settings = replace(smoke, trained=replace(smoke.trained, iterations=1, around=(("filters", 2), ("queries", 1))))
    results = json.loads(json.dumps(study.run(STUDY, settings, scale="smoke")))
    assert [row["setting"] for row in results["rows"]] == ["5w1s, 1 steps", "5w1s, 2 steps"]
    cell = ("5w1s", few_shot.ONE_PRIOR, METHOD)
    trained = trainings.train(few_shot.put(settings.trained, cell), settings.seeds)
    alone = images.judge(
        few_shot.put(settings.trained, cell, images.PROTOCOLS["paper"]), trained.states, steps=2, num_tasks=8, validation=4,
        split="validation",
    )  # fmt: skip
    assert results["rows"][1]["mean"] == pytest.approx(100 * np.asarray(alone.accuracy, float).mean())
    STUDY.figure(results).canvas.draw()
