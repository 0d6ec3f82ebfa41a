"""Fully connected networks."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model, built_in, choose
from metaprior.models.layers import INITIALISERS, Dense
from metaprior.types import Key


class MLP(eqx.Module):
    """Dense layers with an activation between each two."""

    layers: tuple[Dense, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "N inputs"]) -> Float[Array, "N O"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


def mlp(
    sizes: tuple[int, ...] = (1, 40, 40, 1), *, activation: Callable[[Array], Array] = jax.nn.relu, init: str = "he"
) -> Model:
    """A fully connected network; biases start at zero.

    Args:
        sizes: widths from input to output; two are a linear model.
        activation: applied after every layer but the last.
        init: "he" (std √(2 / fan_in)), "glorot" (uniform) or "truncated" (std 0.01).

    >>> model = mlp((1, 40, 40, 1))
    >>> params = model.init(jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    1761
    >>> model.apply(params, jnp.zeros((5, 1))).shape
    (5, 1)
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"an mlp needs two or more widths, all at least 1, got {sizes}: try sizes=(1, 40, 40, 1)")
    draw = choose("init", init, INITIALISERS)

    def begin(key: Key) -> MLP:
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
        return MLP(tuple(Dense(draw(k, (n_in, n_out)), jnp.zeros(n_out)) for k, n_in, n_out in pairs), activation)

    return built_in(begin, "mlp-" + "-".join(map(str, sizes)))
