"""What is shown of `calibration`: the diagram, and which differences from MAML intervals tell apart."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import study
from metaprior import figures

SETTING = "5w1s"
PLAIN, FITTED = WAYS = ("as it is", "temperature fitted")
EXACT = "gem-bml+last-layer"
WIDE = f"{EXACT}, trained 20-way"
LINES = {PLAIN: (":", figures.ORANGE), FITTED: ("-", figures.BLUE)}


def half_width(by_seed: Any, again: Any) -> float:
    """Of the 95 % interval of a mean over seeds: the spread over draws of tasks and that over seeds add up."""
    return float(np.hypot(1.96 * np.std(again), study.over_seeds(by_seed)))


def reliability(tables: np.ndarray) -> dict[str, Any]:
    """For the figure, from [seeds, 3, tasks, bins]: bins with their predictions, of which there are so many a seed."""
    count, confidence, correct = tables.sum(axis=2).mean(axis=0)
    shares = lambda sums: np.round(sums / np.maximum(count, 1e-9), 5)
    return {"count": np.round(count).astype(int), "confidence": shares(confidence), "accuracy": shares(correct)}


def figure(results: study.Results) -> Figure:
    """Accuracy against confidence, in every way to say it."""
    names = [name for name in results["settings"]["methods"] if f"{name}/{PLAIN}" in results["curves"]]
    drawn = Figure(figsize=(3.4 * len(names) + 0.6, 4.2), layout="constrained")
    for axes, name in zip(drawn.subplots(1, len(names), squeeze=False, sharey=True)[0], names, strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for words, (line, color) in LINES.items():
            curve = results["curves"][f"{name}/{words}"]
            enough = np.asarray(curve["count"]) >= results["settings"]["rare"]
            x, y = (np.asarray(curve[part], float)[enough] for part in ("confidence", "accuracy"))
            told = f"{words} (T = {np.mean(curve['temperature']):.2f})"
            axes.plot(x, y, line, marker="o", markersize=4, color=color, label=told)
        axes.set(title=name, xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
        axes.grid(color="0.92")
        axes.legend(frameon=False, fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].set_ylabel("accuracy")
    drawn.suptitle(f"Reliability on {results['settings']['trained']['tasks']} {SETTING}\nonly bins that are not rare")
    return drawn


def remarks(results: study.Results) -> list[str]:
    """What was fitted, what tells methods apart, which bins are rare."""
    settings = results["settings"]
    sentences = [
        "The temperature is fitted on validation classes, by the NLL of "
        f"{settings['validation']} tasks, in the same way for every method; rows {PLAIN} have none."
    ]
    sentences += _by_chance(results) + _differences(results)
    for name, curve in results["curves"].items():
        rare = [i for i, count in enumerate(curve["count"]) if 0 < count < settings["rare"]]
        if rare:
            told = ", ".join(
                f"({i / settings['num_bins']:.2f}, {(i + 1) / settings['num_bins']:.2f}] {curve['count'][i]} predictions"
                f", gap {curve['accuracy'][i] - curve['confidence'][i]:+.3f}" for i in rare
            )  # fmt: skip
            sentences.append(f"Rare bins of {name.replace('/', ', ')}, not in its MCE: {told}.")
    return sentences


def _by_chance(results: study.Results) -> list[str]:
    """How little so many predictions can tell."""
    told = [
        f"{name} {curve['by_chance']:.4f}"
        for name in results["settings"]["methods"]
        if "by_chance" in (curve := results["curves"].get(f"{name}/{FITTED}", {}))
    ]
    words = "Probabilities that are exactly right, of answers as sure as those with the temperature, have an ECE by chance alone"
    return [f"{words}, as if no two answers had to do with each other: {', '.join(told)}."] if told else []


def _differences(results: study.Results) -> list[str]:
    """GEM-BML+ in all its forms minus MAML, on the same draws of tasks: whether intervals tell them apart."""
    told = []
    for words in WAYS:
        others = results["curves"].get(f"maml/{words}", {})
        for name in (EXACT, WIDE, "gem-bml+"):
            ours = results["curves"].get(f"{name}/{words}", {})
            if "again" not in ours or "again" not in others:
                continue
            parts = [f"{metric} {_gap(ours, others, metric)}" for metric in ("ECE", "MCE", "NLL")]
            seeds = " and ".join(str(len(each["by_seed"]["ECE"])) for each in (ours, others))
            told.append(f"{words.capitalize()}, {name} minus maml ({seeds} seeds): {', '.join(parts)}.")
    return told


def _gap(ours: dict[str, Any], others: dict[str, Any], metric: str) -> str:
    numbers = [[np.asarray(each[part][metric], float) for each in (ours, others)] for part in ("by_seed", "again")]
    (mine, theirs), (draws, their_draws) = numbers
    gap = float(mine.mean() - theirs.mean())
    if not np.isfinite(gap):
        return "unknown: some task ran away"
    allowed = float(np.hypot(half_width(mine, draws - their_draws), study.over_seeds(theirs)))
    return f"{gap:+.4f} ± {allowed:.4f} ({study.verdict(-gap, allowed)})"  # less is better
