"""Bands of the page's priors over curves: fitted on validation tasks for several numbers of points, judged on test tasks.

All of it goes through what answers on the page. The number of points and that of updates are traced there, so that one compiled
fit serves them all. A task has sixteen points, and those that are shown are the first of them.
"""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metaprior.calibration import calibrate
from metaprior.evaluation import TEST_SEED, TOGETHER, VALIDATION_SEED
from metaprior.meta import task_keys
from metaprior.page import bands, curves, priors
from metaprior.page.bands import Bands
from metaprior.page.curves import MOST_POINTS, STEPS
from metaprior.page.padded import Points
from metaprior.predict import Calibration, Predictive
from metaprior.settings import Settings, assemble, tasks_of
from metaprior.types import Prior

POINTS = (1, 2, 3, 5, 10, 16)  # for which bands are fitted …
SCORED = (1, 2, 3, 4, 5, 7, 10, 13, 16)  # … and with which they are judged: between those fitted, too
VALIDATION_TASKS, TEST_TASKS = 100, 600
VALIDATION_INPUTS, TEST_INPUTS = 41, 100  # of the grid on which a curve is compared with its band
FIT_STEPS = 150  # of Adam, from the best of a grid
RAN_AWAY = 100.0  # an answer beyond this, twenty times the largest amplitude, is of a method that diverged on the task
Report = Callable[[int, int, str], None]  # (done, of how many, what)


class Shown(NamedTuple):
    """T tasks as the page has them, with the hidden curves."""

    points: Points  # arrays [T, N]
    x: Float[Array, " Q"]
    y: Float[Array, "T Q"]


class Scores(NamedTuple):
    """Of one task, or of many."""

    mse: Float[Array, "..."]
    nll: Float[Array, "..."]
    coverage90: Float[Array, "..."]
    ran_away: Float[Array, "..."]


UNIT = Calibration(*map(jnp.asarray, (0.0, 0.0, 0.0, 0.0, 1.0)))


def steady(predictive: Predictive) -> Bool[Array, ""]:
    """Whether a method found an answer at all."""
    return (jnp.abs(predictive.mean) < RAN_AWAY).all()  # which NaN is not


class Programs(NamedTuple):
    """Compiled once for a method."""

    fit: Callable[[Prior, Shown, int], Calibration]  # (prior, tasks, updates)
    score: Callable[[Prior, Bands, Shown], Scores]  # after all updates, task by task


def judged(tasks: str, method: str, prior: Prior, report: Report) -> dict[str, Any]:
    """What the card of a prior says of its bands."""
    found = fitted(tasks, method, prior, report)
    test = shown(tasks, TEST_SEED, TEST_TASKS, TEST_INPUTS)
    by_points = []
    for done, count in enumerate(SCORED):
        report(done, len(SCORED), f"{tasks}, {method}: scores after {count} points")
        by_points.append(programs(method).score(prior, found, first(test, count)))
    return {"calibration": bands.card_values(found), "scores": summary(by_points)}


def fitted(tasks: str, method: str, prior: Prior, report: Report) -> Bands:
    """For each number of points and of updates; before the first update no point has been seen, and one fit serves all."""
    validation = shown(tasks, VALIDATION_SEED, VALIDATION_TASKS, VALIDATION_INPUTS)
    exact = method_is_exact(method)  # every update after the first changes nothing
    different = [*itertools.product(POINTS, range(1, 2 if exact else STEPS + 1))]
    before = programs(method).fit(prior, first(validation, 0), 0)
    rows: dict[int, list[Calibration]] = {count: [before] for count in POINTS}
    for done, (count, steps) in enumerate(different):
        report(done, len(different), f"{tasks}, {method}: bands after {count} points, {steps} updates")
        rows[count].append(programs(method).fit(prior, first(validation, count), steps))
    whole = [row + row[-1:] * (STEPS + 1 - len(row)) for row in rows.values()]
    table = jax.tree.map(lambda *leaves: jnp.stack(leaves).reshape(len(POINTS), STEPS + 1), *itertools.chain(*whole))
    # The spread means the same with either sign, and what lies between the two would be none at all.
    table = table._replace(spread=jnp.abs(table.spread))
    return Bands(jnp.asarray(POINTS, table.spread.dtype), table)


