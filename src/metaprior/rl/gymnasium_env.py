"""Anyone's Gymnasium environment as a family of tasks, through the host loop."""

import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from metaprior.rl.extra import imported
from metaprior.rl.host import HostEnvironment
from metaprior.types import Key


def from_gymnasium(
    make: Callable[[], Any],
    *,
    draw: Callable[[Key], Any],
    set_task: Callable[[Any, Any], None],
    horizon: int | None = None,
    name: str | None = None,
    describe: str | None = None,
) -> HostEnvironment:
    """An environment whose observations and actions are vectors (`Box`), with tasks of your own.

    A pendulum whose length nobody tells the policy:

    ```python
    import gymnasium, jax
    from metaprior.rl.gymnasium_env import from_gymnasium


    def set_length(env, task):
        env.unwrapped.l = float(task["length"])


    pendulums = from_gymnasium(
        lambda: gymnasium.make("Pendulum-v1"),
        draw=lambda key: {"length": jax.random.uniform(key, (), minval=0.5, maxval=1.5)},
        set_task=set_length,
    )
    ```

    A policy acts within [−1, 1], which is mapped onto the bounds of the action space; beyond them it is clipped. A trajectory
    ends when the environment says `terminated` or `truncated`, or after `horizon` steps. The environments run one after another.
    To learn in them, pass `hosted(pendulums)` to `rl_setup`.

    Args:
        make: makes one environment; called once for each trajectory that is collected at a time.
        draw: key -> the numbers that make a task, an array or a dictionary of arrays.
        set_task: (environment, task) -> nothing; called before each reset with the task as NumPy arrays.
        horizon: most steps of a trajectory; those after which the environment itself stops where left out.
        name: what tables call it; the environment's own id where left out.
        describe: one line for people.
    """
    gymnasium = imported("gymnasium", by="an environment of Gymnasium's")
    free = [make()]  # kept from one batch of rollouts to the next: making an environment may be slow
    called = name or getattr(free[0].spec, "id", None) or type(free[0].unwrapped).__name__
    steps = horizon if horizon is not None else getattr(free[0].spec, "max_episode_steps", None)
    if steps is None or steps < 1:
        raise ValueError(f"{called}: pass horizon=..., the most steps of a trajectory, at least 1; got {steps}")
    low, high = _bounds(gymnasium, called, free[0])
    inputs = _size(gymnasium, called, "observation", free[0].observation_space)
    middle, half = (high + low) / 2, (high - low) / 2

    def reset(keys: Any, tasks: Any) -> tuple[_Running, list[np.ndarray]]:
        envs = [free.pop() if free else make() for _ in range(len(keys))]
        for index, env in enumerate(envs):
            set_task(env, jax.tree.map(lambda leaf, index=index: np.asarray(leaf)[index], tasks))
        seen = [_vector(env.reset(seed=seed)[0]) for env, seed in zip(envs, _seeds(keys), strict=True)]
        running = _Running(list(envs))
        weakref.finalize(running, free.extend, envs)  # free again when nobody can act in them any more
        return running, seen

    def step(
        running: _Running, actions: np.ndarray, tasks: Any
    ) -> tuple[_Running, list[np.ndarray], np.ndarray, np.ndarray]:
        del tasks
        scaled = middle + half * np.clip(actions, -1, 1)
        results = [_act(env, action, inputs) for env, action in zip(running.envs, scaled, strict=True)]
        observations, rewards, ended = zip(*results, strict=True)
        # An environment that has ended must not be stepped again until the next reset.
        running.envs = [None if done else env for env, done in zip(running.envs, ended, strict=True)]
        return running, list(observations), np.array(rewards, float), np.array(ended)

    return HostEnvironment(
        name=called,
        describe=describe or f"{called} of Gymnasium",
        observation_size=inputs,
        action_size=low.size,
        horizon=steps,
        draw=draw,
        reset=reset,
        step=step,
    )


class _Running:
    """The environments of one batch of trajectories; None where one has ended."""

    def __init__(self, envs: list[Any]):
        self.envs = envs


def _seeds(keys: Any) -> list[int]:
    """Each trajectory's own, so that batching changes nothing: the words of its key."""
    words = keys if isinstance(keys, np.ndarray) else np.asarray(jax.random.key_data(keys))
    return [int.from_bytes(row.astype(">u4").tobytes(), "big") for row in words]


def _act(env: Any, action: np.ndarray, inputs: int) -> tuple[np.ndarray, float, bool]:
    if env is None:
        return np.zeros(inputs), 0.0, True
    space = env.action_space
    seen, reward, terminated, truncated, _ = env.step(action.reshape(space.shape).astype(space.dtype))
    return _vector(seen), float(reward), bool(terminated or truncated)


def _vector(seen: Any) -> np.ndarray:
    return np.asarray(seen, float).ravel()


def _size(gymnasium: Any, called: str, word: str, space: Any) -> int:
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(
            f"{called}: the {word} must be a vector (Box), got {space}: wrap the environment so that it is"
        )
    return int(np.prod(space.shape))


def _bounds(gymnasium: Any, called: str, env: Any) -> tuple[np.ndarray, np.ndarray]:
    space = env.action_space
    _size(gymnasium, called, "action", space)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(
            f"{called}: actions need finite bounds, got {space}: wrap it in gymnasium's RescaleAction or the like"
        )
    return space.low.astype(float).ravel(), space.high.astype(float).ravel()
