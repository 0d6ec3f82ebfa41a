r"""A prior for one group by itself: random waves and straight lines, with widths and noise of largest evidence.

$$\log p(y) = -\tfrac12\Big[\tfrac{r^\top r}{s^2} - \tfrac{b^\top B^{-1} b}{s^4}\Big] - \tfrac12\log|B| - n\log s
- \tfrac n2\log 2\pi, \qquad A = \Phi L,\quad B = I + \tfrac{A^\top A}{s^2},\quad b = A^\top r$$

Nothing has been learned from other groups, so this is what a group can say alone: nearly a Gaussian process.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.estimators.columns import encode, learn_columns
from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.groups import padded
from metaprior.estimators.networks import NUM_WAVES, basis
from metaprior.estimators.pieces import NOISE, Spec
from metaprior.estimators.prior import TablePrior, Target, class_rows
from metaprior.last_layer import LastLayer
from metaprior.likelihoods import Weighted, WithNoise
from metaprior.predict import Calibration
from metaprior.types import Prior

METHOD = "gem-bml+last-layer"
# Scaled rows and targets: from a straight line to a curve that turns a few times, from hardly any noise to nothing but noise.
GRID = np.array(list(itertools.product((0.3, 1.0, 2.5), (0.1, 1.0), (0.1, 1.0, 3.0), (0.01, 0.03, 0.1, 0.3, 0.6, 1.0))))
TEMPERATURES = np.exp(np.linspace(-4.0, 1.0, 26))


def generic_prior(
    table: np.ndarray,
    y: np.ndarray,
    names: list[str],
    *,
    classes: np.ndarray | None,
    seed: int,
    beforehand: float = 1.0,
    spread: float = 1.0,
) -> TablePrior:
    """The prior of largest evidence for these rows.

    Args:
        table: the rows.
        y: numbers, or the numbers of classes.
        names: of the columns.
        classes: where `y` holds their numbers.
        seed: of the random waves.
        beforehand: weight of what is likely of widths and noise before any row is seen.
        spread: of the scale of errors, relative to what so many rows leave open.
    """
    columns = learn_columns(table, names)
    outputs = 1 if classes is None else len(classes)
    spec = Spec("regression" if classes is None else "classification", columns.width, outputs, METHOD, network="basis")
    std = float(y.std()) if classes is None else 1.0
    target = (
        Target("y", float(y.mean()), std if std > 1e-12 else 1.0)
        if classes is None
        else Target("y", classes=tuple(classes.tolist()))
    )
    rows = encode(columns, table)
    values = ((y - target.mean) / target.std)[:, None] if classes is None else class_rows(spec, y)
    with small_and_precise():
        waves = jax.tree.map(np.asarray, basis(columns.width)[0].init(jax.random.key(seed)))
        found = _best(waves, padded(rows, values), jnp.asarray(GRID), beforehand)
        (frequency, lines, amplitude, noise), leave_one_out = jax.tree.map(np.asarray, found)
    waves = {"frequencies": waves["frequencies"] * frequency, "phases": waves["phases"]}
    widths = np.log(_widths(amplitude, lines, columns.width))
    arrays: Any = (np.asarray(_softplus_inverse(noise)), np.zeros((len(widths), outputs)), np.diag(widths))
    prior = Prior(LastLayer(WithNoise(waves, arrays[0]), *arrays[1:]))
    log_noise = math.log(noise) if classes is None else _log_temperature(leave_one_out[: len(y)], y)
    log_width = 0.0 if classes is None else -math.log(noise)
    doubt = (2 * len(y)) ** -0.5  # n points tell the logarithm of a scale to about this much
    five: Any = map(np.asarray, (log_width, log_noise, 0.0, spread * doubt, 1.0))
    return TablePrior(spec, columns, target, prior, (), Calibration(*five))


def _widths(amplitude, lines, inputs: int) -> np.ndarray:
    return np.concatenate([np.full(NUM_WAVES, amplitude), np.full(inputs, lines), [1.0]])


def _softplus_inverse(noise, least: float = 1e-3):
    """The parameter of `gaussian_shared_noise` that means this noise."""
    excess = math.log(float(noise)) - math.log(least)
    return math.log(least) + excess + math.log(-math.expm1(-excess))


@jax.jit
def _best(waves, points: Weighted, grid: Float[Array, "K 4"], weight):
    """The numbers of largest evidence, and what each point is predicted to be by the others."""
    # Few points are explained by no noise at all as well as by some: what is likely beforehand decides then.
    beforehand = -0.5 * weight * jnp.square(jnp.log(grid / jnp.asarray([[1.0, 1.0, 1.0, NOISE]]))).sum(axis=1)
    evidence = beforehand + jax.lax.map(lambda numbers: _evidence(waves, points, numbers)[0], grid)
    best = grid[jnp.argmax(jnp.where(jnp.isfinite(evidence), evidence, -jnp.inf))]
    return best, _evidence(waves, points, best)[1]


def _evidence(waves, points: Weighted, numbers):
    frequency, lines, amplitude, noise = numbers
    inputs, weight = points.x.shape[1], points.weight[:, None]
    features = basis(inputs)[0].apply({**waves, "frequencies": frequency * waves["frequencies"]}, points.x)
    features = jnp.concatenate([features, jnp.ones_like(weight)], axis=1)
    widths = jnp.concatenate([jnp.full(NUM_WAVES, amplitude), jnp.full(inputs, lines), jnp.ones(1)])
    rows, y = weight * features * widths[None], weight * points.y
    factor = jax.scipy.linalg.cho_factor(jnp.eye(rows.shape[1]) + rows.T @ rows / noise**2, lower=True)
    solved = jax.scipy.linalg.cho_solve(factor, jnp.concatenate([rows.T @ y, rows.T], axis=1))
    coefficients, influence = solved[:, : y.shape[1]], solved[:, y.shape[1] :]
    fit = (y * y).sum() / noise**2 - ((rows.T @ y) * coefficients).sum() / noise**4
    shape = jnp.log(jnp.diagonal(factor[0])).sum() + weight.sum() * jnp.log(noise)
    # y − (y − ŷ)/(1 − hᵢᵢ): the answer that the others give at a point, without fitting them anew
    leverage = jnp.einsum("nf,fn->n", rows, influence)[:, None] / noise**2
    others = y - (y - rows @ coefficients / noise**2) / jnp.maximum(1 - leverage, 1e-6)
    return -0.5 * fit - y.shape[1] * shape, others


def _log_temperature(logits: Float[np.ndarray, "N C"], numbers: np.ndarray) -> float:
    """Of the softmax: the one under which each point is answered best by the others."""

    def loss(temperature):
        scaled = logits / temperature
        top = scaled.max(axis=1, keepdims=True)
        norm = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1))
        return (norm - scaled[np.arange(len(numbers)), numbers]).mean()

    return math.log(min(TEMPERATURES, key=loss))