def shown(tasks: str, seed: int, num_tasks: int, inputs: int) -> Shown:
    """The same curves as everywhere under this seed, all with sixteen points."""
    made = tasks_of(Settings(tasks, shots=MOST_POINTS), inputs)
    keys = task_keys(jax.random.key(seed), num_tasks)
    episodes = jax.vmap(lambda key: made.evaluation(jax.random.split(key, 3)[0]))(keys)
    x, y = (part[:, :, 0] for part in (episodes.support.x, episodes.support.y))
    return Shown(Points(x, y, jnp.ones_like(x)), episodes.query.x[0, :, 0], episodes.query.y[:, :, 0])


def first(tasks: Shown, count: int) -> Shown:
    """The tasks with the first few of their points."""
    present = jnp.broadcast_to(jnp.arange(MOST_POINTS) < count, tasks.points.x.shape)
    return tasks._replace(points=tasks.points._replace(present=present.astype(tasks.points.x.dtype)))


def method_is_exact(method: str) -> bool:
    """Whether one update is all there is."""
    return assemble(Settings(priors.CURVES[0], method)).learner.method.inference == "conjugate"


@cache
def programs(method: str) -> Programs:
    """For any set of curves: as on the page, a method's rows share a program."""
    predictor = curves.predicting(assemble(Settings(priors.CURVES[0], method)), num_functions=0)

    def fit(prior: Prior, tasks: Shown, steps) -> Calibration:
        prepare = lambda points: predictor.prepare(prior, points, steps, tasks.x)
        parts = jax.lax.map(prepare, tasks.points, batch_size=min(TOGETHER, len(tasks.y)))
        # No width is right for tasks on which a method diverges, and one of them would decide the bands of all others.
        kept = jax.vmap(lambda part: steady(predictor.finish(part, UNIT)))(parts)
        parts = jax.vmap(lambda part, keep: jax.tree.map(lambda leaf: jnp.where(keep, leaf, 0), part))(parts, kept)
        weights = jnp.broadcast_to(kept[:, None], tasks.y.shape).astype(tasks.y.dtype)
        return calibrate(predictor, parts, tasks.y, weights=weights, steps=FIT_STEPS)

    def score(prior: Prior, found: Bands, tasks: Shown) -> Scores:
        def of_task(task) -> Scores:
            points, y = task
            calibration = jax.tree.map(lambda leaf: leaf[STEPS], bands.at(found, points.present.sum()))
            predictive = predictor.finish(predictor.prepare(prior, points, jnp.asarray(STEPS), tasks.x), calibration)
            (low, high), mean = predictive.interval(0.9), predictive.moments()[0]
            inside = (y >= low[:, 0]) & (y <= high[:, 0])
            return Scores(
                mse=jnp.square(mean[:, 0] - y).mean(),
                nll=-predictive.log_density(y).mean(),
                coverage90=inside.astype(y.dtype).mean(),
                ran_away=1 - steady(predictive).astype(y.dtype),
            )

        return jax.lax.map(of_task, (tasks.points, tasks.y), batch_size=min(TOGETHER, len(tasks.y)))

    return Programs(jax.jit(fit), jax.jit(score))


def summary(by_points: list[Scores]) -> dict[str, Any]:
    """Averages over tasks for each number of points, ready for JSON; bounds are half-widths of 95 % intervals."""
    half = lambda values: 1.96 * values.std() / len(values) ** 0.5
    number = lambda value: float(value) if jnp.isfinite(value) else None  # JSON has no infinities
    columns = {name: [number(getattr(found, name).mean()) for found in by_points] for name in Scores._fields}
    bounds = {f"{name}_ci95": [number(half(getattr(found, name))) for found in by_points] for name in Scores._fields}
    return {"steps": STEPS, "tasks": len(by_points[0].mse), "points": list(SCORED), **columns, **bounds}
