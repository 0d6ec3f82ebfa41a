"""What is said of a target, in its own scale, from a predictive in the scale of the network.

Predictives come filled up to a power of two (`prior.filled`), so that one compiled program serves many numbers of rows; what was
filled up is cut off here.
"""

import jax
import numpy as np
from jaxtyping import Float

from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.prior import Target
from metaprior.predict import Predictive

Rows = Float[np.ndarray, " N"]

_moments = jax.jit(lambda found: found.moments())
_interval = jax.jit(lambda found, level: found.interval(level), static_argnums=1)
_log_density = jax.jit(lambda found, y: found.log_density(y))


def moments(target: Target, found: Predictive, count: int) -> tuple[Rows, Rows]:
    """Mean and standard deviation of what may be observed, of the first `count` rows."""
    with small_and_precise():
        mean, std = (np.asarray(part)[:count, 0] for part in _moments(found))
    return target.mean + target.std * mean, target.std * std


def interval(target: Target, found: Predictive, count: int, level: float) -> tuple[Rows, Rows]:
    """Both ends of the central interval that holds a share `level`."""
    if not 0 < level < 1:
        raise ValueError(f"a level is a share between 0 and 1, got {level}: pass 0.9 for nine tenths")
    with small_and_precise():
        low, high = (np.asarray(end)[:count, 0] for end in _interval(found, float(level)))
    return target.mean + target.std * low, target.mean + target.std * high


def log_density(target: Target, found: Predictive, y: Rows) -> Rows:
    """Log p(y), row by row."""
    filled = np.zeros((found.mean.shape[1], 1))
    filled[: len(y), 0] = (y - target.mean) / target.std
    with small_and_precise():
        return np.asarray(_log_density(found, filled))[: len(y), 0] - np.log(target.std)
