"""Reinforcement learning: priors over policies, and what a few updates make of them (the paper's third experiment).

The studies `rl-navigation`, `rl-cheetah-velocity` and `rl-cheetah-direction` are this one in three environments. A cell is a
method. It trains every seed with every one of a few meta-rates, as many as every other method, all of them side by side; the
rate with the best mean over seeds on validation tasks is chosen, and its trainings are tested. The inner rate is the paper's.
`scratch` is the control without a prior.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import rl_measures, rl_scratch, rl_training, study
from experiments.rl_settings import (
    POLICIES,
    RETURNS,
    SCRATCH,
    TRUST,
    Settings,
    iterations_of,
    numbers_of,
    place_of,
    put,
    rounded,
)
from experiments.rl_training import Plan
from experiments.turns import by_turns
from metaprior.evaluation import TEST_SEED
from metaprior.meta import State
from metaprior.rl.rollouts import Rollouts
from metaprior.rl.setup import RLSetup


def cells(settings: Settings) -> list[study.Cell]:
    """A method."""
    return [(name,) for name in settings.methods]


def seeds_of(settings: Settings, cell: study.Cell) -> tuple[int, ...]:
    """All of them; from scratch every task has fresh weights of its own, once."""
    return settings.seeds[:1] if cell[0] == SCRATCH else settings.seeds


def plan_of(settings: Settings, name: str) -> Plan:
    """How the method is trained."""
    every = iterations_of(settings, name) // settings.looks
    environment = place_of(settings)
    made = lambda number, length=None: put(settings, name, number, length, environment=environment)
    return Plan(made, every, settings.updates, *settings.validation)


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The row of the method, what is tried, and how long it trains."""
    name = cell[0]
    if name == SCRATCH:
        return rl_training.identity(put(settings, "maml"))
    who = {"numbers": numbers_of(settings, name), "iterations": iterations_of(settings, name)}
    return {**rl_training.identity(put(settings, name)), **who}


def decides(settings: Settings) -> Settings:
    """Which other methods there are, how long those train and what they try decides nothing for one."""
    return replace(settings, methods=(), iterations=0, shortened=(), factors=(), bounds=())


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the trainings that are kept."""
    for folder in _folders(settings, cell[0]) if cell[0] != SCRATCH else ():
        shutil.rmtree(folder, ignore_errors=True)


def _folders(settings: Settings, name: str) -> list[Path]:
    """Of all trainings that there may be: the first numbers, and where they may lead."""
    numbers = numbers_of(settings, name)
    found = [_folder(settings, name, numbers)]
    for end in (0, -1):
        row = list(numbers)
        for _ in range(settings.beyond):
            if (further := rl_training.further(row, row[end])) is not None:
                row = sorted([*row, further])
                found.append(_folder(settings, name, [further]))
    return found


def _folder(settings: Settings, name: str, numbers: Sequence[float]) -> Path:
    """Where the trainings of all seeds with these numbers are kept."""
    who = [rl_training.identity(put(settings, name)), plan_of(settings, name)[1:]]
    trainings = rl_training.crossed(numbers, settings.seeds)
    return rl_training.state_folder(who, f"{settings.environment}-{name}", *trainings, iterations_of(settings, name))


def searched(settings: Settings, name: str) -> rl_training.Searched:
    """All seeds with every number."""
    plan, whole = plan_of(settings, name), iterations_of(settings, name)
    advance = rl_training.programs(plan)

    def train(numbers: Sequence[float]) -> rl_training.Kept:
        trainings = rl_training.crossed(numbers, settings.seeds)
        return rl_training.train(plan, advance, *trainings, whole, _folder(settings, name, numbers))

    return rl_training.search(train, numbers_of(settings, name), settings.beyond)


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train, choose, and ask in test tasks."""
    (name,) = cell
    if name == SCRATCH:
        return rl_scratch.from_scratch(settings)
    plan, search = plan_of(settings, name), searched(settings, name)
    number, kept = search.number, search.kept
    setup = put(settings, name, number)
    found = judged(settings, setup, kept.states)
    by_trust = (
        judged(settings, put(settings, "pretrain-trpo"), kept.states)
        if setup.learner.method.inference != "trpo"
        else None
    )
    curve = {
        "iterations": [plan.every * (look + 1) for look in range(kept.looks.shape[1])],
        "steps_per_iteration": setup.steps_per_iteration,
        "looks": rounded(kept.looks, 3),
        "number": number,
        "tried": search.tried,
        "finite": np.asarray(kept.finite).tolist(),
        "left_out": np.asarray(kept.left_out).tolist(),
        "side_by_side": search.side_by_side,
        "training_seconds": round(search.seconds, 1),
        "only_running": True,  # is timed, not compiling
        "engine": jax.default_backend(),
        "task_returns": rounded(found.returns, 3),
        "by_trust": None if by_trust is None else rounded(by_trust.returns, 3),
        "log_std": rounded(found.log_std, 4),
        "shown": shown_paths(settings, found),
    }
    return {"rows": rows_of(settings, name, found, by_trust), "curves": {name: curve}}


