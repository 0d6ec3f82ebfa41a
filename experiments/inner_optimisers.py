"""The free choice of the inner optimiser (Section 3.1): plain steps, Adam, learned rates, natural gradients, for GEM-BML+.

metaprior reproduce inner-optimisers --data-dir FOLDER
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from experiments import images, study, trainings
from experiments.images import PROTOCOLS, Sweep, Variant
from metaprior import figures
from metaprior.settings import Setup

_POINT: dict[str, Any] = {"posterior": "delta", "widths": "frozen", "rates": "none", "draw_steps": False}
# Plain steps and Adam take a point as posterior, without a pull towards the prior; natural steps need a Gaussian.
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {**_POINT, "inference": "gradient", "optimizer": "sgd", "options": {"pull": False}},
    "adam, fresh for each task": {**_POINT, "inference": "gradient", "optimizer": "adam", "options": {"pull": False}},
    "adam, second moment shared": {
        **_POINT, "inference": "gradient", "optimizer": "shared-adam", "options": {"pull": False},
    },
    "rates learned": {"inference": "preconditioned"},
    "natural": {
        "posterior": "mean-field", "inference": "natural_vi", "widths": "frozen", "rates": "none", "draw_steps": False,
        "std": 0.05, "temperature": 0.01, "options": {"num_probes": 4},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Every optimiser with an equal number of rates, chosen on validation classes."""

    seeds: tuple[int, ...] = (0,)
    tasks: str = "omniglot"
    setting: str = "5w1s"
    iterations: int = 2_000
    optimisers: tuple[str, ...] = tuple(OPTIMISERS)
    shares: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    """Rates tried, as multiples of `rates`."""
    steps: tuple[int, ...] = (1, 5)
    around: tuple[tuple[str, Any], ...] = ()
    validation: int = 200
    test_tasks: int = 600


RATES = {
    "sgd": 0.4,
    "adam, fresh for each task": 0.01,
    "adam, second moment shared": 0.003,
    "rates learned": 1.0,
    "natural": 0.03,
}
CHUNK = 500  # iterations of one call
SMOKE = Settings(
    iterations=5,
    optimisers=("sgd", "natural"),
    shares=(1.0,),
    steps=(1,),
    around=(("filters", 4),),
    validation=4,
    test_tasks=4,
)


def cells(settings: Settings) -> list[study.Cell]:
    """An optimiser and a number of steps."""
    return [(name, str(steps)) for name in settings.optimisers for steps in settings.steps]


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The row with its recipe, and all other settings; rates are those of `settings`."""
    return images.identity(_put(settings, cell[0], int(cell[1]), RATES[cell[0]]))


def decides(settings: Settings) -> Settings:
    """Which optimisers and steps are tried decides nothing for one of them."""
    return replace(settings, optimisers=(), steps=())


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the trainings that are kept."""
    trainings.forget(*sweep(settings, cell))


def rates_of(settings: Settings, name: str) -> list[float]:
    """Those that are tried."""
    return [float(f"{share * RATES[name]:.3g}") for share in settings.shares]


