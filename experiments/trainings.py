"""Trainings on images, all seeds in one program, kept on the way and at the end: what few-shot studies share."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from experiments import study
from experiments.images import Sweep, as_sweep, identity, of_characters
from experiments.turns import by_turns
from metaprior import checkpoints
from metaprior.meta import State, trainer
from metaprior.settings import WATCH_EVERY, Setup
from metaprior.training import initial_state, watched_mean


class Trained(NamedTuple):
    """States of all seeds, and what it took."""

    states: State  # with a leading axis of seeds, or of the rows of a sweep
    query_nll: np.ndarray  # [seeds, points]: on the query in training, averaged between
    finite: list[bool]
    seconds: float  # of training alone, without compilation


class Kept(NamedTuple):
    """What a long training keeps on the way, so that it goes on where it was cut off: on another machine, too."""

    states: State
    query_nll: Array  # [seeds, iterations], NaN where nobody looked or is yet to come
    finite: Array
    seconds: Array


POINTS = 100
STATES = study.ROOT / ".cache" / "reproduce" / "states"


# Iterations of one call, which nobody can interrupt, save or take turns with: of photographs a tenth, since each takes longer,
# and far fewer with a deep network.
CHUNK, CHUNK_OF_PHOTOGRAPHS, CHUNK_OF_RESNET = 1000, 100, 10


def train(
    setup: Setup | Sweep,
    seeds: Sequence[int],
    *,
    chunk: int | None = None,
    ended: Callable[[Sequence[int], State], None] = lambda seeds, states: None,
) -> Trained:
    """One training per seed, side by side; of a sweep, each row with its own. What has several chunks is kept, and goes on.

    `ended` is called with seeds that are trained, and their states, before the others begin where one fills a card.
    """
    sweep = as_sweep(setup, len(seeds))
    first = sweep.put(sweep.numbers[0])
    iterations = first.settings.iterations
    chunk = min(chunk or _chunk(first), iterations)
    if iterations % chunk:
        raise ValueError(f"{iterations} iterations are no multiple of a chunk: make them one of {chunk}")
    pool, advance = jax.device_put(first.tasks.pool("train")), by_turns(jax.jit(_advance(sweep.put, chunk)))
    groups = []
    for group in _groups(setup, seeds):
        mine = sweep._replace(numbers=sweep.numbers[: len(group)])
        kept, done = _begun(
            mine, group, folder := state_folder(setup, group) if iterations > chunk else None, iterations
        )
        while done < iterations:
            (states, query_nll, fine), seconds = advance(jnp.asarray(mine.numbers), kept.states, *pool)
            kept = Kept(
                states,
                kept.query_nll.at[:, done : done + chunk].set(query_nll),
                kept.finite & fine,
                kept.seconds + seconds,
            )
            done += chunk
            if folder is not None and (time.monotonic() - _saved.get(folder, 0) > SAVE_SECONDS or done == iterations):
                checkpoints.save(folder, done, kept)
                _saved[folder] = time.monotonic()
        groups.append(kept)
        ended(group, kept.states)
    return _trained(groups)


def _chunk(setup: Setup) -> int:
    if of_characters(setup):
        return CHUNK
    return CHUNK_OF_RESNET if setup.settings.network == "resnet12" else CHUNK_OF_PHOTOGRAPHS


def _groups(setup: Setup | Sweep, seeds: Sequence[int]) -> list[list[int]]:
    """Seeds that are trained side by side and kept together.

    Where one fills a card they come one after the other, each kept by itself: a study that asks for one of them finds it there.
    """
    apart = not isinstance(setup, Sweep) and _fills_a_card(setup)
    return [[seed] for seed in seeds] if apart else [list(seeds)]


def _trained(groups: Sequence[Kept]) -> Trained:
    states = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(kept.states for kept in groups))
    query_nll = np.concatenate([kept.query_nll for kept in groups])
    finite = np.concatenate([kept.finite for kept in groups]).tolist()
    # Every point has an iteration that was looked at.
    parts = np.array_split(query_nll, max(1, min(POINTS, query_nll.shape[1] // WATCH_EVERY)), axis=1)
    averaged = np.stack([watched_mean(part) for part in parts], axis=1)
    return Trained(states, averaged, finite, float(sum(kept.seconds for kept in groups)))


SAVE_SECONDS = 20.0  # between two savings
_saved: dict[Path, float] = {}


def _begun(sweep: Sweep, seeds: Sequence[int], folder: Path | None, iterations: int) -> tuple[Kept, int]:
    """Where training stands, and after how many iterations."""
    first = jax.vmap(lambda numbers, seed: initial_state(sweep.put(numbers), seed))
    states = jax.jit(first)(jnp.asarray(sweep.numbers), jnp.asarray(seeds))
    unseen = jnp.full((len(seeds), iterations), jnp.nan)
    fresh = Kept(states, unseen, jnp.ones(len(seeds), bool), jnp.zeros(()))
    if folder is None or not checkpoints.available(folder):
        return fresh, 0
    kept = checkpoints.restore(folder, fresh).tree
    return kept, int(kept.states.iteration[0])


def _advance(put: Callable[[Any], Setup], chunk: int):
    def one(numbers, state, pool):
        setup = put(numbers)
        learn = trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch)
        state, infos = learn(state, chunk, *pool)
        return state, infos.query_nll, infos.finite.all()

    def advance(numbers, states, *pool):
        if len(numbers) == 1:  # an axis of one would cost more than it says
            state = jax.tree.map(lambda leaf: leaf[0], states)
            return jax.tree.map(lambda leaf: leaf[None], one(numbers[0], state, pool))
        if _fills_a_card(put(numbers[0])):
            return jax.lax.map(lambda each: one(each[0], each[1], pool), (numbers, states))
        return jax.vmap(one, in_axes=(0, 0, None))(numbers, states, pool)

    return advance


def _fills_a_card(setup: Setup) -> bool:
    """Whether trainings take turns: side by side they would be no faster and need the memory of all.

    With the exact last layer all tasks share one set of convolutions, which a card does faster than several sets side by side.
    """
    return setup.learner.method.inference == "conjugate" or not of_characters(setup)


def state_folder(setup: Setup | Sweep, seeds: Sequence[int]) -> Path:
    """Where a training is kept: another method, setting or seed, another folder."""
    all_of_them = [setup.put(row) for row in setup.numbers] if isinstance(setup, Sweep) else [setup]
    who = [_as_trained(identity(each)) for each in all_of_them]
    settings = who[0]["settings"]
    what = json.dumps([who if isinstance(setup, Sweep) else who[0], list(seeds)], sort_keys=True)
    name = f"{settings['tasks']}-{settings['ways']}w{settings['shots']}s-{settings['method']}"
    return STATES / f"{name}-{sha256(what.encode()).hexdigest()[:16]}"


def _as_trained(who: dict[str, Any]) -> dict[str, Any]:
    """A prior that is trained with 20 classes of one image is the same, with whatever numbers of them it is asked."""
    settings = dict(who["settings"])
    trained = {"ways": settings["train_ways"], "shots": settings.pop("train_shots", None)}
    changed = {name: settings[name] if value is None else value for name, value in trained.items()}
    return who | {"settings": settings | changed | {"train_ways": None}}


def forget(setup: Setup | Sweep, seeds: Sequence[int]) -> None:
    """Throw a training away that is kept."""
    for group in _groups(setup, seeds):
        shutil.rmtree(state_folder(setup, group), ignore_errors=True)
