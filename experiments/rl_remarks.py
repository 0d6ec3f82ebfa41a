"""What is to be said about reinforcement learning: the paper's claims one by one, each with the numbers that decide it."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import rl_widths, study
from experiments.rl_settings import POLICIES, RETURNS, SCRATCH, TRUST

# What the paper says of inner steps of TRPO beside plain ones: better, or worse.
PAPER = {"rl-navigation": 1, "rl-cheetah-velocity": -1, "rl-cheetah-direction": -1}
BOUND = 0.01  # the KL of a trust-region update
Values = dict[tuple[str, str, str], tuple[float, float]]


def remarks(results: study.Results) -> list[str]:
    """Against the control, against MAML, from scratch, trust regions and the spread of policies, how it was done."""
    said = [
        *_control(results),
        *_claims(results),
        *_best(results),
        *_ahead(results),
        *_scratch(results),
        *_trust(results),
    ]
    said.append(_hypothesis(results))
    return [*said, *rl_widths.remark(results), _rates(results), _lengths(results)]


def _values(results: study.Results) -> Values:
    """(setting, method, metric) -> mean and interval; what is not finite is left out."""
    return {
        (row["setting"], row["method"], row["metric"]): (row["mean"], row["ci95"] or 0.0)
        for row in results["rows"]
        if row["mean"] is not None
    }


def _updates(results: study.Results) -> range:
    return range(1, results["settings"]["updates"] + 1)


def times(count: int) -> str:
    """In words.

    >>> times(1), times(3)
    ('1 update', '3 updates')
    """
    return f"{count} update{'' if count == 1 else 's'}"


def _control(results: study.Results) -> list[str]:
    """Whether GEM-BML+ is better than one policy for all tasks, adapted in the same way: do intervals overlap?"""
    values, parts = _values(results), []
    for count in _updates(results):
        ours, control = (values.get((RETURNS, name, f"return after {count}")) for name in ("gem-bml+", "pretrain"))
        if ours is None or control is None:
            continue
        apart = abs(ours[0] - control[0]) > ours[1] + control[1]
        which = (
            "overlap"
            if not apart
            else "are apart, GEM-BML+ above"
            if ours[0] > control[0]
            else "are apart, GEM-BML+ below"
        )
        parts.append(f"after {times(count)} {number(*ours)} against {number(*control)}, the intervals {which}")
    return [f"GEM-BML+ and the control that is trained without adaptation: {'; '.join(parts)}."] if parts else []


def _claims(results: study.Results) -> list[str]:
    """Differences task by task: all methods meet the same tasks and the same noise."""
    others = ("pretrain", "maml", "maml-trpo", "gem-bml", "reptile", "fomaml", "gem-bml+rates")
    pairs = [("gem-bml+", other) for other in others]
    pairs += [("gem-bml+natural", other) for other in ("pretrain", "maml", "maml-trpo", "gem-bml+")]
    tried = ("gem-bml+queries", "gem-bml+short", "gem-bml+long")
    pairs += [(one, other) for one in tried for other in ("maml", "gem-bml+")]
    told = []
    for one, other in pairs:
        parts = [part for count in _updates(results) if (part := _difference(results, one, other, count))]
        if parts:
            name = one.replace("gem-bml", "GEM-BML")
            told.append(f"{name} minus {other}, task by task: {'; '.join(parts)}.")
    return told


def best_on_validation(results: study.Results) -> str | None:
    """The row of Gradient-EM whose chosen training has the highest return in validation tasks; None where none is known."""
    returns = {
        name: max(tried)
        for name, curve in results["curves"].items()
        if name.startswith("gem-bml")
        and (tried := [each["validation"] for each in curve.get("tried", []) if each["validation"] is not None])
    }
    return max(returns, key=lambda name: returns[name]) if returns else None


def _best(results: study.Results) -> list[str]:
    """What one would take of Gradient-EM without a look at test tasks, and what it costs."""
    if (best := best_on_validation(results)) is None:
        return []
    parts = []
    for other in ("maml", "maml-trpo", "pretrain"):
        each = [part for count in _updates(results) if (part := _difference(results, best, other, count))]
        parts += [f"minus {other} {', '.join(each)}"] if each else []
    steps = [results["curves"].get(name, {}).get("steps_per_iteration") for name in (best, "gem-bml+")]
    more = f", with {steps[0] / steps[1]:.3g} times as many environment steps in training" if all(steps) else ""
    return [
        f"Of all rows of Gradient-EM {best} has the highest return in validation tasks{more}. In test tasks, "
        f"{'; '.join(parts)}."
    ]


def _ahead(results: study.Results) -> list[str]:
    """Methods whose meta-gradient is taken after the first update, and beyond."""
    told = []
    others = ("gem-bml+", "reptile", "maml", "maml-trpo")
    for one, other in (*(("gem-bml+two", each) for each in others), ("gem-bml+late", "maml-two")):
        parts = [part for count in _updates(results) if (part := _difference(results, one, other, count))]
        if parts:
            told.append(f"{one} minus {other}: {'; '.join(parts)}")
    why = (
        "Which update a meta-gradient is taken after: GEM-BML+ and MAML as the paper has them the first; Reptile of three steps "
        "and GEM-BML+ with two in the second stage (gem-bml+two) also the second, with as many rollouts each; gem-bml+late and "
        "maml-two the second alone"
    )
    return [f"{why}. Task by task, {'; '.join(told)}."] if told else []


def difference(results: study.Results, one: str, other: str, count: int) -> tuple[float, float] | None:
    """Of the returns of two methods after so many updates, task by task; None where one of them was not measured."""
    curves = results["curves"]
    if one not in curves or other not in curves:
        return None
    found = [np.asarray(curves[name]["task_returns"], float)[..., count] for name in (one, other)]
    return study.mean_and_ci(found[0] - found[1])


def by_trust(curve: dict[str, Any], count: int) -> tuple[float, float] | None:
    """What trust-region updates change in the return of a prior; None where they were not tried."""
    if curve.get("by_trust") is None:
        return None
    own, trust = (np.asarray(curve[word], float)[..., count] for word in ("task_returns", "by_trust"))
    return study.mean_and_ci(trust - own)


def _difference(results: study.Results, one: str, other: str, count: int) -> str | None:
    if (found := difference(results, one, other, count)) is None:
        return None
    mean, ci95 = found
    if not np.isfinite(mean):
        return f"after {times(count)} some task ran away"
    return f"{number(mean, ci95, signed=True)} after {times(count)} ({study.verdict(mean, ci95)})"


def _scratch(results: study.Results) -> list[str]:
    """How much experience of one task a prior saves."""
    curve, values, settings = results["curves"].get(SCRATCH), _values(results), results["settings"]
    if curve is None:
        return []
    means, last = np.asarray(curve["returns"], float), settings["updates"]
    each = curve["steps"][-1] // max(curve["updates"][-1], 1)
    parts = []
    for name in ("gem-bml+", "maml", "pretrain"):
        if (level := values.get((RETURNS, name, f"return after {last}"))) is None:
            continue
        reached = means >= level[0]
        took = (
            f"{curve['steps'][int(reached.argmax())]:,} steps"
            if reached.any()
            else f"more than {curve['steps'][-1]:,} steps"
        )
        parts.append(f"{took} for the {level[0]:.3g} of {name}")
    return (
        [
            f"From fresh weights, with Adam at {curve['number']:g}, a policy for one task needs {', '.join(parts)}, where "
            f"{times(last)} of a prior take {last * each:,} steps of that task; it comes to {means[-1]:.3g} in the end. "
            "It is looked at after a few numbers of updates, so these are upper ends."
        ]
        if parts
        else []
    )


def _trust(results: study.Results) -> list[str]:
    """Trust-region updates from the very same priors."""
    parts, last = [], results["settings"]["updates"]
    for name, curve in results["curves"].items():
        gains = []
        for count in dict.fromkeys((1, last)):
            if (found := by_trust(curve, count)) is not None:
                gains.append(f"{number(*found, signed=True)} after {times(count)} ({study.verdict(*found)})")
        if not gains:
            continue
        parts.append(f"{name} {', '.join(gains)}")
    told = f"What trust-region updates (KL {BOUND:g}) change in the returns, from the same priors: {'; '.join(parts)}."
    return [told] if parts else []


def _hypothesis(results: study.Results) -> str:
    """The paper: trust regions help where adapted policies lie close together, and hold back where they are far apart."""
    mine = results["settings"]["environment"]
    all_of_them = {name: results if name == mine else _other(name) for name in PAPER}
    parts, found_here = [], []
    for name, found in all_of_them.items():
        if found is None:
            continue
        values, count = _values(found), found["settings"]["updates"]
        spread = [values.get((POLICIES, "gem-bml+", word)) for word in ("KL of the first step", "KL around the mean")]
        own, trust = (values.get((kind, "gem-bml+", f"return after {count}")) for kind in (RETURNS, TRUST))
        before = values.get((RETURNS, "gem-bml+", "return after 0"))
        if None in (*spread, own, trust, before):
            continue
        (first, _), (around, _), (own, own_ci95), (trust, trust_ci95), (before, _) = (
            pair for pair in (*spread, own, trust, before) if pair
        )
        settled = abs(trust - own) > (own_ci95 or 0) + (trust_ci95 or 0)
        agrees = "as the paper finds" if (trust - own) * PAPER[name] > 0 else "other than the paper finds"
        reached = ""
        if own > before:  # or else there is no gain to have a share of
            share = (trust - before) / (own - before)
            found_here.append((around, trust - own, share))
            reached = f"to {100 * share:.0f} % of what plain updates gain, "
        parts.append(
            f"{name}: a first update of GEM-BML+ goes a KL of {first:.2g} ({first / BOUND:.2g} times the bound), adapted "
            f"policies lie {around:.2g} around their mean, and trust regions change the last return by {trust - own:+.3g}, "
            f"{reached}{agrees if settled else 'which settles nothing, the intervals overlap'}"
        )
    hypothesis = (
        "The paper supposes that trust regions help where adapted policies lie close together (A* is small) and hold back where "
        "they lie far apart, since a bounded step does not reach them"
    )
    said = f"{hypothesis}. {'; '.join(parts) or 'There is nothing here yet to judge that by'}."
    return " ".join([said, *_where_they_help(found_here)])


def _where_they_help(found: Sequence[tuple[float, float, float]]) -> list[str]:
    """What the worlds say together, (spread, change, share of the gain) of each: shares, for returns are of different sizes."""
    if len(found) < 2:
        return []
    helps = sum(change > 0 for _, change, _ in found)
    where = "nowhere" if not helps else "everywhere" if helps == len(found) else f"in {helps} of {len(found)}"
    shares = [share for *_, share in sorted(found)]
    falls = all(one > other for one, other in itertools.pairwise(shares))
    follows = "falls with that spread, as supposed" if falls else "does not fall with that spread"
    return [f"At this bound they help {where}, and the share of the gain that they reach {follows}."]


def _other(name: str) -> study.Results | None:
    try:
        found = study.load(name)
    except ValueError:
        return None
    return found if found["settings"]["scale"] == "full" else None


def _rates(results: study.Results) -> str:
    parts = []
    for name, curve in results["curves"].items():
        tried = ", ".join(f"{each['number']:g}: {_or_none(each['validation'])}" for each in curve["tried"])
        parts.append(f"{name} {curve['number']:g} ({tried})")
    ends = [
        name
        for name, curve in results["curves"].items()
        if curve["tried"] and curve["number"] in (curve["tried"][0]["number"], curve["tried"][-1]["number"])
    ]
    return (
        "Meta-rates chosen on validation tasks (of a meta-step of TRPO its bound, from scratch the rate of Adam; in brackets the "
        f"validation return of every one that was tried): {'; '.join(parts)}. "
        f"The best was the first or the last of those tried for: {', '.join(ends) or 'none'}."
    )


def _or_none(value: Any) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _lengths(results: study.Results) -> str:
    settings = results["settings"]
    short = [f"{name} {count}" for name, count in settings["shortened"] if name in results["curves"]]
    failed = [name for name, curve in results["curves"].items() if not all(curve.get("finite", [True]))]
    left_out = {name: sum(curve.get("left_out", [0])) for name, curve in results["curves"].items()}
    some = [f"{name} {count}" for name, count in left_out.items() if count]
    known = {name: curve for name, curve in results["curves"].items() if curve.get("training_seconds")}
    speeds = [
        f"{name} {curve['iterations'][-1] * curve['steps_per_iteration'] * _trainings(results, curve) / 1e6:.3g} million in "
        f"{curve['training_seconds']:.0f} s{_with_compiling(curve)}"
        for name, curve in known.items()
    ]
    together = any("side_by_side" in curve for curve in known.values())
    numbers = " and all numbers tried at first" if together else ""
    return (
        f"All train {settings['iterations']} iterations{_listed(', for cost: ', short)}. Trainings that left the finite "
        f"numbers: {', '.join(failed) or 'none'}{_listed('; tasks left out of meta-steps: ', some)}. "
        f"Environment steps of training, all seeds{numbers}, and their time, looks included: "
        f"{', '.join(speeds) or 'not known'}."
    )


def _trainings(results: study.Results, curve: dict[str, Any]) -> int:
    """Whose time is told: all that ran side by side, or all seeds with the number that was chosen."""
    return curve.get("side_by_side", len(results["settings"]["seeds"]))


def _with_compiling(curve: dict[str, Any]) -> str:
    """What was trained side by side before programs took turns was timed as a whole."""
    return " with compiling" if "side_by_side" in curve and not curve.get("only_running") else ""


def _listed(words: str, parts: Sequence[str]) -> str:
    return f"{words}{', '.join(parts)}" if parts else ""


def number(mean: float, ci95: float, *, signed: bool = False) -> str:
    """With its interval, a difference with its sign.

    >>> number(1.5, 0.25, signed=True)
    '+1.50 ± 0.25'
    """
    return f"{mean:{'+' if signed else ''}.2f} ± {ci95:.2f}"
