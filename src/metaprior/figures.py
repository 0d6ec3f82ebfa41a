"""Figures of predictions: truth, points, mean and bands. Drawn without a window and without pyplot's global state."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metaprior.checkpoints import write_atomically
from metaprior.predict import Predictive
from metaprior.types import Data

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#000000", "#666666"
BANDS = ((0.9, 0.18), (0.5, 0.32))  # level and opacity, the wide one beneath
Points = Float[np.ndarray, " N"]


class Panel(NamedTuple):
    """What is drawn of one prediction. Curves and bands are over the inputs `x`, in rising order."""

    x: Points
    mean: Points
    bands: Mapping[float, tuple[Points, ...]]  # level -> lower and upper edge
    functions: Float[np.ndarray, "F N"]
    support_x: Float[np.ndarray, " K"]
    support_y: Float[np.ndarray, " K"]
    truth: Points | None = None


def panel(
    x: Points, predictive: Predictive, support: Data, *, truth: Points | None = None, num_functions: int = 5
) -> Panel:
    """From a predictive at inputs `x`: one input, first output."""
    column = lambda array: np.asarray(array)[..., 0]
    edges = {level: tuple(column(edge) for edge in predictive.interval(level)) for level, _ in BANDS}
    functions = column(predictive.functions[:num_functions])
    return Panel(x, column(predictive.moments()[0]), edges, functions, column(support.x), column(support.y), truth)


def draw(axes: Axes, panel: Panel) -> None:
    """One panel: bands beneath, points on top."""
    for level, opacity in BANDS:
        low, high = panel.bands[level]
        label = f"{level:.0%} band".replace("%", " %")
        axes.fill_between(panel.x, low, high, color=BLUE, alpha=opacity, linewidth=0, label=label)
    for index, function in enumerate(panel.functions):
        label = "sampled functions" if index == 0 else None
        axes.plot(panel.x, function, color=BLUE, linewidth=0.8, alpha=0.5, label=label)
    if panel.truth is not None:
        axes.plot(panel.x, panel.truth, color=BLACK, linewidth=1.2, linestyle="--", label="truth")
    axes.plot(panel.x, panel.mean, color=BLUE, linewidth=2, label="mean")
    if panel.support_x.size:
        dots = axes.plot(panel.support_x, panel.support_y, "o", color=ORANGE, markersize=7, label="support points")
        dots[0].set(markeredgecolor="white", zorder=5)
    axes.set_xlim(panel.x.min(), panel.x.max())
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def prediction_figure(panel: Panel, *, title: str, x_label: str = "x", y_label: str = "y") -> Figure:
    """One task: support points, mean, bands of 50 % and 90 %, and a few functions that the prior thinks likely."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, panel)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


class History(NamedTuple):
    """A curve of training."""

    iteration: Float[np.ndarray, " N"]
    query_nll: Float[np.ndarray, " N"]


def quickstart_figure(
    tasks: Sequence[Sequence[Panel]], *, steps: Sequence[int], title: str, history: History | None = None
) -> Figure:
    """Unseen tasks (rows) after a few numbers of adaptation steps (columns), and how training went beneath.

    Args:
        tasks: one row of panels per task.
        steps: the number of steps of each column.
        title: of the whole figure.
        history: left out, there is no curve of training.
    """
    extra = [] if history is None else [0.6]
    figure = Figure(figsize=(3.6 * len(steps), 2.5 * len(tasks) + 1.8 * len(extra) + 0.9), layout="constrained")
    grid = figure.add_gridspec(len(tasks) + len(extra), len(steps), height_ratios=[1.0] * len(tasks) + extra)
    for row, panels in enumerate(tasks):
        first = None
        for place, one in enumerate(panels):
            first = axes = figure.add_subplot(grid[row, place], sharey=first)
            draw(axes, one)
            axes.set_title(_after(steps[place]) if row == 0 else "")
            axes.set_ylabel(f"unseen task {row + 1}" if place == 0 else "")
            axes.set_xlabel("x" if row == len(tasks) - 1 else "")
            axes.tick_params(labelbottom=row == len(tasks) - 1, labelleft=place == 0)
    figure.legend(*_labels(figure.axes), loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(title, fontsize="x-large")
    if history is not None:
        _draw_history(figure.add_subplot(grid[-1, :]), history)
    return figure


def save(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """As a PNG, wholly or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    write_atomically(path, buffer.getvalue())


def _draw_history(axes: Axes, history: History) -> None:
    axes.plot(history.iteration, history.query_nll, color=GREY, linewidth=1.5)
    axes.set(title="training", xlabel="meta-iteration", ylabel="query NLL")
    axes.grid(color="0.92", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _labels(axes: Sequence[Axes]):
    """Each label once."""
    handles = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
    return list(handles.values()), list(handles)


def _after(steps: int) -> str:
    return "before adaptation" if steps == 0 else f"after {steps} step{'s' if steps > 1 else ''}"
