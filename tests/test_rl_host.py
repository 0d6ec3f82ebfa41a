"""The host loop against rollouts in JAX; environments of Gymnasium's; what is missing or broken, in words."""

import re
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.rl.cheetah_host import cheetah_host
from metaprior.rl.cheetah_mjx import cheetah_mjx
from metaprior.rl.environment import Environment
from metaprior.rl.gymnasium_env import from_gymnasium
from metaprior.rl.host import HostEnvironment, host_rollouts
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rollouts import rollouts

POLICY = gaussian_policy(2, 2, hidden=(8,))


def walk(horizon: int = 12) -> Environment:
    """A point pulled towards its goal, from a random place; it ends beyond the unit circle."""

    def step(state, action, task):
        after = state + 0.3 * jnp.clip(action, -1.0, 1.0) + 0.1 * (task - state)
        return after, after, -jnp.abs(after - task).sum(), jnp.square(after).sum() > 1

    def reset(key, task):
        start = 0.1 * jax.random.normal(key, task.shape, task.dtype)
        return start, start

    return Environment("walk", "", 2, 2, horizon, lambda key: jax.random.normal(key, (2,)), reset, step)


def on_host(environment: Environment) -> HostEnvironment:
    """The same environment, many at once and by NumPy arrays."""
    arrays = lambda tree: jax.tree.map(np.asarray, tree)
    return HostEnvironment(
        *environment[:6],
        reset=lambda keys, tasks: arrays(jax.vmap(environment.reset)(keys, tasks)),
        step=lambda *arguments: arrays(jax.jit(jax.vmap(environment.step))(*arguments)),
    )


def several(environment: Environment | HostEnvironment, tasks: int):
    """Keys, weights and goals of so many tasks."""
    keys = jax.random.split(jax.random.key(7), tasks)
    return keys, jax.vmap(POLICY.init)(keys), jax.vmap(environment.draw)(keys)


def test_host_loop_equals_rollouts_in_jax():
    """Same keys, same draws: every number of every step that counts, and who had ended when."""
    environment = walk()
    keys, params, goals = several(environment, 3)
    expected = jax.vmap(lambda key, params, goal: rollouts(key, environment, POLICY, params, goal, 4))(
        keys, params, goals
    )
    lived = host_rollouts(keys, on_host(environment), POLICY, params, goals, 4)
    assert lived.observations.shape == (3, 4, 12, 2)
    np.testing.assert_array_equal(lived.mask, expected.mask)
    assert 0 < lived.mask.mean() < 1  # some have ended early, some have not
    np.testing.assert_allclose(lived.rewards, expected.rewards, atol=1e-12)
    counted = np.asarray(lived.mask, bool)
    np.testing.assert_allclose(lived.observations[counted], expected.observations[counted], atol=1e-12)
    np.testing.assert_allclose(lived.actions[counted], expected.actions[counted], atol=1e-12)


def test_tasks_do_not_change_each_other():
    environment = on_host(walk())
    keys, params, goals = several(environment, 3)
    together = host_rollouts(keys, environment, POLICY, params, goals, 2)
    alone = jax.tree.map(lambda leaf: leaf[2:], (keys, params, goals))
    last = host_rollouts(alone[0], environment, POLICY, alone[1], alone[2], 2)
    for whole, part in zip(together, last, strict=True):
        np.testing.assert_allclose(whole[2:], part, atol=1e-12)


# What is broken is named


