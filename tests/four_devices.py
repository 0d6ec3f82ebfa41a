"""A program of its own, since devices are counted as JAX begins: trains on one device and on four, and prints how they differ.

`python tests/four_devices.py CASE …` prints one JSON object, case -> numbers. XLA_FLAGS must ask for four devices.
"""

import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from metaprior import layers, meta, parallel
from metaprior.benchmarks.images_problem import random_pool
from metaprior.likelihoods import SQUARED_ERROR, gaussian
from metaprior.meta import Info, State, meta_learner
from metaprior.models import mlp
from metaprior.settings import Settings, assemble
from metaprior.training import initial_state

STEPS = 100
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
SMALL_RL = dict(tasks="rl-navigation", hidden=(8,), meta_batch=6, rollouts=4, queries=4, horizon=5)
CASES = {
    **{name: dict(method=name, meta_batch=8) for name in ("gem-bml", "gem-bml+", "maml")},
    "uneven": dict(method="gem-bml+", meta_batch=5),
    "poisoned": dict(method="gem-bml+", meta_batch=6),
    "shared-adam": dict(method="reptile", optimizer="shared-adam", meta_batch=4),
    "rl": dict(SMALL_RL, method="gem-bml+"),
    "rl-trpo": dict(SMALL_RL, method="maml-trpo"),
}


def made(settings):
    setup = assemble(Settings(**{"hidden": (8, 8), **settings}, decay=False, seed=3))
    if setup.rl is None and setup.learner.method.posterior != "last-layer":  # whose head is apart from its network
        setup = smooth(setup)
    return setup, initial_state(setup), setup.learner.method.meta_batch


def smooth(setup):
    """With a network without kinks: where a unit switches on, the gradient jumps, and rounding decides on which side."""
    method, model = setup.learner.method, mlp((1, 8, 8, 1), activation=jnp.tanh, init="glorot")
    likelihood = gaussian(model.apply, noise_std=SQUARED_ERROR, temperature=method.temperature)
    return setup._replace(model=model, learner=meta_learner(method, likelihood, model=model))


def poisoned(sample):
    """About one task in three has no finite answer."""

    def draw(key):
        episode = sample(key)
        bad = jax.random.uniform(jax.random.fold_in(key, 7)) < 1 / 3
        return episode._replace(query=episode.query._replace(y=jnp.where(bad, jnp.nan, episode.query.y)))

    return draw


def moved(state, start):
    return difference(
        state._replace(opt_state=(), memory=(), iteration=0), start._replace(opt_state=(), memory=(), iteration=0)
    )


def difference(ours, theirs):
    numbers = lambda state: jax.tree.leaves((state.prior, state.opt_state, state.memory, jnp.asarray(state.iteration)))
    pairs = zip(numbers(ours), numbers(theirs), strict=True)
    return max(float(np.abs(np.subtract(a, b, dtype=float)).max()) for a, b in pairs if a.size)


def report_difference(ours: Info, theirs: Info):
    worst = 0.0
    for name, ours_, theirs_ in zip(Info._fields, ours, theirs, strict=True):
        a, b = np.asarray(ours_, float), np.asarray(theirs_, float)
        assert (np.isnan(a) == np.isnan(b)).all(), name
        worst = max(worst, float(np.abs(np.where(np.isnan(a), 0, a - b)).max()))
    return worst


def collectives(text):
    """How often each collective stands in a program, those of its entry, which runs once, apart from those of its loops."""
    entry = text[text.index("\nENTRY ") :]
    count = lambda part: {name: len(re.findall(rf" {name}(?:-start)?\(", part)) for name in COLLECTIVES}
    return {"loops": count(text[: text.index("\nENTRY ")]), "entry": count(entry)}


def case(name):
    setup, state, meta_batch = made(CASES[name])
    steps = STEPS if setup.rl is None else 1
    draw = poisoned(setup.tasks.sample) if name == "poisoned" else setup.tasks.sample
    mesh = parallel.task_mesh()
    alone, report = jax.jit(meta.trainer(setup.learner, draw, meta_batch), static_argnums=1)(state, steps)
    program = jax.jit(parallel.trainer(setup.learner, draw, meta_batch, mesh), static_argnums=1)
    whole = parallel.everywhere(mesh, state)
    spread, spread_report = parallel.here(program(whole, steps))
    text = str(program.lower(whole, max(steps, 2)).compile().as_text())
    return {
        "moved": moved(alone, state),
        "difference": difference(spread, alone),
        "report": report_difference(spread_report, report),
        "left_out": [int(found.left_out.sum()) for found in (report, spread_report)],
        "collectives": collectives(text),
        "summed": [int(size) for size in re.findall(r"= f\d+\[(\d*)\]\S* all-reduce\(", text)],
        "entries": sum(leaf.size for leaf in jax.tree.leaves(state.prior)),
        "float": jnp.zeros(()).dtype.name,
    }


