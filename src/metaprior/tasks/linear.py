"""Linear tasks with a Gaussian prior: the world in which posterior and evidence are known exactly.

Everything the package approximates can be held against the closed forms here. `F` features, `N` points.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metaprior.tasks.base import Curve, Tasks, regression
from metaprior.types import Key

Scalar = Float[Array, ""] | float
Targets = Float[Array, " N"] | Float[Array, "N 1"]


def affine(x: Float[Array, "N D"]) -> Float[Array, "N F"]:
    """Φ(x) = (1, x): a random intercept and random slopes."""
    return jnp.concatenate([jnp.ones_like(x[:, :1]), x], axis=1)


@dataclass(frozen=True)
class Truth:
    """The prior that tasks are drawn from, θ ~ N(mean, cov), and the noise; what meta-learning should find.

    Give `std` for independent weights or `cov` for the full covariance, not both; neither is std 1.
    """

    mean: tuple[float, ...] = (1.0, -0.5)
    std: tuple[float, ...] | None = None
    cov: tuple[tuple[float, ...], ...] | None = None
    noise_std: float = 0.5
    features: Callable[[Float[Array, "N 1"]], Float[Array, "N F"]] = affine
    input_range: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self):
        size = len(self.mean)
        if self.std is not None and self.cov is not None:
            raise ValueError("std and cov both say how weights vary: give one of them")
        if self.std is not None and (len(self.std) != size or min(self.std) < 0):
            raise ValueError(f"std must hold {size} numbers >= 0, one for each entry of mean, got {self.std}")
        if self.covariance.shape != (size, size) or not _is_covariance(self.covariance):
            raise ValueError(f"cov must be a symmetric positive semi-definite {size} x {size} matrix, got {self.cov}")
        if not (math.isfinite(self.noise_std) and self.noise_std > 0):
            raise ValueError(f"noise_std must be positive, got {self.noise_std}: the exact posterior needs some noise")

    @property
    def covariance(self) -> np.ndarray:
        """The covariance of θ, as a matrix."""
        std = (1.0,) * len(self.mean) if self.std is None else self.std
        return np.diag(np.square(std)) if self.cov is None else np.asarray(self.cov, float)


def _is_covariance(matrix: np.ndarray) -> bool:
    smallest = np.linalg.eigvalsh(matrix)[0]
    return np.allclose(matrix, matrix.T) and bool(smallest >= -1e-9 * np.abs(matrix).max())  # rounding may cross zero


DEFAULT = Truth(std=(1.0, 0.5))


def linear(*, truth: Truth = DEFAULT, shots: int = 10, queries: int = 10, eval_queries: int = 100) -> Tasks:
    r"""Random linear functions of fixed features.

    $$\theta \sim N(\mu, \Sigma), \qquad y = \Phi(x)\theta + \varepsilon, \qquad \varepsilon \sim N(0, s^2)$$

    Args:
        truth: μ, Σ, s and Φ.
        shots: support points of a task.
        queries: query points of a task.
        eval_queries: points of the noise-free grid on which a task is evaluated.
    """
    values, vectors = np.linalg.eigh(truth.covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))  # Σ = factor factorᵀ, also where Σ is singular

    def draw(key: Key) -> Curve:
        theta = jnp.asarray(truth.mean, float) + jnp.asarray(factor) @ jax.random.normal(key, (len(truth.mean),))
        return Curve(lambda x: (truth.features(x) @ theta)[:, None], truth.noise_std)

    return regression(
        "linear",
        f"y = Φ(x)θ + noise of std {truth.noise_std:g}, θ ~ N(μ, Σ) with {len(truth.mean)} weights, all of it known",
        draw,
        input_range=truth.input_range,
        shots=shots,
        queries=queries,
        eval_queries=eval_queries,
    )


def exact_posterior(
    mean: Float[Array, " F"],
    cov: Float[Array, "F F"],
    features: Float[Array, "N F"],
    y: Targets,
    noise_std: Scalar,
    temperature: Scalar = 1.0,
) -> tuple[Float[Array, " F"], Float[Array, "F F"]]:
    r"""p(θ | D) ∝ N(θ; μ, Σ) N(y; Φθ, s²I)^{1/T}, as its mean and covariance.

    $$C = (\Sigma^{-1} + \Phi^\top\Phi/(Ts^2))^{-1}, \qquad m = \mu + C\,\Phi^\top (y - \Phi\mu)/(Ts^2)$$

    Σ is never inverted, so weights known beforehand (variance zero) are legal; so is an empty data set: the prior.

    >>> m, c = exact_posterior(jnp.zeros(1), jnp.eye(1), jnp.ones((3, 1)), jnp.full(3, 4.0), 1.0)
    >>> round(float(m[0]), 4), round(float(c[0, 0]), 4)
    (3.0, 0.25)
    """
    variance = temperature * noise_std**2
    gram = features.T @ features / variance
    identity = jnp.eye(mean.shape[0], dtype=cov.dtype)
    posterior_cov = jnp.linalg.solve(identity + cov @ gram, cov)  # (I + ΣG)⁻¹Σ = (Σ⁻¹ + G)⁻¹
    posterior_cov = (posterior_cov + posterior_cov.T) / 2  # rounding alone makes it lopsided
    residual = y.reshape(-1) - features @ mean
    return mean + posterior_cov @ (features.T @ residual) / variance, posterior_cov


def log_evidence(
    mean: Float[Array, " F"],
    cov: Float[Array, "F F"],
    features: Float[Array, "N F"],
    y: Targets,
    noise_std: Scalar,
) -> Float[Array, ""]:
    r"""The log evidence log p(D; Θ), the marginal likelihood of all points together; zero for no points.

    $$\log N(y;\ \Phi\mu,\ \Phi\Sigma\Phi^\top + s^2 I)$$
    """
    num_points = features.shape[0]
    if num_points == 0:
        return jnp.zeros((), mean.dtype)
    root = jnp.linalg.cholesky(features @ cov @ features.T + noise_std**2 * jnp.eye(num_points, dtype=cov.dtype))
    white = jax.scipy.linalg.solve_triangular(root, y.reshape(-1) - features @ mean, lower=True)
    return -0.5 * (white @ white) - jnp.log(jnp.diag(root)).sum() - 0.5 * num_points * math.log(2 * math.pi)


def log_conditional_evidence(
    mean: Float[Array, " F"],
    cov: Float[Array, "F F"],
    support: tuple[Float[Array, "K F"], Array],
    query: tuple[Float[Array, "M F"], Array],
    noise_std: Scalar,
) -> Float[Array, ""]:
    r"""The log evidence of the query set given the support set: the support's posterior is its prior.

    $$L^{[2]}(D_{tr} \to D_{val}) = L^{[1]}(D_{tr} \cup D_{val}) - L^{[1]}(D_{tr})$$

    Args:
        mean: μ of the prior.
        cov: Σ of the prior.
        support: features [K, F] and targets [K] or [K, 1] of D_tr.
        query: features [M, F] and targets [M] or [M, 1] of D_val.
        noise_std: s.
    """
    return log_evidence(*exact_posterior(mean, cov, *support, noise_std), *query, noise_std)
