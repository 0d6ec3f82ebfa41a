"""How well a prior adapts to new tasks: the mean return after every update."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.meta import MetaLearner, State, task_keys
from metaprior.models.base import Model
from metaprior.rl.environment import Environment
from metaprior.rl.likelihood import practice
from metaprior.rl.rollouts import rollouts, total_rewards
from metaprior.types import Key


def adapted_returns(
    key: Key,
    learner: MetaLearner,
    environment: Environment,
    policy: Model,
    state: State,
    *,
    steps: int = 3,
    num_tasks: int = 40,
    count: int = 40,
) -> Float[Array, "T S"]:
    """The mean undiscounted return of each task after 0, 1, …, `steps` updates; the means of posteriors act.

    Args:
        key: of the tasks and all that happens in them: under one key methods meet the same tasks.
        learner: the method.
        environment: where the tasks are.
        policy: what acts.
        state: as trained.
        steps: updates, each from rollouts of its own.
        num_tasks: T.
        count: trajectories of each update, and of each mean.
    """

    def one(key):
        key_task, key_adapt, key_judge = jax.random.split(key, 3)
        task = environment.draw(key_task)
        posteriors = learner.adapt(key_adapt, state, practice(task, count), steps)
        means = jax.vmap(learner.cell.family.mean)(posteriors)

        def judged(params):  # under one key: updates are compared under the same noise
            return total_rewards(rollouts(key_judge, environment, policy, params, task, count)).mean()

        return jnp.stack([judged(jax.tree.map(lambda leaf, at=at: leaf[at], means)) for at in range(steps + 1)])

    return jax.vmap(one)(task_keys(key, num_tasks))
