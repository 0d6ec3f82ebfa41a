"""What limits and the ground push back at half-cheetah: rows, each of which pushes where it moves by less than a target.

Numbers of joints are single, as in `cheetah_tree`. What is known of tips, the ends of limbs, has an axis of tips in front: on a
GPU each of them has a thread.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from metaprior.rl.cheetah_tree import (
    JOINTS,
    TRUNK,
    Frame,
    Matrix,
    Number,
    Numbers,
    Place,
    Stiffness,
    Tree,
    Triple,
    joint_forces,
    matrix_of,
)

LEAST = 1e-15  # MuJoCo's


class Tips(NamedTuple):
    """What is known of the ends of limbs, which may touch the ground: arrays over them, with an axis for each of the numbers'."""

    x: Array  # where they are on their body
    z: Array
    radius: Array
    slip: Array  # how much of the way along the ground is in their rows
    stiffness: Array
    damping: Array
    least: Array  # of the impedance, as MuJoCo has it
    most: Array
    width: Array
    middle: Array
    weight: Array
    owned: dict[int, Array]  # 1 for the tips of a body
    moved: dict[int, Array]  # 1 for the tips of a body and of all that hang on it

    @classmethod
    def of(cls, rows: Sequence[Array]) -> "Tips":
        """From the rows of a table."""
        single, bodies = len(cls._fields) - 2, range(TRUNK, JOINTS)
        owned, moved = rows[single : single + len(bodies)], rows[single + len(bodies) :]
        masks = (dict(zip(bodies, part, strict=True)) for part in (owned, moved))
        return cls._make([*rows[:single], *masks])


def tips_table(tree: Tree) -> np.ndarray:
    """What `Tips` has, a row for each."""
    body, middle = tree.body, slice(None, None, 3)  # three rows to a tip, alike but for the slip
    rows, moved = body.contact_rows, body.tips.turning.T[TRUNK:]
    last = [int(np.flatnonzero(row).max()) for row in body.tips.turning]
    owned = np.eye(JOINTS)[last].T[TRUNK:]
    single = [
        *body.tips.at.T, body.radius, body.slip[:, 1], rows.stiffness[middle], rows.damping[middle],
        *rows.impedance[middle, :4].T, rows.weight[middle],
    ]  # fmt: skip
    return np.stack([*single, *owned, *moved])


class Touching(NamedTuple):
    """Rows that push where they move by less than a target: one for each limit, and three for each tip (middle, ahead, back)."""

    tips: Tips
    signs: list[Number]  # of limits: which way they push
    place: Place  # where tips touch
    target: list[Number]  # of limits, then of tips
    strength: list[Number]  # zero where nothing touches


EDGES = (2.0, 1.0, 1.0)  # of a friction pyramid, in the rows of a tip


def touching_of(tree: Tree, frames: dict[int, Frame], tips: Tips, qpos: Numbers, qvel: Numbers) -> Touching:
    """All that may push."""
    body, signs, gaps = tree.body, [], []
    for joint in tree.limited:
        low, high = qpos[joint] - float(body.limits[joint, 0]), float(body.limits[joint, 1]) - qpos[joint]
        signs.append(jnp.where(low < high, 1.0, -1.0))
        gaps.append(jnp.minimum(low, high))
    of_tips = lambda numbers: over_tips(tips.owned, numbers)
    cos, sin = (
        of_tips({j: frame.cos for j, frame in frames.items()}),
        of_tips({j: frame.sin for j, frame in frames.items()}),
    )
    x, z = (
        of_tips({j: frame.at.x for j, frame in frames.items()}),
        of_tips({j: frame.at.z for j, frame in frames.items()}),
    )
    gap = z + cos * tips.z - sin * tips.x - tips.radius
    place = Place(x + cos * tips.x + sin * tips.z, gap / 2)  # halfway between the ground and what has sunk into it
    rows = Touching(tips, signs, place, [], [])
    speeds = moved(tree, frames, rows, qvel)
    for joint, each, speed in zip(tree.limited, gaps, speeds, strict=False):
        alike = [float(part[joint]) for part in (body.limit_rows.stiffness, body.limit_rows.damping)]
        alike += [*map(float, body.limit_rows.impedance[joint, :4]), float(body.limit_rows.weight[joint])]
        _push(rows, alike, float(body.limit_rows.edges[joint]), each, speed)
    alike = [tips.stiffness, tips.damping, tips.least, tips.most, tips.width, tips.middle, tips.weight]
    for edges, speed in zip(EDGES, speeds[len(signs) :], strict=True):
        _push(rows, alike, edges, gap, speed)
    return rows