def row(name):
    """Of a row of the table, for curves ("row:maml") or for agents ("row:rl/maml"): where a few meta-steps lead."""
    table, _, method = name.rpartition("/")
    setup, state, meta_batch = made((SMALL_RL if table else dict(meta_batch=6)) | dict(method=method))
    steps = 1 if table else 3
    mesh, pieces = parallel.task_mesh(), (setup.learner, setup.tasks.sample, meta_batch)
    alone, _ = jax.jit(meta.trainer(*pieces), static_argnums=1)(state, steps)
    program = jax.jit(parallel.trainer(*pieces, mesh), static_argnums=1)
    spread, _ = parallel.here(program(parallel.everywhere(mesh, state), steps))
    found = {"moved": moved(alone, state), "difference": difference(spread, alone)}
    try:
        layout = layers.layout(setup.learner, state, mesh)
    except ValueError:  # not independent from layer to layer
        return found
    program = jax.jit(layers.trainer(*pieces, mesh, layout), static_argnums=1)
    parts, _ = program(layers.split(layout, mesh, state), steps)
    return found | {"by_layer": difference(layers.joined(layout, mesh, parts), alone)}


def pictures(method):
    """Characters of random pixels ("images:maml"): every device has the whole pool and draws its own tasks from it."""
    small: dict[str, Any] = dict(ways=2, shots=1, queries=2, filters=2, meta_batch=5)
    setup = assemble(Settings(tasks="omniglot", method=method, **small, decay=False, seed=3))
    state, pool = initial_state(setup), jax.tree.map(jnp.asarray, random_pool("omniglot", classes=6, count=4))
    mesh, pieces = parallel.task_mesh(), (setup.learner, setup.tasks.sample, small["meta_batch"])
    alone, report = jax.jit(meta.trainer(*pieces), static_argnums=1)(state, 3, *pool)
    program = jax.jit(parallel.trainer(*pieces, mesh), static_argnums=1)
    spread, spread_report = parallel.here(
        program(parallel.everywhere(mesh, state), 3, *parallel.everywhere(mesh, pool))
    )
    return {
        "moved": moved(alone, state),
        "difference": difference(spread, alone),
        "report": report_difference(spread_report, report),
    }


def by_layer(name):
    setup, state, meta_batch = made(CASES[name])
    mesh = parallel.task_mesh()
    alone, report = jax.jit(meta.trainer(setup.learner, setup.tasks.sample, meta_batch), static_argnums=1)(state, STEPS)
    layout = layers.layout(setup.learner, state, mesh)
    program = jax.jit(layers.trainer(setup.learner, setup.tasks.sample, meta_batch, mesh, layout), static_argnums=1)
    parts = layers.split(layout, mesh, state)
    assert difference(layers.joined(layout, mesh, parts), state) == 0
    spread, spread_report = program(parts, STEPS)
    return {
        "moved": moved(alone, state),
        "difference": difference(layers.joined(layout, mesh, spread), alone),
        "report": report_difference(parallel.here(spread_report), report),
        "kept": [(row < len(layout.where)).sum().item() for row in layout.places],
        "held": [shard.data.size for shard in spread.prior.dist.mean.addressable_shards],
        "collectives": collectives(program.lower(parts, STEPS).compile().as_text()),
        "update": collectives(update_alone(setup, layout, mesh, parts)),
    }


def update_alone(setup, layout, mesh, parts: State):
    """The text of the meta-update by itself, from statistics that every device has of its own layers."""
    spec = lambda leaf: PartitionSpec("task") if leaf.ndim and leaf.size else PartitionSpec()
    one = jnp.ones(())

    def update(state):
        gradient = jnp.ones(layout.parts * layout.places.shape[1])
        return setup.learner.update(state, meta.Statistics(gradient, (), one, one, one, one))[0], ()

    return jax.jit(parallel.spread(update, mesh, spec)).lower(parts).compile().as_text()


def draws():
    """The goals that devices draw, with those of one device beside them."""
    setup, state, meta_batch = made(CASES["rl"])
    mesh = parallel.task_mesh()
    key = jax.random.fold_in(state.key, 0)
    drawn = lambda numbers: jax.vmap(setup.tasks.sample)(meta.numbered_keys(key, numbers)).support.task
    spread = jax.shard_map(
        lambda: drawn(parallel.share(meta_batch, mesh).numbers), mesh=mesh, in_specs=(), out_specs=PartitionSpec("task")
    )
    ours, theirs = jax.tree.leaves(jax.jit(spread)()), jax.tree.leaves(drawn(jnp.arange(meta_batch)))
    same = [bool((np.asarray(a)[:meta_batch] == np.asarray(b)).all()) for a, b in zip(ours, theirs, strict=True)]
    return {"same": same, "different_goals": len(np.unique(np.asarray(theirs[0]), axis=0))}


def main(names):
    found = {}
    kinds = {"draws": lambda of: draws(), "by-layer": by_layer, "row": row, "images": pictures}
    for name in names:
        kind, _, of = name.partition(":")
        found[name] = kinds[kind](of) if kind in kinds else case(name)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
