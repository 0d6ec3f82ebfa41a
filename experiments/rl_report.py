"""Reinforcement learning, for people: the table and the figure. What is to be said about them is in `rl_remarks`."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments import a_star_report, study
from experiments.rl_remarks import remarks
from experiments.rl_settings import POLICIES, RETURNS, SCRATCH, TRUST
from metaprior.rl.navigation import REACH

__all__ = ["figure", "remarks", "shown"]

# Okabe and Ito's colours, and some of Tol's.
STYLES: dict[str, tuple[str, str, str]] = {
    "gem-bml+": ("#0072B2", "-", "o"),
    "gem-bml+natural": ("#999933", "-.", "h"),
    "gem-bml+rates": ("#0072B2", ":", "v"),
    "gem-bml+trpo": ("#0072B2", "--", "^"),
    "gem-bml+two": ("#332288", "-", "P"),
    "gem-bml+late": ("#CC79A7", "-", "*"),
    "gem-bml+queries": ("#332288", "--", "p"),
    "gem-bml+short": ("#88CCEE", ":", "<"),
    "gem-bml+long": ("#88CCEE", "--", ">"),
    "gem-bml": ("#56B4E9", "-", "s"),
    "reptile": ("#009E73", "-", "D"),
    "maml": ("#D55E00", "-", "o"),
    "maml-trpo": ("#D55E00", "--", "^"),
    "maml-two": ("#D55E00", ":", "v"),
    "fomaml": ("#E69F00", "-", "s"),
    "pretrain": ("#000000", "-", "X"),
    SCRATCH: ("#888888", "--", "x"),
}
GOALS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
DRAWN = ("gem-bml+", "pretrain")  # whose agents are shown
BANDS = ("gem-bml+", "gem-bml+two", "maml", "pretrain")  # whose seeds are shown: those of all would hide each other


def shown(results: study.Results) -> list[dict[str, Any]]:
    """All rows, returns first."""
    return [row for setting in (RETURNS, TRUST, POLICIES) for row in results["rows"] if row["setting"] == setting]


def figure(results: study.Results) -> Figure:
    """Learning curves, returns after each update, and what agents do before and after."""
    agents = [name for name in DRAWN if name in results["curves"]]
    drawn = Figure(figsize=(15, 5.2 + 3.6 * len(agents)), layout="constrained")
    grid = drawn.add_gridspec(1 + len(agents), 6, height_ratios=[1.25, *[1.0] * len(agents)])
    curves = [drawn.add_subplot(grid[0, 2 * place : 2 * place + 2]) for place in range(3)]
    _draw_learning(curves[0], results, by_steps=False)
    _draw_learning(curves[1], results, by_steps=True)
    _draw_returns(curves[2], results)
    is_plane = results["settings"]["environment"] == "rl-navigation"
    for line, name in enumerate(agents):
        (_draw_paths if is_plane else _draw_strips)(drawn, grid, line + 1, name, results["curves"][name]["shown"])
    drawn.legend(*curves[2].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    tasks, count = results["settings"]["test"]
    drawn.suptitle(
        f"{results['settings']['environment']}: {tasks} unseen tasks, updates of {count} trajectories, "
        f"{len(results['settings']['seeds'])} seeds"
    )
    return drawn


def _learned(results: study.Results) -> dict[str, Any]:
    return {name: results["curves"][name] for name in STYLES if name in results["curves"] and name != SCRATCH}


def _draw_learning(axes, results: study.Results, *, by_steps: bool) -> None:
    """The return after one update on validation tasks: means, and for some the range over seeds."""
    for name, curve in _learned(results).items():
        color, line, _ = STYLES[name]
        looks = np.asarray(curve["looks"], float)[:, :, 1]
        across = np.asarray(curve["iterations"], float) * (curve["steps_per_iteration"] / 1e6 if by_steps else 1)
        axes.plot(across, looks.mean(axis=0), color=color, linestyle=line, linewidth=1.6)
        if name in BANDS:
            axes.fill_between(across, looks.min(axis=0), looks.max(axis=0), color=color, alpha=0.12, linewidth=0)
    if by_steps:
        axes.set(
            xscale="log", xlabel="environment steps of meta-training, millions", title="the same, by what it costs"
        )
        a_star_report.plain_numbers(axes.xaxis)
    else:
        title = "learning, on validation tasks; bands: range over seeds"
        axes.set(xlabel="meta-iterations", ylabel="return after one update", title=title)
    _plain(axes)


def _draw_returns(axes, results: study.Results) -> None:
    """On test tasks, with 95 % intervals over tasks and seeds."""
    names = [name for name in STYLES if name in results["curves"]]
    for place, name in enumerate(names):
        mine = [row for row in results["rows"] if row["setting"] == RETURNS and row["method"] == name]
        color, line, mark = STYLES[name]
        across = np.arange(len(mine)) + 0.04 * (place - (len(names) - 1) / 2)
        means, widths = (np.asarray([row[word] for row in mine], float) for word in ("mean", "ci95"))
        axes.errorbar(
            across, means, yerr=widths, color=color, linestyle=line, marker=mark, markersize=5, linewidth=1.0,
            elinewidth=1.2, capsize=2, label=name,
        )  # fmt: skip
    axes.set_xticks(range(results["settings"]["updates"] + 1))
    axes.set(xlabel="updates", ylabel="return", title="returns on test tasks, 95 % intervals")
    _plain(axes)


def _plain(axes) -> None:
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _after(mark: str) -> str:
    return "before adaptation" if mark == "0" else f"after {mark} update{'s' if mark != '1' else ''}"


def _draw_paths(drawn: Figure, grid, line: int, name: str, paths) -> None:
    """One panel for each number of updates, one colour for each goal."""
    marks = list(paths[0]["after"])
    for place, mark in enumerate(marks):
        axes = drawn.add_subplot(grid[line, 2 * place : 2 * place + 2])
        for each, color in zip(paths, GOALS, strict=False):
            for path in each["after"][mark]:
                axes.plot(*np.asarray(path, float).T, color=color, linewidth=0.9, alpha=0.75)
            axes.plot(*each["task"], marker="*", color=color, markersize=14, markeredgecolor="black", linestyle="none")
        axes.plot(0, 0, marker="s", color="black", markersize=5)
        axes.add_patch(Rectangle((-REACH, -REACH), 2 * REACH, 2 * REACH, fill=False, color="0.7", linewidth=0.8))
        axes.set(xlim=(-0.85, 0.85), ylim=(-0.85, 0.85), aspect="equal", title=f"{name}, {_after(mark)}")
        axes.set(xticks=(-0.5, 0.0, 0.5), yticks=(-0.5, 0.0, 0.5))
        _plain(axes)


WIDE, HIGH = 1.9, 2.1  # room for one frame, in metres


def _draw_strips(drawn: Figure, grid, line: int, name: str, tasks) -> None:
    """Pictures of a cheetah side by side as time goes on, before adaptation above and after it below; a panel for each task."""
    width = 6 // len(tasks)
    for place, each in enumerate(tasks):
        axes = drawn.add_subplot(grid[line, width * place : width * (place + 1)])
        marks = [min(each["after"], key=int), max(each["after"], key=int)]
        for floor, mark in zip((HIGH, 0.0), marks, strict=True):
            _draw_strip(axes, each["after"][mark], floor)
            axes.text(-0.8, floor + 1.25, _after(mark), fontsize="small")
        goal = float(np.ravel(each["task"])[0])
        axes.set(title=f"{name}, task {goal:+.2g}: step and way", aspect="equal", ylim=(-0.4, 2 * HIGH - 0.3))
        axes.set_axis_off()


def _draw_strip(axes, frames, floor: float) -> None:
    """Limbs as lines; what is left of the way is written beneath, since the camera goes along."""
    axes.plot([-0.9, WIDE * (len(frames) - 0.5)], [floor] * 2, color="0.6", linewidth=0.8)
    for number, frame in enumerate(frames):
        ends = np.asarray(frame["ends"], float)
        way = ends[0, :, 0].mean()  # of the trunk, which comes first
        for (start, end), radius in zip(ends, frame["radii"], strict=True):
            across = np.array([start[0], end[0]]) - way + WIDE * number
            up = np.array([start[1], end[1]]) + floor
            axes.plot(across, up, color="#0072B2", alpha=0.8, linewidth=70 * radius, solid_capstyle="round")
        axes.text(WIDE * number, floor - 0.28, f"{frame['step']}: {way:.1f} m", ha="center", fontsize="x-small")
