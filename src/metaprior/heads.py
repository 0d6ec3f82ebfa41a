"""Priors that do not depend on the number of classes.

Class numbers are drawn anew for every task, so the columns of a classifier's head are exchangeable. A *shared* head takes that
seriously: all columns have one prior, its gradient is the average over columns, and the prior then serves any number of classes.
To a softmax only differences of columns count, so the common mean stays where it began; what is learned of such a head are its
widths, and with them how fast each feature is taken up.
"""

from collections.abc import Callable
from typing import Any

import jax

from metaprior.families import Delta, MeanField, Particles
from metaprior.last_layer import HeadParams, LastLayer
from metaprior.models import Model
from metaprior.types import Dist, Params, Prior


def shared_columns(model: Model) -> Callable[[Prior], Prior]:
    """What makes all columns of the head alike, in a prior or in its gradient."""
    shared = model.shared
    if shared is None:
        raise ValueError(f"{model.name} has no classes to share a head: use it with tasks of images, or head='own'")
    return lambda prior: over_weights(shared, prior)


def with_classes(model: Model, prior: Prior, classes: int) -> Prior:
    """The same prior for another number of classes; exact for a shared head, the average of the columns otherwise."""
    resize = model.resize
    if resize is None:
        raise ValueError(f"{model.name} has no head whose classes could change")
    if classes < 2:
        raise ValueError(f"a task needs two classes or more, got {classes}")
    return over_weights(lambda weights: resize(weights, classes), prior)


def memory_with_classes(model: Model, memory: Any, classes: int) -> Any:
    """What inference shares between tasks, for another number of classes."""
    is_dist = lambda node: isinstance(node, Delta | MeanField | Particles | LastLayer)
    resized = lambda node: with_classes(model, Prior(node), classes).dist if is_dist(node) else node
    return jax.tree.map(resized, memory, is_leaf=is_dist)


def over_weights(change: Callable[[Params], Params], prior: Prior) -> Prior:
    """Every part of the prior that has the shape of the weights, changed."""
    if prior.extra != ():
        raise ValueError("this method keeps more than a prior over weights: its head cannot be shared or resized")
    rates = None if prior.log_rate is None else change(prior.log_rate)
    return prior._replace(dist=_over_dist(change, prior.dist), log_rate=rates)


def _over_dist(change, dist: Dist) -> Dist:
    match dist:
        case MeanField():
            return MeanField(change(dist.mean), change(dist.log_std))
        case Delta():
            return Delta(change(dist.mean))
        case Particles():
            return Particles(jax.vmap(change)(dist.params))
        case LastLayer():
            both = change(HeadParams(dist.features, dist.mean))
            return LastLayer(both.features, both.head, dist.tril)
    raise ValueError(f"the head of a {type(dist).__name__} prior cannot be shared or resized: use a mean-field prior")
