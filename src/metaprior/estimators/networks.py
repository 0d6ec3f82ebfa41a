"""Networks for rows of a table: ours, a generic one without training, and anyone else's."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models import Model, foreign, mlp
from metaprior.types import Key

NUM_WAVES = 100  # of the generic basis


def tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """JAX's own, by a name that can be pickled: it is kept with the weights."""
    return jnp.tanh(x)


def table_features(inputs: int, hidden: tuple[int, ...]) -> tuple[Model, int]:
    """Features of a row and how many: a network's, and the row itself. No hidden layer leaves the row: a mixed model.

    The row beside the network gives a head straight lines from the start, and something to go on with beyond the data.
    """
    if not hidden:
        return foreign(lambda key: (), lambda params, x: x, "linear"), inputs
    body = mlp((inputs, *hidden), activation=tanh, init="glorot")

    def apply(params, x):
        return jnp.concatenate([jnp.tanh(body.apply(params, x)) / hidden[-1] ** 0.5, x], axis=1)

    return foreign(body.init, apply, body.name), hidden[-1] + inputs


def basis(inputs: int) -> tuple[Model, int]:
    """Random waves, and the row itself: a head of independent weights on them is nearly a Gaussian process."""

    def init(key: Key):
        key_direction, key_phase = jax.random.split(key)
        frequencies = jax.random.normal(key_direction, (inputs, NUM_WAVES))
        return {"frequencies": frequencies, "phases": jax.random.uniform(key_phase, (NUM_WAVES,), maxval=2 * jnp.pi)}

    def apply(params, x):
        waves = jnp.cos(x @ params["frequencies"] + params["phases"][None])
        return jnp.concatenate([waves * (2 / NUM_WAVES) ** 0.5, x], axis=1)

    return foreign(init, apply, "basis"), NUM_WAVES + inputs


def as_model(network: Any, inputs: int) -> tuple[Model, int]:
    """Anyone's network as a model, and how many numbers it answers a row with.

    A Flax module takes all rows at once, an Equinox module one row, as is the custom of each; a `Model` is taken as it is.
    """
    if isinstance(network, Model):
        model = network
    elif isinstance(network, eqx.Module):
        model = _of_equinox(network)
    elif callable(getattr(network, "init", None)) and callable(getattr(network, "apply", None)):
        begin = lambda key: network.init(key, jnp.zeros((1, inputs)))
        model = foreign(begin, network.apply, type(network).__name__)
    else:
        raise ValueError(
            f"model is a {type(network).__name__}: pass an Equinox module, a Flax module (linen), or metaprior.foreign(init, "
            "apply, name)"
        )
    model = model._replace(init=_in_double(model.init))
    return model, _width(model, inputs)


def _of_equinox(network: eqx.Module) -> Model:
    weights, rest = eqx.partition(network, eqx.is_inexact_array)

    def apply(params, x):
        module: Any = eqx.combine(params, rest)
        return jax.vmap(module)(x)

    return foreign(lambda key: weights, apply, type(network).__name__)


def _in_double(init):
    """Modules come with weights of 32 bits, and tables are computed with 64."""
    return lambda key: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), init(key))


def _width(model: Model, inputs: int) -> int:
    def answer(key):
        return model.apply(model.init(key), jnp.zeros((3, inputs)))

    try:
        shape = jax.eval_shape(answer, jax.random.key(0)).shape
    except (TypeError, ValueError) as error:
        raise ValueError(f"{model.name} cannot take rows of {inputs} numbers: {error}") from error
    if len(shape) != 2 or shape[0] != 3:
        raise ValueError(f"{model.name} must answer each of 3 rows with a row of numbers, and gives shape {shape}")
    return shape[1]
