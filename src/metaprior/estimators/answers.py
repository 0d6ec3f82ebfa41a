"""What is said of a target, in its own scale, from a predictive in the scale of the network."""

import numpy as np
from jaxtyping import Float

from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.prior import Target
from metaprior.predict import Predictive

Rows = Float[np.ndarray, " N"]


def moments(target: Target, found: Predictive) -> tuple[Rows, Rows]:
    """Mean and standard deviation of what may be observed."""
    with small_and_precise():
        mean, std = (np.asarray(part)[:, 0] for part in found.moments())
    return target.mean + target.std * mean, target.std * std


def interval(target: Target, found: Predictive, level: float) -> tuple[Rows, Rows]:
    """Both ends of the central interval that holds a share `level`."""
    with small_and_precise():
        low, high = (target.mean + target.std * np.asarray(end)[:, 0] for end in found.interval(level))
    return low, high


def log_density(target: Target, found: Predictive, y: Rows) -> Rows:
    """Log p(y), row by row."""
    with small_and_precise():
        return np.asarray(found.log_density((y - target.mean) / target.std))[:, 0] - np.log(target.std)
