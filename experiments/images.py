"""A method on images as an experiment runs it, and how it is judged: what the studies of few-shot classification share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import study
from experiments.turns import by_turns
from metaprior import methods, metrics
from metaprior.classes import ClassScores, calibration_error
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED, calibrated_class_scores
from metaprior.meta import State
from metaprior.recipes import recipe
from metaprior.settings import Settings, Setup, as_dict, assemble, differentiated_once

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


def as_sweep(setup: Setup | Sweep, count: int) -> Sweep:
    """The same pieces for every training are those of rows without numbers."""
    return setup if isinstance(setup, Sweep) else Sweep(lambda _: setup, np.zeros((count, 0)))


def of_characters(setup: Setup) -> bool:
    return setup.settings.tasks == "omniglot"


def identity(setup: Setup) -> dict[str, Any]:
    """All that decides the outcome of a training besides its seed, for the record; where images lie does not."""
    settings = {**as_dict(setup.settings), "data_dir": None}
    return study.plain({"settings": settings, "method": setup.learner.method._asdict()})


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
    sweep = as_sweep(setup, len(states.iteration))
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
    convolved = differentiated_once(setup.learner.method) and not of_characters(setup)
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
