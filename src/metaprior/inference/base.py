"""What every inference shares: the loop over its steps, mini-batches, and the per-point objective."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from metaprior.scalars import Scalar, at_least_one
from metaprior.types import Dist, Inference, Key, Likelihood, Prior, Source


def infer(
    inference: Inference, key: Key, prior: Prior, start: Dist, source: Source, steps: int, memory=(), active=None
):
    """Q after `steps` steps, and what the task adds to the memory shared by tasks.

    With `active`, a traced number, only so many of the steps count: a task may draw how long it adapts.
    """
    key_init, key_steps = jax.random.split(key)
    # A barrier, or the compiler takes the first weights of all tasks for the prior's, repeated, keeps them and copies them.
    state = inference.init(key_init, prior, jax.lax.optimization_barrier(start), source, memory)

    def one(state, numbered):
        index, key = numbered
        moved = inference.step(key, state, prior, source)
        return moved if active is None else _moved_where(index < active, moved, state), None

    # A task without data says nothing: its posterior is where it started, whatever the optimiser would do.
    if steps > 0 and not _empty(source):
        state, _ = jax.lax.scan(one, state, (jnp.arange(steps), jax.random.split(key_steps, steps)))
    return inference.posterior(state, prior, source), inference.recall(state)


def trajectory(
    inference: Inference, key: Key, prior: Prior, start: Dist, source: Source, steps: int, memory=()
) -> Dist:
    """The posteriors after 0, 1, …, `steps` steps, stacked on a new first axis."""
    key_init, key_steps = jax.random.split(key)
    state = inference.init(key_init, prior, start, source, memory)

    def one(state, key):
        state = state if _empty(source) else inference.step(key, state, prior, source)
        return state, inference.posterior(state, prior, source)

    first = inference.posterior(state, prior, source)
    if steps == 0:
        return jax.tree.map(lambda leaf: leaf[None], first)
    _, rest = jax.lax.scan(one, state, jax.random.split(key_steps, steps))
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


def mini_batch(key: Key, source: Source, batch_size: int | None) -> Source:
    """`batch_size` points drawn without replacement; all of them when None or when there are no more."""
    num_points = jax.tree.leaves(source)[0].shape[0] if batch_size is not None else 0
    if batch_size is None or batch_size >= num_points:
        return source
    chosen = distinct(key, num_points, batch_size)
    return jax.tree.map(lambda leaf: leaf[chosen], source)


def distinct(key: Key, num_points: int, count: int) -> Int[Array, " count"]:
    """`count` different numbers below `num_points`, every set of them as likely as any other (Floyd's algorithm).

    A shuffle sorts all points at every step: a hundred times dearer for 20 of 1,000.
    """
    last = jnp.arange(num_points - count, num_points)
    picks = jax.random.randint(key, (count,), 0, last + 1, last.dtype)

    def one(index, chosen):
        taken = (chosen == picks[index]).any()
        return chosen.at[index].set(jnp.where(taken, last[index], picks[index]))

    return jax.lax.fori_loop(0, count, one, jnp.full_like(last, -1))


def require_batch_size(batch_size: int | None) -> None:
    """A mini-batch holds at least one point."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(
            f"a mini-batch needs at least one point, got batch_size={batch_size}: pass None for all points"
        )


def mean_loss(likelihood: Likelihood, params: PyTree, batch) -> Float[Array, ""]:
    """−log p per point; `params` may hold noisy weights. On a mini-batch it is an unbiased estimate of the loss on all."""
    return -likelihood.log_prob(params, batch) / at_least_one(likelihood.size(batch))


def kl_weight(likelihood: Likelihood, source: Source) -> Scalar:
    """T/n: the weight of the KL beside the mean loss of n points."""
    return likelihood.temperature / at_least_one(likelihood.size(source))


def _moved_where(condition, moved: PyTree, state: PyTree) -> PyTree:
    """`moved` where the condition holds, else `state`; what a step leaves alone stays shared by tasks that differ in it.

    A choice between two equal arrays would give every task a copy of its own: of the rates of all weights, say.
    """
    return jax.tree.map(lambda new, old: old if new is old else jnp.where(condition, new, old), moved, state)


def _empty(source) -> bool:
    leaves = jax.tree.leaves(source)
    return bool(leaves) and leaves[0].ndim > 0 and leaves[0].shape[0] == 0
