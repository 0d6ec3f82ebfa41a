"""With how many inner steps to ask, on validation classes: one prior for all settings, and iMAML's, after more and more of them.

The table asks after ten, as the paper does. A prior that was trained with one image of each class meets five of them here, and
more steps than it was trained with. iMAML takes for granted that a task is solved, trains with 16 steps, and is asked after
fewer. No image of a test class is looked at. The fewest steps that cannot be told from the best are taken; a mean that is
higher by less than tasks can tell is no reason to take more.

metaprior reproduce adaptation-steps --data-dir FOLDER
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import few_shot, images, omniglot, study, trainings
from experiments.few_shot import LONGER, ONE_PRIOR
from experiments.images import PROTOCOLS
from metaprior import figures

METHOD, IMPLICIT = "gem-bml+", "imaml"
# The trainings of `omniglot` that are asked: by method and setting. Where there is a longer one, that.
KINDS = {
    METHOD: dict.fromkeys(omniglot.FULL.settings, ONE_PRIOR),
    IMPLICIT: {"5w1s": LONGER, "5w5s": LONGER, "20w1s": "best", "20w5s": "best"},
}
TAKEN = {METHOD: few_shot.MORE_STEPS, IMPLICIT: few_shot.SOLVED}  # whose rows are asked after what is found here
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
    """A setting; and a method, where it is another than GEM-BML+."""
    everywhere = settings.trained.settings
    others = [(setting, IMPLICIT) for setting in everywhere if IMPLICIT in settings.trained.methods]
    return [*((setting,) for setting in everywhere), *others]


def seeds_of(settings: Settings, cell: study.Cell) -> tuple[int, ...]:
    """Those of the training."""
    return few_shot.seeds_of(*_trained(settings, cell))


def _trained(settings: Settings, cell: study.Cell) -> tuple[few_shot.Settings, study.Cell]:
    name = _method("/".join(cell))
    return replace(settings.trained, seeds=settings.seeds), (cell[0], KINDS[name][cell[0]], name)


def _method(name: str) -> str:
    """Of a cell or curve."""
    return name.partition("/")[2] or METHOD


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
    trained = trainings.train(few_shot.put(trained_as, at), few_shot.seeds_of(trained_as, at))
    found = images.judge_at(
        few_shot.put(trained_as, at, PROTOCOLS["paper"]), trained.states, at=settings.at, num_tasks=settings.judged,
        validation=settings.validation, split="validation",
    )  # fmt: skip
    rows, curve = [], {}
    for place, steps in enumerate(settings.at):
        accuracy = 100 * np.asarray(found.accuracy, float)[:, :, place]
        mean, ci95 = study.mean_and_ci(accuracy)
        rows.append(
            study.row(setting=f"{cell[0]}, {steps} steps", method=at[2], metric=VALIDATION, mean=mean, ci95=ci95)
        )
        curve[str(steps)] = np.round(accuracy.mean(axis=0), 2)
    return {"rows": rows, "curves": {"/".join(cell): {"task_accuracy": curve}}}


def chosen(results: study.Results, method: str = METHOD) -> int:
    """The fewest steps that are not apart from the best: means over settings, differences task by task."""
    at = results["settings"]["at"]
    best = max(at, key=lambda steps: over_settings(results, steps, method).mean())
    for steps in at:
        gap = over_settings(results, best, method) - over_settings(results, steps, method)
        mean, ci95 = study.mean_and_ci(gap)
        if mean <= ci95:
            return steps
    return best


def over_settings(results: study.Results, steps: int, method: str = METHOD) -> np.ndarray:
    """Accuracy of every task, averaged over seeds and settings."""
    return np.mean([tasks[str(steps)] for tasks in by_setting(results, method).values()], axis=0)


def by_setting(results: study.Results, method: str) -> dict[str, dict[str, Any]]:
    """Accuracy of every task after each number of steps."""
    mine = {name.partition("/")[0]: curve for name, curve in results["curves"].items() if _method(name) == method}
    return {setting: curve["task_accuracy"] for setting, curve in mine.items()}


def figure(results: study.Results) -> Figure:
    """Errors against steps: a panel a method, a line a setting."""
    shown, at = [name for name in KINDS if by_setting(results, name)], results["settings"]["at"]
    drawn = Figure(figsize=(1 + 5 * len(shown), 4.4), layout="constrained")
    for axes, name in zip(drawn.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for setting, color in zip(
            by_setting(results, name), (figures.BLUE, figures.ORANGE, "tab:green", "0.4"), strict=False
        ):
            mine = [r for r in results["rows"] if r["method"] == name and r["setting"].startswith(f"{setting}, ")]
            errors, spread = [100 - row["mean"] for row in mine], [row["ci95"] for row in mine]
            axes.errorbar(at, errors, yerr=spread, marker="o", color=color, capsize=3, label=setting)
        axes.set(title=name, xlabel="inner steps when asked", xscale="log", ylim=(0, None))
        axes.set_xticks(at, [str(steps) for steps in at])
        axes.minorticks_off()
        axes.grid(color="0.92")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].set_ylabel("error on validation classes, %")
    drawn.suptitle("Priors asked after more and more steps; 95 % intervals")
    return drawn


def remarks(results: study.Results) -> list[str]:
    """What it comes to, and what the paper's number of steps leaves."""
    return [said for name in KINDS if by_setting(results, name) for said in _remarks(results, name)]


def _remarks(results: study.Results, method: str) -> list[str]:
    mine, usual, taken = chosen(results, method), images.TEST_STEPS, TAKEN[method]
    means = ", ".join(
        f"{steps}: {over_settings(results, steps, method).mean():.2f} %" for steps in results["settings"]["at"]
    )
    sentences = [
        f"{method}, mean accuracy over settings by the number of steps: {means}. The fewest that are not apart from the best, "
        f"task by task, are {mine}; rows *{taken}* of `omniglot` are asked after {few_shot.STEPS[taken]}."
    ]
    for setting, curve in by_setting(results, method).items():
        tasks = {steps: np.asarray(values, float) for steps, values in curve.items()}
        if mine != usual and str(usual) in tasks:
            mean, ci95 = study.mean_and_ci(tasks[str(mine)] - tasks[str(usual)])
            sentences.append(
                f"{method}, {setting}, {mine} steps instead of {usual}, task by task: {mean:+.2f} ± {ci95:.2f} points "
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
