"""How good predictions are, and how honest their uncertainty is: pure functions of arrays.

A predictive distribution is an equally weighted mixture of `S` Gaussians given by `mean` and `std`, both [S, ...];
S = 1 is a plain Gaussian. Letters: `S` components, `N` points, `C` classes, `M` bins. Scores of single points are named
`mixture_…`; averages take `where`, a mask of the points that count (see `near_and_far`), and are NaN if no point does.
All but `format_reliability` can be jitted.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, ndtr, ndtri
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float, Int

Scalar = Float[Array, ""] | float
Mask = Bool[Array, "*shape"] | None

# --- regression -------------------------------------------------------------------------------------------------------


def mse(y: Float[Array, "*shape"], prediction: Float[Array, "*shape"], *, where: Mask = None) -> Float[Array, ""]:
    """Mean squared error."""
    return jnp.mean((y - prediction) ** 2, where=where)


def mixture_log_density(
    y: Float[Array, "*shape"], mean: Float[Array, "S *shape"], std: Float[Array, "S *shape"]
) -> Float[Array, "*shape"]:
    r"""The log density of each point under its predictive mixture.

    $$\log \frac1S \sum_s N(y;\ \mu_s, \sigma_s^2)$$
    """
    return logsumexp(norm.logpdf(y[None], mean, std), axis=0) - jnp.log(mean.shape[0])


def nll(
    y: Float[Array, "*shape"], mean: Float[Array, "S *shape"], std: Float[Array, "S *shape"], *, where: Mask = None
) -> Float[Array, ""]:
    """Negative log likelihood per point."""
    return -jnp.mean(mixture_log_density(y, mean, std), where=where)


def mixture_cdf(
    y: Float[Array, "*shape"], mean: Float[Array, "S *shape"], std: Float[Array, "S *shape"]
) -> Float[Array, "*shape"]:
    """P(Y <= y) for each point."""
    return jnp.mean(ndtr((y[None] - mean) / std), axis=0)


def mixture_quantile(
    p: Scalar | Float[Array, "*shape"],
    mean: Float[Array, "S *shape"],
    std: Float[Array, "S *shape"],
    *,
    num_steps: int = 50,
) -> Float[Array, "*shape"]:
    """The y at which `mixture_cdf` is p, by bisection.

    A mixture's quantile lies between the smallest and the largest of its components' quantiles; that bracket is halved
    `num_steps` times: 50 reach the precision of the numbers, 20 reach 1e-6 of the bracket. Not for differentiation.
    """
    ends = mean + std * jnp.broadcast_to(ndtri(jnp.asarray(p, mean.dtype)), mean.shape[1:])[None]

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * low + 0.5 * high
        below = mixture_cdf(middle, mean, std) < p
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, num_steps, halve, (ends.min(axis=0), ends.max(axis=0)))
    return 0.5 * low + 0.5 * high


def mixture_crps(
    y: Float[Array, "*shape"], mean: Float[Array, "S *shape"], std: Float[Array, "S *shape"]
) -> Float[Array, "*shape"]:
    r"""Continuous ranked probability score of each point: ∫ (F(z) − 1{y ≤ z})² dz, in the units of y; less is better.

    $$\frac1S\sum_s A(y-\mu_s, \sigma_s^2) - \frac1{2S^2}\sum_{s,t} A(\mu_s-\mu_t, \sigma_s^2+\sigma_t^2)$$

    with A(μ, σ²) = 2σφ(μ/σ) + μ(2Φ(μ/σ) − 1) = E|N(μ, σ²)| (Grimit et al. 2006). Components of zero std are points.
    """

    def to_others(component):  # one row of the double sum at a time: memory grows with S, not S²
        m, s = component
        return jnp.mean(_mean_absolute(m[None] - mean, jnp.hypot(s[None], std)), axis=0)

    spread = jnp.mean(jax.lax.map(to_others, (mean, std)), axis=0)
    return jnp.mean(_mean_absolute(y[None] - mean, std), axis=0) - 0.5 * spread


def crps(
    y: Float[Array, "*shape"], mean: Float[Array, "S *shape"], std: Float[Array, "S *shape"], *, where: Mask = None
) -> Float[Array, ""]:
    """Mean continuous ranked probability score."""
    return jnp.mean(mixture_crps(y, mean, std), where=where)


def _mean_absolute(mean: Float[Array, "*s"], std: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """E|X| for X ~ N(mean, std²)."""
    positive = std > 0
    z = mean / jnp.where(positive, std, 1.0)
    return jnp.where(positive, 2 * std * norm.pdf(z) + mean * (2 * ndtr(z) - 1), jnp.abs(mean))


def coverage(
    y: Float[Array, "*shape"], low: Float[Array, "*shape"], high: Float[Array, "*shape"], *, where: Mask = None
) -> Float[Array, ""]:
    """The share of points with low <= y <= high."""
    inside = (low <= y) & (y <= high)
    return jnp.mean(inside.astype(y.dtype), where=where)


def interval_coverage(
    y: Float[Array, "*shape"],
    mean: Float[Array, "S *shape"],
    std: Float[Array, "S *shape"],
    *,
    level: Scalar = 0.9,
    where: Mask = None,
) -> Float[Array, ""]:
    """The share of points inside their central `level` interval; equal to `level` when the predictive is right."""
    low, high = (mixture_quantile((1 + side * level) / 2, mean, std) for side in (-1, 1))
    return coverage(y, low, high, where=where)


def near_and_far(
    x: Float[Array, "N D"], support_x: Float[Array, "K D"], radius: Scalar
) -> tuple[Bool[Array, " N"], Bool[Array, " N"]]:
    """Two masks: points within `radius` of some support input, and the others. Without support every point is far."""
    distance = jnp.linalg.norm(x[:, None] - support_x[None], axis=-1)
    near = jnp.min(distance, axis=1, initial=jnp.inf) <= radius
    return near, ~near


def rank_correlation(std: Float[Array, "*shape"], error: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Spearman's correlation of stated uncertainty and (absolute) error, over all points; ties share their mean rank.

    Above zero where larger errors come with larger stated uncertainty; NaN if either is the same everywhere.
    """
    a, b = (_average_rank(v.reshape(-1)) for v in (std, error))
    a, b = a - a.mean(), b - b.mean()
    return (a @ b) / jnp.sqrt((a @ a) * (b @ b))


