"""From groups to a prior: training in one compiled program, stopped and calibrated by groups that were held out."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.calibration import calibrate
from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.folds import folds
from metaprior.estimators.groups import Groups, chosen, draw_episode
from metaprior.estimators.pieces import Pieces
from metaprior.meta import State, task_keys, trainer
from metaprior.predict import Calibration
from metaprior.types import Episode, Prior

CHUNKS = 10  # looks at the groups held out, in the course of a training
EPISODES = 300  # drawn from them, or as many in all turns together
AT_ONCE = (
    50  # of them; XLA's CPU threads were seen to wait for each other for ever over what is left of an uneven division
)


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
    groups: tuple[int, int]  # learned from, and held out; all of them are both where they were held out in turn


class Diverged(RuntimeError):
    """Training left the finite numbers."""


class _Programs(NamedTuple):
    """What is compiled once for all turns, and where they all begin."""

    start: State
    train: Callable[..., Any]  # (state, iterations, *groups) -> state, infos
    draw: Callable[..., Episode]  # (keys, *groups) -> episodes
    judge: Callable[..., Array]  # (state, episodes) -> log density


class _Turn(NamedTuple):
    """One training: its states at the start and after every tenth, and how well they answered for groups held out."""

    states: list[State]
    scores: list[float]
    episodes: Episode


def learn(pieces: Pieces, groups: Groups, course: Course, report: Callable[[int], None] = lambda done: None) -> Outcome:
    """Train, look at the groups held out after every tenth, keep the best state, calibrate it there.

    Groups are held out for two things that the others cannot tell: when to stop, and how sure predictions may be. Where groups
    are few (`folds`), each is held out in turn, both are asked of all of them together, and the prior is learned from all.
    """
    with small_and_precise():
        return _learn(pieces, groups, course, report)


def _learn(pieces: Pieces, groups: Groups, course: Course, report: Callable[[int], None]) -> Outcome:
    key_split, key_model, key_learner, key_held = jax.random.split(jax.random.key(course.seed), 4)
    start = pieces.learner.init(key_learner, pieces.model.init(key_model))
    run, count = _programs(pieces, start, groups, course), len(groups.counts)
    turns, found = folds(key_split, count, course.held_out), []
    size = AT_ONCE * max(1, round(EPISODES / AT_ONCE / len(turns)))
    keys = task_keys(key_held, size * len(turns))
    for number, fold in enumerate(turns):
        told = lambda done, before=number * course.iterations: report(before + done)
        episodes = run.draw(keys[number * size :][:size], *chosen(groups, fold.held))
        states = list(_states(run, chosen(groups, fold.learned), course.iterations, told))
        found.append(_Turn(states, [float(run.judge(state, episodes)) for state in states], episodes))
    scores = _scores(found, course)
    best = len(scores) - 1 - int(np.nanargmax(scores[::-1]))
    calibration = _calibrated(pieces, [(turn.states[best], turn.episodes) for turn in found])
    calibration = less_sure(calibration, sum(len(fold.held) for fold in turns))
    state, counts = found[0].states[best], (len(turns[0].learned), len(turns[0].held))
    if len(turns) > 1:
        told = lambda done: report(len(turns) * course.iterations + done)
        *_, state = islice(_states(run, groups, course.iterations, told), best + 1)
        counts = (count, count)
    prior, memory, calibration = jax.tree.map(np.asarray, (state.prior, state.memory, calibration))
    return Outcome(prior, memory, calibration, scores, counts)


def _programs(pieces: Pieces, start: State, groups: Groups, course: Course) -> _Programs:
    draw = partial(draw_episode, shots=course.shots, queries=course.queries)
    batch = min(course.meta_batch, len(groups.counts))  # more would be the same groups over again
    return _Programs(
        start,
        jax.jit(trainer(pieces.learner, draw, batch), static_argnums=1),
        jax.jit(lambda keys, *groups: jax.vmap(lambda key: draw(key, *groups))(keys)),
        jax.jit(partial(judged, pieces)),
    )


def _states(run: _Programs, groups: Groups, iterations: int, report: Callable[[int], None]) -> Iterator[State]:
    """The start, and the state after every tenth of a training, for as long as its numbers are finite."""
    state, pool = run.start, jax.device_put(tuple(groups))
    yield state
    for length in np.diff(np.linspace(0, iterations, CHUNKS + 1).astype(int)):
        state, infos = run.train(state, int(length), *pool)
        if not bool(infos.finite.all()):
            return
        report(int(state.iteration))
        yield state


def _scores(found: list[_Turn], course: Course) -> Float[np.ndarray, " chunks"]:
    """The mean over turns, as far as all of them went."""
    length = min(len(turn.scores) for turn in found)
    if length == 1 and course.iterations:
        raise Diverged("training left the finite numbers at once: lower meta_rate, or scale columns that are extreme")
    return np.mean([turn.scores[:length] for turn in found], axis=0)


def judged(pieces: Pieces, state: State, episodes: Episode) -> Float[Array, ""]:
    """Log density of a query point given the support; exact where the head is, that of the posterior's mean otherwise."""

    def one(key, episode):
        _, _, (query_nll, value) = pieces.learner.gradient(key, state.prior, state.memory, episode)
        return value if pieces.exact else -query_nll

    keys = task_keys(jax.random.key(0), len(episodes.query.weight))
    values = jax.lax.map(lambda args: one(*args), (keys, episodes), batch_size=AT_ONCE)
    there = episodes.query.weight.sum(axis=1) > 0
    return jnp.where(there, values, 0).sum() / there.sum()


def _calibrated(pieces: Pieces, held: list[tuple[State, Episode]]) -> Calibration:
    """Width and noise of least NLL on the episodes of all turns, each answered by the state that never saw its groups."""
    predictor = pieces.predictor(0)

    def prepare(state, args):
        key, episode = args
        posteriors = pieces.learner.adapt(key, state, episode.support, pieces.steps)
        q = jax.tree.map(lambda leaf: leaf[-1], posteriors)
        return predictor.prepare(key, state.prior, q, episode.support, episode.query.x)

    @jax.jit
    def answered(state, episodes):
        keys = task_keys(jax.random.key(1), len(episodes.query.weight))
        return jax.lax.map(partial(prepare, state), (keys, episodes), batch_size=AT_ONCE), episodes.query

    parts, query = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(answered(*each) for each in held))
    return jax.jit(partial(calibrate, predictor))(parts, query.y, weights=query.weight)


def less_sure(calibration: Calibration, groups: int) -> Calibration:
    """Few groups tell the scale of errors only roughly: its logarithm to about (2·groups)^(-1/2), which adds to its spread."""
    return calibration._replace(spread=jnp.sqrt(jnp.square(calibration.spread) + 0.5 / groups))
