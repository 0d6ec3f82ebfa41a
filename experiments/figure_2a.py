"""The paper's Figure 2a on one task set: error and likelihood after 0..50 test steps, and how training went.

Two settings side by side: the paper's own hyper-parameters, and for each method the best that an equal search on validation
tasks found (`search`). Noise and widths of every method are calibrated on validation tasks; the test tasks are the same for all.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import regression, search, study
from experiments.regression import VARIANTS

SETTINGS = {"paper": "the paper's settings", "best": "best on validation"}
HARDLY = 0.8  # share of its error above which a method is said to hardly learn
NOT_IN_PAPER = ("gem-bml+last-layer", "maml, rates learned")  # they have no settings there
FROZEN = "gem-bml+, rates frozen"  # the best gem-bml+ without learned rates
# Okabe and Ito's colours; ours are solid, rivals dashed where colours repeat.
STYLES = {
    "gem-bml+": ("#0072B2", "-"),
    "gem-bml": ("#56B4E9", "-"),
    "gem-bml+last-layer": ("#000000", "-"),
    FROZEN: ("#0072B2", ":"),
    "maml": ("#D55E00", "--"),
    "maml, rates learned": ("#D55E00", ":"),
    "fomaml": ("#E69F00", "--"),
    "imaml": ("#999999", "--"),
    "reptile": ("#009E73", "--"),
    "bmaml": ("#CC79A7", "-."),
    "amortized-bml": ("#8B6914", "-."),
}


@dataclass(frozen=True)
class Settings:
    """One task set, both settings."""

    tasks: str
    seeds: tuple[int, ...] = (0, 1, 2)
    iterations: int = 40_000
    test_tasks: int = 600
    validation: int = 100
    at: tuple[int, ...] = regression.AT
    methods: tuple[str, ...] = (*VARIANTS, FROZEN)


def smoke(tasks: str) -> Settings:
    """Seconds, to see that it runs."""
    few = ("maml", "gem-bml+last-layer")
    return Settings(tasks, seeds=(0,), iterations=20, test_tasks=4, validation=4, at=(0, 1), methods=few)


def cells(settings: Settings) -> list[study.Cell]:
    """A method in a setting."""
    return [
        (setting, name)
        for setting in SETTINGS
        for name in settings.methods
        if setting == "best" or name not in (*NOT_IN_PAPER, FROZEN)
    ]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train on every seed and score."""
    setting, name = cell
    outcome = regression.train_and_judge(
        variant_of(setting, name, settings.tasks),
        tasks=settings.tasks,
        iterations=settings.iterations,
        seeds=settings.seeds,
        at=settings.at,
        num_tasks=settings.test_tasks,
        validation=settings.validation,
    )
    return {
        "rows": regression.rows(outcome.scores, setting=setting, method=name, at=settings.at),
        "curves": {"/".join(cell): regression.curves(outcome, at=settings.at)},
    }


def variant_of(setting: str, name: str, tasks: str) -> regression.Variant:
    """What a cell trains."""
    if setting == "paper":
        return regression.as_in_the_paper(name)
    if name == FROZEN:
        return search.changed(search.best("gem-bml+", tasks), {"widths": "frozen"})
    return search.best(name, tasks)


# --- what is shown ----------------------------------------------------------------------------------------------------


def shown(results: study.Results) -> list[dict[str, Any]]:
    """After ten steps, and the error after fifty."""
    last = max(results["settings"]["at"])
    step = 10 if 10 in results["settings"]["at"] else last
    words = [f"{word} after {step}" for word in ("MSE", "NLL", "CRPS", "coverage near", "coverage far")]
    return [row for row in results["rows"] if row["metric"] in (*words, f"MSE after {last}")]


def figure(results: study.Results) -> Figure:
    """Rows: settings. Columns: error by steps, likelihood by steps, training."""
    drawn = Figure(figsize=(14, 8), layout="constrained")
    grid = drawn.subplots(len(SETTINGS), 3, squeeze=False)
    for row, (setting, words) in enumerate(SETTINGS.items()):
        curves = {name: curve for name in STYLES if (curve := results["curves"].get(f"{setting}/{name}")) is not None}
        for name, curve in curves.items():
            _draw(grid[row], results, name, curve)
        for axes, field, title in zip(grid[row], ("mse", "nll", "training_mse"), TITLES, strict=True):
            axes.set_title(f"{words}: {title}")
            axes.grid(color="0.92")
            axes.spines[["top", "right"]].set_visible(False)
            _frame(axes, [curve[field] for curve in curves.values()], log=field != "nll")
        for axes in grid[row, :2]:
            axes.set_xscale("symlog", linthresh=5)
            axes.set_xticks([0, 1, 2, 3, 5, 10, 20, 50], ["0", "1", "2", "3", "5", "10", "20", "50"])
            axes.set(xlabel="test steps", xlim=(-0.3, 1.05 * max(results["settings"]["at"])))
        grid[row, 0].set_ylabel("mean squared error")
        grid[row, 1].set_ylabel("NLL per point")
        grid[row, 2].set(xlabel="thousand meta-iterations", ylabel="mean squared error on the query")
    handles = {
        label: handle for axes in grid.ravel() for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=6, frameon=False)
    drawn.suptitle(
        f"{results['settings']['tasks']}: mean and range over {len(results['settings']['seeds'])} seeds; "
        "curves that leave a panel at the top belong to runs in which some task ran away"
    )
    return drawn


