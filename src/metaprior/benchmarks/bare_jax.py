"""The floor: MAML written down in plain JAX (jit, vmap, scan) for this one problem, as nobody's library."""

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.benchmarks.problem import INNER_RATE, META_RATE, Runner, Weights


def forward(weights, x):
    """Dense layers with ReLU between them."""
    *hidden, (last_w, last_b) = zip(weights[::2], weights[1::2], strict=True)
    for w, b in hidden:
        x = jax.nn.relu(x @ w + b[None])
    return x @ last_w + last_b[None]


def mean_squared_error(weights, x, y):
    """Over the points of one task."""
    return jnp.square(forward(weights, x) - y).mean()


def task_loss(weights, batch):
    """Query loss after one step on the support."""
    grads = jax.grad(mean_squared_error)(weights, batch.support_x, batch.support_y)
    adapted = jax.tree.map(lambda w, g: w - INNER_RATE * g, weights, grads)
    return mean_squared_error(adapted, batch.query_x, batch.query_y)


def meta_loss(weights, batch):
    """Mean over the tasks of a batch."""
    return jax.vmap(task_loss, in_axes=(None, 0))(weights, batch).mean()


def adam(grads, weights, m, v, count):
    """One step of Kingma & Ba's Adam."""
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    first, second = 1 - 0.9**count, 1 - 0.999**count
    step = lambda w, m, v: w - META_RATE * (m / first) / (jnp.sqrt(v / second) + 1e-8)
    return jax.tree.map(step, weights, m, v), m, v


def iteration(state, batch):
    """One meta-iteration."""
    weights, m, v, count = state
    loss, grads = jax.value_and_grad(meta_loss)(weights, batch)
    return (*adam(grads, weights, m, v, count + 1), count + 1), loss


@jax.jit
def scanned(state, batches):
    """All batches in one dispatch."""
    return jax.lax.scan(iteration, state, batches)


def begin(weights: Weights):
    """Weights, Adam's two moments, and a count in their precision."""
    weights = jax.tree.map(jnp.asarray, weights)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return weights, zeros, zeros, jnp.zeros((), weights[0].dtype)


def runner() -> Runner:
    """To be timed."""
    return Runner(
        load=lambda batches: jax.tree.map(jnp.asarray, batches),
        begin=begin,
        train=lambda state, batches: jax.block_until_ready(scanned(state, batches)),
        weights=lambda state: tuple(np.asarray(w) for w in state[0]),
    )
