"""The paper beside the results: verdicts follow from the numbers, gaps are named, and it is built from whatever is there."""

import copy
import json

import numpy as np
import pytest

from experiments import few_shot, paper, study
from experiments.compute_memory import BYTES, SECONDS
from experiments.report import beside, markdown, page
from experiments.report.beside import accuracy, agents, cost, hyper, sinusoids, theory, training
from experiments.report.beside.line import Value, apart, compared, share_of
from experiments.report.verdicts import (
    AGREES,
    BETTER,
    FAILS,
    HOLDS,
    NOTHING,
    OTHER,
    PART,
    PRINTED,
    UNDECIDED,
    UNMEASURED,
    WORSE,
    Paper,
    kind,
)

NAMES = tuple(dict.fromkeys(name for item in beside.ITEMS for name in item.studies))


def results(*rows, curves=None, **settings):
    listed = [study.row(setting=s, method=m, metric=k, mean=v, ci95=c) | {"command": "x"} for s, m, k, v, c in rows]
    return {"settings": settings, "rows": listed, "curves": curves or {}}


def loading(**found):
    return lambda name: found.get(name.replace("-", "_"))


def verdicts(lines, *, where=""):
    return [line.verdict for line in lines if line.where.startswith(where)]


# --- the whole --------------------------------------------------------------------------------------------------------


def test_every_table_and_figure_of_the_paper_has_its_place():
    places = {
        item.place.partition(" (A")[0].partition(",")[0].removesuffix(" (a)").removesuffix(" (b)")
        for item in beside.ITEMS
    }
    assert places == {*(f"Figure {n}" for n in range(1, 7)), *(f"Table {n}" for n in range(1, 7))}
    assert len({each.name for each in beside.beside()}) == len(beside.ITEMS)


def test_without_results_everything_is_named_as_not_measured(tmp_path):
    found = beside.beside(tmp_path)
    assert {line.verdict for each in found for line in each.lines} == {UNMEASURED, NOTHING}
    assert all(line.ours for each in found for line in each.lines)
    printed = [line.paper for each in found if each.place == "Table 2" for line in each.lines]
    assert printed == [
        f"{table[s].text} %" for s in paper.OMNIGLOT_SETTINGS for table in paper.ACCURACY["omniglot"].values()
    ]
    assert "metaprior reproduce omniglot --scale full" in found[4].commands
    assert beside.of_paper(tmp_path) is None


def test_results_of_smoke_scale_show_nothing(tmp_path):
    for name in ("omniglot", "sinusoid-default"):
        whole = study.load(name)
        (tmp_path / f"{name}.json").write_text(
            json.dumps({**whole, "settings": whole["settings"] | {"scale": "smoke"}})
        )
    assert {line.verdict for each in beside.beside(tmp_path) for line in each.lines} == {UNMEASURED, NOTHING}


def test_numbers_of_the_paper_are_those_of_the_rows():
    """Results were measured with the paper's numbers in their rows."""
    for name in ("omniglot", "miniimagenet"):
        for row in study.load(name)["rows"]:
            if row["paper"] is not None:
                assert row["paper"] == paper.ACCURACY[name][row["method"]][row["setting"].split(",")[0]].mean
    assert few_shot.PAPER["miniimagenet"]["amortized-bml"] == {"5w1s": 45.0}
    assert all(printed.ci95 for table in paper.ACCURACY.values() for by in table.values() for printed in by.values())


