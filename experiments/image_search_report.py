"""How `image-search` is told: its figure, its remarks, the rows of its table, and which of the points that were tried is best."""

from collections.abc import Mapping, Sequence
from statistics import mode
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments import study
from metaprior import figures

# Centres of first searches, each of as many trainings, of which nothing is kept.
MOVED: dict[str, dict[str, float]] = {
    "omniglot": {"reptile": 0.1, "amortized-bml": 0.4, "kl-chaser": 0.4, "bmaml": 0.1},
    "miniimagenet": {"maml": 0.1},
}
LEAST = 0.1  # per cent: the figure shows no smaller error


def winner(tried: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The point of highest accuracy, and of least NLL where several have it; none where all left the finite numbers."""
    finite = [one for one in tried if one["accuracy"] is not None]
    # Sums of the same right answers in another order are the same accuracy.
    return max(finite, key=lambda one: (round(one["accuracy"], 4), -one["nll"]), default=None)


def words(tasks: str, setting: str, changes: Mapping[str, Any]) -> str:
    """What a row of the results calls a point."""
    numbers = [f"{key.replace('_', ' ')} {number:g}" for key, number in searched(changes).items()]
    return f"{tasks} {setting}: {', '.join(numbers)}"


def searched(changes: Mapping[str, Any]) -> dict[str, float]:
    """The two numbers of a point by their names."""
    value = {"noise_std": changes["options"]["noise_std"]} if "options" in changes else {"rate": changes["rate"]}
    return {**value, "meta_rate": changes["meta_rate"]}


def winners(results: study.Results) -> dict[study.Cell, Mapping[str, Any]]:
    """The best point of every cell that has one."""
    found = {tuple(name.split("/")): winner(curve["tried"]) for name, curve in results["curves"].items()}
    return {cell: one for cell, one in found.items() if one is not None}


def shown(results: study.Results) -> list[dict[str, Any]]:
    """The best setting of each method and task set."""
    won = {(words(tasks, setting, one["changes"]), name) for (tasks, setting, name), one in winners(results).items()}
    return [row for row in results["rows"] if (row["setting"], row["method"]) in won]


def figure(results: study.Results) -> Figure:
    """All that was tried: a dot a setting, the best marked."""
    tried = {tuple(name.split("/")): curve["tried"] for name, curve in results["curves"].items()}
    panels = list(dict.fromkeys(cell[:2] for cell in tried))
    names = list(dict.fromkeys(cell[2] for cell in tried))
    drawn = Figure(figsize=(1.6 + 3.6 * len(panels), 0.36 * len(names) + 1.8), layout="constrained")
    for axes, panel in zip(drawn.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        for place, name in enumerate(names):
            _draw(axes, place, tried.get((*panel, name), []))
        axes.set_xscale("log")
        narrow = np.divide(*axes.get_xlim()[::-1]) < 3  # less than a factor of three has one of 1, 2, 5 at most
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}" if narrow else "")
        axes.set_yticks(range(len(names)), names)
        axes.set(title=" ".join(panel), xlabel="validation error, %", ylim=(len(names) - 0.5, -0.5))
        axes.grid(axis="x", which="both", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle("Every setting tried, the best in orange; + n: settings that left the finite numbers")
    return drawn


def _draw(axes, place: int, tried: Sequence[Mapping[str, Any]]) -> None:
    errors = [max(100 - one["accuracy"], LEAST) for one in tried if one["accuracy"] is not None]
    axes.plot(errors, [place] * len(errors), "o", color=figures.GREY, alpha=0.45, markersize=5)
    if errors:
        axes.plot(min(errors), place, "o", color=figures.ORANGE, markersize=8)
    if lost := len(tried) - len(errors):
        axes.annotate(f"+ {lost}", (1.01, place), xycoords=("axes fraction", "data"), va="center")


def remarks(results: study.Results) -> list[str]:
    """How much each got, what was found, and where the grid may have been too small."""
    settings, curves = results["settings"], results["curves"]
    all_tried = [one for curve in curves.values() for one in curve["tried"]]
    counts = sorted({len(curve["tried"]) for curve in curves.values() if "iterations" not in curve})
    lost = sum(one["accuracy"] is None for one in all_tried)
    sentences = [
        f"The grid of every method has {' or '.join(map(str, counts))} settings on each task set: "
        f"{len(settings['factors'])} inner rates (noises for the exact head) times {len(settings['meta_rates'])} meta-rates, "
        f"{len(settings['seeds'])} seed{'s' * (len(settings['seeds']) > 1)} each, {settings['iterations']:,} iterations. "
        f"{lost} of {len(all_tried)} settings left the finite numbers.",
        *_shorter(curves),
        f"Tasks of an iteration: {_batches(curves)}.",
        "The middle of each grid comes from the literature and from earlier, shorter trials on validation classes, as do steps "
        "and stages, which were not searched. So the grids are equal, the history of the recipes is not.",
        *_moved(results),
    ]
    won = winners(results)
    for panel in dict.fromkeys(cell[:2] for cell in won):
        each = [
            f"{cell[2]} {words(cell[0], cell[1], one['changes']).partition(': ')[2]} ({one['accuracy']:.2f} %)"
            for cell, one in won.items()
            if cell[:2] == panel
        ]
        sentences.append(f"Best on {' '.join(panel)}: {'; '.join(each)}.")
    for place, which in enumerate(("inner rates or noises", "meta-rates")):
        sentences.append(
            f"Winners at the edge of their {which}, beyond which a better one may lie: {_edges(results, place)}."
        )
    return sentences


def _moved(results: study.Results) -> list[str]:
    """Methods that had twice the trainings."""
    told = [
        f"{tasks} {name} around {centre:g}"
        for tasks, centres in MOVED.items()
        for name, centre in centres.items()
        if any(cell.startswith(f"{tasks}/") and cell.endswith(f"/{name}") for cell in results["curves"])
    ]
    said = "Searched once before with as many settings, of which nothing is kept, since the best lay at the edge"
    return [f"{said}: {', '.join(told)}."] if told else []


def _shorter(curves: Mapping[str, Any]) -> list[str]:
    """Of cells with another budget."""
    told = [
        f"{name.replace('/', ' ')} {len(curve['tried'])} settings of {curve['iterations']:,} iterations"
        for name, curve in curves.items()
        if "iterations" in curve
    ]
    return [f"Where an iteration costs many times as much, meta-rates alone: {'; '.join(told)}."] if told else []


def _batches(curves: Mapping[str, Any]) -> str:
    """The usual number on each task set, and the methods that have another."""
    sizes: dict[str, dict[str, int]] = {}
    for key, curve in curves.items():
        panel, _, name = key.rpartition("/")
        sizes.setdefault(panel.replace("/", " "), {})[name] = curve["fixed"]["meta_batch"]
    parts = []
    for panel, mine in sizes.items():
        usual = mode(mine.values())
        others = [f"{name} {size}" for name, size in mine.items() if size != usual]
        parts.append(f"{panel} {usual}" + (f" ({', '.join(others)})" if others else ""))
    return "; ".join(parts)


def _edges(results: study.Results, place: int) -> str:
    """The winners with the least or the largest that was tried of one of the two numbers of a point."""
    number = lambda one: list(searched(one["changes"]).values())[place]
    found: dict[str, list[str]] = {"at the smallest": [], "at the largest": [], "at the only one tried": []}
    for cell, one in winners(results).items():
        values = {number(other) for other in results["curves"]["/".join(cell)]["tried"]}
        if len(values) == 1:
            found["at the only one tried"].append(" ".join(cell))
        elif number(one) in (min(values), max(values)):
            found["at the largest" if number(one) == max(values) else "at the smallest"].append(" ".join(cell))
    return "; ".join(f"{side} {', '.join(cells)}" for side, cells in found.items() if cells) or "none"
