"""Tasks of an environment: an episode names a task twice, for the rollouts to adapt to and for those that judge the result."""

from metaprior.rl.environment import Environment, require_sizes
from metaprior.rl.likelihood import practice
from metaprior.tasks.base import Tasks
from metaprior.types import Episode, Key


def rl_tasks(environment: Environment, *, rollouts: int = 20, queries: int = 20, eval_rollouts: int = 40) -> Tasks:
    """A distribution over tasks, as any other: `sample` draws one with room for its rollouts.

    Args:
        environment: whose tasks they are.
        rollouts: trajectories of each adaptation step in training.
        queries: trajectories of each step of the second stage, and of scores.
        eval_rollouts: of each adaptation step, and of the query, when a learned prior is judged.
    """
    require_sizes(environment)
    for name, value in (("rollouts", rollouts), ("queries", queries), ("eval_rollouts", eval_rollouts)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{name} must be a whole number of trajectories, at least 1, got {value!r}: pass {name}=20"
            )

    def sample(key: Key) -> Episode:
        task = environment.draw(key)
        return Episode(practice(task, rollouts), practice(task, queries))

    def evaluation(key: Key) -> Episode:
        task = environment.draw(key)
        return Episode(practice(task, eval_rollouts), practice(task, eval_rollouts))

    return Tasks(
        name=environment.name,
        sample=sample,
        evaluation=evaluation,
        describe=environment.describe,
        inputs=environment.observation_size,
        outputs=environment.action_size,
        shots=rollouts,
        queries=queries,
    )
