"""How `leakage_images` is told: pictures of what came back, its remarks, and the rows of its table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

MEAN, FRESH = "no message: the mean of all drawings", "no message: other drawings"
NOTHING = "no message"
SIDE = 14


def setting(what: Any) -> str:
    """A message in words."""
    plural = lambda count, word: f"{count} {word}{'' if count == 1 else 's'}"
    words = [plural(what.steps, "inner step"), plural(what.tasks, "task"), f"{what.images} + {what.images} drawings"]
    return ", ".join([*words, *([] if what.noise is None else [f"noise {what.noise:g}"])])


def figure(results: Mapping[str, Any]) -> Figure:
    """For each message a row of methods, for each method the query drawings of some clients above what was read out."""
    methods, messages = results["settings"]["methods"], results["settings"]["messages"]
    canvas = Figure(figsize=(3.4 * len(methods), 2.1 * len(messages)), layout="constrained")
    grid = np.atleast_2d(np.array(canvas.subplots(len(messages), len(methods), squeeze=False)))
    for row, message in zip(grid, messages, strict=True):
        for place, method in zip(row, methods, strict=True):
            place.set_axis_off()
            curve = results["curves"].get(f"{method} {message}")
            if curve is None:
                continue
            place.imshow(1 - _sheet(np.array(curve["drawings"], float)), cmap="gray", vmin=0, vmax=1)
            errors = np.array(curve["error"], float)
            place.set_title(f"{method}, {message}\nerror {errors.mean():.2f}", fontsize="medium")
    title = "Drawings of clients (above) and what a server reads out of their messages (below)"
    canvas.suptitle(f"{title}\nSupport and query of one task of each client; of two tasks, either may come back first")
    return canvas


def _sheet(drawings: np.ndarray) -> np.ndarray:
    """[clients, (truth, guess), (support, query), pixels] as one picture: truths above, guesses below."""
    pictures = np.pad(
        drawings.reshape(*drawings.shape[:3], SIDE, SIDE), [(0, 0)] * 3 + [(1, 1)] * 2, constant_values=0.3
    )
    clients, _, _, height, width = pictures.shape
    return pictures.transpose(1, 3, 0, 2, 4).reshape(2 * height, clients * 2 * width)


def _errors(results: Mapping[str, Any], name: str) -> np.ndarray:
    return np.array(results["curves"][name]["error"], float)


def remarks(results: Mapping[str, Any]) -> list[str]:
    """What was recovered, and what was not; every number from the results."""
    chosen = results["settings"]
    said = []
    for message in chosen["messages"]:
        found = [(name, _errors(results, f"{name} {message}")) for name in chosen["methods"]]
        words = "; ".join(f"{name} {each.mean():.2f} ({(each < 0.2).mean():.0%})" for name, each in found)
        said.append(f"Mean error (and share recovered), {message}: {words}.")
    return [
        f"In standard deviations of pixels, an error of {_errors(results, MEAN).mean():.2f} is that of the mean of all drawings, "
        "and of "
        f"{_errors(results, FRESH).mean():.2f} that of other drawings; below 0.2 counts as recovered. Each number is of "
        f"{len(chosen['seeds']) * chosen['clients']} clients, each with a prior of its own.",
        *said,
        "An attack that fails proves nothing: a better one may not. Labels are taken as known, and the prior is untrained.",
    ]


def compact(results: Mapping[str, Any]) -> str:
    """Markdown: a line for each kind of message and a column for each method, with the share that was recovered."""
    names = results["settings"]["methods"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in results["rows"]:
        if row["setting"] != NOTHING:
            found.setdefault(row["setting"], {}).setdefault(row["method"], {})[row["metric"]] = row
    lines = [["message", *names], ["---", *("---:" for _ in names)]]
    for kind, methods in found.items():
        each = (methods[name] for name in names)
        lines.append(
            [
                kind,
                *(f"{m['error']['mean']:.2f} ± {m['error']['ci95']:.2f} ({m['recovered']['mean']:.0%})" for m in each),
            ]
        )
    lines += [[name, *(f"{_errors(results, name).mean():.2f}" for _ in names)] for name in (MEAN, FRESH)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
