"""How `meta-rates` is told: accuracy against the meta-rate, and for which methods the table has another than the best."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments import study
from experiments.figure_2a import STYLES
from experiments.image_search_report import winner

LEAST = 0.1  # per cent: the figure shows no smaller error


def by_method(results: study.Results) -> dict[str, list[dict[str, Any]]]:
    """The trainings of each method, the smallest meta-rate first; what left the finite numbers has no accuracy."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell, curve in results["curves"].items():
        out = {} if all(curve["finite"]) else {"accuracy": None}
        found.setdefault(cell.partition("/")[0], []).append(curve | out)
    return {name: sorted(mine, key=lambda one: one["meta_rate"]) for name, mine in found.items()}


def figure(results: study.Results) -> Figure:
    """Errors, a line a method; the meta-rate of the table marked."""
    drawn = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = drawn.subplots()
    for name, mine in by_method(results).items():
        color, line = STYLES.get(name, ("0.5", ":"))
        points = [(one["meta_rate"], max(100 - one["accuracy"], LEAST)) for one in mine if one["accuracy"] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), linestyle=line, color=color, marker=".", label=name)
        for one in mine:
            if one["accuracy"] is not None and one["meta_rate"] == one["of_the_table"]:
                axes.plot(
                    one["meta_rate"],
                    max(100 - one["accuracy"], LEAST),
                    "o",
                    color=color,
                    markersize=9,
                    fillstyle="none",
                )
    axes.set(xscale="log", yscale="log", xlabel="meta-rate", ylabel="error on validation classes, %")
    axes.set_xticks(results["settings"]["meta_rates"], [f"{rate:g}" for rate in results["settings"]["meta_rates"]])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color="0.92")
    if axes.lines:
        axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle("Trained as long as in the table, by meta-rate; circles: the rate that short trainings chose")
    return drawn


class Moved(NamedTuple):
    """The best training of a method beside that with the meta-rate of the table."""

    best: dict[str, Any]
    tables: dict[str, Any]
    mean: float  # of the differences of accuracies, task by task
    ci95: float

    @property
    def words(self) -> str:
        """Which is best, and by how much."""
        verdict = "better" if self.mean > self.ci95 else "not apart"
        return (
            f"{self.best['meta_rate']:g} ({self.best['accuracy']:.2f} %) instead of {self.tables['meta_rate']:g} "
            f"({self.tables['accuracy']:.2f} %): {self.mean:+.2f} ± {self.ci95:.2f}, {verdict}"
        )


def moved(mine: Sequence[dict[str, Any]]) -> Moved | None:
    """None where one of the two is not known."""
    best = winner(mine)
    tables = next((one for one in mine if one["meta_rate"] == one["of_the_table"]), None)
    if best is None or tables is None or tables["accuracy"] is None:
        return None
    return Moved(best, tables, *study.mean_and_ci(np.subtract(best["task_accuracy"], tables["task_accuracy"])))


def why(results: study.Results | None, name: str) -> str:
    """A sentence for a number of the table that is too low; empty where another meta-rate is not known to be better."""
    found = moved(by_method(results).get(name, [])) if results else None
    if found is None or found.best is found.tables or found.mean <= found.ci95:
        return ""
    return f" Its meta-rate was chosen by short trainings; at this length, on validation classes: {found.words}."


def remarks(results: study.Results) -> list[str]:
    """Where the rate of the table is not the best of long trainings, task by task."""
    wanted = len(results["settings"]["meta_rates"])
    by_name = by_method(results)
    known = {name: found for name, mine in by_name.items() if (found := moved(mine)) is not None}
    moves = [f"{name} {found.words}" for name, found in known.items() if found.best is not found.tables]
    stays = [
        f"{name} {found.best['meta_rate']:g} ({found.best['accuracy']:.2f} %)"
        for name, found in known.items()
        if found.best is found.tables
    ]
    partly = [name for name, mine in by_name.items() if name not in known or len(mine) < wanted]
    said = ["Each with one seed that no table reports; the same validation tasks for all, compared task by task."]
    if moves:
        said.append(f"Another meta-rate than that of the table comes out best: {'; '.join(moves)}.")
    if stays:
        said.append(
            f"That of the table, which short trainings chose, is the best of those measured: {'; '.join(stays)}."
        )
    if partly:
        said.append(f"Not all meta-rates are measured of: {', '.join(partly)}.")
    return said
