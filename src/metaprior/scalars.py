"""Hyper-parameters are numbers, or traced numbers: a search over them is then one program, `vmap` over settings.

A traced number has no value to look at while the program is made, so it cannot be refused; plain ones are, in words.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

Scalar = float | Float[Array, ""]


def require_positive(what: str, value: Any, hint: str = "") -> None:
    """Refuse a plain number that is not above zero and finite.

    >>> require_positive("the inner rate", -1.0)
    Traceback (most recent call last):
    ValueError: the inner rate must be above zero and finite, got -1
    """
    if not isinstance(value, Tracer) and not 0 < value < math.inf:
        raise ValueError(f"{what} must be above zero and finite, got {value:g}{hint and ': ' + hint}")


def at_least_one(count: Any):
    """A number of points as a divisor: points that carry weights have a number that is traced."""
    return jnp.maximum(count, 1) if isinstance(count, Array) else max(count, 1)


def log(value: Any):
    """The logarithm of a plain number in double precision, or of a traced one."""
    return jnp.log(value) if isinstance(value, Tracer) else math.log(value)
