"""How a training ended, by the loss on the query on its way: whether more of it may have helped."""

from collections.abc import Mapping
from math import hypot, log
from typing import Any, NamedTuple

import numpy as np

from experiments import paper
from experiments.images import setting_of
from experiments.report.numbers import number

FALLS, SETTLED, RISES = "falls", "settled", "rises"
LEAST = 8  # points of a curve: with fewer, a quarter has no spread
NO_BETTER = 0.97  # times the loss of guessing: what is above has learned next to nothing that its probabilities show


class End(NamedTuple):
    """The last half of a training: mean losses of its two quarters, and which way that is."""

    way: str
    third: float
    last: float


def end(query_nll: Any) -> End | None:
    """From losses [seeds, points]; none where there are too few.

    Quarters of the mean over seeds differ if their means lie further apart than the 95 % intervals over their points allow.

    >>> end([[9, 8, 7, 6, 5.1, 5.0, 3.1, 3.0]]).way
    'falls'
    """
    losses = np.asarray(query_nll, float)
    if losses.ndim != 2 or losses.shape[1] < LEAST:
        return None
    _, _, third, last = np.array_split(losses.mean(axis=0), 4)
    means = float(third.mean()), float(last.mean())
    if not np.isfinite(means).all():
        return End(RISES, *means)
    gap = means[1] - means[0]
    allowed = hypot(*(1.96 * part.std(ddof=1) / part.size**0.5 for part in (third, last)))
    return End(SETTLED if abs(gap) <= allowed else FALLS if gap < 0 else RISES, *means)


def why(curve: Mapping[str, Any], tasks: str, setting: str, known: str = "", rest: str = "the distance") -> str:
    """What the length of a training says about an accuracy below the paper's: only of one that still falls, that it is short.

    `known` is what else is known of it, and comes after; `rest` is what nothing explains, where nothing does.
    """
    try:
        found = end(curve["query_nll"])
        method = curve["method"]
        length = f"{curve['iterations']:,} iterations of {method['meta_batch']} tasks"
    except (KeyError, TypeError):
        return known
    if found is None:
        return known
    if not np.isfinite([found.third, found.last]).all():
        return f" Its training diverges: within {length} the loss leaves the finite numbers.{known}"
    whose, iterations, size = paper.length(tasks, setting, method.get("name"))
    if method.get("steps", [1])[0] == 0:
        # What is watched is the prior before any step, which does not tell how a training ended.
        if curve["iterations"] * method["meta_batch"] >= iterations * size:
            return known or f" It trains as long as {whose} authors do: {rest} is not explained."
        theirs = f"where {whose} authors train for {iterations:,} of {size}"
        return f" Its training may be too short: {length}, {theirs}; its loss, before any step, does not tell.{known}"
    quarters = f"{number(found.third)} in the third quarter of {length}, {number(found.last)} in the last"
    guessing = log(setting_of(setting).ways)
    if found.last > NO_BETTER * guessing:
        quarters += f"; guessing has {number(guessing)}"
    if found.way == RISES:
        return f" Its training diverges: the loss rises ({quarters}).{known}"
    if found.way == FALLS:
        return (
            f" Its training may be too short: the loss still falls ({quarters}). The paper does not say how long it trains, "
            f"{whose} authors do so for {iterations:,} of {size}.{known}"
        )
    settled = f" Its loss in training had settled within its spread ({quarters})"
    if known:
        return f"{settled}.{known}"
    if curve.get("settings", {}).get("decay"):  # then any loss settles
        settled += (
            f", as it does while the meta-rate falls to zero; whether more would help is open ({whose} authors train for "
            f"{iterations:,} of {size})"
        )
    return f"{settled}: {rest} is not explained."


WIDENED = 2.0  # times the width that training began with


def widened(curve: Mapping[str, Any]) -> str:
    """What learned widths may have to do with it, where they grew: weights smaller than their width are mostly noise."""
    try:
        found, start = curve["widths"], float(curve["method"]["std"])
    except (KeyError, TypeError):
        return ""
    if found["median"] < WIDENED * start:
        return ""
    return (
        f" Its widths may be the reason: as they are learned, they went from {number(start)} to {number(found['median'])} "
        f"(median), and {100 * found['above_weights']:.0f} % of weights are smaller than theirs, so that draws are mostly noise."
    )
