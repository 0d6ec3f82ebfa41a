"""Half-cheetah by equations of its own, as arrays: MuJoCo's physics of a body that moves in a plane.

MJX is MuJoCo for any robot, and its step is a large program. Half-cheetah needs a small one: angles add up along a limb, so that
positions and Jacobians are closed forms; contact forces are in `contact_forces`. Each step agrees with the C engine to rounding.

Numbers are float64 where JAX has it switched on (`jax_enable_x64`) when the environment is made, float32 otherwise.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.rl import cheetah
from metaprior.rl.cheetah import CheetahState
from metaprior.rl.cheetah_body import Body, Points, Rows, read_body
from metaprior.rl.contact_forces import Constraints, newton, solve
from metaprior.rl.environment import Environment

ITERATIONS = 6  # of Newton's method: where a body comes down on the ground anew it needs them all
LEAST = 1e-15  # MuJoCo's


def cheetah_plane(
    goal: str = "velocity", *, horizon: int = cheetah.HORIZON, iterations: int = ITERATIONS
) -> Environment:
    """Half-cheetah as pure functions.

    Args:
        goal: "velocity" or "direction".
        horizon: steps of a trajectory.
        iterations: of Newton's method for contact forces. Fewer are as exact in most steps, and wrong in some.
    """
    asked = cheetah.goal_called(goal)
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}: {ITERATIONS} reach the minimum")
    model = cheetah.load_model()
    dtype = jnp.zeros(()).dtype
    body = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), read_body(model))

    def advance(state: CheetahState, action: Float[Array, " A"]) -> CheetahState:
        once = lambda _, now: substep(body, now, action.astype(dtype), iterations)
        return jax.lax.fori_loop(0, cheetah.FRAME_SKIP, once, state)

    seconds = cheetah.seconds_per_step(model)
    return cheetah.pure_cheetah(asked, horizon=horizon, rest=np.array(model.qpos0), seconds=seconds, advance=advance)


def substep(body: Body, now: CheetahState, action: Float[Array, " A"], iterations: int) -> CheetahState:
    """One step of the engine: velocities from all forces, with the friction of joints as it will be; then positions."""
    inertia, free = smooth(body, now, action)
    found, pushed = newton(inertia, free, constraints(body, now), now.warm_start, iterations)
    qvel = now.qvel + body.step * solve(inertia + body.step * np.diag(body.friction), free + pushed)
    return CheetahState(now.qpos + body.step * qvel, qvel, found)


# --- motion -----------------------------------------------------------------------------------------------------------


def dot(matrix: np.ndarray, vector: Float[Array, " N"]) -> Float[Array, " P"]:
    """A product, written out: as a sum it can become part of what comes before and after."""
    return (matrix * vector[None]).sum(axis=1)


def turned(angles: Float[Array, " P"], at: np.ndarray) -> Float[Array, "P 2"]:
    """Vectors (x, z) turned about y."""
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.stack([cos * at[:, 0] + sin * at[:, 1], cos * at[:, 1] - sin * at[:, 0]], axis=1)


def places(body: Body, qpos: Float[Array, " 9"], points: Points) -> Float[Array, "P 2"]:
    """Of points in the world: along the limbs to their body, then to them."""
    links = turned(dot(body.above, qpos), body.offset)
    arms = turned(dot(points.turning, qpos), points.at)
    return arms + _summed(points, links) + qpos[None, :2] + body.root[None]


def _summed(points: Points, links: Float[Array, "9 2"]) -> Float[Array, "P 2"]:
    return (points.chain[:, :, None] * links[None]).sum(axis=1)


def jacobian(
    body: Body, qpos: Float[Array, " 9"], points: Points, at: Float[Array, "P 2"]
) -> tuple[Float[Array, "P 9"], Float[Array, "P 9"]]:
    """How places in the world that belong to the bodies of points move along x and z: a joint turns them about itself."""
    arm = at[:, None] - places(body, qpos, body.joints)[None]
    return arm[..., 1] * points.turning + body.slides[0][None], -arm[..., 0] * points.turning + body.slides[1][None]


def smooth(body: Body, now: CheetahState, action: Float[Array, " A"]) -> tuple[Float[Array, "9 9"], Float[Array, " 9"]]:
    """Inertia, and the forces other than those of limits and contacts."""
    qpos, qvel, centres = now.qpos, now.qvel, body.centres
    along, up = jacobian(body, qpos, centres, places(body, qpos, centres))
    product = along[:, :, None] * along[:, None] + up[:, :, None] * up[:, None]
    inertia = body.turning + (body.masses[:, None, None] * product).sum(axis=0)
    # What turns is drawn inwards, so that it pulls outwards.
    links = turned(dot(body.above, qpos), body.offset) * jnp.square(dot(body.above, qvel))[:, None]
    arms = turned(dot(centres.turning, qpos), centres.at) * jnp.square(dot(centres.turning, qvel))[:, None]
    pull = body.masses[:, None] * (body.gravity[None] + _summed(centres, links) + arms)
    joints = dot(body.gear, action) - body.spring * (qpos - body.rest) - body.friction * qvel
    return inertia, joints + (along * pull[:, :1] + up * pull[:, 1:]).sum(axis=0)


# --- limits and contacts ----------------------------------------------------------------------------------------------


def constraints(body: Body, now: CheetahState) -> Constraints:
    """All that may push: the limits of joints, then three rows for each tip that may touch the ground."""
    low, high = now.qpos - body.limits[:, 0], body.limits[:, 1] - now.qpos
    limits = jnp.where(low < high, 1, -1)[:, None] * np.eye(9, dtype=low.dtype)
    ends = places(body, now.qpos, body.tips)
    depth = ends[:, 1] - body.radius
    touched = jnp.stack([ends[:, 0], depth / 2], axis=1)  # halfway between the ground and what has sunk into it
    along, up = jacobian(body, now.qpos, body.tips, touched)
    contacts = up[:, None] + body.slip[:, :, None] * along[:, None]
    made = (
        pushing(body.limit_rows, limits, jnp.minimum(low, high), now.qvel),
        pushing(body.contact_rows, contacts.reshape(-1, 9), jnp.tile(depth[:, None], 3).reshape(-1), now.qvel),
    )
    return Constraints(*(jnp.concatenate(pair) for pair in zip(*made, strict=True)))


def pushing(
    rows: Rows, jacobian: Float[Array, "R 9"], gap: Float[Array, " R"], qvel: Float[Array, " 9"]
) -> Constraints:
    """What rows want, and how strongly, as MuJoCo has it: springs that grow stiff with depth. Above zero a gap is open."""
    least, most, width, middle, power = (rows.impedance[:, place] for place in range(5))
    depth = jnp.minimum(jnp.abs(gap) / width, 1)
    early = depth**power / middle ** (power - 1)
    late = 1 - (1 - depth) ** power / (1 - middle) ** (power - 1)
    impedance = least + jnp.where(depth < middle, early, late) * (most - least)
    target = -(jacobian * qvel[None]).sum(axis=1) * rows.damping - impedance * rows.stiffness * gap
    strength = rows.edges / jnp.maximum(rows.weight * (1 - impedance) / impedance, LEAST)
    return Constraints(jacobian, target, jnp.where(gap < 0, strength, 0))
