r"""The numerics of federated learning, as functions of arrays.

A client infers the posteriors of its tasks and sums their meta-gradients; the server adds up sums and takes one step of its
optimiser,

$$\Theta \leftarrow \Theta + \text{optimiser}\Big(\frac{\sum_c G_c}{\sum_c n_c}\Big),
\qquad G_c = \sum_{\tau \in c} \hat g_\tau,$$

which is the meta-step of one machine that has all tasks, up to the order of summation. To save rounds, a client may take
several meta-steps of its own and send how far they led; the server takes that for a gradient.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from metaprior import trees
from metaprior.meta import Info, MetaLearner, State, Statistics, means, numbered_keys
from metaprior.rules import bounded
from metaprior.scalars import Scalar, require_positive
from metaprior.types import Episode, Key, Prior

MetaStep = tuple[State, Info]


class Held(NamedTuple):
    """Tasks of a client. A task's number is its own in the whole federation: what is random in it follows from that."""

    numbers: Int[Array, " T"]
    episodes: Episode  # with a leading axis of tasks


def client_step(learner: MetaLearner, prior: Prior, tasks: Held, key: Key, memory: Any = ()) -> Statistics:
    """What a client's tasks leave of a meta-step: a sum over them and their number. How well they do is not told.

    Args:
        learner: as the server has it; its optimiser does not matter.
        prior: of the server.
        tasks: of this client.
        key: of the round, the same for all clients.
        memory: of the server, for methods whose tasks share an optimiser.
    """
    _require_sums(learner)
    assert learner.learn is not None
    state = State(prior, (), memory, key, jnp.zeros((), jnp.int32))
    found = learner.learn(state, numbered_keys(key, tasks.numbers), tasks.episodes)
    return _untold(found)


def client_steps(
    learner: MetaLearner, prior: Prior, tasks: Held, key: Key, memory: Any = (), *, steps: int, rate: Scalar
) -> Statistics:
    """As `client_step`, after several meta-steps of the client's own by gradient ascent: how far they led, over the rate.

    One step makes no difference. More make one as long as tasks of clients differ: each goes its own way for a while.

    Args:
        learner: as the server has it; its optimiser does not matter.
        prior: of the server.
        tasks: of this client, all of which are in every step.
        key: of the round; each step has one of its own.
        memory: of the server, for methods whose tasks share an optimiser.
        steps: how many.
        rate: of the client's own steps.
    """
    _require_sums(learner)
    if steps < 1:
        raise ValueError(f"a client takes at least one step, got {steps}")
    require_positive("the rate of a client's own steps", rate)

    def step(before, index):
        assert learner.learn is not None
        prior, memory = before
        keys = numbered_keys(key if steps == 1 else jax.random.fold_in(key, index), tasks.numbers)
        found = learner.learn(State(prior, (), memory, key, jnp.zeros((), jnp.int32)), keys, tasks.episodes)
        after = _ascended(learner, prior, found, rate), means(found).memory
        return trees.where(found.kept == 0, before, after), (found.kept, found.left_out)

    last, (kept, left_out) = jax.lax.scan(step, (prior, memory), jnp.arange(steps))
    fewest = kept.min()  # whoever lost tasks on the way counts with those that were there throughout
    change = (trees.vector(last[0]) - trees.vector(prior)) / rate
    memory = jax.tree.map(lambda leaf: _times(leaf, fewest), last[1])
    return _untold(Statistics(change * fewest, memory, fewest, fewest, fewest, left_out.max()))


def _ascended(learner: MetaLearner, prior: Prior, found: Statistics, rate: Scalar) -> Prior:
    method, step = learner.method, trees.like(prior, rate * means(found).gradient)
    return bounded(method.widths, method.rates, jax.tree.map(jnp.add, prior, step), method.std)


def server_step(learner: MetaLearner, state: State, *found: Statistics) -> MetaStep:
    """One step of the server's optimiser on what clients found; the prior stays as it is where none kept a task."""
    _require_sums(learner)
    if not found:
        raise ValueError("a meta-step needs the statistics of at least one client")
    assert learner.update is not None
    return learner.update(state, added(*found))


def added(first: Statistics, *others: Statistics) -> Statistics:
    """The statistics of all their tasks. Whole numbers in them are counters, equal in every task, and are not summed."""
    floating = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.inexact)
    for other in others:
        first = jax.tree.map(lambda a, b: a + b if floating(a) else jnp.maximum(a, b), first, other)
    return first


def _times(leaf: Array, count: Array) -> Array:
    return leaf * count.astype(leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf


def _untold(found: Statistics) -> Statistics:
    unknown = jnp.full_like(found.query_nll, jnp.nan)
    return found._replace(query_nll=unknown, elbo=unknown)


def _require_sums(learner: MetaLearner) -> None:
    if learner.learn is None:
        raise ValueError(
            f"a meta-step of {learner.method.name} with a trust region is no sum over tasks: choose a method with an optimiser"
        )
