r"""A point posterior whose derivative is implicit (iMAML): nothing is stored of the way there.

$$\theta^* = \arg\min_\theta\; N_{\text{eff}}\, \overline{\text{loss}}(\theta)
+ \tfrac12 (\theta-\mu)^\top \Lambda (\theta-\mu), \qquad
\Big(\frac{\partial\theta^*}{\partial\mu}\Big)^{\!\top} g = \Lambda\, (\Lambda + H)^{-1} g$$

Λ is the precision of the prior, per weight; H the curvature of the data at θ*. The solve is JAX's conjugate gradients, which
can be transposed. Indefinite H is damped.
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

    def posterior(state, prior, source):
        fixed = jax.lax.stop_gradient(state.q.mean)
        held = jax.lax.stop_gradient(prior.dist)
        num_eff = likelihood.effective_size(source)

        def optimality(mean, dist):  # zero at θ*
            return jax.grad(lambda m: num_eff * mean_loss(likelihood, m, source) + family.kl(Delta(m), dist))(mean)

        def damped_curvature(v):  # (Λ + H + damping) v
            _, product = jax.jvp(lambda m: optimality(m, held), (fixed,), (v,))
            return jax.tree.map(lambda a, b: a + damping * b, product, v)

        # Implicit function theorem: ∂θ*/∂Θ = −(Λ + H)⁻¹ ∂F/∂Θ. The right-hand side is zero in value, so θ* stays what it is.
        residual = jax.tree.map(jnp.subtract, optimality(fixed, prior.dist), optimality(fixed, held))
        change, _ = jax.scipy.sparse.linalg.cg(damped_curvature, residual, maxiter=solver_steps, tol=0.0)
        return Delta(jax.tree.map(jnp.subtract, fixed, change))

    return explicit._replace(
        name="implicit",
        # The steps themselves see a fixed prior: the derivative comes from the optimality condition alone.
        init=lambda key, prior, start, source, memory: explicit.init(
            key, prior, jax.lax.stop_gradient(start), source, memory
        ),
        step=lambda key, state, prior, source: explicit.step(key, state, jax.lax.stop_gradient(prior), source),
        posterior=posterior,
    )
