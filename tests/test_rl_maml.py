"""MAML on rollouts, against a twin in NumPy with finite differences.

The policy is N(Wᵀo + b, σ²), so that losses and their gradients are short formulas; rollouts are recorded once and held fixed.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from metaprior import matrix
from metaprior.families import Delta
from metaprior.inference.base import mean_loss
from metaprior.meta import meta_learner, task_keys, trainer
from metaprior.rl import rows
from metaprior.rl.likelihood import Steps, policy_likelihood
from metaprior.rl.navigation import navigation
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.setup import rl_setup
from metaprior.rl.tasks import rl_tasks
from metaprior.rl.trpo import maml_trpo, readapted, record
from metaprior.types import Prior

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(3)
HORIZON, COUNT, RATE = 4, 5, 0.3
ENVIRONMENT = navigation(horizon=HORIZON)
POLICY = gaussian_policy(2, 2, hidden=())
LIKELIHOOD = policy_likelihood(ENVIRONMENT, POLICY)
TASKS = rl_tasks(ENVIRONMENT, rollouts=COUNT, queries=COUNT)
START = jax.tree.map(lambda leaf: leaf + 0.1, POLICY.init(KEY))
FLAT, unravel = ravel_pytree(START)
FLAT = np.asarray(FLAT)
PRIOR, EPISODE = Prior(Delta(START)), TASKS.sample(KEY)


class Twin:
    """A batch of steps in NumPy; weights are [W row by row | b | log σ], as JAX flattens them."""

    def __init__(self, batch):
        self.o, self.a, self.w = (np.asarray(x) for x in (batch.observations, batch.actions, batch.weights))
        self.counts = np.asarray(batch.counted) > 0  # a trajectory may have reached its goal

    def moments(self, theta):
        return self.o @ theta[:4].reshape(2, 2) + theta[4:6], theta[6:8]

    def log_pi(self, theta):
        mean, log_std = self.moments(theta)
        return -(0.5 * ((self.a - mean) / np.exp(log_std)) ** 2 + log_std + 0.5 * np.log(2 * np.pi)).sum(axis=1)

    def loss(self, theta):
        return -(self.log_pi(theta) * self.w).mean()

    def slope(self, theta):
        mean, log_std = self.moments(theta)
        pull = (self.a - mean) / np.exp(2 * log_std) * self.w[:, None]
        width = (((self.a - mean) / np.exp(log_std)) ** 2 - 1) * self.w[:, None]
        return -np.concatenate([(self.o.T @ pull).ravel(), pull.sum(axis=0), width.sum(axis=0)]) / len(self.w)

    def gain(self, before, after):
        return (np.exp(self.log_pi(after) - self.log_pi(before)) * self.w).mean()

    def kl(self, before, after):
        (m, s), (n, t) = self.moments(before), self.moments(after)
        return (t - s + (np.exp(2 * s) + (m - n) ** 2) / (2 * np.exp(2 * t)) - 0.5).sum(axis=1)[self.counts].mean()

    def fisher(self, theta):
        """Of the linear policy: E φφᵀ/σ² for each number of the action, and 2 for its log σ."""
        phi = np.concatenate([self.o, np.ones((len(self.o), 1))], axis=1)[self.counts]
        moment, found = phi.T @ phi / len(phi), np.zeros((8, 8))
        for action in range(2):
            at = [action, 2 + action, 4 + action]
            found[np.ix_(at, at)] = moment * np.exp(-2 * theta[6 + action])
        found[6:, 6:] = 2 * np.eye(2)
        return found


def adapted(theta, support):
    for twin in support:
        theta = theta - RATE * twin.slope(theta)
    return theta


def differences(function, theta, width=1e-5):
    return np.stack(
        [(function(theta + row) - function(theta - row)) / (2 * width) for row in width * np.eye(len(theta))]
    )


def row(name, steps, **changes):
    return rows.get(name, rate=RATE, steps=(steps, 0), **changes).method


@cache
def lived(steps):
    """What one task lives through with so many inner steps, by plain calls of `observe`, and the learners' gradients there."""

    @jax.jit
    def program(prior, episode):
        point, support = prior.dist.mean, []
        key_infer, key_query = jax.random.split(KEY)
        for key in jax.random.split(jax.random.split(jax.random.split(key_infer, 3)[0])[1], steps):
            support.append(LIKELIHOOD.observe(jax.random.split(key, 3)[2], point, episode.support))
            slope = jax.grad(lambda p: mean_loss(LIKELIHOOD, p, support[-1]))(point)
            point = jax.tree.map(lambda p, g: p - RATE * g, point, slope)
        query = LIKELIHOOD.observe(key_query, point, episode.query)
        found = {
            name: ravel_pytree(meta_learner(row(name, steps), LIKELIHOOD).gradient(KEY, prior, (), episode)[0])[0]
            for name in ("maml", "fomaml")
        }
        return support, query, found, record(row("maml", steps), LIKELIHOOD, KEY, prior, episode)

    support, query, found, recorded = program(PRIOR, EPISODE)
    return [Twin(batch) for batch in support], Twin(query), found, recorded