@pytest.mark.parametrize("seed", range(6))
def test_it_is_built_from_whatever_is_there(tmp_path, seed):
    """Rows and curves lost, numbers that ran away, whole files missing: never an error, and as many lines as ever."""
    rng = np.random.default_rng(seed)
    for name in NAMES:
        if not (study.RESULTS / f"{name}.json").exists() or rng.random() < 0.2:
            continue
        found = copy.deepcopy(study.load(name))
        found["rows"] = [row for row in found["rows"] if rng.random() < 0.8] or found["rows"][:1]
        for row in found["rows"]:
            row["mean"] = None if rng.random() < 0.2 else row["mean"]
            row["ci95"] = None if row["mean"] is None or rng.random() < 0.2 else row["ci95"]
        if name not in ("a-star", "a-star-omniglot", "gradient-error"):  # their curves are of one piece with their rows
            found["curves"] = {key: curve for key, curve in found["curves"].items() if rng.random() < 0.8}
        else:
            found["rows"] = study.load(name)["rows"]
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    built = beside.beside(tmp_path)
    assert [each.place for each in built] == [item.place for item in beside.ITEMS]
    known = {AGREES, BETTER, WORSE, HOLDS, PART, FAILS, UNDECIDED, PRINTED, OTHER, UNMEASURED, NOTHING}
    assert all(line.verdict in known and line.ours and line.paper for each in built for line in each.lines)
    text = markdown.document([], Paper(beside.summary(built), tuple(built)))
    assert "nan" not in text and "None" not in text


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "less_is_better", "verdict"),
    [
        (Value(98.2, 0.3), False, AGREES),  # 0.5 = the root of 0.3² + 0.4²
        (Value(98.19, 0.3), False, WORSE),
        (Value(99.21, 0.3), False, BETTER),
        (Value(99.21, 0.3), True, WORSE),
        (Value(None), False, WORSE),
    ],
)
def test_a_number_agrees_as_far_as_both_intervals_allow(ours, less_is_better, verdict):
    assert compared(paper.read("98.7 ± 0.4"), ours, less_is_better=less_is_better)[0] == verdict


def test_claims_about_several_things_and_differences():
    assert [share_of(held) for held in ([True, True], [True, False], [False], [])] == [HOLDS, PART, FAILS, FAILS]
    assert [apart(Value(m, 1.0)) for m in (1.1, 0.9, -0.9, -1.1, None)] == [
        HOLDS,
        UNDECIDED,
        UNDECIDED,
        FAILS,
        UNDECIDED,
    ]
    assert [kind(verdict) for verdict in (AGREES, PART, FAILS, UNMEASURED)] == ["good", "mixed", "bad", "none"]


AUTHORS = "its authors’ settings, 20,000 iterations"


def losses(*quarters, ripple=0.1):
    """In training, of two seeds: twenty points with the same ripple around these means of the four quarters."""
    one = np.repeat(quarters, 5) + ripple * np.tile([1, -1, 0, 1, -1], 4)
    return [one.tolist(), (one + 0.5).tolist()]


def worse(query_nll, setting="5w1s", **more):
    """What is said of an accuracy of MAML that is far below the paper's."""
    curve = {"iterations": 5000, "method": {"meta_batch": 16}, "query_nll": query_nll} | more
    found = results((f"{setting}, best", "maml", "accuracy, paper", 90.0, 0.8), curves={f"{setting}/best/maml": curve})
    lines = accuracy.omniglot(loading(omniglot=found))
    line = next(line for line in lines if line.where == accuracy.WORDS[setting] and line.what == "MAML")
    assert line.verdict == WORSE
    return line.said.partition("allow ")[2].partition(". ")[2]


def test_a_training_is_called_short_only_where_its_loss_still_falls():
    said = worse(losses(3, 2, 1.5, 1.2))
    assert said == (
        "Its training may be too short: the loss still falls (1.75 in the third quarter of 5,000 iterations of 16 tasks, 1.45 in "
        "the last). The paper does not say how long it trains, MAML’s authors do so for 60,000 of 32."
    )
    assert worse(losses(3, 2, 1.5, 1.2), "20w1s").endswith("60,000 of 16.")


def test_a_loss_that_has_settled_explains_nothing():
    said = worse(losses(3, 2, 1.5, 1.48))
    assert said.startswith("Its loss in training had settled within its spread (1.75 in")
    assert said.endswith("the distance is not explained.")
    assert "short" not in said and "MAML’s authors" not in said
    falling = worse(losses(3, 2, 1.5, 1.48), settings={"decay": True})
    assert (
        "while the meta-rate falls to zero; whether more would help is open (MAML’s authors train for 60,000 of 32)"
        in falling
    )


