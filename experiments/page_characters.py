"""How far the page's prior over characters is to be trusted: calibration, reliability, doubt, strangers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior import metrics
from metaprior.classes import ClassScores, calibration_error
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED, calibrate_steps, for_classes, scores, summary
from metaprior.meta import State, task_keys
from metaprior.page import priors
from metaprior.page.characters import FEWEST, MOST, STEPS
from metaprior.predict import Calibration
from metaprior.settings import Settings, Setup, assemble
from metaprior.tasks.images import class_targets
from metaprior.types import Data

QUERIES = 5  # drawings of each class that a task is judged by
TASKS, CHOICE_TASKS = 600, 300  # of test classes, and of validation classes to choose on
# An answer is called sure where so many like it were right on validation classes, with so many strangers among the drawings:
# people draw what they were not asked for.
RIGHT, STRANGERS = 0.95, 0.2
LEVELS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)  # from which it is chosen
BINS = 10


def judged(setup: Setup, state: State) -> dict[str, Any]:
    """What the card says, for each number of classes."""
    return {
        "classes": {str(classes): of_classes(setup.settings, state, classes) for classes in range(FEWEST, MOST + 1)}
    }


def of_classes(settings: Settings, state: State, classes: int) -> dict[str, Any]:
    """Chosen on validation classes: temperature and level of doubt. Measured on test classes: the rest."""
    setup, more = (
        assemble(dataclasses.replace(settings, ways=ways), inductive=True, eval_queries=QUERIES)
        for ways in (classes, classes + 1)
    )
    at = (STEPS,)
    calibration = calibrate_steps(setup, state, at=at)
    chosen_on = scores(
        setup, state, calibration, at=at, num_tasks=CHOICE_TASKS, seed=VALIDATION_SEED + 1, split="validation"
    )
    single = jax.tree.map(lambda part: part[0], calibration)
    strange = strangers(
        more, state, single, classes, num_tasks=CHOICE_TASKS, seed=VALIDATION_SEED + 1, split="validation"
    )
    sure_from = level_of_doubt(chosen_on, strange)
    found = scores(setup, state, calibration, at=at, num_tasks=TASKS)
    return {
        "calibration": priors.calibration_values(single),
        "sure_from": sure_from,
        "test": measured(found, sure_from, strangers(more, state, single, classes)),
    }


def level_of_doubt(found: ClassScores, strange: Float[np.ndarray, " N"]) -> float:
    """The lowest level above which answers are right as often as asked; the highest where none is."""
    confidence, correct = (np.asarray(part).ravel() for part in (found.confidence, found.correct))

    def share_right(level: float) -> float:
        right = (1 - STRANGERS) * (correct * (confidence >= level)).mean()
        said = (1 - STRANGERS) * (confidence >= level).mean() + STRANGERS * (strange >= level).mean()
        return float(right / max(said, 1e-9))

    return min((level for level in LEVELS if share_right(level) >= RIGHT), default=LEVELS[-1])


def measured(found: ClassScores, sure_from: float, strangers: Float[np.ndarray, " N"]) -> dict[str, Any]:
    """Scores in words and the table behind the reliability diagram."""
    table = calibration_error(found, num_bins=BINS)
    confidence, correct = (np.asarray(part).ravel() for part in (found.confidence, found.correct))
    sure = confidence >= sure_from
    values = {name: value[0] for name, value in summary(found, (STEPS,)).items() if isinstance(value, list)}
    return {
        "tasks": TASKS,
        "predictions": int(confidence.size),
        **{name: values[name] for name in ("accuracy", "accuracy_ci95", "nll", "ece")},
        "share_sure": float(sure.mean()),
        "accuracy_where_sure": float(correct[sure].mean()) if sure.any() else None,
        "strangers_called_sure": float((strangers >= sure_from).mean()),
        "reliability": {name: np.asarray(column, float).round(5).tolist() for name, column in table._asdict().items()},
        "mce_bins_of_100": _or_none(float(metrics.mce(table, min_count=100))),
    }


def strangers(
    more: Setup,
    state: State,
    calibration: Calibration,
    classes: int,
    *,
    num_tasks: int = TASKS,
    seed: int = TEST_SEED,
    split: str = "test",
) -> Float[np.ndarray, " N"]:
    """The confidence in drawings of a class that is none of those shown: tasks of one class more, whose last is held back."""
    resized = for_classes(more, state, classes)

    def one_task(key, pool) -> Float[Array, " Q"]:
        episode = more.tasks.evaluation(jax.random.split(key, 3)[0], *pool)
        support = Data(episode.support.x[:classes], class_targets(jnp.arange(classes), classes))
        posteriors = more.learner.adapt(jax.random.key(0), resized, support, STEPS)
        q = jax.tree.map(lambda leaf: leaf[STEPS], posteriors)
        parts = more.predictor.prepare(jax.random.key(0), resized.prior, q, support, episode.query.x[-QUERIES:])
        return more.predictor.finish(parts, calibration).probabilities.max(axis=1)

    run = jax.jit(lambda keys, pool: jax.lax.map(lambda key: one_task(key, pool), keys, batch_size=25))
    return np.asarray(run(task_keys(jax.random.key(seed), num_tasks), more.tasks.pool(split))).ravel()


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
