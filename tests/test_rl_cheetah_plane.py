"""Half-cheetah's own equations against MuJoCo: inertia and forces one by one, whole steps; contact forces against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from metaprior.rl import cheetah, cheetah_plane, contact_forces
from metaprior.rl.cheetah import CheetahState
from metaprior.rl.cheetah_body import read_body
from metaprior.rl.cheetah_gap import engine_gap
from metaprior.rl.contact_forces import Constraints, Line

mujoco = pytest.importorskip("mujoco", reason="comes with pip install 'metaprior[rl]'")
pytest.importorskip("gymnasium", reason="comes with pip install 'metaprior[rl]'")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its log in the folder it finds itself in


# Contact forces


def problem(seed: int, *, size: int = 5, rows: int = 12):
    """Inertia, forces, rows: some that push from the start, some only on the way, some never."""
    draw = np.random.default_rng(seed)
    root = draw.normal(size=(size, size))
    strength = draw.exponential(20.0, rows) * (draw.uniform(size=rows) < 0.8)
    parts = (
        root @ root.T + np.eye(size),
        draw.normal(size=size) * 3,
        draw.normal(size=(rows, size)),
        draw.normal(size=rows),
    )
    return (*map(jnp.asarray, parts), jnp.asarray(strength), jnp.asarray(draw.normal(size=size)))


@pytest.mark.parametrize("seed", range(6))
def test_newton_finds_the_minimum(seed):
    inertia, free, jacobian, target, strength, start = problem(seed)

    def cost(a):
        short = np.minimum(jacobian @ a - target, 0)
        return 0.5 * a @ inertia @ a - a @ free + 0.5 * (strength * short**2).sum()

    rows = Constraints(jacobian, target, strength)
    found, forces = jax.jit(contact_forces.newton, static_argnums=4)(inertia, free, rows, start, 12)
    expected = optimize.minimize(cost, np.zeros(5), tol=1e-14).x
    np.testing.assert_allclose(found, expected, atol=2e-6)  # brute force knows no derivatives
    assert cost(found) <= cost(expected) + 1e-14
    np.testing.assert_allclose(inertia @ found, free + forces, atol=1e-10)  # Newton's law, and the minimum's condition
    assert (np.asarray(jacobian @ found - target)[np.asarray(strength) > 0] < 0).any()  # something does push


@pytest.mark.parametrize("seed", range(6))
def test_line_search_is_exact(seed):
    draw = np.random.default_rng(seed)
    slope, bend = -draw.exponential(5.0), draw.exponential(1.0)
    away, moving, strength = draw.normal(size=8), draw.normal(size=8), draw.exponential(3.0, 8)
    moving[0] = 0.0  # a row along which nothing changes
    slope -= (strength * moving * np.minimum(away, 0)).sum()  # downhill at the start, all rows counted
    line = Line(*map(jnp.asarray, (slope, bend, away, moving, strength)))
    best = contact_forces.lowest(line)
    rising = lambda t: slope + bend * t + (strength * moving * np.minimum(away + moving * t, 0)).sum()
    expected: float = optimize.root_scalar(rising, bracket=(0, 1e4), xtol=1e-14).root
    np.testing.assert_allclose(best, expected, rtol=1e-9)
    np.testing.assert_allclose(line.derivative(best[None])[0], 0, atol=1e-9)


def test_nothing_to_push_and_nowhere_to_go():
    """Without rows a single step is the solution, and at the minimum there is no step."""
    inertia, free, jacobian, target, _, start = problem(0)
    rows = Constraints(jacobian, target, jnp.zeros_like(target))
    expected = np.linalg.solve(inertia, free)
    for begin, iterations in ((start, 1), (jnp.asarray(expected), 5)):
        found, forces = contact_forces.newton(inertia, free, rows, begin, iterations)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        np.testing.assert_array_equal(forces, 0)


def test_solve_is_that_of_linear_algebra():
    inertia, free, *_ = problem(3, size=9)
    np.testing.assert_allclose(contact_forces.solve(inertia, free), np.linalg.solve(inertia, free), rtol=1e-10)


# Half-cheetah


def states(count: int):
    """All kinds of: in the air, on its feet, on its back, limbs beyond their limits."""
    draw = np.random.default_rng(1)
    qpos = draw.uniform(-1, 1, (count, 9)) * [1, 0.7, 3, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2]
    return qpos, draw.normal(size=(count, 9)) * 3, draw.uniform(-1, 1, (count, 6))


def test_inertia_and_forces_are_those_of_mujoco():
    model = cheetah.load_model()
    data, full, body = mujoco.MjData(model), np.zeros((9, 9)), read_body(model)
    smooth = jax.jit(lambda now, action: cheetah_plane.smooth(body, now, action))
    for qpos, qvel, action in zip(*states(10), strict=True):
        data.qpos[:], data.qvel[:], data.ctrl[:] = qpos, qvel, action
        mujoco.mj_forward(model, data)
        mujoco.mj_fullM(model, data, full)
        inertia, free = smooth(CheetahState(*map(jnp.asarray, (qpos, qvel, np.zeros(9)))), jnp.asarray(action))
        np.testing.assert_allclose(inertia, full, atol=1e-12)
        np.testing.assert_allclose(free, data.qfrc_smooth, rtol=1e-10, atol=1e-10)


def test_rows_push_as_those_of_mujoco():
    """Forces of limits and contacts at MuJoCo's own accelerations; four edges of a pyramid are three rows here."""
    model = cheetah.load_model()
    model.opt.tolerance = 0
    data, body, touched = mujoco.MjData(model), read_body(model), 0
    for qpos, qvel, action in zip(*states(10), strict=True):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = qpos, qvel, action
        mujoco.mj_forward(model, data)
        rows = cheetah_plane.constraints(body, CheetahState(*map(jnp.asarray, (qpos, qvel, np.zeros(9)))))
        short = np.minimum(np.asarray(rows.jacobian @ data.qacc - rows.target), 0)
        forces = -np.asarray(rows.jacobian).T @ (np.asarray(rows.strength) * short)
        np.testing.assert_allclose(forces, data.qfrc_constraint, rtol=1e-8, atol=1e-6)
        touched += data.ncon
    assert touched > 10