@pytest.mark.parametrize(("median", "grew"), [(0.19, True), (0.06, False)])
def test_widths_that_grew_are_told(median, grew):
    curve = {"widths": {"median": median, "above_weights": 0.84}, "settings": {}}
    said = worse(losses(1, 0.6, 0.5, 0.5), method={"meta_batch": 32, "std": 0.05}, **curve)
    told = "they went from 0.0500 to 0.190 (median), and 84 % of weights are smaller than theirs"
    assert (told in said, "not explained" in said) == (grew, not grew)


def test_a_loss_from_before_any_step_says_nothing_of_length():
    """Reptile at its authors' settings takes all its steps in the second stage: what is watched is the prior as it is."""
    curve = {"iterations": 2500, "query_nll": losses(1.8, 1.75, 1.72, 1.71), "settings": {"decay": True}}
    curve["method"] = {"name": "reptile", "meta_batch": 5, "steps": [0, 8]}
    said = training.why(curve, "miniimagenet", "5w1s")
    assert said.startswith(
        " Its training may be too short: 2,500 iterations of 5 tasks, where Reptile’s authors train for 100,000 of 5;"
    )
    assert "settled" not in said and "guessing" not in said
    long = training.why(curve | {"iterations": 100_000}, "miniimagenet", "5w1s")
    assert "short" not in long and long.endswith("as Reptile’s authors do: the distance is not explained.")
    curve["method"]["steps"] = [5, 5]
    assert "settled" in training.why(curve, "miniimagenet", "5w1s")


@pytest.mark.parametrize(("short", "told"), [
    (35.0, "35.00 ± 1.80 %, 4.20 less, so that length may be the reason."), (38.0, "38.00 ± 1.80 %, which is not apart from it."),
])  # fmt: skip
def test_a_shorter_training_at_authors_settings_tells_what_length_does(short, told):
    """39.2 ± 1.8 against 35 ± 1.8 is apart: √(2 · 1.8²) = 2.55; against 38 it is not."""
    method = {"name": "reptile", "meta_batch": 5, "steps": [0, 8]}
    curves = {
        f"5w1s/{kind}/reptile": {"iterations": count, "method": method, "query_nll": losses(1.8, 1.75, 1.72, 1.71)}
        for kind, count in ((few_shot.AUTHORS, 2500), (few_shot.AUTHORS_SHORT, 600))
    }
    rows = [
        (f"5w1s, {few_shot.WORDS[kind]}, {count} iterations", "reptile", "accuracy, paper", mean, 1.8)
        for kind, count, mean in ((few_shot.AUTHORS, "2,500", 39.2), (few_shot.AUTHORS_SHORT, "600", short))
    ]
    lines = accuracy.miniimagenet(loading(miniimagenet=results(*rows, curves=curves)))
    said = next(line.said for line in lines if line.what == "Reptile at its authors’ settings")
    assert said.endswith(f"before any step, does not tell. Trained for 600 iterations it has {told}")


@pytest.mark.parametrize(("setting", "guesses"), [("5w1s", True), ("20w1s", False)])
def test_a_loss_of_guessing_is_called_that(setting, guesses):
    """Among five classes log 5 = 1.61; of twenty, with log 20 = 3.00, the same loss has learned much."""
    assert ("1.87 in the last; guessing has 1.61)" in worse(losses(2, 1.7, 1.63, 1.62), setting)) == guesses


def test_other_trainings_of_a_method_are_a_reason_where_they_reach_what_is_printed():
    """Where they come closer they are a part of it, and their own row has the rest; where they do not, nothing is explained."""
    curve = {"iterations": 5000, "method": {"meta_batch": 16}, "query_nll": losses(3, 2, 0.5, 0.48)}
    curves = {"5w1s/best/maml": curve, "5w1s/authors/maml": curve}

    def said(mean):
        rows = [
            (f"5w1s, {words}", "maml", "accuracy, paper", value, 0.1)
            for words, value in (("best", 90.0), (AUTHORS, mean))
        ]
        lines = accuracy.omniglot(loading(omniglot=results(*rows, curves=curves)))
        theirs = next(line for line in lines if "MAML at its authors" in line.what)
        assert theirs.verdict == (AGREES if mean > 98 else WORSE)
        assert theirs.said.endswith("the distance is not explained.") == (mean < 98)
        return next(line.said for line in lines if line.what == "MAML" and line.where == "5-way 1-shot")

    assert said(98.8).endswith("in the last). At its authors’ settings: 98.80 ± 0.10 % (agrees).")
    assert said(97.0).endswith(
        "in the last). At its authors’ settings: 97.00 ± 0.10 %, 7.00 more; what is left is told there."
    )
    assert said(90.1).endswith("the distance is not explained.")  # ± .1 each: not told apart


