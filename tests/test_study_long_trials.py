"""Trials as long as the tables: what is trained is what the table trains, and what is said follows from the numbers."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from test_study_images import pictures

from experiments import few_shot, images, long_trials, long_trials_report, omniglot, study, trainings
from experiments.long_trials import META_RATE, ONE_STEP, OWN_HEAD
from metaprior import data

STUDY, FULL = long_trials.STUDY, long_trials.STUDY.scales["full"]


@pytest.mark.parametrize("name", ["gem-bml+", "maml", "imaml"])
def test_at_the_rate_of_the_table_it_is_the_training_of_the_table(name):
    """Length included: but for the seed, there is nothing that differs."""
    of_table = images.identity(few_shot.put(omniglot.FULL, ("5w1s", "best", name)))
    rate = of_table["method"]["meta_rate"]
    assert long_trials.rests_on(FULL, (name, f"{META_RATE}{rate:g}")) == of_table
    other = long_trials.rests_on(FULL, (name, f"{META_RATE}0.5"))
    assert other["method"].pop("meta_rate") == 0.5 and of_table["method"].pop("meta_rate") == rate
    assert other == of_table
    assert not set(FULL.seeds) & set(omniglot.FULL.seeds)


def test_one_step_is_tried_where_points_take_steps():
    every = replace(FULL, methods=tuple(few_shot.VARIANTS))
    one = [name for name, trial in long_trials.cells(every) if trial == ONE_STEP]
    assert one == ["gem-bml+", "gem-bml", "maml", "fomaml", "reptile"]
    steps = {name: long_trials.put(FULL, (name, ONE_STEP)).learner.method.steps for name in one}
    assert steps == {"gem-bml+": (1, 1), "gem-bml": (1, 1), "maml": (1, 0), "fomaml": (1, 0), "reptile": (1, 1)}
    shared, own = (long_trials.rests_on(FULL, ("maml", trial)) for trial in (ONE_STEP, OWN_HEAD))
    assert (shared["settings"].pop("head"), own["settings"].pop("head")) == (None, "own") and shared == own


@pytest.mark.slow  # as the search does, which is quicker
@pytest.mark.usefixtures("quick_compile")
def test_it_runs_from_cells_to_figure_on_validation_classes_alone(monkeypatch, tmp_path):
    found = data.ImageSet("omniglot", pictures(12, 0), pictures(7, 1), pictures(8, 2))
    monkeypatch.setattr(data, "load", lambda name, folder=None: found._replace(test=None))
    monkeypatch.setattr(trainings, "STATES", tmp_path / "states")
    smoke = STUDY.scales["smoke"]
    settings = replace(smoke, trained=replace(smoke.trained, iterations=2, around=(("filters", 2), ("queries", 1))))
    results = json.loads(json.dumps(study.run(STUDY, settings, scale="smoke")))
    assert {row["metric"] for row in results["rows"]} == {"validation accuracy", "validation NLL"}
    assert {name: curve["of_the_table"] for name, curve in results["curves"].items()} == {
        "fomaml/meta rate 0.01": True,
        "fomaml/one step": False,
    }
    assert isinstance(STUDY.figure(results), Figure)
    assert any("fomaml" in sentence for sentence in STUDY.remarks(results))


def results_of(**by_method):
    """Results made by hand: for each method the trial of the table, and accuracies of a few tasks in each trial."""
    curves = {}
    for name, (tables, tried) in by_method.items():
        for trial, tasks in tried.items():
            known = (
                {"accuracy": None} if tasks is None else {"accuracy": sum(tasks) / len(tasks), "task_accuracy": tasks}
            )
            curves[f"{name}/{trial}"] = {"trial": trial, "of_the_table": trial == tables, "nll": 1.0, **known}
    return {"settings": {"trials": ["a", "b", "c"]}, "rows": [], "curves": curves}


def test_what_is_said_follows_from_the_numbers():
    results = results_of(
        maml=("c", {"c": [90.0, 92.0, 91.0], "a": [93.0, 95.0, 94.0], "b": [91.0, 92.0, 91.0]}),
        reptile=("c", {"a": [80.0, 81.0], "b": [84.0, 84.0], "c": [84.0, 90.0]}),
        fomaml=("c", {"b": [95.0, 80.0, 90.0], "c": [90.0, 82.0, 90.0]}),
        imaml=("c", {"a": [50.0, 50.0], "b": [50.0, 51.0], "c": None}),
    )
    words = " ".join(long_trials_report.remarks(results))
    assert "maml, a (94.00 %) instead of c (91.00 %): +3.00 ± 0.00, better" in words
    assert "fomaml, b (88.33 %) instead of c (87.33 %): +1.00 ± " in words and "not apart" in words
    assert "are the best: reptile, c (87.00 %)." in words
    assert "are not measured at this length: imaml, a (50.00 %), b (50.50 %), c (not finite)." in words
    long_trials_report.figure(results).canvas.draw()
    reasons = {name: long_trials_report.why(results, name) for name in ("maml", "reptile", "fomaml", "imaml", "bmaml")}
    assert "which tells rates, steps and head not apart: a (94.00 %) instead of c (91.00 %)" in reasons.pop("maml")
    assert set(reasons.values()) == {""} and long_trials_report.why(None, "maml") == ""
