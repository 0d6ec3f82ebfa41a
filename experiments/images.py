"""Training and judging a method on images, all seeds in one program: what the studies of few-shot classification share."""

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from experiments import study
from metaprior import checkpoints, methods, metrics
from metaprior.classes import ClassScores, calibration_error
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED, calibrate_steps, scores
from metaprior.meta import State, trainer
from metaprior.recipes import recipe
from metaprior.settings import Settings, Setup, as_dict, assemble
from metaprior.training import initial_state, watched_mean

TEST_STEPS = 10  # of the paper, on all sets of images


class Setting(NamedTuple):
    """N-way K-shot tasks."""

    ways: int
    shots: int


def setting_of(name: str) -> Setting:
    """What `5w1s` means.

    >>> setting_of("20w5s")
    Setting(ways=20, shots=5)
    """
    ways, _, shots = name.removesuffix("s").partition("w")
    return Setting(int(ways), int(shots))


class Variant(NamedTuple):
    """A method as an experiment runs it: a row of the table, what is changed in it, and in the settings around it."""

    method: str
    changes: Mapping[str, Any] = {}
    around: Mapping[str, Any] = {}  # fields of Settings: queries, head, pooling, decay, …


class Protocol(NamedTuple):
    """How test tasks are asked."""

    words: str
    queries: int  # of each class
    inductive: bool
    tasks: int


PROTOCOLS = {
    "paper": Protocol("the paper's protocol: one query a class, classified together", 1, False, 600),
    "strict": Protocol("15 queries a class, classified together", 15, False, 1000),
    "inductive": Protocol("15 queries a class, one by one", 15, True, 1000),
}


def set_up(variant: Variant, *, tasks: str, setting: str, iterations: int, protocol: Protocol | None = None) -> Setup:
    """The pieces of a variant on N-way K-shot tasks of a set of images."""
    ways, shots = setting_of(setting)
    changed = {**recipe(tasks, variant.method), **variant.changes}
    return assemble(
        Settings(
            tasks=tasks, method=variant.method, ways=ways, shots=shots, iterations=iterations, **dict(variant.around)
        ),
        method=methods.get(variant.method, **changed),
        eval_queries=None if protocol is None else protocol.queries,
        inductive=protocol is not None and protocol.inductive,
    )


class Trained(NamedTuple):
    """States of all seeds, and what it took."""

    states: State  # with a leading axis of seeds
    query_nll: np.ndarray  # [seeds, points]: on the query in training, averaged over a hundredth of the iterations
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


def train(setup: Setup, seeds: Sequence[int], *, chunk: int = 1000) -> Trained:
    """One training per seed, side by side. One of several chunks is kept as it goes, and goes on from there."""
    iterations = setup.settings.iterations
    chunk = min(chunk, iterations)
    folder = state_folder(setup, seeds) if iterations > chunk else None
    kept, done = _begun(setup, seeds, folder)
    pool = jax.device_put(setup.tasks.pool("train"))
    compiled = jax.jit(_advance(setup, len(seeds), chunk)).lower(kept.states, *pool).compile()
    while done < iterations // chunk * chunk:
        began = time.perf_counter()
        states, query_nll, fine = jax.block_until_ready(compiled(kept.states, *pool))
        kept = Kept(
            states,
            kept.query_nll.at[:, done : done + chunk].set(query_nll),
            kept.finite & fine,
            kept.seconds + (time.perf_counter() - began),
        )
        done += chunk
        if folder is not None and (time.monotonic() - _saved.get(folder, 0) > SAVE_SECONDS or done == iterations):
            checkpoints.save(folder, done, kept)
            _saved[folder] = time.monotonic()
    parts = np.array_split(np.asarray(kept.query_nll), min(POINTS, iterations), axis=1)
    averaged = np.stack([watched_mean(part) for part in parts], axis=1)
    return Trained(kept.states, averaged, np.asarray(kept.finite).tolist(), float(kept.seconds))


SAVE_SECONDS = 20.0  # between two savings
_saved: dict[Path, float] = {}


def _begun(setup: Setup, seeds: Sequence[int], folder: Path | None) -> tuple[Kept, int]:
    """Where training stands, and after how many iterations."""
    states = jax.jit(jax.vmap(lambda seed: initial_state(setup, seed)))(jnp.asarray(seeds))
    unseen = jnp.full((len(seeds), setup.settings.iterations), jnp.nan)
    fresh = Kept(states, unseen, jnp.ones(len(seeds), bool), jnp.zeros(()))
    if folder is None or not checkpoints.available(folder):
        return fresh, 0
    kept = checkpoints.restore(folder, fresh).tree
    return kept, int(kept.states.iteration[0])


def _advance(setup: Setup, num_seeds: int, chunk: int):
    learn = trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch)

    def advance(states, *pool):
        if num_seeds == 1:  # an axis of one would cost more than it says
            state, infos = learn(jax.tree.map(lambda leaf: leaf[0], states), chunk, *pool)
            return jax.tree.map(lambda leaf: leaf[None], (state, infos.query_nll, infos.finite.all()))
        state, infos = jax.vmap(lambda state: learn(state, chunk, *pool))(states)
        return state, infos.query_nll, infos.finite.all(axis=1)

    return advance


def state_folder(setup: Setup, seeds: Sequence[int]) -> Path:
    """Where a training is kept: another method, setting or seed, another folder."""
    settings = {**as_dict(setup.settings), "data_dir": None}
    what = json.dumps([study.plain(settings), study.plain(setup.learner.method._asdict()), list(seeds)], sort_keys=True)
    name = f"{settings['tasks']}-{settings['ways']}w{settings['shots']}s-{settings['method']}"
    return STATES / f"{name}-{sha256(what.encode()).hexdigest()[:16]}"


def judge(
    setup: Setup, states: State, *, steps: int, num_tasks: int, validation: int, split: str = "test"
) -> ClassScores:
    """Fit the temperature of each seed's prior on validation classes and score it: arrays [seeds, tasks, …]."""
    at, seed = (steps,), TEST_SEED if split == "test" else VALIDATION_SEED

    @jax.jit  # one program for all seeds: what it is made of is much, what it does is little
    def every_seed(states, known, asked):
        def one(state):
            calibration = calibrate_steps(setup, state, at=at, num_tasks=validation, pool=known)
            return scores(setup, state, calibration, at=at, num_tasks=num_tasks, seed=seed, pool=asked)

        return jax.lax.map(one, states)

    found = every_seed(states, setup.tasks.pool("validation"), setup.tasks.pool(split))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, :, 0], found)


MIN_COUNT = 2000  # predictions of a bin that counts in the largest calibration error


def rows(
    found: ClassScores, *, setting: str, method: str, protocol: str, paper: float | None = None
) -> list[dict[str, Any]]:
    """Accuracy in per cent with its interval over tasks and seeds, likelihood, and calibration of all predictions."""
    accuracy, ci95 = study.mean_and_ci(100 * found.accuracy)
    nll, nll_ci95 = study.mean_and_ci(found.nll)
    table = calibration_error(found)
    low = min(MIN_COUNT, found.correct.size // 20)
    numbers = {
        "accuracy": (accuracy, ci95, paper),
        "NLL": (nll, nll_ci95, None),
        "ECE": (float(metrics.ece(table)), None, None),
        "MCE": (float(metrics.mce(table, min_count=max(low, 1))), None, None),
    }
    return [
        study.row(setting=setting, method=method, metric=f"{word}, {protocol}", mean=mean, ci95=ci95, paper=paper)
        for word, (mean, ci95, paper) in numbers.items()
    ]
