"""What a policy lives through: trajectories as a scan over time, side by side.

Rollouts are data. An environment written in JAX could be differentiated, and the result would not be a policy gradient: no
gradient leaves this module.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior import trees
from metaprior.models.base import Model
from metaprior.rl.environment import Environment, Task
from metaprior.rl.policy import act
from metaprior.types import Key, Params


class Rollouts(NamedTuple):
    """N trajectories; `observations` are those acted upon. Where `mask` is 0 a trajectory had ended, and the reward is 0."""

    observations: Float[Array, "N H O"]
    actions: Float[Array, "N H A"]
    rewards: Float[Array, "N H"]
    mask: Float[Array, "N H"]


def rollouts(key: Key, environment: Environment, policy: Model, params: Params, task: Task, count: int) -> Rollouts:
    """`count` trajectories of the policy in one task; each has a key of its own, so that no other changes its draws."""
    params, task = jax.lax.stop_gradient((params, task))
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count))
    return jax.lax.stop_gradient(jax.vmap(lambda key: trajectory(key, environment, policy, params, task))(keys))


def trajectory(key: Key, environment: Environment, policy: Model, params: Params, task: Task) -> Rollouts:
    """One of them, without the first axis."""
    key_reset, key_noise = jax.random.split(key)
    state, observation = environment.reset(key_reset, task)
    # All noise at once: a call for every step would cost as much as the step.
    noise = jax.random.normal(key_noise, (environment.horizon, environment.action_size), observation.dtype)

    def one(carry, noise):
        state, observation, alive = carry
        action = act(policy.apply(params, observation[None])[0], noise)
        after, seen, reward, done = environment.step(state, action, task)
        # What has ended stands still: what an environment says beyond its end may be anything.
        moved = trees.where(alive, (after, seen), (state, observation))
        lived = Rollouts(observation, action, jnp.where(alive, reward, 0).astype(observation.dtype), alive)
        return (*moved, alive & ~done), lived

    _, lived = jax.lax.scan(one, (state, observation, jnp.array(True)), noise)
    return lived._replace(mask=lived.mask.astype(noise.dtype))


def total_rewards(lived: Rollouts) -> Float[Array, " N"]:
    """The return of each trajectory, undiscounted: what policies are judged by."""
    return lived.rewards.sum(axis=-1)
