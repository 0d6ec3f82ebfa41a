"""A point posterior by trust-region steps (Schulman et al. 2015): each goes as far as a bound on the change of answers allows.

There is no pull of the prior and no rate: a step is as long as its bound, however small the gradient is.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaprior.families import Delta
from metaprior.inference.trust_region import TrustStep, require_region, trust_region_step
from metaprior.scalars import Scalar
from metaprior.types import Batch, Family, Inference, Likelihood, Params


class TrpoState(NamedTuple):
    """The point so far."""

    mean: Params


def trpo(
    likelihood: Likelihood,
    family: Family,
    *,
    rate: Scalar = 0.01,
    solver_steps: int = 10,
    damping: float = 1e-5,
    shrink: float = 0.8,
    max_tries: int = 15,
    first_order: bool = False,
) -> Inference:
    """Natural steps with a line search.

    Args:
        likelihood: what the data say; it must know how far two answers are apart.
        family: of points.
        rate: the bound on the mean KL of a step, in nats.
        solver_steps: of conjugate gradients.
        damping: of the Fisher matrix; large values turn natural steps into plain ones, with the bound kept.
        shrink: from one try of the line search to the next.
        max_tries: of the line search.
        first_order: says that a meta-gradient may take steps as fixed, which they always are.
    """
    del family, first_order
    if likelihood.region is None:
        raise ValueError(
            "this likelihood does not say how far two answers are apart, so a step has no trust region: "
            "use gradient or preconditioned inference"
        )
    options: dict[str, Any] = dict(solver_steps=solver_steps, damping=damping, shrink=shrink, max_tries=max_tries)
    require_region(max_kl=rate, **options)

    def step(key, state, prior, source):
        del prior
        key_observe = jax.random.split(key, 3)[2]  # as other inferences: under one key they observe the same
        held = jax.lax.stop_gradient(state.mean)
        batch = jax.lax.stop_gradient(likelihood.observe(key_observe, held, source))
        found = policy_step(likelihood, held, batch, max_kl=rate, **options)
        change = jax.tree.map(jnp.subtract, found.params, held)
        return TrpoState(jax.tree.map(jnp.add, state.mean, jax.lax.stop_gradient(change)))

    return Inference(
        name="trpo",
        init=lambda key, prior, start, source, memory: TrpoState(start.mean),
        step=step,
        posterior=lambda state, prior, source: Delta(state.mean),
        check=lambda prior, source: None,
        soft_limit=True,
    )


def policy_step(likelihood: Likelihood, params: Params, batch: Batch, **options) -> TrustStep:
    """One step on one batch."""
    region = likelihood.region
    assert region is not None
    return trust_region_step(
        params,
        lambda params: likelihood.outputs(params, batch),
        lambda before, outputs: -region.gain(outputs, before, batch).mean(),
        lambda before, outputs: region.kl(before, outputs, batch).mean(),
        **options,
    )
