"""Rollouts of environments that are not written in JAX: a loop on the host, all trajectories of all tasks in lock-step.

Letters: `T` tasks, `N` trajectories of each, `E` = T·N of them in all, `H` steps, `O` numbers observed, `A` numbers of an action.
The random numbers are those of `rollouts.rollouts`: the same keys give the same first states and the same noise.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from metaprior.models.base import Model
from metaprior.rl.checks import require_fits
from metaprior.rl.environment import Task
from metaprior.rl.faults import Watch
from metaprior.rl.policy import act
from metaprior.rl.rollouts import Rollouts
from metaprior.types import Key, Params

Rows = np.ndarray | Sequence[np.ndarray]  # [E, O], or E vectors


class HostEnvironment(NamedTuple):
    """As an `Environment`, but E of them at once, with NumPy arrays in and out. The state may be changed in place."""

    name: str
    describe: str
    observation_size: int
    action_size: int
    horizon: int
    draw: Callable[[Key], Task]  # one task
    reset: Callable[[Key, Task], tuple[Any, Rows]]  # (E keys, E tasks) -> (state, observations)
    # (state, actions [E, A], E tasks) -> (state, observations, rewards [E], ended [E])
    step: Callable[[Any, np.ndarray, Task], tuple[Any, Rows, np.ndarray, np.ndarray]]


def host_rollouts(
    keys: Key, environment: HostEnvironment, policy: Model, params: PyTree, tasks: PyTree, count: int
) -> Rollouts:
    """`count` trajectories in each of T tasks, arrays of [T, N, H, ...].

    Args:
        keys: one for each task.
        environment: where they act.
        policy: whose outputs are rows [mean | log std].
        params: of T policies, one for each task, stacked.
        tasks: T of them, stacked.
        count: N.
    """
    if min(count, environment.horizon) < 1:
        raise ValueError(
            f"{environment.name}: count and horizon must be at least 1, got {count} and {environment.horizon}"
        )
    watch = Watch(environment.name, environment.observation_size, count, environment.horizon)
    reset_keys, noise = _draws(keys, count, environment.horizon, environment.action_size)
    each = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf), count, axis=0), tasks)
    state, rows = environment.reset(reset_keys, each)
    seen, alive = watch.observations(0, rows), np.ones(len(reset_keys), bool)
    require_fits(environment, policy, jax.tree.map(lambda leaf: leaf[0], params))
    lived = _empty(environment, len(alive))
    for step in range(environment.horizon):
        actions = _actions(policy.apply, params, seen.reshape(len(keys), count, -1), noise[step])
        actions = watch.actions(step + 1, np.asarray(actions, float).reshape(len(alive), -1))
        state, rows, rewards, ended = environment.step(state, actions, each)
        rewards = watch.rewards(step + 1, np.where(alive, rewards, 0.0))
        for kept, now in zip(lived, (seen, actions, rewards, alive), strict=True):
            kept[step] = now
        seen = np.where(alive[:, None], watch.observations(step + 1, rows, alive), seen)
        alive = watch.ends(step + 1, alive & ~ended)
        if not alive.any():
            break
    return Rollouts(*(_by_task(leaf, len(keys), count) for leaf in lived))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _draws(keys: Key, count: int, horizon: int, size: int) -> tuple[Key, Float[Array, "H T N A"]]:
    """As `rollouts.trajectory` draws them: a key for each trajectory, split in two."""
    of_task = lambda key: jax.vmap(lambda index: jax.random.split(jax.random.fold_in(key, index)))(jnp.arange(count))
    pairs = jax.vmap(of_task)(keys)
    noise = jax.vmap(jax.vmap(lambda key: jax.random.normal(key, (horizon, size))))(pairs[..., 1])
    return pairs[..., 0].reshape(-1), jnp.moveaxis(noise, 2, 0)


@functools.partial(jax.jit, static_argnums=0)
def _actions(
    apply: Callable[..., Array], params: Params, seen: Float[Any, "T N O"], noise: Float[Array, "T N A"]
) -> Float[Array, "T N A"]:
    return jax.vmap(lambda weights, seen, noise: act(apply(weights, seen), noise))(params, seen, noise)


def _empty(environment: HostEnvironment, total: int) -> tuple[np.ndarray, ...]:
    sizes = ((environment.observation_size,), (environment.action_size,), (), ())
    return tuple(np.zeros((environment.horizon, total, *size)) for size in sizes)


def _by_task(leaf: np.ndarray, tasks: int, count: int) -> Float[Array, "T N H ..."]:
    return jnp.asarray(np.moveaxis(leaf, 0, 1).reshape(tasks, count, leaf.shape[0], *leaf.shape[2:]), float)