def _average_rank(values: Float[Array, " N"]) -> Float[Array, " N"]:
    ordered = jnp.sort(values)
    first, past = (jnp.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (first + past + 1).astype(values.dtype) / 2


# --- classes ----------------------------------------------------------------------------------------------------------


def accuracy(probabilities: Float[Array, "N C"], labels: Int[Array, " N"]) -> Float[Array, ""]:
    """The share of points whose most probable class is the right one."""
    return jnp.mean(_correct(probabilities, labels))


def log_loss(probabilities: Float[Array, "N C"], labels: Int[Array, " N"]) -> Float[Array, ""]:
    """−log p(label) per point.

    A probability rounded to zero counts as the smallest normal number: one point cannot make the mean infinite.
    """
    chosen = jnp.take_along_axis(probabilities, labels[:, None], axis=1)
    return -jnp.mean(jnp.log(jnp.maximum(chosen, jnp.finfo(chosen.dtype).tiny)))


def brier(probabilities: Float[Array, "N C"], labels: Int[Array, " N"]) -> Float[Array, ""]:
    """Σ_c (p_c − 1{c = label})² per point, summed over classes: from 0 (certain and right) to 2 (certain and wrong)."""
    truth = jax.nn.one_hot(labels, probabilities.shape[1], dtype=probabilities.dtype)
    return jnp.mean(jnp.sum((probabilities - truth) ** 2, axis=1))


class Reliability(NamedTuple):
    """Stated confidence against accuracy, in M equal bins (edge, next edge]; empty bins hold zeros."""

    edges: Float[Array, " M+1"]
    count: Int[Array, " M"]
    confidence: Float[Array, " M"]
    accuracy: Float[Array, " M"]


def reliability(probabilities: Float[Array, "N C"], labels: Int[Array, " N"], *, num_bins: int = 15) -> Reliability:
    """Sort predictions into equal-width bins on (0, 1] by their confidence, the largest probability (Guo et al. 2017).

    Pool the predictions of all test tasks first: bins of single tasks are nearly empty.
    """
    return reliability_of(probabilities.max(axis=1), _correct(probabilities, labels), num_bins=num_bins)


def reliability_of(confidence: Float[Array, " N"], correct: Float[Array, " N"], *, num_bins: int = 15) -> Reliability:
    """The same from confidences, and 1 where the prediction was right or 0 where it was not."""
    index = bin_of(confidence, num_bins)
    count = jnp.bincount(index, length=num_bins)
    average = lambda values: jnp.bincount(index, values, length=num_bins) / jnp.maximum(count, 1)
    return Reliability(_edges(num_bins, confidence.dtype), count, average(confidence), average(correct))


def bin_of(confidence: Float[Array, "*shape"], num_bins: int) -> Int[Array, "*shape"]:
    """The number of the bin (edge, next edge] that each confidence lies in."""
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}: 15 is usual")
    # Found among the edges themselves: confidence · num_bins rounds some edges into the bin above.
    inner = _edges(num_bins, confidence.dtype)[1:]
    return jnp.clip(jnp.searchsorted(inner, confidence, side="left"), 0, num_bins - 1)


