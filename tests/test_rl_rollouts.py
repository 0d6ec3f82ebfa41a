"""Rollouts: masks, keys, gradients. The world is a line: o' = o + a, so that what policies expect is known in closed form."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from metaprior.inference.base import mean_loss
from metaprior.meta import task_keys
from metaprior.rl.advantages import discounted
from metaprior.rl.environment import Environment
from metaprior.rl.likelihood import policy_likelihood, practice
from metaprior.rl.navigation import navigation
from metaprior.rl.policy import gaussian_policy, log_density
from metaprior.rl.rollouts import rollouts

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(0)
GOAL = jnp.array([0.4])
LINEAR = gaussian_policy(1, 1, hidden=())


def line(horizon, bound=np.inf, beyond=0.0):
    """From o = 1; the reward is −(o' − goal)², and a trajectory ends where |o'| exceeds `bound`; later rewards are `beyond`."""

    def step(state, action, task):
        after = state + action
        reward = jnp.where(jnp.abs(state[0]) > bound, beyond, -jnp.square(after - task).sum())
        return after, after, reward, jnp.abs(after[0]) > bound

    start = lambda key, task: (jnp.ones_like(task), jnp.ones_like(task))
    return Environment("line", "", 1, 1, horizon, lambda key: GOAL, start, step)


def weights():
    """A policy a ~ N(−.6 o + .3, .5²)."""
    flat = jnp.array([-0.6, 0.3, np.log(0.5)])
    return ravel_pytree(LINEAR.init(KEY))[1](flat)


def expected_return(params, horizon):
    """By the moments of o: o' = (1 + w) o + b + σ ε."""
    w, b, log_std = ravel_pytree(params)[0]
    mean, variance, total = 1.0, 0.0, 0.0
    for _ in range(horizon):
        mean, variance = (1 + w) * mean + b, (1 + w) ** 2 * variance + jnp.exp(2 * log_std)
        total -= (mean - GOAL[0]) ** 2 + variance
    return total


def assert_within_errors(draws, reference, most):
    """The mean of independent draws [N, W] within four standard errors, which are to be small beside what they judge."""
    errors = np.asarray(draws).std(axis=0) / len(draws) ** 0.5
    assert (errors < most * np.abs(reference).max()).all()
    np.testing.assert_array_less(np.abs(np.asarray(draws).mean(axis=0) - reference), 4 * errors)


def test_the_policy_gradient_is_that_of_the_expected_return():
    """Three steps: E Σ_t ∇log π(a_t|o_t) Σ_{s≥t} r_s = ∇J, with J in closed form."""
    horizon, count = 3, 20_000

    @jax.jit
    def gradients():
        lived = rollouts(KEY, line(horizon), LINEAR, weights(), GOAL, count)
        ahead = discounted(lived.rewards, 1.0)

        def surrogate(params, o, a, weight):
            return (log_density(LINEAR.apply(params, o), a) * weight).sum()

        one = lambda *path: ravel_pytree(jax.grad(surrogate)(weights(), *path))[0]
        return jax.vmap(one)(lived.observations, lived.actions, ahead)

    reference = ravel_pytree(jax.grad(expected_return)(weights(), horizon))[0]
    step = 1e-5 * np.eye(3)
    shifted = lambda change: expected_return(ravel_pytree(weights())[1](ravel_pytree(weights())[0] + change), horizon)
    differences = [(shifted(row) - shifted(-row)) / 2e-5 for row in step]
    np.testing.assert_allclose(reference, differences, rtol=1e-8)
    assert_within_errors(gradients(), np.asarray(reference), 0.05)


def test_the_likelihood_climbs_the_expected_return_in_units_of_its_spread():
    """One step: the baseline is a constant and advantages are (R − mean)/std, so −∇ mean loss = ∇J / std(R).

    With d = E a + o − goal, R = −(d + σε)² has variance 2σ⁴ + 4σ²d².
    """
    count, likelihood = 40_000, policy_likelihood(line(1), LINEAR)

    @jax.jit
    def gradients():
        batch = likelihood.observe(KEY, weights(), practice(GOAL, count))
        one = lambda p, *point: likelihood.log_prob(p, type(batch)(*(leaf[None] for leaf in point)))
        points = jax.vmap(lambda *point: ravel_pytree(jax.grad(one)(weights(), *point))[0])(*batch)
        return points, ravel_pytree(jax.grad(lambda p: mean_loss(likelihood, p, batch))(weights()))[0]

    points, whole = gradients()
    distance, std = 1 - 0.6 + 0.3 - 0.4, 0.5
    spread = np.sqrt(2 * std**4 + 4 * std**2 * distance**2)
    reference = np.asarray(ravel_pytree(jax.grad(expected_return)(weights(), 1))[0]) / spread
    assert_within_errors(points, reference, 0.05)
    np.testing.assert_allclose(-whole, points.mean(axis=0), rtol=1e-9)


def test_no_gradient_comes_through_the_environment():
    """The world depends on actions, actions on weights: only the score-function form of recorded rollouts is left."""
    environment, policy = navigation(horizon=8), gaussian_policy(2, 2, hidden=(8,))
    likelihood, params = policy_likelihood(environment, policy), policy.init(KEY)
    source = practice(environment.draw(KEY), 6)
    pathwise = jax.grad(lambda action: environment.step(jnp.zeros(2), action, source.task)[2])(jnp.full(2, 0.1))
    assert (np.abs(pathwise) > 0).all()  # there is something to leak

    @jax.jit
    def both(params):
        recorded = likelihood.observe(KEY, params, source)
        live = lambda p: mean_loss(likelihood, p, likelihood.observe(KEY, p, source))
        held = lambda p: mean_loss(likelihood, p, recorded)
        act = lambda p: rollouts(KEY, environment, policy, p, source.task, 6)
        changes = jax.jvp(lambda p: (act(p), likelihood.observe(KEY, p, source)), (params,), (params,))[1]
        return jax.grad(live)(params), jax.grad(held)(params), changes

    live, held, changes = both(params)
    jax.tree.map(np.testing.assert_array_equal, live, held)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(live)) > 1e-3
    for leaf in jax.tree.leaves(changes):
        np.testing.assert_array_equal(leaf, 0.0)


