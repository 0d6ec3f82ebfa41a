"""Features and a linear head with a column for each class.

Which class is called the first is a matter of chance in every task, so the columns of a head are exchangeable: what is known
before any data is the same of all of them, and does not depend on how many there are.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PyTree

from metaprior.models.base import Model, batch_normalised, choose
from metaprior.models.layers import INITIALISERS, Dense
from metaprior.types import Key

HEAD_INITIALISERS = INITIALISERS | {"zeros": initializers.zeros, "normal": initializers.normal(1.0)}


class Classifier(eqx.Module):
    """A network of features and its head."""

    features: Callable[..., Array]
    head: Dense

    def __call__(self, x: Float[Array, "N H W C"], *, reference: int | None = None) -> Float[Array, "N O"]:
        return self.head(self.features(x, reference=reference))


def classifier(features: Model, width: int, classes: int, *, head_init: str) -> Model:
    """A batch-normalised network of `width` features with a head for so many classes.

    Args:
        features: built of our layers; its module takes `reference`.
        width: how many features it gives.
        classes: number of outputs.
        head_init: as `init` of `mlp`, or "zeros", or "normal" (of unit variance, as in MAML's own code for Omniglot).
    """
    draw = choose("head_init", head_init, HEAD_INITIALISERS)
    if classes < 1:
        raise ValueError(f"a classifier needs at least one class, got classes={classes}")

    def begin(key: Key) -> Classifier:
        key_features, key_head = jax.random.split(key)
        head = Dense(draw(key_head, (width, classes)), jnp.zeros(classes))
        return Classifier(features.init(key_features), head)

    return batch_normalised(begin, f"{features.name}-{classes}")._replace(shared=shared, resize=resize)


def shared(tree: PyTree) -> PyTree:
    """Every column of `tree.head` replaced by the average of all: weights, or a gradient with respect to them.

    >>> from metaprior.last_layer import HeadParams
    >>> shared(HeadParams((), jnp.array([[1.0, 3.0]]))).head.tolist()
    [[2.0, 2.0]]
    """
    return _with_columns(tree, lambda leaf: leaf.shape[-1])


def resize(tree: PyTree, classes: int) -> PyTree:
    """The same with another number of columns, each the average of the old: exact where those are equal.

    >>> from metaprior.last_layer import HeadParams
    >>> resize(HeadParams((), jnp.array([[1.0, 3.0]])), 3).head.tolist()
    [[2.0, 2.0, 2.0]]
    """
    if classes < 1:
        raise ValueError(f"a classifier needs at least one class, got classes={classes}")
    return _with_columns(tree, lambda leaf: classes)


def _with_columns(tree: PyTree, count: Callable[[Array], int]) -> PyTree:
    def average(leaf: Float[Array, "... O"]) -> Float[Array, "... P"]:
        return jnp.broadcast_to(leaf.mean(-1, keepdims=True), (*leaf.shape[:-1], count(leaf)))

    return eqx.tree_at(lambda node: node.head, tree, jax.tree.map(average, tree.head))