def _edges(num_bins: int, dtype) -> Float[Array, " edges"]:
    return jnp.linspace(0.0, 1.0, num_bins + 1, dtype=dtype)


def ece(table: Reliability) -> Float[Array, ""]:
    r"""Expected calibration error: the mean gap between accuracy and confidence, weighted by the bins' counts.

    $$\sum_m \frac{|B_m|}{n}\,|\mathrm{acc}(B_m) - \mathrm{conf}(B_m)|$$
    """
    return jnp.sum(table.count * _gap(table)) / jnp.sum(table.count)


def mce(table: Reliability, *, min_count: int = 1) -> Float[Array, ""]:
    """Maximum calibration error: the largest gap among bins of at least `min_count` predictions; NaN if there is none.

    Empty bins never count. A rare bin's gap is mostly chance: ignore bins below about 100, and say so with the number.
    """
    if min_count < 1:
        raise ValueError(f"min_count must be at least 1, got {min_count}: empty bins have no gap")
    full = table.count >= min_count
    return jnp.where(full.any(), jnp.max(_gap(table), where=full, initial=0.0), jnp.nan)


def _gap(table: Reliability) -> Float[Array, " M"]:
    return jnp.abs(table.accuracy - table.confidence)


def _correct(probabilities: Float[Array, "N C"], labels: Int[Array, " N"]) -> Float[Array, " N"]:
    return (probabilities.argmax(axis=1) == labels).astype(probabilities.dtype)


def format_reliability(table: Reliability, *, min_count: int = 1) -> str:
    """The table as text, empty bins left out, ECE and MCE beneath.

    >>> p = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.45, 0.55]])
    >>> print(format_reliability(reliability(p, jnp.array([0, 0, 1]), num_bins=5)))
    confidence bin   count   confidence   accuracy      gap
    (0.40, 0.60]         1       0.5500     1.0000  +0.4500
    (0.60, 0.80]         1       0.8000     0.0000  -0.8000
    (0.80, 1.00]         1       0.9000     1.0000  +0.1000
    ECE 0.4500, MCE 0.8000 over 3 predictions
    """
    edges, count, confidence, right = (np.asarray(column) for column in table)
    lines = ["confidence bin   count   confidence   accuracy      gap"]
    for low, high, n, stated, found in zip(edges[:-1], edges[1:], count, confidence, right, strict=True):
        if n:
            lines.append(f"({low:.2f}, {high:.2f}]  {n:8d}  {stated:11.4f}  {found:9.4f}  {found - stated:+7.4f}")
    rare = f" (bins of fewer than {min_count} ignored in MCE)" if min_count > 1 else ""
    scores = f"ECE {float(ece(table)):.4f}, MCE {float(mce(table, min_count=min_count)):.4f}"
    return "\n".join([*lines, f"{scores} over {count.sum()} predictions{rare}"])
