r"""Rollouts as a likelihood: the surrogate whose gradient is the policy gradient.

$$\text{mean loss} = -\frac{1}{|\text{steps}|} \sum_t \log \pi_\theta(a_t \mid o_t)\, A_t$$

over steps (o, a, A) of rollouts with the same θ, held fixed. The ratio $\pi_\theta / \pi_{\text{acted}}$ in the place of the
logarithm has the same gradient at the weights that acted, and another curvature: second-order MAML through logarithms leaves out
that other weights would have met other steps, through ratios it does not (up to what earlier actions change). Trust regions
always compare ratios.

`observe` acts: the weights it is given collect the data that they are then judged by. Everything else in the package sees a batch
of points, weighted by advantages, and need not know where they come from.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model
from metaprior.names import require_known
from metaprior.rl.advantages import DISCOUNT, RIDGE, TRACE, advantages
from metaprior.rl.environment import Environment, Task, require_sizes
from metaprior.rl.policy import kl, log_density
from metaprior.rl.rollouts import Rollouts, rollouts
from metaprior.scalars import require_positive
from metaprior.types import ACTING, Key, Likelihood, Params, Region

SURROGATES = ("log", "ratio")


class Practice(NamedTuple):
    """What a task is known by: its parameters, and how many trajectories may be collected in it.

    Of `slots` only the length counts. It is an array so that two can be joined, and so that a batch of tasks is one pytree.
    """

    slots: Float[Array, " N"]
    task: Task


class Steps(NamedTuple):
    """All steps of some rollouts as points, M = N·H, zero in weight where a trajectory had ended.

    A mean over all points is one over those that count: `weights` and `counted` make up for the others.
    """

    observations: Float[Array, "M O"]
    actions: Float[Array, "M A"]
    weights: Float[Array, " M"]  # advantages
    counted: Float[Array, " M"]
    acted: Float[Array, " M"]  # log π(a | o) of the weights that acted


def practice(task: Task, count: int) -> Practice:
    """Room for `count` trajectories in a task."""
    return Practice(jnp.zeros(count), task)


def policy_likelihood(
    environment: Environment,
    policy: Model,
    *,
    acting: str = "mean",
    surrogate: str = "log",
    temperature: float = 1.0,
    discount: float = DISCOUNT,
    trace: float = TRACE,
    ridge: float = RIDGE,
) -> Likelihood:
    """Log π(a | o)·A in the place of a log-density, of rollouts that the weights collect themselves.

    Args:
        environment: where they act.
        policy: whose outputs are rows [mean | log std], `gaussian_policy`.
        acting: where a posterior has a width: its "mean" acts for all draws, or each "sample" collects the batch it is scored on.
        surrogate: "log", or "ratio" for π/π_acted in the place of log π.
        temperature: T: n steps count as n/T beside a prior's KL.
        discount: γ.
        trace: λ of generalised advantages.
        ridge: of the linear baseline.
    """
    require_sizes(environment)
    require_known("choice of which weights act", acting, ACTING)
    require_known("surrogate", surrogate, SURROGATES)
    require_positive("temperature", temperature)
    _require_share(discount=discount, trace=trace)

    def observe(key: Key, params: Params, source: Practice) -> Steps:
        lived = rollouts(key, environment, policy, params, source.task, source.slots.shape[0])
        steps = as_steps(lived, advantages(lived, discount=discount, trace=trace, ridge=ridge))
        then = log_density(policy.apply(params, steps.observations), steps.actions)
        return jax.lax.stop_gradient(steps._replace(acted=then))

    def scored(outputs: Float[Array, "M B"], batch: Steps) -> Float[Array, " M"]:
        logs = log_density(outputs, batch.actions)
        return batch.weights * (jnp.exp(logs - batch.acted) if surrogate == "ratio" else logs)

    def gain(outputs: Float[Array, "M B"], before: Float[Array, "M B"], batch: Steps) -> Float[Array, " M"]:
        ratio = jnp.exp(log_density(outputs, batch.actions) - log_density(before, batch.actions))
        return batch.weights * ratio

    return Likelihood(
        observe=observe,
        outputs=lambda params, batch: policy.apply(params, batch.observations),
        log_density=scored,
        size=lambda known: num_steps(known, environment.horizon),
        join=lambda first, second: Practice(jnp.concatenate([first.slots, second.slots]), first.task),
        temperature=temperature,
        given=False,
        region=Region(gain, lambda before, outputs, batch: batch.counted * kl(before, outputs)),
        acting=acting,
    )


def as_steps(lived: Rollouts, weights: Float[Array, "N H"]) -> Steps:
    """Every step as a point, weighted so that the mean over all points is the mean over those that count."""
    share = jnp.maximum(lived.mask.sum(), 1) / lived.mask.size
    flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    counted = flat(lived.mask) / share
    return jax.lax.stop_gradient(
        Steps(flat(lived.observations), flat(lived.actions), flat(weights) * counted, counted, jnp.zeros_like(counted))
    )


def num_steps(known: Practice | Steps, horizon: int) -> int:
    """The points that a batch has, or that the rollouts of a task will have."""
    return known.slots.shape[0] * horizon if isinstance(known, Practice) else known.weights.shape[0]


def _require_share(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"the {name} must lie in [0, 1], got {value}")
