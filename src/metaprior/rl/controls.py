"""The other control: no prior at all. A fresh policy for each task, trained on that task alone, for as long as one likes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.meta import MetaLearner, task_keys
from metaprior.models.base import Model
from metaprior.rl.environment import Environment
from metaprior.rl.evaluation import task_return
from metaprior.rl.likelihood import practice
from metaprior.types import Key


class Curve(NamedTuple):
    """How policies of single tasks get better."""

    updates: tuple[int, ...]
    steps: tuple[int, ...]  # of the environment in one task until then, at most: trajectories may end early
    returns: Float[Array, "T U"]


def scratch_returns(
    key: Key,
    learner: MetaLearner,
    environment: Environment,
    policy: Model,
    *,
    updates: Sequence[int] = (0, 1, 2, 3),
    num_tasks: int = 40,
    count: int = 40,
) -> Curve:
    """Mean returns after so many updates of policies that start from fresh weights, each task from its own.

    Under the same key the tasks are those of `adapted_returns`. What an update is the learner says, with its inner steps: with
    those of a method, up to as many updates, it is that method without its prior; with `optimizer="adam"` and many updates it is
    training as usual.
    """
    marks = tuple(updates)
    if not marks or marks[0] < 0 or any(b <= a for a, b in pairwise(marks)):
        raise ValueError(f"updates must be whole numbers that grow, from 0 on, got {marks}: pass (0, 1, 2, 3)")
    inference, family = learner.cell.inference, learner.cell.family

    def one(key):
        key_task, key_adapt, key_judge = jax.random.split(key, 3)
        task, source = environment.draw(key_task), practice(environment.draw(key_task), count)
        prior = learner.init(key_adapt, policy.init(jax.random.fold_in(key_task, 1))).prior
        start = family.start(prior.dist)
        state = inference.init(key_adapt, prior, start, source, inference.memory(start))

        def update(number, state):
            return inference.step(jax.random.fold_in(key_adapt, number), state, prior, source)

        found, done = [], 0
        for mark in marks:
            state = jax.lax.fori_loop(done, mark, update, state)
            q, done = inference.posterior(state, prior, source), mark
            found.append(task_return(key_judge, learner, environment, policy, q, task, count))
        return jnp.stack(found)

    returns = jax.jit(jax.vmap(one))(task_keys(key, num_tasks))
    return Curve(marks, tuple(mark * count * environment.horizon for mark in marks), returns)


def steps_to_reach(curve: Curve, level: float) -> int | None:
    """Environment steps in one task until the mean return over tasks is at least `level`; None where it never was."""
    reached = np.asarray(curve.returns).mean(axis=0) >= level
    return curve.steps[int(reached.argmax())] if reached.any() else None
