"""What is shown of the study of defaults: every choice on every table, and which is the better on average."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import study
from metaprior.figures import BLUE, GREY

HELD_OUT, ALONE = "held out", "alone"  # the two questions, by what the names of their answers contain
COVERAGE = "coverage of 90 % intervals"


def figure(results: study.Results) -> Figure:
    """NLL and coverage, a panel for each table."""
    tables, choices = results["settings"]["tables"], results["settings"]["choices"][::-1]
    best = {chosen(results, HELD_OUT), chosen(results, ALONE)}
    drawn = Figure(figsize=(3.2 * len(tables) + 2, 5.2), layout="constrained")
    axes = drawn.subplots(2, len(tables), sharey=True, squeeze=False)
    for column, table in enumerate(tables):
        for axis, metric in zip(axes[:, column], ("NLL", COVERAGE), strict=True):
            found = [_of(results, table, choice, metric) for choice in choices]
            values = [np.nan if row["mean"] is None else row["mean"] for row in found]
            colours = [BLUE if choice in best else GREY for choice in choices]
            axis.barh(choices, values, xerr=[row["ci95"] or 0 for row in found], color=colours, alpha=0.8)
            axis.set(xlabel=metric, title=table)
            axis.spines[["top", "right"]].set_visible(False)
        axes[1, column].axvspan(0.85, 0.95, color=BLUE, alpha=0.15, linewidth=0)
        axes[1, column].set_xlim(0, 1)
    return drawn


def remarks(results: study.Results) -> list[str]:
    """Which answer has the least NLL on average over tables, and by how much."""
    said = []
    for question, words in ((HELD_OUT, "Groups that a fit holds out"), (ALONE, "What a group alone expects")):
        told = "; ".join(
            f"{choice} {overall(results, choice, 'NLL'):.3f}, covering {overall(results, choice, COVERAGE):.1%}"
            for choice in _answers(results, question)
        )
        said.append(
            f"{words}: least NLL, in units of each table's spread and averaged over tables, has `{chosen(results, question)}` "
            f"({told}). {_clear(results, question)}"
        )
    said.append(
        "The rule was written down with the study, before it ran: the least NLL averaged over tables is the default, whatever "
        "the table of births says, on which the estimators are judged."
    )
    return said


def _clear(results: study.Results, question: str) -> str:
    """Whether the choice is more than chance."""
    first, second, *_ = [*sorted(overall(results, choice, "NLL") for choice in _answers(results, question)), np.inf]
    rows = [_of(results, table, chosen(results, question), "NLL") for table in results["settings"]["tables"]]
    half = float(np.sqrt(np.square([row["ci95"] or 0.0 for row in rows]).sum())) / len(rows)
    if second - first > half:
        return f"The next is worse by {second - first:.2f}, more than the half-width of its interval, {half:.2f}."
    return (
        f"The next is worse by only {second - first:.3f}, and the interval has a half-width of {half:.2f}: on these tables the "
        "two cannot be told apart."
    )


def chosen(results: study.Results, question: str) -> str:
    """The answer of least NLL, averaged over tables."""
    scores = {choice: overall(results, choice, "NLL") for choice in _answers(results, question)}
    return min(scores, key=lambda choice: scores[choice])


def overall(results: study.Results, choice: str, metric: str) -> float:
    """The mean over tables."""
    return study.average([_of(results, table, choice, metric)["mean"] for table in results["settings"]["tables"]])


def _answers(results: study.Results, question: str) -> list[str]:
    return [choice for choice in results["settings"]["choices"] if question in choice]


def _of(results, table: str, choice: str, metric: str) -> dict[str, Any]:
    wanted = (table, choice, metric)
    return next(row for row in results["rows"] if (row["setting"], row["method"], row["metric"]) == wanted)