def _push(into: Touching, alike: Sequence[Any], edges: float, gap: Number, speed: Number) -> None:
    """What a row wants, and how strongly, as MuJoCo has it: a spring that grows stiff with depth. Above zero a gap is open."""
    stiffness, damping, least, most, width, middle, weight = alike
    depth = jnp.minimum(jnp.abs(gap) / width, 1.0)
    early = depth * depth / middle
    late = 1 - (1 - depth) * (1 - depth) / (1 - middle)
    impedance = least + jnp.where(depth < middle, early, late) * (most - least)
    into.target.append(-speed * damping - impedance * stiffness * gap)
    softness = jnp.maximum(weight * (1 - impedance) / impedance, LEAST)
    into.strength.append(jnp.where(gap < 0, edges / softness, 0.0))


def over_tips(masks: dict[int, Array], numbers: dict[int, Number]) -> Array:
    """What each tip has of the bodies: numbers where its mask is 1, added up."""
    spread = lambda number: number if isinstance(number, float) else number[None]
    return reduce(add, (mask * spread(numbers[joint]) for joint, mask in masks.items() if _counts(numbers[joint])))


def _counts(number: Number) -> bool:
    return not (isinstance(number, float) and number == 0)


def moved(tree: Tree, frames: dict[int, Frame], rows: Touching, speeds: Numbers) -> list[Number]:
    """How rows move when joints do: limits, then tips."""
    bodies = range(TRUNK, JOINTS)
    turn = over_tips(rows.tips.moved, {joint: speeds[joint] for joint in bodies})
    x = over_tips(rows.tips.moved, {joint: frames[joint].at.z * speeds[joint] for joint in bodies})
    z = over_tips(rows.tips.moved, {joint: frames[joint].at.x * speeds[joint] for joint in bodies})
    along, up = rows.place.moving(Triple(speeds[0][None] - x, speeds[1][None] + z, turn))
    slip = rows.tips.slip * along
    return [
        *(sign * speeds[joint] for sign, joint in zip(rows.signs, tree.limited, strict=True)),
        up,
        up + slip,
        up - slip,
    ]


def forces_of(tree: Tree, frames: dict[int, Frame], rows: Touching, pushes: Numbers) -> list[Number]:
    """What rows that push are to the joints."""
    middle, ahead, back = pushes[-3:]
    push = rows.place.pushed(rows.tips.slip * (ahead - back), middle + ahead + back)
    whole = {joint: Triple(*((mask * part).sum(axis=0) for part in push)) for joint, mask in rows.tips.moved.items()}
    found = joint_forces(frames, whole)
    for joint, sign, each in zip(tree.limited, rows.signs, pushes, strict=False):
        found[joint] = found[joint] + sign * each
    return found


def stiffened(tree: Tree, frames: dict[int, Frame], inertia: Matrix, rows: Touching, strength: Numbers) -> Matrix:
    """Inertia, and how rows resist."""
    middle, ahead, back = strength[-3:]
    slip = rows.tips.slip
    stiff = rows.place.stiff(slip * slip * (ahead + back), slip * (ahead - back), middle + ahead + back)
    whole = {
        joint: Stiffness(*((mask * part).sum(axis=0) for part in stiff)) for joint, mask in rows.tips.moved.items()
    }
    added = matrix_of(tree, frames, whole)
    found = {place: value + added[place] for place, value in inertia.items()}
    for joint, strong in zip(tree.limited, strength, strict=False):
        found[joint, joint] = found[joint, joint] + strong
    return found
