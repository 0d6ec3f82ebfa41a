"""What an environment is: pure functions of a state and of a task's parameters.

Letters used in shapes: `N` trajectories of a task, `H` steps of a trajectory (the horizon), `O` numbers of an observation, `A` of
an action.
"""

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float

from metaprior.types import Key

Task = Any  # what tells one task from another, a pytree of arrays: a goal, say
State = Any  # what the environment needs to go on, a pytree of arrays
Obs = Float[Array, " O"]
Action = Float[Array, " A"]


class Environment(NamedTuple):
    """A family of tasks that an agent acts in; every function is pure, and can be compiled and mapped.

    `step` takes the action as a policy gives it, in units of [-1, 1]; clipping and scaling are the environment's own. What it
    returns is what holds after the action. A trajectory ends with `done`, or after `horizon` steps.
    """

    name: str
    describe: str
    observation_size: int
    action_size: int
    horizon: int
    draw: Callable[[Key], Task]
    reset: Callable[[Key, Task], tuple[State, Obs]]
    step: Callable[[State, Action, Task], tuple[State, Obs, Float[Array, ""], Bool[Array, ""]]]


def require_sizes(environment: Environment) -> None:
    """Refuse sizes that no environment can have."""
    for name in ("observation_size", "action_size", "horizon"):
        value = getattr(environment, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"environment {environment.name!r}: {name.replace('_', ' ')} must be a whole number of at least 1, got {value!r}"
            )
