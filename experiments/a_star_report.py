"""What is shown of `a-star`: figure, table and remarks, from its results alone."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from experiments import study
from metaprior.figures import BLACK, BLUE, GREY, ORANGE

GREEN, PURPLE = "#009E73", "#CC79A7"
COLORS = (GREEN, ORANGE, BLUE)  # of the kinds of points, from one θᵢ to all
INSIDE, *CONTROLS = "inside", "random direction", "mirrored"
DASHES = {"random direction": "--", "mirrored": ":"}
MARKERS = {"random direction": "x", "mirrored": "^"}
LABELS = {"MSE": "mean squared error", "NLL": "cross-entropy"}
BEST, TOO = "the trained Θ is best after adaptation", "points of A* are good starts too"
BEFORE = "points of A* have less error before adaptation"
KEPT = 0.9  # share of what adaptation gains from Θ that a good start keeps


def shown(results: study.Results) -> list[dict[str, Any]]:
    """Errors before and after, without differences."""
    words = [f"MSE after {step}" for step in (0, 1, results["settings"]["steps"])]
    return [row for row in results["rows"] if row["metric"] in words]


def figure(results: study.Results) -> Figure:
    """A row for each method: errors by step, each point against Θ, and where the points lie."""
    drawn = Figure(figsize=(14.5, 4.3 * len(results["curves"]) + 1.1), layout="constrained")
    grid = drawn.subplots(len(results["curves"]), 3, squeeze=False)
    for panels, (method, curve) in zip(grid, results["curves"].items(), strict=True):
        draw_method(panels, method, curve)
    handles = {h[1]: h[0] for axes in grid[0] for h in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=5, frameon=False)
    drawn.suptitle(headline(results))
    return drawn


def draw_method(panels, method: str, curve) -> None:
    """Three panels of one method."""
    errors, against, flat = panels
    _draw_errors(errors, curve)
    errors.set(title=f"{method}: error on new tasks", xlabel="test steps", ylabel=LABELS[_word(curve)], yscale="log")
    _draw_against(against, curve)
    against.set(title=f"{method}: every start against Θ")
    against.set(
        xlabel="error before any step / that of Θ", ylabel=f"error after {curve['steps'][-1]} steps / that of Θ"
    )
    _draw_map(flat, curve)
    first, second = (f"{100 * share:.0f} %" for share in np.asarray(curve["shares"], float))
    flat.set(title=f"{method}: weights, seen from Θ", xlabel=f"first direction ({first} of the spread)")
    flat.set(ylabel=f"second direction ({second})")
    for axes in panels:
        plain(axes)


def plain(axes) -> None:
    """A light grid, no frame."""
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plain_numbers(axis) -> None:
    """1, 2, 5, 10, … on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(NullLocator())


def _word(curve) -> str:
    """The error that curves and differences are of."""
    return curve.get("error", "MSE")


