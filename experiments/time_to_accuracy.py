"""Accuracy against seconds of training, every method on one card.

metaprior reproduce time-to-accuracy --data-dir FOLDER
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from experiments import few_shot, images, study
from experiments.figure_2a import STYLES
from experiments.turns import turn
from metaprior.evaluation import calibrated_class_scores
from metaprior.meta import State, trainer
from metaprior.settings import Setup
from metaprior.training import initial_state

EASIER = (95.0, 97.0)  # goals on the way
CALIBRATED = 50  # tasks that the temperature of a look is fitted on, at most
DISTURBED = 2.0  # times as long as the quickest part, of the same work: no noise of a card


@dataclass(frozen=True)
class Settings:
    """Training stops now and then, the clock with it, and is looked at on validation classes."""

    seeds: tuple[int, ...] = (0,)
    tasks: str = "omniglot"
    setting: str = "5w1s"
    methods: tuple[str, ...] = tuple(few_shot.VARIANTS)
    iterations: int = 10_000
    looks: int = 20
    seconds: float = 40.0
    """No new look begins after so many seconds of training."""
    goal: float = 99.0
    """Accuracy in per cent whose time is reported."""
    around: tuple[tuple[str, Any], ...] = ()
    validation: int = 200


SMOKE = Settings(
    methods=("gem-bml+last-layer",), iterations=6, looks=3, goal=25.0, around=(("filters", 4),), validation=4
)


def cells(settings: Settings) -> list[study.Cell]:
    """A method."""
    return [(name,) for name in settings.methods]


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The recipe of the method, and all other settings."""
    return images.identity(_put(settings, cell))


def decides(settings: Settings) -> Settings:
    """Which methods are timed decides nothing for one of them."""
    return replace(settings, methods=())


def _put(settings: Settings, cell: study.Cell, protocol: images.Protocol | None = None) -> Setup:
    variant = few_shot.VARIANTS[cell[0]].within(settings.around)
    return images.set_up(
        variant, tasks=settings.tasks, setting=settings.setting, iterations=settings.iterations, protocol=protocol
    )


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train in parts of growing number; compilation and looks do not count."""
    setup, asked = _put(settings, cell), _put(settings, cell, images.PROTOCOLS["strict"])
    learn = trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch)
    pool = jax.device_put(setup.tasks.pool("train"))
    state = initial_state(setup, settings.seeds[0])
    part = settings.iterations // settings.looks
    compiled = jax.jit(lambda state, *pool: learn(state, part, *pool)[0]).lower(state, *pool).compile()
    look = looker(asked, state, settings.validation)
    seconds, accuracies, taken = [], [], 0.0
    for _ in range(settings.looks):
        with turn(alone=True):
            began = time.perf_counter()
            state = jax.block_until_ready(compiled(state, *pool))
            taken += time.perf_counter() - began
            accuracies.append(look(state))  # in this turn: it is not to slow down the training of another
        seconds.append(round(taken, 3))
        if taken > settings.seconds:
            break
    reached = next((s for s, a in zip(seconds, accuracies, strict=True) if a >= settings.goal), None)
    words = f"{settings.setting}, meta-batch {setup.learner.method.meta_batch}"
    rows = [
        study.row(setting=words, method=cell[0], metric=f"seconds to {settings.goal:g} %",
                  mean=float("nan") if reached is None else reached),
        study.row(setting=words, method=cell[0], metric="last accuracy on validation classes", mean=accuracies[-1]),
        study.row(setting=words, method=cell[0], metric="iterations a second", mean=part * len(seconds) / taken),
    ]  # fmt: skip
    return {"rows": rows, "curves": {cell[0]: {"seconds": seconds, "accuracy": np.round(accuracies, 3)}}}


def looker(setup: Setup, state: State, num_tasks: int) -> Callable[[State], float]:
    """State -> accuracy in per cent on validation classes, by one program for states like this one, compiled here."""
    pool = jax.device_put(setup.tasks.pool("validation"))

    def look(state, pool):
        return calibrated_class_scores(
            setup, state, at=(images.TEST_STEPS,), validation=min(num_tasks, CALIBRATED), num_tasks=num_tasks,
            seed=images.JUDGED_SEED["validation"], known=pool, asked=pool,
        ).accuracy.mean()  # fmt: skip

    compiled = jax.jit(look, compiler_options=images.without_trials(setup)).lower(state, pool).compile()
    return lambda state: 100 * float(compiled(state, pool))


def figure(results: study.Results) -> Figure:
    """Errors, so that the last per cent shows."""
    drawn = Figure(figsize=(8, 4.8), layout="constrained")
    axes = drawn.subplots()
    for name, curve in results["curves"].items():
        color, line = STYLES.get(name, ("0.5", ":"))
        error = np.maximum(100 - np.asarray(curve["accuracy"], float), 0.01)
        axes.plot(curve["seconds"], error, linestyle=line, color=color, marker=".", label=name)
    goal = results["settings"]["goal"]
    axes.axhline(100 - goal, color="0.7", linewidth=1)
    axes.set(xlabel="seconds of training", ylabel="error on validation classes, %", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):  # 5, not 5 × 10⁰
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes.grid(color="0.92")
    drawn.legend(loc="outside right center", frameon=False, fontsize="small")  # curves leave no corner free
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(
        f"{results['settings']['tasks']} {results['settings']['setting']}: error against time; line: {goal:g} %"
    )
    return drawn


def remarks(results: study.Results) -> list[str]:
    """Who gets there, who was stopped on the way, and whose clock cannot be trusted."""
    settings, curves = results["settings"], results["curves"]
    told = "; ".join(f"{goal:g} % {_arrivals(curves, goal)}" for goal in (*EASIER, settings["goal"]))
    sentences = [
        f"Seconds of training until validation classes are right: {told}. Compilation and looks are not counted."
    ]
    done = {name: settings["iterations"] // settings["looks"] * len(curve["seconds"]) for name, curve in curves.items()}
    if stopped := [f"{name} {count:,}" for name, count in done.items() if count < settings["iterations"]]:
        sentences.append(
            f"Stopped by the clock after {settings['seconds']:g} s, before the last of {settings['iterations']:,} iterations, "
            f"with meta-rates that had not decayed to the end: {', '.join(stopped)}."
        )
    slowest = {name: _slowest(curve["seconds"]) for name, curve in curves.items()}
    if late := [f"{name} ({factor:.1f} times)" for name, factor in slowest.items() if factor > DISTURBED]:
        sentences.append(
            "Disturbed: parts of one training are the same work, and the slowest took far longer than the quickest of "
            f"{', '.join(late)}. Something else computed meanwhile; undisturbed, these would be quicker."
        )
    return sentences


def _arrivals(curves: dict[str, Any], goal: float) -> str:
    """Who gets to an accuracy, and when, the first one first; the others are counted."""
    first = {
        name: next((s for s, a in zip(curve["seconds"], curve["accuracy"], strict=True) if a >= goal), None)
        for name, curve in curves.items()
    }
    told = [f"{name} {s:.1f}" for s, name in sorted((s, name) for name, s in first.items() if s is not None)]
    return ", ".join(told) + f" ({len(told)} of {len(first)} methods)" if told else "by none"


def _slowest(seconds: list[float]) -> float:
    """How many times as long as the quickest part the slowest took."""
    parts = np.diff([0.0, *seconds])
    return float(parts.max() / parts.min())


STUDY, run = study.declare(
    __name__,
    title="Accuracy against seconds of training",
    paper="The paper compares the time of one meta-step (Figure 2b), not that of a training.",
    full=Settings(),
    smoke=SMOKE,
)
