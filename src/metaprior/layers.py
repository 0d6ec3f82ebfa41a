r"""The meta-update layer by layer: every device keeps the prior of its own layers, and the meta-optimiser's state of these.

Where the prior is independent from weight to weight, so is its gradient under Gradient-EM and the step that follows it: nothing
has to pass between layers. A meta-step then sends twice: before inference, which needs the whole network, the prior is gathered,
and after it every device receives the sums over tasks of its own layers alone (a reduce-scatter, in the place of an all-reduce).

Optimisers must work entry by entry, as Adam does; one that looks at the whole gradient, as clipping by its norm, sees its part.
Letters: `W` weights, `D` devices, `C` weights of the device that has most.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from metaprior import parallel
from metaprior.families import Delta, MeanField
from metaprior.meta import Info, MetaLearner, State, Statistics, iteration
from metaprior.parallel import AXIS, EVERYWHERE
from metaprior.types import Episode, Params, Prior


class Layout(NamedTuple):
    """Which device keeps which weights."""

    places: Int[np.ndarray, "D C"]  # numbers of weights; W where a device has fewer than C
    where: Int[np.ndarray, " W"]  # of each weight: its place among all D·C
    parts: int  # of the prior that have the shape of the weights: means, widths, rates
    whole: Callable[[Float[Array, " PW"]], Prior]  # from a vector of all entries


def layout(learner: MetaLearner, state: State, mesh: Mesh) -> Layout:
    """Whole layers to devices, the largest first and each to the device that has least."""
    prior = state.prior
    if (
        learner.learn is None
        or state.memory != ()
        or prior.extra != ()
        or not isinstance(prior.dist, Delta | MeanField)
    ):
        raise ValueError(
            f"{learner.method.name} is not independent from layer to layer: leave out --by-layer, or choose a method whose "
            "prior is a point or mean-field and whose tasks share no optimiser"
        )
    groups = layer_groups(prior.dist.mean)
    owned: list[list[np.ndarray]] = [[] for _ in range(mesh.size)]
    for group in sorted(groups, key=len, reverse=True):
        min(owned, key=lambda layers: sum(map(len, layers))).append(group)
    count, size = sum(map(len, groups)), max(sum(map(len, layers)) for layers in owned)
    places = np.full((mesh.size, size), count)
    for row, layers in zip(places, owned, strict=True):
        mine = np.concatenate([*layers, np.zeros(0, int)])
        row[: mine.size] = mine
    where = np.zeros(count + 1, int)
    where[places.reshape(-1)] = np.arange(places.size)
    size, whole = sum(leaf.size for leaf in jax.tree.leaves(prior)), partial(_in_shape_of, prior)
    return Layout(places, where[:count], size // count, whole)


def _in_shape_of(prior: Prior, entries: Float[Array, " PW"]) -> Prior:
    sizes = [leaf.size for leaf in jax.tree.leaves(prior)]
    pieces = iter(jnp.split(entries, np.cumsum(sizes)[:-1]))
    return jax.tree.map(lambda leaf: next(pieces).reshape(leaf.shape).astype(leaf.dtype), prior)


def layer_groups(weights: Params) -> list[Int[np.ndarray, " n"]]:
    """Of each layer, the numbers of its weights: arrays are of one layer if their paths differ in the last name alone."""
    groups: dict[Any, list[np.ndarray]] = {}
    begin = 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(weights)[0]:
        groups.setdefault(path[:-1] or path, []).append(np.arange(begin, begin + leaf.size))
        begin += leaf.size
    return [np.concatenate(arrays) for arrays in groups.values()]


def split(found: Layout, mesh: Mesh, state: State) -> State:
    """The state with every array of weights as one vector over devices, layer by layer."""
    _require_vectors(found, state.opt_state)

    def place(array):
        values = np.asarray(array)
        if _by_weight(values):
            values = np.append(values, np.zeros(1, values.dtype))[found.places.reshape(-1)]
        return jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, _spec(values)), lambda index: values[index]
        )

    placed = parallel.everywhere(mesh, state._replace(prior=(), opt_state=()))
    return placed._replace(
        prior=jax.tree.map(place, _by_parts(found, state.prior)), opt_state=jax.tree.map(place, state.opt_state)
    )


def joined(found: Layout, mesh: Mesh, state: State) -> State:
    """Undoes `split`: arrays of this process. All processes must ask."""
    gathered = jax.jit(lambda state: state, out_shardings=NamedSharding(mesh, EVERYWHERE))(state)
    state = parallel.here(gathered)
    order = lambda array: array[found.where] if _by_weight(array) else array
    prior, opt_state = jax.tree.map(order, (state.prior, state.opt_state))
    return state._replace(prior=found.whole(ravel_pytree(prior)[0]), opt_state=opt_state)


def trainer(learner: MetaLearner, draw: Callable[..., Episode], meta_batch: int, mesh: Mesh, found: Layout):
    """As `parallel.trainer`, from and to a state that is split: (state, num_iterations, *pool) -> (state, infos)."""
    by_layer = learner._replace(step=_step(learner, found, mesh))

    def train(state, num_iterations, *pool):
        def on_device(state, *pool):
            step = iteration(by_layer, draw, parallel.share(meta_batch, mesh), *pool)
            state, infos = jax.lax.scan(step, state, None, length=num_iterations)
            return state, _over_devices(found, infos)

        return parallel.spread(on_device, mesh, _spec)(state, *pool)

    return train


def _by_weight(array: Any) -> bool:
    return array.ndim > 0 and array.size > 0


def _spec(array: Any) -> PartitionSpec:
    return PartitionSpec(AXIS) if _by_weight(array) else EVERYWHERE


def _step(learner: MetaLearner, found: Layout, mesh: Mesh):
    assert learner.learn is not None and learner.update is not None
    learn, update = learner.learn, learner.update

    def step(state, keys, episodes, counted, total):
        del total  # every device receives the sums of its own layers, not all
        sums = learn(state._replace(prior=_gathered(found, state.prior)), keys, episodes, counted)
        state, info = update(state, _scattered(found, sums))
        mine = found.places < len(found.where)
        here = jnp.asarray(mine)[jax.lax.axis_index(AXIS)]
        widths = state.prior.dist.log_std if isinstance(state.prior.dist, MeanField) else None
        return state, info._replace(log_std=_extent(here, widths), log_rate=_extent(here, state.prior.log_rate))

    return step


def _gathered(found: Layout, prior: Prior) -> Prior:
    devices, size = found.places.shape
    everything = jax.lax.all_gather(ravel_pytree(prior)[0].reshape(found.parts, size), AXIS, axis=1)
    return found.whole(everything.reshape(found.parts, devices * size)[:, found.where].reshape(-1))


def _scattered(found: Layout, sums: Statistics) -> Statistics:
    devices, size = found.places.shape
    by_part = jnp.pad(sums.gradient.reshape(found.parts, -1), ((0, 0), (0, 1)))
    for_each = jnp.moveaxis(by_part[:, found.places], 1, 0).reshape(devices, found.parts * size)
    rest, undo = ravel_pytree(sums._replace(gradient=()))
    rows = jnp.concatenate([for_each, jnp.broadcast_to(rest, (devices, rest.size))], axis=1)
    mine = jax.lax.psum_scatter(rows, AXIS)
    return undo(mine[found.parts * size :])._replace(gradient=mine[: found.parts * size])


def _extent(here, vector) -> Float[Array, "3"]:
    """Sum, least and largest of this device's entries."""
    if vector is None:
        return jnp.full((3,), jnp.nan)
    entries = lambda fill: jnp.where(here, vector, fill)
    return jnp.stack([entries(0.0).sum(), entries(jnp.inf).min(), entries(-jnp.inf).max()])