TITLES = ("error on test tasks", "likelihood on test tasks", "meta-training")


def _draw(panels, results: study.Results, name: str, curve) -> None:
    style = {"color": STYLES[name][0], "linestyle": STYLES[name][1], "label": name}
    steps = np.asarray(curve["steps"])
    _band(panels[0], steps, curve["mse"], style)
    _band(panels[1], steps, curve["nll"], style)
    training = np.asarray(curve["training_mse"], float)
    _band(
        panels[2],
        (np.arange(training.shape[1]) + 1) * results["settings"]["iterations"] / training.shape[1] / 1000,
        training,
        style,
    )


def _band(axes, x, by_seed, style) -> None:
    values = np.asarray(by_seed, float)
    axes.plot(x, values.mean(axis=0), linewidth=1.8, **style)
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.1, linewidth=0)


def _frame(axes, curves, *, log: bool) -> None:
    """From the best to a little above where methods start: a run that went astray must not flatten the rest."""
    means = [np.asarray(curve, float).mean(axis=0) for curve in curves]
    if not means:
        return
    drawn = np.concatenate([np.ravel(np.asarray(curve, float)) for curve in curves])
    low = float(np.nanmin(drawn[drawn > 0] if log else drawn))  # a logarithm has no place for the others
    high = float(np.nanmedian([mean[0] for mean in means]))
    if log:
        axes.set(yscale="log", ylim=(0.7 * low, 2.5 * high))
    else:
        axes.set_ylim(low - 0.2, high + 0.3)


def remarks(results: study.Results) -> list[str]:
    """Whether the paper's words hold, and where they do not."""
    values = {(row["setting"], row["method"], row["metric"]): row["mean"] for row in results["rows"]}
    last = 10 if 10 in results["settings"]["at"] else max(results["settings"]["at"])
    sentences = [_learned(values, setting, last) for setting in SETTINGS]
    sentences += [_paired(results, "gem-bml+", rival, last) for rival in ("maml", "reptile", "maml, rates learned")]
    if "best/gem-bml+last-layer" in results["curves"]:
        sentences += [
            _paired(results, "gem-bml+last-layer", rival, last) for rival in ("maml", "reptile", "maml, rates learned")
        ]
    sentences += [_covered(values, name, last) for name in ("gem-bml+", "gem-bml+last-layer")]
    sentences.append(_astray(results, last))
    return [sentence for sentence in sentences if sentence]


def _learned(values, setting: str, step: int) -> str:
    share = {}
    for kind, method, metric in values:
        if kind == setting and metric == f"MSE after {step}":
            after, before = values[kind, method, metric], values[kind, method, "MSE after 0"]
            share[method] = float("nan") if None in (after, before) else after / before
    # Those that ran away are named elsewhere.
    share = {name: ratio for name, ratio in share.items() if np.isfinite(ratio)}
    failed = sorted(name for name, ratio in share.items() if ratio > HARDLY)
    words = ", ".join(f"{name} {ratio:.2g}" for name, ratio in sorted(share.items(), key=lambda item: item[1]))
    verdict = "all of these learn" if not failed else f"these stay above {HARDLY} and hardly learn: {', '.join(failed)}"
    return f"With {SETTINGS[setting]}, error after {step} steps as a share of the error before any: {words}; {verdict}."


def _paired(results: study.Results, ours: str, rival: str, step: int) -> str:
    pair = [results["curves"].get(f"best/{name}") for name in (ours, rival)]
    if None in pair:
        return ""
    parts = []
    for field in ("nll", "crps"):
        mine, theirs = (np.asarray(curve[f"task_{field}"], float) for curve in pair)
        mean, over_tasks = study.mean_and_ci(mine - theirs)
        place = pair[0]["steps"].index(step)
        mine, theirs = (np.asarray(curve[field], float)[:, place, None] for curve in pair)  # a number a seed
        ci95 = float(np.hypot(over_tasks, study.mean_and_ci(mine - theirs)[1]))
        verdict = "better" if mean + ci95 < 0 else "worse" if mean - ci95 > 0 else "no clear difference"
        parts.append(f"{field.upper()} {mean:+.3f} ± {ci95:.3f} ({verdict})")
    return f"{ours} against {rival}, both at their best, task by task after {step} steps: {', '.join(parts)}."


def _covered(values, name: str, step: int) -> str:
    near, far = (values.get(("best", name, f"coverage {place} after {step}")) for place in ("near", "far"))
    if near is None or far is None:
        return ""
    inside = all(0.85 <= value <= 0.95 for value in (near, far))
    return (
        f"90 % intervals of {name} cover {near:.3f} near and {far:.3f} far from the support: "
        f"{'both' if inside else 'not both'} within 0.85 and 0.95."
    )


def _astray(results: study.Results, step: int) -> str:
    """Where means are missing, and why."""
    counts = {
        name.replace("/", ": "): sum(value is None for value in curve["task_mse"])
        for name, curve in results["curves"].items()
    }
    lost = [f"{name} {count}" for name, count in counts.items() if count]
    total = results["settings"]["test_tasks"]
    return (
        f"Test tasks, of {total}, that ran away to infinity by step {step} on some seed: {', '.join(lost) or 'none'}."
    )
