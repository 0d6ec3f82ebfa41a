"""What is shown of `many-steps`: figure, table and remarks, from its results alone."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments import study
from experiments.figure_2a import STYLES
from metaprior.figures import GREY

LONG, SAME_TIME, SAME_ITERATIONS = "many steps", "few steps, same time", "few steps, same iterations"
LINES: dict[str, Any] = {LONG: "-", SAME_TIME: "--", SAME_ITERATIONS: ":"}
MARKERS = {LONG: "o", SAME_TIME: "s", SAME_ITERATIONS: "D"}
UNTRAINED = "untrained"
BATCHED, WHOLE = "mini-batches", "all points"
GROWS = 1.5  # more than this from fewest to most steps, and memory is said to grow


def shown(results: study.Results) -> list[dict[str, Any]]:
    """Costs at the fewest and the most steps, and errors at the end."""
    first, *_, last = results["settings"]["counts"]
    ends = tuple(f"{count} steps, " for count in (first, last))
    errors = (f"MSE after {results['settings']['steps']}", "iterations of training", "seconds of training")
    return [row for row in results["rows"] if row["setting"].startswith(ends) or row["metric"] in errors]


def figure(results: study.Results) -> Figure:
    """Above: bytes and seconds of a meta-step. Below: what adaptation by many steps makes of the priors."""
    drawn = Figure(figsize=(12.5, 9.2), layout="constrained")
    (memory, seconds), (errors, ends) = drawn.subplots(2, 2)
    _draw_costs(memory, results, "bytes", scale=1e-6)
    memory.set(title="memory of a meta-step (temporary)", xlabel="inner steps", ylabel="megabytes")
    _draw_costs(seconds, results, "seconds", scale=1.0)
    seconds.set(title="time of a meta-step", xlabel="inner steps", ylabel="seconds on this machine")
    _draw_errors(errors, results)
    errors.set(title="adaptation to test tasks", xlabel="test steps", ylabel="mean squared error")
    _draw_ends(ends, results)
    ends.set(
        title=f"error after {results['settings']['steps']} test steps",
        xlabel="mean squared error: mean, and every seed",
    )
    for axes in (memory, seconds, errors, ends):
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    names = list(dict.fromkeys(name.split("/")[1].split(",")[0] for name in results["curves"]))
    handles = [Line2D([], [], color=_color(name), linewidth=2.5, label=name) for name in names]
    drawn.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    drawn.suptitle(_headline(results))
    return drawn


def _color(name: str) -> str:
    return STYLES[name][0] if name in STYLES else GREY


def _draw_costs(axes, results, field: str, scale: float) -> None:
    for name, curve in _curves(results, "cost/"):
        method, points = name.split(", ")
        if None not in curve[field]:
            line = "-o" if points == BATCHED else "--^"
            axes.plot(curve["steps"], np.multiply(curve[field], scale), line, color=_color(method), markersize=4.5)
    axes.set(xscale="log", yscale="log")
    counts = results["settings"]["counts"]
    axes.set_xticks(counts, [str(count) for count in counts], minor=False)
    axes.minorticks_off()
    styles: dict[str, Any] = {
        f"mini-batches of {results['settings']['batch_size']}": "-",
        "all points at every step": "--",
    }
    handles = [Line2D([], [], color=GREY, linestyle=line, label=label) for label, line in styles.items()]
    axes.legend(handles=handles if field == "bytes" else handles[:1], loc="upper left", frameon=False)


def _draw_errors(axes, results) -> None:
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    axes.set_yscale("log")
    top = 0.0
    for name, curve in _curves(results, "train/"):
        method, arm = name.split("/")
        values = np.asarray(curve["mse"], float)
        style: dict[str, Any] = {"color": _color(method), "linestyle": LINES.get(arm, "-.")}
        axes.plot(curve["steps"], values.mean(axis=0), linewidth=1.8, **style)
        axes.fill_between(
            curve["steps"], values.min(axis=0), values.max(axis=0), color=_color(method), alpha=0.1, linewidth=0
        )
        axes.set_xticks(curve["steps"], [str(step) for step in curve["steps"]])
        top = max(top, 3 * float(np.nanmedian(values[:, 0])) if arm == LONG else 0.0)
    axes.set_xlim(left=0)
    axes.set_ylim(top=top or None)  # a prior need not predict well before any step: that must not flatten the rest
    handles = [
        Line2D([], [], color=GREY, linestyle=LINES[arm], label=_words(results, arm))
        for arm in results["settings"]["arms"]
    ]
    axes.legend(handles=handles, loc="lower left", frameon=False)


def _draw_ends(axes, results) -> None:
    """The mean, and every seed beside it: few seeds need no interval to be seen."""
    names = []
    for place, (name, curve) in enumerate(_curves(results, "train/")):
        method, arm = name.split("/")
        ends = np.asarray(curve["mse"], float)[:, -1]
        axes.plot(ends, [place] * len(ends), "o", color=_color(method), markersize=4, alpha=0.5)
        axes.plot(ends.mean(), place, MARKERS.get(arm, "o"), color=_color(method), markersize=9)
        names.append(method if arm not in LINES else f"{method}\n{_words(results, arm)}")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")


def _curves(results, start: str):
    """(rest of the name, curve) of those that begin so."""
    return [(name.removeprefix(start), curve) for name, curve in results["curves"].items() if name.startswith(start)]


def _words(results, arm: str) -> str:
    many, few = results["settings"]["steps"], results["settings"]["few"]
    words = {
        LONG: f"{many} steps",
        SAME_TIME: f"{few} steps, same time",
        SAME_ITERATIONS: f"{few} steps, same iterations",
    }
    return f"trained with {words[arm]}" if arm in words else "no training"


def _by_name(results):
    return {(row["method"], row["setting"], row["metric"]): row for row in results["rows"]}


# --- in words ---------------------------------------------------------------------------------------------------------


def _headline(results) -> str:
    counts = results["settings"]["counts"]
    ratios = [
        f"{name.split(', ')[0]} ×{curve['bytes'][-1] / curve['bytes'][0]:.2g}"
        for name, curve in _curves(results, "cost/")
        if name.endswith(BATCHED)
    ]
    said = [f"Memory from {counts[0]} to {counts[-1]} inner steps: {', '.join(ratios)}"]
    pays = []
    for arm, words in ((SAME_TIME, "in the same time"), (SAME_ITERATIONS, "in as many meta-iterations")):
        verdicts = {name: _verdict(results, name, arm) for name in results["settings"]["trained"]}
        if any(verdicts.values()):
            better = [name for name, verdict in verdicts.items() if verdict == "pays"]
            whom = "no method" if not better else "all methods" if better == list(verdicts) else ", ".join(better)
            pays.append(f"{words}, for {whom}")
    return "\n".join(said + ([f"Training with as many steps as at test pays {'; '.join(pays)}"] if pays else []))


def remarks(results: study.Results) -> list[str]:
    """Costs first, then whether many steps in training pay."""
    said = [_flat(results), *_per_step(results), _whole(results), _seconds(results)]
    said += [_pays(results, name) for name in results["settings"]["trained"]]
    said += [_against_untrained(results), _before(results), _choice(results)]
    return [sentence for sentence in said if sentence]


def _flat(results) -> str:
    counts, words = results["settings"]["counts"], {True: [], False: []}
    for name, curve in _curves(results, "cost/"):
        if name.endswith(BATCHED):
            first, last = curve["bytes"][0], curve["bytes"][-1]
            words[last > GROWS * first].append(f"{name.split(', ')[0]} {first / 1e6:.3g} to {last / 1e6:.3g} MB")
    stays, grows = (", ".join(words[grown]) or "none" for grown in (False, True))
    return f"From {counts[0]} to {counts[-1]} inner steps, memory stays for {stays}; it grows for {grows}."


def _per_step(results) -> list[str]:
    """The slope, in networks: what it would be for a larger one."""
    said = []
    for name, curve in _curves(results, "cost/"):
        (a, b), (low, high) = curve["steps"][-2:], curve["bytes"][-2:]
        slope = (high - low) / (b - a)
        if slope * (b - curve["steps"][0]) > (GROWS - 1) * curve["bytes"][0]:
            copies = slope / curve["bytes of the weights of all tasks"]
            said.append(
                f"{name}: every further step keeps {slope / 1e3:.0f} kB, {copies:.2g} times the weights of all its tasks."
            )
    return said


def _whole(results) -> str:
    parts = [
        f"{name.split(', ')[0]} {curve['bytes'][-1] / 1e6:.4g} MB"
        for name, curve in _curves(results, "cost/")
        if name.endswith(WHOLE)
    ]
    points, last = results["settings"]["shots"], results["settings"]["counts"][-1]
    return (
        f"With all {points} points at each of {last} steps a meta-step would need: {', '.join(parts)}." if parts else ""
    )


def _seconds(results) -> str:
    parts = [
        f"{name.split(', ')[0]} {curve['seconds'][-1]:.2g}"
        for name, curve in _curves(results, "cost/")
        if curve["seconds"][-1] is not None
    ]
    last = results["settings"]["counts"][-1]
    if not parts:
        return ""
    return (
        f"Seconds of a meta-step with {last} mini-batched steps: {', '.join(parts)}. "
        "Methods with a second stage (GEM, Reptile) take as many steps again in it."
    )


def _ratios(results, method: str, arm: str) -> list[tuple[float, float, float]]:
    """Error when trained with many steps over that of another arm, with its 95 % interval; none where it was not measured.

    First of the mean over tasks, seed by seed; then of a typical task, as geometric mean: a few hard tasks carry most of a mean.
    """
    pair = [results["curves"].get(f"train/{method}/{name}") for name in (LONG, arm)]
    if None in pair:
        return []
    both = np.stack([np.maximum(np.asarray(curve["task_mse"], float), 1e-5) for curve in pair])  # [arms, seeds, tasks]
    mine, theirs = both[..., np.isfinite(both).all(axis=(0, 1))]
    of_means = np.log(mine.mean(axis=1, keepdims=True) / theirs.mean(axis=1, keepdims=True))
    found = [study.mean_and_ci(logs) for logs in (of_means, np.log(mine / theirs))]
    return [tuple(np.exp([mean, mean - ci95, mean + ci95]).tolist()) for mean, ci95 in found]


def _verdict(results, method: str, arm: str) -> str:
    """By the mean error; empty where an arm was not measured."""
    if not (found := _ratios(results, method, arm)):
        return ""
    _, low, high = found[0]
    return "pays" if high < 1 else "does not pay" if low > 1 else "makes no clear difference"


def _pays(results, method: str) -> str:
    """Training with as many steps as at test, against training with few."""
    parts = []
    for arm in (SAME_TIME, SAME_ITERATIONS):
        if found := _ratios(results, method, arm):
            mean, typical = (f"{ratio:.2g} ({low:.2g} to {high:.2g})" for ratio, low, high in found)
            times = f"{mean} times the mean error, {typical} times the error of a typical task"
            parts.append(f"against {_spent(results, method, arm)} it {_verdict(results, method, arm)}: {times}")
    steps = results["settings"]["steps"]
    return (
        f"{method}, error after {steps} test steps: {_spent(results, method, LONG)}; {'; '.join(parts)}."
        if parts
        else ""
    )


def _spent(results, method: str, arm: str) -> str:
    curve = results["curves"][f"train/{method}/{arm}"]
    mean = np.mean(np.asarray(curve["mse"], float)[:, -1])
    spent = f"{curve['iterations']} meta-iterations, {curve['seconds']:.2g} s a seed"
    lost = (
        f", {curve['diverged']} of {np.size(curve['task_mse'])} adaptations diverged and left out"
        if curve["diverged"]
        else ""
    )
    return f"{mean:.2g} when {_words(results, arm)} ({spent}{lost})"


def _before(results) -> str:
    """Where the start predicts worse than weights that were never trained."""
    base = _by_name(results).get((UNTRAINED, "no training", "MSE after 0"))
    if base is None:
        return ""
    worse = [
        f"{row['method']} {row['setting']} {row['mean']:,.0f}"
        for row in results["rows"]
        if row["metric"] == "MSE after 0" and row["mean"] is not None and row["mean"] > 3 * base["mean"]
    ]
    return (
        f"Before any step some priors are worse than no training ({base['mean']:.3g}): {', '.join(worse)}."
        if worse
        else ""
    )


def _against_untrained(results) -> str:
    last = results["settings"]["steps"]
    row = _by_name(results).get((UNTRAINED, "no training", f"MSE after {last}"))
    if row is None or row["mean"] is None:
        return ""
    return (
        f"Without meta-training, {last} mini-batched steps of gradient descent at the best rate of the grid leave an error of "
        f"{row['mean']:.3g} ± {row['ci95']:.2g}."
    )


def _choice(results) -> str:
    tried = max(len(curve["tried"]) for _, curve in _curves(results, "train/"))
    if tried == 1:
        return ""
    return (
        f"Rates were chosen on {results['settings']['validation']} validation tasks among {tried} pairs (inner and meta-rate), "
        "each tried on a seed of its own in a training of a quarter of the length, with the same budget for every method."
    )
