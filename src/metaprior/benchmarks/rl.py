"""How fast agents live: environment steps a second of rollouts and of whole meta-iterations, on whatever is at hand.

Half-cheetah runs on MuJoCo's C engine where JAX computes on a CPU, and by equations of its own where it has an
accelerator. The first call, which compiles, is not counted. The command is `metaprior bench rl`.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from metaprior.benchmarks.origin import commit, hardware
from metaprior.meta import State, task_keys, trainer
from metaprior.names import require_known
from metaprior.rl import rows
from metaprior.rl.cheetah_gap import engine_gap
from metaprior.rl.environment import Environment
from metaprior.rl.named import environment_called
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rollouts import rollouts, total_rewards
from metaprior.rl.setup import rl_setup

TASKS = 20  # of rollouts; trajectories are spread over them evenly


class Scale(NamedTuple):
    """How much is done at once."""

    trajectories: int = 800
    """Of rollouts: a meta-iteration on navigation has as many."""
    meta_batch: int | None = None
    """None is the paper's: 20 in navigation, 40 with half-cheetah."""
    rollouts: int = 20
    horizon: int | None = None
    repeats: int = 5
    engine: str | None = None
    """Of half-cheetah; None is that for the machine at hand."""

    def environment(self, name: str) -> Environment:
        """The environment of this name."""
        engine = {} if name == "rl-navigation" else {"engine": self.engine}
        return environment_called(name, horizon=self.horizon, **engine)


class Timed(NamedTuple):
    """One thing that was timed."""

    batch: str  # in words
    steps: int  # of the environment in one call
    seconds: list[float]  # of every call
    first: float | None = None  # seconds of the call before them, which compiles

    @property
    def per_second(self) -> float:
        """Environment steps, at the median call."""
        return self.steps / statistics.median(self.seconds)

    @property
    def numbers(self) -> dict[str, float]:
        """Metrics of its rows; the first is told."""
        return {"environment steps / s": self.per_second, "s": statistics.median(self.seconds)}

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.per_second:,.0f} environment steps / s"

    @property
    def curve(self) -> dict[str, Any]:
        """What rows are made of."""
        return {"steps": self.steps, "seconds": self.seconds, "first": self.first}


class Apart(NamedTuple):
    """How far an engine of half-cheetah is from MuJoCo's own."""

    batch: str
    differences: list[float]  # the largest of each observation after a single step from the same state
    seconds: list[float]  # of comparing

    @property
    def numbers(self) -> dict[str, float]:
        """Metrics of its rows; the first is told."""
        return {"largest difference": max(self.differences), "median difference": statistics.median(self.differences)}

    @property
    def words(self) -> str:
        """For people."""
        return f"apart by {max(self.differences):.2g} at most, {statistics.median(self.differences):.2g} in the median"

    @property
    def curve(self) -> dict[str, Any]:
        """What rows are made of."""
        return {"differences": self.differences}


def time_rollouts(name: str, scale: Scale) -> Timed:
    """Trajectories of fresh policies, one for each task, and their returns."""
    environment = scale.environment(name)
    policy = gaussian_policy(environment.observation_size, environment.action_size)
    if scale.trajectories % TASKS:
        raise ValueError(f"{scale.trajectories} trajectories cannot be spread over {TASKS} tasks: make them a multiple")
    count = scale.trajectories // TASKS

    def one(key):
        key_policy, key_task, key_act = jax.random.split(key, 3)
        weights, task = policy.init(key_policy), environment.draw(key_task)
        return total_rewards(rollouts(key_act, environment, policy, weights, task, count)).mean()

    live = jax.jit(lambda key: jax.vmap(one)(task_keys(key, TASKS)))
    words = f"{TASKS} tasks, {count} trajectories of {environment.horizon} steps each"
    keys = list(jax.random.split(jax.random.key(0), scale.repeats + 1))
    first, *seconds = _timed(live, keys)
    return Timed(words, scale.trajectories * environment.horizon, seconds, first)