def spoilt(at: int, *, row: int = 3, observation: float | None = None, reward: float | None = None) -> HostEnvironment:
    """An environment that gives one wrong number after its `at`-th step (0: the reset), in one of its trajectories."""
    sound = on_host(walk()._replace(step=lambda state, action, task: (state, state, state[0], jnp.array(False))))
    steps = [0]

    def spoil(state, seen, *rest):
        if steps[0] == at and observation is not None:
            seen = seen.copy()
            seen[row, 1] = observation
        if steps[0] == at and reward is not None:
            rest = (rest[0].copy(), *rest[1:])
            rest[0][row] = reward
        steps[0] += 1
        return (state, seen, *rest)

    return sound._replace(
        reset=lambda *arguments: spoil(*sound.reset(*arguments)), step=lambda *arguments: spoil(*sound.step(*arguments))
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (spoilt(0, observation=np.nan), r"walk, task 1, trajectory 1, step 0: the observation is \[.*nan\]"),
        (spoilt(5, observation=np.inf), r"walk, task 1, trajectory 1, step 5: the observation is \[.*inf\]"),
        (
            spoilt(9, reward=np.nan),
            "walk, task 1, trajectory 1, step 9: the reward is nan, but all numbers must be finite",
        ),
    ],
    ids=["reset", "observation", "reward"],
)
def test_numbers_that_are_not_finite_are_named(environment, message):
    keys, params, goals = several(environment, 3)
    with pytest.raises(ValueError, match=message):
        host_rollouts(keys, environment, POLICY, params, goals, 2)


def test_a_policy_that_has_diverged_is_named():
    environment = on_host(walk())
    keys, params, goals = several(environment, 3)
    params = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), params)
    with pytest.raises(
        ValueError, match=r"task 2, trajectory 0, step 1: the policy's action is \[nan, nan\]: its weights"
    ):
        host_rollouts(keys, environment, POLICY, params, goals, 2)


