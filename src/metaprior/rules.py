r"""How the widths and the rates of a prior are learned.

* `exact`: by the gradient of the method's formula. Right at temperature one in a model that fits; with cold posteriors and
  neural networks the noise of the step, $(m_2-m_1)^2 \ge 0$, is over-counted and widths grow without bound.
* `debiased`: keep only the cross term of the exact Gradient-EM+ gradient, which telescopes for GEM-BML too,
  $$\partial \log\sigma = 2\,(m_2-m_1)(m_1-\mu)/\sigma^2, \qquad \partial \log\alpha = (m_2-m_1)(m_1-\mu)/\alpha .$$
  Positive where the query pushes on in the direction of the support (take larger steps), negative where it pushes back. With
  one step per stage the second is minus the gradient of the query loss in log α, inner gradients held: Meta-SGD without
  back-propagation.
* `frozen`: not at all.
"""

import jax
import jax.numpy as jnp

from metaprior import trees
from metaprior.families import MeanField
from metaprior.scalars import Scalar, log
from metaprior.types import Family, Params, Posteriors, Prior

WIDTH_RULES = ("exact", "debiased", "frozen")
RATE_RULES = ("exact", "debiased", "frozen", "tied", "none")


def apply_rules(
    widths: str, rates: str, family: Family, prior: Prior, posteriors: Posteriors, gradient: Prior, rate: Scalar
) -> Prior:
    """The meta-gradient with the parts of widths and rates as their rules say."""
    if isinstance(prior.dist, MeanField) and widths == "debiased":
        doubled = jax.tree.map(
            lambda c, s: 2 * c * jnp.exp(-2 * s), cross_term(family, prior, posteriors), prior.dist.log_std
        )
        gradient = gradient._replace(dist=gradient.dist._replace(log_std=doubled))
    if widths == "frozen":
        gradient = gradient._replace(dist=_without_widths(gradient.dist), extra=_without_widths(gradient.extra))
    if prior.log_rate is not None and rates == "debiased":
        per_rate = jax.tree.map(
            lambda c, r: c * jnp.exp(-r) / rate, cross_term(family, prior, posteriors), prior.log_rate
        )
        gradient = gradient._replace(log_rate=per_rate)
    if prior.log_rate is not None and rates == "frozen":
        gradient = gradient._replace(log_rate=jax.tree.map(jnp.zeros_like, prior.log_rate))
    return gradient


# A learned rate stays within e^-8 … e^3 of where it began: unbounded ones reach e^8 and blow up.
LOG_RATE_BOUNDS = (-8.0, 3.0)


def bounded(widths: str, rates: str, prior: Prior, std: Scalar) -> Prior:
    """The prior with learned rates inside their bounds; widths to which rates are tied follow, being half of them in log."""
    low, high = LOG_RATE_BOUNDS
    if prior.log_rate is not None:
        prior = prior._replace(log_rate=jax.tree.map(lambda r: jnp.clip(r, low, high), prior.log_rate))
    if rates == "tied" and widths != "frozen":
        start = log(std)
        clipped = jax.tree.map(lambda s: jnp.clip(s, start + low / 2, start + high / 2), prior.dist.log_std)
        prior = prior._replace(dist=prior.dist._replace(log_std=clipped))
    return prior


def clipped(gradient: Prior, limit: float | None) -> Prior:
    """One task's gradient, scaled down where its part in the weights is longer than `limit`: no task may outvote the rest."""
    if limit is None:
        return gradient
    weights = _without_widths(gradient.dist)  # means, and features where they are not adapted
    norm = jnp.sqrt(trees.total(jax.tree.map(jnp.square, weights)))
    scale = jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-30))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradient)


def cross_term(family: Family, prior: Prior, posteriors: Posteriors) -> Params:
    """(m2 − m1)(m1 − μ), weight by weight."""
    m1, m2 = family.mean(posteriors.q1), family.mean(posteriors.q2)
    return jax.tree.map(lambda a, b, mu: (b - a) * (a - mu), m1, m2, prior.dist.mean)


def _without_widths(part):
    names = [name for name in ("log_std", "tril", "query_log_std") if hasattr(part, name)]
    return (
        part._replace(**{name: jax.tree.map(jnp.zeros_like, getattr(part, name)) for name in names}) if names else part
    )
