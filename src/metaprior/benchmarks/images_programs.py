"""What is timed on images, as compiled programs: meta-iterations of our methods, and the floor under them.

The floor is what no method can do without: as many forward and backward passes over as many images, but with one set of weights
for all tasks, so that one convolution serves them all; no steps, no reports, no drawing of tasks.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaprior.benchmarks.images_problem import QUERY_STEPS, STEPS, Pool, Setting, set_up
from metaprior.inference.base import mean_loss
from metaprior.meta import task_keys, trainer
from metaprior.models.layers import Conv
from metaprior.training import initial_state
from metaprior.types import Data, Params

FLOORS = {"floor (convolution)": "direct", "floor (patches)": "patches"}
METHODS = ("gem-bml+", "maml", "fomaml")


class Program(NamedTuple):
    """A compiled chunk of iterations, to be called again and again with what it returned."""

    advance: Callable[[Any], Any]
    carry: Any
    bytes: int | None  # of all it needs: arguments, results and temporaries, where the backend tells
    seconds: float  # to compile


def programs(
    setting: Setting, pool: Pool, *, precision: str | None, iterations: int
) -> dict[str, Callable[[], Program]]:
    """How each is made, by name."""
    made = {name: _method(setting, pool, name, precision, iterations) for name in METHODS}
    floors = {name: _floor(setting, pool, how, precision, iterations) for name, how in FLOORS.items()}
    return {METHODS[0]: made[METHODS[0]], **floors, **made}


def _method(setting: Setting, pool: Pool, name: str, precision: str | None, iterations: int) -> Callable[[], Program]:
    """Iterations as `metaprior train` does them: tasks drawn inside, a report now and then."""

    def make() -> Program:
        setup, images = set_up(setting, name, precision=precision), jax.device_put(pool)
        train = trainer(setup.learner, setup.tasks.sample, setting.meta_batch)
        carry = initial_state(setup)
        compiled, size, seconds = _compiled(lambda state, *pool: train(state, iterations, *pool)[0], carry, *images)
        return Program(lambda state: compiled(state, *images), carry, size, seconds)

    return make


def _floor(setting: Setting, pool: Pool, how: str, precision: str | None, iterations: int) -> Callable[[], Program]:
    def make() -> Program:
        setup = set_up(setting, METHODS[0], precision=precision)
        params = computed(setup.model.init(jax.random.key(0)), how)
        keys = task_keys(jax.random.key(0), setting.meta_batch)
        draw = jax.jit(jax.vmap(lambda key, *pool: setup.tasks.sample(key, *pool), in_axes=(0, None, None)))
        support, query = (jax.tree.map(_together, data) for data in draw(keys, *pool))
        carry = jax.tree.map(jnp.zeros_like, params)
        chunk = floor_passes(lambda params, data: mean_loss(setup.likelihood, params, data), iterations)
        compiled, size, seconds = _compiled(chunk, carry, params, support, query)
        return Program(lambda total: compiled(total, params, support, query), carry, size, seconds)

    return make


def computed(params: Params, how: str) -> Params:
    """The same network with its convolutions computed in another way."""
    is_layer = lambda node: isinstance(node, Conv)
    change = lambda node: dataclasses.replace(node, how=how) if is_layer(node) else node
    return jax.tree.map(change, params, is_leaf=is_layer)


def floor_passes(loss: Callable[[Params, Data], Any], iterations: int) -> Callable[..., Params]:
    """(sum, weights, support, query) -> sum of the gradients of all passes of so many meta-iterations.

    A sum, because of gradients that nobody uses the compiler would leave out those of most weights.
    """
    gradient = jax.grad(loss)

    def once(total: Params, params: Params, data: Data) -> Params:
        # The first weights depend on the pass before, by less than can be seen: else the compiler would do one pass for all.
        (first, *others), structure = jax.tree.flatten(params)
        shifted = structure.unflatten([first + 1e-30 * jax.tree.leaves(total)[0], *others])
        return jax.tree.map(jnp.add, total, gradient(shifted, data))

    def chunk(total, params, support, query):
        def several(total, data, count):
            return jax.lax.scan(lambda total, _: (once(total, params, data), None), total, None, length=count)[0]

        def iteration(total, _):
            return several(several(total, support, STEPS), query, QUERY_STEPS), None

        return jax.lax.scan(iteration, total, None, length=iterations)[0]

    return chunk


def _together(leaf):
    """The images of all tasks as one batch."""
    return leaf.reshape(-1, *leaf.shape[2:])


def _compiled(chunk: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], int | None, float]:
    began = time.perf_counter()
    compiled = jax.jit(chunk).lower(*arguments).compile()
    found = compiled.memory_analysis()
    size = None
    if found is not None:
        size = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return compiled, size, time.perf_counter() - began
