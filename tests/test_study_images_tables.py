"""What the studies of few-shot images write: rows and remarks of results, told from numbers that are given."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from experiments import (
    few_shot,
    few_shot_report,
    image_search,
    images,
    inner_optimisers,
    miniimagenet,
    omniglot,
    paper,
    study,
    time_to_accuracy,
)
from experiments.images import PROTOCOLS, setting_of
from experiments.report.beside.line import Value, compared
from experiments.report.verdicts import AGREES, BETTER, WORSE
from metaprior.classes import ClassScores


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
    assert said[1].endswith("natural with 5 steps: rate 0.1 of 0.1.") and len(said) == 2
    given["curves"]["sgd/1"] |= {"rates": {"0.1": 90.0, "0.3": None, "1.0": None}}
    given["curves"]["natural/5"] |= {"rates": {"0.01": 80.0, "0.1": 95.0, "1.0": 90.0}}
    edge, lost = inner_optimisers.remarks(given)[2:]
    assert edge == "At the edge of their rates, beyond which a better one may lie: sgd with 1 step."
    assert lost == "Rates at which training left the finite numbers: sgd with 1 step 2 of 3."
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


def test_methods_that_the_search_does_not_know_are_named(monkeypatch):
    known = {"omniglot/5w1s/maml": {"tried": [{"changes": {}, "accuracy": 90.0, "nll": 1.0}]}}
    monkeypatch.setattr(image_search, "_results", lambda: {"curves": known})
    curve = {"task_accuracy": {}, "seeds": [0], "iterations": 5, "finite": [True]}
    names = ("5w1s/best/maml", "20w1s/best/bmaml", "5w1s/authors/imaml")
    *_, said = few_shot_report.remarks({"settings": SETTINGS, "rows": [], "curves": dict.fromkeys(names, curve)})
    assert said == "Rates not searched on these images, but places to start from: bmaml."


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
    assert told[0].endswith(
        f"seeds of the two 1 and 3, what seeds do not counted: strict +0.00 ± {half:.2f} (not apart)."
    )
    assert told[1].endswith("strict -3.00 ± 0.00 (worse).")


def timed(seconds):
    """Results of two methods that were looked at twice, one of them with these seconds."""
    told = {"goal": 99.0, "iterations": 30, "looks": 3, "seconds": 5.0}
    curves = {
        "maml": {"seconds": seconds, "accuracy": [90.0, 96.0, 98.0]},
        "bmaml": {"seconds": [1.0, 2.0, 3.0], "accuracy": [95.0, 99.5, 99.0]},
    }
    return {"settings": told, "rows": [], "curves": curves}


@pytest.mark.parametrize(("seconds", "factor"), [([2.0, 3.9, 6.0], None), ([2.0, 4.0, 14.0], "5.0")])
def test_a_clock_that_something_else_held_up_is_told(seconds, factor):
    """Parts of a training are the same work: 2, 1.9 and 2.1 seconds are noise, 10 after 2 are not."""
    _, *said = time_to_accuracy.remarks(timed(seconds))
    assert len(said) == (factor is not None) and all(f"of maml ({factor} times)." in one for one in said)


def test_who_gets_there_first_and_who_was_stopped_is_told():
    """Ten iterations a look: after two of three looks, twenty are done."""
    given = timed([2.0, 4.0, 6.0])
    assert "right: 95 % bmaml 1.0, maml 4.0 (2 of 2 methods); 97 % bmaml 2.0, maml 6.0 (2 of 2 methods); " in (
        said := time_to_accuracy.remarks(given)[0]
    )
    assert "; 99 % bmaml 2.0 (1 of 2 methods). " in said
    given["curves"]["maml"] = {"seconds": [2.0, 4.0], "accuracy": [90.0, 91.0]}
    _, stopped = time_to_accuracy.remarks(given)
    assert stopped.startswith("Stopped by the clock after 5 s, before the last of 30 ") and stopped.endswith(
        ": maml 20."
    )
    given["curves"].pop("bmaml")
    assert "95 % by none; " in time_to_accuracy.remarks(given)[0]
