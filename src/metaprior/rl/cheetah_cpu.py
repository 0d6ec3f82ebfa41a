"""Half-cheetah as pure functions on MuJoCo's C engine: compiled programs call it back, all cheetahs at once.

The whole state travels with the program and is loaded into the engine for every action, so that nothing is kept between calls:
what is mapped, scanned or compiled sees a function like any other. On processors this is many times faster than MJX.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from metaprior.rl import cheetah
from metaprior.rl.cheetah_mjx import CheetahState
from metaprior.rl.environment import Environment
from metaprior.rl.extra import imported
from metaprior.types import Key


def cheetah_cpu(goal: str = "velocity", *, horizon: int = cheetah.HORIZON, threads: int = 0) -> Environment:
    """Half-cheetah for compiled programs on a CPU; numbers are float64 where JAX has it switched on, and rounded otherwise.

    Args:
        goal: "velocity" or "direction".
        horizon: steps of a trajectory.
        threads: of the engine; 0 is one for each processor.
    """
    asked = cheetah.goal_called(goal)
    engine = imported("mujoco.batch", by="half-cheetah")
    model = cheetah.load_model()
    advance, rest, seconds = _engine(engine, model, threads), np.array(model.qpos0), cheetah.seconds_per_step(model)

    def reset(key: Key, task: Float[Array, ""]) -> tuple[CheetahState, Float[Array, " O"]]:
        del task
        qpos, qvel = cheetah.first_state(key, jnp.asarray(rest, float))
        return CheetahState(qpos, qvel, jnp.zeros_like(qvel)), cheetah.observation(qpos, qvel)

    def step(
        state: CheetahState, action: Float[Array, " A"], task: Float[Array, ""]
    ) -> tuple[CheetahState, Float[Array, " O"], Float[Array, ""], Bool[Array, ""]]:
        action = cheetah.within_bounds(action)
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        after = jax.pure_callback(advance, like, state, action, vmap_method="broadcast_all")
        velocity = cheetah.mean_velocity(state.qpos, after.qpos, seconds)
        seen = cheetah.observation(after.qpos, after.qvel)
        return after, seen, asked.reward(velocity, action, task), jnp.zeros((), bool)

    return Environment(
        name=asked.name,
        describe=asked.describe,
        observation_size=cheetah.OBSERVATION_SIZE,
        action_size=cheetah.ACTION_SIZE,
        horizon=horizon,
        draw=asked.draw,
        reset=reset,
        step=step,
    )


def _engine(module: Any, model: Any, threads: int) -> Callable[[Any, Any], Any]:
    """(state, action) of any leading axes -> the state after it. NumPy alone: JAX must not be called from a callback."""
    made: dict[int, Any] = {}  # by number of cheetahs: to make room for them takes longer than a step
    lock = threading.Lock()  # a program may call for two steps at once

    def advance(state: Any, action: Any) -> Any:
        qpos, qvel, warm_start, action = (np.asarray(leaf) for leaf in (*state, action))
        rows = lambda leaf: leaf.reshape(-1, leaf.shape[-1]).astype(float)
        with lock:
            count = qpos[..., 0].size
            if count not in made:
                made[count] = module.Batch(model, count, threads)
            batch = made[count]
            batch.qpos, batch.qvel, batch.qacc_warmstart = rows(qpos), rows(qvel), rows(warm_start)
            batch.ctrl = rows(action)
            batch.step(nstep=cheetah.FRAME_SKIP)
            after = zip((qpos, qvel, warm_start), (batch.qpos, batch.qvel, batch.qacc_warmstart), strict=True)
            return type(state)(*(np.array(new.reshape(old.shape), old.dtype) for old, new in after))

    return advance