def test_the_same_prior_asked_after_more_steps_is_reason_enough():
    """Not its length, whatever its loss did; and a reason for the method's own row, too."""
    curve = {"iterations": 5000, "method": {"meta_batch": 16}, "query_nll": losses(3, 2, 1.5, 1.2)}
    rows = [
        (f"20w5s, {words}", "gem-bml+", "accuracy, paper", value, 0.1)
        for words, value in (
            ("best", 90.0),
            ("one prior, 9 iterations", 97.0),
            ("one prior at 20 steps, 9 iterations", 99.0),
        )
    ]
    curves = dict.fromkeys(("20w5s/best/gem-bml+", "20w5s/one prior/gem-bml+"), curve)
    said = {line.what: line.said for line in accuracy.omniglot(loading(omniglot=results(*rows, curves=curves)))
            if line.where == "20-way 5-shot"}  # fmt: skip
    told = said["GEM-BML+, one prior for all settings"]
    assert told.endswith("allow 0.27. The same prior, asked after 20 steps: 99.00 ± 0.10 % (agrees).")
    assert said["GEM-BML+"].endswith("One prior for all settings, asked after 20 steps: 99.00 ± 0.10 % (agrees).")


def test_what_ten_steps_do_to_the_printed_settings_is_told_and_what_is_left_too():
    """Asked after as many steps as they train with the prior is better, and still low: then its training has a word, too."""
    curve = {"iterations": 4000, "method": {"meta_batch": 32}, "query_nll": losses(1, 0.6, 0.5, 0.5), "settings": {}}
    rows = [
        (f"5w5s, {words}, 4,000 iterations", "gem-bml+", "accuracy, paper", value, 1.0)
        for words, value in (("the paper’s settings", 60.0), (few_shot.PRINTED_ONCE, 85.0))
    ]
    found = results(*rows, curves={f"5w5s/{kind}/gem-bml+": curve for kind in ("paper", few_shot.PRINTED_ONCE)})
    said = {line.what: line.said for line in accuracy.omniglot(loading(omniglot=found)) if line.verdict == WORSE}
    told = said["GEM-BML+ at the printed settings"]
    assert "The same settings, asked after one step: 85.00 ± 1.00 % (worse). Its loss in training had settled" in told
    assert told.endswith("what is left is not explained.")
    assert said["GEM-BML+ at the printed settings, asked after one step"].endswith("the distance is not explained.")


def test_a_loss_that_rises_is_a_training_that_diverges():
    assert worse(losses(3, 2, 1.5, 1.8)).startswith("Its training diverges: the loss rises (1.75 in")
    lost = losses(3, 2, 1.5, 1.8)
    lost[1][-1] = None  # as JSON writes what is no number
    assert (
        worse(lost) == "Its training diverges: within 5,000 iterations of 16 tasks the loss leaves the finite numbers."
    )


def test_quarters_differ_beyond_the_intervals_of_their_means():
    """Of ±ripple, twice each way and once not: variance ripple² over five points, so 1.96·√(2/5)·ripple apart at most."""
    allowed = 1.96 * (2 / 5) ** 0.5 * 0.1
    found = [training.end(losses(3, 2, 1.5, 1.5 + share * allowed)) for share in (-1.01, -0.99, 0.99, 1.01)]
    assert [one and one.way for one in found] == [training.FALLS, training.SETTLED, training.SETTLED, training.RISES]


def test_without_a_curve_nothing_is_said_of_the_training():
    assert worse([[1.0, 0.5]]) == worse(None) == worse(losses(3, 2, 1, 0.5), method=None) == ""


