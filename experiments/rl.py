"""Reinforcement learning: priors over policies, and what a few updates make of them (the paper's third experiment).

The studies `rl-navigation`, `rl-cheetah-velocity` and `rl-cheetah-direction` are this one in three environments. A cell is a
method. It first tries a few meta-rates on validation tasks, as many as every other, then trains every seed with the best of them.
The inner rate is the paper's. `scratch` is the control without a prior: fresh policies, trained on each test task alone.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from experiments import rl_measures, rl_training, study
from experiments.rl_training import Plan
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED
from metaprior.meta import State
from metaprior.rl import rows
from metaprior.rl.controls import Curve, scratch_returns
from metaprior.rl.environment import Environment
from metaprior.rl.named import environment_called
from metaprior.rl.rollouts import Rollouts
from metaprior.rl.setup import RLSetup, rl_setup

SCRATCH = "scratch"
METHODS = (
    "gem-bml+", "gem-bml", "reptile", "maml", "maml-trpo", "fomaml", "pretrain", "gem-bml+rates", "gem-bml+trpo", SCRATCH,
)  # fmt: skip
RETURNS, TRUST, POLICIES = "own updates", "trust-region updates", "adapted policies"


@dataclass(frozen=True)
class Settings:
    """One environment."""

    environment: str
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = METHODS
    iterations: int = 300
    shortened: tuple[tuple[str, int], ...] = ()
    """Iterations of methods that cost more."""
    looks: int = 15
    """Points of a learning curve."""
    meta_batch: int = 20
    rollouts: int = 20
    """Of each inner step in training, and of each query."""
    horizon: int | None = None
    """Steps of a trajectory; None is the environment's own."""
    factors: tuple[float, ...] = (0.3, 1.0, 3.0)
    """Of the row's meta-rate, or of the bound of a meta-step of TRPO, that are tried; the paper's rate is among them."""
    search_looks: int = 3
    """Length of a trial: so many of the pieces that a learning curve is made of."""
    search_seed: int = 100
    validation: tuple[int, int] = (20, 20)
    """Tasks of a look, and trajectories of each update and mean."""
    updates: int = 3
    test: tuple[int, int] = (40, 40)
    drawn: int = 4
    """Test tasks whose trajectories are kept."""
    scratch: tuple[int, ...] = (0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200)
    """Updates after which training from scratch is looked at."""
    scratch_rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    """Of Adam."""


def cells(settings: Settings) -> list[study.Cell]:
    """A method."""
    return [(name,) for name in settings.methods]


def iterations_of(settings: Settings, name: str) -> int:
    """Of a training: what costs more a step gets fewer of them."""
    return dict(settings.shortened).get(name, settings.iterations)


def put(
    settings: Settings, name: str, number: Any = None, *, environment: Environment | None = None, **changes: Any
) -> RLSetup:
    """The pieces of a method; the number is its meta-rate, or the bound of its meta-step."""
    environment = environment or place_of(settings)
    is_region = rows.get(name).meta_update == "trpo"
    if number is not None and not is_region:
        changes["meta_rate"] = number
    return rl_setup(
        environment,
        rows.get(name, meta_batch=settings.meta_batch, **changes),
        rollouts=settings.rollouts,
        queries=settings.rollouts,
        eval_rollouts=settings.test[1],
        region={"max_kl": number} if number is not None and is_region else None,
        check=False,
    )


def place_of(settings: Settings) -> Environment:
    """Where agents act. Not to be made while a program is traced: an engine's own arrays would become a part of it."""
    return environment_called(settings.environment, horizon=settings.horizon)


def numbers_of(settings: Settings, name: str) -> list[float]:
    """What is tried: meta-rates, or bounds, around that of the row."""
    row = rows.get(name)
    centre = 0.01 if row.meta_update == "trpo" else row.method.meta_rate
    return [float(f"{factor * centre:.3g}") for factor in settings.factors]


