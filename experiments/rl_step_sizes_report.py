"""What is shown of `rl-step-sizes`: figure and remarks, from its results alone."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import a_star_report, study
from experiments.rl_remarks import number, times
from metaprior.figures import BLUE, ORANGE

COLORS = {"plain": BLUE, "trust region": ORANGE}
KL = "KL of the first step"
SHORT = {"plain": "rate", "trust region": "KL"}  # what the size of a step is called
ABOUT = 3.0  # what differs in length by less than this factor goes about as far
Step = dict[str, Any]


def steps_of(results: study.Results, world: str) -> list[Step]:
    """Every kind and size of step in one world, with its returns [seeds, tasks, updates] and how far a first one goes."""
    far = {row["method"]: row["mean"] for row in results["rows"] if row["setting"] == world and row["metric"] == KL}
    mine = [curve for name, curve in results["curves"].items() if name.startswith(f"{world}/")]
    made = [
        {**curve, "returns": np.asarray(curve["returns"], float), "far": far[f"{curve['kind']} {curve['size']:g}"]}
        for curve in mine
    ]
    return [step for step in made if step["far"] is not None and np.isfinite(step["returns"]).all()]


def worlds_of(results: study.Results) -> list[str]:
    """Those that were measured."""
    return list(dict.fromkeys(name.split("/")[0] for name in results["curves"]))


def figure(results: study.Results) -> Figure:
    """A panel for each world: returns after the first and the last update, by how far the first one went."""
    worlds = worlds_of(results)
    drawn = Figure(figsize=(4.6 * max(len(worlds), 1) + 0.4, 4.8), layout="constrained")
    for axes, world in zip(drawn.subplots(1, max(len(worlds), 1), squeeze=False)[0], worlds, strict=False):
        _draw_world(axes, steps_of(results, world))
        axes.set(title=world, xscale="log", xlabel="KL of the first update")
        a_star_report.plain(axes)
    if worlds:
        drawn.axes[0].set_ylabel("return")
        drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    drawn.suptitle(
        "The same priors of GEM-BML+, plain and trust-region updates of several sizes\nvalidation tasks, 95 % intervals"
    )
    return drawn


def _draw_world(axes, steps: list[Step]) -> None:
    for kind, color in COLORS.items():
        mine = sorted((step for step in steps if step["kind"] == kind), key=lambda step: step["far"])
        for count, line, mark in ((1, "--", "o"), (-1, "-", "s")):
            found = np.array([study.mean_and_ci(step["returns"][..., count]) for step in mine]).reshape(-1, 2)
            last = "the last update" if count == -1 else "one"
            axes.errorbar(
                [step["far"] for step in mine], found[:, 0], yerr=found[:, 1], color=color, linestyle=line, marker=mark,
                markersize=4, linewidth=1.2, capsize=2, label=f"{kind}, after {last}",
            )  # fmt: skip
            for step, (mean, _) in zip(mine, found, strict=True):
                if count == -1:
                    words = f"{SHORT[kind]} {step['size']:g}"
                    axes.annotate(
                        words, (step["far"], mean), (3, 5), textcoords="offset points", fontsize="x-small", color=color
                    )
    if steps:
        before = steps[0]["returns"][..., 0].mean()
        axes.axhline(before, color="0.6", linewidth=1, linestyle=":", label="before any")


def remarks(results: study.Results) -> list[str]:
    """In each world: the best size of either kind, and trust regions beside plain steps that go about as far."""
    said = []
    for world in worlds_of(results):
        steps = steps_of(results, world)
        plain, trust = ([step for step in steps if step["kind"] == kind] for kind in COLORS)
        if plain and trust:
            said += [f"{world}: {_best(plain, trust)} {_equally_far(plain, trust)}"]
        lost = len([name for name in results["curves"] if name.startswith(f"{world}/")]) - len(steps)
        if lost:
            said.append(f"{world}: {lost} of its steps left the finite numbers, and are shown nowhere.")
    if said:
        said.append(
            "Sizes are compared on the tasks on which they were measured, validation tasks, so the best of some is a little "
            "better here than it will be elsewhere, for either kind."
        )
    return said


def _called(step: Step) -> str:
    return f"{SHORT[step['kind']]} {step['size']:g}"


def _best(plain: list[Step], trust: list[Step]) -> str:
    """Of each kind, after all updates."""
    count = plain[0]["returns"].shape[-1] - 1
    value = lambda step: step["returns"][..., -1].mean()
    ours, theirs = max(plain, key=value), max(trust, key=value)
    means = [number(*study.mean_and_ci(step["returns"][..., -1])) for step in (ours, theirs)]
    mean, ci95 = study.mean_and_ci(theirs["returns"][..., -1] - ours["returns"][..., -1])
    return (
        f"after {times(count)} plain steps are best at {_called(ours)} ({means[0]}) and trust regions at {_called(theirs)} "
        f"({means[1]}); task by task the latter minus the former is {number(mean, ci95, signed=True)} "
        f"({study.verdict(mean, ci95)})."
    )


def _equally_far(plain: list[Step], trust: list[Step]) -> str:
    """Beside each bound the plain step whose first update goes the most nearly as far, if there is any."""
    parts = []
    for step in trust:
        near = min(plain, key=lambda other, step=step: abs(np.log(other["far"] / step["far"])))
        if abs(np.log(near["far"] / step["far"])) > np.log(ABOUT):
            continue
        mean, ci95 = study.mean_and_ci(step["returns"][..., 1] - near["returns"][..., 1])
        parts.append(
            f"{_called(step)} ({step['far']:.2g}) beside {_called(near)} ({near['far']:.2g}) "
            f"{number(mean, ci95, signed=True)} ({study.verdict(mean, ci95)})"
        )
    return f"Of first updates that go about as far (measured KL): {'; '.join(parts) or 'there are none'}."