@pytest.mark.parametrize("steps", [1, 2])
def test_second_order_is_the_derivative_of_the_recorded_surrogate(steps):
    """Finite differences of −loss(query; θ adapted to the support) with all rollouts held: no gradient through the world."""
    support, query, found, _ = lived(steps)
    objective = lambda theta: -HORIZON * COUNT * query.loss(adapted(theta, support))
    np.testing.assert_allclose(found["maml"], differences(objective, FLAT), rtol=1e-6, atol=1e-8)
    first_order = -HORIZON * COUNT * query.slope(adapted(FLAT, support))
    np.testing.assert_allclose(found["fomaml"], first_order, rtol=1e-9)
    assert np.abs(found["maml"] - found["fomaml"]).max() > 0.05 * np.abs(first_order).max()  # there is a second order


@pytest.mark.parametrize("steps", [1, 2])
def test_recorded_experience_is_that_of_maml(steps):
    """The same rollouts, in the same keys: the derivative of what is replayed is the meta-gradient of MAML with Adam."""
    support, query, found, recorded = lived(steps)
    for index, twin in enumerate(support):
        np.testing.assert_allclose(recorded.support.observations[index], twin.o, rtol=1e-9)
    np.testing.assert_allclose(recorded.query.actions, query.a, rtol=1e-9)

    @jax.jit
    def replayed(prior):
        again = lambda prior: readapted(row("maml", steps), LIKELIHOOD, prior, recorded.support)
        return again(prior), jax.grad(lambda prior: mean_loss(LIKELIHOOD, again(prior), recorded.query))(prior)

    point, slope = replayed(PRIOR)
    np.testing.assert_allclose(ravel_pytree(point)[0], adapted(FLAT, support), rtol=1e-9)
    np.testing.assert_allclose(-HORIZON * COUNT * ravel_pytree(slope)[0], found["maml"], rtol=1e-7, atol=1e-10)


def test_log_surrogates_leave_out_where_rollouts_come_from_and_ratios_do_not():
    """A bandit a ~ N(b, σ²) with reward −(a − g)²: d/db E[∇_b E r] = −2; logarithms alone give −E r/σ²."""
    count, std, goal, place = 200_000, 0.5, 0.7, 0.2
    policy = gaussian_policy(1, 1, hidden=(), std=std)
    params = ravel_pytree(policy.init(KEY))[1](jnp.array([0.0, place, np.log(std)]))
    actions = place + std * np.random.default_rng(0).normal(size=(count, 1))
    rewards, ones = -np.square(actions[:, 0] - goal), np.ones(count)
    acted = -0.5 * np.square((actions[:, 0] - place) / std) - np.log(std) - 0.5 * np.log(2 * np.pi)
    batch = Steps(*(jnp.asarray(x) for x in (np.zeros((count, 1)), actions, rewards, ones, acted)))

    def bend(surrogate):
        likelihood = policy_likelihood(ENVIRONMENT, policy, surrogate=surrogate)
        value = lambda b: likelihood.log_prob(params.__class__(_shifted(params.mean, b), params.log_std), batch) / count
        slope = jax.grad(value)
        return jax.jit(lambda: (slope(0.0), jax.grad(slope)(0.0)))()

    (slope, ratio), (same, logs) = bend("ratio"), bend("log")
    np.testing.assert_allclose(slope, same, rtol=1e-9)
    np.testing.assert_allclose(slope, -2 * (place - goal), rtol=0.02)
    np.testing.assert_allclose(ratio, -2, rtol=0.05)
    np.testing.assert_allclose(logs, ((place - goal) ** 2 + std**2) / std**2, rtol=0.02)


def _shifted(network, by):
    flat, back = ravel_pytree(network)
    return back(flat + jnp.array([0.0, 1.0]) * by)


# The trust region of the meta-step


