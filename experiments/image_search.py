"""Hyper-parameters of few-shot images, chosen on validation classes: the same number of trainings for every method.

metaprior reproduce image-search --data-dir FOLDER                    # nine settings a method, three of a deep network, on a GPU
metaprior reproduce image-search --scale smoke --data-dir FOLDER

The winners are the defaults of the command line (`metaprior.recipes`). No image of a test class is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from experiments import image_search_report, images, study, trainings
from experiments.few_shot import DEEP, DEEP_NETWORK, VARIANTS
from experiments.image_search_report import winner, words
from experiments.images import PROTOCOLS, Sweep
from metaprior import methods
from metaprior.recipes import recipe
from metaprior.settings import Setup

# Of the inner rates that are tried, or of the noise of the exact last layer, which takes no steps. Written down here and not read
# from the recipes: those follow the winners, and a search is not to move when its result is taken. Where the
# best of a first search was the smallest or the largest rate, the centre was moved there and the method searched again, as
# `image_search_report.MOVED` says; not so those of gem-bml+, reptile and imaml on photographs and of maml on characters.
CENTRE: dict[str, dict[str, float]] = {
    "omniglot": {
        "gem-bml+": 1.0, "gem-bml+last-layer": 0.1, "gem-bml": 1.0, "maml": 1.0, "fomaml": 0.4, "reptile": 0.3, "imaml": 0.1,
        "amortized-bml": 0.12, "kl-chaser": 0.12, "bmaml": 0.3,
    },
    "miniimagenet": {
        "gem-bml+": 0.1, "gem-bml+last-layer": 0.2, "gem-bml": 0.03, "maml": 0.03, "fomaml": 0.03, "reptile": 0.1, "imaml": 0.1,
        "amortized-bml": 0.03, "kl-chaser": 0.03, "bmaml": 0.1,
    },
}  # fmt: skip
CHUNK = 200  # iterations of one call
# Methods with a deep network, whose iteration costs many times as much: the middle of the grid and its meta-rates, for a while.
DEEP_METHODS = {f"{name}, {DEEP}": name for name in ("gem-bml+last-layer", "maml")}
DEEP_ITERATIONS = 100
SEARCHED = VARIANTS | {called: VARIANTS[name].within(DEEP_NETWORK.items()) for called, name in DEEP_METHODS.items()}


@dataclass(frozen=True)
class Settings:
    """What is tried."""

    seeds: tuple[int, ...] = (100,)  # not one of those that tables report
    iterations: int = 600
    tasks: tuple[tuple[str, str], ...] = (("omniglot", "5w1s"), ("miniimagenet", "5w1s"))
    methods: tuple[str, ...] = tuple(SEARCHED)
    factors: tuple[float, ...] = (0.3, 1.0, 3.0)
    """Times the centre of the method."""
    meta_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    changes: tuple[tuple[str, Any], ...] = ()
    """Fields of the rows that differ from the recipes, for all."""
    around: tuple[tuple[str, Any], ...] = ()
    """Fields of the settings that differ from the defaults, for all."""
    validation: int = 200
    """Tasks on which temperatures are fitted."""
    judged: int = PROTOCOLS["paper"].tasks
    """Other tasks of the same classes, on which settings are compared."""


SMOKE = Settings(
    iterations=20, tasks=(("omniglot", "5w1s"),), methods=("fomaml",), changes=(("meta_batch", 2),),
    around=(("filters", 8),), validation=10, judged=20,
)  # fmt: skip


def cells(settings: Settings) -> list[study.Cell]:
    """A task set, its setting, a method; deep networks are for photographs."""
    return [
        (*pair, name)
        for pair, name in product(settings.tasks, settings.methods)
        if pair[0] == "miniimagenet" or name not in DEEP_METHODS
    ]


def grid(settings: Settings, cell: study.Cell) -> np.ndarray:
    """The points that are tried: inner rate, or noise, and meta-rate [points, 2]."""
    name = DEEP_METHODS.get(cell[2])
    factors = settings.factors if name is None else (1.0,)
    values = [float(f"{factor * CENTRE[cell[0]][name or cell[2]]:.3g}") for factor in factors]
    return np.array(list(product(values, settings.meta_rates)))


def put(settings: Settings, cell: study.Cell, point: Any, protocol: images.Protocol | None = None) -> Setup:
    """The pieces at a point, whose numbers may be traced. All else is as in the recipe."""
    tasks, setting, name = cell
    variant = SEARCHED[name]
    changes = {**variant.changes, **dict(settings.changes), **_changes(tasks, name, *point)}
    variant = variant._replace(changes=changes).within(settings.around)
    iterations = DEEP_ITERATIONS if name in DEEP_METHODS else settings.iterations
    return images.set_up(variant, tasks=tasks, setting=setting, iterations=iterations, protocol=protocol)


def _changes(tasks: str, name: str, value: Any, meta_rate: Any) -> dict[str, Any]:
    """Of the row: what a point means."""
    method = SEARCHED[name].method
    if methods.get(method).inference != "conjugate":
        return {"rate": value, "meta_rate": meta_rate}
    options = recipe(tasks, method).get("options", {})
    return {"options": {**options, "noise_std": value}, "meta_rate": meta_rate}


def sweep(settings: Settings, cell: study.Cell, protocol: images.Protocol | None = None) -> tuple[Sweep, list[int]]:
    """Every point with every seed, and the seeds."""
    points = grid(settings, cell)
    numbers = np.repeat(points, len(settings.seeds), axis=0)
    return Sweep(lambda point: put(settings, cell, point, protocol), numbers), list(settings.seeds) * len(points)


def rests_on(settings: Settings, cell: study.Cell) -> list[dict[str, Any]]:
    """The recipe of the method at every point."""
    return [images.identity(put(settings, cell, point)) for point in grid(settings, cell)]


def decides(settings: Settings) -> Settings:
    """Which methods are searched decides nothing for one of them."""
    return replace(settings, tasks=(), methods=())


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the trainings that are kept."""
    trainings.forget(*sweep(settings, cell))


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """All points in one program; a point that leaves the finite numbers with one seed, in training or in testing, is out."""
    trained = trainings.train(*sweep(settings, cell), chunk=None if cell[2] in DEEP_METHODS else CHUNK)
    found = images.judge(
        sweep(settings, cell, PROTOCOLS["paper"])[0], trained.states, steps=images.TEST_STEPS,
        num_tasks=settings.judged, validation=settings.validation, split="validation",
    )  # fmt: skip
    by_point = lambda scores: np.asarray(scores, float).reshape(-1, len(settings.seeds), settings.judged)
    tried, rows = judged(cell, grid(settings, cell), trained.finite, by_point(found.accuracy), by_point(found.nll))
    method = rests_on(settings, cell)[0]["method"]
    fixed = {field: value for field, value in method.items() if field not in tried[0]["changes"]}
    curve = {"tried": tried, "fixed": fixed, "training_seconds": round(trained.seconds, 1)}
    if cell[2] in DEEP_METHODS:
        curve["iterations"] = DEEP_ITERATIONS  # not as many as all others
    return {"rows": rows, "curves": {"/".join(cell): curve}}