def test_an_environment_that_ends_at_once_is_named():
    sound = walk()
    step = lambda state, action, task: (state, state, state[0], task[0] > 0)
    keys, params, _ = several(sound, 3)
    goals = jnp.array([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    with pytest.raises(ValueError, match="walk, task 1, step 1: all 2 trajectories ended with their first step"):
        host_rollouts(keys, on_host(sound._replace(step=step)), POLICY, params, goals, 2)


def test_another_observation_size_is_named():
    environment = on_host(walk())._replace(observation_size=3)
    keys, params, goals = several(environment, 3)
    with pytest.raises(
        ValueError, match=r"walk, task 0, trajectory 0, step 0: .* 3 numbers, got an array of shape \(2,\)"
    ):
        host_rollouts(keys, environment, POLICY, params, goals, 2)


def test_no_trajectories_are_refused():
    environment = on_host(walk())
    keys, params, goals = several(environment, 1)
    with pytest.raises(ValueError, match="count and horizon must be at least 1, got 0 and 12"):
        host_rollouts(keys, environment, POLICY, params, goals, 0)


# What is missing is named


@pytest.mark.parametrize(
    ("make", "module", "called"),
    [
        (cheetah_host, "mujoco.batch", "half-cheetah needs MuJoCo 4"),
        (cheetah_mjx, "mujoco.mjx", "half-cheetah on accelerators needs MuJoCo's MJX"),
        (
            lambda: from_gymnasium(dict, draw=len, set_task=print, horizon=1),
            "gymnasium",
            "environment .* needs Gymnasium",
        ),
    ],
    ids=["host", "mjx", "gymnasium"],
)
def test_a_missing_extra_is_said_in_words(make, module, called, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it could not be found
    with pytest.raises(ModuleNotFoundError, match=called + re.escape(": pip install 'metaprior[rl]'")):
        make()


@pytest.mark.parametrize("make", [cheetah_host, cheetah_mjx])
def test_an_unknown_goal_is_refused(make):
    with pytest.raises(ValueError, match="unknown goal 'velocty': did you mean velocity"):
        make("velocty")


# Environments of Gymnasium's


@pytest.fixture
def gymnasium():
    return pytest.importorskip("gymnasium", reason="comes with pip install 'metaprior[rl]'")


@pytest.fixture
def slide(gymnasium):
    """Position on a line, moved by speed · action, actions in [0, 4]; ends beyond `limit`, and then must not be stepped."""

    class Slide(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), float)
        action_space = gymnasium.spaces.Box(np.array([0.0, 0.0]), np.array([4.0, 4.0]), dtype=float)
        speed, limit, over = 0.0, np.inf, True

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.over, self.position = False, self.np_random.normal(size=2)
            return self.position, {}

        def step(self, action):
            assert not self.over
            self.position = self.position + self.speed * action
            self.over = bool(np.abs(self.position).max() > self.limit)
            return self.position, action[0], self.over, False, {}

    return Slide


def slides(slide, **options) -> HostEnvironment:
    def set_task(env, task):
        env.speed, env.limit = float(task["speed"]), float(task["limit"])

    draw = lambda key: {"speed": jax.random.uniform(key), "limit": jnp.full((), 5.0)}
    return from_gymnasium(slide, draw=draw, set_task=set_task, **{"horizon": 10, **options})


def test_gymnasium_environment_by_the_host_loop(slide):
    """What was observed follows from what was done; actions of [−1, 1] became [0, 4]; what had ended stood still."""
    environment = slides(slide)
    assert (environment.name, environment.observation_size, environment.action_size) == ("Slide", 2, 2)
    keys, params, goals = several(environment, 3)
    lived = jax.tree.map(np.asarray, host_rollouts(keys, environment, POLICY, params, goals, 4))
    done = 2 + 2 * np.clip(lived.actions, -1, 1)
    both = (lived.mask[..., 1:] > 0)[..., None]
    moved = lived.observations[:, :, :-1] + np.asarray(goals["speed"])[:, None, None, None] * done[:, :, :-1]
    np.testing.assert_allclose(np.where(both, lived.observations[:, :, 1:] - moved, 0), 0, atol=1e-12)
    np.testing.assert_allclose(lived.rewards, done[..., 0] * lived.mask, atol=1e-12)
    assert (np.abs(lived.observations)[lived.mask > 0] <= 5).all() and 0 < lived.mask.mean() < 1
    again = host_rollouts(keys, environment, POLICY, params, goals, 4)
    for first, second in zip(lived, again, strict=True):
        np.testing.assert_array_equal(first, second)


def test_gymnasium_spaces_that_cannot_be_used_are_refused(gymnasium, slide):
    spaces = gymnasium.spaces
    for field, space, message in (
        ("action_space", spaces.Discrete(2), r"Slide: the action must be a vector \(Box\), got Discrete\(2\): wrap"),
        ("observation_space", spaces.Discrete(2), r"Slide: the observation must be a vector \(Box\)"),
        ("action_space", spaces.Box(-np.inf, np.inf, (2,)), "Slide: actions need finite bounds"),
    ):
        with pytest.raises(ValueError, match=message):
            slides(type("Slide", (slide,), {field: space}))
    with pytest.raises(
        ValueError, match=r"Slide: pass horizon=..., the most steps of a trajectory, at least 1; got None"
    ):
        slides(slide, horizon=None)


def test_gymnasium_observation_of_another_size_is_named(slide):
    class Grows(slide):
        def step(self, action):
            seen, *rest = super().step(action)
            return (seen[:1] if self.speed > 0.5 else seen), *rest

    environment = slides(Grows)
    keys, params, _ = several(environment, 3)
    goals = {"speed": jnp.array([0.1, 0.2, 0.9]), "limit": jnp.full((3,), 50.0)}
    with pytest.raises(
        ValueError, match=r"Grows, task 2, trajectory 0, step 1: .* 2 numbers, got an array of shape \(1,\)"
    ):
        host_rollouts(keys, environment, POLICY, params, goals, 2)


def test_the_documented_example_runs(gymnasium):
    del gymnasium
    [code] = re.findall(r"```python\n(.*?)```", from_gymnasium.__doc__ or "", re.DOTALL)
    names = {}
    exec(textwrap.dedent(code), names)
    pendulums = names["pendulums"]
    policy = gaussian_policy(3, 1, hidden=(4,))
    keys = jax.random.split(jax.random.key(0), 2)
    short = pendulums._replace(horizon=3)
    lived = host_rollouts(keys, short, policy, jax.vmap(policy.init)(keys), jax.vmap(short.draw)(keys), 2)
    assert (pendulums.name, pendulums.horizon) == ("Pendulum-v1", 200) and lived.mask.all()
    np.testing.assert_allclose(jnp.square(lived.observations[..., :2]).sum(-1), 1, atol=1e-6)  # cosine and sine