def test_an_accuracy_that_agrees_says_nothing_of_its_training():
    curve = {"iterations": 5000, "method": {"meta_batch": 16}, "query_nll": losses(3, 2, 1, 0.5)}
    found = results(("5w1s, best", "maml", "accuracy, paper", 97.3, 0.8), ("5w1s, best", "reptile", "accuracy, paper", 97.7, 0.1),
                    curves={"5w1s/best/maml": curve, "5w1s/best/reptile": curve})  # fmt: skip
    lines = {line.what: line for line in accuracy.omniglot(loading(omniglot=found)) if line.where == "5-way 1-shot"}
    assert lines["MAML"][2:5] == ("98.7 ± 0.4 %", "97.30 ± 0.80 %", WORSE)
    assert lines["MAML"].said.startswith("1.40 below, where the two intervals allow 0.89. Its training")
    assert lines["Reptile"].verdict == AGREES and "training" not in lines["Reptile"].said
    assert lines["iMAML"].verdict == UNMEASURED and "GEM-BML+ with an exact head" not in lines


def test_variants_of_ours_stand_beside_the_papers_number_where_they_were_measured():
    found = results(("5w1s, the paper’s settings", "gem-bml+", "accuracy, paper", 90.0, 1.0),
                    ("5w1s, trained 20-way, 4,000 iterations", "gem-bml+last-layer", "accuracy, paper", 99.5, 0.3),
                    ("5w1s, best-looking", "gem-bml+", "accuracy, paper", 1.0, 0.1))  # fmt: skip
    lines = [line for line in accuracy.omniglot(loading(omniglot=found)) if line.verdict != UNMEASURED]
    assert [(line.what, line.paper, line.verdict) for line in lines] == [
        ("GEM-BML+ at the printed settings", "99.23 ± 0.42 %", WORSE),
        ("GEM-BML+ with an exact head, trained with 20 classes", "99.23 ± 0.42 %", AGREES),
    ]


@pytest.mark.parametrize(("short", "grows"), [(37.0, True), (41.5, False)])
def test_a_training_that_settled_is_set_beside_the_short_one_of_the_search(short, grows):
    """42 ± 1.8 against 37 ± 1.9 lies 5 apart, more than √(1.8² + 1.9²) = 2.6; against 41.5 it does not."""
    point = {"changes": {"rate": 0.03, "meta_rate": 0.001}, "accuracy": short, "nll": 1.4}
    other = {"changes": {"rate": 0.3, "meta_rate": 0.001}, "accuracy": 20.0, "nll": 1.6}
    searched = results(("miniimagenet 5w1s: rate 0.03, meta rate 0.001", "fomaml", "validation accuracy", short, 1.9),
                       ("miniimagenet 5w1s: rate 0.3, meta rate 0.001", "fomaml", "validation accuracy", 20.0, 1.9),
                       curves={"miniimagenet/5w1s/fomaml": {"tried": [other, point]}}, iterations=600)  # fmt: skip
    curve = {
        "iterations": 5000,
        "method": {"meta_batch": 4},
        "query_nll": losses(3, 2, 1.5, 1.5),
        "settings": {"decay": True},
    }
    found = results(("5w1s, best", "fomaml", "accuracy, paper", 42.0, 1.8), curves={"5w1s/best/fomaml": curve})
    lines = accuracy.miniimagenet(loading(miniimagenet=found, image_search=searched))
    said = next(line.said for line in lines if line.what == "first-order MAML")
    grown = (
        "Its length may be the reason: after the 600 iterations of the search, without augmentation, it has 37.00 ± 1.90 % right "
        "of validation classes, 5.00 less than of test classes after 5,000; MAML’s authors train for 60,000 of 4."
    )
    assert (grown in said, "not explained" in said) == (grows, not grows)


