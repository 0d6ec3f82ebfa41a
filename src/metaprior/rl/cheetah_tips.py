"""What limits and the ground push back at half-cheetah: rows, each of which pushes where it moves by less than a target.

There is a row for each limit of a joint, then three for each tip, the ends of limbs: straight up, and along both edges of the
friction pyramid. All numbers are single, as in `cheetah_tree`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from metaprior.rl.cheetah_tree import (
    TRUNK,
    Frame,
    Matrix,
    Number,
    Numbers,
    Place,
    Stiffness,
    Tree,
    Triple,
    along_tree,
    gathered,
    joint_forces,
    matrix_of,
)

LEAST = 1e-15  # MuJoCo's
EDGES = (2.0, 1.0, 1.0)  # of a friction pyramid, in the rows of a tip


class Spring(NamedTuple):
    """How something pushes back, as MuJoCo has it: a spring that grows stiff with depth."""

    stiffness: float
    damping: float
    least: float  # of the impedance
    most: float
    width: float
    middle: float
    weight: float

    def pushing(self, gap: Number) -> tuple[Number, Number]:
        """Which acceleration it wants where nothing moves, and how strongly. Above zero a gap is open, and nothing pushes."""
        depth = jnp.minimum(jnp.abs(gap) / self.width, 1.0)
        early = depth * depth / self.middle
        late = 1 - (1 - depth) * (1 - depth) / (1 - self.middle)
        impedance = self.least + jnp.where(depth < self.middle, early, late) * (self.most - self.least)
        softness = jnp.maximum(self.weight * (1 - impedance) / impedance, LEAST)
        return -impedance * self.stiffness * gap, jnp.where(gap < 0, 1 / softness, 0.0)


class Tip(NamedTuple):
    """An end of a limb, which may touch the ground."""

    body: int
    x: float  # where it is on its body
    z: float
    radius: float
    slip: float  # how much of the way along the ground is in its rows
    spring: Spring


def tips_of(tree: Tree) -> list[Tip]:
    """All of them."""
    body, rows = tree.body, tree.body.contact_rows
    middle = range(0, len(rows.stiffness), 3)  # three rows to a tip, alike but for the slip
    springs = [_spring(rows, row) for row in middle]
    owners = [int(np.flatnonzero(row).max()) for row in body.tips.turning]
    columns = (map(float, part) for part in (*body.tips.at.T, body.radius, body.slip[:, 1]))
    return [Tip(*known) for known in zip(owners, *columns, springs, strict=True)]


def _spring(rows, row: int) -> Spring:
    known = (rows.stiffness[row], rows.damping[row], *rows.impedance[row, :4], rows.weight[row])
    return Spring(*map(float, known))


class Touching(NamedTuple):
    """All that may push."""

    tips: list[Tip]
    signs: list[Number]  # of limits: which way they push
    places: list[Place]  # where tips touch
    target: list[Number]  # of limits, then of tips
    strength: list[Number]  # zero where nothing touches


def touching_of(tree: Tree, frames: dict[int, Frame], qpos: Numbers, qvel: Numbers) -> Touching:
    """What may push a body that is so, and moves so."""
    body, tips, signs, springs, gaps, edges = tree.body, tips_of(tree), [], [], [], []
    for joint in tree.limited:
        low, high = qpos[joint] - float(body.limits[joint, 0]), float(body.limits[joint, 1]) - qpos[joint]
        signs.append(jnp.where(low < high, 1.0, -1.0))
        gaps.append(jnp.minimum(low, high))
        springs.append(_spring(body.limit_rows, joint))
        edges.append((float(body.limit_rows.edges[joint]),))
    places = []
    for tip in tips:
        at = frames[tip.body].place(tip.x, tip.z)
        gaps.append(at.z - tip.radius)
        places.append(Place(at.x, gaps[-1] / 2))  # halfway between the ground and what has sunk into it
        springs.append(tip.spring)
        edges.append(EDGES)
    rows = Touching(tips, signs, places, [], [])
    speeds = iter(moved(tree, frames, rows, qvel))
    for spring, gap, alike in zip(springs, gaps, edges, strict=True):
        wanted, strength = spring.pushing(gap)
        for edge in alike:
            rows.target.append(wanted - spring.damping * next(speeds))
            rows.strength.append(edge * strength)
    return rows


def of_tips(rows: Touching, numbers: Numbers) -> list[tuple[Tip, Place, Number, Number, Number]]:
    """The numbers of a tip's three rows, beside it: middle, ahead and back."""
    three = [iter(numbers[len(rows.signs) :])] * 3
    return [
        (tip, place, *own) for tip, place, own in zip(rows.tips, rows.places, zip(*three, strict=True), strict=True)
    ]


def moved(tree: Tree, frames: dict[int, Frame], rows: Touching, speeds: Numbers) -> list[Number]:
    """How rows move when joints do."""

    def turning(joint: int) -> Triple:
        at, speed = frames[joint].at, speeds[joint]
        return Triple(-at.z * speed, at.x * speed, speed)

    trunk = Triple(speeds[0], speeds[1], 0.0) + turning(TRUNK)
    motions = along_tree(tree, trunk, lambda joint, motion: motion + turning(joint))
    found = [sign * speeds[joint] for sign, joint in zip(rows.signs, tree.limited, strict=True)]
    for tip, place in zip(rows.tips, rows.places, strict=True):
        along, up = place.moving(motions[tip.body])
        found += [up, up + tip.slip * along, up - tip.slip * along]
    return found


def forces_of(tree: Tree, frames: dict[int, Frame], rows: Touching, pushes: Numbers) -> list[Number]:
    """What rows that push are to the joints."""
    own = dict.fromkeys(frames, Triple(0.0, 0.0, 0.0))
    for tip, place, middle, ahead, back in of_tips(rows, pushes):
        own[tip.body] = own[tip.body] + place.pushed(tip.slip * (ahead - back), middle + ahead + back)
    found = joint_forces(frames, gathered(tree, own))
    for joint, sign, each in zip(tree.limited, rows.signs, pushes, strict=False):
        found[joint] = found[joint] + sign * each
    return found


def stiffened(
    tree: Tree, frames: dict[int, Frame], inertia: Matrix, rows: Touching, strength: Sequence[Number]
) -> Matrix:
    """Inertia, and how rows resist."""
    own = dict.fromkeys(frames, Stiffness(*[0.0] * 6))
    for tip, place, middle, ahead, back in of_tips(rows, strength):
        slip = tip.slip
        stiff = place.stiff(slip * slip * (ahead + back), slip * (ahead - back), middle + ahead + back)
        own[tip.body] = own[tip.body] + stiff
    added = matrix_of(tree, frames, gathered(tree, own))
    found = {place: value + added[place] for place, value in inertia.items()}
    for joint, strong in zip(tree.limited, strength, strict=False):
        found[joint, joint] = found[joint, joint] + strong
    return found
