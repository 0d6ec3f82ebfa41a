"""Whether probabilities can be trusted: reliability on 5-way 1-shot tasks of photographs (Table 3).

metaprior reproduce calibration --data-dir FOLDER        # trains what `miniimagenet` trains, and judges that

What is learned of a task is kept before anything is fitted: another way to say how sure it is costs no training.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from experiments import calibration_report, few_shot, images, miniimagenet, study, trainings
from experiments.calibration_report import EXACT, FITTED, PLAIN, SETTING, WAYS, WIDE, half_width, reliability
from experiments.paper import CALIBRATION
from experiments.turns import by_turns
from metaprior import checkpoints, metrics
from metaprior.classes import ClassScores
from metaprior.evaluation import TEST_SEED, class_parts, fitted_steps, scores_of_parts
from metaprior.predict import Calibration
from metaprior.settings import Setup
from metaprior.training import initial_state

REPEATED = (EXACT, "maml")  # judged with every seed; the others with the first
TRAINED = {WIDE: ("trained 20-way", EXACT)}  # cells of `miniimagenet` that are not its best settings: kind, method
PAPER = {method: {metric: number.mean for metric, number in printed.items()} for method, printed in CALIBRATION.items()}
DRAWS = 20  # of right and wrong answers, for what chance does
Parts = tuple[tuple[Any, Array], tuple[Any, Array]]  # of validation tasks and of test tasks, each with its targets


class Judged(NamedTuple):
    """One way to say how sure answers are."""

    way: Calibration
    scores: ClassScores  # of test tasks


class Numbers(NamedTuple):
    """A measure of calibration of each seed, and its mean over seeds in each draw of tasks."""

    by_seed: np.ndarray
    again: np.ndarray


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
    """All of them for the two that are told apart; the first for the others."""
    return settings.seeds if cell[0] in REPEATED else settings.seeds[:1]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Probabilities as the network says them, and as validation classes have them corrected."""
    setup = few_shot.put(*_training(settings, cell), images.PROTOCOLS["strict"])
    judge = judge_of(setup)
    found = [judge(*parts)[0] for parts in _parts(settings, cell, setup)]
    rows, curves = [], {}
    for words in WAYS:
        ways, scores = zip(*(each[words] for each in found), strict=True)
        tables = np.stack([by_task(each, settings.num_bins) for each in scores])
        nll, accuracy = (np.stack([np.asarray(each, float)[:, 0] for each in part]) for part in (
            [each.nll for each in scores], [100 * each.accuracy for each in scores]))  # fmt: skip
        numbers = _numbers(settings, tables, nll)
        curves[f"{cell[0]}/{words}"] = {
            **reliability(tables),
            "temperature": [float(jnp.exp(way.log_noise[0])) for way in ways],
            "by_chance": np.round(np.mean([by_chance(settings, each) for each in scores]), 6),
            "by_seed": {metric: np.round(each.by_seed, 6) for metric, each in numbers.items()},
            "again": {metric: np.round(each.again, 6) for metric, each in numbers.items()},
        }
        rows += _rows(cell[0], words, numbers, study.mean_and_ci(accuracy))
    return {"rows": rows, "curves": curves}


def _parts(settings: Settings, cell: study.Cell, setup: Setup) -> list[Parts]:
    """Answers to validation tasks and to test tasks of each seed's prior: kept, or of a prior that may have to be trained."""
    seeds = seeds_of(settings, cell)
    folders = [parts_folder(settings, cell, seed) for seed in seeds]
    pools = [setup.tasks.pool(split) for split in ("validation", "test")]
    asking = {"at": (images.TEST_STEPS,), "validation": settings.validation, "num_tasks": settings.test_tasks}

    @partial(jax.jit, compiler_options=images.without_trials(setup))
    def run(state, known, asked):
        return class_parts(setup, state, **asking, seed=TEST_SEED, known=known, asked=asked)

    ask = by_turns(run)

    def ended(trained, states):
        for index, seed in enumerate(trained):
            folder = parts_folder(settings, cell, seed)
            if not checkpoints.available(folder):
                answers, _ = ask(jax.tree.map(lambda leaf, index=index: leaf[index], states), *pools)
                checkpoints.save(folder, 0, answers, keep=1)

    if not all(checkpoints.available(folder) for folder in folders):
        trainings.train(few_shot.put(*_training(settings, cell)), seeds, ended=ended)
    like = jax.eval_shape(run, jax.eval_shape(lambda: initial_state(setup, 0)), *pools)
    return [checkpoints.restore(folder, like).tree for folder in folders]