def test_imaml_is_explained_by_the_steps_after_which_it_is_asked():
    """The same prior after 40 steps, where that was measured; its authors' row says what ours comes to."""
    curve = {
        "iterations": 4000,
        "method": {"meta_batch": 32},
        "query_nll": losses(3, 2, 1.5, 1.5),
        "settings": {"decay": False},
    }
    found = results(("5w1s, best, 3,000 iterations", "imaml", "accuracy, paper", 97.0, 0.7),
                    ("5w1s, longer, 10,000 iterations", "imaml", "accuracy, paper", 98.0, 0.5),
                    ("5w1s, longer at 40 steps, 10,000 iterations", "imaml", "accuracy, paper", 99.4, 0.3),
                    ("5w1s, its authors’ settings, 4,000 iterations", "imaml", "accuracy, paper", 93.7, 1.0),
                    curves={f"5w1s/{kind}/imaml": curve for kind in ("best", "longer", "authors")})  # fmt: skip
    said = {line.what: line.said for line in accuracy.omniglot(loading(omniglot=found)) if line.verdict == WORSE}
    asked = "rained longer and asked after 40 steps: 99.40 ± 0.30 % (agrees)."
    assert f"T{asked}" in said["iMAML"]
    assert said["iMAML, trained longer"].endswith("The same prior, asked after 40 steps: 99.40 ± 0.30 % (agrees).")
    assert f"At our settings: T{asked}" in said["iMAML at its authors’ settings"]
    assert not any("not explained" in words for words in said.values())


def test_calibration_counts_with_the_temperature_and_says_what_is_without():
    found = results(("temperature fitted", "maml", "ECE", 0.01, 0.001), ("as it is", "maml", "ECE", 0.2, 0.01))
    line = next(line for line in accuracy.calibration(loading(calibration=found)) if line.verdict != UNMEASURED)
    assert line[:5] == ("ECE", "MAML", "0.0471", "0.0100 ± 0.0010", BETTER)
    assert line.said == "0.0371 below; the paper prints no interval. Without the temperature: 0.2000 ± 0.0100 (worse)."


def curve_of_errors(**left):
    """Rows of Figure 2a at the best settings: error after ten steps as a share of that before."""
    rows = []
    for method, share in left.items():
        name = method.replace("_", "-").replace("-plus", "+")
        rows += [("best", name, "MSE after 0", 2.0, 0.1), ("best", name, "MSE after 10", 2.0 * share, 0.1)]
        rows += [("best", name, "MSE after 50", 1.9 * share, 0.1)]
    return results(*rows, iterations=40_000)


def test_claims_of_figure_2a():
    hard = curve_of_errors(gem_bml_plus=0.2, gem_bml=0.9, maml=0.95, reptile=0.99)
    easy = curve_of_errors(gem_bml_plus=0.02, gem_bml=0.05, maml=0.04, reptile=0.03)
    lines = sinusoids.figure_2a(loading(sinusoid_challenging=hard, sinusoid_default=easy))
    assert verdicts(lines, where="default, best") == [PART]  # gem-bml keeps more than the slowest of the others
    assert verdicts(lines, where="challenging, best") == [PART, HOLDS, HOLDS]
    assert verdicts(lines, where="challenging, the paper") == [UNMEASURED] * 3
    lost = curve_of_errors(gem_bml_plus=float("nan"), maml=0.5, reptile=0.5)
    lines = sinusoids.figure_2a(loading(sinusoid_challenging=lost))
    assert verdicts(lines, where="challenging, best") == [FAILS, FAILS, FAILS]
    short = sinusoids.figure_2a(loading(sinusoid_default=easy | {"settings": {"iterations": 7000}}))
    assert "Trained for 7,000 iterations, not 40,000." in short[1].said


@pytest.mark.parametrize(
    ("errors", "verdict"), [((0.9, 0.3, 0.2), PART), ((0.21, 0.3, 0.2), FAILS), ((2.0, 0.3, 0.2), HOLDS)]
)
def test_whether_several_steps_are_necessary(errors, verdict):
    rows = [(f"best, {k} steps", "maml", "MSE after 10", error, 0.05) for k, error in enumerate(errors, start=1)]
    found = results(*rows, ("best, 1 steps", "maml", "MSE after 0", 2.0, 0.1))
    assert sinusoids.inner_steps(loading(inner_steps=found))[2].verdict == verdict


