"""One step of half-cheetah in single numbers: forces, and the accelerations that follow.

The same physics as in `cheetah_plane`, on the tree of `cheetah_tree`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaprior.rl.cheetah_tips import Touching, forces_of, moved, stiffened, touching_of
from metaprior.rl.cheetah_tree import (
    JOINTS,
    TRUNK,
    Frame,
    Matrix,
    Number,
    Numbers,
    Place,
    Tree,
    above,
    along_tree,
    frames_of,
    gathered,
    joint_forces,
    matrix_of,
)

CLOSE = 1e-4  # of a length: so near two guesses lie on one piece, where the second is exact
SEARCHES = 40  # most steps of a line search; it takes two or three


def substep(
    tree: Tree, qpos: Numbers, qvel: Numbers, start: Numbers, action: Numbers, iterations: int
) -> tuple[list[Number], list[Number], list[Number]]:
    """One step of the engine: positions, velocities and accelerations after it."""
    body, frames = tree.body, frames_of(tree, qpos)
    inertia, free = smooth(tree, frames, qpos, qvel, action)
    touching = touching_of(tree, frames, qpos, qvel)
    found, pushed = newton(tree, frames, inertia, free, touching, start, iterations)
    step = float(body.step)
    # The friction of joints is taken as it will be after the step.
    damped = {(i, j): value + step * float(body.friction[i]) if i == j else value for (i, j), value in inertia.items()}
    gained = solve(tree, damped, [f + p for f, p in zip(free, pushed, strict=True)])
    after = [speed + step * gain for speed, gain in zip(qvel, gained, strict=True)]
    return [place + step * speed for place, speed in zip(qpos, after, strict=True)], after, found


def smooth(
    tree: Tree, frames: dict[int, Frame], qpos: Numbers, qvel: Numbers, action: Numbers
) -> tuple[Matrix, list[Number]]:
    """Inertia, and the forces other than those of limits and contacts."""
    body, bodies = tree.body, range(TRUNK, JOINTS)
    centre = dict(zip(bodies, ((float(x), float(z)) for x, z in body.centres.at), strict=True))
    mass = dict(zip(bodies, map(float, body.masses), strict=True))
    places = {joint: frames[joint].place(*centre[joint]) for joint in bodies}
    masses = {joint: places[joint].stiff(mass[joint], 0.0, mass[joint]) for joint in bodies}
    inertia = matrix_of(tree, frames, gathered(tree, masses))
    # Rotations and motors have an inertia that does not depend on where the body is.
    inertia = {(i, j): value + float(body.turning[i, j]) for (i, j), value in inertia.items()}
    pulls = outwards(tree, frames, qvel, centre)
    gravity = Place(*map(float, body.gravity))
    pushes = {
        joint: places[joint].pushed(mass[joint] * (gravity.x + pull.x), mass[joint] * (gravity.z + pull.z))
        for joint, pull in pulls.items()
    }
    forces = joint_forces(frames, gathered(tree, pushes))
    for joint in range(JOINTS):
        motors = [float(gear) * each for gear, each in zip(body.gear[joint], action, strict=True) if gear]
        spring, rest, friction = (float(of[joint]) for of in (body.spring, body.rest, body.friction))
        forces[joint] = forces[joint] + sum(motors) - spring * (qpos[joint] - rest) - friction * qvel[joint]
    return inertia, forces


def outwards(
    tree: Tree, frames: dict[int, Frame], qvel: Numbers, centre: dict[int, tuple[float, float]]
) -> dict[int, Place]:
    """What turns is drawn inwards, so that it pulls outwards: at each centre of mass, in units of acceleration."""
    turns = along_tree(tree, qvel[TRUNK], lambda joint, turn: turn + qvel[joint])

    def drawn(pull: Place, joint: int, x: float, z: float) -> Place:
        arm, fast = frames[joint].turned(x, z), turns[joint] * turns[joint]
        return Place(pull.x + arm.x * fast, pull.z + arm.z * fast)

    offset = lambda joint: (float(tree.body.offset[joint, 0]), float(tree.body.offset[joint, 1]))
    joints = along_tree(tree, Place(0.0, 0.0), lambda joint, pull: drawn(pull, tree.parents[joint], *offset(joint)))
    return {joint: drawn(pull, joint, *centre[joint]) for joint, pull in joints.items()}


# --- accelerations ----------------------------------------------------------------------------------------------------


class Search(NamedTuple):
    """A loop that goes on until all are done, or it has gone on for long enough."""

    count: Number
    waiting: Number  # 1 where it is not done
    found: Any


def until_done(once: Callable[[Any, Number], tuple[Any, Number]], first: Any, waiting: Number, most: int) -> Any:
    """Repeat where it is waited for; `once` says what it found, and where it was not the last time that was needed."""

    def again(search: Search) -> Search:
        found, waiting = once(search.found, search.waiting)
        keep = lambda new, old: jnp.where(search.waiting > 0, new, old)
        return Search(search.count + 1, keep(jnp.where(waiting, 1, 0), 0), jax.tree.map(keep, found, search.found))

    goes_on = lambda search: (search.count < most) & (jnp.max(search.waiting) > 0)
    return jax.lax.while_loop(goes_on, again, Search(jnp.int32(0), waiting, first)).found


def everywhere(like: Number) -> Number:
    """Ones."""
    return jnp.where(like == like, 1, 1)


def newton(
    tree: Tree,
    frames: dict[int, Frame],
    inertia: Matrix,
    free: Numbers,
    rows: Touching,
    start: Numbers,
    iterations: int,
) -> tuple[list[Number], list[Number]]:
    """The accelerations, and the forces that limits and contacts add: see `contact_forces`."""
    away = lambda a: [move - target for move, target in zip(moved(tree, frames, rows, a), rows.target, strict=True)]
    pushing = lambda now: [jnp.where(gap < 0, strong, 0.0) for gap, strong in zip(now, rows.strength, strict=True)]
    rounding = 100 * jnp.finfo(jnp.result_type(start[0])).eps
    forces = lambda now, active: forces_of(tree, frames, rows, [-d * gap for d, gap in zip(active, now, strict=True)])

    def once(a, waiting):
        now = away(a)
        active = pushing(now)
        moves = product(inertia, a)
        uphill = [value - f for value, f in zip(moves, free, strict=True)]
        down = [force - up for force, up in zip(forces(now, active), uphill, strict=True)]
        way = solve(tree, stiffened(tree, frames, inertia, rows, active), down)
        moving = moved(tree, frames, rows, way)
        bend = dot(way, product(inertia, way))
        length = lowest(dot(way, uphill), bend, now, moving, rows.strength, waiting)
        # While no row begins or ceases to push, by more than rounding, all is a parabola, and this was its minimum.
        turned = 0.0 * length
        for gap, move, strong in zip(now, moving, rows.strength, strict=True):
            turned = jnp.minimum(turned, strong * gap * (gap + length * move + rounding * gap))
        changed = (jnp.abs(length - 1) > CLOSE) | (turned < 0)
        # What rounding leaves to do has no end.
        changed &= length * length * bend > rounding * rounding * dot(a, moves)
        return tuple(each + length * step for each, step in zip(a, way, strict=True)), changed

    found = until_done(once, tuple(start), everywhere(start[0]), iterations)
    now = away(found)
    return list(found), forces(now, pushing(now))


def lowest(slope: Number, bend: Number, away: Numbers, moving: Numbers, strength: Numbers, waiting: Number) -> Number:
    """The t > 0 where slope·t + ½ bend·t² + ½ Σ D min(away + moving·t, 0)² is least.

    Its derivative rises along straight pieces: Newton's method is exact on the last of them, and between what is known to lie
    below and above it does not run away. Where no row begins or ceases to push t is one. Only those that wait are waited for: at
    the minimum itself there is no way to go, and what rounding leaves of it has no end.
    """

    def once(known, _):
        t, low, high = known
        rising, steep = slope + bend * t, bend
        for gap, move, strong in zip(away, moving, strength, strict=True):
            short = gap + t * move
            part = jnp.where(short < 0, strong * move, 0.0)
            rising, steep = rising + part * short, steep + part * move
        low, high = jnp.where(rising < 0, t, low), jnp.where(rising < 0, high, t)
        further = t - rising / jnp.where(steep > 0, steep, 1.0)
        better = jnp.where((further >= low) & (further <= high), further, (low + high) / 2)
        return (better, low, high), jnp.abs(better - t) > CLOSE * t

    one = slope * 0 + 1
    found, _, _ = until_done(once, (one, one * 0, one * 1e6), waiting, SEARCHES)
    return jnp.where(bend > 0, found, 0.0)  # nowhere to go: the line is a point


def dot(left: Numbers, right: Numbers) -> Number:
    """Of two vectors."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def product(matrix: Matrix, vector: Numbers) -> list[Number]:
    """Of a matrix and a vector."""
    found: list[Number] = [0.0] * JOINTS
    for (i, j), value in matrix.items():
        found[i] = found[i] + value * vector[j]
        if i != j:
            found[j] = found[j] + value * vector[i]
    return found


def solve(tree: Tree, matrix: Matrix, right: Numbers) -> list[Number]:
    """By factors L^T D L, from the feet to the trunk: so zeros stay zeros (Featherstone 2008, table 6.3)."""
    left, found, inverse = dict(matrix), list(right), {}
    for k in reversed(range(JOINTS)):
        inverse[k] = 1 / left[k, k]
        for i in above(tree, k):
            share = left[i, k] * inverse[k]
            for j in [i, *above(tree, i)]:
                left[j, i] = left[j, i] - share * left[j, k]
            left[i, k] = share
            found[i] = found[i] - share * found[k]
    for k in range(JOINTS):
        found[k] = found[k] * inverse[k]
        for i in above(tree, k):
            found[k] = found[k] - left[i, k] * found[i]
    return found
