"""How well a prior adapts to new tasks: the mean return after every update."""

import jax
from jaxtyping import Array, Float

from metaprior.families import OBSERVE
from metaprior.meta import MetaLearner, State, task_keys
from metaprior.models.base import Model
from metaprior.rl.environment import Environment, Task
from metaprior.rl.likelihood import practice
from metaprior.rl.rollouts import Rollouts, rollouts, total_rewards
from metaprior.types import Dist, Key


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
    """The mean undiscounted return of each task after 0, 1, …, `steps` updates.

    The weights act that the likelihood says: means of posteriors, or a sample of each, held for all its trajectories.

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

        # Under one key: updates are compared under the same noise. One by one: a program for all of them is compiled once.
        judged = lambda q: task_return(key_judge, learner, environment, policy, q, task, count)
        return jax.lax.map(judged, posteriors)

    return jax.vmap(one)(task_keys(key, num_tasks))


def task_return(
    key: Key, learner: MetaLearner, environment: Environment, policy: Model, q: Dist, task: Task, count: int
) -> Float[Array, ""]:
    """The mean return of `count` trajectories in one task."""
    return total_rewards(acted_out(key, learner, environment, policy, q, task, count)).mean()


def acted_out(
    key: Key, learner: MetaLearner, environment: Environment, policy: Model, q: Dist, task: Task, count: int
) -> Rollouts:
    """`count` trajectories of a posterior in one task."""
    family, likelihood = learner.cell.family, learner.cell.likelihood
    draw = jax.tree.map(lambda leaf: leaf[0], family.samples(jax.random.fold_in(key, OBSERVE), q, 1))
    acting = likelihood.actor(family.mean(q), draw)
    return rollouts(key, environment, policy, acting, task, count)
