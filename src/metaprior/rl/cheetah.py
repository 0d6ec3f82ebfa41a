"""Half-cheetah, defined once for every engine: model, observation, reward, first state, horizon.

The model is Gymnasium's own file, read where Gymnasium is installed; observation and first state are those of its
`HalfCheetah-v5`. What is ours is the reward, which asks for a speed or for a direction (Finn et al., 2017). All of it works on
NumPy and on JAX arrays alike, with any axes in front, so that the engines cannot disagree on it.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metaprior.names import require_known
from metaprior.rl.environment import Environment
from metaprior.rl.extra import imported
from metaprior.types import Key

FRAME_SKIP = 5  # steps of the engine, during which an action is held
HORIZON = 200
RESET_NOISE = 0.1
CONTROL_COST = 0.05
OBSERVATION_SIZE = 17
ACTION_SIZE = 6

Numbers = Any  # an array of NumPy or of JAX


class Goal(NamedTuple):
    """What a cheetah is asked to do; a task is one number."""

    name: str
    describe: str
    draw: Callable[[Key], Float[Array, ""]]
    reward: Callable[[Numbers, Numbers, Numbers], Numbers]  # (velocity, action within its bounds, task) -> reward


def control_cost(action: Numbers) -> Numbers:
    """.05 ‖a‖², half of what `HalfCheetah-v5` charges."""
    return CONTROL_COST * (action * action).sum(-1)


def velocity_reward(velocity: Numbers, action: Numbers, goal: Numbers) -> Numbers:
    """−|v − v_goal| − .05 ‖a‖²: run at just this speed.

    >>> import numpy as np
    >>> velocity_reward(np.array(1.5), np.ones(6), np.array(2.0)).item()
    -0.8
    """
    return -abs(velocity - goal) - control_cost(action)


def direction_reward(velocity: Numbers, action: Numbers, sign: Numbers) -> Numbers:
    """±v − .05 ‖a‖²: run as fast as you can, forward (+1) or backward (−1)."""
    return sign * velocity - control_cost(action)


def _draw_velocity(key: Key) -> Float[Array, ""]:
    return jax.random.uniform(key, (), maxval=2.0)


def _draw_direction(key: Key) -> Float[Array, ""]:
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0).astype(float)


GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        "velocity": Goal(
            "rl-cheetah-velocity", "half-cheetah at a given speed, v ~ U[0, 2] m/s", _draw_velocity, velocity_reward
        ),
        "direction": Goal(
            "rl-cheetah-direction",
            "half-cheetah forward or backward, as fast as it can",
            _draw_direction,
            direction_reward,
        ),
    }
)


def goal_called(name: str) -> Goal:
    """The goal of this name; an unknown one is refused in words."""
    require_known("goal", name, GOALS)
    return GOALS[name]


def observation(qpos: Numbers, qvel: Numbers) -> Numbers:
    """Positions without the first, and velocities: where along the track the cheetah is, it cannot see."""
    return qpos.__array_namespace__().concat([qpos[..., 1:], qvel], axis=-1)


def within_bounds(action: Numbers) -> Numbers:
    """What the motors do of it. The reward charges for this, not for what was asked beyond it."""
    return action.clip(-1.0, 1.0)


def mean_velocity(before: Numbers, after: Numbers, seconds: float) -> Numbers:
    """Δx / Δt of the torso between two states' positions."""
    return (after[..., 0] - before[..., 0]) / seconds


def first_state(key: Key, rest: Float[Array, " 9"]) -> tuple[Float[Array, " 9"], Float[Array, " 9"]]:
    """Positions and velocities at the start: rest, ± U[−.1, .1] and + .1 N(0, 1)."""
    position_key, velocity_key = jax.random.split(key)
    noise = jax.random.uniform(position_key, rest.shape, rest.dtype, -RESET_NOISE, RESET_NOISE)
    return rest + noise, RESET_NOISE * jax.random.normal(velocity_key, rest.shape, rest.dtype)


class CheetahState(NamedTuple):
    """All that an engine carries from one step to the next; the rest it works out anew."""

    qpos: Float[Array, " 9"]
    qvel: Float[Array, " 9"]
    warm_start: Float[Array, " 9"]  # the last accelerations, from which the contact solver begins


Advance = Callable[[CheetahState, Float[Array, " A"]], CheetahState]


def pure_cheetah(goal: Goal, *, horizon: int, rest: Numbers, seconds: float, advance: Advance) -> Environment:
    """Half-cheetah as pure functions, by any engine.

    Args:
        goal: what it is asked to do.
        horizon: steps of a trajectory.
        rest: positions at rest.
        seconds: between two actions.
        advance: (state, action within its bounds) -> the state after it.
    """

    def reset(key: Key, task: Float[Array, ""]) -> tuple[CheetahState, Float[Array, " O"]]:
        del task
        qpos, qvel = first_state(key, jnp.asarray(rest, float))
        return CheetahState(qpos, qvel, jnp.zeros_like(qvel)), observation(qpos, qvel)

    def step(
        state: CheetahState, action: Float[Array, " A"], task: Float[Array, ""]
    ) -> tuple[CheetahState, Float[Array, " O"], Float[Array, ""], Bool[Array, ""]]:
        action = within_bounds(action)
        after = advance(state, action)
        reward = goal.reward(mean_velocity(state.qpos, after.qpos, seconds), action, task)
        return after, observation(after.qpos, after.qvel), reward, jnp.zeros((), bool)

    return Environment(goal.name, goal.describe, OBSERVATION_SIZE, ACTION_SIZE, horizon, goal.draw, reset, step)


def load_model(*, iterations: int | None = None, ls_iterations: int | None = None) -> Any:
    """Gymnasium's half-cheetah as MuJoCo reads it, a copy of one's own.

    Args:
        iterations: most steps of the contact solver; the model's own where left out.
        ls_iterations: most steps of each line search in it; the model's own where left out.
    """
    model = copy.deepcopy(_read_model())
    for option, value in (("iterations", iterations), ("ls_iterations", ls_iterations)):
        if value is not None:
            if value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}: leave it out for the model's own")
            setattr(model.opt, option, value)
    return model


def seconds_per_step(model: Any) -> float:
    """Time between two actions."""
    return model.opt.timestep * FRAME_SKIP


@functools.cache
def _read_model() -> Any:
    mujoco = imported("mujoco", by="half-cheetah")
    assets = Path(str(imported("gymnasium", by="half-cheetah").__file__)).parent / "envs" / "mujoco" / "assets"
    # MuJoCo tells of an old attribute in this file, on the screen and in a log in the folder one happens to be in.
    told = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        model = mujoco.MjModel.from_xml_path(str(assets / "half_cheetah.xml"))
    finally:
        mujoco.set_mju_user_warning(told)
    # By itself MuJoCo puts a simulation that has blown up back to rest and goes on: an error must be seen.
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return model