def _middle(curve) -> str:
    """The kind whose controls and single points are drawn: those of all would hide each other."""
    names = list(curve["kinds"])
    return names[len(names) // 2]


def _draw_errors(axes, curve) -> None:
    steps, chosen = curve["steps"], curve["kinds"][_middle(curve)]["places"]
    color = dict(zip(curve["kinds"], COLORS, strict=False))[_middle(curve)]
    for index, single in enumerate(chosen[INSIDE]["single"]):
        label = None if index else f"single starts {_middle(curve)}"
        axes.plot(steps, single, color=color, linewidth=0.7, alpha=0.45, label=label)
    for word in CONTROLS:
        label = f"as far from Θ as {_middle(curve)}, {word}"
        axes.plot(
            steps, chosen[word]["mean"], DASHES[word], color=GREY, marker=MARKERS[word], markersize=5, label=label
        )
    for (name, kind), shade in zip(curve["kinds"].items(), COLORS, strict=False):
        mean = kind["places"][INSIDE]["mean"]
        axes.plot(steps, mean, "-o", color=shade, linewidth=2.2, markersize=4, label=f"start: {name}")
    axes.plot(steps, curve["trained"], color=BLACK, linewidth=2.2, linestyle=(0, (4, 1)), label="start: trained Θ")


def _draw_against(axes, curve) -> None:
    """Right of one: worse before adaptation; above one: worse after it."""
    axes.set(xscale="log", yscale="log")
    for word in CONTROLS:
        control = curve["kinds"][_middle(curve)]["places"][word]
        axes.plot(control["before"], control["after"], MARKERS[word], color=GREY, markersize=3.5, alpha=0.5)
    for kind, color in zip(curve["kinds"].values(), COLORS, strict=False):
        inside = kind["places"][INSIDE]
        axes.plot(inside["before"], inside["after"], "o", color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
    axes.axhline(1, color=BLACK, linewidth=0.8)
    axes.axvline(1, color=BLACK, linewidth=0.8)
    axes.plot(1, 1, "*", color=BLACK, markersize=13, label="trained Θ", zorder=5)
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)


def _draw_map(axes, curve) -> None:
    vertices = np.asarray(curve["θᵢ"], float)
    axes.fill(*vertices[_hull(vertices)].T, color=GREY, alpha=0.1, linewidth=0, label="A*, flattened")
    for index, path in enumerate(curve.get("paths", ())):
        label = None if index else "paths of adaptation, step by step"
        style = {"color": PURPLE, "linewidth": 1.1, "marker": ".", "markersize": 3.5, "zorder": 4}
        axes.plot(*np.asarray(path, float).T, **style, label=label)
    axes.plot(*vertices.T, "o", color=COLORS[0], markersize=4, alpha=0.7)
    for kind, color in list(zip(curve["kinds"].values(), COLORS, strict=False))[1:]:  # one θᵢ is drawn already
        axes.plot(*np.asarray(kind["map"], float).T, "o", color=color, markersize=4, alpha=0.7)
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


AGAINST = {"above": "worse than", "level": "as good as", "below": "better than"}


def headline(results: study.Results) -> str:
    """Θ against the middle and the corners of A*."""
    rows, said = _by_name(results), {}
    for method, curve in results["curves"].items():
        corner, *_, middle = (AGAINST[verdict] for verdict, _ in _differences(rows, method, curve, curve["steps"][-1]))
        said.setdefault(f"the middle of A* is {middle} Θ, its corners (the θᵢ) are {corner} Θ", []).append(method)
    words = "; ".join(f"{', '.join(methods)}: {words}" for words, methods in said.items())
    return f"As starts of adaptation, {next(iter(said)) if len(said) == 1 else words}"


def remarks(results: study.Results) -> list[str]:
    """The paper's three sentences, one by one, and whether being inside is what counts."""
    rows, said = _by_name(results), []
    for method, curve in results["curves"].items():
        said.append(_works(method, curve))
        said += [
            f"{method}: that {claim} {answer}: {words}."
            for claim, (answer, words, _) in claims(results, method).items()
        ]
        said.append(_inside(rows, method, curve))
    return said


def _by_name(results: study.Results) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["method"], row["setting"], row["metric"]): row for row in results["rows"]}


def _differences(rows, method, curve, step, rival="Θ") -> list[tuple[str, str]]:
    """Against a rival, task by task: (above, below or level; in words) for each kind of points."""
    found = []
    for name in curve["kinds"]:
        row = rows[method, f"{name}, {INSIDE}", f"{_word(curve)} after {step} minus {rival}"]
        mean, ci95 = row["mean"], row["ci95"]
        if mean is None:
            found.append(("above", f"{name} ran away (above)"))
            continue
        verdict = "above" if mean > ci95 else "below" if mean < -ci95 else "level"
        found.append((verdict, f"{name} {mean:+.2g} ± {ci95:.2g} ({verdict})"))
    return found


