r"""The shape of a cloud of weights seen from one point: how far, how alike, in how many directions.

Weights are many and tasks are few: of displacements $d_i = θ_i - Θ$ all that counts here is in their products $d_i^⊤ d_j$, the
Gram matrix, or in coordinates along their own principal axes. No matrix of weights by weights is ever made.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def along_axes(away: Float[Array, "N W"]) -> tuple[Float[Array, "N N"], Float[Array, "2 W"]]:
    """Coordinates along the principal axes through the origin, widest first, and the first two of those axes.

    Distances and products of the coordinates are those of the displacements themselves.
    """
    # Of weights that all but agree: the short products of a card's default would drown their differences.
    values, vectors = jnp.linalg.eigh(jnp.matmul(away, away.T, precision="highest"))
    lengths, vectors = jnp.sqrt(jnp.maximum(values[::-1], 0.0)), vectors[:, ::-1]
    first = vectors[:, :2] / jnp.maximum(lengths[None, :2], jnp.finfo(away.dtype).tiny)
    return vectors * lengths[None], jnp.matmul(first.T, away, precision="highest")


def distances(gram: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """Between all pairs: |dᵢ − dⱼ|² = dᵢᵀdᵢ + dⱼᵀdⱼ − 2 dᵢᵀdⱼ."""
    square = np.diag(gram)
    return np.sqrt(np.maximum(square[:, None] + square[None] - 2 * gram, 0.0))


def participation_ratio(gram: Float[np.ndarray, "N N"]) -> float:
    """(Σλ)² / Σλ² of the eigenvalues λ: k, if k directions share the spread equally.

    >>> participation_ratio(np.diag([2.0, 2.0, 2.0, 0.0]))
    3.0
    """
    return float(np.trace(gram) ** 2 / np.square(gram).sum())


def dimensions(gram: Float[np.ndarray, "N N"]) -> float:
    """The participation ratio of ever more tasks, estimated from these: products of different tasks alone.

    N tasks span no more than N directions, so their own ratio is too low: it counts products of displacements with themselves.
    E(dᵢᵀdⱼ)² = tr E[ddᵀ]² for i ≠ j has no such error.
    """
    return float(np.mean(np.diag(gram)) ** 2 / np.mean(np.square(_off_diagonal(gram))))


def in_common(gram: Float[np.ndarray, "N N"]) -> float:
    """|E d|² / E|d|²: the share of the squared displacement that all tasks have in common, without bias from their number.

    None where the origin is the mean of the cloud; it may then come out a little below zero.
    """
    return float(np.mean(_off_diagonal(gram)) / np.mean(np.diag(gram)))


def _off_diagonal(matrix: Float[np.ndarray, "N N"]) -> Float[np.ndarray, " M"]:
    return matrix[~np.eye(len(matrix), dtype=bool)]