def test_each_step_is_that_of_the_c_engine(record_property):
    """Half-cheetah is chaotic: whole trajectories are held against how far the C engine departs from itself."""
    gap = engine_gap(jax.random.key(3), cheetah_plane.cheetah_plane(), count=8)
    worst = {name: float(part.max()) for name, part in gap._asdict().items()}
    record_property("gap", worst)
    assert worst["single_observation"] < 1e-10 and worst["single_reward"] < 1e-10
    assert (gap.along_observation.max(axis=1) < gap.nudged_observation.max(axis=1)).all()
    assert (gap.along_observation[:, :15] < 1e-8).all()


@pytest.mark.slow
def test_long_trajectories_have_no_step_that_is_wrong(monkeypatch):
    """Against a C engine that does not stop early: 4,800 steps, many of them on the back or in the air."""
    exact = cheetah.load_model()
    exact.opt.tolerance, exact.opt.ls_tolerance = 1e-14, 1e-4
    monkeypatch.setattr(cheetah, "_read_model", lambda: exact)
    gap = engine_gap(jax.random.key(12), cheetah_plane.cheetah_plane(), count=24, steps=200)
    assert gap.single_observation.max() < 1e-9 and gap.single_reward.max() < 1e-9


def test_gap_of_float32(record_property):
    """What accelerators are given."""
    with jax.enable_x64(False):
        gap = engine_gap(jax.random.key(3), cheetah_plane.cheetah_plane(), count=8)
    record_property("gap", float(gap.single_observation.max()))
    assert gap.single_observation.dtype == jnp.float32
    assert all(np.isfinite(part).all() for part in gap)
    assert gap.single_observation.max() < 1e-3


def test_directions_are_rewarded_and_steps_mapped():
    environment = cheetah_plane.cheetah_plane("direction")
    keys, tasks = jax.random.split(jax.random.key(6), 2), jnp.array([1.0, -1.0])
    states, _ = jax.vmap(environment.reset)(jnp.stack([keys[0], keys[0]]), tasks)
    actions = jnp.tile(jax.random.normal(jax.random.key(7), (6,)), (2, 1))
    after, seen, rewards, ended = jax.jit(jax.vmap(environment.step))(states, actions, tasks)
    alone = jax.jit(environment.step)(jax.tree.map(lambda leaf: leaf[0], states), actions[0], tasks[0])
    np.testing.assert_allclose(seen[0], alone[1], atol=1e-12)
    np.testing.assert_array_equal(seen[0], seen[1])
    speed = (after.qpos[0, 0] - states.qpos[0, 0]) / 0.05
    np.testing.assert_allclose(rewards[0] - rewards[1], 2 * speed, rtol=1e-9)
    assert not ended.any()


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        cheetah_plane.cheetah_plane(iterations=0)
    other = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint type='hinge'/><geom size='1'/></body></worldbody></mujoco>"
    )
    with pytest.raises(ValueError, match="HalfCheetah-v5"):
        read_body(other)
