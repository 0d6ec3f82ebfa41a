"""The compiled program of a training: on one device, over devices, or over devices layer by layer."""

from collections.abc import Callable
from functools import partial

import jax
from jax.sharding import Mesh

from metaprior import layers, parallel
from metaprior.meta import Info, State, trainer
from metaprior.settings import Setup


def program(
    setup: Setup, state: State, mesh: Mesh | None = None, *, by_layer: bool = False
) -> Callable[[State, int], tuple[State, Info]]:
    """(state, num_iterations) -> (state, infos), with the data that tasks are drawn from. States are arrays of this process.

    Args:
        setup: the pieces.
        state: of which only shapes count.
        mesh: the devices, of all processes; None for one.
        by_layer: whether each device keeps the prior and the meta-optimiser's state of its own layers alone.
    """
    pieces, pool = (setup.learner, setup.tasks.sample, setup.learner.method.meta_batch), setup.tasks.pool("train")
    if mesh is None:
        compiled, pool = jax.jit(trainer(*pieces), static_argnums=1), jax.device_put(pool)
        return lambda state, length: jax.block_until_ready(compiled(state, length, *pool))
    pool = parallel.everywhere(mesh, pool)
    if by_layer:
        layout = layers.layout(setup.learner, state, mesh)
        split, joined = partial(layers.split, layout, mesh), partial(layers.joined, layout, mesh)
        compiled = jax.jit(layers.trainer(*pieces, mesh, layout), static_argnums=1)
    else:
        split, joined = partial(parallel.everywhere, mesh), parallel.here
        compiled = jax.jit(parallel.trainer(*pieces, mesh), static_argnums=1)

    def run(state, length):
        state, infos = compiled(split(state), length, *pool)
        return joined(state), parallel.here(infos)

    return run
