r"""Replies that say little about any one client: of bounded length, with noise that the client alone knows.

A client sends the mean meta-gradient of its tasks, scaled down to length C where it is longer, plus noise of its own,

$$\tilde g_c = g_c \min\Big(1, \frac{C}{\lVert g_c \rVert}\Big) + z\,C\,\varepsilon, \qquad \varepsilon \sim N(0, I),$$

and counts as one task, whatever it has: numbers of tasks are not told. Whoever's data are exchanged for any other data, its part
moves by at most 2C. What that is worth in (ε, δ) is for `accountant` to say.
"""

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from metaprior.federated.replies import Limits
from metaprior.meta import Statistics

Normal = Callable[[int, int], Float[np.ndarray, " W"]]  # (round, size) -> standard normal draws


class Privacy(NamedTuple):
    """What replies are made of, where clients are to be protected."""

    clip: float  # C: the longest that a client's mean meta-gradient may be
    noise: float  # z: standard deviation of a client's noise over C
    delta: float = 1e-5  # for which ε is told
    secret: bool = True  # whether the server draws whom it asks by chance that nobody can repeat; a rehearsal need not


def require_sound(privacy: Privacy) -> None:
    """Refuse numbers that protect nobody."""
    for name, value in (("--clip", privacy.clip), ("--noise", privacy.noise)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above zero and finite, got {value:g}")
    if not 0 < privacy.delta < 1:
        raise ValueError(f"--delta is a probability between 0 and 1, got {privacy.delta:g}")


def private(found: Statistics, privacy: Privacy, normal: Float[np.ndarray, " W"]) -> Statistics:
    """What a client may send of what it found, with standard normal draws that nobody else knows.

    Args:
        found: sums over the client's tasks. Where none was kept, noise alone is sent.
        privacy: how long and how noisy.
        normal: one draw for each entry of the prior, used once.
    """
    require_sound(privacy)
    if jax.tree.leaves(found.memory):
        raise ValueError(
            "tasks of this method share an optimiser, whose memory is not protected: choose another method"
        )
    mean = clipped(np.asarray(found.gradient, np.float64) / max(float(found.kept), 1.0), privacy.clip)
    told = jnp.asarray(mean + privacy.noise * privacy.clip * normal, found.gradient.dtype)
    return found._replace(gradient=told, kept=jnp.ones_like(found.kept), left_out=jnp.zeros_like(found.left_out))


def clipped(vector: Float[np.ndarray, " W"], limit: float) -> Float[np.ndarray, " W"]:
    """The vector, scaled down to length `limit` if it is longer."""
    length = float(np.linalg.norm(vector))
    return vector if length <= limit else vector * (limit / length)


def secret_normal(number: int, size: int) -> Float[np.ndarray, " W"]:
    """Standard normal draws from the system's randomness, which no seed gives again (Box and Muller's way)."""
    del number
    bits = np.frombuffer(os.urandom(16 * ((size + 1) // 2)), np.uint64).reshape(2, -1)
    radius, angle = ((bits >> np.uint64(11)) + 1) / 2.0**53  # in (0, 1]
    length = np.sqrt(-2 * np.log(radius))
    return np.concatenate([length * np.cos(2 * np.pi * angle), length * np.sin(2 * np.pi * angle)])[:size]


def rehearsed_normal(seed: int, client: int) -> Normal:
    """Draws that can be repeated, for simulations: they protect nobody who does not know the seed to be secret."""
    return lambda number, size: np.random.default_rng([seed, client, number]).standard_normal(size)


def limits(usual: Limits, privacy: Privacy | None, entries: int) -> Limits:
    """What replies keep to: those of honest clients are not much longer than their noise, and count as one task."""
    if privacy is None:
        return usual
    longest = privacy.clip * (1 + privacy.noise * (math.sqrt(entries) + 10))  # exceeded by chance once in 10²⁰
    return Limits(max_tasks=1, max_norm=min(usual.max_norm, longest))


def words(privacy: Privacy) -> dict[str, Any]:
    """What a client is told: how long and how noisy, and nothing that would let the server choose its noise."""
    return {"clip": privacy.clip, "noise": privacy.noise}


def agreed(asked: dict[str, Any] | None, least_noise: float) -> Privacy | None:
    """What a request asks for, if it is as much as the client insists on."""
    privacy = None if asked is None else Privacy(**asked)
    if privacy is not None:
        require_sound(privacy)
    if least_noise > (0.0 if privacy is None else privacy.noise):
        given = "none" if privacy is None else f"{privacy.noise:g}"
        raise ValueError(f"this client replies with noise of {least_noise:g} or more alone, and was asked for {given}")
    return privacy