def _over_devices(found: Layout, infos: Info) -> Info:
    """What devices report of their layers, as a report on all: once for all iterations."""
    largest = lambda array: jax.lax.pmax(array, AXIS)

    def extents(array):
        mean = jax.lax.psum(array[:, 0], AXIS) / len(found.where)
        ends = -largest(-array[:, 1]), largest(array[:, 2])
        return jnp.where(jnp.isnan(array), jnp.nan, jnp.stack([mean, *ends], axis=1))  # NaN where there is no such part

    return infos._replace(
        step_norm=jnp.sqrt(jax.lax.psum(jnp.square(infos.step_norm), AXIS)),
        finite=jax.lax.pmin(infos.finite.astype(jnp.int32), AXIS) > 0,
        log_std=extents(infos.log_std),
        log_rate=extents(infos.log_rate),
    )


def _by_parts(found: Layout, prior: Prior) -> Prior:
    """The prior with one vector in the place of every set of weights."""
    vectors = iter(np.asarray(ravel_pytree(prior)[0]).reshape(found.parts, -1))
    dist = type(prior.dist)(*(next(vectors) for _ in prior.dist))
    return prior._replace(dist=dist, log_rate=None if prior.log_rate is None else next(vectors))


def _require_vectors(found: Layout, opt_state: Any) -> None:
    shapes = {leaf.shape for leaf in jax.tree.leaves(opt_state)} - {(), (0,), (len(found.where),)}
    if shapes:
        raise ValueError(
            f"the meta-optimiser keeps arrays of shape {min(shapes)}, which cannot be split by layer: use meta_optimizer with "
            "flat_adam or optax.sgd"
        )
