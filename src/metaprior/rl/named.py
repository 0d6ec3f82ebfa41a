"""Environments by name, as the command line has them, and what a person may ask of an agent in each."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaprior.names import require_known
from metaprior.rl import cheetah_kernel
from metaprior.rl.cheetah_cpu import cheetah_cpu
from metaprior.rl.cheetah_mjx import cheetah_mjx
from metaprior.rl.cheetah_plane import cheetah_plane
from metaprior.rl.environment import Environment, Task
from metaprior.rl.navigation import REACH, Goal, navigation


class Asked(NamedTuple):
    """A goal that somebody named."""

    task: Task
    words: str  # for people: "the goal (0.3, -0.2)"
    note: str | None = None  # where it lies beyond those that priors are trained on


class Named(NamedTuple):
    """An environment that can be made by its name, and how its goals are written."""

    make: Callable[..., Environment]  # its options: horizon, and engine for half-cheetah
    asked: Callable[[Sequence[str]], Asked]
    usage: str


def environment_called(name: str, **options) -> Environment:
    """The environment of this name; options that are None are its own."""
    require_known("environment", name, ENVIRONMENTS)
    return ENVIRONMENTS[name].make(**{word: value for word, value in options.items() if value is not None})


def goal_called(name: str, words: Sequence[str]) -> Asked:
    """What the words ask of an agent in that environment.

    >>> goal_called("rl-navigation", ["0.3", "-0.2"]).words
    'the goal (0.3, -0.2)'
    >>> float(goal_called("rl-cheetah-direction", ["backward"]).task)
    -1.0
    """
    require_known("environment", name, ENVIRONMENTS)
    return ENVIRONMENTS[name].asked([str(word) for word in words])


def _place(words: Sequence[str]) -> Asked:
    x, y = _numbers("rl-navigation", words, 2)
    beyond = (
        f"goals of training lie in [-{REACH:g}, {REACH:g}]²: this one is beyond"
        if max(abs(x), abs(y)) > REACH
        else None
    )
    return Asked(Goal(jnp.array([x, y], float)), f"the goal ({x:g}, {y:g})", beyond)


def _speed(words: Sequence[str]) -> Asked:
    (speed,) = _numbers("rl-cheetah-velocity", words, 1)
    beyond = None if 0 <= speed <= 2 else "speeds of training lie in [0, 2] m/s: this one is beyond"
    return Asked(jnp.asarray(speed, float), f"{speed:g} m/s", beyond)


def _direction(words: Sequence[str]) -> Asked:
    known = {"forward": 1.0, "1": 1.0, "+1": 1.0, "backward": -1.0, "-1": -1.0}
    if len(words) != 1 or words[0] not in known:
        raise ValueError(f"--goal {' '.join(words)} is no direction: {ENVIRONMENTS['rl-cheetah-direction'].usage}")
    sign = known[words[0]]
    return Asked(jnp.asarray(sign, float), "forward" if sign > 0 else "backward")


def _numbers(name: str, words: Sequence[str], count: int) -> list[float]:
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != count or not all(map(math.isfinite, values)):
        raise ValueError(f"--goal {' '.join(words)} is no goal of {name}: {ENVIRONMENTS[name].usage}")
    return values


# Half-cheetah's engines: MuJoCo's own for processors, one program of ours for GPUs, arrays for other accelerators; MJX by name.
ENGINES: Mapping[str, Callable[..., Environment]] = MappingProxyType(
    {"c": cheetah_cpu, "kernel": cheetah_kernel.cheetah_kernel, "plane": cheetah_plane, "mjx": cheetah_mjx}
)


def _cheetah(goal: str, engine: str | None = None, **options) -> Environment:
    """By the engine of this name; else by that which is written for what JAX computes on."""
    name = engine or engine_for(jax.default_backend())
    require_known("engine", name, ENGINES)
    return ENGINES[name](goal, **options)


def engine_for(backend: str) -> str:
    """The name of half-cheetah's engine there.

    >>> engine_for("cpu"), engine_for("tpu")
    ('c', 'plane')
    """
    if backend == "cpu":
        return "c"
    return "kernel" if backend == "gpu" and cheetah_kernel.available() else "plane"


ENVIRONMENTS: Mapping[str, Named] = MappingProxyType(
    {
        "rl-navigation": Named(navigation, _place, "name its two coordinates, as --goal 0.3 -0.2"),
        "rl-cheetah-velocity": Named(partial(_cheetah, "velocity"), _speed, "name one speed in m/s, as --goal 1.5"),
        "rl-cheetah-direction": Named(
            partial(_cheetah, "direction"), _direction, "say --goal forward or --goal backward"
        ),
    }
)
