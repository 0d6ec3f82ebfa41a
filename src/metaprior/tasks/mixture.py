"""Tasks of several kinds: a sinusoid, a line or a parabola. A Gaussian prior has one mode, these tasks have three."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from metaprior.names import require_known
from metaprior.tasks.base import Curve, Tasks, regression, uniform
from metaprior.types import Key

INPUT_RANGE = (-5.0, 5.0)
# Largest |value| of (sine amplitude, intercept, slope, curvature) for a sinusoid, a line, a parabola.
# Each row keeps |y| <= 5 on [-5, 5]: 5; 1 + 0.8·5; 0.5 + 0.15·5 + 0.15·25.
LARGEST = ((5.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.8, 0.0), (0.0, 0.5, 0.15, 0.15))


KINDS = ("sinusoids", "lines", "parabolas")


def mixture(
    name: str = "mixture",
    *,
    kinds: Sequence[str] = KINDS,
    noise_std: float = 0.0,
    shots: int = 10,
    queries: int = 10,
    eval_queries: int = 100,
) -> Tasks:
    r"""Random curves of three kinds, each with the same probability.

    $$A\sin(x + b), \qquad c_0 + c_1 x, \qquad c_0 + c_1 x + c_2 x^2$$

    with A ~ U[0.1, 5], b ~ U[0, π] for sinusoids; c₀ ~ U[-1, 1], c₁ ~ U[-0.8, 0.8] for lines; c₀ ~ U[-0.5, 0.5],
    c₁, c₂ ~ U[-0.15, 0.15] for parabolas. So -5 <= y <= 5 on [-5, 5], before noise, for every task.

    Args:
        name: what the tasks are called.
        kinds: of which kinds they are.
        noise_std: standard deviation of the noise on the targets, the same for every task.
        shots: support points of a task.
        queries: query points of a task.
        eval_queries: points of the noise-free grid on which a task is evaluated.
    """
    if not (math.isfinite(noise_std) and noise_std >= 0):
        raise ValueError(f"noise_std must be finite and not negative, got {noise_std}: pass 0 for no noise")
    for kind in kinds:
        require_known("kind of curve", kind, KINDS)
    rows = [LARGEST[KINDS.index(kind)] for kind in kinds]

    def draw(key: Key) -> Curve:
        kind_key, key = jax.random.split(key)
        largest = jnp.asarray(rows, float)[jax.random.randint(kind_key, (), 0, len(rows))]
        # Every kind is the same sum with some terms at zero, so that a batch of mixed kinds is one vmap.
        u = uniform(key, (0.02, 1.0), (0.0, math.pi), (-1.0, 1.0), (-1.0, 1.0), (-1.0, 1.0))
        amplitude, c0, c1, c2 = largest * jnp.stack((u[0], *u[2:]))
        return Curve(lambda x: amplitude * jnp.sin(x + u[1]) + c0 + c1 * x + c2 * x**2, noise_std or None)

    return regression(
        name,
        f"{_listed(kinds)}, outputs in [-5, 5]" + (f", noise std {noise_std:g}" if noise_std else ", no noise"),
        draw,
        input_range=INPUT_RANGE,
        shots=shots,
        queries=queries,
        eval_queries=eval_queries,
    )


def _listed(kinds: Sequence[str]) -> str:
    words = [{"sinusoids": "a sinusoid", "lines": "a line", "parabolas": "a parabola"}[kind] for kind in kinds]
    return (
        words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]} with probability 1/{len(words)} each"
    )
