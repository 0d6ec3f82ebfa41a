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

from metaprior.benchmarks.images_compiled import calls
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

    advance: Callable[[Any], Any]  # returns when the work is done
    carry: Any
    bytes: int | None  # of all it needs: arguments, results and temporaries, where the backend tells
    calls: float  # on the device, of one iteration
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
        chunk = lambda state, *pool: train(state, iterations, *pool)[0]
        return _compiled(iterations, chunk, initial_state(setup), *images)

    return make


def _floor(setting: Setting, pool: Pool, how: str, precision: str | None, iterations: int) -> Callable[[], Program]:
    def make() -> Program:
        setup = set_up(setting, METHODS[0], precision=precision)
        params = computed(setup.model.init(jax.random.key(0)), how)
        keys = task_keys(jax.random.key(0), setting.meta_batch)
        draw = jax.jit(jax.vmap(lambda key, *pool: setup.tasks.sample(key, *pool), in_axes=(0, None, None)))
        support, query = (jax.tree.map(_together, data) for data in draw(keys, *pool))
        chunk = floor_passes(lambda params, data: mean_loss(setup.likelihood, params, data), iterations)
        nothing = jax.tree.map(jnp.zeros_like, params)
        return _compiled(iterations, chunk, Gradients(nothing, nothing), params, support, query)

    return make


def computed(params: Params, how: str) -> Params:
    """The same network with its convolutions computed in another way."""
    is_layer = lambda node: isinstance(node, Conv)
    change = lambda node: dataclasses.replace(node, how=how) if is_layer(node) else node
    return jax.tree.map(change, params, is_leaf=is_layer)


class Gradients(NamedTuple):
    """Of the last pass over the support and of the last one over the query."""

    support: Params
    query: Params


def floor_passes(loss: Callable[[Params, Data], Any], iterations: int) -> Callable[..., Gradients]:
    """(gradients, weights, support, query) -> gradients, after all passes of so many meta-iterations.

    Both sets of gradients are handed out: of one that nobody sees the compiler would leave out the most part.
    """
    gradient = jax.grad(loss)

    def once(before: Params, params: Params, data: Data) -> Params:
        # The first weights depend on the pass before, by less than can be seen: else the compiler would do one pass for all.
        (first, *others), structure = jax.tree.flatten(params)
        return gradient(structure.unflatten([first + 1e-30 * jax.tree.leaves(before)[0], *others]), data)

    def chunk(found: Gradients, params: Params, support: Data, query: Data) -> Gradients:
        def several(before, data, count):
            return jax.lax.scan(lambda before, _: (once(before, params, data), None), before, None, length=count)[0]

        def iteration(found, _):
            on_support = several(found.support, support, STEPS)
            return Gradients(on_support, several(on_support, query, QUERY_STEPS)), None

        return jax.lax.scan(iteration, found, None, length=iterations)[0]

    return chunk


def _together(leaf):
    """The images of all tasks as one batch."""
    return leaf.reshape(-1, *leaf.shape[2:])


def _compiled(iterations: int, chunk: Callable[..., Any], carry: Any, *arguments: Any) -> Program:
    began = time.perf_counter()
    compiled = jax.jit(chunk).lower(carry, *arguments).compile()
    found, size = compiled.memory_analysis(), None
    if found is not None:
        size = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return Program(
        advance=lambda carry: jax.block_until_ready(compiled(carry, *arguments)),
        carry=carry,
        bytes=size,
        calls=calls(compiled.as_text() or "") / iterations,
        seconds=time.perf_counter() - began,
    )
