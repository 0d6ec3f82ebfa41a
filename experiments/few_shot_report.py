"""Few-shot classification, for people: the table, the figure and what is to be said about them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import few_shot, image_search, paper, study
from experiments.images import PROTOCOLS
from metaprior import figures


def shown(results: study.Results) -> list[dict[str, Any]]:
    """Accuracies."""
    return [row for row in results["rows"] if row["metric"].startswith("accuracy")]


def figure(results: study.Results) -> Figure:
    """Accuracy with its interval, one panel a setting, two side by side; the paper's number as a tick."""
    settings = [
        s for s in results["settings"]["settings"] if any(r["setting"].startswith(f"{s},") for r in results["rows"])
    ]
    across = min(2, len(settings))
    lines = [settings[start : start + across] for start in range(0, len(settings), across)]
    heights = [1.0 + 0.33 * max(len(_names(results, setting)) for setting in line) for line in lines]
    drawn = Figure(figsize=(7.6 * across, sum(heights) + 1.2), layout="constrained")
    panels = drawn.subplots(len(lines), across, squeeze=False, height_ratios=heights)
    for axes, setting in zip(panels.flat, settings, strict=False):
        _draw(axes, results, setting)
    for axes in panels.flat[len(settings) :]:
        axes.set_axis_off()
    drawn.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=across, frameon=False)
    bars = "; bars: printed in the paper" if any(row["paper"] is not None for row in shown(results)) else ""
    drawn.suptitle(f"{results['settings']['tasks']}: accuracy in %, 95 % intervals{bars}")
    return drawn


def _names(results: study.Results, setting: str) -> list[str]:
    """What the lines of a panel are called."""
    return list(dict.fromkeys(_label(row) for row in shown(results) if row["setting"].startswith(f"{setting},")))


MARKS = {
    "paper": ("o", figures.BLUE),
    "views": ("D", "tab:green"),
    "strict": ("s", figures.ORANGE),
    "inductive": ("^", figures.GREY),
}


