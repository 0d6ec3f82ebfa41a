"""Training and judging a method on images, all seeds in one program: what the studies of few-shot classification share."""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from experiments import study
from experiments.turns import by_turns
from metaprior import checkpoints, methods, metrics
from metaprior.classes import ClassScores, calibration_error
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED, calibrated_class_scores
from metaprior.meta import State, trainer
from metaprior.recipes import recipe
from metaprior.settings import WATCH_EVERY, Settings, Setup, as_dict, assemble, differentiated_once
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

    def within(self, fields: Iterable[tuple[str, Any]]) -> "Variant":
        """The same with other fields of the settings around it."""
        return self._replace(around={**self.around, **dict(fields)})


class Protocol(NamedTuple):
    """How test tasks are asked."""

    words: str
    queries: int  # of each class
    inductive: bool
    tasks: int
    views: bool = False  # whether answers are averaged over views of an image


PROTOCOLS = {
    "paper": Protocol("the paper's protocol: one query a class, classified together", 1, False, 600),
    "views": Protocol(
        "the same, answers averaged over views: turned and shifted, or mirrored", 1, False, 600, views=True
    ),
    "strict": Protocol("15 queries a class, classified together", 15, False, 1000),
    "inductive": Protocol("15 queries a class, one by one", 15, True, 1000),
}


def set_up(variant: Variant, *, tasks: str, setting: str, iterations: int, protocol: Protocol | None = None) -> Setup:
    """The pieces of a variant on N-way K-shot tasks of a set of images."""
    ways, shots = setting_of(setting)
    changed = {**recipe(tasks, variant.method, variant.around.get("network")), **variant.changes}
    return assemble(
        Settings(
            tasks=tasks, method=variant.method, ways=ways, shots=shots, iterations=iterations, **dict(variant.around)
        ),
        method=methods.get(variant.method, **changed),
        eval_queries=None if protocol is None else protocol.queries,
        inductive=protocol is not None and protocol.inductive,
        views=protocol is not None and protocol.views,
    )


class Sweep(NamedTuple):
    """Settings side by side in one program: they differ by traced numbers, of which there is a row for each training."""

    put: Callable[[Any], Setup]  # a row -> the pieces
    numbers: np.ndarray  # [trainings, numbers of a row]


def _sweep(setup: Setup | Sweep, count: int) -> Sweep:
    """The same pieces for every training are those of rows without numbers."""
    return setup if isinstance(setup, Sweep) else Sweep(lambda _: setup, np.zeros((count, 0)))


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
    sweep = _sweep(setup, len(seeds))
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
    if _of_characters(setup):
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
    return setup.learner.method.inference == "conjugate" or not _of_characters(setup)


def _of_characters(setup: Setup) -> bool:
    return setup.settings.tasks == "omniglot"


def identity(setup: Setup) -> dict[str, Any]:
    """All that decides the outcome of a training besides its seed, for the record; where images lie does not."""
    settings = {**as_dict(setup.settings), "data_dir": None}
    return study.plain({"settings": settings, "method": setup.learner.method._asdict()})


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


# Validation tasks are judged apart from those that temperatures are fitted on.
JUDGED_SEED = {"test": TEST_SEED, "validation": VALIDATION_SEED + 1}


def judge(
    setup: Setup | Sweep, states: State, *, steps: int, num_tasks: int, validation: int, split: str = "test"
) -> ClassScores:
    """Fit the temperature of each seed's prior on validation classes and score it: arrays [seeds, tasks, …]."""
    found = judge_at(setup, states, at=(steps,), num_tasks=num_tasks, validation=validation, split=split)
    return jax.tree.map(lambda leaf: leaf[:, :, 0], found)


def judge_at(
    setup: Setup | Sweep, states: State, *, at: Sequence[int], num_tasks: int, validation: int, split: str = "test"
) -> ClassScores:
    """The same after several numbers of steps, each with its temperature: arrays [seeds, tasks, numbers, …]."""
    sweep = _sweep(setup, len(states.iteration))
    asking = {"at": tuple(at), "validation": validation, "num_tasks": num_tasks, "seed": JUDGED_SEED[split]}

    # One program for all seeds, which runs once: what it is made of is much, what it does is little.
    @partial(jax.jit, compiler_options=without_trials(sweep.put(sweep.numbers[0])))
    def every_seed(numbers, states, known, asked):
        one = lambda each: calibrated_class_scores(sweep.put(each[0]), each[1], **asking, known=known, asked=asked)
        return jax.lax.map(one, (numbers, states))

    pool = sweep.put(sweep.numbers[0]).tasks.pool
    found, _ = by_turns(every_seed)(jnp.asarray(sweep.numbers), states, pool("validation"), pool(split))
    return jax.tree.map(np.asarray, found)


def without_trials(setup: Setup) -> dict[str, Any] | None:
    """For what runs once: on a GPU the compiler would try many ways to multiply, which takes longer than to run one of them.

    Not so where a library convolves photographs: that is most of what runs, and worth the trials.
    """
    if jax.default_backend() != "gpu":
        return None
    options: dict[str, Any] = {"xla_gpu_enable_triton_gemm": False}
    convolved = differentiated_once(setup.learner.method) and not _of_characters(setup)
    return options if convolved else options | {"xla_gpu_autotune_level": 0}


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
