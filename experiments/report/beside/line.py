"""One number or one claim of the paper beside ours, with a verdict, and how verdicts are found."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments import study
from experiments.paper import Printed, distance
from experiments.report.numbers import number
from experiments.report.verdicts import AGREES, BETTER, FAILS, HOLDS, PART, UNDECIDED, UNMEASURED, WORSE, Line

NAMES = {
    "gem-bml+": "GEM-BML+",
    "gem-bml": "GEM-BML",
    "gem-bml+last-layer": "GEM-BML+ with an exact head",
    "maml": "MAML",
    "maml-trpo": "MAML with a TRPO meta-step",
    "fomaml": "first-order MAML",
    "imaml": "iMAML",
    "reptile": "Reptile",
    "bmaml": "BMAML",
    "amortized-bml": "Amortized BML",
    "pmaml": "PMAML",
    "kl-chaser": "KL-chaser",
}
Load = Callable[[str], study.Results | None]  # name of a study -> its results; None where it was not measured in full


class Value(NamedTuple):
    """A number of ours; without mean where some task ran away."""

    mean: float | None
    ci95: float = 0.0

    def __str__(self) -> str:
        return "ran away" if self.mean is None else number(self.mean, self.ci95 or None)


Values = Mapping[tuple[str, str, str], Value]


def values(results: study.Results | None) -> Values:
    """(setting, method, metric) -> number; empty where there are no results."""
    rows: Sequence[Mapping[str, Any]] = [] if results is None else results["rows"]
    return {(row["setting"], row["method"], row["metric"]): Value(row["mean"], row["ci95"] or 0.0) for row in rows}


def unmeasured(where: str, what: str, paper: str) -> Line:
    """A gap, named."""
    return Line(where, what, paper, "–", UNMEASURED)


def compared(printed: Printed, ours: Value, *, less_is_better: bool = False) -> tuple[str, float, float]:
    """Verdict, ours minus the paper's, and how far apart the two intervals together allow.

    >>> compared(Printed("98.7 ± 0.4", 98.7, 0.4), Value(98.4, 0.3))[0]
    'agrees'
    >>> compared(Printed("0.0102", 0.0102), Value(0.0072, 0.0017), less_is_better=True)[0]
    'better'
    """
    if ours.mean is None:
        return WORSE, float("nan"), float("nan")
    gap, allowed = distance(printed, ours.mean, ours.ci95)
    if abs(gap) <= allowed:
        return AGREES, gap, allowed
    return (WORSE if (gap > 0) == less_is_better else BETTER), gap, allowed


def share_of(held: Sequence[bool]) -> str:
    """The verdict on a claim about several things."""
    return HOLDS if held and all(held) else PART if any(held) else FAILS


def apart(difference: Value) -> str:
    """The verdict on a claim that a difference is above zero."""
    if difference.mean is None:
        return UNDECIDED
    return UNDECIDED if abs(difference.mean) <= difference.ci95 else HOLDS if difference.mean > 0 else FAILS


def named(methods: Sequence[str]) -> str:
    """A list of methods as the paper calls them.

    >>> named(["maml", "reptile", "gem-bml"])
    'MAML, Reptile and GEM-BML'
    """
    return listed([NAMES.get(method, method) for method in methods])


def listed(words: Sequence[str]) -> str:
    """With an "and" before the last."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
