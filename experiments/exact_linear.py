r"""Linear tasks whose evidence has an exact gradient, and the estimators of that gradient held against it.

θ ~ N(μ, σ²I) and y = Xθ + noise. An estimator is a cell of `metaprior.matrix` run by the library's own inference. Where a regime
is not `sampled`, E_q log p(D | θ) is taken in closed form, both in inference and in the score, so that no sampling noise hides
the error that is studied.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from metaprior import matrix
from metaprior.families import MeanField, from_covariance, mean_field, variance
from metaprior.inference import gradient
from metaprior.likelihoods import gaussian
from metaprior.tasks.linear import exact_posterior, log_conditional_evidence
from metaprior.types import Data, Dist, Episode, Family, Likelihood, Prior


class Regime(NamedTuple):
    """How much a task says beside what the prior says."""

    num_points: int
    noise_std: float
    std: float  # σ of the prior
    orthogonal: bool = False  # XᵀX = n·I, so that the posterior factorises
    sampled: bool = False  # one reparameterised sample per step and in the score, instead of exact expectations
    step: float = 0.5  # of inference, as a share of one over the steepest curvature of the ELBO in the mean


class Estimator(NamedTuple):
    """A cell of the matrix, by name."""

    row: str
    column: str
    second_stage: str


def draw_tasks(regime: Regime, seeds: tuple[int, ...], num_tasks: int, num_weights: int) -> Data:
    """`num_tasks` tasks for each seed, one after the other on the first axis; θ from the prior itself, with mean zero."""

    def of_seed(seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(num_tasks, regime.num_points, num_weights))
        if regime.orthogonal:
            x = np.linalg.qr(x)[0] * regime.num_points**0.5
        theta = regime.std * rng.normal(size=(num_tasks, num_weights, 1))
        return x, x @ theta + regime.noise_std * rng.normal(size=(num_tasks, regime.num_points, 1))

    x, y = zip(*map(of_seed, seeds), strict=True)
    return Data(jnp.asarray(np.concatenate(x)), jnp.asarray(np.concatenate(y)))


def split(data: Data, num_support: int) -> Episode:
    """The first points of every task are its support."""
    return Episode(*(Data(data.x[:, part], data.y[:, part]) for part in (slice(num_support), slice(num_support, None))))


def estimate(regime: Regime, estimator: Estimator, episodes: Episode, steps: tuple[int, int]) -> tuple[Dist, Dist]:
    """Of every task, the gradient in (μ, log σ) by one estimator, and the posterior q2 behind it."""

    def one(key, episode):
        likelihood, family, draw = _sampled(regime) if regime.sampled else in_closed_form(regime)
        everything = likelihood.join(*episode)
        # The library's step is on the loss per point.
        optimizer = optax.sgd(everything.x.shape[0] * step_size(regime, everything))
        inference = gradient(likelihood, family, optimizer=optimizer, draw=draw)
        cell = matrix.Cell(likelihood, family, inference, *estimator, steps=steps)
        score = lambda prior: matrix.score(cell, key, prior, episode)
        found, (posteriors, _) = jax.grad(score, has_aux=True)(prior_of(regime, everything.x.shape[1]))
        return found.dist, posteriors.q2

    keys = jax.random.split(jax.random.key(0), episodes.support.x.shape[0])
    # Each program runs once: nearly all of the time goes into compiling it.
    run = jax.jit(jax.vmap(one), compiler_options={"xla_backend_optimization_level": 0})
    return jax.tree.map(np.asarray, run(keys, episodes))


def exact_gradients(regime: Regime, episodes: Episode) -> MeanField:
    """Of every task, ∇ log p(D_val | D_tr; μ, log σ) by differentiating the exact evidence; with no support it is of L[1]."""

    def evidence(dist, episode):
        cov = jnp.diag(jnp.exp(2 * dist.log_std))
        return log_conditional_evidence(dist.mean, cov, episode.support, episode.query, regime.noise_std)

    dist = prior_of(regime, episodes.query.x.shape[2]).dist
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda episode: jax.grad(evidence)(dist, episode)))(episodes))


def prior_of(regime: Regime, num_weights: int) -> Prior:
    """Θ, at which gradients are taken: the prior that tasks are drawn from."""
    return Prior(MeanField(jnp.zeros(num_weights), jnp.full(num_weights, np.log(regime.std))))


def step_size(regime: Regime, data: Data) -> Float[Array, ""]:
    """α of λ ← λ + α∇ELBO, by all the data of a task: steps are stable below two times one over the curvature."""
    a, b = precisions(regime, data)
    return regime.step / jnp.linalg.eigvalsh(a + b)[-1]


def precisions(regime: Regime, data: Data) -> tuple[Float[Array, "F F"], Float[Array, "F F"]]:
    """What the data and what the prior say of θ: A = XᵀX/s² and B = I/σ²."""
    return data.x.T @ data.x / regime.noise_std**2, jnp.eye(data.x.shape[1]) / regime.std**2


def gem_gradient(regime: Regime, q: MeanField) -> MeanField:
    """E_q ∇ log p(θ; μ, log σ): all that Gradient-EM takes from a posterior."""
    return jax.grad(lambda dist: -mean_field().kl(q, dist))(prior_of(regime, q.mean.shape[0]).dist)


def posterior(regime: Regime, data: Data) -> tuple[Float[Array, " F"], Float[Array, "F F"]]:
    """Mean and covariance of p(θ | D), exact."""
    mean = prior_of(regime, data.x.shape[1]).dist.mean
    return exact_posterior(mean, regime.std**2 * jnp.eye(mean.shape[0]), data.x, data.y, regime.noise_std)


def laws(regime: Regime, data: Data, exact: Float[Array, " F"], num_steps: int) -> dict[str, Float[Array, " F"]]:
    r"""What both estimators of ∂μ are after K steps from the prior, given the exact one g, with $R = I - \alpha(A + B)$.

    $$\mathrm{GEM}_K = (I - R^K)\,g \qquad \mathrm{ELBO}_K = (I + R^{2K} A B^{-1})\,g$$

    With one weight: $1 - \rho^K$ and $1 + \rho^{2K} a/b$ times the exact gradient, so that Gradient-EM is the closer of the two
    while $\rho^K > b/a$.
    """
    a, b = precisions(regime, data)
    curvatures, directions = jnp.linalg.eigh(a + b)
    power = lambda count, vector: (
        directions @ ((1 - step_size(regime, data) * curvatures) ** count * (directions.T @ vector))
    )
    return {"gem": exact - power(num_steps, exact), "elbo": exact + power(2 * num_steps, a @ exact) * regime.std**2}


def predict(weights: Float[Array, " F"], x: Float[Array, "N F"]) -> Float[Array, "N 1"]:
    """The linear model."""
    return (x @ weights)[:, None]


def _sampled(regime) -> tuple[Likelihood, Family, None]:
    return gaussian(predict, noise_std=regime.noise_std), mean_field(), None


def in_closed_form(regime: Regime) -> tuple[Likelihood, Family, Callable]:
    r"""$E_q \log N(y \mid x\theta, s^2) = \log N(y \mid xm, s^2) - \frac{1}{2s^2}\sum_i x_i^2 s_i^2$: "weights" are all of q."""
    plain = gaussian(predict, noise_std=regime.noise_std)

    def outputs(q, batch):
        return jnp.concatenate([predict(q.mean, batch.x), predict(variance(q), batch.x**2)], axis=1)

    def log_density(outputs, batch):
        return plain.log_density(outputs[:, :1], batch) - 0.5 * outputs[:, 1] / regime.noise_std**2

    exact = plain._replace(outputs=outputs, log_density=log_density)
    family = mean_field()._replace(
        expected_log_prob=lambda key, likelihood, q, batch, num_samples=1: likelihood.log_prob(q, batch)
    )
    return exact, family, lambda key, q: q


class Bounds(NamedTuple):
    """How far q is from the posterior, and what that allows the error of Gradient-EM to be."""

    kl: Float[Array, ""]  # KL(q ‖ p(θ | D))
    valid: Float[Array, ""]
    printed: Float[Array, ""]  # Appendix A.3: √2·M·√KL, which does not follow there


def bounds(regime: Regime, q: MeanField, mean: Float[Array, " F"], cov: Float[Array, "F F"]) -> Bounds:
    r"""What KL(q ‖ p) says about $\|E_q f - E_p f\|$, f = ∇ log p(θ; μ, log σ), for a Gaussian posterior p = N(m, C).

    Coupled as well as can be, draws of q and p are $W_2^2 \le 2\lambda\,\mathrm{KL}(q\|p)$ apart, λ the largest eigenvalue of C
    (Talagrand). f is linear in θ for μ and quadratic for log σ; with r the root mean square of $\theta_i - \mu_i$,

    $$\|E_q f - E_p f\| \le \frac{\sqrt{2\lambda\,\mathrm{KL}}}{\sigma^2} \sqrt{1 + \max_i (r_i^q + r_i^p)^2}.$$

    The paper has $\sqrt2 M \sqrt{\mathrm{KL}}$ with $M^2 = E_p\|f\|^2$.
    """
    mu = prior_of(regime, mean.shape[0]).dist.mean
    kl = mean_field().kl(q, from_covariance(mean, cov))
    square_q = jnp.square(q.mean - mu) + variance(q)
    away, var = jnp.square(mean - mu), jnp.diagonal(cov)
    spread = jnp.sqrt(square_q) + jnp.sqrt(away + var)
    valid = jnp.sqrt(2 * jnp.linalg.eigvalsh(cov)[-1] * kl) / regime.std**2 * jnp.sqrt(1 + jnp.square(spread).max())
    fourth = away**2 + 6 * away * var + 3 * var**2  # E_p (θ − μ)⁴
    m_squared = (away + var + fourth) / regime.std**4 - 2 * (away + var) / regime.std**2 + 1
    return Bounds(kl, valid, jnp.sqrt(2 * m_squared.sum() * kl))
