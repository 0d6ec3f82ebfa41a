"""Returns, baseline and advantages against plain loops and least squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.rl import advantages as ours
from metaprior.rl.navigation import navigation
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rollouts import Rollouts, rollouts

pytestmark = pytest.mark.usefixtures("quick_compile")

HORIZON = 12


def random_rollouts(seed=0, count=5):
    """Trajectories of different lengths; one of them whole, one of a single step; observations beyond the baseline's cut-off."""
    rng = np.random.default_rng(seed)
    lengths = np.array([HORIZON, 1, 7, 4, 12])[:count]
    mask = (np.arange(HORIZON)[None, :] < lengths[:, None]).astype(float)
    observations = 8 * rng.normal(size=(count, HORIZON, 2))
    rewards = rng.normal(size=(count, HORIZON)) * mask
    return Rollouts(*map(jnp.asarray, (observations, rng.normal(size=(count, HORIZON, 2)), rewards, mask)))


def steps_of(lived):
    """Per trajectory, the steps that count: observations, rewards, features."""
    for observations, rewards, mask in zip(lived.observations, lived.rewards, lived.mask, strict=True):
        length = int(mask.sum())
        o = np.clip(np.asarray(observations)[:length], -10, 10)
        t = np.arange(length) / 100.0
        rows = [np.concatenate([o[i], o[i] ** 2, [t[i], t[i] ** 2, t[i] ** 3, 1.0]]) for i in range(length)]
        yield np.asarray(rewards)[:length], np.stack(rows)


def loop_returns(rewards, discount):
    found, following = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discount * following
        found[t] = following
    return found


def loop_advantages(lived, discount, trace, ridge):
    """The definitions, one step at a time, and numpy's least squares with the ridge as further rows."""
    paths = list(steps_of(lived))
    rows = np.concatenate([phi for _, phi in paths])
    targets = np.concatenate([loop_returns(rewards, discount) for rewards, _ in paths])
    size = rows.shape[1]
    padded = np.concatenate([rows, np.sqrt(ridge) * np.eye(size)]), np.concatenate([targets, np.zeros(size)])
    weights = np.linalg.lstsq(*padded, rcond=None)[0]
    found = []
    for rewards, phi in paths:
        values = [*(phi @ weights), 0.0]
        advantage, path = 0.0, []
        for t in reversed(range(len(rewards))):
            advantage = rewards[t] + discount * values[t + 1] - values[t] + discount * trace * advantage
            path.append(advantage)
        found.append(np.array(path[::-1]))
    everything = np.concatenate(found)
    return weights, [(path - everything.mean()) / (everything.std() + 1e-8) for path in found]


@pytest.mark.parametrize("trace", [1.0, 0.9])
def test_advantages_are_those_of_plain_loops(trace):
    lived = random_rollouts()
    weights, reference = loop_advantages(lived, 0.95, trace, 1e-5)

    @jax.jit
    def both(lived):
        fitted = ours.fit(ours.features(lived.observations), ours.discounted(lived.rewards, 0.95), lived.mask, 1e-5)
        return fitted, ours.advantages(lived, discount=0.95, trace=trace)

    fitted, found = map(np.asarray, both(lived))
    np.testing.assert_allclose(fitted, weights, rtol=1e-5, atol=1e-8)
    for row, path in zip(found, reference, strict=True):
        np.testing.assert_allclose(row[: len(path)], path, rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(row[len(path) :], 0.0)


def test_advantages_have_mean_zero_and_std_one_over_the_steps_that_count():
    lived = random_rollouts(1)
    counted = np.asarray(jax.jit(ours.advantages)(lived))[np.asarray(lived.mask) > 0]
    np.testing.assert_allclose([counted.mean(), counted.std()], [0.0, 1.0], atol=1e-7)


def test_what_comes_after_the_end_does_not_count():
    lived = random_rollouts(2)
    wild = lived._replace(observations=jnp.where(lived.mask[..., None] > 0, lived.observations, 1e3))
    found = jax.jit(jax.vmap(ours.advantages))(jax.tree.map(lambda *pair: jnp.stack(pair), wild, lived))
    np.testing.assert_allclose(*found, atol=1e-12)


def test_equal_rewards_at_equal_observations_give_no_advantage():
    """One step each, all alike: the baseline explains everything, and nothing is divided by zero."""
    lived = Rollouts(jnp.ones((4, 1, 2)), jnp.ones((4, 1, 2)), jnp.full((4, 1), 3.0), jnp.ones((4, 1)))
    found = jax.jit(ours.advantages)(lived)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, 0.0, atol=1e-3)


@pytest.mark.parametrize("std", [1.0, 0.01])
def test_single_precision_is_enough(std):
    """Also where a policy is nearly certain, so that observations are nearly functions of time."""
    environment, policy = navigation(), gaussian_policy(2, 2, std=std)

    @jax.jit
    def both(key):
        lived = rollouts(key, environment, policy, policy.init(key), environment.draw(key), 20)
        return ours.advantages(Rollouts(*(leaf.astype(jnp.float32) for leaf in lived))), ours.advantages(lived)

    found, reference = both(jax.random.key(3))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(np.abs(found - reference).mean(), 0.0, atol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_that_runs_straight_away_has_finite_advantages(seed):
    """Position is then time, feature by feature: in single precision the normal equations are singular."""
    rng = np.random.default_rng(seed)
    time = 0.1 * np.arange(100)
    observations = np.broadcast_to(time[None, :, None] * rng.choice([-1, 1], size=2), (40, 100, 2))
    rewards = -np.linalg.norm(observations - rng.uniform(-0.5, 0.5, 2), axis=2)
    arrays = (observations, np.zeros((40, 100, 2)), rewards + 0.1 * rng.normal(size=(40, 100)), np.ones((40, 100)))
    single = Rollouts(*(jnp.asarray(leaf, jnp.float32) for leaf in arrays))
    found = np.asarray(jax.jit(ours.advantages)(single))
    _, reference = loop_advantages(Rollouts(*map(jnp.asarray, arrays)), 0.99, 1.0, 1e-5)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.mean(), 0, atol=1e-4)
    assert np.corrcoef(found.ravel(), np.concatenate(reference))[0, 1] > 0.9
