"""What a model is: a way to begin and a way to answer. Nothing else of the package knows a network."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from metaprior.names import require_known
from metaprior.types import Key, Params


class Model(NamedTuple):
    """f(x; θ): `init` draws first weights, `apply` answers for a batch of points.

    `noisy` says that its layers also understand weights which are distributions (see `noise`): built-in networks only.

    Where answers depend on the other points of a batch, through statistics of it, `inductive` gives those that do not: its
    statistics come from the support alone. Classifiers know what their columns have in common (see `classifier`): `shared`
    and `resize` take weights, or anything of their shape.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Float[Array, "N ..."]], Float[Array, "N O"]]
    name: str
    noisy: bool
    inductive: Callable[[Params, Float[Array, "M ..."], Float[Array, "N ..."]], Float[Array, "N O"]] | None = None
    shared: Callable[[PyTree], PyTree] | None = None  # every class the average of all
    resize: Callable[[PyTree, int], PyTree] | None = None  # as many classes as asked for, each the average of the old


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


def batch_normalised(init: Callable[[Key], Params], name: str) -> Model:
    """As `built_in`, for a module that takes `reference`, the number of points whose statistics count."""
    return built_in(init, name)._replace(inductive=_call_after)


def _call(params: Callable[[Array], Array], x: Array) -> Array:
    return params(x)  # one function for all networks: what is compiled for one instance serves the next


def _call_after(params: Callable[..., Array], support_x: Array, x: Array) -> Array:
    count = support_x.shape[0]
    return params(jnp.concatenate([support_x, x]), reference=count)[count:]


def choose(what: str, name: str, table: Mapping[str, Any]) -> Any:
    """The entry called `name`; an unknown name is refused with the nearest known ones."""
    require_known(what, name, table)
    return table[name]
