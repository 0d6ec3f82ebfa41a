"""Environments on the host inside compiled programs: the same trajectories as in the host loop, and learning from them."""

import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.rl.cheetah_cpu import cheetah_cpu
from metaprior.rl.cheetah_host import cheetah_host
from metaprior.rl.gymnasium_env import from_gymnasium
from metaprior.rl.host import HostEnvironment, host_rollouts
from metaprior.rl.hosted import hosted
from metaprior.rl.named import environment_called
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rollouts import rollouts

gymnasium = pytest.importorskip("gymnasium", reason="comes with pip install 'metaprior[rl]'")
pytest.importorskip("mujoco.batch", reason="comes with pip install 'metaprior[rl]'")

pytestmark = pytest.mark.usefixtures("quick_compile")

PAGE = Path(__file__).parents[1] / "docs" / "rl.md"


class Slide(gymnasium.Env):
    """Position on a line, moved by speed · action; ends beyond `limit`, and then must not be stepped."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), float)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), float)
    speed, limit, over = 0.0, 2.0, True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.over, self.position = False, self.np_random.normal(size=2)
        return self.position, {}

    def step(self, action):
        assert not self.over
        self.position = self.position + self.speed * action
        self.over = bool(np.abs(self.position).max() > self.limit)
        return self.position, -float(np.abs(self.position).sum()), self.over, False, {}


def set_speed(env, task):
    env.speed = float(task["speed"])


def slides(make: Callable[[], Slide] = Slide, horizon: int = 6) -> HostEnvironment:
    draw = lambda key: {"speed": jax.random.uniform(key, (), minval=0.1)}
    return from_gymnasium(make, draw=draw, set_task=set_speed, horizon=horizon)


def several(environment, policy, tasks):
    keys = jax.random.split(jax.random.key(7), tasks)
    return keys, jax.vmap(policy.init)(keys), jax.vmap(environment.draw)(keys)


def assert_same(found, expected, **tolerance):
    """Where trajectories count; what had ended is anything."""
    np.testing.assert_array_equal(found.mask, expected.mask)
    for ours, theirs in zip(found, expected, strict=True):
        mask = np.asarray(found.mask).reshape(found.mask.shape + (1,) * (ours.ndim - found.mask.ndim))
        np.testing.assert_allclose(ours * mask, theirs * mask, **tolerance)


def by_program(environment, policy, count):
    return jax.jit(jax.vmap(lambda key, params, task: rollouts(key, environment, policy, params, task, count)))


def test_hosted_environments_live_through_what_the_host_loop_does():
    policy, environment = gaussian_policy(2, 2, hidden=(4,)), slides()
    given = several(environment, policy, 3)
    expected = host_rollouts(given[0], environment, policy, *given[1:], 4)
    found = by_program(hosted(environment), policy, 4)(*given)
    assert_same(found, expected, rtol=1e-12, atol=1e-12)
    assert 0 < np.asarray(found.mask).mean() < 1


def test_batches_under_way_at_once_do_not_meet():
    """Two policies in the same tasks under the same keys, in one program: each as if it were alone."""
    policy, environment = gaussian_policy(2, 2, hidden=(4,)), slides()
    keys, first, tasks = several(environment, policy, 2)
    second = jax.tree.map(lambda leaf: 2 * leaf, first)
    lived = by_program(hosted(environment), policy, 3)
    both = jax.jit(lambda *policies: [lived(keys, params, tasks) for params in policies])(first, second)
    for found, params in zip(both, (first, second), strict=True):
        assert_same(found, host_rollouts(keys, environment, policy, params, tasks, 3), rtol=1e-12, atol=1e-12)


def test_environments_are_used_again():
    made = []
    environment = slides(lambda: made.append(Slide()) or made[-1])
    policy = gaussian_policy(2, 2, hidden=(4,))
    lived = by_program(hosted(environment), policy, 3)
    for _ in range(3):
        jax.block_until_ready(lived(*several(environment, policy, 2)))
    assert len(made) == 2 * 3


def test_another_observation_size_is_named():
    class Grows(Slide):
        def step(self, action):
            seen, *rest = super().step(action)
            return seen[:1], *rest

    policy, environment = gaussian_policy(2, 2, hidden=(4,)), slides(Grows)
    with pytest.raises(
        Exception, match=r"Grows, .* step 1: an observation is to have 2 numbers, got an array of shape"
    ):
        jax.block_until_ready(by_program(hosted(environment), policy, 2)(*several(environment, policy, 1)))


@pytest.mark.parametrize("goal", ["velocity", "direction"])
def test_cheetahs_of_compiled_programs_are_those_of_the_host_loop(goal):
    """The state that travels is all that the engine needs: to rounding, over steps with contacts."""
    policy = gaussian_policy(17, 6, hidden=(4,))
    given = several(cheetah_cpu(goal), policy, 2)
    expected = host_rollouts(given[0], cheetah_host(goal, horizon=40), policy, *given[1:], 3)
    found = by_program(cheetah_cpu(goal, horizon=40), policy, 3)(*given)
    assert_same(found, expected, rtol=1e-8, atol=1e-8)


def test_a_cheetah_by_name_runs_on_the_processor_here():
    named, direct = environment_called("rl-cheetah-velocity", horizon=3), cheetah_cpu("velocity", horizon=3)
    key = jax.random.key(0)
    assert (named.name, named.horizon) == (direct.name, 3)
    runs = [
        jax.jit(lambda e=e: e.step(e.reset(key, jnp.ones(()))[0], jnp.full(6, 0.3), jnp.ones(())))()
        for e in (named, direct)
    ]
    for ours, theirs in zip(*map(jax.tree.leaves, runs), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_documented_example_learns_in_an_environment_of_gymnasiums():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "from_gymnasium" in block]
    for long, short in (
        ("horizon=200", "horizon=3"),
        ("train(state, 20)", "train(state, 2)"),
        ("meta_batch=4", "meta_batch=2"),
    ):
        assert long in example
        example = example.replace(long, short)
    names: dict = {}
    exec(example, names)
    assert int(names["state"].iteration) == 2 and names["infos"].finite.all()
    assert names["returns"].shape == (4, 4) and np.isfinite(names["returns"]).all()
    before = names["setup"].init(jax.random.key(0)).prior
    moved = [
        not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before, names["state"].prior)), strict=True)
    ]
    assert all(moved)