def judged(settings: Settings, setup: RLSetup, states: State, *, seed: int = TEST_SEED) -> rl_measures.Found:
    """What every seed's prior leads to on the test tasks, which are the same for all; another `seed`, other tasks."""
    num_tasks, count = settings.test

    @by_turns
    @jax.jit
    def one(state):
        return rl_measures.explore(
            setup, state, updates=settings.updates, num_tasks=num_tasks, count=count, drawn=settings.drawn, seed=seed
        )

    found = [
        jax.tree.map(np.asarray, one(jax.tree.map(lambda leaf, place=place: leaf[place], rl_training.bare(states)))[0])
        for place in range(len(settings.seeds))
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def rows_of(settings: Settings, name: str, found: rl_measures.Found, by_trust: rl_measures.Found | None) -> list[Any]:
    """Means with intervals over tasks and seeds."""

    def row(setting, metric, values):
        mean, ci95 = study.mean_and_ci(values)
        return study.row(setting=setting, method=name, metric=metric, mean=mean, ci95=ci95)

    made = [row(RETURNS, f"return after {step}", found.returns[..., step]) for step in range(settings.updates + 1)]
    if by_trust is not None:
        steps = range(settings.updates + 1)
        made += [row(TRUST, f"return after {step}", by_trust.returns[..., step]) for step in steps]
    return made + [row(POLICIES, word, values) for word, values in rl_measures.spread(found).items()]


def shown_paths(settings: Settings, found: rl_measures.Found) -> list[dict[str, Any]]:
    """Of the first seed: where agents go in a few tasks, before and after; of a cheetah, its limbs."""
    tasks = np.stack([np.ravel(leaf[0][d]) for d in range(settings.drawn) for leaf in jax.tree.leaves(found.shown)])
    paths = jax.tree.map(lambda leaf: leaf[0], found.paths)
    marks = sorted({0, 1, settings.updates})
    made = []
    for d, task in enumerate(tasks):
        by_update = {}
        for mark in marks:
            by_update[str(mark)] = _drawable(settings, jax.tree.map(lambda leaf, at=(d, mark): leaf[at], paths))
        made.append({"task": rounded(task, 4), "after": by_update})
    return made


FRAMES = 6


def _drawable(settings: Settings, lived: Rollouts) -> Any:
    if settings.environment == "rl-navigation":
        lengths = np.asarray(lived.mask).sum(axis=1).astype(int)
        return [rounded(path[:length], 3) for path, length in zip(lived.observations, lengths, strict=True)]
    seen = lived.observations[0]
    steps = tuple(int(step) for step in np.linspace(0, len(seen) - 1, FRAMES))
    return rl_measures.outlines(np.asarray(seen, float), steps)
