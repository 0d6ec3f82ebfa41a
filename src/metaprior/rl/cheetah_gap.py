"""How far an engine in JAX is from the C engine: what a precision, or a solver of fewer steps, changes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.rl.cheetah import CheetahState
from metaprior.rl.cheetah_host import cheetah_host
from metaprior.rl.environment import Environment
from metaprior.types import Key

NUDGE = 1e-13


class Gap(NamedTuple):
    """Largest differences after each of H steps of N trajectories.

    Of single steps, each from a state of the C engine's, they tell what the engine itself does. Along a trajectory of its own
    they grow, for a cheetah that touches the ground a little earlier goes another way: `nudged_observation` is how far the C
    engine departs from itself when its first positions are changed by `NUDGE`.
    """

    along_observation: Float[Array, "N H"]
    along_reward: Float[Array, "N H"]
    single_observation: Float[Array, "N H"]
    single_reward: Float[Array, "N H"]
    nudged_observation: Float[Array, "N H"]


def engine_gap(key: Key, environment: Environment, *, goal: str = "velocity", count: int = 1, steps: int = 50) -> Gap:
    """The differences under random actions, from the same first states.

    Args:
        key: of first states, tasks and actions.
        environment: of half-cheetah, `cheetah_mjx(goal, ...)`.
        goal: the one it was made with.
        count: how many trajectories, N.
        steps: how many of each, H.
    """
    action_key, key = jax.random.split(key)
    state_keys, task_keys = jax.random.split(key, (2, count))
    tasks = jax.vmap(environment.draw)(task_keys)
    actions = jax.random.uniform(action_key, (steps, count, environment.action_size), minval=-1.0, maxval=1.0)
    by_c = (state_keys, goal, np.asarray(tasks), np.asarray(actions, float))
    states, seen, rewards = _by_c(*by_c)
    nudged = np.abs(_by_c(*by_c, nudge=NUDGE)[1] - seen).max(axis=-1)
    both = jax.vmap(jax.vmap(environment.step, in_axes=(0, None, None)), in_axes=(0, 0, 0))

    def one(own: CheetahState, inputs: tuple[CheetahState, Array]) -> tuple[CheetahState, tuple[Array, Array]]:
        reference, action = inputs
        pair = jax.tree.map(lambda a, b: jnp.stack([a, b], axis=1), own, reference)
        after, observation, reward, _ = both(pair, action, tasks)
        return jax.tree.map(lambda leaf: leaf[:, 0], after), (observation, reward)

    start = jax.tree.map(lambda leaf: leaf[0], states)
    _, (other_seen, other_rewards) = jax.jit(lambda *inputs: jax.lax.scan(one, start, inputs))(states, actions)
    away = jnp.abs(other_seen - jnp.asarray(seen, float)[:, :, None]).max(axis=-1)
    away_reward = jnp.abs(other_rewards - jnp.asarray(rewards, float)[:, :, None])
    return Gap(
        away[..., 0].T, away_reward[..., 0].T, away[..., 1].T, away_reward[..., 1].T, jnp.asarray(nudged.T, float)
    )


def _by_c(
    keys: Key, goal: str, tasks: np.ndarray, actions: np.ndarray, *, nudge: float = 0.0
) -> tuple[CheetahState, np.ndarray, np.ndarray]:
    """The C engine's states before each step, and what it shows and pays after; time is the first axis."""
    engine = cheetah_host(goal, threads=1)
    batch, _ = engine.reset(keys, tasks)
    batch.qpos += nudge
    before, seen, rewards = [], [], []
    for action in actions:
        before.append([part.copy() for part in (batch.qpos, batch.qvel, batch.qacc_warmstart)])
        batch, observations, reward, _ = engine.step(batch, action, tasks)
        seen.append(observations)
        rewards.append(reward)
    states = CheetahState(*(jnp.asarray(np.stack(rows), float) for rows in zip(*before, strict=True)))
    return states, np.stack(seen), np.stack(rewards)
