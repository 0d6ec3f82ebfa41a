"""Whether meta-rates that were chosen by short trainings are the best of long ones, on validation classes.

`image-search` compares settings after a few hundred iterations, which favours large meta-rates; the tables train several times as
long. Here every method trains as long as in the table, at the inner rate that the search chose, with each of its meta-rates.

metaprior reproduce meta-rates --data-dir FOLDER        # on a GPU; a cell takes half an hour on a core
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from experiments import few_shot, image_search, images, meta_rates_report, omniglot, study
from metaprior.recipes import recipe
from metaprior.settings import Setup

SETTING = "5w1s"


@dataclass(frozen=True)
class Settings:
    """Trainings as in `trained`, with a seed that no table reports."""

    seeds: tuple[int, ...] = image_search.Settings.seeds
    trained: few_shot.Settings = omniglot.FULL
    methods: tuple[str, ...] = tuple(few_shot.VARIANTS)
    meta_rates: tuple[float, ...] = image_search.Settings.meta_rates
    validation: int = image_search.Settings.validation
    """Tasks on which temperatures are fitted."""
    judged: int = image_search.Settings.judged
    """Other tasks of the same classes, on which meta-rates are compared."""


SMOKE = Settings(
    trained=replace(omniglot.SMOKE, iterations=10, around=(("filters", 4),)),
    methods=("fomaml",),
    meta_rates=(3e-3, 1e-2),
    validation=4,
    judged=8,
)


def cells(settings: Settings) -> list[study.Cell]:
    """A method and a meta-rate."""
    return [(name, f"{rate:g}") for name, rate in product(settings.methods, settings.meta_rates)]


def put(settings: Settings, cell: study.Cell, protocol: images.Protocol | None = None) -> Setup:
    """The pieces of a cell: the recipe of the method, but for its meta-rate."""
    name, rate = cell
    variant = few_shot.VARIANTS[name]
    variant = variant._replace(changes={**variant.changes, "meta_rate": float(rate)}).within(settings.trained.around)
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
    """Which methods and meta-rates are tried decides nothing for one of them."""
    return replace(settings, trained=few_shot.decides(settings.trained), methods=(), meta_rates=())


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the training that is kept."""
    images.forget(put(settings, cell), settings.seeds)


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train, and ask on validation classes."""
    name, rate = cell
    trained = images.train(put(settings, cell), settings.seeds)
    found = images.judge(
        put(settings, cell, images.PROTOCOLS["paper"]), trained.states, steps=images.TEST_STEPS,
        num_tasks=settings.judged, validation=settings.validation, split="validation",
    )  # fmt: skip
    scores = {"accuracy": study.mean_and_ci(100 * found.accuracy), "NLL": study.mean_and_ci(found.nll)}
    words = f"{SETTING}, {length(settings, name):,} iterations, meta rate {rate}"
    rows = [
        study.row(setting=words, method=name, metric=f"validation {word}", mean=mean, ci95=ci95)
        for word, (mean, ci95) in scores.items()
    ]
    curve = {
        "meta_rate": float(rate),
        "of_the_table": recipe(settings.trained.tasks, name)["meta_rate"],
        "accuracy": study.finite(scores["accuracy"][0]),
        "nll": study.finite(scores["NLL"][0]),
        "finite": trained.finite,
        "iterations": length(settings, name),
        "query_nll": np.round(trained.query_nll.astype(float), 4),
        "task_accuracy": np.round(100 * np.asarray(found.accuracy, float).mean(axis=0), 2),
        "training_seconds": round(trained.seconds, 1),
    }
    return {"rows": rows, "curves": {"/".join(cell): curve}}


STUDY, run = study.declare(
    __name__,
    report=meta_rates_report,
    title="Meta-rates at the length of the tables, on validation classes",
    paper="The paper has one meta-rate for all images, 0.001, and does not say for how long it trains.",
    full=Settings(),
    smoke=SMOKE,
)
