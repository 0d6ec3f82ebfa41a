"""How `long-trials` is told: errors of all trials, and for which methods the table has another than the best."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments import study
from experiments.image_search_report import winner
from metaprior import figures

LEAST = 0.1  # per cent: the figure shows no smaller error
MARKS = ("v", "s", "^", "D", "P", "X")


def by_method(results: study.Results) -> dict[str, list[dict[str, Any]]]:
    """The trials of each method; what left the finite numbers has no accuracy."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell, curve in results["curves"].items():
        found.setdefault(cell.partition("/")[0], []).append(curve)
    return found


def figure(results: study.Results) -> Figure:
    """Errors, a row a method, a mark a trial; that of the table filled."""
    found = by_method(results)
    drawn = Figure(figsize=(7.5, 0.42 * len(found) + 2.2), layout="constrained")
    axes = drawn.subplots()
    for mark, trial in zip(MARKS, results["settings"]["trials"], strict=False):
        axes.plot([], [], mark, color=figures.GREY, fillstyle="none", label=trial)
        for place, mine in enumerate(found.values()):
            for one in mine:
                if one["trial"] == trial and one["accuracy"] is not None:
                    fill = "full" if one["of_the_table"] else "none"
                    error = max(100 - one["accuracy"], LEAST)
                    axes.plot(error, place, mark, color=figures.ORANGE, fillstyle=fill, markersize=8)
    axes.set_yticks(range(len(found)), list(found))
    axes.set(xscale="log", xlabel="error on validation classes, %", ylim=(len(found) - 0.5, -0.5))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    drawn.suptitle("Trained as long as in the table; filled: what the table has, which short trainings chose")
    return drawn


class Moved(NamedTuple):
    """The best trial of a method beside that with the settings of the table."""

    best: Mapping[str, Any]
    tables: Mapping[str, Any]
    mean: float  # of the differences of accuracies, task by task
    ci95: float

    @property
    def words(self) -> str:
        """Which is best, and by how much."""
        verdict = "better" if self.mean > self.ci95 else "not apart"
        return (
            f"{self.best['trial']} ({self.best['accuracy']:.2f} %) instead of {self.tables['trial']} "
            f"({self.tables['accuracy']:.2f} %): {self.mean:+.2f} ± {self.ci95:.2f}, {verdict}"
        )


def moved(mine: Sequence[Mapping[str, Any]]) -> Moved | None:
    """None where one of the two is not known."""
    best = winner(mine)
    tables = next((one for one in mine if one["of_the_table"]), None)
    if best is None or tables is None or tables["accuracy"] is None:
        return None
    return Moved(best, tables, *study.mean_and_ci(np.subtract(best["task_accuracy"], tables["task_accuracy"])))


def why(results: study.Results | None, name: str) -> str:
    """A sentence for a number of the table that is too low; empty where no trial is known to be better."""
    found = moved(by_method(results).get(name, [])) if results else None
    if found is None or found.best is found.tables or found.mean <= found.ci95:
        return ""
    return (
        " Its settings were chosen by short trainings; at this length, on validation classes and with one seed, which tells "
        f"rates, steps and head not apart: {found.words}."
    )


def remarks(results: study.Results) -> list[str]:
    """Where what the table has is not the best of long trainings, task by task."""
    by_name = by_method(results)
    known = {name: found for name, mine in by_name.items() if (found := moved(mine)) is not None}
    moves = [f"{name}, {found.words}" for name, found in known.items() if found.best is not found.tables]
    stays = [
        f"{name}, {found.best['trial']} ({found.best['accuracy']:.2f} %)"
        for name, found in known.items()
        if found.best is found.tables
    ]
    others = [
        f"{name}, {', '.join(_told(one) for one in mine)}"
        for name, mine in by_name.items()
        if name not in known and mine
    ]
    said = ["Each with one seed that no table reports; the same validation tasks for all, compared task by task."]
    if any("steps" in one.get("changes", {}) for mine in by_name.values() for one in mine):
        said.append(
            "Trials with one step also have another inner rate (1) and meta-rate (0.003) than the table may have: which of these "
            "matters is not told apart. No training was made longer, so these trials do not say what length would bring."
        )
    if moves:
        said.append(f"Another trial than the settings of the table comes out best: {'; '.join(moves)}.")
    if stays:
        said.append(f"The settings of the table, which short trainings chose, are the best: {'; '.join(stays)}.")
    if others:
        said.append(f"Of these the settings of the table are not measured at this length: {'; '.join(others)}.")
    return said


def _told(one: dict[str, Any]) -> str:
    return f"{one['trial']} ({'not finite' if one['accuracy'] is None else format(one['accuracy'], '.2f') + ' %'})"
