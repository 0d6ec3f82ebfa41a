"""Half-cheetah's physics in single numbers, each of which may be a number for every cheetah: no matrix, no array of joints.

So the whole of a step can be one program of an accelerator (`cheetah_kernel`). What makes it short is that the body is a tree in
a plane. A motion of one of its bodies is a `Triple`: how fast it goes along x and z on the ground below the trunk, how fast it
turns. So is what pushes a body. Motions add up from the trunk to the feet, and pushes from the feet to the trunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior.rl.cheetah_body import Body

Number = Any  # a float, or an array of them
Numbers = Sequence[Number]
Matrix = dict[tuple[int, int], Number]  # symmetric: (i, j) where i is j or moves what j moves, else zero

TRUNK, JOINTS = 2, 9  # the first two joints slide the trunk, this one turns it


class Triple(NamedTuple):
    """A motion or a push, seen from the ground below the trunk."""

    x: Number
    z: Number
    turn: Number

    def __add__(self, other: "Triple") -> "Triple":  # type: ignore[override]
        return Triple(*(a + b for a, b in zip(self, other, strict=True)))


class Stiffness(NamedTuple):
    """How a push follows from a motion, a symmetric matrix: a body's inertia is one, a contact that resists is another."""

    xx: Number
    xz: Number
    zz: Number
    x_turn: Number
    z_turn: Number
    turn: Number

    def __add__(self, other: "Stiffness") -> "Stiffness":  # type: ignore[override]
        return Stiffness(*(a + b for a, b in zip(self, other, strict=True)))

    def along(self) -> Triple:
        """The push of a motion along x."""
        return Triple(self.xx, self.xz, self.x_turn)

    def up(self) -> Triple:
        """The push of a motion along z."""
        return Triple(self.xz, self.zz, self.z_turn)

    def about(self, at: "Place") -> Triple:
        """The push of a turn about a place."""
        return Triple(
            self.xz * at.x - self.xx * at.z + self.x_turn,
            self.zz * at.x - self.xz * at.z + self.z_turn,
            self.z_turn * at.x - self.x_turn * at.z + self.turn,
        )


class Place(NamedTuple):
    """A point in the world."""

    x: Number
    z: Number

    def moving(self, motion: Triple) -> "Place":
        """How it moves with a body."""
        return Place(motion.x + self.z * motion.turn, motion.z - self.x * motion.turn)

    def pushed(self, x: Number, z: Number) -> Triple:
        """What a force here is to the body."""
        return Triple(x, z, self.z * x - self.x * z)

    def stiff(self, xx: Number, xz: Number, zz: Number) -> Stiffness:
        """What a point is that resists with forces xx·vx + xz·vz and xz·vx + zz·vz."""
        x, z = self
        x_turn, z_turn = xx * z - xz * x, xz * z - zz * x
        return Stiffness(xx, xz, zz, x_turn, z_turn, x_turn * z - z_turn * x)


class Frame(NamedTuple):
    """Where a body is: the place of its joint, and how it is turned."""

    at: Place
    cos: Number
    sin: Number

    def turned(self, x: float, z: float) -> Place:
        """A vector of the body, in the world."""
        return Place(self.cos * x + self.sin * z, self.cos * z - self.sin * x)

    def place(self, x: float, z: float) -> Place:
        """A point of the body, in the world."""
        arm = self.turned(x, z)
        return Place(self.at.x + arm.x, self.at.z + arm.z)


# --- the tree ---------------------------------------------------------------------------------------------------------


class Tree(NamedTuple):
    """The model, as this file has it: bodies are called by the joint that turns them, and numbers are Python's."""

    body: Body
    parents: dict[int, int]  # which body one hangs on; the trunk hangs on none
    limited: list[int]  # joints that have limits


