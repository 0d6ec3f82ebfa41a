"""MAML on 5-way 1-shot tasks of characters, ours and by torch.func: from the same weights on the same episodes.

Second-order gradients through a few plain steps on the mean loss of the support, Adam on the mean loss of the query; the network
of Omniglot. First weights and episodes are drawn once, as arrays, so that differences are differences of the programs alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior import methods
from metaprior.benchmarks.images_problem import Pool, Setting, set_up
from metaprior.likelihoods import categorical
from metaprior.meta import State, meta_learner, task_keys
from metaprior.models import Model
from metaprior.optimizers import flat_adam
from metaprior.settings import WATCH_EVERY
from metaprior.types import Episode, Params

SETTING = "omniglot-5w1s"
INNER_STEPS = (1, 5)
INNER_RATE, META_RATE = 0.4, 1e-3
COMPARED = 5  # iterations whose losses must agree
# Relative, of two programs that compute the same. Rounding grows from step to step, and in tf32 it begins at a thousandth.
TOLERANCES = {"float64": 1e-8, "float32": 1e-3, "tf32": 3e-2}


Weights = Any  # as our network has them, of NumPy


class Problem(NamedTuple):
    """What both are given; episodes have axes [iterations, tasks, images, …]."""

    weights: Weights
    episodes: Episode


class Runner(NamedTuple):
    """An implementation, ready to be timed: `train` alone is on the clock, and returns when the work is done."""

    load: Callable[[Episode], Any]  # -> episodes as the library wants them
    begin: Callable[[Weights], Any]  # -> its state before the first iteration
    train: Callable[[Any, Any], tuple[Any, Any]]  # (state, loaded episodes) -> (state, query loss of every iteration)
    weights: Callable[[Any], Any]


def problem(setting: Setting, pool: Pool, iterations: int) -> Problem:
    """First weights and so many meta-batches, as arrays of NumPy in JAX's default precision."""
    setup = set_up(setting, "maml", precision=None)
    key_weights, key_episodes = jax.random.split(jax.random.key(0))
    keys = jax.vmap(lambda key: task_keys(key, setting.meta_batch))(jax.random.split(key_episodes, iterations))
    draw = jax.jit(jax.vmap(jax.vmap(setup.tasks.sample, in_axes=(0, None, None)), in_axes=(0, None, None)))
    return jax.tree.map(np.asarray, Problem(setup.model.init(key_weights), draw(keys, *pool)))


def ours(setting: Setting, steps: int, *, precision: str | None, watch_every: int = WATCH_EVERY) -> Runner:
    """MAML as the library has it; losses are NaN in iterations that are not watched."""
    model = set_up(setting, "maml", precision=precision).model
    # At temperature M the score of M query images is minus their mean loss, as the other has it.
    points = float(setting.ways * setting.queries)
    method = methods.get("maml", steps=(steps, 0), rate=INNER_RATE, temperature=points)
    likelihood = categorical(model.apply, temperature=points)
    learner = meta_learner(method, likelihood, optimizer=flat_adam(META_RATE), watch_every=watch_every)

    def iteration(state, episodes):
        keys = task_keys(jax.random.fold_in(state.key, state.iteration), setting.meta_batch)
        return learner.step(state, keys, episodes)

    scanned = jax.jit(lambda state, episodes: jax.lax.scan(iteration, state, episodes))

    def begin(weights: Weights) -> State:
        return learner.init(jax.random.key(0), structured(model, weights))

    def train(state: State, episodes: Episode) -> tuple[State, Any]:
        state, info = jax.block_until_ready(scanned(state, episodes))
        return state, info.query_nll

    return Runner(load=jax.device_put, begin=begin, train=train, weights=lambda state: state.prior.dist.mean)


def structured(model: Model, weights: Weights) -> Params:
    """The given weights in this network, whose layers may compute in another way."""
    structure = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)))
    return structure.unflatten([jnp.asarray(leaf) for leaf in jax.tree.leaves(weights)])
