"""Adam on one vector is Adam; meta-optimisers treat the parts of a prior apart."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaprior.families import Delta, MeanField
from metaprior.optimizers import flat_adam, longer_steps, meta_optimizer
from metaprior.types import Prior

PARAMS = {"a": jnp.arange(6.0).reshape(2, 3), "b": [jnp.ones(4), jnp.zeros(())]}


def moved(optimizer, params, steps=4):
    state = optimizer.init(params)
    for index in range(steps):
        gradient = jax.tree.map(lambda p, i=index: jnp.sin(p + i) * 10.0 ** (-i), params)
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("rate", [0.1, optax.cosine_decay_schedule(0.1, 3)])
def test_flat_adam_is_adam(rate):
    for a, b in zip(*(jax.tree.leaves(moved(make(rate), PARAMS)) for make in (flat_adam, optax.adam)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dist", [Delta(PARAMS), MeanField(PARAMS, jax.tree.map(lambda p: p - 1.0, PARAMS))])
def test_parts_of_a_prior_as_vectors_and_as_they_are(dist):
    """Also where a part is empty: a point has no widths, and this prior no rates."""
    prior = Prior(dist)
    vectors, leaves = (moved(meta_optimizer(0.01, iterations=5, make=make), prior) for make in (flat_adam, optax.adam))
    for a, b in zip(jax.tree.leaves(vectors), jax.tree.leaves(leaves), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


class Acting(NamedTuple):
    """Weights as a policy has them."""

    layer: jax.Array
    log_std: jax.Array


@pytest.mark.parametrize("make", [Delta, lambda weights: MeanField(weights, weights)])
def test_steps_of_a_weight_with_a_name_are_longer(make):
    """The width of actions, which is a weight like others; a posterior's own width of the same name stays what it is."""
    prior: Any = Prior(make(Acting(jnp.zeros(3), jnp.zeros(2))))
    ones, plain = jax.tree.map(jnp.ones_like, prior), meta_optimizer(0.02, warm_up=0)
    optimizer = optax.chain(plain, longer_steps("log_std", 10.0))
    found: list[Any] = [made.update(ones, made.init(prior), prior)[0] for made in (optimizer, plain)]
    longer, usual = found
    np.testing.assert_allclose(longer.dist.mean.log_std, -0.2, rtol=1e-6)
    changed = lambda updates: updates.dist._replace(mean=updates.dist.mean._replace(log_std=0.0))
    jax.tree.map(np.testing.assert_array_equal, changed(longer), changed(usual))


def test_widths_move_at_their_own_rate():
    """Adam's first step has the length of its rate: widths take half of it."""
    prior: Any = Prior(MeanField(PARAMS, PARAMS))
    optimizer = meta_optimizer(0.02, warm_up=0)
    updates: Any = optimizer.update(jax.tree.map(jnp.ones_like, prior), optimizer.init(prior), prior)[0]
    np.testing.assert_allclose(updates.dist.mean["a"], -0.02, rtol=1e-6)
    np.testing.assert_allclose(updates.dist.log_std["a"], -0.01, rtol=1e-6)