def _works(method, curve) -> str:
    own, last = curve["own tasks"], curve["steps"][-1]
    if None in (own[0], own[-1]):
        return f"{method}: adaptation to some of the tasks that give the θᵢ ran away."
    answer = "works" if own[-1] < own[0] / 2 else "hardly works"
    return (
        f"{method}: adaptation {answer}: {last} steps take the error on the tasks that give the θᵢ from {own[0]:.3g} to "
        f"{own[-1]:.3g}. The θᵢ lie {curve['distance of θᵢ']:.2g} from Θ, which is {curve['length of Θ']:.3g} long."
    )


class Answer(NamedTuple):
    """Whether a claim holds, the numbers that decide it, and where they speak against it."""

    answer: str
    words: str
    against: tuple[str, ...]


def claims(results: study.Results, method: str) -> dict[str, Answer]:
    """The paper's three sentences."""
    rows, curve = _by_name(results), results["curves"][method]
    return {BEST: _best(rows, method, curve), TOO: _good(curve), BEFORE: _before(rows, method, curve)}


def _best(rows, method, curve) -> Answer:
    last = curve["steps"][-1]
    verdicts = _differences(rows, method, curve, last)
    above = [verdict == "above" for verdict, _ in verdicts]
    answer = "holds" if all(above) else "holds in part" if any(above) else "does not show"
    words = "; ".join(words for _, words in verdicts)
    shares = [np.mean(np.asarray(kind["places"][INSIDE]["after"]) < 1) for kind in curve["kinds"].values()]
    better = ", ".join(f"{100 * share:.0f} %" for share in shares)
    told = f"error after {last} steps minus that from Θ: {words}; of single points {better} are better than Θ"
    return Answer(answer, told, _against(curve, verdicts, "above"))


def _against(curve, verdicts, claimed: str) -> tuple[str, ...]:
    """Kinds of points that stand otherwise than is claimed, and how."""
    pairs = zip(curve["kinds"], verdicts, strict=True)
    return tuple(f"{name} ({verdict})" for name, (verdict, _) in pairs if verdict != claimed)


def _good(curve) -> Answer:
    first, last = curve["trained"][0], curve["trained"][-1]
    after = {name: kind["places"][INSIDE]["mean"][-1] for name, kind in curve["kinds"].items()}
    if None in (first, last, *after.values()):
        return Answer("cannot be said", "some adaptations ran away", ())
    kept = {name: (first - error) / (first - last) for name, error in after.items()}
    answer = "holds" if min(kept.values()) >= KEPT else "does not hold for all"
    words = "; ".join(
        f"{name} {after[name] / last:.2g} times the error from Θ, keeping {100 * share:.0f} % of what adaptation gains"
        for name, share in kept.items()
    )
    against = tuple(f"{name} ({100 * share:.0f} %)" for name, share in kept.items() if share < KEPT)
    return Answer(answer, f"after adaptation {words}", against)


def _before(rows, method, curve) -> Answer:
    verdicts = _differences(rows, method, curve, 0)
    held = [name for name, (verdict, _) in zip(curve["kinds"], verdicts, strict=True) if verdict == "below"]
    answer = "holds" if len(held) == len(verdicts) else f"holds only {' and '.join(held)}" if held else "does not hold"
    words = "; ".join(words for _, words in verdicts)
    return Answer(answer, f"minus that of Θ: {words}", _against(curve, verdicts, "below"))


def _inside(rows, method, curve) -> str:
    """Of the controls the random direction decides: a mirrored point lies in the plane of the θᵢ too."""
    verdicts = {rival: _differences(rows, method, curve, curve["steps"][-1], rival) for rival in CONTROLS}
    better = [name for name, (v, _) in zip(curve["kinds"], verdicts[CONTROLS[0]], strict=True) if v == "below"]
    answer = f"for points {' and '.join(better)} it does" if better else "lying near Θ is enough"
    words = [f"{rival}: {'; '.join(words for _, words in listed)}" for rival, listed in verdicts.items()]
    return (
        f"{method}: whether lying inside A* counts: {answer}. Error after adaptation minus that from points as far from Θ, "
        f"{', '.join(words)}."
    )
