"""A prior over tables as one value: what was learned, how rows and targets are scaled, and what it says of one group."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from metaprior.classes import ClassPredictive
from metaprior.estimators.columns import Columns, encode
from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.groups import bucket, padded
from metaprior.estimators.networks import as_model
from metaprior.estimators.pieces import Programs, Spec, assemble, programs
from metaprior.likelihoods import Weighted
from metaprior.models import Model
from metaprior.predict import Calibration, Predictive
from metaprior.tasks.images import class_targets
from metaprior.types import Dist, Prior


class Target(NamedTuple):
    """Scale of a number, or the classes."""

    name: str = "y"
    mean: float = 0.0
    std: float = 1.0
    classes: tuple[Any, ...] | None = None


class TablePrior(NamedTuple):
    """What `MetaRegressor` and `MetaClassifier` learn. Arrays are NumPy's, and the rest is plain: it pickles."""

    spec: Spec
    columns: Columns
    target: Target
    prior: Prior
    memory: Any
    calibration: Calibration
    network: Any = None  # as it was given, where it is not one of ours
    named: bool = False  # whether columns came with names
    facts: Mapping[str, Any] = {}  # what it was learned from and how well it did, for people


class Fitted(NamedTuple):
    """A prior adapted to one group."""

    q: Dist
    support: Weighted


# Networks that were given, by the object: a compiled program is found again by its model, and a model is made once.
_models: dict[tuple[int, int], tuple[Any, Model]] = {}


def model_of(prior: TablePrior) -> Model | None:
    """The network as a model, where it was given."""
    if prior.network is None:
        return None
    key = (id(prior.network), prior.spec.inputs)
    if key not in _models:
        while len(_models) >= 64:
            _models.pop(next(iter(_models)))
        _models[key] = prior.network, as_model(prior.network, prior.spec.inputs)[0]
    return _models[key][1]


def compiled(prior: TablePrior) -> Programs:
    """The programs of a prior."""
    return programs(prior.spec, model_of(prior))


def scaled(prior: TablePrior, y: np.ndarray) -> np.ndarray:
    """Targets as the network sees them: numbers in their scale, or class numbers in the form that the method asks for."""
    if prior.target.classes is None:
        return ((y.astype(float) - prior.target.mean) / prior.target.std)[:, None]
    return class_rows(prior.spec, np.searchsorted(np.asarray(prior.target.classes), y))


def class_rows(spec: Spec, numbers: np.ndarray) -> np.ndarray:
    """Class numbers as targets of an exact head, or as they are."""
    if spec.method.endswith("last-layer"):
        with small_and_precise():
            return np.asarray(class_targets(jnp.asarray(numbers), spec.outputs))
    return np.asarray(numbers)


def adapt(prior: TablePrior, table: np.ndarray, y: np.ndarray, *, seed: int = 0) -> Fitted:
    """The posterior of one group; no rows leave the prior as it is."""
    support = padded(encode(prior.columns, table), scaled(prior, y))
    with small_and_precise():
        q = compiled(prior).adapt(jax.random.key(seed), prior.prior, prior.memory, support)
        return Fitted(jax.tree.map(np.asarray, q), support)


def unadapted(prior: TablePrior) -> Fitted:
    """The prior as a posterior of no rows."""
    table = np.zeros((0, len(prior.columns.columns)))
    nothing = np.zeros(0) if prior.target.classes is None else np.asarray(prior.target.classes)[:0]
    return adapt(prior, table, nothing)


def predict(
    prior: TablePrior, fitted: Fitted, table: np.ndarray, *, num_functions: int = 0, seed: int = 0
) -> Predictive | ClassPredictive:
    """The predictive at new rows, in the scale of the network; more rows than were asked for, see `filled`."""
    rows = encode(prior.columns, table)
    with small_and_precise():
        given = (jax.random.key(seed), prior.prior, fitted.q, fitted.support, filled(rows), prior.calibration)
        run = compiled(prior)
        return run.draw(*given, num_functions) if num_functions else run.predict(*given)


def filled(rows: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "M D"]:
    """Up to a power of two, so that one compiled program serves many numbers of rows."""
    return np.concatenate([rows, np.zeros((bucket(len(rows)) - len(rows), rows.shape[1]))])


def class_functions(prior: TablePrior, fitted: Fitted, table: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draws of the class probabilities, [F, N, C]: weights drawn from the posterior."""
    pieces = assemble(prior.spec, model_of(prior))
    with small_and_precise():
        rows = jnp.asarray(encode(prior.columns, table))
        draws = pieces.learner.cell.family.samples(jax.random.key(seed), fitted.q, count)
        logits = jax.vmap(lambda params: pieces.model.apply(params, rows))(draws)
        return np.asarray(jax.nn.softmax(logits / np.exp(prior.calibration.log_noise)))
