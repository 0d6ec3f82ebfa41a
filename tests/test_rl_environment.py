"""Navigation against a plain simulation, policies against closed forms, and environments that are refused in words."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from metaprior.models import foreign
from metaprior.rl import policy as policies
from metaprior.rl.checks import fault, require_fits, require_sound
from metaprior.rl.environment import Environment
from metaprior.rl.navigation import Goal, navigation
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rollouts import Rollouts, rollouts, total_rewards

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(0)


def simulated(goal, actions, reward):
    """One trajectory in plain Python: total reward and number of steps."""
    x = y = total = 0.0
    for step, (dx, dy) in enumerate(actions):
        x += 0.1 * min(max(dx, -1.0), 1.0)
        y += 0.1 * min(max(dy, -1.0), 1.0)
        squared = (x - goal[0]) ** 2 + (y - goal[1]) ** 2
        total -= math.sqrt(squared) if reward == "distance" else squared
        if abs(x - goal[0]) < 0.01 and abs(y - goal[1]) < 0.01:
            return total, step + 1
    return total, len(actions)


def homing(goal, std):
    """A policy that moves straight to the goal, with noise."""

    def apply(params, x):
        mean = (goal[None] - x) / 0.1
        return jnp.concatenate([mean, jnp.full_like(mean, math.log(std))], axis=1)

    return foreign(lambda key: (), apply, "homing")


@pytest.mark.parametrize("reward", ["distance", "squared"])
def test_returns_of_navigation_are_those_of_a_plain_simulation(reward):
    """Also where trajectories end early: the policy knows the goal and mostly gets there."""
    environment = navigation(reward=reward)
    task = environment.draw(KEY)
    lived = jax.jit(lambda task: rollouts(KEY, environment, homing(task.position, 0.2), (), task, 20))(task)
    goal = np.asarray(task.position)
    reference = [simulated(goal, actions.tolist(), reward) for actions in np.asarray(lived.actions)]
    totals, lengths = np.array(reference).T
    np.testing.assert_allclose(total_rewards(lived), totals, atol=1e-6)
    np.testing.assert_array_equal(lived.mask.sum(axis=1), lengths)
    assert lengths.min() < 100


def test_goals_fill_the_square():
    goals = np.asarray(jax.jit(jax.vmap(navigation().draw))(jax.random.split(KEY, 1000)).position)
    assert (np.abs(goals) <= 0.5).all()
    assert (np.abs(goals).max(axis=0) > 0.49).all()


def test_log_densities_are_normal_and_actions_follow_them():
    rng = np.random.default_rng(0)
    mean, log_std, actions = rng.normal(size=(3, 7, 2))
    outputs = jnp.asarray(np.concatenate([mean, log_std], axis=1))
    reference = norm.logpdf(actions, mean, np.exp(log_std)).sum(axis=1)
    np.testing.assert_allclose(policies.log_density(outputs, jnp.asarray(actions)), reference, rtol=1e-12)
    noise = (actions - mean) / np.exp(log_std)
    np.testing.assert_allclose(policies.act(outputs, jnp.asarray(noise)), actions, rtol=1e-12)


def test_kl_between_policies_is_that_of_quadrature():
    rng = np.random.default_rng(1)
    (mean, log_std), (other_mean, other_log_std) = rng.normal(size=(2, 2, 5, 2))
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)  # exact: the log ratio is quadratic
    actions = mean[..., None] + np.exp(log_std)[..., None] * nodes
    ratio = norm.logpdf(actions, mean[..., None], np.exp(log_std)[..., None]) - norm.logpdf(
        actions, other_mean[..., None], np.exp(other_log_std)[..., None]
    )
    reference = (ratio @ (weights / weights.sum())).sum(axis=1)
    rows = lambda m, s: jnp.asarray(np.concatenate([m, s], axis=1))
    found = policies.kl(rows(mean, log_std), rows(other_mean, other_log_std))
    np.testing.assert_allclose(found, reference, rtol=1e-12)


def test_a_policy_begins_with_std_one_and_has_the_widths_of_its_log_std():
    policy = gaussian_policy(3, 2, hidden=(5,))
    params = policy.init(KEY)
    mean, log_std = policies.moments(policy.apply(params, jnp.ones((4, 3))))
    assert mean.shape == log_std.shape == (4, 2)
    np.testing.assert_array_equal(log_std, 0.0)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    assert sum(sizes) == 3 * 5 + 5 + 5 * 2 + 2 + 2
    with pytest.raises(ValueError, match="std of a policy"):
        gaussian_policy(3, 2, std=0.0)


def changed(**changes) -> Environment:
    return navigation(horizon=6)._replace(**changes)


BASE = navigation(horizon=6)


def nan_beyond(state, action, task):
    """NaN for the third task alone, from where the point has moved four times."""
    (position, count), observation, reward, done = counted(state, action, task)
    wrong = (count == 4) & (task.position[0] == 2)
    return (position, count), observation, jnp.where(wrong, jnp.nan, reward), done


def counted(state, action, task):
    position, observation, reward, done = BASE.step(state[0], action, task)
    return (position, state[1] + 1), observation, reward, done


def counted_reset(key, task):
    position, observation = BASE.reset(key, task)
    return (position, jnp.zeros((), int)), observation


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"horizon": 0}, "horizon must be a whole number"),
        ({"observation_size": 3}, r"observation of reset has shape \(2,\), and must have \(3,\)"),
        ({"step": lambda s, a, t: (s, s, a, jnp.array(False))}, r"the reward has shape \(2,\)"),
        ({"step": lambda s, a, t: (s, s, a.sum(), jnp.zeros(()))}, "done is float64, and must be true or false"),
        ({"step": lambda s, a, t: (s[:1], s, a.sum(), jnp.array(False))}, "step returns another state than reset"),
        ({"step": lambda s, a, t: (s, s, a.sum() if a[0] > 0 else 0.0, jnp.array(False))}, "cannot be compiled"),
        ({"step": lambda s, a, t: (s, s, a.sum(), jnp.array(True))}, "task 0, step 1: all 2 trajectories ended"),
        ({"step": lambda s, a, t: (s / 0, s, a.sum(), jnp.array(False))}, r"task 0, trajectory 0, step 2: .* is \[nan, nan\]"),
    ],
)  # fmt: skip
def test_unsound_environments_are_refused_in_words(changes, words):
    with pytest.raises(ValueError, match=words):
        require_sound(changed(**changes))


def test_sound_environments_pass():
    require_sound(navigation())


def test_a_fault_names_its_task_and_step():
    environment = changed(reset=counted_reset, step=nan_beyond)
    tasks = Goal(jnp.stack([jnp.arange(4.0), jnp.zeros(4)], axis=1))
    act = homing(jnp.array([9.0, 9.0]), 0.1)
    lived = jax.jit(jax.vmap(lambda task: rollouts(KEY, environment, act, (), task, 2)))(tasks)
    message = fault(environment, lived)
    assert message is not None and "task 2, trajectory 0, step 4: the reward is nan" in message
    healthy = Rollouts(*(leaf[jnp.array([0, 1, 3])] for leaf in lived))
    assert fault(environment, healthy) is None


def test_policies_that_do_not_fit_are_refused():
    environment = navigation()
    for sizes, words in (((3, 2), "does not take the observations"), ((2, 3), r"gives outputs of shape \(1, 6\)")):
        policy = gaussian_policy(*sizes)
        with pytest.raises(ValueError, match=words):
            require_fits(environment, policy, policy.init(KEY))
    policy = gaussian_policy(2, 2)
    require_fits(environment, policy, policy.init(KEY))
    with jax.enable_x64(False):  # as users have it: nothing may be asked for in double precision, which JAX warns of
        require_fits(environment, policy, policy.init(KEY))
