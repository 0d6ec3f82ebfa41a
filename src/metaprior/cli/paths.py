"""What an agent did before and after it adapted, as a picture: paths in the plane, or a speed over time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metaprior.figures import BLACK, BLUE, GREY, ORANGE
from metaprior.policies import AdaptedPolicy
from metaprior.rl.cheetah import GOALS
from metaprior.rl.named import Asked

SHOWN = 6  # trajectories of each panel
SPEED = 8  # which number of a cheetah's observation is its speed along the track


def picture(adapted: AdaptedPolicy, asked: Asked, *, environment: str, title: str) -> Figure:
    """Panels side by side: before adaptation, and after each update."""
    means = np.asarray(adapted.returns).mean(axis=1)
    figure = Figure(figsize=(3.1 * max(len(means), 2), 4.2), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, len(means), sharex=True, sharey=True, squeeze=False)[0]
    speeds = partial(_draw_speeds, velocity=environment == GOALS["velocity"].name)
    draw = speeds if environment in [goal.name for goal in GOALS.values()] else _draw_paths
    for number, (axes, mean) in enumerate(zip(panels, means, strict=True)):
        draw(axes, np.asarray(adapted.lived.observations[number]), np.asarray(adapted.lived.mask[number]), asked.task)
        when = "before adaptation" if number == 0 else f"after {number} update{'s' if number > 1 else ''}"
        axes.set_title(f"{when}\nmean return {f'{mean:,.1f}'.replace('-', '−')}", fontsize="medium")
        axes.label_outer()
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title, fontsize="large")
    return figure


def _draw_paths(axes: Axes, seen: Float[np.ndarray, "N H O"], mask: Float[np.ndarray, "N H"], task: Any) -> None:
    goal = np.asarray(task.position)
    for index, (path, counted) in enumerate(zip(seen[:SHOWN], mask, strict=False)):
        path = path[: int(counted.sum()) + 1]  # what has ended stands where its last step led
        axes.plot(*path.T, color=BLUE, linewidth=0.6, alpha=0.35, label="paths" if index == 0 else None)
    axes.plot(*seen.mean(axis=0).T, color=BLACK, linewidth=2, label="mean of all paths")
    axes.plot(0, 0, "o", color=BLACK, markersize=6, label="start", zorder=5)
    axes.plot(*goal, "*", color=ORANGE, markersize=16, markeredgecolor="white", label="goal", zorder=6)
    axes.set_aspect("equal")
    axes.set_xlabel("x")
    axes.set_ylabel("y")


def _draw_speeds(
    axes: Axes, seen: Float[np.ndarray, "N H O"], mask: Float[np.ndarray, "N H"], task: Any, *, velocity: bool
) -> None:
    del mask  # cheetahs run for their whole time
    speeds, time = seen[:, :, SPEED], np.arange(seen.shape[1])
    for index, speed in enumerate(speeds[:SHOWN]):
        axes.plot(time, speed, color=GREY, linewidth=0.5, alpha=0.4, label="trajectories" if index == 0 else None)
    axes.plot(time, speeds.mean(axis=0), color=BLUE, linewidth=2, label="mean speed")
    if velocity:
        axes.axhline(float(task), color=ORANGE, linestyle="--", label="goal")
    else:
        axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("speed, m/s")