def judged(
    cell: study.Cell, points: np.ndarray, finite: Sequence[bool], accuracy: np.ndarray, nll: np.ndarray
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was tried, for `best`, and rows: from scores [points, seeds, tasks]."""
    tasks, setting, name = cell
    tried, rows = [], []
    for point, ended, right, lost in zip(
        points.tolist(), np.split(np.array(finite), len(points)), accuracy, nll, strict=True
    ):
        out = 0.0 if ended.all() and np.isfinite(lost).all() else np.nan
        scores = {"accuracy": study.mean_and_ci(100 * right + out), "NLL": study.mean_and_ci(lost + out)}
        changes = _changes(tasks, name, *point)
        tried.append({"changes": changes, **{word.lower(): study.finite(mean) for word, (mean, _) in scores.items()}})
        rows += [
            study.row(
                setting=words(tasks, setting, changes), method=name, metric=f"validation {word}", mean=mean, ci95=ci95
            )
            for word, (mean, ci95) in scores.items()
        ]
    return tried, rows


@cache
def _results() -> study.Results:
    return study.load("image-search")


def best(tasks: str, setting: str, method: str) -> dict[str, Any]:
    """Fields of the row at the point of highest validation accuracy; where that is shared, of least NLL among those."""
    curve = _results()["curves"].get(f"{tasks}/{setting}/{method}", {"tried": []})
    if (found := winner(curve["tried"])) is None:
        raise ValueError(
            f"the search has no result for {method} on {setting} of {tasks}: run metaprior reproduce image-search"
        )
    return found["changes"]


STUDY, run = study.declare(
    __name__,
    title="Hyper-parameters of few-shot images chosen on validation classes",
    paper="The paper gives one table of hyper-parameters for each set of images and does not say how it was chosen.",
    full=Settings(),
    smoke=SMOKE,
    report=image_search_report,
)
