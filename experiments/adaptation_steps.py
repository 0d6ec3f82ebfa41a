"""With how many inner steps to ask, on validation classes: one prior for all settings, after more and more of them.

The table asks after ten, as the paper does. A prior that was trained with one image of each class meets five of them here, and
more steps than it was trained with. No image of a test class is looked at. The fewest steps that cannot be told from the best
are taken; a mean that is higher by less than tasks can tell is no reason to take more.

metaprior reproduce adaptation-steps --data-dir FOLDER
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import few_shot, images, omniglot, study
from experiments.few_shot import ONE_PRIOR
from experiments.images import PROTOCOLS
from metaprior import figures

METHOD = "gem-bml+"
VALIDATION = "validation accuracy"


@dataclass(frozen=True)
class Settings:
    """The prior of `trained` that serves all settings, asked in each of them."""

    seeds: tuple[int, ...] = omniglot.FULL.seeds
    trained: few_shot.Settings = omniglot.FULL
    at: tuple[int, ...] = (5, 10, 20, 40)
    """Numbers of steps."""
    validation: int = 200
    """Tasks on which temperatures are fitted."""
    judged: int = PROTOCOLS["paper"].tasks
    """Other tasks of the same classes, on which numbers of steps are compared."""


SMOKE = Settings(
    seeds=(0,),
    trained=replace(omniglot.SMOKE, iterations=10, around=(("filters", 4), ("queries", 1))),
    at=(1, 2),
    validation=4,
    judged=8,
)


def cells(settings: Settings) -> list[study.Cell]:
    """A setting."""
    return [(setting,) for setting in settings.trained.settings]


def _trained(settings: Settings, cell: study.Cell) -> tuple[few_shot.Settings, study.Cell]:
    return replace(settings.trained, seeds=settings.seeds), (*cell, ONE_PRIOR, METHOD)


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The training."""
    return few_shot.rests_on(*_trained(settings, cell))


def decides(settings: Settings) -> Settings:
    """What else is trained decides nothing."""
    return replace(settings, trained=few_shot.decides(settings.trained))


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the training, which `omniglot` would use, too."""
    few_shot.forget(*_trained(settings, cell))


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train once for all cells, and ask on validation classes."""
    trained_as, at = _trained(settings, cell)
    trained = images.train(few_shot.put(trained_as, at), settings.seeds)
    found = images.judge_at(
        few_shot.put(trained_as, at, PROTOCOLS["paper"]), trained.states, at=settings.at, num_tasks=settings.judged,
        validation=settings.validation, split="validation",
    )  # fmt: skip
    rows, curve = [], {}
    for place, steps in enumerate(settings.at):
        accuracy = 100 * np.asarray(found.accuracy, float)[:, :, place]
        mean, ci95 = study.mean_and_ci(accuracy)
        rows.append(
            study.row(setting=f"{cell[0]}, {steps} steps", method=METHOD, metric=VALIDATION, mean=mean, ci95=ci95)
        )
        curve[str(steps)] = np.round(accuracy.mean(axis=0), 2)
    return {"rows": rows, "curves": {cell[0]: {"task_accuracy": curve}}}


def chosen(results: study.Results) -> int:
    """The fewest steps that are not apart from the best: means over settings, differences task by task."""
    at = results["settings"]["at"]
    best = max(at, key=lambda steps: over_settings(results, steps).mean())
    for steps in at:
        mean, ci95 = study.mean_and_ci(over_settings(results, best) - over_settings(results, steps))
        if mean <= ci95:
            return steps
    return best


def over_settings(results: study.Results, steps: int) -> np.ndarray:
    """Accuracy of every task, averaged over seeds and settings."""
    return np.mean([curve["task_accuracy"][str(steps)] for curve in results["curves"].values()], axis=0)


def figure(results: study.Results) -> Figure:
    """Errors against steps, a line a setting."""
    drawn = Figure(figsize=(7, 4.4), layout="constrained")
    axes = drawn.subplots()
    at = results["settings"]["at"]
    for setting, color in zip(results["curves"], (figures.BLUE, figures.ORANGE, "tab:green", "0.4"), strict=False):
        mine = [row for row in results["rows"] if row["setting"].startswith(f"{setting}, ")]
        errors, spread = [100 - row["mean"] for row in mine], [row["ci95"] for row in mine]
        axes.errorbar(at, errors, yerr=spread, marker="o", color=color, capsize=3, label=setting)
    axes.set(xlabel="inner steps when asked", ylabel="error on validation classes, %", xscale="log", ylim=(0, None))
    axes.set_xticks(at, [str(steps) for steps in at])
    axes.minorticks_off()
    axes.grid(color="0.92")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(f"{METHOD}: one prior, asked after more and more steps; 95 % intervals")
    return drawn


def remarks(results: study.Results) -> list[str]:
    """What it comes to, and what the paper's number of steps leaves."""
    mine, usual = chosen(results), images.TEST_STEPS
    means = ", ".join(f"{steps}: {over_settings(results, steps).mean():.2f} %" for steps in results["settings"]["at"])
    sentences = [
        f"Mean accuracy over settings by the number of steps: {means}. The fewest that are not apart from the best, task by "
        f"task, are {mine}; rows *{few_shot.MORE_STEPS}* of `omniglot` are asked after {few_shot.STEPS[few_shot.MORE_STEPS]}."
    ]
    for setting, curve in results["curves"].items():
        tasks = {steps: np.asarray(values, float) for steps, values in curve["task_accuracy"].items()}
        if mine != usual and str(usual) in tasks:
            mean, ci95 = study.mean_and_ci(tasks[str(mine)] - tasks[str(usual)])
            sentences.append(
                f"{setting}, {mine} steps instead of {usual}, task by task: {mean:+.2f} ± {ci95:.2f} points "
                f"({study.verdict(mean, ci95)})."
            )
    return sentences


STUDY, run = study.declare(
    __name__,
    title="Inner steps when asked, on validation classes",
    paper="The paper asks after ten steps on all images (Table 5).",
    full=Settings(),
    smoke=SMOKE,
)
