"""Optimisers: the inner one of a row, and meta-optimisers that treat means, widths and rates apart."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from metaprior import trees
from metaprior.methods import Method
from metaprior.scalars import Scalar
from metaprior.types import Prior


def inner_optimizer(method: Method) -> dict[str, Any]:
    """The inner optimiser of a row. Momentum hurts across tasks, so Adam has none; its root is safe to differentiate."""
    if method.optimizer == "sgd":
        return {"optimizer": method.rate}
    adam = optax.adam(method.rate, b1=0.0, eps_root=1e-8)
    return {"optimizer": adam} | ({"share_state": True} if method.optimizer == "shared-adam" else {})


def flat_adam(rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    """Adam on all entries as one vector: the same numbers, in a few large operations instead of several for each leaf."""
    adam = optax.adam(rate)

    def update(updates, state, params=None):
        del params
        entries, state = adam.update(trees.vector(updates), state)
        return trees.like(updates, jnp.asarray(entries)), state

    return optax.GradientTransformation(lambda params: adam.init(trees.vector(params)), update)


def meta_optimizer(
    rate: Scalar,
    *,
    iterations: int | None = None,
    warm_up: int = 100,
    width_scale: float = 0.5,
    rate_scale: float = 1.0,
    clip: float | None = None,
    make: Callable[..., optax.GradientTransformation] = flat_adam,
) -> optax.GradientTransformation:
    """An optimiser that treats means, widths and rates apart.

    Args:
        rate: step size of the means.
        iterations: length of a cosine decay to zero; None keeps the rate.
        warm_up: iterations in which the rate rises from zero.
        width_scale: the widths' rate relative to the means', one half because a tied rate is the square of a width.
        rate_scale: the same for rates of their own.
        clip: largest norm of the gradient of each part; None for no limit.
        make: step size or schedule -> Optax optimiser.
    """

    def part(scale):
        schedule = _schedule(scale * rate, iterations, warm_up)
        return make(schedule) if clip is None else optax.chain(optax.clip_by_global_norm(clip), make(schedule))

    return optax.partition({"mean": part(1.0), "width": part(width_scale), "rate": part(rate_scale)}, part_labels)


def _schedule(rate, iterations, warm_up):
    rise = min(warm_up, iterations // 10) if iterations else warm_up
    after = optax.cosine_decay_schedule(rate, iterations - rise) if iterations else optax.constant_schedule(rate)
    return optax.join_schedules([optax.linear_schedule(0.0, rate, rise), after], [rise]) if rise else after


PARTS = {"mean": "mean"} | dict.fromkeys(("log_std", "tril", "query_log_std"), "width")
PARTS |= dict.fromkeys(("log_rate", "log_rate_support", "log_rate_query"), "rate")


def part_labels(prior: Prior) -> Prior:
    """Which part of Θ each leaf belongs to: mean, width or rate."""

    def label(path, _):
        for name in (getattr(entry, "name", "") for entry in path):
            if name in PARTS:  # the first: weights may have names of their own, as a policy its log_std
                return PARTS[name]
        return "mean"

    return jax.tree_util.tree_map_with_path(label, prior)


def longer_steps(name: str, factor: Scalar) -> optax.GradientTransformation:
    """Steps `factor` times as long for those weights of the mean that have this name; chain it behind the optimiser.

    Adam moves every number by about its rate in a step, however far it has to go, and a scale has further to go than a weight.
    """

    def mine(prior: Prior) -> Prior:
        def label(path, _):
            names = [getattr(entry, "name", "") for entry in path]
            return "mean" in names and names[-1] == name

        return jax.tree_util.tree_map_with_path(label, prior)

    return optax.masked(optax.scale(factor), mine)


def scale_by_fisher() -> optax.GradientTransformation:
    r"""Natural meta-steps for a mean-field prior, whose Fisher matrix in (μ, log σ) is diag(1/σ², 2).

    With a rate of one, GEM-BML's step in the means is then Reptile's interpolation $\mu + \overline{(m - \mu)}$, and its step in
    the widths the EM update to first order. Chain it before `optax.sgd(rate)`.
    """

    def update(updates, state, params=None):
        if params is None:
            raise ValueError("natural meta-steps need the prior: pass it as params")
        dist = updates.dist._replace(
            mean=jax.tree.map(lambda g, s: g * jnp.exp(2 * s), updates.dist.mean, params.dist.log_std),
            log_std=jax.tree.map(lambda g: g / 2, updates.dist.log_std),
        )
        return updates._replace(dist=dist), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
