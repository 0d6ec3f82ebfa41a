"""How good a learned prior is: adaptation to fixed unseen tasks, step by step, judged by calibrated predictions."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior import metrics
from metaprior.calibration import calibrate
from metaprior.classes import ClassPredictive, ClassScores, calibration_error, class_scores, together
from metaprior.heads import memory_with_classes, with_classes
from metaprior.meta import State, task_keys
from metaprior.predict import Calibration, Predictor
from metaprior.settings import Setup
from metaprior.types import Data, Episode

# Fixed and apart: training draws from the run's seed, validation and test from these. Widths and noise are chosen on the former.
VALIDATION_SEED, TEST_SEED = 1_000_001, 5_000_011
RARE = 100  # bins with fewer predictions do not count in the largest calibration error
NEAR = 0.5  # inputs closer than this to a support point count as near
TOGETHER = 25  # tasks that are judged side by side, at most
PIXELS = 4_000_000  # of all their images after all numbers of steps: what a network keeps of them is hundreds of times as much


class TaskScores(NamedTuple):
    """Of one task after each number of steps; averaged over tasks later, so that runs can be compared task by task."""

    mse: Float[Array, "..."]
    nll: Float[Array, "..."]
    crps: Float[Array, "..."]
    coverage90: Float[Array, "..."]
    coverage90_near: Float[Array, "..."]
    coverage90_far: Float[Array, "..."]
    share_near: Float[Array, "..."]
    rank_correlation: Float[Array, "..."]


def for_classes(setup: Setup, state: State, classes: int) -> State:
    """The state to adapt to so many classes with, not to train on; as it is, if that is how many it was trained with."""
    if classes == setup.tasks.outputs_in_training:
        return state
    prior = with_classes(setup.model, state.prior, classes)
    return state._replace(prior=prior, memory=memory_with_classes(setup.model, state.memory, classes))


def adapted_parts(setup: Setup, predictor: Predictor, state: State, key, at: Sequence[int], pool=()):
    """Adapt to one task and prepare its predictions: (parts before any step or None, later parts stacked, episode)."""
    episode = _drawn(setup, key, pool)
    return *_adapted(setup, predictor, state, key, at, episode), episode


def _drawn(setup: Setup, key, pool: tuple) -> Episode:
    """The task of a key; the rest of the key is for adaptation to it."""
    return setup.tasks.evaluation(jax.random.split(key, 3)[0], *pool)


def _adapted(setup: Setup, predictor: Predictor, state: State, key, at: Sequence[int], episode: Episode):
    _, *keys = jax.random.split(key, 3)
    state = for_classes(setup, state, setup.tasks.outputs)

    def parts(episode: Episode):
        return _parts(setup, predictor, state, keys, at, episode)

    if not setup.turned:
        return parts(episode)
    first, rest = jax.lax.map(parts, all_turns(episode))
    return None if first is None else together(first), together(rest)


def _parts(setup: Setup, predictor: Predictor, state: State, keys, at: Sequence[int], episode: Episode):
    key_adapt, key_predict = keys
    exact = setup.learner.method.inference == "conjugate"  # every step after the first changes nothing
    posteriors = setup.learner.adapt(key_adapt, state, episode.support, min(max(at), 1) if exact else max(at))
    nothing = Data(episode.support.x[:0], episode.support.y[:0])

    def prepare(q, support):
        return predictor.prepare(key_predict, state.prior, q, support, episode.query.x)

    # Before the first step nothing has been learned from the support: the prior predictive must not be conditioned on it.
    first = prepare(jax.tree.map(lambda leaf: leaf[0], posteriors), nothing) if at[0] == 0 else None
    later = jnp.asarray([step for step in at if step > 0], int)
    different = jnp.minimum(later, 1)[:1] if exact else later
    rest = jax.vmap(lambda q: prepare(q, episode.support))(jax.tree.map(lambda leaf: leaf[different], posteriors))
    if exact:
        rest = jax.tree.map(lambda leaf: jnp.repeat(leaf, len(later), axis=0), rest)
    return first, rest


def all_turns(episode: Episode) -> Episode:
    """Four tasks in one, stacked: all images as they are, and turned by 90, 180 and 270 degrees."""

    def one(quarters: int) -> Episode:
        return Episode(*(part._replace(x=jnp.rot90(part.x, quarters, axes=(1, 2))) for part in episode))

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(one, range(4)))


def calibrate_steps(
    setup: Setup,
    state: State,
    *,
    steps: int = 10,
    at: Sequence[int] | None = None,
    num_tasks: int = 100,
    pool: tuple | None = None,
) -> Calibration:
    """Width and noise for the prior predictive and after each number of steps, on validation tasks: arrays [len(at)].

    Args:
        setup: the pieces.
        state: as trained.
        steps: 0, 1, … up to this many.
        at: or these numbers of steps, in rising order.
        num_tasks: validation tasks.
        pool: the data they are made of; None reads those of the validation split.
    """
    at = _step_numbers(steps, at)
    predictor = setup.predictor

    def run(state, pool):
        keys = task_keys(jax.random.key(VALIDATION_SEED), num_tasks)

        def one_task(key):
            first, rest, episode = adapted_parts(setup, predictor, state, key, at, pool)
            return first, rest, episode.query.y

        first, rest, targets = in_batches(one_task, keys, side_by_side(setup, at, num_tasks, pool))
        later = fitted_steps(predictor, rest, targets)
        return later if first is None else _joined(calibrate(predictor, first, targets), later)

    return jax.jit(run)(state, setup.tasks.pool("validation") if pool is None else pool)


def fitted_steps(predictor: Predictor, parts: Any, targets: Array) -> Calibration:
    """One calibration for each number of steps, of parts [tasks, steps, …]."""
    by_step = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), parts)
    return jax.lax.map(lambda parts: calibrate(predictor, parts, targets), by_step)


def evaluate(
    setup: Setup,
    state: State,
    calibration: Calibration,
    *,
    steps: int = 10,
    at: Sequence[int] | None = None,
    num_tasks: int = 600,
    seed: int = TEST_SEED,
) -> dict[str, Any]:
    """Metrics after 0..steps steps on fixed test tasks, averaged over tasks; the squared error is of the posterior mean."""
    at = _step_numbers(steps, at)
    return summary(scores(setup, state, calibration, at=at, num_tasks=num_tasks, seed=seed), at)


def scores(
    setup: Setup,
    state: State,
    calibration: Calibration,
    *,
    at: Sequence[int],
    num_tasks: int,
    seed: int = TEST_SEED,
    split: str = "test",
    pool: tuple | None = None,
) -> Any:
    """Task by task and step by step, arrays [num_tasks, len(at)]: the tasks depend on the seed alone, so methods pair up.

    `split` names the classes that tasks of given data are made of, or `pool` holds them. Curves have `TaskScores`, classes have
    `ClassScores`.
    """
    if calibration.log_noise.shape[0] < len(at):
        raise ValueError(
            f"calibrated for {calibration.log_noise.shape[0] - 1} steps, asked for {max(at)}: calibrate again"
        )
    calibration = Calibration(*(jnp.broadcast_to(part, calibration.log_noise.shape) for part in calibration))
    predictor = setup.predictor

    def one_task(key, pool):
        first, rest, episode = adapted_parts(setup, predictor, state, key, at, pool)
        score = lambda parts, c: task_scores(predictor, parts, c, episode)
        begin = int(first is not None)
        later = jax.vmap(score)(rest, jax.tree.map(lambda leaf: leaf[begin : len(at)], calibration))
        return later if first is None else _joined(score(first, jax.tree.map(lambda leaf: leaf[0], calibration)), later)

    @jax.jit
    def run(keys, data):
        return in_batches(lambda key: one_task(key, data), keys, side_by_side(setup, at, num_tasks, data))

    return run(task_keys(jax.random.key(seed), num_tasks), setup.tasks.pool(split) if pool is None else pool)


def calibrated_class_scores(setup: Setup, state: State, **asking: Any) -> ClassScores:
    """`calibrate_steps` on validation tasks and `scores` on others; what is asked is as in `class_parts`."""
    own, others = class_parts(setup, state, **asking)
    return scores_of_parts(setup.predictor, *others, fitted_steps(setup.predictor, *own))


def class_parts(
    setup: Setup,
    state: State,
    *,
    at: Sequence[int],
    validation: int,
    num_tasks: int,
    seed: int,
    known: tuple,
    asked: tuple,
) -> tuple[tuple[Any, Array], tuple[Any, Array]]:
    """Predictions yet to be calibrated [tasks, steps, …] and targets [tasks, …]: of validation tasks, and of those asked for.

    One program adapts to both by the same instructions: adaptation is most of what there is to compile, and compiling takes
    longer than a thousand tasks.

    Args:
        setup: the pieces, of classes.
        state: as trained.
        at: numbers of steps from one on, in rising order.
        validation: tasks to calibrate on.
        num_tasks: tasks to score.
        seed: of those.
        known: the data of validation tasks.
        asked: the data of those that are scored.
    """
    at, predictor = _step_numbers(0, at), setup.predictor
    if at[0] == 0:
        raise ValueError("classes are scored after steps: ask for numbers of steps from 1 on")
    size = min(side_by_side(setup, at, validation, known), side_by_side(setup, at, num_tasks, asked))
    own = _batches(task_keys(jax.random.key(VALIDATION_SEED), validation), size)
    others = _batches(task_keys(jax.random.key(seed), num_tasks), size)

    def one_batch(batch):
        is_asked, keys = batch
        draw = lambda pool: jax.vmap(lambda key: _drawn(setup, key, pool))(keys)
        episodes = jax.lax.cond(is_asked, lambda: draw(asked), lambda: draw(known))
        adapt = lambda key, episode: _adapted(setup, predictor, state, key, at, episode)[1]
        return jax.vmap(adapt)(keys, episodes), episodes.query.y

    is_asked = jnp.arange(len(own) + len(others)) >= len(own)
    found = jax.lax.map(one_batch, (is_asked, jnp.concatenate([own, others])))
    of_first = lambda leaf: _unbatched(leaf[: len(own)], validation)
    of_rest = lambda leaf: _unbatched(leaf[len(own) :], num_tasks)
    return jax.tree.map(of_first, found), jax.tree.map(of_rest, found)


def scores_of_parts(predictor: Predictor, parts: Any, targets: Array, calibration: Calibration) -> ClassScores:
    """Of parts [tasks, steps, …] with a calibration for each number of steps."""
    score = lambda parts, fitted, y: class_scores(predictor.finish(parts, fitted), y)
    every_task = jax.vmap(jax.vmap(score, in_axes=(0, 0, None)), in_axes=(0, None, 0))
    return every_task(parts, calibration, targets)


def in_batches(one: Any, keys: Array, size: int) -> Any:
    """one(key) of every key, `size` of them at a time.

    The last batch is filled up: one of another size, as `jax.lax.map` has it, would be compiled once more.
    """
    found = jax.lax.map(jax.vmap(one), _batches(keys, size))
    return jax.tree.map(lambda leaf: _unbatched(leaf, len(keys)), found)


def _batches(keys: Array, size: int) -> Array:
    count = -(-len(keys) // size)
    return keys[jnp.minimum(jnp.arange(count * size), len(keys) - 1)].reshape(count, size)


def _unbatched(leaf: Array, count: int) -> Array:
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])[:count]


def side_by_side(setup: Setup, at: Sequence[int], num_tasks: int, pool: tuple) -> int:
    """How many tasks to judge at a time: large images would fill the memory."""
    if setup.tasks.shape is None:
        return min(num_tasks, TOGETHER)
    task = jax.eval_shape(setup.tasks.evaluation, jax.random.key(0), *pool)
    height, width, _ = setup.tasks.shape
    pixels = (task.support.x.shape[0] + len(at) * task.query.x.shape[0]) * height * width
    return max(1, min(num_tasks, TOGETHER, PIXELS // pixels))


def _step_numbers(steps: int, at: Sequence[int] | None) -> tuple[int, ...]:
    at = tuple(range(steps + 1)) if at is None else tuple(at)
    if not at or at[0] < 0 or any(b <= a for a, b in itertools.pairwise(at)):
        raise ValueError(f"the numbers of steps to look at must rise from zero or more, got {list(at)}")
    return at


def _joined(first, later):
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)


def task_scores(predictor: Predictor, parts, calibration: Calibration, episode) -> Any:
    """Of one task at one number of steps."""
    predictive, y = predictor.finish(parts, calibration), episode.query.y
    if isinstance(predictive, ClassPredictive):
        return class_scores(predictive, y)
    mean, std = predictive.moments()
    low, high = predictive.interval(0.9)
    inside = ((y >= low) & (y <= high)).astype(y.dtype)
    near = metrics.near_and_far(episode.query.x, episode.support.x, NEAR)[0].astype(y.dtype)[:, None]
    near = jnp.broadcast_to(near, y.shape)
    return TaskScores(
        mse=jnp.square(mean - y).mean(),
        nll=-predictive.log_density(y).mean(),
        crps=metrics.crps(y, predictive.mean, predictive.std),
        coverage90=inside.mean(),
        coverage90_near=(inside * near).mean(),  # divided by the share of near points when tasks are pooled
        coverage90_far=(inside * (1 - near)).mean(),
        share_near=near.mean(),
        rank_correlation=metrics.rank_correlation(std, jnp.abs(mean - y)),
    )


def summary(scores: TaskScores | ClassScores, at: Sequence[int]) -> dict[str, Any]:
    """Averages over tasks per step, with the half-width of the 95 % interval of error or accuracy, ready for JSON."""
    values = _class_summary(scores) if isinstance(scores, ClassScores) else _curve_summary(scores)
    as_list = lambda array: [None if not jnp.isfinite(v) else float(v) for v in array]
    return {"steps": list(at), "tasks": len(scores.nll), **{k: as_list(v) for k, v in values.items()}}


def _curve_summary(scores: TaskScores) -> dict[str, Any]:
    pooled = pool(jax.tree.map(lambda leaf: leaf.mean(axis=0), scores))
    return pooled._asdict() | {"mse_ci95": 1.96 * scores.mse.std(axis=0) / len(scores.mse) ** 0.5}


def _class_summary(scores: ClassScores) -> dict[str, Any]:
    by_step = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), scores)
    reliabilities = [
        calibration_error(jax.tree.map(lambda leaf, i=i: leaf[i], by_step)) for i in range(len(by_step.nll))
    ]
    return {
        "accuracy": scores.accuracy.mean(axis=0),
        "accuracy_ci95": 1.96 * scores.accuracy.std(axis=0) / len(scores.accuracy) ** 0.5,
        "nll": scores.nll.mean(axis=0),
        "ece": [metrics.ece(table) for table in reliabilities],
        "mce": [metrics.mce(table, min_count=RARE) for table in reliabilities],
    }


def pool(means: TaskScores) -> TaskScores:
    """Averages over tasks, with coverage near and far from the support per point that lies there."""
    near = means.share_near
    return means._replace(
        coverage90_near=jnp.where(near > 0, means.coverage90_near / jnp.maximum(near, 1e-12), jnp.nan),
        coverage90_far=jnp.where(near < 1, means.coverage90_far / jnp.maximum(1 - near, 1e-12), jnp.nan),
    )
