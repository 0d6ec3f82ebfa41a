"""Tasks over devices: every device learns from its share of a meta-batch, and one sum over devices makes them one.

The mesh has one axis, `"task"`, over all devices of all processes. The prior is on every device; a task's key and episode are on
the device that learns from it and never leave it, being drawn there from the task's number. So the episodes are the same whatever
the number of devices, and results differ by the order of one summation.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from metaprior.meta import MetaLearner, Share, State, iteration
from metaprior.types import Episode

AXIS = "task"
EVERYWHERE = PartitionSpec()


def task_mesh(count: int | None = None) -> Mesh:
    """The devices of all processes in one row; or the first `count`, where there is one process."""
    devices = jax.devices()
    if count is None:
        return Mesh(np.array(devices), (AXIS,))
    if jax.process_count() > 1 and count != len(devices):
        raise ValueError(
            f"{jax.process_count()} processes have {len(devices)} devices, all of which take part: leave out --devices"
        )
    if not 1 <= count <= len(devices):
        hint = (
            f"set XLA_FLAGS=--xla_force_host_platform_device_count={count}, or " if devices[0].platform == "cpu" else ""
        )
        raise ValueError(
            f"{count} devices were asked for and there are {len(devices)}: {hint}ask for 1 to {len(devices)}"
        )
    return Mesh(np.array(devices[:count]), (AXIS,))


def trainer(learner: MetaLearner, draw: Callable[..., Episode], meta_batch: int, mesh: Mesh):
    """As `meta.trainer`, on all devices of the mesh: (state, num_iterations, *pool) -> (state, infos).

    A meta-batch that cannot be divided equally is filled up with tasks that are computed and not counted.
    """

    def train(state, num_iterations, *pool):
        def on_device(state, *pool):
            step = iteration(learner, draw, share(meta_batch, mesh), *pool)
            return jax.lax.scan(step, state, None, length=num_iterations)

        return spread(on_device, mesh)(state, *pool)

    return train


def spread(on_device: Callable[..., tuple[State, Any]], mesh: Mesh, spec=lambda array: EVERYWHERE):
    """(state, *pool) -> (state, infos) of one device, as a program of all of them.

    Args:
        on_device: what each of them does; infos must be the same on all.
        mesh: the devices.
        spec: of an array of the state: which part of it each device has.
    """

    def run(state, *pool):
        leaves, structure = jax.tree.flatten(state)
        specs = [spec(leaf) for leaf in leaves]

        # Arrays of no entries, as an optimiser keeps for parts that a prior does not have, are made inside: jaxlib 0.11 ends the
        # process as it compiles a program of several CPU devices that is given one.
        def whole(arrays, *pool):
            given = iter(arrays)
            filled = [next(given) if leaf.size else jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
            return on_device(structure.unflatten(filled), *pool)

        some = [spec for leaf, spec in zip(leaves, specs, strict=True) if leaf.size]
        # Replication is not checked: inference begins its scans with the prior, which all devices have, and ends elsewhere.
        program = jax.shard_map(
            whole,
            mesh=mesh,
            in_specs=(some, *(EVERYWHERE for _ in pool)),
            out_specs=(structure.unflatten(specs), EVERYWHERE),
            check_vma=False,
        )
        return program([leaf for leaf in leaves if leaf.size], *pool)

    return run


def share(meta_batch: int, mesh: Mesh) -> Share:
    """The part of a meta-batch that is this device's; to be called inside of a program of the mesh."""
    each = -(-meta_batch // mesh.size)
    numbers = jax.lax.axis_index(AXIS) * each + jnp.arange(each)
    return Share(numbers, None if each * mesh.size == meta_batch else numbers < meta_batch, total)


def idle(meta_batch: int, mesh: Mesh) -> int:
    """Tasks that are computed and not counted, because a meta-batch cannot be divided equally."""
    return -meta_batch % mesh.size


def total(tree: PyTree) -> PyTree:
    """Floating arrays summed over devices, all as one vector: one all-reduce, however many there are."""
    leaves, structure = jax.tree.flatten(tree)
    floating = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    flat, unravel = ravel_pytree([leaves[index] for index in floating])
    for index, summed in zip(floating, unravel(jax.lax.psum(flat, AXIS)), strict=True):
        leaves[index] = summed
    return jax.tree.unflatten(structure, leaves)


def everywhere(mesh: Mesh, tree: PyTree) -> PyTree:
    """Arrays that every process has, as arrays that every device of the mesh has."""
    sharding = NamedSharding(mesh, EVERYWHERE)
    place = lambda array: jax.make_array_from_callback(array.shape, sharding, lambda index: np.asarray(array)[index])
    return on_numbers(place, tree)


def here(tree: PyTree) -> PyTree:
    """Arrays that every device has, as arrays of this process alone. All processes must ask."""
    return on_numbers(lambda array: array.addressable_data(0), tree)


def on_numbers(change: Callable[[Any], Any], tree: PyTree) -> PyTree:
    """Applied to every array, to what a random key is made of where it is one."""

    def one(leaf):
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return change(leaf)
        return jax.random.wrap_key_data(change(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))

    return jax.tree.map(one, tree)