def _draw(axes, results: study.Results, setting: str) -> None:
    mine = [row for row in shown(results) if row["setting"].startswith(f"{setting},")]
    names = _names(results, setting)
    asked = [protocol for protocol in MARKS if any(row["metric"].endswith(f", {protocol}") for row in mine)]
    # What did not learn would squeeze all others into a corner: it is told in figures.
    left = _left(mine)
    for row in mine:
        place = names.index(_label(row))
        protocol = row["metric"].removeprefix("accuracy, ")
        mark, color = MARKS[protocol]
        offset = 0.18 * (asked.index(protocol) - (len(asked) - 1) / 2)
        if row["mean"] is not None and row["mean"] < left:  # all of a line beside each other
            beside = (4 + 38 * asked.index(protocol), 0)
            axes.annotate(f"◂ {row['mean']:.1f}", (left, place), beside, textcoords="offset points", color=color,
                          va="center", fontsize="small")  # fmt: skip
        elif row["mean"] is not None:
            axes.errorbar(
                row["mean"], place + offset, xerr=row["ci95"], fmt=mark, color=color, markersize=5, capsize=2,
                label=PROTOCOLS[protocol].words if place == 0 else None,
            )  # fmt: skip
        if row["paper"] is not None:
            axes.plot([row["paper"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(title=setting)
    axes.set_xlim(left=left)
    axes.grid(axis="x", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)


def _left(rows: Sequence[Mapping[str, Any]]) -> float:
    """Where the axis begins: a little below the lowest mark of those that are not as printed."""
    ours = [
        row
        for row in rows
        if row["mean"] is not None and not any(word in row["setting"] for word in (PRINTED, few_shot.PRINTED_ONCE))
    ]
    low = min((row["mean"] - (row["ci95"] or 0) for row in ours), default=0.0)
    return low - 0.05 * (max((row["mean"] for row in ours), default=100.0) - low) - 0.1


PRINTED = "the paper’s settings"


def _label(row: Mapping[str, Any]) -> str:
    _, kind, *mark = row["setting"].split(", ")
    words = {"best": "", PRINTED: ", as printed", few_shot.PRINTED_ONCE: ", as printed, asked after one step"}
    return row["method"] + words.get(kind, f", {kind}") + "".join(f", {part}" for part in mark)


def remarks(results: study.Results) -> list[str]:
    """Against the paper's numbers, and how seeds and time were spent."""
    sentences = []
    for row in shown(results):
        printed = _printed(results, row)
        if printed is not None and row["mean"] is not None:
            gap, allowed = paper.distance(printed, row["mean"], row["ci95"])
            verdict = "within both intervals of" if abs(gap) <= allowed else "above" if gap > 0 else "below"
            who = _label(row) + (", answers averaged over views" if row["metric"].endswith("views") else "")
            sentences.append(
                f"{row['setting'].split(',')[0]}, {who}: {row['mean']:.2f} ± {row['ci95'] or 0:.2f}, {verdict} the "
                f"{printed.text} that the paper prints{_for_whom(row)} ({gap:+.2f})."
            )
    failed = [name for name, curve in results["curves"].items() if not all(curve["finite"])]
    sentences.append(f"Trainings that left the finite numbers: {', '.join(failed) or 'none'}.")
    return [*sentences, *_rounding(results), *_effort(results), *_unsearched(results)]


OURS = "gem-bml+last-layer"  # GEM-BML+ as well, with a head that is inferred exactly: the paper has no row of its own for it


def _printed(results: study.Results, row: Mapping[str, Any]) -> paper.Printed | None:
    """The paper's number for a row; for GEM-BML+ with an exact head, that of GEM-BML+ in the same setting and protocol."""
    setting, kind, *_ = row["setting"].split(", ")
    ours = row["method"] == OURS and kind in few_shot.REPEATED_KINDS
    if row["paper"] is None and not (ours and row["metric"].split(", ")[1] in ("paper", "views")):
        return None
    table = paper.ACCURACY.get(results["settings"]["tasks"], {})
    return table.get("gem-bml+" if ours else row["method"], {}).get(setting)


def _for_whom(row: Mapping[str, Any]) -> str:
    return " for GEM-BML+" if row["method"] == OURS else ""


ROUNDED = ("float32", "bf16")  # kinds of cells: how factors of products are rounded


def _rounding(results: study.Results) -> list[str]:
    """What precision does to accuracy, task by task; what a device does if nobody says otherwise is that of the best settings."""
    curves, told = results["curves"], []
    for name, curve in curves.items():
        setting, kind, method = name.split("/")
        if kind not in ROUNDED or (usual := curves.get(f"{setting}/best/{method}")) is None:
            continue
        parts = []
        for protocol, accuracy in curve["task_accuracy"].items():
            gaps = np.asarray(accuracy, float) - np.asarray(usual["task_accuracy"][protocol], float)
            gap, allowed = study.mean_and_ci(gaps[None])
            parts.append(f"{protocol} {gap:+.2f} ± {allowed:.2f} ({study.verdict(gap, allowed)})")
        told.append(
            f"{setting}, {method}, {kind} minus what the device does by default (tf32 on a card), in per cent, task by task, "
            f"seeds of the two {len(curve['seeds'])} and {len(usual['seeds'])}, what seeds do not counted: {', '.join(parts)}."
        )
    return told


def _effort(results: study.Results) -> list[str]:
    """Seeds and iterations of the trainings."""
    settings, longer, several = results["settings"], {}, set()
    for name, curve in results["curves"].items():
        if len(curve["seeds"]) > 1:
            several.add(name.split("/")[2])
        if curve["iterations"] > settings["iterations"]:
            longer.setdefault(curve["iterations"], []).append(name.replace("/", " "))
    seeds = (
        f"{', '.join(sorted(several))} have {len(settings['seeds'])} seeds, the other methods one." if several else ""
    )
    more = "".join(f"; {count:,}: {', '.join(names)}" for count, names in longer.items())
    said = f"Iterations: {settings['iterations']:,} where a row does not say fewer{more}."
    return [seeds or "One seed.", said]


def _unsearched(results: study.Results) -> list[str]:
    """Methods in their best settings of which the search knows nothing."""
    tasks, missing = results["settings"]["tasks"], []
    setting = dict(image_search.Settings().tasks)[tasks]
    for name in dict.fromkeys(name.split("/")[2] for name in results["curves"] if name.split("/")[1] == "best"):
        try:
            image_search.best(tasks, setting, name)
        except ValueError:
            missing.append(name)
    return [f"Rates not searched on these images, but places to start from: {', '.join(missing)}."] if missing else []