def test_claims_of_figure_2b():
    def costs(metric, **by):
        ends = [
            (method.replace("_", "-"), *end) for method, pair in by.items() for end in zip((2, 50), pair, strict=True)
        ]
        return [(f"{count} steps", method, metric, value, 0.0) for method, count, value in ends]

    memory = costs(BYTES, gem_bml=(1e8, 1e8), reptile=(1e8, 2e8), maml=(1e8, 9e8), bmaml=(1e9, 9e9))
    seconds = costs(SECONDS, gem_bml=(0.01, 0.11), imaml=(0.05, 0.06), maml=(0.01, 0.41))
    lines = cost.figure_2b(loading(compute_memory=results(*memory, *seconds, tasks="omniglot", ways=5, shots=1)))
    assert [line.verdict for line in lines] == [PART, HOLDS, HOLDS, HOLDS, HOLDS]
    assert {line.where for line in lines} == {"Omniglot, 5-way 1-shot"} and "Reptile grows" in lines[0].said


def test_claims_of_figure_3():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(3, 40, 4))
    returns = {
        "gem-bml+": noise,
        "maml": noise - 1.0,
        "gem-bml": noise + np.array([0, 1, 0, -1.0]),
        "reptile": noise[::-1],
    }
    curves = {name: {"task_returns": values.tolist()} for name, values in returns.items()}
    curves["gem-bml+"]["by_trust"] = (noise - 5).tolist()
    found = results(curves=curves, updates=3, iterations=200)
    lines = agents.figure_3(loading(rl_navigation=found, rl_cheetah_velocity=found))
    nav, cheetah = lines[:3], lines[3:6]
    assert [line.verdict for line in nav] == [HOLDS, PART, FAILS]
    assert cheetah[2].verdict == HOLDS  # there the paper says that trust regions do worse
    assert "200 iterations" in nav[0].said
    curves["maml-trpo"] = {"task_returns": noise[::-1].tolist()}  # one of two rivals cannot be told from it
    better = agents.figure_3(loading(rl_navigation=results(curves=curves, updates=3, iterations=200)))[0]
    assert better.verdict == PART and "3 of 6 differences are clearly above zero, 0 below" in better.said


def test_claims_about_gradients():
    parts = [f"{method} error in {part}" for method in ("gem", "elbo") for part in ("μ", "log σ")]
    regime = {"steps": [0, 1, 2], **{part: [1.0, 0.5, 0.001] for part in parts}}
    some = {
        "regime a": regime | {"gem GEM closer": [0.5, 0.9, 0.8]},
        "regime b": regime | {"gem GEM closer": [0.5, 0.9, 0.2]},
    }
    assert verdicts(theory.gradients(loading(gradient_error=results(curves=some)))) == [HOLDS, PART]
    some["regime b"]["elbo error in μ"] = [1.0, 0.5, 0.3]
    assert verdicts(theory.gradients(loading(gradient_error=results(curves=some))))[0] == PART


def test_settings_are_the_printed_ones_or_others():
    tried = [{"changes": {"steps": [1, 1], "rate": 0.001, "meta_rate": 0.001}, "nll": 0.2},
             {"changes": {"steps": [5, 5], "rate": 0.03, "meta_rate": 0.001}, "nll": -1.0},
             {"changes": {"steps": [5, 5], "rate": 0.1, "meta_rate": 0.004}, "nll": None}]  # fmt: skip
    lines = hyper.sinusoids(loading(search=results(curves={"sinusoid/gem-bml+/5": tried})))
    assert [(line.ours, line.verdict) for line in lines[:4]] == [
        ("0.001", PRINTED), ("0.03", OTHER), ("5 + 5", OTHER), ("10", PRINTED),
    ]  # fmt: skip
    assert verdicts(lines, where="challenging") == [UNMEASURED] * 5


# --- documents --------------------------------------------------------------------------------------------------------


def test_documents_hold_every_line_and_lead_to_the_studies():
    whole = beside.of_paper()
    assert whole is not None
    text, html, built = markdown.document([], whole), page.document([], whole), whole.items
    for each in built:
        assert (
            f'<a id="{each.name}"></a>' in text and f'<h3 id="{each.name}">' in html and f'href="#{each.name}"' in html
        )
        for command in each.commands:
            assert f"`{command}`" in text and f"<code>{command}</code>" in html
    lines = sum(len(each.lines) for each in built)
    assert html.count('<td data-name="verdict">') == lines
    assert whole.summary in html and text.count("\n### ") == len(built)
