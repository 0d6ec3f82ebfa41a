"""Half-cheetah by MJX, MuJoCo written in JAX: for accelerators, where thousands of cheetahs run at once.

Numbers are float64 where JAX has it switched on (`jax_enable_x64`) when the environment is made, float32 otherwise. In float64
and with the model's own solver MJX follows the C engine step by step. Training can do with fewer steps of the solver, which
takes most of the time; `cheetah_gap.engine_gap` says what that changes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.rl import cheetah
from metaprior.rl.cheetah import CheetahState
from metaprior.rl.environment import Environment
from metaprior.rl.extra import imported

TRAINING_SOLVER = {"iterations": 4, "ls_iterations": 8}


def cheetah_mjx(
    goal: str = "velocity",
    *,
    horizon: int = cheetah.HORIZON,
    iterations: int | None = TRAINING_SOLVER["iterations"],
    ls_iterations: int | None = TRAINING_SOLVER["ls_iterations"],
) -> Environment:
    """Half-cheetah as pure functions.

    Args:
        goal: "velocity" or "direction".
        horizon: steps of a trajectory.
        iterations: most steps of the contact solver; `None` is the model's own (100).
        ls_iterations: most steps of each line search in it; `None` is the model's own (50).
    """
    asked = cheetah.goal_called(goal)
    mjx = imported("mujoco.mjx", by="half-cheetah on accelerators")
    source = cheetah.load_model(iterations=iterations, ls_iterations=ls_iterations)
    model, blank = _free((mjx.put_model(source, impl="jax"), mjx.make_data(source, impl="jax")))
    advance = lambda state, action: _advance(mjx, model, blank, state, action)
    seconds = cheetah.seconds_per_step(source)
    return cheetah.pure_cheetah(asked, horizon=horizon, rest=blank.qpos, seconds=seconds, advance=advance)


def _free(tree: Any) -> Any:
    """The same arrays, bound to no device: those that MJX binds cannot meet tasks spread over several devices."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)) if isinstance(leaf, jax.Array) else leaf, tree)


def _advance(mjx: Any, model: Any, blank: Any, state: CheetahState, action: Float[Array, " A"]) -> CheetahState:
    """One action, held for some steps of the engine."""

    def substep(_: Any, now: CheetahState) -> CheetahState:
        data = blank.replace(
            qpos=now.qpos, qvel=now.qvel, qacc_warmstart=now.warm_start, ctrl=action.astype(blank.ctrl.dtype)
        )
        data = mjx.step(model, data)
        return CheetahState(data.qpos, data.qvel, data.qacc_warmstart)

    # MJX lets ranks be promoted, whatever the caller's own code is held to.
    with jax.numpy_rank_promotion("allow"):
        return jax.lax.fori_loop(0, cheetah.FRAME_SKIP, substep, state)
