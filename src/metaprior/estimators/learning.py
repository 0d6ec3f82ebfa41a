"""From groups to a prior: training in one compiled program, the best state kept and calibrated on groups held out."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.calibration import calibrate
from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.groups import Groups, chosen, draw_episode
from metaprior.estimators.pieces import Pieces
from metaprior.meta import State, task_keys, trainer
from metaprior.predict import Calibration
from metaprior.types import Episode, Prior

CHUNKS = 10  # looks at the groups held out, in the course of a training
EPISODES = 300  # drawn from them
FEWEST = 10  # groups; with fewer, none are held out


class Course(NamedTuple):
    """How a prior is learned."""

    iterations: int
    meta_batch: int
    shots: tuple[int, int]  # least and largest number of support points
    queries: int
    held_out: float  # share of the groups
    seed: int


class Outcome(NamedTuple):
    """What was learned."""

    prior: Prior
    memory: Any
    calibration: Calibration
    log_density: Float[np.ndarray, " chunks"]  # on the groups held out: of a query point, before calibration
    groups: tuple[int, int]  # learned from, and held out


class Diverged(RuntimeError):
    """Training left the finite numbers."""


def learn(pieces: Pieces, groups: Groups, course: Course, report: Callable[[int], None] = lambda done: None) -> Outcome:
    """Train, look at the groups held out after every tenth, keep the best state, calibrate it there.

    Groups are held out for two things that the others cannot tell: when to stop, and how sure predictions may be. With fewer
    than ten groups there is none to spare, and both are asked of those that were learned from.
    """
    with small_and_precise():
        return _learn(pieces, groups, course, report)


def _learn(pieces: Pieces, groups: Groups, course: Course, report: Callable[[int], None]) -> Outcome:
    key_split, key_model, key_learner, key_held = jax.random.split(jax.random.key(course.seed), 4)
    fitted, held = _split(key_split, groups, course.held_out)
    draw = partial(draw_episode, shots=course.shots, queries=course.queries)
    train = jax.jit(trainer(pieces.learner, draw, course.meta_batch), static_argnums=1)
    pool = jax.device_put(tuple(fitted))
    episodes = jax.jit(lambda keys, *held: jax.vmap(lambda key: draw(key, *held))(keys))(
        task_keys(key_held, EPISODES), *held
    )
    judge = jax.jit(partial(judged, pieces))
    state = pieces.learner.init(key_learner, pieces.model.init(key_model))
    best, scores = state, [float(judge(state, episodes))]
    for length in np.diff(np.linspace(0, course.iterations, CHUNKS + 1).astype(int)):
        state, infos = train(state, int(length), *pool)
        if not bool(infos.finite.all()):
            break
        scores.append(float(judge(state, episodes)))
        best = state if scores[-1] >= np.nanmax(scores) else best
        report(int(state.iteration))
    if len(scores) == 1 and course.iterations:
        raise Diverged("training left the finite numbers at once: lower meta_rate, or scale columns that are extreme")
    calibration = jax.jit(partial(calibrated, pieces))(best, episodes)
    counts = (len(fitted.counts), len(held.counts) if held is not fitted else 0)
    prior, memory, calibration = jax.tree.map(np.asarray, (best.prior, best.memory, calibration))
    return Outcome(prior, memory, calibration, np.asarray(scores), counts)


def judged(pieces: Pieces, state: State, episodes: Episode) -> Float[Array, ""]:
    """Log density of a query point given the support; exact where the head is, that of the posterior's mean otherwise."""

    def one(key, episode):
        _, _, (query_nll, value) = pieces.learner.gradient(key, state.prior, state.memory, episode)
        return value if pieces.exact else -query_nll

    keys = task_keys(jax.random.key(0), EPISODES)
    values = jax.lax.map(lambda args: one(*args), (keys, episodes), batch_size=50)
    there = episodes.query.weight.sum(axis=1) > 0
    return jnp.where(there, values, 0).sum() / there.sum()


def calibrated(pieces: Pieces, state: State, episodes: Episode) -> Calibration:
    """Width and noise of least NLL on these episodes."""
    predictor = pieces.predictor(0)

    def prepare(args):
        key, episode = args
        posteriors = pieces.learner.adapt(key, state, episode.support, pieces.steps)
        q = jax.tree.map(lambda leaf: leaf[-1], posteriors)
        return predictor.prepare(key, state.prior, q, episode.support, episode.query.x)

    parts = jax.lax.map(prepare, (task_keys(jax.random.key(1), EPISODES), episodes), batch_size=50)
    return calibrate(predictor, parts, episodes.query.y, weights=episodes.query.weight)


def _split(key, groups: Groups, share: float) -> tuple[Groups, Groups]:
    count = len(groups.counts)
    held = round(share * count)
    if count < FEWEST or held < 1:
        return groups, groups
    order = np.asarray(jax.random.permutation(key, count))
    return chosen(groups, np.sort(order[held:])), chosen(groups, np.sort(order[:held]))
