"""What is shown of `a-star-omniglot`: the shape of the adapted weights, method by method, and all that `a-star` shows."""

from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import a_star_report, study
from experiments.figure_2a import STYLES

ROOT_TWO = "√2 = 1.41"


def shown(results: study.Results) -> list[dict[str, Any]]:
    """The shape, and errors before and after, without differences."""
    last = results["settings"]["steps"]
    words = [f"{word} after {step}" for word in ("NLL", "error in %") for step in (0, 1, last)]
    return [row for row in results["rows"] if row["metric"] in words or "after" not in row["metric"]]


def figure(results: study.Results) -> Figure:
    """Methods side by side on top, a row for each of them below."""
    curves = results["curves"]
    drawn = Figure(figsize=(14.5, 4.1 * (len(curves) + 1) + 1.2), layout="constrained")
    grid = drawn.subplots(len(curves) + 1, 3, squeeze=False)
    _draw_distances(grid[0, 0], curves)
    _draw_spectrum(grid[0, 1], curves)
    _draw_wrong(grid[0, 2], curves)
    for axes in grid[0]:
        a_star_report.plain(axes)
    for panels, (method, curve) in zip(grid[1:], curves.items(), strict=True):
        a_star_report.draw_method(panels, method, curve)
    handles = {h[1]: h[0] for axes in grid[1] for h in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False)
    drawn.suptitle(fill(a_star_report.headline(results), 140))
    return drawn


def _draw_distances(axes, curves) -> None:
    """Median, the middle half and nine tenths of the distances: filled from Θ, open between two θᵢ."""
    for place, (method, curve) in enumerate(curves.items()):
        color = STYLES[method][0]
        for offset, (word, filled) in zip((-0.16, 0.16), (("from Θ", color), ("between", "white")), strict=True):
            low, left, middle, right, high = curve["far"][word]
            axes.plot([low, high], [place + offset] * 2, color=color, linewidth=1)
            axes.plot([left, right], [place + offset] * 2, color=color, linewidth=3.5)
            dot = axes.plot(middle, place + offset, "o", color=color, markerfacecolor=filled, markersize=7)[0]
            dot.set_label(("θᵢ from Θ" if filled == color else "two θᵢ from each other") if place == 0 else None)
    axes.set(xscale="log", ylim=(len(curves) - 0.5, -0.5), title="how far adapted weights lie")
    axes.set(xlabel="distance / length of Θ (line: 5 to 95 %, bar: middle half)")
    a_star_report.plain_numbers(axes.xaxis)
    axes.set_yticks(range(len(curves)), list(curves))
    axes.legend(frameon=False, fontsize="small")


def _draw_spectrum(axes, curves) -> None:
    for method, curve in curves.items():
        color, line = STYLES[method]
        total = 100 * np.asarray(curve["spectrum"], float)
        axes.plot(np.arange(len(total)) + 1, total, color=color, linestyle=line, linewidth=1.8, label=method)
    axes.set(xscale="log", ylim=(0, 103), title="in how many directions they spread")
    axes.set(xlabel="principal directions", ylabel="share of squared distances from Θ, %")
    a_star_report.plain_numbers(axes.xaxis)
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def _draw_wrong(axes, curves) -> None:
    for method, curve in curves.items():
        color, line = STYLES[method]
        axes.plot(curve["steps"], curve["wrong"], color=color, linestyle=line, marker=".", linewidth=1.8, label=method)
    axes.set(yscale="log", title="from the trained Θ", xlabel="test steps", ylabel="wrong answers on new tasks, %")
    a_star_report.plain_numbers(axes.yaxis)
    axes.legend(frameon=False, fontsize="small")


# --- in words ---------------------------------------------------------------------------------------------------------


def remarks(results: study.Results) -> list[str]:
    """The shape, the methods against each other in it, and the paper's sentences one by one."""
    values = {(row["method"], row["metric"]): row["mean"] for row in results["rows"] if "after" not in row["metric"]}
    methods = list(results["curves"])
    said = [_shape(values, method, results["settings"]["adapted"]) for method in methods]
    words = "How much of the way all tasks have in common (none, were Θ the centre of A*, as the paper has it of MAML)"
    said.append(_ordered(values, methods, "share in common", words, as_share=True))
    said.append(_ordered(values, methods, "dimensions", "In how many directions the θᵢ of ever more tasks spread"))
    failed = [name for name, curve in results["curves"].items() if not all(curve["finite"])]
    said.append(f"Trainings that left the finite numbers: {', '.join(failed) or 'none'}.")
    return said + a_star_report.remarks(results)


def _shape(values, method: str, adapted: int) -> str:
    found = {metric: value for (name, metric), value in values.items() if name == method}
    if None in found.values():
        return f"{method}: some adaptations ran away, and with them the shape."
    return (
        f"{method}: the θᵢ lie {found['distance from Θ']:.3g} from Θ, {100 * found['distance / length of Θ']:.2g} % of its "
        f"length, and {found['distance between']:.3g} from each other, {found['between / from Θ']:.2f} times as far (ways that "
        f"have nothing in common: {ROOT_TWO}). {adapted} of them have a participation ratio of "
        f"{found['participation ratio']:.3g}; two directions hold {100 * found['share of two directions']:.0f} % of their "
        f"squared distances, the head {100 * found['share in the head']:.0f} %."
    )


def _ordered(values, methods, metric: str, words: str, *, as_share: bool = False) -> str:
    """From the least to the most."""
    known = {method: values[method, metric] for method in methods if values[method, metric] is not None}
    number = lambda value: f"{100 * value:.1f} %" if as_share else f"{value:.3g}"
    told = ", ".join(f"{method} {number(value)}" for method, value in sorted(known.items(), key=lambda item: item[1]))
    return f"{words}: {told or 'not known'}."
