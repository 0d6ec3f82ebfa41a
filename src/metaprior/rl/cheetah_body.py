"""Half-cheetah in numbers, for `cheetah_plane`: what MuJoCo's model says of a body that moves in a plane.

Nine joints: the first two slide the trunk along x and z, each of the others turns one body, and what hangs on it, about y.
"""

from typing import Any, NamedTuple

import numpy as np

PLANE = np.array([0, 2])  # x and z
HINGE, CAPSULE = 3, 3  # MuJoCo's types of joints and shapes
IMPEDANCES = 1e-4, 0.9999  # what MuJoCo allows


class Points(NamedTuple):
    """Places on bodies."""

    at: np.ndarray  # [P, 2], in the frame of the body
    turning: np.ndarray  # [P, 9], 1 where a joint turns the body
    chain: np.ndarray  # [P, 9], 1 for the bodies from the trunk, which is left out, to this one, by their joints


class Rows(NamedTuple):
    """How rows of constraints push back."""

    stiffness: np.ndarray
    damping: np.ndarray
    impedance: np.ndarray  # [R, 5], MuJoCo's solimp
    weight: np.ndarray  # about the inverse of the inertia that they push
    edges: np.ndarray  # of a friction pyramid, in one row


class Body(NamedTuple):
    """The model."""

    step: np.ndarray  # seconds
    root: np.ndarray  # [2], where the trunk rests
    offset: np.ndarray  # [9, 2], of the body of each joint, in the frame of that which it hangs on
    above: np.ndarray  # [9, 9], the joints that turn that frame
    slides: np.ndarray  # [2, 9], the joints that move everything along x and z
    joints: Points
    centres: Points  # of mass
    masses: np.ndarray
    turning: np.ndarray  # [9, 9], the inertia of rotations and of motors
    gravity: np.ndarray  # [2]
    spring: np.ndarray
    rest: np.ndarray
    friction: np.ndarray
    gear: np.ndarray  # [9, 6]
    limits: np.ndarray  # [9, 2]
    limit_rows: Rows
    tips: Points  # both ends of every capsule
    radius: np.ndarray
    slip: np.ndarray  # [P, 3], how much of the way along the ground is in a row
    contact_rows: Rows  # three for each tip


def read_body(model: Any) -> Body:
    """The numbers of `HalfCheetah-v5`, from MuJoCo's model."""
    joint_of, hinges = np.array(model.dof_bodyid), np.array(model.jnt_type) == HINGE
    if hinges[:2].any() or not hinges[2:].all() or (joint_of[2:] != np.arange(1, model.nbody)).any():
        raise ValueError("this model is not the half-cheetah of HalfCheetah-v5: use cheetah_mjx, which takes any")
    turning = _turning(model)
    bodies, chain = np.arange(1, model.nbody), turning * (np.arange(model.nv) > 2)
    points = lambda owners, at: Points(at, turning[owners], chain[owners])
    inertias = np.einsum("b,bi,bj->ij", _about_y(model), turning[bodies], turning[bodies])
    limited = np.array(model.jnt_limited, bool)[:, None]
    return Body(
        step=np.array(model.opt.timestep),
        root=model.body_pos[1, PLANE],
        offset=model.body_pos[joint_of][:, PLANE],
        above=turning[np.array(model.body_parentid)[joint_of]],
        slides=np.array(model.jnt_axis)[:, PLANE].T * ~hinges,
        joints=points(joint_of, np.zeros((model.nv, 2))),
        centres=points(bodies, model.body_ipos[bodies][:, PLANE]),
        masses=model.body_mass[bodies],
        turning=np.diag(model.dof_armature) + inertias,
        gravity=model.opt.gravity[PLANE],
        spring=model.jnt_stiffness,
        rest=model.qpos_spring,
        friction=model.dof_damping,
        gear=_gear(model),
        limits=np.where(limited, model.jnt_range, [-1e6, 1e6]),
        limit_rows=_rows(model, model.jnt_solref, model.jnt_solimp, model.dof_invweight0, np.ones(model.nv)),
        **_contacts(model, points),
    )


def _turning(model: Any) -> np.ndarray:
    """[bodies, joints]: which joints turn a body."""
    found = np.zeros((model.nbody, model.nv))
    for body in range(1, model.nbody):
        found[body] = found[model.body_parentid[body]]
        found[body, body + 1] = 1
    return found


def _about_y(model: Any) -> np.ndarray:
    """Moments of inertia about y: the axes that the model gives them for are turned."""
    w, x, y, z = np.array(model.body_iquat[1:]).T
    axis = np.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], axis=1)
    return (axis**2 * model.body_inertia[1:]).sum(axis=1)


def _gear(model: Any) -> np.ndarray:
    """[joints, motors]: what an action of one does."""
    found = np.zeros((model.nv, model.nu))
    moved = model.jnt_dofadr[model.actuator_trnid[:, 0]]
    found[moved, np.arange(model.nu)] = model.actuator_gear[:, 0] * model.actuator_gainprm[:, 0]
    return found


def _contacts(model: Any, points: Any) -> dict[str, Any]:
    """Of the ends of capsules with the ground.

    A friction pyramid has four edges. Two of them lie across the plane, where nothing moves: they are one row that counts twice.
    """
    shapes = np.flatnonzero(np.array(model.geom_type) == CAPSULE)
    w, x, y, z = np.array(model.geom_quat[shapes]).T
    axis = np.stack([2 * (x * z + w * y), 1 - 2 * (x * x + y * y)], axis=1) * model.geom_size[shapes, 1:2]
    middle, owners = model.geom_pos[shapes][:, PLANE], model.geom_bodyid[shapes].repeat(2)
    friction = np.maximum(model.geom_friction[shapes, 0], model.geom_friction[0, 0]).repeat(2)
    weight = model.body_invweight0[owners, 0] * (1 + friction**2) * 2 * friction**2 / model.opt.impratio
    solref, solimp = model.geom_solref[shapes].repeat(6, 0), model.geom_solimp[shapes].repeat(6, 0)
    return dict(
        tips=points(owners, np.stack([middle + axis, middle - axis], axis=1).reshape(-1, 2)),
        radius=model.geom_size[shapes, 0].repeat(2),
        slip=friction[:, None] * np.array([0.0, 1.0, -1.0]),
        contact_rows=_rows(model, solref, solimp, weight.repeat(3), np.tile([2.0, 1.0, 1.0], len(owners))),
    )


def _rows(model: Any, solref: np.ndarray, solimp: np.ndarray, weight: np.ndarray, edges: np.ndarray) -> Rows:
    """From MuJoCo's parameters: a time constant and a damping ratio."""
    impedance = np.array(solimp, float)
    impedance[:, :2] = impedance[:, :2].clip(*IMPEDANCES)
    most, time = impedance[:, 1], np.maximum(solref[:, 0], 2 * model.opt.timestep)
    return Rows(1 / (most * time * solref[:, 1]) ** 2, 2 / (most * time), impedance, weight, edges)
