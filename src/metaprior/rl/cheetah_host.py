"""Half-cheetah by MuJoCo's C engine on the threads of a CPU: many cheetahs in lock-step, bit for bit those of Gymnasium."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.rl import cheetah
from metaprior.rl.extra import imported
from metaprior.rl.host import HostEnvironment
from metaprior.types import Key


def cheetah_host(goal: str = "velocity", *, horizon: int = cheetah.HORIZON, threads: int = 0) -> HostEnvironment:
    """Half-cheetah for the host loop.

    Args:
        goal: "velocity" or "direction".
        horizon: steps of a trajectory.
        threads: of the engine; 0 is one for each processor.
    """
    asked = cheetah.goal_called(goal)
    engine = imported("mujoco.batch", by="half-cheetah")
    model = cheetah.load_model()
    seconds = cheetah.seconds_per_step(model)
    starts = jax.jit(jax.vmap(cheetah.first_state, in_axes=(0, None)))

    def reset(keys: Key, tasks: Any) -> tuple[Any, np.ndarray]:
        del tasks
        batch = engine.Batch(model, len(keys), threads)
        batch.qpos, batch.qvel = (np.asarray(part, float) for part in starts(keys, jnp.asarray(model.qpos0, float)))
        return batch, cheetah.observation(batch.qpos, batch.qvel)

    def step(batch: Any, actions: np.ndarray, tasks: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        actions = cheetah.within_bounds(actions)
        before = batch.qpos.copy()
        batch.ctrl = actions
        batch.step(nstep=cheetah.FRAME_SKIP)
        velocity = cheetah.mean_velocity(before, batch.qpos, seconds)
        rewards = asked.reward(velocity, actions, tasks)
        return batch, cheetah.observation(batch.qpos, batch.qvel), rewards, np.zeros(len(actions), bool)

    return HostEnvironment(
        name=asked.name,
        describe=asked.describe,
        observation_size=cheetah.OBSERVATION_SIZE,
        action_size=cheetah.ACTION_SIZE,
        horizon=horizon,
        draw=asked.draw,
        reset=reset,
        step=step,
    )
