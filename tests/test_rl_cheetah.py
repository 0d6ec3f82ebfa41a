"""Half-cheetah on both engines against Gymnasium's own; rewards by hand; the host loop; what is missing or broken, in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.rl import cheetah
from metaprior.rl.cheetah_gap import engine_gap
from metaprior.rl.cheetah_host import cheetah_host
from metaprior.rl.cheetah_mjx import cheetah_mjx
from metaprior.rl.host import host_rollouts
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rollouts import rollouts

gymnasium = pytest.importorskip("gymnasium", reason="comes with pip install 'metaprior[rl]'")
pytest.importorskip("mujoco.mjx", reason="comes with pip install 'metaprior[rl]'")

POLICY = gaussian_policy(cheetah.OBSERVATION_SIZE, cheetah.ACTION_SIZE, hidden=(8,))

# The reward, by hand


@pytest.mark.parametrize("array", [np.array, jnp.array], ids=["numpy", "jax"])
def test_rewards_by_hand(array):
    action = array([1.0, -1.0, 0.5, 0.0, 0.0, 0.0])  # ‖a‖² = 2.25
    assert cheetah.control_cost(action) == pytest.approx(0.1125)
    assert cheetah.velocity_reward(array(0.7), action, array(1.5)) == pytest.approx(-0.8 - 0.1125)
    assert cheetah.velocity_reward(array(2.3), action, array(1.5)) == pytest.approx(-0.8 - 0.1125)
    assert cheetah.direction_reward(array(3.0), action, array(1.0)) == pytest.approx(3.0 - 0.1125)
    assert cheetah.direction_reward(array(3.0), action, array(-1.0)) == pytest.approx(-3.0 - 0.1125)


@pytest.mark.parametrize("array", [np.array, jnp.array], ids=["numpy", "jax"])
def test_parts_keep_any_axes_in_front(array):
    qpos, qvel = np.arange(18.0).reshape(2, 9), -np.arange(18.0).reshape(2, 9)
    seen = cheetah.observation(array(qpos), array(qvel))
    assert seen.shape == (2, cheetah.OBSERVATION_SIZE) and type(seen) is type(array(qpos))
    np.testing.assert_array_equal(seen[1], [*range(10, 18), *range(-9, -18, -1)])
    np.testing.assert_allclose(cheetah.mean_velocity(array(qpos), array(qpos + 0.1), 0.05), [2.0, 2.0])
    np.testing.assert_array_equal(cheetah.within_bounds(array([-3.0, 0.5, 7.0])), [-1.0, 0.5, 1.0])


def test_tasks_have_the_distributions_stated():
    keys = jax.random.split(jax.random.key(0), 4000)
    speeds = np.asarray(jax.vmap(cheetah.GOALS["velocity"].draw)(keys))
    assert speeds.min() >= 0 and speeds.max() <= 2
    assert abs(speeds.mean() - 1) < 4 * 2 / np.sqrt(12 * 4000) and abs(speeds.std() - 2 / np.sqrt(12)) < 0.02
    signs = np.asarray(jax.vmap(cheetah.GOALS["direction"].draw)(keys))
    assert set(signs) == {-1.0, 1.0} and abs(signs.mean()) < 4 / np.sqrt(4000)


def test_first_states_have_the_noise_of_gymnasium():
    keys = jax.random.split(jax.random.key(1), 4000)
    rest = jnp.arange(9.0)
    qpos, qvel = jax.vmap(cheetah.first_state, in_axes=(0, None))(keys, rest)
    away = np.asarray(qpos - rest[None])
    assert np.abs(away).max() <= 0.1
    np.testing.assert_allclose(away.std(axis=0), 0.1 / np.sqrt(3), rtol=0.05)
    np.testing.assert_allclose(np.asarray(qvel).std(axis=0), 0.1, rtol=0.06)
    assert np.abs(np.asarray(qvel).mean(axis=0)).max() < 5 * 0.1 / np.sqrt(4000)


# The C engine


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its log in the folder it finds itself in


@pytest.fixture
def theirs():
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    yield env
    env.close()


def test_c_engine_equals_gymnasium(theirs):
    """Observation, forward velocity and control cost, over 50 random actions, in three environments side by side."""
    ours = cheetah_host("direction", threads=2)
    actions = np.random.default_rng(0).uniform(-1, 1, (50, 3, 6))
    for row in range(3):
        batch, seen = ours.reset(jax.random.split(jax.random.key(2), 3), np.ones(3))
        theirs.reset(seed=0)
        theirs.set_state(batch.qpos[row].copy(), batch.qvel[row].copy())
        np.testing.assert_array_equal(seen[row], theirs._get_obs())
        for action in actions:
            batch, seen, rewards, ended = ours.step(batch, action, np.ones(3))
            expected, _, _, _, info = theirs.step(action[row])
            np.testing.assert_allclose(seen[row], expected, rtol=0, atol=1e-10)
            # theirs charges twice our cost of control
            parts = info["x_velocity"] + info["reward_ctrl"] / 2
            np.testing.assert_allclose(rewards[row], parts, rtol=0, atol=1e-10)
            assert not ended.any()
        assert abs(batch.qpos[row, 0]) > 0.05  # it has moved, so that velocities were compared


def test_actions_beyond_the_bounds_are_cut():
    ours = cheetah_host("velocity", threads=1)
    results = []
    for factor in (1.0, 30.0):
        batch, _ = ours.reset(jax.random.key(0)[None], np.zeros(1))
        _, seen, reward, _ = ours.step(batch, factor * np.ones((1, 6)), np.zeros(1))
        results.append(np.append(seen, reward))
    np.testing.assert_array_equal(*results)


def test_shapes_and_horizon_are_those_of_the_model(theirs):
    assert cheetah.OBSERVATION_SIZE == theirs.observation_space.shape[0]
    assert cheetah.ACTION_SIZE == theirs.action_space.shape[0]
    assert (theirs.action_space.low == -1).all() and (theirs.action_space.high == 1).all()
    assert cheetah.seconds_per_step(cheetah.load_model()) == theirs.dt and cheetah.FRAME_SKIP == theirs.frame_skip


def rolled(environment, *, tasks: int = 2, count: int = 3):
    """Rollouts of new policies by the host loop."""
    keys = jax.random.split(jax.random.key(5), tasks)
    return host_rollouts(
        keys, environment, POLICY, jax.vmap(POLICY.init)(keys), jax.vmap(environment.draw)(keys), count
    )


def test_threads_change_nothing():
    for one, two in zip(*(rolled(cheetah_host(horizon=20, threads=threads)) for threads in (1, 2)), strict=True):
        np.testing.assert_array_equal(one, two)
    assert one.all() and one.shape == (2, 3, 20)  # the mask: a cheetah never ends


def test_a_simulation_that_blows_up_is_named():
    """MuJoCo itself would put it back to rest and go on."""
    sound = cheetah_host(horizon=20)

    def step(batch, actions, tasks):
        if batch.time[0] > 0.32:
            batch.qvel[4] = 1e200
        return sound.step(batch, actions, tasks)

    with pytest.raises(
        ValueError, match=r"rl-cheetah-velocity, task 1, trajectory 1, step 8: the (observation|reward) is"
    ):
        rolled(sound._replace(step=step))


# MJX


def test_engines_begin_alike():
    """Same keys, same first observations; and the shapes that MJX promises, without compiling it."""
    environment, keys = cheetah_mjx("direction"), jax.random.split(jax.random.key(6), 3)
    tasks = jax.vmap(environment.draw)(keys)
    states, seen = jax.vmap(environment.reset)(keys, tasks)
    np.testing.assert_allclose(seen, cheetah_host("direction").reset(keys, tasks)[1], rtol=0, atol=1e-15)
    assert not any(
        leaf.committed for leaf in states
    )  # or a second call would compile anew, and tasks could not be spread
    shapes = jax.eval_shape(jax.vmap(environment.step), states, jnp.zeros((3, 6)), tasks)
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [(3, 9), (3, 9), (3, 9), (3, 17), (3,), (3,)]


SOLVERS = {"the model's": {"iterations": None, "ls_iterations": None}, "of training": {}}


@pytest.mark.slow  # a quarter of a minute of compiling each
@pytest.mark.parametrize("solver", SOLVERS)
def test_mjx_follows_the_c_engine(solver, record_property, quick_compile):
    """Half-cheetah is chaotic: the C engine departs from itself by more than 1e-8 when it begins 1e-13 away.

    So each of 50 steps is compared from the C engine's state before it, and whole trajectories with that departure. The solver of
    training may take fewer steps than the model's own; it is held to the same.
    """
    gap = engine_gap(jax.random.key(3), cheetah_mjx(**SOLVERS[solver]), count=8)
    worst = {name: float(part.max()) for name, part in gap._asdict().items()}
    record_property("gap", worst)
    print(solver, worst, gap.along_observation.max(axis=0))
    assert worst["single_observation"] < 1e-10 and worst["single_reward"] < 1e-10
    assert (gap.along_observation.max(axis=1) < gap.nudged_observation.max(axis=1)).all()
    assert (gap.along_observation[:, :15] < 1e-8).all()


@pytest.mark.slow
def test_gap_of_float32(record_property, quick_compile):
    """What accelerators are given: single steps to five digits of velocities that reach tens."""
    with jax.enable_x64(False):
        environment = cheetah_mjx()
        gap = engine_gap(jax.random.key(3), environment, count=8)
    worst = {name: float(part.max()) for name, part in gap._asdict().items()}
    record_property("gap", worst)
    print(worst)
    assert gap.single_observation.dtype == jnp.float32
    assert all(np.isfinite(part).all() for part in gap)
    assert worst["single_observation"] < 5e-3


@pytest.mark.slow
def test_mjx_rolls_out_as_the_c_engine(quick_compile):
    """Same keys: same goals, first states, noise, hence the same trajectories, though one is a scan and one a host loop."""
    environment = cheetah_mjx(horizon=10, iterations=None, ls_iterations=None)
    keys = jax.random.split(jax.random.key(5), 2)
    params, goals = jax.vmap(POLICY.init)(keys), jax.vmap(environment.draw)(keys)
    mapped = jax.jit(jax.vmap(lambda key, params, goal: rollouts(key, environment, POLICY, params, goal, 3)))
    for scanned, looped in zip(mapped(keys, params, goals), rolled(cheetah_host(horizon=10)), strict=True):
        np.testing.assert_allclose(scanned, looped, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_mapped_equals_single(quick_compile):
    environment = cheetah_mjx("direction")
    keys = jax.random.split(jax.random.key(6), 3)
    tasks = jnp.array([1.0, -1.0, 1.0])
    states, _ = jax.vmap(environment.reset)(keys, tasks)
    actions = jax.random.normal(jax.random.key(7), (3, 6))
    single = jax.jit(environment.step)
    alone = [
        single(jax.tree.map(lambda leaf, row=row: leaf[row], states), actions[row], tasks[row]) for row in range(3)
    ]
    together = jax.jit(jax.vmap(environment.step))(states, actions, tasks)
    stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *alone)
    for one, many in zip(jax.tree.leaves(stacked), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, many, rtol=0, atol=1e-10)
