"""A learned prior over policies in the hand: load a run, name a goal, and an agent adapts to it by acting."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from metaprior import codec, runs
from metaprior.checkpoints import write_atomically
from metaprior.evaluation import TEST_SEED
from metaprior.meta import State
from metaprior.models import Model
from metaprior.rl.checks import fault, require_fits
from metaprior.rl.environment import Environment, Task
from metaprior.rl.evaluation import acted_out, adapted_returns
from metaprior.rl.likelihood import practice
from metaprior.rl.named import ENVIRONMENTS, goal_called
from metaprior.rl.policy import moments
from metaprior.rl.rollouts import Rollouts, total_rewards
from metaprior.rl.setup import RLSetup
from metaprior.settings import Setup, assemble
from metaprior.training import open_state
from metaprior.types import Params

UPDATES, ROLLOUTS, TASKS = 3, 40, 40  # as policies are judged: updates, trajectories of each, held-out tasks


class AdaptedPolicy(NamedTuple):
    """An agent that has adapted to one goal, and what it lived through on the way."""

    policy: Model
    weights: Params  # after the last update
    task: Task
    lived: (
        Rollouts  # [U + 1, N, H, …]: trajectories after 0, 1, …, U updates, to judge by; those learned from were others
    )

    @property
    def returns(self) -> Float[Array, "U N"]:
        """Of each trajectory, undiscounted."""
        return jax.vmap(total_rewards)(self.lived)

    def act(self, observation: ArrayLike) -> Float[Array, " A"]:
        """The mean action; environments cut it off at ±1."""
        seen = jnp.asarray(observation, float)
        return moments(self.policy.apply(self.weights, seen[None]))[0][0]

    def save(self, path: str | Path, about: dict[str, Any] | None = None) -> None:
        """The adapted weights, as a safetensors file; `codec.decode(policy.init(key), data)` reads them back."""
        write_atomically(Path(path), codec.encode(self.weights, about))


class LearnedPolicy(NamedTuple):
    """A prior over policies that has been learned, from a run folder."""

    setup: Setup
    rl: RLSetup
    state: State
    notes: list[str]

    def adapt(
        self, goal: Sequence[float | str] | Task, *, updates: int = UPDATES, rollouts: int = ROLLOUTS, seed: int = 0
    ) -> AdaptedPolicy:
        """Adapt to a goal by acting: `updates` times, collect `rollouts` trajectories and take an inner step.

        Args:
            goal: as it is written behind --goal, `(0.3, -0.2)`, `(1.5,)`, `("backward",)`; or the task of another environment.
            updates: inner steps; zero is legal.
            rollouts: trajectories of each, and of those that judge the result.
            seed: of all that is random.
        """
        _require(updates=(updates, 0), rollouts=(rollouts, 1))
        listed = isinstance(goal, list | tuple) and not hasattr(goal, "_fields")  # tasks may be named tuples
        task = goal_called(self.setup.settings.tasks, [str(word) for word in goal]).task if listed else goal
        posteriors, lived = _adapted(self, jax.random.key(seed), task, updates, rollouts)
        if wrong := fault(self.rl.environment, lived):
            raise ValueError(re.sub(r", task (\d+)", r", after \1 updates", wrong, count=1))
        family = self.rl.learner.cell.family
        weights = family.mean(jax.tree.map(lambda leaf: leaf[updates], posteriors))
        return AdaptedPolicy(self.rl.policy, weights, task, lived)

    def evaluate(
        self, *, updates: int = UPDATES, num_tasks: int = TASKS, rollouts: int = ROLLOUTS, seed: int = TEST_SEED
    ) -> dict[str, Any]:
        """Mean returns after 0, 1, …, `updates` updates on held-out tasks, with 95 % intervals over tasks; ready for JSON."""
        _require(updates=(updates, 0), num_tasks=(num_tasks, 1), rollouts=(rollouts, 1))

        @jax.jit
        def judge(state):
            options = {"steps": updates, "num_tasks": num_tasks, "count": rollouts}
            return adapted_returns(
                jax.random.key(seed), self.rl.learner, self.rl.environment, self.rl.policy, state, **options
            )

        found = [interval(column) for column in np.asarray(judge(self.state), float).T]
        return {
            "updates": list(range(updates + 1)),
            "tasks": num_tasks,
            "rollouts": rollouts,
            "return": [mean for mean, _ in found],
            "return_ci95": [half for _, half in found],
        }


def load_policy(folder: str | Path, *, environment: Environment | None = None) -> LearnedPolicy:
    """A run folder of an agent, ready to adapt: `load_policy("run").adapt((0.3, -0.2)).returns`.

    Args:
        folder: of `metaprior train rl-…`.
        environment: another than the one it was trained in, with observations and actions of the same sizes.
    """
    require_policy(folder)
    setup, state, notes = open_state(folder)
    if environment is not None:
        family, policy = setup.learner.cell.family, setup.model
        require_fits(environment, policy, family.mean(family.start(state.prior.dist)))
        setup = assemble(setup.settings, environment=environment)
    assert setup.rl is not None
    return LearnedPolicy(setup, setup.rl, state, notes)


def is_policy(folder: str | Path) -> bool:
    """Whether the run in this folder is one of an agent."""
    return runs.open_run(folder).settings.get("tasks") in ENVIRONMENTS


def require_policy(folder: str | Path) -> None:
    """Refuse runs of curves and images."""
    if not is_policy(folder):
        tasks = runs.open_run(folder).settings.get("tasks")
        raise ValueError(
            f"{folder} is a prior of {tasks}, in which nobody acts: use metaprior.load, or name another run"
        )


def interval(values: Float[np.ndarray, " N"]) -> tuple[float | None, float | None]:
    """Mean, and half-width of its 95 % interval; None where there is no number.

    >>> interval(np.array([1.0, 3.0]))
    (2.0, 1.96)
    """
    finite = lambda value: float(value) if np.isfinite(value) else None
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return finite(values.mean()), finite(half)


def _adapted(learned: LearnedPolicy, key, task: Task, updates: int, count: int):
    """(posteriors after each update, trajectories of each), in one program."""
    of, there = learned.rl, learned.rl.environment

    @jax.jit
    def program(state, task):
        key_adapt, key_judge = jax.random.split(key)
        posteriors = of.learner.adapt(key_adapt, state, practice(task, count), updates)
        lived = [
            acted_out(
                key_judge,
                of.learner,
                there,
                of.policy,
                jax.tree.map(lambda leaf, i=at: leaf[i], posteriors),
                task,
                count,
            )
            for at in range(updates + 1)
        ]
        return posteriors, jax.tree.map(lambda *leaves: jnp.stack(leaves), *lived)

    return program(learned.state, jax.tree.map(jnp.asarray, task))


def _require(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if value < least:
            raise ValueError(f"{name.replace('_', ' ')} must be at least {least}, got {value}")