def plan_of(settings: Settings, name: str) -> Plan:
    """How the method is trained."""
    every = iterations_of(settings, name) // settings.looks
    environment = place_of(settings)
    made = lambda number: put(settings, name, number, environment=environment)
    return Plan(made, every, settings.updates, *settings.validation)


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The row of the method, what is tried, and how long it trains."""
    name = cell[0]
    if name == SCRATCH:
        return rl_training.identity(put(settings, "maml"))
    who = {"numbers": numbers_of(settings, name), "iterations": iterations_of(settings, name)}
    return {**rl_training.identity(put(settings, name)), **who}


def decides(settings: Settings) -> Settings:
    """Which other methods there are, and how long those train, decides nothing for one."""
    return replace(settings, methods=(), iterations=0, shortened=())


def forget(settings: Settings) -> None:
    """Throw away the trainings that are kept."""
    for (name,) in cells(settings):
        if name == SCRATCH:
            continue
        for numbers, seeds, iterations in _trainings(settings, name):
            shutil.rmtree(_folder(settings, name, numbers, seeds, iterations), ignore_errors=True)


def _trainings(settings: Settings, name: str) -> list[tuple[list[float], tuple[int, ...], int]]:
    """The search, and what may follow from it."""
    numbers, plan = numbers_of(settings, name), plan_of(settings, name)
    search = (numbers, (settings.search_seed,) * len(numbers), settings.search_looks * plan.every)
    whole = iterations_of(settings, name)
    return [search, *(([number] * len(settings.seeds), settings.seeds, whole) for number in numbers)]


def _folder(settings: Settings, name: str, numbers: Sequence[float], seeds: Sequence[int], iterations: int):
    who = [rl_training.identity(put(settings, name)), plan_of(settings, name)[1:]]
    return rl_training.state_folder(who, f"{settings.environment}-{name}", numbers, seeds, iterations)


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Search, train, and ask in test tasks."""
    (name,) = cell
    if name == SCRATCH:
        return from_scratch(settings)
    plan = plan_of(settings, name)
    advance = rl_training.programs(plan)

    def train(numbers, seeds, iterations):
        folder = _folder(settings, name, numbers, seeds, iterations)
        return rl_training.train(plan, advance, numbers, seeds, iterations, folder)

    search, *_ = trainings = _trainings(settings, name)
    number, tried = rl_training.chosen(search[0], train(*search)) if settings.search_looks else (search[0][0], [])
    kept = train(*next(each for each in trainings[1:] if each[0][0] == number))
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
        "tried": tried,
        "finite": np.asarray(kept.finite).tolist(),
        "left_out": np.asarray(kept.left_out).tolist(),
        "training_seconds": round(float(kept.seconds), 1),
        "engine": jax.default_backend(),
        "task_returns": rounded(found.returns, 3),
        "by_trust": None if by_trust is None else rounded(by_trust.returns, 3),
        "log_std": rounded(found.log_std, 4),
        "shown": shown_paths(settings, found),
    }
    return {"rows": rows_of(settings, name, found, by_trust), "curves": {name: curve}}


def judged(settings: Settings, setup: RLSetup, states: State) -> rl_measures.Found:
    """What every seed's prior leads to on the test tasks, which are the same for all."""
    num_tasks, count = settings.test

    @jax.jit
    def one(state):
        return rl_measures.explore(
            setup, state, updates=settings.updates, num_tasks=num_tasks, count=count, drawn=settings.drawn
        )

    found = [
        jax.tree.map(np.asarray, one(jax.tree.map(lambda leaf, seed=seed: leaf[seed], rl_training.bare(states))))
        for seed in range(len(settings.seeds))
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


def from_scratch(settings: Settings) -> study.Results:
    """Fresh policies: the first updates are those of the methods, then as long as it takes, with Adam."""
    num_tasks, count = settings.test
    plain, steps = put(settings, "maml"), tuple(range(settings.updates + 1))
    known = lambda setup: (setup.learner, setup.environment, setup.policy)
    test = jax.random.key(TEST_SEED)
    few = scratch_returns(test, *known(plain), updates=steps, num_tasks=num_tasks, count=count)
    made = []
    for step in steps:
        mean, ci95 = study.mean_and_ci(np.asarray(few.returns)[:, step])
        found = study.row(setting=RETURNS, method=SCRATCH, metric=f"return after {step}", mean=mean, ci95=ci95)
        made.append({**found, "seeds": 1})  # every task has fresh weights of its own
    trials = [_long(settings, rate, trial=True) for rate in settings.scratch_rates]
    scores = [float(np.asarray(trial.returns)[:, -1].mean()) for trial in trials]
    rate = settings.scratch_rates[int(np.argmax(scores))]
    curve = _long(settings, rate, trial=False)
    return {
        "rows": made,
        "curves": {
            SCRATCH: {
                "updates": list(curve.updates),
                "steps": list(curve.steps),
                "returns": rounded(np.asarray(curve.returns).mean(axis=0), 3),
                "few": rounded(few.returns, 3),
                "number": rate,
                "tried": [{"number": r, "validation": s} for r, s in zip(settings.scratch_rates, scores, strict=True)],
            }
        },
    }


def _long(settings: Settings, rate: float, *, trial: bool) -> Curve:
    """As usual in a single task; a trial is shorter, and in validation tasks."""
    setup = put(settings, "maml", optimizer="adam", rate=rate)
    marks = (settings.scratch[-1] // 2,) if trial else settings.scratch
    num_tasks, count = settings.validation if trial else settings.test
    key = jax.random.key(VALIDATION_SEED if trial else TEST_SEED)
    return scratch_returns(
        key, setup.learner, setup.environment, setup.policy, updates=marks, num_tasks=num_tasks, count=count
    )


def rounded(values: Any, digits: int) -> Any:
    """In doubles: rounded single precision is long again in JSON."""
    return np.round(np.asarray(values, float), digits)
