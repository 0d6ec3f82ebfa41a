"""How `leakage` is told: its figure, its remarks, and the rows of its table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from metaprior.figures import BLACK, BLUE, GREY, ORANGE

MEAN, FRESH = "no message: the mean of all data", "no message: points drawn anew"
COLOURS = {"maml": ORANGE, "gem-bml+": BLUE, "gem-bml": "#009E73"}
AXES = {
    "steps": ("inner steps (one task in the message)", "inner steps"),
    "tasks": ("tasks in the message (one inner step)", "tasks"),
    "noise": ("noise over clipping length (one task, one step)", "noise"),
}


def _curve(results: Mapping[str, Any], what: str, method: str) -> tuple[list[float], list[np.ndarray]]:
    """Sizes and the errors of all attacks at each."""
    curves = results["curves"]
    sizes = {"steps": results["settings"]["steps"], "tasks": results["settings"]["tasks"]}.get(
        what, results["settings"]["noises"]
    )
    named = lambda size: f"steps {method} 1" if what == "tasks" and size == 1 else f"{what} {method} {size}"
    found = [(size, curves[named(size)]["error"]) for size in sizes if named(size) in curves]
    return [float(size) for size, _ in found], [np.ravel(np.asarray(errors, float)) for _, errors in found]


def figure(results: Mapping[str, Any]) -> Figure:
    """The error of every attack and their means, beside what is known without a message."""
    canvas = Figure(figsize=(16, 5), layout="constrained")
    places = canvas.subplots(1, 3, sharey=True)
    for place, (what, (label, _)) in zip(places, AXES.items(), strict=True):
        for index, method in enumerate(results["settings"]["methods"]):
            sizes, errors = _curve(results, what, method)
            shift = 1 + 0.05 * (index - 1)
            for size, each in zip(sizes, errors, strict=True):
                place.plot(
                    np.full(each.size, size * shift),
                    each,
                    ".",
                    color=COLOURS.get(method, BLACK),
                    alpha=0.35,
                    markersize=6,
                )
            means = [each.mean() for each in errors]
            place.plot(np.multiply(sizes, shift), means, "o-", color=COLOURS.get(method, BLACK), label=method)
        for name, style in ((MEAN, "--"), (FRESH, ":")):
            place.axhline(_mean(results, name), color=GREY, linestyle=style, label=name)
        place.set(xscale="log", xlabel=label)
        place.set_xticks(_curve(results, what, results["settings"]["methods"][0])[0])
        place.xaxis.set_major_formatter("{x:g}")
        place.minorticks_off()
        place.grid(color="0.92", linewidth=0.8)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
    places[0].set(ylabel="error of reconstructed points, in standard deviations", ylim=(-0.03, None))
    places[0].legend(frameon=False, loc="upper left")
    canvas.suptitle("What a server reads out of a client's message", fontsize="x-large")
    return canvas


def _mean(results: Mapping[str, Any], name: str, count: int = 1) -> float:
    return float(np.mean(results["curves"][f"{name} {count}"]["error"]))


def remarks(results: Mapping[str, Any]) -> list[str]:
    """What was recovered, and what was not; every number from the results."""
    said = [_of(results, what, word) for what, (_, word) in AXES.items()]
    return [
        f"In standard deviations of the data, an error of {_mean(results, MEAN):.2f} is that of the mean of all data, and of "
        f"{_mean(results, FRESH):.2f} that of points drawn anew; below 0.05 counts as recovered. "
        f"Each number is of {_attacked(results)} clients.",
        *said,
        "An attack that fails proves nothing: a better one may not. Networks here are smooth and small, the number of points is "
        "known, and the prior is untrained.",
    ]


def _attacked(results: Mapping[str, Any]) -> int:
    return len(results["settings"]["seeds"]) * results["settings"]["clients"]


def _of(results: Mapping[str, Any], what: str, word: str) -> str:
    told = []
    for method in results["settings"]["methods"]:
        sizes, errors = _curve(results, what, method)
        each = ", ".join(
            f"{size:g}: {found.mean():.2f} ({(found < 0.05).mean():.0%})"
            for size, found in zip(sizes, errors, strict=True)
        )
        told.append(f"{method} {each}")
    return f"Mean error (and share recovered) by {word}: {'; '.join(told)}."


def compact(results: Mapping[str, Any]) -> str:
    """Markdown: a line for each kind of message and a column for each method, with the share that was recovered."""
    names = results["settings"]["methods"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in results["rows"]:
        found.setdefault(row["setting"], {}).setdefault(row["method"], {})[row["metric"]] = row
    lines = [["message", *names], ["---", *("---:" for _ in names)]]
    for setting, methods in found.items():
        lines.append([setting, *(_cell(methods.get(name, {})) for name in names)])
    for name in (MEAN, FRESH):
        lines.append([name, *(f"{_mean(results, name):.2f}" for _ in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(metrics: Mapping[str, Any]) -> str:
    if "error" not in metrics:
        return ""
    error = metrics["error"]
    return f"{error['mean']:.2f} ± {error['ci95']:.2f} ({metrics['recovered']['mean']:.0%})"


def shown(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All rows."""
    return list(results["rows"])
