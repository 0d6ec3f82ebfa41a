"""Whether probabilities can be trusted: reliability on 5-way 1-shot tasks of photographs (Table 3).

metaprior reproduce calibration --data-dir FOLDER        # trains the first seed of `miniimagenet`, and judges that
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments import few_shot, images, miniimagenet, study
from experiments.paper import CALIBRATION
from experiments.turns import by_turns
from metaprior import figures, metrics
from metaprior.classes import ClassScores
from metaprior.evaluation import TEST_SEED, class_parts, fitted_steps, scores_of_parts
from metaprior.meta import State
from metaprior.predict import Calibration
from metaprior.settings import Setup

SETTING = "5w1s"
FITTED, PLAIN = "temperature fitted", "as it is"
EXACT = "gem-bml+last-layer"
WIDE = f"{EXACT}, trained 20-way"
TRAINED = {WIDE: ("trained 20-way", EXACT)}  # cells of `miniimagenet` that are not its best settings: kind, method
PAPER = {method: (printed["ECE"].mean, printed["MCE"].mean) for method, printed in CALIBRATION.items()}


@dataclass(frozen=True)
class Settings:
    """Trainings as in `trained`, asked 15 queries a class."""

    seeds: tuple[int, ...] = (0, 1, 2)
    trained: few_shot.Settings = miniimagenet.FULL
    methods: tuple[str, ...] = ("gem-bml+", EXACT, WIDE, "maml", "amortized-bml")
    test_tasks: int = 10_000
    validation: int = 4_000
    """Tasks that temperatures are fitted on: of 400, the mean accuracy is known to half a percent, as much as is at stake."""
    num_bins: int = 15
    rare: int = 2000
    """Bins with fewer predictions do not count in the largest error; they are listed apart."""
    repeats: int = 500
    """Of the bootstrap over tasks."""


SMOKE = Settings(
    seeds=(0,),
    trained=miniimagenet.SMOKE,
    methods=(EXACT,),
    test_tasks=8,
    validation=4,
    rare=10,
    repeats=20,
)


def cells(settings: Settings) -> list[study.Cell]:
    """A method."""
    return [(name,) for name in settings.methods]


def seeds_of(settings: Settings, cell: study.Cell) -> tuple[int, ...]:
    """The first."""
    return settings.seeds[:1]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """The first seed's probabilities: as the network says them, and with the temperature of validation classes."""
    trained_as, at = _training(settings, cell)
    trained = images.train(few_shot.put(trained_as, at), few_shot.seeds_of(trained_as, at))
    setup = few_shot.put(trained_as, at, images.PROTOCOLS["strict"])
    state = jax.tree.map(lambda leaf: leaf[0], trained.states)
    rows, curves = [], {}
    for words, (calibration, found) in judged(settings, setup, state).items():
        table = by_task(found, settings.num_bins)
        curves[f"{cell[0]}/{words}"] = {**reliability(table), "temperature": float(jnp.exp(calibration.log_noise[0]))}
        rows += _rows(settings, cell[0], words, table, found)
    return {"rows": rows, "curves": curves}


def judged(settings: Settings, setup: Setup, state: State) -> dict[str, tuple[Calibration, ClassScores]]:
    """The same answers with a temperature and without, in one program: by far the most of it is adaptation."""
    pool, one = setup.tasks.pool, jnp.zeros(1)
    asking = {"at": (images.TEST_STEPS,), "validation": settings.validation, "num_tasks": settings.test_tasks}

    @partial(jax.jit, compiler_options=images.without_trials())
    def run(state, known, asked):
        own, others = class_parts(setup, state, **asking, seed=TEST_SEED, known=known, asked=asked)
        plain = Calibration(one - 20, one, one, one, one + 1)  # as it is: no temperature, no variance
        ways = {FITTED: fitted_steps(setup.predictor, *own), PLAIN: plain}
        return {words: (way, scores_of_parts(setup.predictor, *others, way)) for words, way in ways.items()}

    found, _ = by_turns(run)(state, pool("validation"), pool("test"))
    return found


def _training(settings: Settings, cell: study.Cell) -> tuple[few_shot.Settings, study.Cell]:
    """Of the first seed, whose probabilities are judged."""
    return replace(settings.trained, seeds=settings.seeds[:1]), (SETTING, *TRAINED.get(cell[0], ("best", cell[0])))


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The training that is judged."""
    return few_shot.rests_on(*_training(settings, cell))


def decides(settings: Settings) -> Settings:
    """Which methods are judged, or trained besides, decides nothing for one of them."""
    return replace(settings, methods=(), trained=few_shot.decides(settings.trained))


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the training that is judged, which `miniimagenet` would use, too."""
    few_shot.forget(*_training(settings, cell))


def by_task(found: ClassScores, num_bins: int) -> np.ndarray:
    """[3, tasks, bins]: predictions, sum of confidences and number of right answers of each task in each bin."""
    confidence, correct = (np.asarray(part, float)[:, 0] for part in (found.confidence, found.correct))
    place = np.asarray(metrics.bin_of(found.confidence[:, 0], num_bins))
    inside = place[:, :, None] == np.arange(num_bins)[None, None]
    return np.stack([(inside * part[:, :, None]).sum(axis=1) for part in (np.ones_like(correct), confidence, correct)])


