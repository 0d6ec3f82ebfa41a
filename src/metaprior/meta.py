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
from metaprior.families import MeanField
from metaprior.inference import INFERENCES, trajectory
from metaprior.inference.platipus import platipus_extra
from metaprior.matrix import Cell
from metaprior.methods import Method, family, validate
from metaprior.models import Model
from metaprior.models.noise import noisy_params, require_noisy
from metaprior.optimizers import inner_optimizer, meta_optimizer
from metaprior.rules import apply_rules, bounded, clipped
from metaprior.types import Dist, Episode, Key, Likelihood, Params, Prior, Source


class State(NamedTuple):
    """All that training needs to go on: saved and restored whole, it continues exactly."""

    prior: Prior
    opt_state: Any
    memory: Any  # what inference shares between tasks
    key: Key
    iteration: Int[Array, ""]


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
    step: Callable[[State, Key, Episode], tuple[State, Info]]  # episodes and keys with a leading axis of tasks
    gradient: Callable[..., Any]  # (key, prior, memory, one episode) -> (meta-gradient, memory, (query NLL, formula))
    adapt: Callable[[Key, State, Source, int], Dist]  # posteriors after 0..steps steps
    check: Callable[[State, Source], str | None]
    cell: Cell
    method: Method


def meta_learner(
    method: Method,
    likelihood: Likelihood,
    *,
    model: Model | None = None,
    optimizer: optax.GradientTransformation | None = None,
    tie: Callable[[Prior], Prior] = lambda prior: prior,
    watch_every: int = 1,
) -> MetaLearner:
    """Bind a row of the table to a likelihood.

    Args:
        method: a row, `methods.get("gem-bml+")`.
        likelihood: with the temperature it is to have; see `likelihoods`.
        model: needed where the method samples by other estimators than plain weights.
        optimizer: the meta-optimiser; None takes `meta_optimizer(method.meta_rate)`.
        tie: makes parts of the prior equal that are to stay equal, in the prior and in its gradient; see `heads`.
        watch_every: iterations between reports of the query's NLL and of the formula, which cost forward passes of their own;
            they are NaN in between.
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
        prior = jax.tree.map(lambda x: jnp.asarray(x, x.dtype), tie(prior))  # strip weak types: they would trace again
        memory = cell.inference.memory(_start(cell, prior)) if cell.inference.score is None else ()
        return State(prior, optimizer.init(prior), memory, key_train, jnp.zeros((), jnp.int32))

    def learn(key, prior, memory, episode):
        score = lambda prior: matrix.score(cell, key, prior, episode, memory)
        (value, (posteriors, memory)), grads = jax.value_and_grad(score, has_aux=True)(prior)
        grads = apply_rules(method.widths, method.rates, cell.family, prior, posteriors, grads, method.rate)
        return grads, memory, posteriors, value

    def query_nll(key, posteriors, episode):
        num_query = max(likelihood.size(episode.query), 1)
        q1 = posteriors.q1  # PLATIPUS trains a Gaussian and infers particles
        point = q1.mean if isinstance(q1, MeanField) else cell.family.mean(q1)
        key_score = jax.random.split(key)[1]  # the formula's: where both observe the same they need to do it once
        return -likelihood.observed_log_prob(key_score, point, episode.query) / num_query

    def gradient(key, prior, memory, episode):
        grads, memory, posteriors, value = learn(key, prior, memory, episode)
        return grads, memory, (query_nll(key, posteriors, episode), value / max(likelihood.size(episode.query), 1))

    def learn_and_watch(state, keys, episodes):
        """The gradient of every task, and in some iterations what it is worth: what nobody asks for is not computed."""
        if watch_every == 1:
            return *jax.vmap(gradient, in_axes=(0, None, None, 0))(keys, state.prior, state.memory, episodes), True
        grads, memories, posteriors, _ = jax.vmap(learn, in_axes=(0, None, None, 0))(
            keys, state.prior, state.memory, episodes
        )
        watched = state.iteration % watch_every == 0

        def worth():
            values = jax.vmap(lambda key, q, episode: matrix.value(cell, key, state.prior, q, episode))
            count = max(likelihood.size(jax.tree.map(lambda leaf: leaf[0], episodes.query)), 1)
            return jax.vmap(query_nll)(keys, posteriors, episodes), values(keys, posteriors, episodes) / count

        unknown = jnp.full(keys.shape, jnp.nan)
        return grads, memories, jax.lax.cond(watched, worth, lambda: (unknown, unknown)), watched

    def step(state, keys, episodes):
        grads, memories, (query_nll, elbo), watched = learn_and_watch(state, keys, episodes)
        if method.clip is not None:
            grads = jax.vmap(lambda g: clipped(g, method.clip))(grads)
        # One vector per task from here on: a network of many small arrays would cost more in calls than in arithmetic.
        vectors = jax.vmap(trees.vector)(grads)
        lengths = jnp.einsum("tw,tw->t", vectors, vectors)
        kept = jnp.isfinite(lengths + jnp.where(watched, query_nll + elbo, 0.0))
        grads = tie(trees.like(state.prior, _mean_of_kept(kept, vectors)))
        updates, opt_state = optimizer.update(jax.tree.map(jnp.negative, grads), state.opt_state, state.prior)
        prior = jax.tree.map(jnp.add, state.prior, updates)
        prior = bounded(method.widths, method.rates, prior, method.std)
        memory = _mean_of_kept(kept, memories)
        none_kept = ~kept.any()
        prior, opt_state, memory = trees.where(
            none_kept, (state.prior, state.opt_state, state.memory), (prior, opt_state, memory)
        )
        step_norm = jnp.sqrt(jnp.square(trees.vector(updates)).sum())  # finite if and only if the new prior is
        info = Info(
            query_nll=_mean_of_kept(kept, query_nll),
            elbo=_mean_of_kept(kept, elbo),
            left_out=(~kept).sum().astype(jnp.int32),
            finite=~none_kept & jnp.isfinite(step_norm),
            step_norm=jnp.where(none_kept, 0.0, step_norm),
            log_std=_statistics(prior.dist.log_std if isinstance(prior.dist, MeanField) else None),
            log_rate=_statistics(prior.log_rate),
        )
        return State(prior, opt_state, memory, state.key, state.iteration + 1), info

    def adapt(key, state, source, steps):
        if steps < 0:
            raise ValueError(f"adaptation needs zero steps or more, got {steps}")
        start = None if cell.inference.score is not None else _start(cell, state.prior)
        return trajectory(cell.inference, key, state.prior, start, source, steps, state.memory)

    def check(state, source):
        return cell.inference.check(state.prior, source)

    return MetaLearner(init, step, gradient, adapt, check, cell, method)


def make_cell(method: Method, likelihood: Likelihood, model: Model | None = None) -> Cell:
    """The pieces a row names, put together."""
    posterior = family(method.posterior, method)
    options = dict(method.options)
    if method.inference in ("gradient", "implicit"):
        options = inner_optimizer(method) | options
    elif method.inference != "conjugate":
        options.setdefault("rate", method.rate)
    if method.inference == "gradient" and method.estimator != "weights":
        options.setdefault("draw", _noisy_draw(method, model))
    if method.inference in ("gradient", "natural_vi"):
        options.setdefault("num_samples", method.num_samples)
    if method.inference == "preconditioned" and method.rates == "tied":
        options.setdefault("tied_to", method.std)
    if method.inference == "platipus":
        options |= {"steps": method.steps[0], "num_particles": method.num_particles}
    return Cell(
        likelihood=likelihood,
        family=posterior,
        inference=INFERENCES[method.inference].make(likelihood, posterior, **options),
        row=method.row,
        column=method.column,
        second_stage=method.second_stage,
        steps=method.steps,
        draw_steps=method.draw_steps,
        scores=method.scores,
        num_samples=method.num_samples,
    )


def trainer(learner: MetaLearner, draw: Callable[..., Episode], meta_batch: int):
    """(state, num_iterations, *pool) -> (state, infos): iterations scanned in one compiled call, episodes drawn inside it.

    Everything random follows from the state's key and iteration number, so it does not matter how iterations are cut into chunks.
    `draw` is called with a key and the pool of data that tasks pick from, where there is one.
    """

    def train(state, num_iterations, *pool):
        def iteration(state, _):
            key_draw, key_infer = jax.random.split(jax.random.fold_in(state.key, state.iteration))
            # Behind a barrier: else the compiler would draw an image again for every window of it that is looked at.
            episodes = jax.lax.optimization_barrier(
                jax.vmap(lambda key: draw(key, *pool))(task_keys(key_draw, meta_batch))
            )
            return learner.step(state, task_keys(key_infer, meta_batch), episodes)

        return jax.lax.scan(iteration, state, None, length=num_iterations)

    return train


def task_keys(key: Key, num_tasks: int) -> Key:
    """One key per task, each depending on the task's number alone: batching and sharding cannot change the draws."""
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(num_tasks))


def _noisy_draw(method: Method, model: Model | None):
    if model is None:
        raise ValueError(f"the {method.estimator} estimator needs the layers of a network: pass model= to meta_learner")
    require_noisy(model, method.estimator)
    if method.posterior != "mean-field":
        raise ValueError(
            f"the {method.estimator} estimator samples mean-field weights, not a {method.posterior} posterior"
        )

    def draw(key, q):
        return noisy_params(key, q.mean, jax.tree.map(jnp.exp, q.log_std), method.estimator)

    return draw


def _start(cell: Cell, prior: Prior) -> Dist:
    return cell.family.start(prior.dist)


def _mean_of_kept(kept, tree):
    count = jnp.maximum(kept.sum(), 1)

    def mean(leaf):
        mask = kept.reshape(-1, *([1] * (leaf.ndim - 1)))
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf.max(axis=0)  # counters of an optimiser, equal in every task
        return jnp.where(mask, leaf, 0).sum(axis=0) / count.astype(leaf.dtype)

    return jax.tree.map(mean, tree)


def _statistics(tree) -> Float[Array, "3"]:
    return jnp.full((3,), jnp.nan) if tree is None else jnp.stack(trees.extremes(tree))
