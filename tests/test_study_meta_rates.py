"""Meta-rates at the length of the tables: what is trained is what the table trains, and what is said follows from the numbers."""

import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from test_study_images import pictures

from experiments import few_shot, images, meta_rates, meta_rates_report, omniglot, study
from metaprior import data

STUDY, FULL = meta_rates.STUDY, meta_rates.STUDY.scales["full"]


@pytest.mark.parametrize("name", ["gem-bml+", "maml", "imaml"])
def test_at_the_rate_of_the_table_it_is_the_training_of_the_table(name):
    """Length included: but for the seed, there is nothing that differs."""
    cell = ("5w1s", "best", name)
    of_table = images.identity(few_shot.put(omniglot.FULL, cell))
    rate = of_table["method"]["meta_rate"]
    assert meta_rates.rests_on(FULL, (name, f"{rate:g}")) == of_table
    other = meta_rates.rests_on(FULL, (name, "0.5"))
    assert other["method"].pop("meta_rate") == 0.5 and of_table["method"].pop("meta_rate") == rate
    assert other == of_table
    assert not set(FULL.seeds) & set(omniglot.FULL.seeds)


@pytest.mark.slow  # as the search does, which is quicker
@pytest.mark.usefixtures("quick_compile")
def test_it_runs_from_cells_to_figure_on_validation_classes_alone(monkeypatch, tmp_path):
    found = data.ImageSet("omniglot", pictures(12, 0), pictures(7, 1), pictures(8, 2))
    monkeypatch.setattr(data, "load", lambda name, folder=None: found._replace(test=None))
    monkeypatch.setattr(images, "STATES", tmp_path / "states")
    smoke = STUDY.scales["smoke"]
    settings = replace(smoke, trained=replace(smoke.trained, iterations=2, around=(("filters", 2), ("queries", 1))))
    results = json.loads(json.dumps(study.run(STUDY, settings, scale="smoke")))
    assert {row["metric"] for row in results["rows"]} == {"validation accuracy", "validation NLL"}
    assert list(results["curves"]) == ["fomaml/0.003", "fomaml/0.01"]
    assert isinstance(STUDY.figure(results), Figure)
    assert any("fomaml" in sentence for sentence in STUDY.remarks(results))


def results_of(**by_cell):
    """Results made by hand: for each method its rate in the table, and the accuracies of two tasks at each meta-rate."""
    curves = {}
    for name, (tables, tried) in by_cell.items():
        for rate, tasks in tried.items():
            known = {} if tasks is None else {"accuracy": sum(tasks) / len(tasks), "nll": 1.0, "task_accuracy": tasks}
            curves[f"{name}/{rate:g}"] = {
                "meta_rate": rate, "of_the_table": tables, "finite": [tasks is not None], "accuracy": None, "nll": None, **known,
            }  # fmt: skip
    return {"settings": {"meta_rates": [0.001, 0.003, 0.01]}, "rows": [], "curves": curves}


def test_what_is_said_follows_from_the_numbers():
    results = results_of(
        maml=(0.01, {0.01: [90.0, 92.0, 91.0], 0.001: [93.0, 95.0, 94.0], 0.003: [91.0, 92.0, 91.0]}),
        reptile=(0.01, {0.001: [80.0, 81.0], 0.003: [84.0, 84.0], 0.01: [84.0, 90.0]}),
        fomaml=(0.01, {0.003: [95.0, 80.0, 90.0], 0.01: [90.0, 82.0, 90.0]}),
        imaml=(0.01, {0.001: [50.0, 50.0], 0.003: [50.0, 51.0], 0.01: None}),
    )
    words = " ".join(meta_rates_report.remarks(results))
    assert "maml 0.001 (94.00 %) instead of 0.01 (91.00 %): +3.00 ± 0.00, better" in words
    assert "fomaml 0.003 (88.33 %) instead of 0.01 (87.33 %): +1.00 ± " in words and "not apart" in words
    assert "is the best of those measured: reptile 0.01 (87.00 %)." in words
    assert "Not all meta-rates are measured of: fomaml, imaml." in words
    meta_rates_report.figure(results).canvas.draw()
    reasons = {name: meta_rates_report.why(results, name) for name in ("maml", "reptile", "fomaml", "imaml", "bmaml")}
    assert "at this length, on validation classes: 0.001 (94.00 %) instead of 0.01 (91.00 %)" in reasons.pop("maml")
    assert set(reasons.values()) == {""} and meta_rates_report.why(None, "maml") == ""
