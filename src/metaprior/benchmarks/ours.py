"""The library's own learners on the problem of `problem`, through the functions that everybody calls."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaprior import methods
from metaprior.benchmarks.problem import (
    INNER_RATE,
    META_RATE,
    NUM_TASKS,
    QUERIES,
    Batches,
    Runner,
    Weights,
    network,
    sinusoids,
)
from metaprior.likelihoods import gaussian
from metaprior.meta import MetaLearner, State, meta_learner, task_keys, trainer
from metaprior.optimizers import flat_adam
from metaprior.types import Data, Episode

# At temperature M the score of M query points is minus their mean squared error, as the other libraries have it.
MAML: dict[str, Any] = {"steps": (1, 0), "rate": INNER_RATE, "temperature": float(QUERIES)}
# A point as prior and posterior, and in each stage the very step of MAML: one, on the mean squared error, at the same rate.
POINT: dict[str, Any] = {
    "prior": "delta", "posterior": "delta", "inference": "gradient", "options": {"pull": False}, "widths": "frozen",
    "rates": "none", "second_stage": "sequential", "draw_steps": False, "clip": None, "steps": (1, 1), "rate": INNER_RATE,
}  # fmt: skip
# The row as the table has it (a point posterior; widths learned, rates tied to them, all data in the second stage), 1 + 1 steps.
RECIPE: dict[str, Any] = {"steps": (1, 1)}


def runner(name: str, changes: dict[str, Any]) -> Runner:
    """A row of the table, trained on the batches that everybody is given."""
    learner = _learner(name, changes)

    def iteration(state, episodes):
        return learner.step(state, task_keys(jax.random.fold_in(state.key, state.iteration), NUM_TASKS), episodes)

    return _runner(learner, jax.jit(lambda state, episodes: jax.lax.scan(iteration, state, episodes)))


def drawing_runner(name: str, changes: dict[str, Any]) -> Runner:
    """The same, drawing its own tasks inside the compiled program; of the batches only their number is looked at."""
    learner = _learner(name, changes)
    train = jax.jit(trainer(learner, sinusoids().sample, NUM_TASKS), static_argnums=1)
    return _runner(learner, lambda state, episodes: train(state, episodes.query.x.shape[0]))


def _learner(name: str, changes: dict[str, Any]) -> MetaLearner:
    method = methods.get(name, **changes)
    likelihood = gaussian(network().apply, temperature=method.temperature)
    return meta_learner(method, likelihood, optimizer=flat_adam(META_RATE))


def _runner(learner: MetaLearner, train) -> Runner:
    def begin(weights: Weights) -> State:
        structure = jax.tree.structure(jax.eval_shape(network().init, jax.random.key(0)))
        return learner.init(jax.random.key(0), structure.unflatten([jnp.asarray(w) for w in weights]))

    point = Data(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    least = learner.cell.likelihood.least_loss(point)  # −log p is the squared error and this constant

    def finished(state, episodes):
        state, info = jax.block_until_ready(train(state, episodes))
        return state, info.query_nll - least

    def weights(state: State) -> Weights:
        return tuple(np.asarray(w) for w in jax.tree.leaves(state.prior.dist.mean))

    return Runner(load, begin, finished, weights)


def load(batches: Batches) -> Episode:
    """As episodes, with axes [iterations, tasks, points, 1]."""
    arrays = [jnp.asarray(array) for array in batches]
    return Episode(Data(*arrays[:2]), Data(*arrays[2:]))
