"""Sinusoids: the regression tasks on which meta-learners are first tried.

Three rows of one table. `sinusoid` is the setting of Finn et al. (2017); `sinusoid-challenging` (random frequency, all
phases, noise) is the one in which methods part; `sinusoid-easier` lies between them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax.numpy as jnp

from metaprior.tasks.base import Curve, Tasks, regression, uniform
from metaprior.types import Key


@dataclass(frozen=True)
class Ranges:
    """Each task draws A, w, b uniformly from these; the noise has standard deviation `noise_factor` · A."""

    amplitude: tuple[float, float] = (0.1, 5.0)
    frequency: tuple[float, float] = (1.0, 1.0)
    phase: tuple[float, float] = (0.0, math.pi)
    noise_factor: float = 0.0
    input_range: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self):
        for word in ("amplitude", "frequency", "phase", "input_range"):
            low, high = getattr(self, word)
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ValueError(f"{word} must be (low, high) with low <= high, got ({low}, {high})")
        if not (math.isfinite(self.noise_factor) and self.noise_factor >= 0):
            raise ValueError(f"noise_factor must be >= 0, got {self.noise_factor}: pass 0 for no noise")


SETTINGS: Mapping[str, Ranges] = MappingProxyType(
    {
        "sinusoid": Ranges(),
        "sinusoid-challenging": Ranges(frequency=(0.5, 2.0), phase=(0.0, 2 * math.pi), noise_factor=0.01),
        "sinusoid-easier": Ranges(frequency=(0.5, 1.0), phase=(0.0, 2 * math.pi)),
    }
)


def sinusoid(
    name: str = "sinusoid",
    *,
    ranges: Ranges | None = None,
    shots: int = 10,
    queries: int = 10,
    eval_queries: int = 100,
) -> Tasks:
    r"""Random sinusoids.

    $$y = A\sin(wx + b) + \varepsilon, \qquad \varepsilon \sim N(0, (cA)^2)$$

    >>> import jax
    >>> episode = sinusoid("sinusoid-challenging", shots=5).sample(jax.random.key(0))
    >>> episode.support.x.shape, episode.query.y.shape
    ((5, 1), (10, 1))

    Args:
        name: a row of `SETTINGS`, or any name of your own if `ranges` is given.
        ranges: where A, w, b are drawn from, and c; the row called `name` when left out.
        shots: support points of a task.
        queries: query points of a task.
        eval_queries: points of the noise-free grid on which a task is evaluated.
    """
    if ranges is None and name not in SETTINGS:
        raise ValueError(f"no sinusoids are called {name!r}: pass ranges=Ranges(...) or one of {', '.join(SETTINGS)}")
    chosen = SETTINGS[name] if ranges is None else ranges

    def draw(key: Key) -> Curve:
        amplitude, frequency, phase = uniform(key, chosen.amplitude, chosen.frequency, chosen.phase)
        noise_std = chosen.noise_factor * amplitude if chosen.noise_factor else None
        return Curve(lambda x: amplitude * jnp.sin(frequency * x + phase), noise_std)

    return regression(
        name,
        _describe(chosen),
        draw,
        input_range=chosen.input_range,
        shots=shots,
        queries=queries,
        eval_queries=eval_queries,
    )


def _describe(ranges: Ranges) -> str:
    (a, aa), (w, ww), (b, bb) = ranges.amplitude, ranges.frequency, ranges.phase
    frequency = f"w = {w:g}" if w == ww else f"w ~ U[{w:g}, {ww:g}]"
    noise = f"noise std {ranges.noise_factor:g}·A" if ranges.noise_factor else "no noise"
    return f"y = A sin(wx + b), A ~ U[{a:g}, {aa:g}], {frequency}, b ~ U[{b:g}, {bb:.4g}], {noise}"