@cache
def meta_step():
    """One step on three tasks, the experience it rests on as twins, and the step on all but a task that is not finite."""
    learner = maml_trpo(row("maml", 1), LIKELIHOOD, max_kl=0.02, solver_steps=30, damping=0.0)

    @jax.jit
    def program(state):
        keys = task_keys(KEY, 3)
        episodes = jax.vmap(TASKS.sample)(task_keys(KEY, 3))
        experience = jax.vmap(lambda k, e: record(row("maml", 1), LIKELIHOOD, k, state.prior, e))(keys, episodes)
        more = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1] * jnp.nan]), episodes)
        return learner.step(state, keys, episodes), learner.step(state, task_keys(KEY, 4), more), experience

    (after, info), (spoilt, told), experience = program(learner.init(KEY, START))
    tasks = [jax.tree.map(lambda leaf, i=i: leaf[i], experience) for i in range(3)]
    pairs = [([Twin(jax.tree.map(lambda leaf: leaf[0], task.support))], Twin(task.query)) for task in tasks]
    return pairs, np.asarray(ravel_pytree(after.prior)[0]), info, np.asarray(ravel_pytree(spoilt.prior)[0]), told


def test_a_meta_step_gains_on_adapted_policies_within_its_bound():
    pairs, after, info, _, _ = meta_step()
    ends = [(adapted(FLAT, support), adapted(after, support), query) for support, query in pairs]
    gain = np.mean([query.gain(old, new) - query.gain(old, old) for old, new, query in ends])
    far = np.mean([query.kl(old, new) for old, new, query in ends])
    assert gain > 0 and 0.002 < far <= 0.02
    np.testing.assert_allclose(info.step_norm, np.linalg.norm(after - FLAT), rtol=1e-9)
    np.testing.assert_allclose(info.query_nll, np.mean([query.loss(old) for old, _, query in ends]), rtol=1e-7)
    assert info.finite and info.left_out == 0


def test_a_meta_step_goes_along_the_natural_gradient_of_adapted_policies():
    """(old − new) ∝ F⁻¹g with F = mean of Jᵀ F_τ J, J the derivative of adaptation, by finite differences."""
    pairs, after, *_ = meta_step()
    fisher, slope = np.zeros((8, 8)), np.zeros(8)
    for support, query in pairs:
        jacobian = differences(lambda theta, support=support: adapted(theta, support), FLAT).T
        point = adapted(FLAT, support)
        fisher += jacobian.T @ query.fisher(point) @ jacobian / 3
        slope += jacobian.T @ query.slope(point) / 3
    natural, moved = np.linalg.solve(fisher, slope), FLAT - after
    np.testing.assert_allclose(moved / np.linalg.norm(moved), natural / np.linalg.norm(natural), atol=1e-5)
    cut = np.linalg.norm(moved) / (np.linalg.norm(natural) * np.sqrt(2 * 0.02 / (natural @ slope)))
    tries = np.log(cut) / np.log(0.8)
    assert abs(tries - round(tries)) < 1e-3 and round(tries) >= 0


def test_a_task_that_is_not_finite_is_left_out_of_a_meta_step():
    _, after, _, spoilt, told = meta_step()
    np.testing.assert_allclose(spoilt, after, rtol=1e-7)
    assert told.left_out == 1 and told.finite


@pytest.mark.slow
def test_training_with_a_trust_region_goes_on_as_any_other():
    setup = rl_setup(
        ENVIRONMENT, rows.get("maml-trpo", rate=RATE), policy=POLICY, rollouts=COUNT, queries=COUNT, check=False
    )
    train = jax.jit(trainer(setup.learner, setup.tasks.sample, 2), static_argnums=1)
    start = setup.init(KEY)
    whole, infos = train(start, 2)
    parts = train(train(start, 1)[0], 1)[0]
    for a, b in zip(jax.tree.leaves(whole.prior), jax.tree.leaves(parts.prior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert infos.finite.all() and whole.iteration == 2 and (infos.step_norm > 0).any()


def test_other_rows_have_no_such_meta_step():
    for name in ("gem-bml+", "pretrain"):
        with pytest.raises(ValueError, match="use it with the rows maml and fomaml"):
            maml_trpo(rows.get(name).method, LIKELIHOOD)
    with pytest.raises(ValueError, match="shares no optimiser between tasks"):
        maml_trpo(row("maml", 1, clip=10.0), LIKELIHOOD)
    with pytest.raises(ValueError, match="no trust region: use policy_likelihood"):
        maml_trpo(row("maml", 1), LIKELIHOOD._replace(region=None))
    with pytest.raises(ValueError, match="KL bound of a step must be above zero"):
        maml_trpo(row("maml", 1), LIKELIHOOD, max_kl=-1.0)


def test_matrix_of_maml_is_what_the_trust_region_replays():
    """`record` mirrors how `matrix.score` spends its keys: were that changed, this would tell."""
    cell = meta_learner(row("maml", 2), LIKELIHOOD).cell
    q1 = jax.jit(lambda p, e: matrix.two_posteriors(cell, jax.random.split(KEY)[0], p, e)[0].q1)(PRIOR, EPISODE)
    support, *_ = lived(2)
    np.testing.assert_allclose(ravel_pytree(q1.mean)[0], adapted(FLAT, support), rtol=1e-9)
