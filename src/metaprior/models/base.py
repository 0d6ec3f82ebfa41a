"""What a model is: a way to begin and a way to answer. Nothing else of the package knows a network."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from metaprior.names import require_known
from metaprior.types import Key, Params


class Model(NamedTuple):
    """f(x; θ): `init` draws first weights, `apply` answers for a batch of points.

    `noisy` says that its layers also understand weights which are distributions (see `noise`): built-in networks only.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Float[Array, "N ..."]], Float[Array, "N O"]]
    name: str
    noisy: bool


def foreign(init: Callable[[Key], Params], apply: Callable[[Params, Array], Array], name: str) -> Model:
    """A model from elsewhere: any pair of pure functions over a pytree of weights.

    Flax: `foreign(lambda key: net.init(key, x), net.apply, "mine")`.
    Haiku: `foreign(lambda key: net.init(key, x), lambda params, x: net.apply(params, None, x), "mine")`.

    Args:
        init: key -> weights, any pytree of floating-point arrays.
        apply: (weights, x [N, ...]) -> outputs [N, O].
        name: what reports call it.

    >>> import jax, jax.numpy as jnp
    >>> begin = lambda key: {"slope": jax.random.normal(key, (1, 1))}
    >>> line = foreign(begin, lambda params, x: x @ params["slope"], "line")
    >>> line.apply({"slope": jnp.full((1, 1), 2.0)}, jnp.ones((3, 1))).tolist()
    [[2.0], [2.0], [2.0]]
    >>> line.noisy
    False
    """
    return Model(init, apply, name, noisy=False)


def built_in(init: Callable[[Key], Params], name: str) -> Model:
    """A network made of our own layers: the module is the pytree of its weights, and calling it is the forward pass."""
    return Model(init, _call, name, noisy=True)


def _call(params: Callable[[Array], Array], x: Array) -> Array:
    return params(x)  # one function for all networks: what is compiled for one instance serves the next


def choose(what: str, name: str, table: Mapping[str, Any]) -> Any:
    """The entry called `name`; an unknown name is refused with the nearest known ones."""
    require_known(what, name, table)
    return table[name]
