r"""Meta-learning: episodes in, a better prior out.

$$\Theta \leftarrow \Theta + \text{optimiser}\Big(\frac1T \sum_\tau \hat g_\tau\Big)$$

(ascent: the paper's Algorithm 1 prints the wrong sign). Tasks are `vmap`, iterations are `scan`; episodes are drawn inside the
compiled program, so nothing happens on the host between the iterations of a chunk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from metaprior import matrix, trees
from metaprior.cells import make_cell
from metaprior.families import MeanField
from metaprior.inference import trajectory
from metaprior.inference.platipus import platipus_extra
from metaprior.matrix import Cell
from metaprior.methods import Method, family, validate
from metaprior.models import Model
from metaprior.optimizers import meta_optimizer
from metaprior.rules import apply_rules, bounded, clipped
from metaprior.scalars import at_least_one
from metaprior.types import Dist, Episode, Key, Likelihood, Params, Prior, Source


class State(NamedTuple):
    """All that training needs to go on: saved and restored whole, it continues exactly."""

    prior: Prior
    opt_state: Any
    memory: Any  # what inference shares between tasks
    key: Key
    iteration: Int[Array, ""]


class Statistics(NamedTuple):
    """What tasks leave of a meta-step: sums over tasks, so that those of several devices or machines add up. No data.

    Whole numbers in it are counters of an optimiser, equal in every task, and are not summed.
    """

    gradient: Float[Array, " W"]  # of the tasks kept, every entry of Θ one after the other
    memory: Any  # of the tasks kept
    query_nll: Float[Array, ""]
    elbo: Float[Array, ""]
    kept: Float[Array, ""]  # tasks
    left_out: Float[Array, ""]


class Info(NamedTuple):
    """What one meta-step reports. Every number means something by itself; none is a surrogate loss."""

    query_nll: Float[Array, ""]  # −log p(query | mean of q1) per point, averaged over tasks
    elbo: Float[Array, ""]  # the method's formula per query point: a bound on, or an estimate of, the log evidence
    left_out: Int[Array, ""]  # tasks whose gradient was not finite
    finite: Bool[Array, ""]  # whether any task was left in and the prior is still finite
    step_norm: Float[Array, ""]  # length of the meta-step
    log_std: Float[Array, "3"]  # mean, least and largest over weights; NaN where there is none
    log_rate: Float[Array, "3"]


class MetaLearner(NamedTuple):
    """A method bound to a likelihood and a meta-optimiser, as pure functions."""

    init: Callable[[Key, Params], State]
    # (state, keys, episodes, …) -> (state, info); keys and episodes have a leading axis of tasks. See `Share`.
    step: Callable[..., tuple[State, Info]]
    gradient: Callable[..., Any]  # (key, prior, memory, one episode) -> (meta-gradient, memory, (query NLL, formula))
    adapt: Callable[[Key, State, Source, int], Dist]  # posteriors after 0..steps steps
    check: Callable[[State, Source], str | None]
    cell: Cell
    method: Method
    # The two halves of a step, where it is one sum over tasks: (state, keys, episodes, counted) -> statistics, and
    # (state, statistics) -> (state, info). The second touches no data.
    learn: Callable[..., Statistics] | None = None
    update: Callable[[State, Statistics], tuple[State, Info]] | None = None


class Share(NamedTuple):
    """Which tasks of a meta-batch one device is to learn from, and how what devices found each becomes what all have found."""

    numbers: Int[Array, " T"]
    counted: Bool[Array, " T"] | None = None  # None: all of them; others are computed and not counted
    total: Callable[[Any], Any] = lambda found: found  # sums floating arrays over devices


def meta_learner(
    method: Method,
    likelihood: Likelihood,
    *,
    model: Model | None = None,
    optimizer: optax.GradientTransformation | None = None,
    tie: Callable[[Prior], Prior] | None = None,
    watch_every: int | None = 1,
) -> MetaLearner:
    """Bind a row of the table to a likelihood.

    Args:
        method: a row, `methods.get("gem-bml+")`.
        likelihood: with the temperature it is to have; see `likelihoods`.
        model: needed where the method samples by other estimators than plain weights.
        optimizer: the meta-optimiser; None takes `meta_optimizer(method.meta_rate)`.
        tie: makes parts of the prior equal that are to stay equal, in the prior and in its gradient, and is linear; see `heads`.
        watch_every: iterations between reports of the query's NLL and of the formula, which cost forward passes of their own;
            they are NaN in between. None never reports: under `vmap` trainings have iteration numbers of their own, and what is
            reported in some iterations is computed in all.
    """
    validate(method)
    if likelihood.temperature != method.temperature:
        raise ValueError(
            f"{method.name} is set to temperature {method.temperature:g} and the likelihood to {likelihood.temperature:g}: "
            f"pass gaussian(…, temperature={method.temperature:g}) or get_method(…, temperature={likelihood.temperature:g})"
        )
    optimizer = optimizer or meta_optimizer(method.meta_rate)
    prior_family, cell = family(method.prior, method), make_cell(method, likelihood, model)

    def init(key, params):
        key_prior, key_train = jax.random.split(key)
        prior = Prior(
            dist=prior_family.init(key_prior, params, method.std),
            log_rate=jax.tree.map(jnp.zeros_like, params) if method.rates in ("debiased", "exact", "frozen") else None,
            extra=platipus_extra(params, method.std, method.rate) if method.inference == "platipus" else (),
        )
        prior = prior if tie is None else tie(prior)
        prior = jax.tree.map(lambda x: jnp.asarray(x, x.dtype), prior)  # strip weak types: they would trace again
        memory = cell.inference.memory(_start(cell, prior)) if cell.inference.score is None else ()
        return State(prior, optimizer.init(prior), memory, key_train, jnp.zeros((), jnp.int32))

    def infer_and_score(key, prior, memory, episode):
        score = lambda prior: matrix.score(cell, key, prior, episode, memory)
        (value, (posteriors, memory)), grads = jax.value_and_grad(score, has_aux=True)(prior)
        grads = apply_rules(method.widths, method.rates, cell.family, prior, posteriors, grads, method.rate)
        return grads, memory, posteriors, value

    def query_nll(key, posteriors, episode):
        num_query = at_least_one(likelihood.size(episode.query))
        q1 = posteriors.q1  # PLATIPUS trains a Gaussian and infers particles
        point = q1.mean if isinstance(q1, MeanField) else cell.family.mean(q1)
        key_score = jax.random.split(key)[1]  # the formula's: where both observe the same they need to do it once
        return -likelihood.observed_log_prob(key_score, point, episode.query) / num_query

    def gradient(key, prior, memory, episode):
        grads, memory, posteriors, value = infer_and_score(key, prior, memory, episode)
        return (
            grads,
            memory,
            (query_nll(key, posteriors, episode), value / at_least_one(likelihood.size(episode.query))),
        )

    def watch(state, keys, episodes):
        """The gradient of every task, and in some iterations what it is worth: what nobody asks for is not computed."""
        if watch_every == 1:
            return *jax.vmap(gradient, in_axes=(0, None, None, 0))(keys, state.prior, state.memory, episodes), True
        grads, memories, posteriors, _ = jax.vmap(infer_and_score, in_axes=(0, None, None, 0))(
            keys, state.prior, state.memory, episodes
        )
        unknown = jnp.full(keys.shape, jnp.nan)
        if watch_every is None:
            return grads, memories, (unknown, unknown), False
        watched = state.iteration % watch_every == 0

        def worth():
            values = jax.vmap(lambda key, q, episode: matrix.value(cell, key, state.prior, q, episode))
            counts = jax.vmap(lambda query: jnp.asarray(at_least_one(likelihood.size(query))))(episodes.query)
            return jax.vmap(query_nll)(keys, posteriors, episodes), values(keys, posteriors, episodes) / counts

        return grads, memories, jax.lax.cond(watched, worth, lambda: (unknown, unknown)), watched

    def learn(state, keys, episodes, counted=None):
        grads, memories, (query_nll, elbo), watched = watch(state, keys, episodes)
        if method.clip is not None:
            grads = jax.vmap(lambda g: clipped(g, method.clip))(grads)
        # One vector per task from here on: a network of many small arrays would cost more in calls than in arithmetic.
        vectors = jax.vmap(trees.vector)(grads)
        lengths = jnp.einsum("tw,tw->t", vectors, vectors)
        kept = jnp.isfinite(lengths + jnp.where(watched, query_nll + elbo, 0.0))
        counted = jnp.ones_like(kept) if counted is None else counted
        kept &= counted
        total, *sums = _sum_of_kept(kept, (vectors, memories, query_nll, elbo))
        if tie is not None:
            total = trees.vector(tie(trees.like(state.prior, total)))
        counts = (tasks.sum(dtype=total.dtype) for tasks in (kept, counted & ~kept))
        return Statistics(total, *sums, *counts)

    def update(state, found):
        mean = means(found)
        grads = trees.like(state.prior, mean.gradient)
        updates, opt_state = optimizer.update(jax.tree.map(jnp.negative, grads), state.opt_state, state.prior)
        prior = jax.tree.map(jnp.add, state.prior, updates)
        prior = bounded(method.widths, method.rates, prior, method.std)
        none_kept = found.kept == 0
        prior, opt_state, memory = trees.where(
            none_kept, (state.prior, state.opt_state, state.memory), (prior, opt_state, mean.memory)
        )
        step_norm = jnp.sqrt(jnp.square(trees.vector(updates)).sum())  # finite if and only if the new prior is
        info = Info(
            query_nll=mean.query_nll,
            elbo=mean.elbo,
            left_out=found.left_out.astype(jnp.int32),
            finite=~none_kept & jnp.isfinite(step_norm),
            step_norm=jnp.where(none_kept, 0.0, step_norm),
            log_std=_statistics(prior.dist.log_std if isinstance(prior.dist, MeanField) else None),
            log_rate=_statistics(prior.log_rate),
        )
        return State(prior, opt_state, memory, state.key, state.iteration + 1), info

    def step(state, keys, episodes, counted=None, total=lambda found: found):
        return update(state, total(learn(state, keys, episodes, counted)))

    def adapt(key, state, source, steps):
        if steps < 0:
            raise ValueError(f"adaptation needs zero steps or more, got {steps}")
        start = None if cell.inference.score is not None else _start(cell, state.prior)
        return trajectory(cell.inference, key, state.prior, start, source, steps, state.memory)

    def check(state, source):
        return cell.inference.check(state.prior, source)

    return MetaLearner(init, step, gradient, adapt, check, cell, method, learn, update)


def trainer(learner: MetaLearner, draw: Callable[..., Episode], meta_batch: int):
    """(state, num_iterations, *pool) -> (state, infos): iterations scanned in one compiled call, episodes drawn inside it.

    Everything random follows from the state's key and iteration number, so it does not matter how iterations are cut into chunks.
    `draw` is called with a key and the pool of data that tasks pick from, where there is one.
    """

    def train(state, num_iterations, *pool):
        step = iteration(learner, draw, Share(jnp.arange(meta_batch)), *pool)
        return jax.lax.scan(step, state, None, length=num_iterations)

    return train


def iteration(learner: MetaLearner, draw: Callable[..., Episode], share: Share, *pool: Array):
    """(state, None) -> (state, info): one meta-step on a device's share of the tasks, to be scanned."""

    def step(state, _):
        key_draw, key_infer = jax.random.split(jax.random.fold_in(state.key, state.iteration))
        # Behind a barrier: else the compiler would draw an image again for every window of it that is looked at.
        episodes = jax.lax.optimization_barrier(
            jax.vmap(lambda key: draw(key, *pool))(numbered_keys(key_draw, share.numbers))
        )
        return learner.step(state, numbered_keys(key_infer, share.numbers), episodes, share.counted, share.total)

    return step


def task_keys(key: Key, num_tasks: int) -> Key:
    """One key per task, each depending on the task's number alone: batching and sharding cannot change the draws."""
    return numbered_keys(key, jnp.arange(num_tasks))


def numbered_keys(key: Key, numbers: Int[Array, " T"]) -> Key:
    """The keys of the tasks with these numbers."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)


def means(found: Statistics) -> Statistics:
    """Over the tasks kept, of all but the counts; zero where there are none."""
    count = jnp.maximum(found.kept, 1)
    mean = lambda leaf: leaf / count.astype(leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
    return jax.tree.map(mean, found)._replace(kept=found.kept, left_out=found.left_out)


def _start(cell: Cell, prior: Prior) -> Dist:
    return cell.family.start(prior.dist)


def _sum_of_kept(kept, tree):
    def total(leaf):
        mask = kept.reshape(-1, *([1] * (leaf.ndim - 1)))
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf.max(axis=0)
        return jnp.where(mask, leaf, 0).sum(axis=0)

    return jax.tree.map(total, tree)


def _statistics(tree) -> Float[Array, "3"]:
    return jnp.full((3,), jnp.nan) if tree is None else jnp.stack(trees.extremes(tree))