def test_masks_after_the_end():
    """Step by step in Python: the last step counts, nothing after it does, and what has ended stands still."""
    environment = line(10, bound=1.5, beyond=np.nan)
    lived = jax.jit(lambda: rollouts(KEY, environment, LINEAR, weights(), GOAL, 40))()
    lengths = set()
    for o, a, r, mask in zip(*map(np.asarray, lived), strict=True):
        position, alive = 1.0, True
        for t in range(10):
            np.testing.assert_allclose(o[t, 0], position, rtol=1e-12)
            assert mask[t] == alive
            after = position + a[t, 0]
            np.testing.assert_allclose(r[t], -((after - 0.4) ** 2) if alive else 0.0, rtol=1e-12)
            position = after if alive else position
            alive = alive and abs(position) <= 1.5
        lengths.add(int(mask.sum()))
    assert len(lengths) > 3 and min(lengths) < 10  # trajectories of many lengths were looked at


def test_the_mean_loss_is_over_steps_that_count():
    environment = line(10, bound=1.5, beyond=np.nan)
    likelihood, source = policy_likelihood(environment, LINEAR), practice(GOAL, 30)
    batch, lived = jax.jit(
        lambda key: (
            likelihood.observe(key, weights(), source),
            rollouts(key, environment, LINEAR, weights(), GOAL, 30),
        )
    )(KEY)
    counted = np.asarray(lived.mask).reshape(-1) > 0
    share = counted.mean()
    assert 0 < share < 1
    assert likelihood.size(source) == likelihood.size(batch) == 300
    mean, std = -0.6 * np.asarray(batch.observations) + 0.3, 0.5
    log_pi = (-0.5 * ((np.asarray(batch.actions) - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi))[:, 0]
    advantage = np.asarray(batch.weights) * share
    np.testing.assert_allclose([advantage[counted].mean(), advantage[counted].std()], [0, 1], atol=1e-7)
    reference = -(log_pi * advantage)[counted].mean()
    np.testing.assert_allclose(mean_loss(likelihood, weights(), batch), reference, rtol=1e-9)


def test_trajectories_do_not_depend_on_how_many_there_are():
    few, many = jax.jit(lambda key: [rollouts(key, line(5), LINEAR, weights(), GOAL, count) for count in (3, 7)])(KEY)
    for a, b in zip(few, many, strict=True):
        np.testing.assert_allclose(a, b[:3], rtol=1e-12)
    assert len(np.unique(many.actions[:, 0, 0])) == 7


@jax.jit
def lived_through(keys):
    """Rollouts of navigation tasks, with weights of their own for each."""
    environment, policy = navigation(horizon=20), gaussian_policy(2, 2, hidden=())

    def one(key):
        task = environment.draw(key)
        params = jax.tree.map(lambda leaf: leaf + task.position.sum(), weights_like(policy))
        return rollouts(key, environment, policy, params, task, 3)

    return jax.vmap(one)(keys)


def weights_like(policy):
    return jax.tree.map(
        lambda leaf: jnp.linspace(-1.0, 1.0, leaf.size).reshape(leaf.shape), jax.eval_shape(policy.init, KEY)
    )


def test_draws_do_not_depend_on_how_tasks_are_batched():
    keys = task_keys(KEY, 4)
    whole, halves = lived_through(keys), [lived_through(keys[:2]), lived_through(keys[2:])]
    for a, *parts in zip(whole, *halves, strict=True):
        np.testing.assert_allclose(a, np.concatenate(parts), rtol=1e-9, atol=1e-12)


SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_rl_rollouts import KEY, lived_through, task_keys
assert jax.device_count() == 4
spread = NamedSharding(Mesh(np.array(jax.devices()), ("task",)), PartitionSpec("task"))
keys = task_keys(KEY, 4)
together, apart = lived_through(jax.device_put(keys, jax.devices()[0])), lived_through(jax.device_put(keys, spread))
assert len(apart.rewards.sharding.device_set) == 4
for a, b in zip(together, apart):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
def test_draws_do_not_depend_on_sharding():
    """Over four forced devices, in a process of its own and in single precision."""
    root = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([os.path.join(root, "src"), os.path.join(root, "tests")])
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "PYTHONPATH": path
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
