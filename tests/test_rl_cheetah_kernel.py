"""Half-cheetah as one program of a GPU: its physics in single numbers against MuJoCo and `cheetah_plane`, its launches mapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from metaprior.rl import cheetah, cheetah_kernel, cheetah_numbers, cheetah_plane, cheetah_tips, cheetah_tree, named
from metaprior.rl.cheetah import CheetahState
from metaprior.rl.cheetah_body import read_body
from metaprior.rl.cheetah_gap import engine_gap

mujoco = pytest.importorskip("mujoco", reason="comes with pip install 'metaprior[rl]'")
pytest.importorskip("gymnasium", reason="comes with pip install 'metaprior[rl]'")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its log in the folder it finds itself in


def states(count: int):
    """All kinds of: in the air, on its feet, on its back, limbs beyond their limits."""
    draw = np.random.default_rng(1)
    qpos = draw.uniform(-1, 1, (count, 9)) * [1, 0.7, 3, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2]
    return qpos, draw.normal(size=(count, 9)) * 3, draw.uniform(-1, 1, (count, 6))


def columns(*arrays):
    return [list(map(jnp.asarray, array.T)) for array in arrays]


def test_inertia_and_forces_are_those_of_arrays():
    """Against `cheetah_plane`, which has them as arrays, and which is held against MuJoCo."""
    body = read_body(cheetah.load_model())
    tree, (qpos, qvel, action) = cheetah_tree.tree_of(body), states(20)
    frames = cheetah_tree.frames_of(tree, columns(qpos)[0])
    inertia, free = cheetah_numbers.smooth(tree, frames, *columns(qpos, qvel, action))
    rows = cheetah_tips.touching_of(tree, frames, *columns(qpos, qvel))
    pushes = cheetah_tips.forces_of(tree, frames, rows, rows.strength)
    stiff = cheetah_tips.stiffened(tree, frames, inertia, rows, rows.strength)
    which = np.array([*tree.limited, *range(9, 57)])  # middle, ahead and back of all tips
    of = lambda numbers, one: [np.asarray(number)[one] for number in numbers]
    for one, state in enumerate(zip(qpos, qvel, action, strict=True)):
        now = CheetahState(jnp.asarray(state[0]), jnp.asarray(state[1]), jnp.zeros(9))
        matrix, forces = cheetah_plane.smooth(body, now, jnp.asarray(state[2]))
        limits = cheetah_plane.constraints(body, now)
        push, strength = np.asarray(limits.jacobian)[which], np.asarray(limits.strength)[which]
        np.testing.assert_allclose(dense(inertia, one), matrix, atol=1e-12)
        np.testing.assert_allclose([force[one] for force in free], forces, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(of(rows.target, one), limits.target[which], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(of(rows.strength, one), strength, rtol=1e-10)
        np.testing.assert_allclose([force[one] for force in pushes], push.T @ strength, rtol=1e-9, atol=1e-9)
        expected = np.asarray(matrix) + push.T @ (strength[:, None] * push)
        np.testing.assert_allclose(dense(stiff, one), expected, rtol=1e-9, atol=1e-9)


def dense(matrix, one):
    found = np.zeros((9, 9))
    for (i, j), value in matrix.items():
        found[i, j] = found[j, i] = value if isinstance(value, float) else value[one]
    return found


def test_factors_solve_as_linear_algebra_does():
    tree, (qpos, qvel, action) = cheetah_tree.tree_of(read_body(cheetah.load_model())), states(4)
    frames = cheetah_tree.frames_of(tree, columns(qpos)[0])
    inertia, free = cheetah_numbers.smooth(tree, frames, *columns(qpos, qvel, action))
    found = cheetah_numbers.solve(tree, inertia, free)
    for one in range(4):
        expected = np.linalg.solve(dense(inertia, one), [force[one] for force in free])
        np.testing.assert_allclose([each[one] for each in found], expected, rtol=1e-9)
        np.testing.assert_allclose(
            [each[one] for each in cheetah_numbers.product(inertia, found)], [force[one] for force in free], atol=1e-9
        )


def test_line_search_ends_where_the_slope_is_nought():
    draw = np.random.default_rng(3)
    away, moving, strength = draw.normal(size=(8, 50)), draw.normal(size=(8, 50)), draw.exponential(3.0, (8, 50))
    bend = draw.exponential(1.0, 50)
    slope = -draw.exponential(5.0, 50) - (strength * moving * np.minimum(away, 0)).sum(axis=0)  # downhill at the start
    parts = [list(map(jnp.asarray, part)) for part in (away, moving, strength)]
    curve, waiting = (jnp.asarray(slope), jnp.asarray(bend)), jnp.ones(50, int)
    found = np.asarray(cheetah_numbers.lowest(*curve, parts[0], parts[1], parts[2], waiting))
    left = slope + bend * found + (strength * moving * np.minimum(away + moving * found, 0)).sum(axis=0)
    np.testing.assert_allclose(left, 0, atol=1e-9)
    assert (found > 0).all() and (np.abs(found - 1) > 0.1).any()
    some = np.asarray(cheetah_numbers.lowest(*curve, parts[0], parts[1], parts[2], jnp.arange(50) % 2))
    np.testing.assert_array_equal(
        some, np.where(np.arange(50) % 2, found, 1.0)
    )  # those that are done stay where they are


def test_a_step_of_the_engine_is_that_of_mujoco():
    """From all kinds of states, where the contact solver has the most to do."""
    model, (qpos, qvel, action) = cheetah.load_model(), states(6)
    model.opt.tolerance = 0
    data, tree = mujoco.MjData(model), cheetah_tree.tree_of(read_body(model))
    with jax.disable_jit():  # a loop in Python is done sooner than its program is compiled
        start = columns(0 * qvel)[0]
        parts = columns(qpos, qvel, action)
        places, speeds, _ = cheetah_numbers.substep(tree, parts[0], parts[1], start, parts[2], 30)
    for one in range(6):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = qpos[one], qvel[one], action[one]
        mujoco.mj_step(model, data)
        np.testing.assert_allclose([place[one] for place in places], data.qpos, atol=1e-10)
        np.testing.assert_allclose([speed[one] for speed in speeds], data.qvel, atol=1e-9)


def test_maps_of_maps_are_one_launch():
    """All cheetahs come in rows, filled up to whole blocks; what is not mapped is the same for all."""
    seen = []

    def pushed(*rows):
        seen.append([part.shape for part in rows])
        return [part + rows[3].sum(axis=1)[:, None] for part in rows[:3]]

    move = cheetah_kernel.moving_all(pushed)
    state, action = jnp.arange(5 * 3 * 9.0).reshape(5, 3, 9), jnp.arange(3 * 6.0).reshape(3, 6)
    mapped = jax.vmap(jax.vmap(move), in_axes=(0, 0, None, None))
    found = mapped(state, -state, state[0], action)
    assert seen[-1:] == [[(32, 9), (32, 9), (32, 9), (32, 6)]]
    expected = np.asarray(action).sum(axis=1)[None, :, None]
    np.testing.assert_array_equal(found[0], state + expected)
    np.testing.assert_array_equal(found[1], -state + expected)
    np.testing.assert_array_equal(found[2], jnp.broadcast_to(state[0], state.shape) + expected)


def test_a_program_reads_and_writes_in_few_places():
    """Compiling it takes longer with each line that reads or writes: see `read`."""
    tree = cheetah_tree.tree_of(read_body(cheetah.load_model()))
    given = [jax.ShapeDtypeStruct((64, size), jnp.float32) for size in (9, 9, 9, 6)]
    made = jax.make_jaxpr(lambda *rows: cheetah_kernel.launch(tree, 1, True, *rows))(*given)
    assert [used(made.jaxpr, word) for word in ("get", "swap")] == [4, 3]


def used(jaxpr, word):
    """How often a primitive stands there, and in all that is inside."""
    inside = [each for line in jaxpr.eqns for each in jaxprs_in_params(line.params)]
    return sum(line.primitive.name == word for line in jaxpr.eqns) + sum(used(each, word) for each in inside)


@pytest.mark.slow
def test_each_action_is_that_of_the_c_engine():
    gap = engine_gap(jax.random.key(3), cheetah_kernel.cheetah_kernel(interpret=True), count=8)
    assert gap.single_observation.max() < 1e-10 and gap.single_reward.max() < 1e-10
    assert (gap.along_observation[:, :15] < 1e-8).all()  # later on the smallest difference grows: it is chaotic


@pytest.mark.slow
def test_gap_of_float32():
    """What GPUs are given."""
    with jax.enable_x64(False):
        gap = engine_gap(jax.random.key(3), cheetah_kernel.cheetah_kernel(interpret=True), count=8)
    assert gap.single_observation.dtype == jnp.float32
    assert gap.single_observation.max() < 1e-3


@pytest.mark.device
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU is here")
def test_on_a_gpu_each_action_is_that_of_the_c_engine():
    """The program itself, not its interpretation, for many cheetahs at once."""
    with jax.enable_x64(False):
        gap = engine_gap(jax.random.key(3), cheetah_kernel.cheetah_kernel(), count=64)
    assert gap.single_observation.max() < 1e-2 and np.median(gap.single_observation) < 1e-4


def test_a_gpu_takes_the_kernel_while_jax_can_make_it(monkeypatch):
    assert [named.engine_for(backend) for backend in ("cpu", "gpu", "tpu")] == ["c", "kernel", "plane"]
    monkeypatch.setattr(cheetah_kernel.importlib.util, "find_spec", lambda name: None)
    assert named.engine_for("gpu") == "plane"


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        cheetah_kernel.cheetah_kernel(iterations=0)
