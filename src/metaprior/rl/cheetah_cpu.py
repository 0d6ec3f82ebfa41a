"""Half-cheetah as pure functions on MuJoCo's C engine: compiled programs call it back, all cheetahs at once.

The whole state travels with the program and is loaded into the engine for every action, so that nothing is kept between calls:
what is mapped, scanned or compiled sees a function like any other. For processors; `cheetah_kernel` is for GPUs.
"""

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from metaprior.rl import cheetah
from metaprior.rl.cheetah import CheetahState
from metaprior.rl.environment import Environment
from metaprior.rl.extra import imported


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
    run = _engine(engine, model, threads)

    def advance(state: CheetahState, action: Float[Array, " A"]) -> CheetahState:
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        return jax.pure_callback(run, like, state, action, vmap_method="broadcast_all")

    seconds = cheetah.seconds_per_step(model)
    return cheetah.pure_cheetah(asked, horizon=horizon, rest=np.array(model.qpos0), seconds=seconds, advance=advance)


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
