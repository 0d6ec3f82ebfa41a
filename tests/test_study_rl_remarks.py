"""What is said about reinforcement learning is what its numbers say; results are made by hand."""

import itertools
import json

import numpy as np
import pytest
from scipy import integrate, stats

from experiments import rl, rl_remarks, rl_widths, study
from metaprior.rl import cheetah


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


def test_the_row_that_validation_tasks_would_choose_is_named_with_what_it_costs():
    """Whatever test tasks say: here it is the worse one there."""
    results = written(np.full((1, 3, 2), -4.0), np.full((1, 3, 2), -3.0), np.zeros((1, 3, 2)))
    curves = results["curves"]
    assert rl_remarks.best_on_validation(results) is None and rl_remarks._best(results) == []
    curves["gem-bml+"] |= {"tried": [{"number": 1, "validation": -3.0}], "steps_per_iteration": 100}
    curves["maml"]["tried"] = [{"number": 1, "validation": 0.0}]
    tried = [{"number": 1, "validation": None}, {"number": 2, "validation": -1.0}]
    curves["gem-bml+queries"] = {**curves["gem-bml+"], "tried": tried, "steps_per_iteration": 250}
    curves["gem-bml+queries"]["task_returns"] = np.full((1, 3, 2), -5.0).tolist()
    (said,) = rl_remarks._best(results)
    assert (
        "gem-bml+queries has the highest return in validation tasks, with 2.5 times as many environment steps" in said
    )
    assert "minus maml -2.00 ± 0.00 after 1 update (worse)" in said


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
    for row in results["rows"]:
        if (row["setting"], row["method"], row["metric"]) == (rl.RETURNS, "gem-bml+", "return after 0"):
            row["mean"] = -10.0
    assert "+2.5, to 125 % of what plain updates gain, which settles" in rl_remarks._hypothesis(results)


def test_where_trust_regions_help_is_said_of_several_worlds_by_shares_of_the_gain():
    """(spread, change, share) of each world."""
    assert not rl_remarks._where_they_help([(1.0, 2.0, 1.5)])
    (worse,) = rl_remarks._where_they_help([(3.0, -5.0, 0.1), (1.0, -1.0, 0.9), (2.0, -9.0, 0.4)])
    assert "they help nowhere" in worse and "falls with that spread, as supposed" in worse
    (mixed,) = rl_remarks._where_they_help([(3.0, 5.0, 1.1), (1.0, -1.0, 0.9)])
    assert "they help in 1 of 2" in mixed and "does not fall with that spread" in mixed


def test_rows_that_look_further_are_told_beside_their_peers_and_rates_at_an_end_are_named():
    results = written(*[np.zeros((1, 3, 2))] * 3)
    assert not rl_remarks._ahead(results)  # nobody looks further
    for name, value in (("gem-bml+two", 1.0), ("reptile", -2.0)):
        results["curves"][name] = {"task_returns": np.full((1, 3, 2), value).tolist(), "number": 3e-3, "tried": []}
    (words,) = rl_remarks._ahead(results)
    assert "gem-bml+two minus gem-bml+: +1.00 ± 0.00 after 1 update (better)" in words
    assert "gem-bml+two minus reptile: +3.00 ± 0.00 after 1 update (better)" in words and "minus maml-two" not in words
    assert "the last of those tried for: none." in rl_remarks._rates(results)
    tried = [{"number": number, "validation": -1.0} for number in (1e-3, 3e-3, 1e-2)]
    for name, number in (("maml", 3e-3), ("pretrain", 1e-2), ("gem-bml+", 1e-3)):
        results["curves"][name] |= {"tried": tried, "number": number}
    assert rl_remarks._rates(results).endswith("tried for: gem-bml+, pretrain.")


def test_what_ran_away_is_said():
    lost = np.full((1, 3, 2), np.nan)
    fine = np.zeros((1, 3, 2))
    results = json.loads(json.dumps(study.plain(written(lost, fine, fine))))
    words = " ".join(rl_remarks.remarks(results))
    assert "some task ran away" in words
    assert "of pretrain" in words and "of gem-bml+, " not in words


def test_time_is_told_of_all_trainings_of_the_program():
    """Two seeds with three numbers side by side are six trainings; where one number was trained, two."""
    results = written(np.zeros((2, 3, 2)), np.zeros((2, 3, 2)), np.zeros((2, 3, 2)))
    results["settings"]["seeds"] = [0, 1]
    curve = results["curves"]["gem-bml+"]
    curve |= {"iterations": [5, 10], "steps_per_iteration": 100_000, "training_seconds": 7.0}
    words = rl_remarks._lengths(results)
    assert "steps of training, all seeds, and their time, looks included: gem-bml+ 2 million in 7 s" in words
    curve["side_by_side"] = 6
    words = rl_remarks._lengths(results)
    told = "all seeds and all numbers tried at first, and their time, looks included: gem-bml+ 6 million in 7 s"
    assert f"{told} with compiling." in words
    curve["only_running"] = True
    assert f"{told}." in rl_remarks._lengths(results)


@pytest.mark.parametrize("std", [0.05, 0.3, 0.95, 3.0])
def test_the_cost_of_trembling_is_the_integral_over_actions(std):
    density = lambda a: np.clip(a, -1, 1) ** 2 * stats.norm.pdf(a, scale=std)
    parts = [integrate.quad(density, low, high)[0] for low, high in itertools.pairwise((-30, -1, 0, 1, 30))]
    assert rl_widths.mean_square(std) == pytest.approx(sum(parts), rel=1e-6)
    paid = float(np.mean(cheetah.control_cost(np.full((7, 6), sum(parts) ** 0.5))))
    assert rl_widths.cost(std, 200) == pytest.approx(200 * paid, rel=1e-6)


def test_widths_are_told_of_half_cheetah_alone_the_narrowest_first():
    results = written(np.zeros((1, 3, 2)), np.zeros((1, 3, 2)), np.zeros((1, 3, 2)))
    for name, log_std in {"gem-bml+": -0.05, "maml": -1.25}.items():
        results["curves"][name]["log_std"] = [log_std] * 2
    assert rl_widths.remark(results) == []
    results["settings"] |= {"environment": "rl-cheetah-velocity", "horizon": None}
    (words,) = rl_widths.remark(results)
    assert words.endswith(": maml 0.29 (5), gem-bml+ 0.95 (30).")
    assert words in rl_remarks.remarks(results)
