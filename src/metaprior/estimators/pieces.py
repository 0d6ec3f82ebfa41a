"""What a prior over tables is made of, by name: the network, the likelihood, the method and the predictor, put together.

A `Spec` is plain data, so that a prior can be pickled, published and read back without running anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaprior import methods
from metaprior.classes import class_predictor
from metaprior.estimators.networks import basis, table_features, tanh
from metaprior.likelihoods import categorical, gaussian, gaussian_shared_noise, weighted
from metaprior.meta import MetaLearner, State, meta_learner
from metaprior.models import Model, mlp
from metaprior.models.head import with_head
from metaprior.optimizers import meta_optimizer
from metaprior.predict import Predictor, default_predictor
from metaprior.types import Likelihood

NOISE = 0.3  # of scaled targets, before it is learned
KINDS = ("regression", "classification")
NETWORKS = ("mlp", "given", "basis")


@dataclass(frozen=True)
class Spec:
    """Everything that decides what kind of prior it is; its numbers are arrays beside it."""

    kind: str
    inputs: int  # numbers that a row becomes
    outputs: int  # one, or the classes
    method: str
    changes: tuple[tuple[str, Any], ...] = ()  # fields of the method's row that are not the table's
    network: str = "mlp"
    hidden: tuple[int, ...] = (40, 40)
    features: int = 0  # of a network that was given: numbers that it answers with
    steps: int = 10  # of adaptation


class Pieces(NamedTuple):
    """The functions that a spec names."""

    model: Model
    likelihood: Likelihood
    learner: MetaLearner
    predictor: Callable[[int], Predictor]  # by the number of functions to draw
    exact: bool  # whether the head is inferred exactly
    steps: int  # of adaptation: every one of an exact head after the first changes nothing


def method_of(spec: Spec) -> methods.Method:
    """The row, with what the spec changes; an exact head asks the likelihood for its noise, which is learned."""
    row = methods.get(spec.method, **dict(spec.changes))
    if row.inference == "platipus":
        raise ValueError("pmaml needs tasks of one size, and groups differ: choose another method")
    if row.inference == "conjugate":
        row = row._replace(options={**row.options, "noise_std": None})
    return row


def assemble(spec: Spec, given: Model | None = None, *, iterations: int | None = None) -> Pieces:
    """From names to functions: the only place where they meet.

    Args:
        spec: what is asked for.
        given: the network, where it is not one of ours.
        iterations: of training, for the decay of the meta-rate.
    """
    row = method_of(spec)
    exact = row.posterior == "last-layer"
    model = _network(spec, given, exact=exact)
    likelihood = _likelihood(spec, model, row, exact=exact)
    learner = meta_learner(
        row, likelihood, model=model, optimizer=meta_optimizer(row.meta_rate, iterations=iterations), watch_every=25
    )
    family = learner.cell.family
    if spec.kind == "classification":
        predictor = lambda num_functions: class_predictor(model, family)
    else:
        predictor = lambda num_functions: default_predictor(
            model.apply, family, row.inference, num_functions=num_functions
        )
    return Pieces(model, likelihood, learner, predictor, exact, 1 if exact else spec.steps)


def _network(spec: Spec, given: Model | None, *, exact: bool) -> Model:
    if spec.network == "given" and given is None:
        raise ValueError("this prior was learned with a network of your own: pass it as model=")
    if not exact:
        if spec.network == "given" and spec.features != spec.outputs:
            raise ValueError(
                f"{spec.method} adapts the whole network, which must answer with {spec.outputs} numbers and answers with "
                f"{spec.features}: change its last layer, or use gem-bml+last-layer, which adds a layer of its own"
            )
        return given or mlp((spec.inputs, *spec.hidden, spec.outputs), activation=tanh, init="glorot")
    if spec.network == "basis":
        body, width = basis(spec.inputs)
    elif given is not None:
        body, width = given, spec.features
    else:
        body, width = table_features(spec.inputs, spec.hidden)
    return with_head(body, width, spec.outputs, activation=None, noise_std=NOISE)


def _likelihood(spec: Spec, model: Model, row: methods.Method, *, exact: bool) -> Likelihood:
    if exact:
        return weighted(gaussian_shared_noise(model.apply, temperature=row.temperature))
    if spec.kind == "classification":
        return weighted(categorical(model.apply, temperature=row.temperature))
    return weighted(gaussian(model.apply, temperature=row.temperature))


class Programs(NamedTuple):
    """Compiled once for each spec; each compiles again for other sizes."""

    adapt: Callable[..., Any]  # (key, prior, memory, support) -> q
    predict: Callable[..., Any]  # (key, prior, q, support, x, calibration) -> what the predictor gives
    draw: Callable[..., Any]  # the same, with functions; the number of them comes last


def programs(spec: Spec, given: Model | None = None) -> Programs:
    """The compiled functions of a spec."""
    return _programs(spec, _Same(given))


class _Same:
    """A network as a key of a cache: the very same object."""

    def __init__(self, given: Model | None):
        self.given = given

    def __hash__(self):
        return hash(None if self.given is None else self.given.name)

    def __eq__(self, other):
        return isinstance(other, _Same) and self.given is other.given


@lru_cache(maxsize=64)
def _programs(spec: Spec, same: _Same) -> Programs:
    pieces = assemble(spec, same.given)

    def adapt(key, prior, memory, support):
        state = State(prior, (), memory, key, jnp.zeros((), jnp.int32))
        posteriors = pieces.learner.adapt(key, state, support, pieces.steps)
        return jax.tree.map(lambda leaf: leaf[-1], posteriors)

    def draw(key, prior, q, support, x, calibration, num_functions):
        predictor = pieces.predictor(num_functions)
        return predictor.finish(predictor.prepare(key, prior, q, support, x), calibration)

    def predict(key, prior, q, support, x, calibration):
        return draw(key, prior, q, support, x, calibration, 0)

    return Programs(jax.jit(adapt), jax.jit(predict), jax.jit(draw, static_argnums=6))
