"""Two-dimensional navigation: a point that starts at the origin is to reach a goal that it does not see."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.names import require_known
from metaprior.rl.environment import Environment

REACH = 0.5  # goals lie in the square [-REACH, REACH]²
STRIDE = 0.1  # the largest move in each direction
NEAR = 0.01  # a goal is reached when both coordinates are closer than this
REWARDS = {"distance": jnp.sqrt, "squared": lambda squared: squared}


class Goal(NamedTuple):
    """The parameters of a task."""

    position: Float[Array, "2"]


def navigation(*, reward: str = "distance", horizon: int = 100) -> Environment:
    """Goals are uniform in a square; an action is a move, and the reward is minus the distance that remains after it.

    Args:
        reward: "distance", or "squared" for minus its square, as the paper writes it.
        horizon: steps of a trajectory that does not reach its goal.
    """
    require_known("reward", reward, REWARDS)
    cost = REWARDS[reward]
    costs = {"distance": "the distance", "squared": "the squared distance"}[reward]

    def draw(key):
        return Goal(jax.random.uniform(key, (2,), minval=-REACH, maxval=REACH))

    def reset(key, task):
        del key
        origin = jnp.zeros_like(task.position)
        return origin, origin

    def step(state, action, task):
        position = state + STRIDE * jnp.clip(action, -1.0, 1.0).astype(state.dtype)
        away = position - task.position
        return position, position, -cost(jnp.square(away).sum()), (jnp.abs(away) < NEAR).all()

    return Environment(
        name="rl-navigation",
        describe=f"a point in the plane, goals in [-{REACH}, {REACH}]², reward minus {costs}, {horizon} steps",
        observation_size=2,
        action_size=2,
        horizon=horizon,
        draw=draw,
        reset=reset,
        step=step,
    )