def errors(sums: np.ndarray, rare: int) -> tuple[float, float]:
    """ECE, and the largest gap among bins that are not rare; from [3, bins]."""
    count, confidence, correct = sums
    gap = np.abs(correct - confidence) / np.maximum(count, 1)
    full = count >= rare
    return float((gap * count).sum() / count.sum()), float(gap[full].max()) if full.any() else float("nan")


def _rows(settings: Settings, method: str, words: str, table: np.ndarray, found: ClassScores) -> list[dict[str, Any]]:
    ece, mce = errors(table.sum(axis=1), settings.rare)
    weights = np.random.default_rng(0).multinomial(
        table.shape[1], np.full(table.shape[1], 1 / table.shape[1]), settings.repeats
    )
    again = np.array([errors(np.einsum("t,ctb->cb", w, table), settings.rare) for w in weights])
    spread = 1.96 * again.std(axis=0)
    paper = PAPER.get(method, (None, None)) if words != PLAIN else (None, None)
    nll, nll_ci95 = study.mean_and_ci(np.asarray(found.nll)[:, 0])
    accuracy, ci95 = study.mean_and_ci(100 * np.asarray(found.accuracy)[:, 0])
    numbers = {"ECE": (ece, spread[0], paper[0]), "MCE": (mce, spread[1], paper[1]), "NLL": (nll, nll_ci95, None),
               "accuracy": (accuracy, ci95, None)}  # fmt: skip
    return [
        study.row(setting=words, method=method, metric=metric, mean=mean, ci95=ci95, paper=paper)
        for metric, (mean, ci95, paper) in numbers.items()
    ]


def reliability(table: np.ndarray) -> dict[str, Any]:
    """For the figure: bins with their predictions."""
    count, confidence, correct = table.sum(axis=1)
    shares = lambda sums: np.round(sums / np.maximum(count, 1), 5)
    return {"count": count.astype(int), "confidence": shares(confidence), "accuracy": shares(correct)}


def figure(results: study.Results) -> Figure:
    """Accuracy against confidence: solid with the temperature, dotted without."""
    names = [name for name in results["settings"]["methods"] if f"{name}/{PLAIN}" in results["curves"]]
    drawn = Figure(figsize=(3.4 * len(names) + 0.6, 4.2), layout="constrained")
    for axes, name in zip(drawn.subplots(1, len(names), squeeze=False, sharey=True)[0], names, strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for words, line, color in ((FITTED, "-", figures.BLUE), (PLAIN, ":", figures.ORANGE)):
            curve = results["curves"][f"{name}/{words}"]
            enough = np.asarray(curve["count"]) >= results["settings"]["rare"]
            x, y = (np.asarray(curve[part], float)[enough] for part in ("confidence", "accuracy"))
            axes.plot(
                x, y, line, marker="o", markersize=4, color=color, label=f"{words} (T = {curve['temperature']:.2f})"
            )
        axes.set(title=name, xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
        axes.grid(color="0.92")
        axes.legend(frameon=False, fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].set_ylabel("accuracy")
    drawn.suptitle(f"Reliability on {results['settings']['trained']['tasks']} {SETTING}\nonly bins that are not rare")
    return drawn


def remarks(results: study.Results) -> list[str]:
    """What was fitted, which bins are rare."""
    settings = results["settings"]
    sentences = [
        "The temperature is fitted on validation classes, by the NLL of "
        f"{settings['validation']} tasks, in the same way for every method; the other rows have none."
    ]
    sentences += _differences(results)
    for name, curve in results["curves"].items():
        rare = [i for i, count in enumerate(curve["count"]) if 0 < count < settings["rare"]]
        if rare:
            told = ", ".join(
                f"({i / settings['num_bins']:.2f}, {(i + 1) / settings['num_bins']:.2f}] {curve['count'][i]} predictions"
                f", gap {curve['accuracy'][i] - curve['confidence'][i]:+.3f}" for i in rare
            )  # fmt: skip
            sentences.append(f"Rare bins of {name.replace('/', ', ')}, not in its MCE: {told}.")
    return sentences


def _differences(results: study.Results) -> list[str]:
    """GEM-BML+ in both forms minus MAML, with a temperature: whether intervals tell them apart."""
    found = {(row["method"], row["metric"]): row for row in results["rows"] if row["setting"] == FITTED}
    told = []
    for name in (EXACT, WIDE, "gem-bml+"):
        parts = []
        for metric in ("ECE", "MCE", "NLL"):
            ours, others = (found.get((method, metric)) for method in (name, "maml"))
            if ours is None or others is None or None in (ours["mean"], others["mean"]):
                continue
            gap, allowed = ours["mean"] - others["mean"], float(np.hypot(ours["ci95"] or 0, others["ci95"] or 0))
            verdict = study.verdict(-gap, allowed)  # less is better
            parts.append(f"{metric} {gap:+.4f} ± {allowed:.4f} ({verdict})")
        if parts:
            told.append(f"With the temperature, {name} minus maml: {', '.join(parts)}.")
    return told


STUDY, run = study.declare(
    __name__,
    title="Calibration on miniImageNet (Table 3)",
    paper="GEM-BML+ has the least calibration errors: ECE 0.0102 and MCE 0.0197, against 0.0124 and 0.0257 of Amortized BML.",
    full=Settings(),
    smoke=SMOKE,
)
