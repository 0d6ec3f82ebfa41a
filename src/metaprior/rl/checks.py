"""What is wrong with an environment, or with a policy in it, in words that name the task and the step."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from metaprior.models.base import Model, foreign
from metaprior.rl.environment import Environment, require_sizes
from metaprior.rl.rollouts import Rollouts, rollouts
from metaprior.types import Key


def require_sound(environment: Environment, *, key: Key | None = None, num_tasks: int = 4, count: int = 2) -> None:
    """Refuse an environment that does not keep its promises: in its shapes, or when it is acted in at random.

    Args:
        environment: to look at.
        key: of the tasks and actions that are tried; None takes a fixed one.
        num_tasks: how many tasks are tried.
        count: trajectories in each.
    """
    require_sizes(environment)
    _require_shapes(environment)
    aimless = foreign(lambda key: (), lambda params, x: jnp.zeros((1, 2 * environment.action_size), x.dtype), "aimless")

    def one(key):
        key_task, key_act = jax.random.split(key)
        return rollouts(key_act, environment, aimless, (), environment.draw(key_task), count)

    keys = jax.random.split(jax.random.key(0) if key is None else key, num_tasks)
    found = fault(environment, jax.jit(jax.vmap(one))(keys))
    if found is not None:
        raise ValueError(found)


@runtime_checkable
class Sized(Protocol):
    """An environment, in JAX or on the host."""

    @property
    def name(self) -> str: ...
    @property
    def observation_size(self) -> int: ...
    @property
    def action_size(self) -> int: ...


def require_fits(environment: Sized, policy: Model, params: PyTree) -> None:
    """Refuse a policy that takes other observations, or gives other actions, than the environment."""
    observations = jax.eval_shape(lambda: jnp.zeros((1, environment.observation_size)))  # in the precision that is set
    try:
        outputs = jax.eval_shape(policy.apply, params, observations).shape
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{environment.name}, every task, step 0: the policy {policy.name} does not take the observations, which are "
            f"{environment.observation_size} numbers: build it with gaussian_policy({environment.observation_size}, "
            f"{environment.action_size}), or load the prior that was trained there"
        ) from error
    if outputs != (1, 2 * environment.action_size):
        raise ValueError(
            f"{environment.name}, every task, step 1: the policy {policy.name} gives outputs of shape {outputs}, and a mean "
            f"and a log std are needed for each number of an action: (1, {2 * environment.action_size})"
        )


def fault(environment: Environment, lived: Rollouts, *, first_task: int = 0) -> str | None:
    """The first thing wrong in rollouts of several tasks [T, N, H, ...], or None; step 0 is the reset, 1 the first action.

    Tasks are counted from `first_task`.
    """
    counted = np.asarray(lived.mask) > 0
    rewards, observations, actions = (np.asarray(x) for x in (lived.rewards, lived.observations, lived.actions))
    found = [
        # in the order in which they happen: of one step, what was done, what it brought, and what was seen then
        (step + later, task, trajectory, rank, f"the {what} is {values[task, trajectory, step].tolist()}")
        for rank, (what, values, sound, later) in enumerate(
            (
                ("policy's action", actions, np.isfinite(actions).all(axis=-1), 1),
                ("reward", rewards, np.isfinite(rewards), 1),
                ("observation", observations, np.isfinite(observations).all(axis=-1), 0),
            )
        )
        for task, trajectory, step in np.argwhere(~sound & counted).tolist()
    ]
    if found:
        step, task, trajectory, rank, told = min(found)
        diverged = "its weights have diverged, lower the rate of the inner steps"
        mend = diverged if rank == 0 else "mend the environment, or end the trajectory before"
        place = f"{environment.name}, task {first_task + task}, trajectory {trajectory}, step {step}"
        return f"{place}: {told}, but all numbers must be finite: {mend}"
    short = (counted.sum(axis=-1) == 1).all(axis=-1)
    if environment.horizon > 1 and short.any():
        return (
            f"{environment.name}, task {first_task + int(short.argmax())}, step 1: all {counted.shape[1]} trajectories ended "
            "with their first step: there is nothing to learn from; look at what the environment calls an end"
        )
    return None


def _require_shapes(environment: Environment) -> None:
    """By looking at what the functions would return, without calling them."""
    task = _shapes(environment, "draw", environment.draw, jax.random.key(0))
    state, first = _shapes(environment, "reset", environment.reset, jax.random.key(0), task)
    action = jax.ShapeDtypeStruct((environment.action_size,), first.dtype)
    after, seen, reward, done = _shapes(environment, "step", environment.step, state, action, task)
    size = (environment.observation_size,)
    for place, value, shape in (
        ("step 0: the observation of reset", first, size),
        ("step 1: the observation of step", seen, size),
        ("step 1: the reward", reward, ()),
        ("step 1: done", done, ()),
    ):
        if value.shape != shape:
            raise ValueError(f"{environment.name}, every task, {place} has shape {value.shape}, and must have {shape}")
    if done.dtype != bool:
        raise ValueError(f"environment {environment.name!r}: done is {done.dtype}, and must be true or false")
    like = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    if like((state, first)) != like((after, seen)):
        raise ValueError(
            f"environment {environment.name!r}: step returns another state than reset: {like((after, seen))} instead of "
            f"{like((state, first))}"
        )


def _shapes(environment: Environment, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return jax.eval_shape(function, *arguments)
    except jax.errors.ConcretizationTypeError as error:
        raise ValueError(
            f"environment {environment.name!r}: {name} cannot be compiled, for it looks at values: use jnp.where for `if`; an "
            "environment that is not written in JAX runs in a loop on the host"
        ) from error
