"""Whether settings that short trainings chose are the best of long ones, on validation classes.

`image-search` compares rates after a few hundred iterations, which may favour large ones, and leaves inner steps as they
are; the tables train several times as long. Here GEM-BML+, MAML and first-order MAML train as long as in the table: with
each of the meta-rates; with one inner step, as the authors of MAML take on 5-way tasks; and with that and a head that starts
elsewhere for each class, as theirs does, where ours share one start, so that a prior serves any number of classes.

metaprior reproduce long-trials --data-dir FOLDER        # on a GPU; a cell takes half an hour on a core
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from experiments import few_shot, image_search, images, long_trials_report, omniglot, study, trainings
from experiments.few_shot import ONE_STEP, OWN_HEAD
from metaprior import methods
from metaprior.recipes import recipe
from metaprior.settings import Setup

SETTING = "5w1s"
META_RATE = "meta rate "  # and a number


@dataclass(frozen=True)
class Settings:
    """Trainings as in `trained`, with a seed that no table reports."""

    seeds: tuple[int, ...] = image_search.Settings.seeds
    trained: few_shot.Settings = omniglot.FULL
    methods: tuple[str, ...] = ("gem-bml+", "maml", "fomaml")
    trials: tuple[str, ...] = (
        *(f"{META_RATE}{rate:g}" for rate in image_search.Settings.meta_rates),
        ONE_STEP,
        OWN_HEAD,
    )
    validation: int = image_search.Settings.validation
    """Tasks on which temperatures are fitted."""
    judged: int = image_search.Settings.judged
    """Other tasks of the same classes, on which trials are compared."""


SMOKE = Settings(
    trained=replace(omniglot.SMOKE, iterations=10, around=(("filters", 4),)),
    methods=("fomaml",),
    trials=(f"{META_RATE}0.01", ONE_STEP),
    validation=4,
    judged=8,
)


def cells(settings: Settings) -> list[study.Cell]:
    """A method and what is tried of it."""
    return [
        (name, trial)
        for name, trial in product(settings.methods, settings.trials)
        if trial.startswith(META_RATE) or _takes_one(methods.get(few_shot.VARIANTS[name].method))
    ]


def _takes_one(method: methods.Method) -> bool:
    """Whether its points take plain steps or tied ones: an exact head takes none, and what is to converge needs several."""
    return method.posterior == "delta" and method.inference in ("gradient", "preconditioned")


def changes(name: str, trial: str) -> dict[str, Any]:
    """Of the row, in the recipe of the method."""
    if trial.startswith(META_RATE):
        return {"meta_rate": float(trial.removeprefix(META_RATE))}
    return few_shot.one_step(few_shot.VARIANTS[name].method)


def put(settings: Settings, cell: study.Cell, protocol: images.Protocol | None = None) -> Setup:
    """The pieces of a cell."""
    name, trial = cell
    variant = few_shot.VARIANTS[name]
    around = {**dict(settings.trained.around), **few_shot.ASIDE.get(trial, {})}
    variant = variant._replace(changes={**variant.changes, **changes(name, trial)}).within(around.items())
    return images.set_up(
        variant, tasks=settings.trained.tasks, setting=SETTING, iterations=length(settings, name), protocol=protocol
    )


def length(settings: Settings, name: str) -> int:
    """Iterations of the method in the table."""
    return few_shot.iterations_of(settings.trained, (SETTING, "best", name))


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The recipe of the method, and all other settings."""
    return images.identity(put(settings, cell))


def decides(settings: Settings) -> Settings:
    """Which methods and trials there are decides nothing for one of them."""
    return replace(settings, trained=few_shot.decides(settings.trained), methods=(), trials=())


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the training that is kept."""
    trainings.forget(put(settings, cell), settings.seeds)


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train, and ask on validation classes."""
    name, trial = cell
    trained = trainings.train(put(settings, cell), settings.seeds)
    found = images.judge(
        put(settings, cell, images.PROTOCOLS["paper"]), trained.states, steps=images.TEST_STEPS,
        num_tasks=settings.judged, validation=settings.validation, split="validation",
    )  # fmt: skip
    scores = {"accuracy": study.mean_and_ci(100 * found.accuracy), "NLL": study.mean_and_ci(found.nll)}
    words = f"{SETTING}, {length(settings, name):,} iterations, {trial}"
    rows = [
        study.row(setting=words, method=name, metric=f"validation {word}", mean=mean, ci95=ci95)
        for word, (mean, ci95) in scores.items()
    ]
    known = {**recipe(settings.trained.tasks, few_shot.VARIANTS[name].method), **few_shot.VARIANTS[name].changes}
    changed = changes(name, trial)
    curve = {
        "trial": trial,
        "changes": changed,
        "of_the_table": all(known.get(field) == value for field, value in changed.items()),
        "accuracy": study.finite(scores["accuracy"][0]) if all(trained.finite) else None,
        "nll": study.finite(scores["NLL"][0]),
        "iterations": length(settings, name),
        "query_nll": np.round(trained.query_nll.astype(float), 4),
        "task_accuracy": np.round(100 * np.asarray(found.accuracy, float).mean(axis=0), 2),
        "training_seconds": round(trained.seconds, 1),
    }
    return {"rows": rows, "curves": {"/".join(cell): curve}}


STUDY, run = study.declare(
    __name__,
    report=long_trials_report,
    title="Trials as long as the tables, on validation classes",
    paper="The paper has one meta-rate for all images, 0.001, and does not say for how long it trains.",
    full=Settings(),
    smoke=SMOKE,
)
