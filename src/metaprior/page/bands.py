"""Bands for any number of points: calibrations for some numbers of them, and between these what lies between.

How wrong a prior is depends on how much it was shown. After three points it errs a hundred times as far as after ten, and bands
that are right for ten would be far too narrow.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.page import priors
from metaprior.predict import Calibration


class Bands(NamedTuple):
    """Calibrations for P numbers of points, which rise, and after 0, 1, … updates."""

    points: Float[Array, " P"]
    calibration: Calibration  # arrays [P, updates + 1]


def at(bands: Bands, count: Float[Array, ""] | float | int) -> Calibration:
    """After each number of updates on `count` points, linear in its logarithm; those outside of the range have the nearest.

    >>> bands = Bands(jnp.array([1.0, 4.0]), Calibration(*[jnp.array([[0.0], [2.0]])] * 5))
    >>> [round(float(at(bands, count).log_width[0]), 3) for count in (0, 1, 2, 4, 16)]
    [0.0, 0.0, 1.0, 2.0, 2.0]
    """
    place = jnp.log(jnp.maximum(jnp.asarray(count, bands.points.dtype), 1))
    between = jax.vmap(lambda column: jnp.interp(place, jnp.log(bands.points), column), in_axes=1)
    return jax.tree.map(between, bands.calibration)


def of_card(values: Mapping[str, Any]) -> Bands:
    """From the card."""
    return Bands(jnp.asarray(values["points"], jnp.result_type(float)), priors.calibration_of(values))


def card_values(bands: Bands) -> dict[str, Any]:
    """For the card."""
    values = priors.calibration_values(bands.calibration)
    return {"points": np.asarray(bands.points, int).tolist(), **values}
