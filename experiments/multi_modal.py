"""What a prior with one mode cannot do: one prior for sinusoids, lines and parabolas against one for each kind.

metaprior reproduce multi-modal --scale full
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from experiments import regression, search, study
from experiments.figure_2a import STYLES
from metaprior.evaluation import calibrate_steps, scores
from metaprior.settings import Setup
from metaprior.tasks import get as get_tasks

MIXTURE = "mixture"
KINDS = {"sinusoid": "sinusoids", "lines": "lines", "parabolas": "parabolas"}
HIGHEST = 30.0  # error that is shown: what ran away must not flatten the rest
CHOSEN_ON = "sinusoid"  # whose search the rates are taken from


@dataclass(frozen=True)
class Settings:
    """Priors are trained with ten points a task and tested with fewer, too."""

    seeds: tuple[int, ...] = (0, 1, 2)
    iterations: int = 40_000
    methods: tuple[str, ...] = ("gem-bml+", "gem-bml+last-layer", "maml", "reptile")
    shots: tuple[int, ...] = (2, 3, 5, 10)
    steps: int = 10
    """Test steps."""
    test_tasks: int = 300
    """Of each kind."""
    validation: int = 100


SMOKE = Settings(seeds=(0,), iterations=10, methods=("maml",), shots=(3,), steps=2, test_tasks=4, validation=4)


def cells(settings: Settings) -> list[study.Cell]:
    """A method trained on the mixture or on one kind."""
    return [(name, tasks) for name in settings.methods for tasks in (MIXTURE, *KINDS)]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train once, test on every kind that was seen, with every number of points."""
    name, trained_on = cell
    setup = regression.set_up(search.best(name, CHOSEN_ON), tasks=trained_on, iterations=settings.iterations)
    states, _, finite = regression.train(setup, settings.seeds)
    rows, curves = [], {}
    for shots in settings.shots:
        for kind in KINDS if trained_on == MIXTURE else (trained_on,):
            found = judge(settings, setup, states, trained_on, kind, shots)
            who = f"{name}, prior of {'all kinds' if trained_on == MIXTURE else 'its kind'}"
            for field, word in (("mse", "MSE"), ("nll", "NLL")):
                mean, ci95 = study.mean_and_ci(getattr(found, field)[..., 0])
                rows.append(
                    study.row(setting=KINDS[kind], method=who, metric=f"{word}, {shots} points", mean=mean, ci95=ci95)
                )
            by_seed = np.round(found.mse[..., 0].astype(float).mean(axis=1), 6)
            curves[f"{name}/{trained_on}/{kind}/{shots}"] = {"mse": by_seed, "finite": [bool(f) for f in finite]}
    return {"rows": rows, "curves": curves}


def judge(settings: Settings, setup: Setup, states, trained_on: str, kind: str, shots: int):
    """Scores on one kind; calibrated on the tasks the prior was made for, since nobody says which kind is coming."""
    own, asked = (setup._replace(tasks=get_tasks(tasks, shots=shots)) for tasks in (trained_on, kind))
    at = (settings.steps,)

    def one_seed(state):
        calibration = calibrate_steps(own, state, at=at, num_tasks=settings.validation)
        return scores(asked, state, calibration, at=at, num_tasks=settings.test_tasks)

    return jax.tree.map(np.asarray, jax.jit(lambda states: jax.lax.map(one_seed, states))(states))


def shown(results: study.Results) -> list[dict[str, Any]]:
    """The most points."""
    most = max(results["settings"]["shots"])
    return [row for row in results["rows"] if row["metric"].endswith(f" {most} points")]


def figure(results: study.Results) -> Figure:
    """Error against points, one panel a kind: one prior for all, dashed, and one for the kind."""
    settings = results["settings"]
    drawn = Figure(figsize=(12, 4.4), layout="constrained")
    grid = drawn.subplots(1, len(KINDS))
    for axes, (kind, words) in zip(grid, KINDS.items(), strict=True):
        for name in settings["methods"]:
            for trained_on, line in ((kind, "-"), (MIXTURE, "--")):
                values = [
                    study.average(results["curves"][f"{name}/{trained_on}/{kind}/{k}"]["mse"])
                    for k in settings["shots"]
                ]
                label = f"{name}, {'all kinds' if trained_on == MIXTURE else 'this kind'}"
                axes.plot(settings["shots"], values, line, color=STYLES[name][0], marker="o", markersize=4, label=label)
        axes.set(title=words, xlabel="points of the new task", xscale="log", yscale="log")
        if axes.get_ylim()[1] > HIGHEST:
            axes.set_ylim(top=HIGHEST)
        axes.set_xticks(settings["shots"], [str(k) for k in settings["shots"]])
        axes.minorticks_off()
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_ylabel(f"mean squared error after {settings['steps']} steps")
    drawn.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    drawn.suptitle(
        "One prior for three kinds of curves (dashed) against a prior for each kind (solid)\n"
        "curves that leave at the top, or have no dot: some task ran away"
    )
    return drawn


def remarks(results: study.Results) -> list[str]:
    """The price of one mode, by method."""
    settings, sentences = results["settings"], []
    for name in settings["methods"]:
        parts = []
        for kind, words in KINDS.items():
            ratio = [
                study.average(results["curves"][f"{name}/{MIXTURE}/{kind}/{k}"]["mse"])
                / max(study.average(results["curves"][f"{name}/{kind}/{kind}/{k}"]["mse"]), 1e-12)
                for k in settings["shots"]
            ]
            kept = [value for value in ratio if np.isfinite(value)]
            parts.append(f"{words} {min(kept):.2g} to {max(kept):.2g}" if kept else f"{words} none, some task ran away")
        sentences.append(
            f"{name}: error of the common prior over that of the kind's own, by number of points: {', '.join(parts)}."
        )
    sentences.append(
        f"Rates are those chosen on {CHOSEN_ON}; priors of a single kind are calibrated on that kind, the common prior on all."
    )
    return sentences


STUDY, run = study.declare(
    __name__,
    title="Several kinds of tasks (Section 2.3)",
    paper="Where tasks come in several kinds, one small neighbourhood of good weights may not exist; mixtures are future work.",
    full=Settings(),
    smoke=SMOKE,
)
