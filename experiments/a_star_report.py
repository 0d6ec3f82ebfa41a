"""What is shown of `a-star`: figure, table and remarks, from its results alone."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import study
from metaprior.figures import BLACK, BLUE, GREY, ORANGE

GREEN = "#009E73"
COLORS = (GREEN, ORANGE, BLUE)  # of the kinds of points, from one θᵢ to all
TRAINED = "trained Θ"
INSIDE, *CONTROLS = "inside", "random direction", "mirrored"
DASHES = {"random direction": "--", "mirrored": ":"}
MARKERS = {"random direction": "x", "mirrored": "^"}
KEPT = 0.9  # share of what adaptation gains from Θ that a good start keeps


def shown(results: study.Results) -> list[dict[str, Any]]:
    """Errors before and after, without differences."""
    words = [f"MSE after {step}" for step in (0, 1, results["settings"]["steps"])]
    return [row for row in results["rows"] if row["metric"] in words]


def figure(results: study.Results) -> Figure:
    """A row for each method: errors by step, each point against Θ, and where the points lie."""
    drawn = Figure(figsize=(14.5, 4.3 * len(results["curves"]) + 1.1), layout="constrained")
    grid = drawn.subplots(len(results["curves"]), 3, squeeze=False)
    for (errors, against, flat), (method, curve) in zip(grid, results["curves"].items(), strict=True):
        _draw_errors(errors, curve)
        errors.set(
            title=f"{method}: error on new tasks", xlabel="test steps", ylabel="mean squared error", yscale="log"
        )
        _draw_against(against, curve)
        against.set(title=f"{method}: every start against Θ", xscale="log", yscale="log")
        against.set(
            xlabel="error before any step / that of Θ", ylabel=f"error after {curve['steps'][-1]} steps / that of Θ"
        )
        _draw_map(flat, curve)
        first, second = (f"{100 * share:.0f} %" for share in curve["shares"])
        flat.set(title=f"{method}: weights, seen from Θ", xlabel=f"first direction ({first} of the spread)")
        flat.set(ylabel=f"second direction ({second})")
        for axes in (errors, against, flat):
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
    handles = {h[1]: h[0] for axes in grid[0] for h in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False)
    drawn.suptitle(_headline(results))
    return drawn


def _middle(curve) -> str:
    """The kind whose controls and single points are drawn: those of all would hide each other."""
    names = list(curve["kinds"])
    return names[len(names) // 2]


def _draw_errors(axes, curve) -> None:
    steps, chosen = curve["steps"], curve["kinds"][_middle(curve)]["places"]
    color = dict(zip(curve["kinds"], COLORS, strict=False))[_middle(curve)]
    for index, single in enumerate(chosen[INSIDE]["single"]):
        label = f"single points {_middle(curve)}" if index == 0 else None
        axes.plot(steps, single, color=color, linewidth=0.7, alpha=0.45, label=label)
    for word in CONTROLS:
        axes.plot(steps, chosen[word]["mean"], color=GREY, linestyle=DASHES[word], label=f"as far from Θ, {word}")
    for (name, kind), shade in zip(curve["kinds"].items(), COLORS, strict=False):
        axes.plot(steps, kind["places"][INSIDE]["mean"], color=shade, linewidth=2.2, label=f"{name}, mean")
    axes.plot(steps, curve["trained"], color=BLACK, linewidth=2.2, linestyle=(0, (4, 1)), label=TRAINED)


def _draw_against(axes, curve) -> None:
    """Right of one: worse before adaptation; above one: worse after it."""
    for (_, kind), color in zip(curve["kinds"].items(), COLORS, strict=False):
        inside = kind["places"][INSIDE]
        axes.plot(inside["before"], inside["after"], "o", color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
    for word in CONTROLS:
        control = curve["kinds"][_middle(curve)]["places"][word]
        axes.plot(control["before"], control["after"], MARKERS[word], color=GREY, markersize=3.5, alpha=0.5,
                  label=f"as far from Θ, {word}", zorder=1.5)  # fmt: skip
    axes.axhline(1, color=BLACK, linewidth=0.8)
    axes.axvline(1, color=BLACK, linewidth=0.8)
    axes.plot(1, 1, "*", color=BLACK, markersize=13, label=TRAINED, zorder=5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: f"{value:g}" if str(value).strip("0.")[0] in "25" else "")
        axis.set_tick_params(which="minor", labelsize="small")


def _draw_map(axes, curve) -> None:
    vertices = np.asarray(curve["θᵢ"], float)
    outline = vertices[_hull(vertices)]
    axes.fill(*outline.T, color=GREY, alpha=0.1, linewidth=0, label="A*, flattened")
    axes.plot(*vertices.T, "o", color=GREY, markersize=4, alpha=0.7, label="θᵢ, weights adapted to a task")
    for (name, kind), color in list(zip(curve["kinds"].items(), COLORS, strict=False))[1:]:  # one θᵢ is drawn already
        axes.plot(*np.asarray(kind["map"], float).T, "o", color=color, markersize=4, label=f"points {name}")
    axes.plot(0, 0, "*", color=BLACK, markersize=13, zorder=5)
    axes.set_aspect("equal", adjustable="datalim")


def _hull(points) -> list[int]:
    """Indices of the convex hull in the plane, counter-clockwise (Andrew's monotone chain)."""
    order = np.lexsort(points.T[::-1]).tolist()

    def chain(indices):
        kept: list[int] = []
        for index in indices:
            while len(kept) > 1 and _turn(*points[[kept[-2], kept[-1], index]]) <= 0:
                kept.pop()
            kept.append(index)
        return kept[:-1]

    return chain(order) + chain(order[::-1])


def _turn(a, b, c) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


# --- in words ---------------------------------------------------------------------------------------------------------


def _headline(results: study.Results) -> str:
    worse = []
    for method, curve in results["curves"].items():
        ratio = [
            curve["kinds"][_middle(curve)]["places"][word]["mean"][-1] / curve["trained"][-1]
            for word in (INSIDE, *CONTROLS)
        ]
        worse.append(f"{method} {ratio[0]:.2g} (random direction {ratio[1]:.2g}, mirrored {ratio[2]:.2g})")
    name = _middle(next(iter(results["curves"].values())))
    return f"Error after adaptation, started {name}, as multiple of that from Θ: {', '.join(worse)}"


def remarks(results: study.Results) -> list[str]:
    """The paper's three sentences, one by one, and whether being inside is what counts."""
    rows = {(row["method"], row["setting"], row["metric"]): row for row in results["rows"]}
    said = []
    for method, curve in results["curves"].items():
        said += [_works(method, curve), _best(rows, method, curve), _good(method, curve), _before(rows, method, curve)]
        said.append(_inside(method, curve))
    return said


def _works(method, curve) -> str:
    own, last = curve["own tasks"], curve["steps"][-1]
    return (
        f"{method}: adaptation works: {last} steps take the error on the tasks that give the θᵢ from {own[0]:.3g} to {own[-1]:.3g}. "
        f"The θᵢ lie {curve['distance of θᵢ']:.2g} from Θ, which is {curve['length of Θ']:.3g} long."
    )


def _best(rows, method, curve) -> str:
    verdicts = _differences(rows, method, curve, curve["steps"][-1])
    held = all(verdict == "above" for verdict, _ in verdicts)
    some = any(verdict == "above" for verdict, _ in verdicts)
    answer = "holds" if held else "holds in part" if some else "does not show"
    words = "; ".join(words for _, words in verdicts)
    return f"{method}: that the trained Θ is best after adaptation {answer}: error after {curve['steps'][-1]} steps minus that from Θ: {words}."


def _differences(rows, method, curve, step) -> list[tuple[str, str]]:
    """Against Θ, task by task: (above, below or level; in words) for each kind of points."""
    found = []
    for name in curve["kinds"]:
        row = rows[method, f"{name}, {INSIDE}", f"MSE after {step} minus that of Θ"]
        mean, ci95 = row["mean"], row["ci95"]
        verdict = "above" if mean > ci95 else "below" if mean < -ci95 else "level"
        found.append((verdict, f"{name} {mean:+.2g} ± {ci95:.2g} ({verdict})"))
    return found


def _good(method, curve) -> str:
    first, last = curve["trained"][0], curve["trained"][-1]
    kept = {n: (first - k["places"][INSIDE]["mean"][-1]) / (first - last) for n, k in curve["kinds"].items()}
    ratio = {n: k["places"][INSIDE]["mean"][-1] / last for n, k in curve["kinds"].items()}
    answer = "holds" if min(kept.values()) >= KEPT else "does not hold for all"
    words = "; ".join(
        f"{name} {ratio[name]:.2g} times the error from Θ, {share:.0%} of the gain" for name, share in kept.items()
    )
    words = words.replace("%", " %")
    return f"{method}: that points of A* are good starts too {answer}: after adaptation {words}."


def _before(rows, method, curve) -> str:
    verdicts = _differences(rows, method, curve, 0)
    held = [name for name, (verdict, _) in zip(curve["kinds"], verdicts, strict=True) if verdict == "below"]
    answer = "holds" if len(held) == len(verdicts) else f"holds only {' and '.join(held)}" if held else "does not hold"
    words = "; ".join(words for _, words in verdicts)
    return f"{method}: that points of A* have less error before adaptation {answer}: minus that of Θ: {words}."


def _inside(method, curve) -> str:
    parts = []
    for name, kind in curve["kinds"].items():
        inside, random, mirrored = (kind["places"][word]["mean"][-1] for word in (INSIDE, *CONTROLS))
        parts.append(f"{name} {inside:.3g} inside, {random:.3g} in a random direction, {mirrored:.3g} mirrored")
    better = [k["places"][INSIDE]["mean"][-1] < k["places"][CONTROLS[0]]["mean"][-1] for k in curve["kinds"].values()]
    answer = (
        "random points at the same distance are no worse, so nearness to Θ explains it as well as lying inside A*"
        if not any(better)
        else "points inside do better than random ones at the same distance"
        if all(better)
        else "random points at the same distance are better for some kinds and worse for others"
    )
    return f"{method}: error after adaptation as far from Θ as the points of A*: {'; '.join(parts)}: {answer}."