def tree_of(body: Body) -> Tree:
    """Who hangs on whom."""
    last = lambda points: [int(np.flatnonzero(row).max()) for row in points.turning]
    parents = {joint: int(np.flatnonzero(body.above[joint]).max()) for joint in range(TRUNK + 1, JOINTS)}
    limited = [joint for joint in range(JOINTS) if np.abs(body.limits[joint]).max() < 1e5]
    powers = np.concatenate([rows.impedance[:, 4] for rows in (body.limit_rows, body.contact_rows)])
    if last(body.centres) != list(range(TRUNK, JOINTS)) or (powers != 2).any():
        raise ValueError("this model is not the half-cheetah of HalfCheetah-v5: use cheetah_mjx, which takes any")
    return Tree(body, parents, limited)


def above(tree: Tree, joint: int) -> list[int]:
    """The joints that move what this one moves, from the nearest to the first."""
    found = []
    while joint > TRUNK:
        joint = tree.parents[joint]
        found.append(joint)
    return [*found, *range(min(joint, TRUNK) - 1, -1, -1)]


def along_tree(tree: Tree, first: Any, further: Callable[[int, Any], Any]) -> dict[int, Any]:
    """From the trunk to the feet: what a body has, from what that has on which it hangs."""
    found = {TRUNK: first}
    for joint, parent in tree.parents.items():
        found[joint] = further(joint, found[parent])
    return found


def gathered(tree: Tree, own: dict[int, Any]) -> dict[int, Any]:
    """From the feet to the trunk: what a body has, and all that hang on it."""
    found = dict(own)
    for joint in reversed(tree.parents):
        found[tree.parents[joint]] = found[tree.parents[joint]] + found[joint]
    return found


def frames_of(tree: Tree, qpos: Numbers) -> dict[int, Frame]:
    """Where all bodies are: how high above the ground, and how far along it from the trunk.

    Where the trunk is along the ground changes nothing, and far away from it single precision would be lost.
    """
    angles = along_tree(tree, qpos[TRUNK], lambda joint, angle: angle + qpos[joint])
    turns = dict(zip(angles, turns_of(list(angles.values())), strict=True))
    made = lambda at, joint: Frame(at, *turns[joint])
    root = Place(0.0, qpos[1] + float(tree.body.root[1]))
    return along_tree(tree, made(root, TRUNK), lambda joint, on: made(on.place(*_pair(tree.body.offset[joint])), joint))


def turns_of(angles: Numbers) -> list[tuple[Number, Number]]:
    """Cosines and sines, one after the other in a loop: each of them is a long piece of a program, which so has it once."""

    def one(place, turns):
        angle = angles[0]
        for each, other in enumerate(angles):
            angle = jnp.where(place == each, other, angle)
        turn = jnp.cos(angle), jnp.sin(angle)
        return [
            tuple(jnp.where(place == each, new, old) for new, old in zip(turn, turns[each], strict=True))
            for each in range(len(angles))
        ]

    return jax.lax.fori_loop(0, len(angles), one, [(angle, angle) for angle in angles])


def _along_joint(frames: dict[int, Frame], joint: int, push: Triple) -> Number:
    """How much of a push acts along a joint."""
    if joint < TRUNK:
        return push[joint]
    at = frames[joint].at
    return push.turn - at.z * push.x + at.x * push.z


def joint_forces(frames: dict[int, Frame], pushes: dict[int, Triple]) -> list[Number]:
    """Along every joint, from what pushes each body and all that hang on it."""
    return [_along_joint(frames, joint, pushes[max(joint, TRUNK)]) for joint in range(JOINTS)]


def matrix_of(tree: Tree, frames: dict[int, Frame], stiff: dict[int, Stiffness]) -> Matrix:
    """Of all joints, from that of each body and all that hang on it."""
    found = {}
    for joint in range(JOINTS):
        moved = stiff[max(joint, TRUNK)]
        push = moved.along() if joint == 0 else moved.up() if joint == 1 else moved.about(frames[joint].at)
        for other in [joint, *above(tree, joint)]:
            found[other, joint] = _along_joint(frames, other, push)
    return found


def _pair(row: np.ndarray) -> tuple[float, float]:
    return float(row[0]), float(row[1])
