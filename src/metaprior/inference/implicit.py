r"""A point posterior whose derivative is implicit (iMAML): nothing is stored of the way there.

$$\theta^* = \arg\min_\theta\; N_{\text{eff}}\, \overline{\text{loss}}(\theta)
+ \tfrac12 (\theta-\mu)^\top \Lambda (\theta-\mu), \qquad
\Big(\frac{\partial\theta^*}{\partial\mu}\Big)^{\!\top} g = \Lambda\, (\Lambda + H)^{-1} g$$

Λ is the precision of the prior, per weight; H the curvature of the data at θ*. The solve is JAX's conjugate gradients.
Indefinite H is damped.
"""

import jax
import jax.numpy as jnp

from metaprior.families import Delta
from metaprior.inference.base import mean_loss
from metaprior.inference.gradient import gradient
from metaprior.types import Family, Inference, Likelihood


def implicit(
    likelihood: Likelihood,
    family: Family,
    *,
    optimizer=0.01,
    solver_steps: int = 5,
    damping: float = 0.0,
    pull: bool = True,
) -> Inference:
    """Gradient steps, differentiated at their end as if they had converged.

    Args:
        likelihood: what the data say.
        family: of points.
        optimizer: as in `gradient`.
        solver_steps: of the conjugate gradients.
        damping: added to the curvature.
        pull: whether steps are pulled back to the prior, as the minimum asks; iMAML's authors leave it to the derivative.
    """
    if solver_steps < 1:
        raise ValueError(f"the implicit derivative needs at least one solver step, got {solver_steps}")
    if not damping >= 0:
        raise ValueError(f"damping cannot be negative, got {damping}")
    explicit = gradient(likelihood, family, optimizer=optimizer, pull=pull)

    def optimality(mean, dist, source):  # zero at θ*
        num_eff = likelihood.effective_size(source)
        return jax.grad(lambda m: num_eff * mean_loss(likelihood, m, source) + family.kl(Delta(m), dist))(mean)

    # Implicit function theorem: ∂θ*/∂Θ = −(Λ + H)⁻¹ ∂F/∂Θ. Solved where somebody differentiates: to adapt takes steps alone.
    @jax.custom_vjp
    def reached(dist, fixed, source):
        del dist, source
        return fixed

    def pull_back(known, slope):
        dist, fixed, source = known

        def damped_curvature(v):  # (Λ + H + damping) v
            _, product = jax.jvp(lambda m: optimality(m, dist, source), (fixed,), (v,))
            return jax.tree.map(lambda a, b: a + damping * b, product, v)

        solved, _ = jax.scipy.sparse.linalg.cg(damped_curvature, slope, maxiter=solver_steps, tol=0.0)
        (by_prior,) = jax.vjp(lambda dist: optimality(fixed, dist, source), dist)[1](solved)
        return jax.tree.map(jnp.negative, by_prior), None, None

    reached.defvjp(lambda dist, fixed, source: (fixed, (dist, fixed, source)), pull_back)

    def posterior(state, prior, source):
        return Delta(reached(prior.dist, jax.lax.stop_gradient(state.q.mean), source))

    return explicit._replace(
        name="implicit",
        # The steps themselves see a fixed prior: the derivative comes from the optimality condition alone.
        init=lambda key, prior, start, source, memory: explicit.init(
            key, prior, jax.lax.stop_gradient(start), source, memory
        ),
        step=lambda key, state, prior, source: explicit.step(key, state, jax.lax.stop_gradient(prior), source),
        posterior=posterior,
    )
