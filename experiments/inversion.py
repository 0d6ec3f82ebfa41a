"""Inversion: tasks that would have left the statistics that a client sent. See `leakage`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import linear_sum_assignment

from metaprior import trees
from metaprior.families import MeanField
from metaprior.federated.steps import Held, client_step
from metaprior.inference import infer
from metaprior.matrix import SECOND_STAGES
from metaprior.meta import MetaLearner, State, Statistics
from metaprior.rules import clipped
from metaprior.tasks import Tasks
from metaprior.types import Episode

KEY = jax.random.key(7)  # of the round, which the server knows
LARGEST = 5.0  # of inputs and of sinusoids, which the server knows too


def sent(learner: MetaLearner, state: State, episodes: Episode) -> Statistics:
    """What a client with these tasks sends."""
    return client_step(learner, state.prior, Held(jnp.arange(episodes.support.x.shape[0]), episodes), KEY)


def message(learner: MetaLearner, state: State) -> Callable[[Episode], jax.Array]:
    """The sum that is sent, as a function of tasks that can be differentiated in them.

    Gradient-EM holds its posteriors fixed, which an attacker does not: `learner` itself would hide most of what it tells.
    """
    if learner.cell.row != "gem":
        return lambda episodes: sent(learner, state, episodes).gradient
    cell, prior = learner.cell, state.prior

    def one(episode: Episode) -> jax.Array:
        q1, _ = infer(cell.inference, KEY, prior, cell.family.start(prior.dist), episode.support, cell.steps[0], ())
        second = SECOND_STAGES[cell.second_stage]
        assert second is not None
        stage = second(cell, prior, q1, episode)
        q2, _ = infer(cell.inference, KEY, stage.prior, stage.start, stage.source, cell.steps[1], ())
        mu, m1, m2 = prior.dist.mean, cell.family.mean(q1), cell.family.mean(q2)
        over_variance = jax.tree.map(lambda log_std: jnp.exp(-2 * log_std), prior.dist.log_std)
        from_where = m1 if cell.column == "difference" else mu
        mean = jax.tree.map(lambda a, b, v: (a - b) * v, m2, from_where, over_variance)
        log_std = jax.tree.map(lambda a, b, c, v: 2 * (a - b) * (b - c) * v, m2, m1, mu, over_variance)
        return trees.vector(clipped(prior._replace(dist=MeanField(mean, log_std)), learner.method.clip))

    return lambda episodes: jax.vmap(one)(episodes).sum(axis=0)


def attack(
    told: Callable[[Episode], jax.Array],
    state: State,
    observed: jax.Array,
    start: Episode,
    iterations: int,
    *,
    noisy: bool = False,
) -> tuple[Episode, jax.Array]:
    """Tasks near `start` that would have left what was observed, and how badly they fit: squared errors over squared lengths.

    Every array of the message counts alike, whatever its scale; or, where noise was added, every entry, as is most likely then.
    """
    first, unravel = ravel_pytree(start)
    lengths = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, jnp.linalg.norm(leaf.ravel())), trees.like(state.prior, observed)
    )
    weights = 1 / jnp.maximum(trees.vector(lengths), 1e-12) / len(jax.tree.leaves(state.prior)) ** 0.5

    if noisy:
        weights = jnp.full_like(observed, 1 / jnp.linalg.norm(observed))

    def misfit(guess):
        return (told(unravel(guess)) - observed) * weights

    def step(carry, _):
        guess, damping, value = carry
        jacobian, residual = jax.jacfwd(misfit)(guess), misfit(guess)
        curvature = jacobian.T @ jacobian
        damped = curvature + damping * jnp.diag(jnp.diag(curvature) + 1e-9)
        change = -jnp.linalg.solve(damped, jacobian.T @ residual)
        change = change * jnp.minimum(1.0, 2.0 / jnp.maximum(jnp.abs(change).max(), 1e-9))
        other = jnp.square(misfit(guess + change)).sum()
        better = other < value  # never, where it is not a number
        damping = jnp.clip(jnp.where(better, damping / 3, damping * 4), 1e-9, 1e6)
        return (jnp.where(better, guess + change, guess), damping, jnp.where(better, other, value)), None

    begin = (first, jnp.full((), 0.1), jnp.square(misfit(first)).sum())
    (guess, _, value), _ = jax.lax.scan(step, begin, None, length=iterations)
    return unravel(jnp.clip(guess, -LARGEST, LARGEST)), jnp.where(jnp.isfinite(value), value, jnp.inf)


def error(guess: Episode, truth: Episode, tasks: Tasks) -> float:
    """Root mean square over points and coordinates, in standard deviations of the data; tasks and points may be in any order."""
    scale = scale_of(tasks)
    parts = [np.concatenate([np.asarray(data.x), np.asarray(data.y)], axis=-1) for data in (*guess, *truth)]
    support, query, true_support, true_query = (part / scale for part in parts)
    pair = lambda a, b: matched(np.square(a[:, None] - b[None]).mean(axis=-1))
    costs = [[(pair(support[i], true_support[j]) + pair(query[i], true_query[j])) / 2 for j in range(len(support))]
             for i in range(len(support))]  # fmt: skip
    return float(np.sqrt(matched(np.array(costs))))


def matched(costs: np.ndarray) -> float:
    return float(costs[linear_sum_assignment(costs)].mean())


def scale_of(tasks: Tasks) -> np.ndarray:
    """Standard deviations of inputs and outputs."""
    points = jax.vmap(tasks.sample)(jax.random.split(jax.random.key(0), 2000)).query
    return np.array([np.std(points.x), np.std(points.y)])
