"""Inner steps in meta-training (App. C.2): 1, 2, 3, 5, 10 on sinusoids of frequency 0.5 to 1, all methods of Figure 2a.

metaprior reproduce inner-steps --scale full
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import regression, search, study
from experiments.figure_2a import SETTINGS, STYLES
from metaprior import methods

TASKS = "sinusoid-easier"
ERRORS = (0.1, 0.2, 0.5, 1, 2, 5)  # marked on the axis
CHOSEN_ON = "sinusoid-challenging"  # whose search the rates are taken from


@dataclass(frozen=True)
class Settings:
    """Steps of the first stage; the second has as many, where there is one."""

    seeds: tuple[int, ...] = (0, 1, 2)
    iterations: int = 40_000
    steps: tuple[int, ...] = (1, 2, 3, 5, 10)
    methods: tuple[str, ...] = regression.FIGURE_2A
    at: tuple[int, ...] = (0, 1, 10)
    """Test steps."""
    test_tasks: int = 600
    validation: int = 100


SMOKE = Settings(seeds=(0,), iterations=20, steps=(2,), methods=("maml",), at=(0, 1), test_tasks=4, validation=4)


def cells(settings: Settings) -> list[study.Cell]:
    """A method, in a setting, with a number of steps."""
    return [(setting, name, str(k)) for setting, name, k in product(SETTINGS, settings.methods, settings.steps)]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train with so many steps, test with ten."""
    setting, name, steps = cell
    outcome = regression.train_and_judge(
        variant_of(setting, name, int(steps)),
        tasks=TASKS,
        iterations=settings.iterations,
        seeds=settings.seeds,
        at=settings.at,
        num_tasks=settings.test_tasks,
        validation=settings.validation,
    )
    rows = regression.rows(outcome.scores, setting=f"{setting}, {steps} steps", method=name, at=settings.at)
    by_seed = np.round(outcome.scores.mse[..., -1].astype(float).mean(axis=1), 6)
    return {"rows": rows, "curves": {"/".join(cell): {"mse": by_seed, "finite": outcome.finite}}}


def variant_of(setting: str, name: str, steps: int) -> regression.Variant:
    """The method with its numbers of steps changed and nothing else."""
    variant = regression.as_in_the_paper(name) if setting == "paper" else search.best(name, CHOSEN_ON)
    two_stages = methods.get(variant.method, **variant.changes).second_stage != "none"
    return search.changed(variant, {"steps": (steps, steps if two_stages else 0)})


def shown(results: study.Results) -> list[dict[str, Any]]:
    """The error after the last test step."""
    return [row for row in results["rows"] if row["metric"] == f"MSE after {max(results['settings']['at'])}"]


def figure(results: study.Results) -> Figure:
    """Error against steps of training."""
    drawn = Figure(figsize=(11, 4.6), layout="constrained")
    grid, steps = drawn.subplots(1, 2, sharey=True), results["settings"]["steps"]
    last = max(results["settings"]["at"])
    for axes, (setting, words) in zip(grid, SETTINGS.items(), strict=True):
        for name in results["settings"]["methods"]:
            values = np.array([results["curves"][f"{setting}/{name}/{k}"]["mse"] for k in steps], float)
            color, line = STYLES[name]
            axes.plot(steps, values.mean(axis=1), color=color, linestyle=line, marker="o", label=name)
            axes.fill_between(steps, values.min(axis=1), values.max(axis=1), color=color, alpha=0.12, linewidth=0)
        axes.set(title=words, xlabel="inner steps in meta-training", xscale="log", yscale="log")
        axes.set_xticks(steps, [str(k) for k in steps])
        axes.minorticks_off()
        axes.set_yticks(ERRORS, [f"{error:g}" for error in ERRORS])
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_ylabel(f"mean squared error after {last} test steps")
    drawn.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    drawn.suptitle(
        f"Error by inner steps in training ({TASKS}; mean and range over {len(results['settings']['seeds'])} seeds; "
        "no dot where some task ran away)"
    )
    return drawn


def remarks(results: study.Results) -> list[str]:
    """From the fewest steps to the most, and where the best lies."""
    steps, sentences = results["settings"]["steps"], []
    for setting, words in SETTINGS.items():
        parts = []
        for name in results["settings"]["methods"]:
            means = {k: study.average(results["curves"][f"{setting}/{name}/{k}"]["mse"]) for k in steps}
            lost = [str(k) for k, mean in means.items() if not np.isfinite(mean)]
            kept = {k: mean for k, mean in means.items() if np.isfinite(mean)}
            told = (
                [f"{kept[k]:.2g} with {k}" for k in dict.fromkeys((min(kept), min(kept, key=lambda k: kept[k])))]
                if kept
                else []
            )
            told += [f"some task ran away with {' and '.join(lost)}"] if lost else []
            parts.append(f"{name} {', '.join(told)}")
        sentences.append(f"With {words}, error after {max(results['settings']['at'])} test steps: {'; '.join(parts)}.")
    sentences.append(
        f"Rates of the second setting are those chosen on {CHOSEN_ON} with at most five steps; they were not searched again."
    )
    return sentences


STUDY, run = study.declare(
    __name__,
    title="Inner steps in meta-training (App. C.2)",
    paper="Several inner steps are necessary for MAML to work on these tasks, and for the other methods alike.",
    full=Settings(),
    smoke=SMOKE,
)
