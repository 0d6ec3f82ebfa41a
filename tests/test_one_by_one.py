"""Matrices one at a time: the numbers of a batch, no batch for a CPU's library, and programs that end on two processors."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.meta import trainer
from metaprior.one_by_one import one_by_one
from metaprior.rl import rows
from metaprior.rl.navigation import navigation
from metaprior.rl.setup import rl_setup

KEY = jax.random.key(0)


def root(matrix, shift):
    return jnp.linalg.cholesky(matrix @ matrix.T + shift * jnp.eye(matrix.shape[0]))


def ranks(function, *arguments) -> set[int]:
    """Axes of all that a CPU's library of decompositions is given, in the program of this function."""
    text = jax.jit(function).lower(*arguments).as_text()
    calls = re.findall(r"@lapack_\w+\(.*: \((.*)\) ->", text)
    assert calls
    return {len(shape.split("x")) - 1 for given in calls for shape in re.findall(r"tensor<([^>]*)>", given)}


@pytest.mark.parametrize("shared", [False, True], ids=["each its own", "one for all"])
def test_mapped_functions_are_those_of_a_batch(shared):
    """Mapped twice, with an argument of each and one of all; each matrix by NumPy beside it."""
    matrices, shift = (
        jax.random.normal(KEY, (2, 3, 4, 4)),
        jnp.array(2.0) if shared else jnp.arange(1.0, 7).reshape(2, 3),
    )
    axes = (0, None) if shared else (0, 0)
    twice = lambda function: jax.vmap(jax.vmap(function, in_axes=axes), in_axes=axes)
    found = jax.jit(twice(one_by_one(root)))(matrices, shift)
    shifts = np.broadcast_to(shift, (2, 3))
    for place in np.ndindex(2, 3):
        product = np.asarray(matrices[place] @ matrices[place].T) + shifts[place] * np.eye(4)
        np.testing.assert_allclose(found[place], np.linalg.cholesky(product), rtol=1e-12)


def test_a_cpu_is_given_one_matrix_at_a_time_and_an_accelerator_all(monkeypatch):
    given = jax.random.normal(KEY, (2, 3, 4, 4)), jnp.ones((2, 3))
    assert ranks(jax.vmap(jax.vmap(root)), *given) == {4}
    assert ranks(jax.vmap(jax.vmap(one_by_one(root))), *given) == {2}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert ranks(jax.vmap(jax.vmap(one_by_one(root))), *given) == {4}


@pytest.mark.parametrize("method", ["gem-bml+", "maml-trpo"])
def test_meta_iterations_of_agents_decompose_no_batches(method):
    setup = rl_setup(navigation(horizon=3), rows.get(method, meta_batch=3), rollouts=2, queries=2, check=False)
    learn = trainer(setup.learner, setup.tasks.sample, 3)
    assert ranks(lambda state: learn(state, 1), setup.init(KEY)) == {2}


BASELINES = """
import os
import jax
import jax.numpy as jnp

os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))  # XLA takes as many threads

from metaprior.rl.advantages import features, fit


def one(key):
    phi = features(jax.random.normal(key, (5, 40, 17)))
    return fit(phi, phi.sum(-1), jnp.ones((5, 40)))


@jax.jit
def run(key):
    return [jax.vmap(one)(jax.random.split(jax.random.fold_in(key, i), 60)) for i in range(4)]


for number in range(50):
    jax.block_until_ready(run(jax.random.key(number)))
print("ended")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be left out here")
def test_baselines_side_by_side_end_on_two_processors():
    """With jaxlib 0.10.2 and batches the first call never returns. Of half-cheetah's size, in a process that can be stopped."""
    done = subprocess.run([sys.executable, "-c", BASELINES], timeout=300, capture_output=True, text=True)
    assert done.stdout == "ended\n", done.stderr