def time_iterations(name: str, scale: Scale, *, method: str = "gem-bml+") -> Timed:
    """Whole meta-iterations, one to a call."""
    environment = scale.environment(name)
    tasks = scale.meta_batch or (20 if name == "rl-navigation" else 40)
    setup = rl_setup(
        environment, rows.get(method, meta_batch=tasks), rollouts=scale.rollouts, queries=scale.rollouts, check=False
    )
    learn = trainer(setup.learner, setup.tasks.sample, tasks)
    step = jax.jit(lambda state: learn(state, 1)[0])
    words = f"{tasks} tasks, {scale.rollouts}+{scale.rollouts} trajectories of {environment.horizon} steps each"
    seconds, state = [], setup.init(jax.random.key(0))
    for _ in range(scale.repeats + 1):
        began = time.perf_counter()
        state: State = jax.block_until_ready(step(state))
        seconds.append(time.perf_counter() - began)
    return Timed(words, setup.steps_per_iteration, seconds[1:], seconds[0])


def engine_apart(scale: Scale) -> Apart:
    """Differences to the C engine in the precision that JAX computes with, under random actions, step by step.

    Along whole trajectories they say little: half-cheetah is chaotic.
    """
    count, steps = 8, 50
    began = time.perf_counter()
    gap = engine_gap(jax.random.key(3), scale.environment("rl-cheetah-velocity"), count=count, steps=steps)
    differences = np.asarray(gap.single_observation, float).ravel().tolist()
    words = f"{count} trajectories of {steps} single steps, {gap.single_observation.dtype}"
    return Apart(words, differences, [time.perf_counter() - began])


def _timed(function: Callable[..., Any], inputs: Sequence[Any]) -> list[float]:
    """Seconds of every call."""
    seconds = []
    for given in inputs:
        began = time.perf_counter()
        jax.block_until_ready(function(given))
        seconds.append(time.perf_counter() - began)
    return seconds


GAP = "half-cheetah gap"
MEASURED: dict[str, Callable[[Scale], Timed | Apart]] = {
    "navigation rollouts": partial(time_rollouts, "rl-navigation"),
    "navigation meta-iteration": partial(time_iterations, "rl-navigation"),
    "half-cheetah rollouts": partial(time_rollouts, "rl-cheetah-velocity"),
    "half-cheetah meta-iteration": partial(time_iterations, "rl-cheetah-velocity"),
    GAP: engine_apart,
}


def measure(scale: Scale, only: Sequence[str] = ()) -> dict[str, Timed | Apart]:
    """What is asked for, by its name; all that is timed, if nothing is."""
    for name in only:
        require_known("measurement", name, MEASURED)
    called = lambda name: f"{name}, engine {scale.engine}" if scale.engine and "cheetah" in name else name
    return {called(name): MEASURED[name](scale) for name in only or MEASURED if only or name != GAP}


def record(found: dict[str, Timed | Apart], command: str) -> dict[str, Any]:
    """Rows as results files have them."""
    after = {"seeds": 1, "command": command, "hardware": hardware()}
    made = []
    for name, timed in found.items():
        origin = {**after, "seconds": round(sum(timed.seconds), 1), "commit": commit()}
        made += [
            {"experiment": "bench-rl", "setting": timed.batch, "method": name, "metric": metric, "paper": None,
             "mean": value, "ci95": None, **origin}
            for metric, value in timed.numbers.items()
        ]  # fmt: skip
    curves = {f"{name}: {timed.batch}; {after['hardware']}": timed.curve for name, timed in found.items()}
    return {"settings": {"jax": jax.__version__}, "rows": made, "curves": curves}


def beside(found: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """What was measured, and what a file has of other things, batches or machines: several commands can fill one file."""
    who = lambda row: (row["method"], row["setting"], row["hardware"])
    known = {who(row) for row in found["rows"]}
    rows = [row for row in before["rows"] if who(row) not in known]
    return {**found, "rows": [*rows, *found["rows"]], "curves": {**before["curves"], **found["curves"]}}
