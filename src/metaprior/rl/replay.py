"""What went wrong in an iteration of training: lived through again, task by task, with every trajectory looked at.

A compiled program cannot stop in the middle of a rollout; a task whose numbers are not finite is left out of its meta-step. All
that is random follows from the state, so the iteration can be repeated, and its first fault named.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from metaprior.meta import MetaLearner, State, meta_learner, task_keys
from metaprior.models.base import Model
from metaprior.rl.checks import fault
from metaprior.rl.environment import Environment
from metaprior.rl.rollouts import Rollouts, rollouts
from metaprior.types import Episode, Key, Likelihood


def iteration_fault(
    environment: Environment,
    policy: Model,
    learner: MetaLearner,
    sample: Callable[[Key], Episode],
    state: State,
    meta_batch: int,
) -> str | None:
    """The first thing wrong in the iteration that follows this state, in words that name the task and the step, or None.

    Args:
        environment: where it happened.
        policy: what acted.
        learner: as trained.
        sample: draws tasks, as given to `trainer`.
        state: before the iteration.
        meta_batch: tasks of it.
    """
    seen: list[tuple[int, Rollouts]] = []
    watched = meta_learner(learner.method, _watched(learner.cell.likelihood, environment, policy, seen))
    key_draw, key_infer = jax.random.split(jax.random.fold_in(state.key, state.iteration))
    one = jax.jit(lambda key, episode: watched.gradient(key, state.prior, state.memory, episode)[0])
    for index, (draw, key) in enumerate(
        zip(task_keys(key_draw, meta_batch), task_keys(key_infer, meta_batch), strict=True)
    ):
        seen.clear()
        jax.block_until_ready(one(key, sample(draw)))
        jax.effects_barrier()
        for _, lived in sorted(seen, key=lambda pair: pair[0]):  # callbacks may come in any order
            if found := fault(environment, jax.tree.map(lambda leaf: leaf[None], lived), first_task=index):
                return f"iteration {int(state.iteration) + 1}: {found}"
    return None


def _watched(
    likelihood: Likelihood, environment: Environment, policy: Model, seen: list[tuple[int, Rollouts]]
) -> Likelihood:
    places = itertools.count()  # of `observe` in the program, which is traced in the order of what happens

    def observe(key, params, source):
        place = next(places)
        lived = rollouts(key, environment, policy, params, source.task, source.slots.shape[0])
        jax.debug.callback(lambda lived: seen.append((place, lived)), jax.tree.map(jnp.asarray, lived))
        return likelihood.observe(key, params, source)

    return likelihood._replace(observe=observe)
