"""Arithmetic on pytrees of weights: the few operations the mathematics needs beyond `jax.tree.map`."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from metaprior.types import Key, Params


def total(tree: PyTree) -> Float[Array, ""]:
    """Sum of every entry of every leaf."""
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, tree), jnp.zeros(()))


def vector(tree: PyTree) -> Float[Array, " W"]:
    """Every entry of every leaf, one after the other."""
    return ravel_pytree(tree)[0]


def like(tree: PyTree, entries: Float[Array, " W"]) -> PyTree:
    """The entries in the shape of `tree`: undoes `vector`."""
    return ravel_pytree(tree)[1](entries)


def normal_like(key: Key, tree: Params) -> Params:
    """Independent standard normal draws in the shape of `tree`."""
    flat, unravel = ravel_pytree(tree)
    # one call for all leaves: each costs a tenth of a second to compile
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no entry of any floating leaf is NaN or infinite."""
    finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.stack(finite).all() if finite else jnp.array(True)


def where(condition: Bool[Array, ""], yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where the scalar condition holds, else `no`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def extremes(tree: PyTree) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Mean, smallest and largest entry over all leaves."""
    leaves = jax.tree.leaves(tree)
    mean = total(tree) / sum(x.size for x in leaves)
    return mean, jnp.stack([x.min() for x in leaves]).min(), jnp.stack([x.max() for x in leaves]).max()