def sweep(settings: Settings, cell: study.Cell, protocol: images.Protocol | None = None) -> tuple[Sweep, list[int]]:
    """Every rate with every seed in one program, and the seeds."""
    name, steps = cell
    numbers = np.repeat(np.array(rates_of(settings, name))[:, None], len(settings.seeds), axis=0)
    put = lambda row: _put(settings, name, int(steps), row[0], protocol)
    return Sweep(put, numbers), list(settings.seeds) * len(settings.shares)


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Every rate on validation classes; the best of them on test classes."""
    name, steps = cell
    trained = trainings.train(*sweep(settings, cell), chunk=min(settings.iterations, CHUNK))
    judge = partial(images.judge, steps=images.TEST_STEPS, validation=settings.validation)
    found = judge(sweep(settings, cell)[0], trained.states, num_tasks=settings.validation, split="validation")
    accuracy = np.asarray(found.accuracy, float).mean(axis=1).reshape(len(settings.shares), -1)
    fine = np.reshape(trained.finite, accuracy.shape).all(axis=1)
    values = np.where(fine, accuracy.mean(axis=1), np.nan)
    best = int(np.nan_to_num(values, nan=-1.0).argmax())
    mine = slice(best * len(settings.seeds), (best + 1) * len(settings.seeds))
    put, numbers = sweep(settings, cell, PROTOCOLS["paper"])[0]
    states = jax.tree.map(lambda leaf: leaf[mine], trained.states)
    tested = judge(Sweep(put, numbers[mine]), states, num_tasks=settings.test_tasks)
    words = f"{settings.setting}, {steps} step{'s' if steps != '1' else ''} in training"
    rows = images.rows(tested, setting=words, method=name, protocol="paper")
    rates = rates_of(settings, name)
    curve = {
        "rates": {
            str(rate): study.finite(round(100 * value, 2)) for rate, value in zip(rates, values.tolist(), strict=True)
        },
        "best": rates[best],
        "query_nll": np.round(trained.query_nll[mine].astype(float), 4),
        "task_accuracy": np.round(100 * tested.accuracy.astype(float).mean(axis=0), 2),
    }
    return {"rows": rows, "curves": {"/".join(cell): curve}}


def _put(settings: Settings, name: str, steps: int, rate: Any, protocol: images.Protocol | None = None) -> Setup:
    changes = {**OPTIMISERS[name], "rate": rate, "steps": (steps, steps)}
    if name == "rates learned":
        changes["std"] = rate**0.5  # σ₀² = α, as in the table
    variant = Variant("gem-bml+", changes, dict(settings.around))
    return images.set_up(
        variant, tasks=settings.tasks, setting=settings.setting, iterations=settings.iterations, protocol=protocol
    )


def shown(results: study.Results) -> list[dict[str, Any]]:
    """Accuracies."""
    return [row for row in results["rows"] if row["metric"].startswith("accuracy")]


def figure(results: study.Results) -> Figure:
    """Accuracy by optimiser, a bar a number of steps; no bar of a cell that is missing."""
    names, steps = results["settings"]["optimisers"], results["settings"]["steps"]
    drawn = Figure(figsize=(8, 0.7 * len(names) + 1.6), layout="constrained")
    axes = drawn.subplots()
    colors = (figures.BLUE, figures.ORANGE, figures.GREY)
    for place, count in enumerate(steps):
        mine = {row["method"]: row for row in shown(results) if f", {count} step" in row["setting"]}
        height = 0.8 / len(steps)
        known = [name for name in names if name in mine]
        offsets = np.array([names.index(name) for name in known]) + height * (place - (len(steps) - 1) / 2)
        values, errors = ([mine[name][part] or 0.0 for name in known] for part in ("mean", "ci95"))
        if known:
            axes.barh(offsets, values, height, xerr=errors, color=colors[place % 3],
                      label=f"{count} step{'s' if count != 1 else ''} in each stage")  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(xlabel=f"accuracy on {results['settings']['tasks']} {results['settings']['setting']}, %")
    axes.set_xlim(left=max(0.0, min((row["mean"] or 0.0 for row in shown(results)), default=0.0) - 10))
    if axes.containers:
        axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle("GEM-BML+ with other inner optimisers, each at the best of its rates on validation classes")
    return drawn


def remarks(results: study.Results) -> list[str]:
    """Which was best, and what was tried, of the cells that there are."""
    if not shown(results):
        return []
    curves = results["curves"]
    best = max(shown(results), key=lambda row: row["mean"] or 0.0)
    tried = "; ".join(
        f"{_called(name)}: rate {curve['best']:g} of {', '.join(curve['rates'])}" for name, curve in curves.items()
    )
    sentences = [
        f"Best: {best['method']} ({best['setting']}), {best['mean'] or 0:.2f} ± {best['ci95'] or 0:.2f} %.",
        f"Rates, chosen on validation classes, the same number for all: {tried}.",
    ]
    ends = lambda curve: curve["best"] in (min(map(float, curve["rates"])), max(map(float, curve["rates"])))
    if edges := [_called(name) for name, curve in curves.items() if len(curve["rates"]) > 1 and ends(curve)]:
        sentences.append(f"At the edge of their rates, beyond which a better one may lie: {'; '.join(edges)}.")
    # A training that ran away answers nothing right.
    lost = {name: sum(not (value or 0) > 0 for value in curve["rates"].values()) for name, curve in curves.items()}
    if ran := [f"{_called(name)} {count} of {len(curves[name]['rates'])}" for name, count in lost.items() if count]:
        sentences.append(f"Rates at which training left the finite numbers: {'; '.join(ran)}.")
    return sentences


def _called(name: str) -> str:
    """A cell in words."""
    return f"{name.replace('/', ' with ')} step{'s' * (not name.endswith('/1'))}"


STUDY, run = study.declare(
    __name__,
    title="Inner optimisers of GEM-BML+ (Section 3.1)",
    paper="Since nothing is back-propagated, any optimiser may be used inside; the paper uses Adam on images.",
    full=Settings(),
    smoke=SMOKE,
)
