"""From an environment and a row to a learner: the only place where the pieces of reinforcement learning meet."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from metaprior.meta import MetaLearner, State, meta_learner
from metaprior.models.base import Model
from metaprior.names import require_known
from metaprior.optimizers import flat_adam, longer_steps, meta_optimizer
from metaprior.rl.checks import require_fits, require_sound
from metaprior.rl.environment import Environment
from metaprior.rl.likelihood import policy_likelihood
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rows import META_UPDATES, RLMethod, require_rollouts
from metaprior.rl.tasks import rl_tasks
from metaprior.rl.trpo import maml_trpo
from metaprior.scalars import require_positive
from metaprior.tasks.base import Tasks
from metaprior.types import Key, Likelihood, Params


class RLSetup(NamedTuple):
    """What a training needs: `trainer(setup.learner, setup.tasks.sample, setup.method.method.meta_batch)`."""

    method: RLMethod
    environment: Environment
    policy: Model
    tasks: Tasks
    likelihood: Likelihood
    learner: MetaLearner

    def init(self, key: Key, params: Params | None = None) -> State:
        """Before the first iteration; from given weights, where methods are to start alike."""
        key_policy, key_learner = jax.random.split(key)
        params = self.policy.init(key_policy) if params is None else params
        require_fits(self.environment, self.policy, params)
        return self.learner.init(key_learner, params)

    def misfit(self, folder: Path) -> str:
        """What to say of a prior that was saved there, and is not one of this policy in this environment."""
        of = self.environment
        return (
            f"{of.name}, every task, step 0: the prior in {folder} was trained with another policy or environment: here "
            f"observations are {of.observation_size} numbers, actions {of.action_size}, and the policy is {self.policy.name}; "
            "use the settings that it was trained with"
        )

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one meta-iteration, at most: trajectories may end early. Looks at the query come on top."""
        row, support, query = self.method.method, self.tasks.shots, self.tasks.queries
        second = {"none": 0, "sequential": query}.get(row.second_stage, support + query)
        scored = {"joint": support + query, "conditional": query, "difference": 2 * support + query}[row.column]
        if row.row == "gem":  # posteriors are held fixed: what is scored has no gradient, and is not collected
            scored = 0
        elif row.row == "evidence" or row.scores == "query":
            scored = query
        trajectories = row.steps[0] * support + row.steps[1] * second + scored
        return row.meta_batch * trajectories * row.num_particles * self.environment.horizon


def rl_setup(
    environment: Environment,
    method: RLMethod,
    *,
    policy: Model | None = None,
    rollouts: int = 20,
    queries: int = 20,
    eval_rollouts: int = 40,
    iterations: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    region: dict[str, Any] | None = None,
    watch_every: int | None = None,
    width_rate: float | None = None,
    check: bool = True,
    **likelihood: Any,
) -> RLSetup:
    """The pieces put together; what cannot work is refused in words.

    Args:
        environment: where tasks are.
        method: from `rows.get`.
        policy: what acts; None takes `gaussian_policy` of the environment's sizes.
        rollouts: trajectories of each inner step in training.
        queries: of each step of the second stage, and of scores.
        eval_rollouts: of each adaptation step when judged.
        iterations: length of a cosine decay of the meta-rate to zero; None keeps it. A meta-step of TRPO has no rate.
        optimizer: the meta-optimiser; None takes the method's own at its meta-rate.
        region: options of a meta-step of TRPO: max_kl, solver_steps, damping, shrink, max_tries.
        watch_every: iterations between looks at the query's loss, which need rollouts of their own; None never looks: what counts
            are returns.
        width_rate: how many times as long meta-steps of Adam are for the log std of actions as for other weights: at the rate of
            these it moves by a few tenths in a few hundred iterations. None is once.
        check: whether the environment is tried first, which compiles it once more.
        **likelihood: further options of `policy_likelihood`: acting, surrogate, discount, trace, ridge.
    """
    row = method.method
    require_rollouts(row)
    require_known("meta-step", method.meta_update, META_UPDATES)
    policy = policy or gaussian_policy(environment.observation_size, environment.action_size)
    tasks = rl_tasks(environment, rollouts=rollouts, queries=queries, eval_rollouts=eval_rollouts)
    require_fits(environment, policy, jax.eval_shape(policy.init, jax.random.key(0)))
    if check:
        require_sound(environment)
    made = policy_likelihood(environment, policy, temperature=row.temperature, **likelihood)
    if row.posterior == "particles" and made.acting == "mean":
        raise ValueError(
            f"{row.name} infers particles, whose mean is none of their policies: pass acting='sample', then each acts for itself"
        )
    if width_rate is not None:
        require_positive("width rate", width_rate)
        if method.meta_update != "adam":
            raise ValueError(
                f"{method.name} takes no meta-steps of Adam, whose length a width rate would change: leave it out"
            )
    if method.meta_update == "trpo":
        if optimizer is not None:
            raise ValueError("a meta-step of TRPO has no optimiser: leave it out, and set region= where needed")
        learner = maml_trpo(row, made, **region or {})
    else:
        if region is not None:
            raise ValueError(
                f"{method.name} takes meta-steps on gradients, which have no region: leave it out, or use maml-trpo"
            )
        make = optax.sgd if method.meta_update == "sgd" else flat_adam
        chosen = optimizer or meta_optimizer(row.meta_rate, iterations=iterations, warm_up=0, make=make)
        if width_rate is not None:
            chosen = optax.chain(chosen, longer_steps("log_std", width_rate))
        learner = meta_learner(row, made, optimizer=chosen, watch_every=watch_every)
    return RLSetup(method, environment, policy, tasks, made, learner)