def judge_of(setup: Setup) -> Callable[..., tuple[dict[str, Judged], float]]:
    """(parts of validation tasks, of test tasks) -> the same answers in every way to say how sure they are, and seconds."""
    one = jnp.zeros(1)
    plain = Calibration(one - 20, one, one, one, one + 1)  # as it is: no temperature, no variance

    @partial(jax.jit, compiler_options=images.without_trials(setup))
    def run(own, others):
        ways = {PLAIN: plain, FITTED: fitted_steps(setup.predictor, *own)}
        return {
            words: Judged(way, scores_of_parts(setup.predictor, others[0], others[1], way))
            for words, way in ways.items()
        }

    return by_turns(run)


def _training(settings: Settings, cell: study.Cell) -> tuple[few_shot.Settings, study.Cell]:
    """Of the seeds whose probabilities are judged."""
    trained = replace(settings.trained, seeds=seeds_of(settings, cell))
    return trained, (SETTING, *TRAINED.get(cell[0], ("best", cell[0])))


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The training that is judged, and with which seeds where it is not the first alone."""
    seeds = {"judged": list(seeds_of(settings, cell))} if cell[0] in REPEATED else {}
    return few_shot.rests_on(*_training(settings, cell)) | seeds


def decides(settings: Settings) -> Settings:
    """Which methods are judged, or trained besides, decides nothing for one of them."""
    return replace(settings, methods=(), trained=few_shot.decides(settings.trained))


def parts_folder(settings: Settings, cell: study.Cell, seed: int) -> Path:
    """Where the answers of a prior are kept: another training, or other tasks, another folder."""
    trained = trainings.state_folder(few_shot.put(*_training(settings, cell)), [seed])
    return trained.with_name(f"{trained.name}-answers-{settings.validation}-{settings.test_tasks}")


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the training that is judged, which `miniimagenet` would use, too, and its answers."""
    few_shot.forget(*_training(settings, cell))
    for seed in seeds_of(settings, cell):
        shutil.rmtree(parts_folder(settings, cell, seed), ignore_errors=True)


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


def by_chance(settings: Settings, found: ClassScores) -> float:
    """ECE of answers as sure as these whose probabilities are exactly right: what so many predictions cannot tell from zero.

    As if every prediction were drawn by itself; those of one task go together, so that chance does more than that.
    """
    said = found.confidence[:, 0].ravel()
    confidence, place = np.asarray(said, float), np.asarray(metrics.bin_of(said, settings.num_bins))
    rng = np.random.default_rng(0)
    in_bins = partial(np.bincount, place, minlength=settings.num_bins)
    sure = np.stack([in_bins(), in_bins(weights=confidence)])
    right = lambda: in_bins(weights=rng.random(confidence.shape) < confidence)
    return float(np.mean([errors(np.stack([*sure, right()]), settings.rare)[0] for _ in range(DRAWS)]))


def _numbers(settings: Settings, tables: np.ndarray, nll: np.ndarray) -> dict[str, Numbers]:
    """From [seeds, 3, tasks, bins] and [seeds, tasks]; every method gets the same draws, so that two can be compared in each."""
    tasks = nll.shape[1]
    draws = np.random.default_rng(0).multinomial(tasks, np.full(tasks, 1 / tasks), settings.repeats)
    found = np.array([errors(table.sum(axis=1), settings.rare) for table in tables])
    sums = np.tensordot(draws.astype(float), tables, (1, 2))  # [draws, seeds, 3, bins]
    again = np.array([[errors(each, settings.rare) for each in seeds] for seeds in sums]).mean(axis=1)
    return {
        "ECE": Numbers(found[:, 0], again[:, 0]),
        "MCE": Numbers(found[:, 1], again[:, 1]),
        "NLL": Numbers(nll.mean(axis=1), draws @ nll.mean(axis=0) / tasks),
    }


def _rows(method: str, words: str, numbers: dict[str, Numbers], accuracy: tuple[float, float]) -> list[dict[str, Any]]:
    printed: dict[str, float] = dict(PAPER.get(method, {})) if words != PLAIN else {}
    told = {metric: (each.by_seed.mean(), half_width(*each)) for metric, each in numbers.items()} | {
        "accuracy": accuracy
    }
    return [
        study.row(setting=words, method=method, metric=metric, mean=mean, ci95=ci95, paper=printed.get(metric))
        for metric, (mean, ci95) in told.items()
    ]


STUDY, run = study.declare(
    __name__,
    report=calibration_report,
    title="Calibration on miniImageNet (Table 3)",
    paper="GEM-BML+ has the least calibration errors: ECE 0.0102 and MCE 0.0197, against 0.0124 and 0.0257 of Amortized BML.",
    full=Settings(),
    smoke=SMOKE,
)
