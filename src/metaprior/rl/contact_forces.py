r"""The accelerations of a body that limits and contacts push: the minimum of a convex function, which is MuJoCo's.

$$\tfrac12 a^T M a - a^T f + \tfrac12 \sum_i D_i \min(J_i a - r_i, 0)^2$$

M is the inertia, f all other forces. Between two places where a row begins or ceases to push the function is a parabola. So a
line search can be exact, and Newton's method ends after a few steps. All is written in sums and single numbers, without the
products and factors of libraries: each of those would be a program of its own, and on an accelerator their number takes the time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Constraints(NamedTuple):
    """Rows that push where J a < r."""

    jacobian: Float[Array, "R N"]  # J
    target: Float[Array, " R"]  # r
    strength: Float[Array, " R"]  # D, zero where nothing touches


def newton(
    inertia: Float[Array, "N N"],
    free: Float[Array, " N"],
    rows: Constraints,
    start: Float[Array, " N"],
    iterations: int,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """The accelerations, and the forces that limits and contacts add.

    Args:
        inertia: M.
        free: f.
        rows: what may push.
        start: the first guess.
        iterations: how many; further ones change nothing once those rows are found that push.
    """
    push, strength = rows.jacobian, rows.strength
    times = lambda matrix, vector: (matrix * vector[None]).sum(axis=1)
    away = lambda a: times(push, a) - rows.target
    forces = lambda away: -(push * (strength * jnp.minimum(away, 0))[:, None]).sum(axis=0)

    def once(_, a):
        now = away(a)
        active = push * jnp.where(now < 0, strength, 0)[:, None]
        curvature = inertia + (active[:, :, None] * push[:, None]).sum(axis=0)
        uphill = times(inertia, a) - free
        way = solve(curvature, forces(now) - uphill)
        along = Line((way * uphill).sum(), (way * times(inertia, way)).sum(), now, times(push, way), strength)
        return a + way * lowest(along)

    found = jax.lax.fori_loop(0, iterations, once, start)
    return found, forces(away(found))


class Line(NamedTuple):
    """The function along a line: slope·t + ½ bend·t² + ½ Σ D min(away + moving·t, 0)²."""

    slope: Float[Array, ""]
    bend: Float[Array, ""]
    away: Float[Array, " R"]
    moving: Float[Array, " R"]
    strength: Float[Array, " R"]

    def derivative(self, at: Float[Array, " K"]) -> Float[Array, " K"]:
        """At several places."""
        short = jnp.minimum(self.away[None] + self.moving[None] * at[:, None], 0)
        return self.slope + self.bend * at + ((self.strength * self.moving)[None] * short).sum(axis=1)


def lowest(line: Line) -> Float[Array, ""]:
    """The t ≥ 0 where it is least.

    Its derivative is made of straight pieces, and their ends are known: it is looked at there, all at once, then on the piece on
    which it changes its sign.
    """
    moves = line.moving != 0
    ends = jnp.where(moves, jnp.maximum(-line.away / jnp.where(moves, line.moving, 1), 0), 0)
    falling = line.derivative(ends) <= 0
    low, high = jnp.where(falling, ends, 0).max(), jnp.where(falling, jnp.inf, ends).min()
    inside = jnp.where(jnp.isfinite(high), (low + high) / 2, low + 1)
    pushing = line.away + line.moving * inside < 0
    bend = line.bend + (jnp.where(pushing, line.strength, 0) * jnp.square(line.moving)).sum()
    found = inside - line.derivative(inside[None])[0] / jnp.where(bend > 0, bend, 1)
    return jnp.where(bend > 0, found, 0)  # nowhere to go: the line is a point


def solve(matrix: Float[Array, "N N"], right: Float[Array, " N"]) -> Float[Array, " N"]:
    """By Cholesky's factors, number by number; for symmetric matrices above zero."""
    size = right.shape[0]
    less = lambda value, left, others: value - sum(a * b for a, b in zip(left, others, strict=True)) if left else value
    rows: list[list[Any]] = [[] for _ in range(size)]  # of the factor, without its diagonal
    scale: list[Any] = []  # one over the diagonal
    for i in range(size):
        for j in range(i):
            rows[i].append(less(matrix[i, j], rows[i][:j], rows[j][:j]) * scale[j])
        scale.append(jax.lax.rsqrt(less(matrix[i, i], rows[i], rows[i])))
    half: list[Any] = []
    for i in range(size):
        half.append(less(right[i], rows[i], half) * scale[i])
    found: list[Any] = []  # from the last on
    for i in reversed(range(size)):
        found.append(less(half[i], [rows[k][i] for k in reversed(range(i + 1, size))], found) * scale[i])
    return jnp.stack(found[::-1])
