"""Curves: what priors think of a function after the points they were shown, in one compiled call for each method."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from metaprior.likelihoods import SQUARED_ERROR, gaussian
from metaprior.meta import meta_learner
from metaprior.page import bands, padded, priors
from metaprior.page.bands import Bands
from metaprior.page.padded import Points
from metaprior.predict import Predictor, default_predictor
from metaprior.settings import Setup
from metaprior.training import TEST_STEPS
from metaprior.types import Prior

MOST_POINTS = 16
LEFT, RIGHT = -5.0, 5.0
GRID = np.linspace(LEFT, RIGHT, 81)
FUNCTIONS = 8
STEPS = TEST_STEPS


class Truth(NamedTuple):
    """The hidden function, A sin(wx + b)."""

    amplitude: float
    frequency: float
    phase: float


class Answer(NamedTuple):
    """Of one method, on the grid. The scores are against the truth, which is free of noise."""

    mean: Float[Array, " G"]
    low90: Float[Array, " G"]
    high90: Float[Array, " G"]
    low50: Float[Array, " G"]
    high50: Float[Array, " G"]
    functions: Float[Array, "F G"]
    nll: Float[Array, ""]
    coverage: Float[Array, ""]
    mse: Float[Array, ""]


class Curves(NamedTuple):
    """Priors over curves, by task set and method, and the programs that answer."""

    small: Mapping[tuple[str, str], priors.Small]
    bands: Mapping[tuple[str, str], Bands]
    programs: Mapping[str, Callable[..., Answer]]

    def answer(
        self, tasks: str, method: str, points: list[tuple[float, float]], steps: int, truth: Truth
    ) -> dict[str, Any]:
        """What the prior of a method thinks of these points after so many steps."""
        where = tasks, method
        found = self.programs[method](
            self.small[where].prior, self.bands[where], placed(points), jnp.asarray(steps), jnp.asarray(truth)
        )
        return {name: plain(value) for name, value in found._asdict().items()}


def opened() -> Curves:
    """All of them, read and ready to be compiled."""
    small = {
        (tasks, method): priors.load(priors.curve_name(tasks, method))
        for tasks in priors.CURVES
        for method in priors.METHODS
    }
    calibrated = {where: bands.of_card(one.card["calibration"]) for where, one in small.items()}
    # The rows of a method differ in no setting from one set of curves to the other: they share a program.
    programs = {method: jax.jit(program(small[priors.CURVES[0], method].setup)) for method in priors.METHODS}
    return Curves(small, calibrated, programs)


def plain(value: Array) -> Any:
    """For JSON, which has no infinities: a method that ran away has None there."""
    rounded = np.asarray(value, float).round(5)
    held = np.array(rounded, object)
    held[~np.isfinite(rounded)] = None
    return held.tolist()


def placed(points: list[tuple[float, float]]) -> Points:
    """Points in the fixed shape."""
    rows = np.zeros((3, MOST_POINTS), jnp.result_type(float))
    for place, (x, y) in enumerate(points):
        rows[:, place] = x, y, 1.0
    return Points(*map(jnp.asarray, rows))


def program(setup: Setup) -> Callable[..., Answer]:
    """(prior, bands, points, steps, truth) -> answer; every number is traced, so that it is compiled once."""
    predictor = predicting(setup, num_functions=FUNCTIONS)

    def answer(prior: Prior, calibrated: Bands, points: Points, steps: Int[Array, ""], truth: Array) -> Answer:
        count = points.present.sum()
        # Without points nothing is learned, and before the first step nothing has been: the prior predictive.
        steps = jnp.where(count > 0, steps, 0)
        at_step = jax.tree.map(lambda leaf: leaf[steps], bands.at(calibrated, count))
        x = jnp.asarray(GRID, points.x.dtype)
        predictive = predictor.finish(predictor.prepare(prior, points, steps, x), at_step)
        return judged(predictive, truth[0] * jnp.sin(truth[1] * x + truth[2]))

    return answer


def predicting(setup: Setup, *, num_functions: int) -> Predictor:
    """What adapts to points and predicts; `prepare` takes (prior, points, steps, x)."""
    method, network = setup.learner.method, padded.weighted(setup.model)
    exact = method.inference == "conjugate"  # sums over points; the others average
    noise_std = method.options["noise_std"] if exact else SQUARED_ERROR
    likelihood = gaussian(network.apply, noise_std=noise_std, temperature=method.temperature)
    learner = meta_learner(method, likelihood)
    family = learner.cell.family
    inner = default_predictor(network.apply, family, method.inference, num_functions=num_functions)

    def prepare(prior: Prior, points: Points, steps: Int[Array, ""], x: Float[Array, " G"]):
        state, known = priors.Small(setup, prior, {}).state, padded.support(points, averaged=not exact)
        q = jax.tree.map(lambda leaf: leaf[steps], learner.adapt(jax.random.key(0), state, known, STEPS))
        points = points._replace(present=points.present * (steps > 0))
        support = padded.support(points, averaged=False)
        return inner.prepare(jax.random.key(0), prior, q, support, padded.inputs(x)), points

    def finish(parts, calibration):
        of_rows, points = parts
        return inner.finish(of_rows, padded.sized(calibration, points))

    return Predictor(inner.name, prepare, finish)


def judged(predictive: Any, y: Float[Array, " G"]) -> Answer:
    """Bands and functions, and how they stand to the truth."""
    mean, _ = predictive.moments()
    (low90, high90), (low50, high50) = predictive.interval(0.9), predictive.interval(0.5)
    inside = (y >= low90[:, 0]) & (y <= high90[:, 0])
    return Answer(
        *(column[:, 0] for column in (mean, low90, high90, low50, high50)),
        functions=predictive.functions[:, :, 0],
        nll=-predictive.log_density(y).mean(),
        coverage=inside.astype(y.dtype).mean(),
        mse=jnp.square(mean[:, 0] - y).mean(),
    )
