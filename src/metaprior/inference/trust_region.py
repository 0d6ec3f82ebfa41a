r"""A step that goes as far as the answers of a model may change: the natural gradient, cut back until it keeps its promises.

$$\min_\theta \text{loss}(\theta) \quad \text{with} \quad \mathrm{KL}(\theta_{\text{old}} \,\|\, \theta) \le \delta, $$
$$\theta = \theta_{\text{old}} - c\,\sqrt{2\delta / x^\top F x}\; x, \qquad
x \approx (F + \text{damping})^{-1}\, \nabla\text{loss}$$

F is the Fisher matrix, the curvature of the KL. It is only ever multiplied: $F v = J^\top (H (J v))$ with J the derivative of the
outputs and H that of the KL in them, so that nothing is differentiated more often than the outputs. c = 1, shrink, shrink², …
until the loss is lower and the KL within its bound; where none is, nothing moves.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from metaprior.scalars import Scalar, require_positive

Between = Callable[[Array, Array], Float[Array, ""]]  # (outputs before the step, outputs) -> a number


class TrustStep(NamedTuple):
    """Where a step ends, and what is known of it; all zero where none was found."""

    params: PyTree[Float[Array, "..."]]
    accepted: Bool[Array, ""]
    gain: Float[Array, ""]  # by which the loss is lower
    kl: Float[Array, ""]


def trust_region_step(
    params: PyTree,
    outputs: Callable[[PyTree], Array],
    loss: Between,
    kl: Between,
    *,
    max_kl: Scalar = 0.01,
    solver_steps: int = 10,
    damping: float = 1e-5,
    shrink: float = 0.8,
    max_tries: int = 15,
    total: Callable[[Array], Array] = lambda part: part,
) -> TrustStep:
    """The longest of the tried steps that lowers the loss within the bound; nothing is differentiated through it.

    Args:
        params: where it starts.
        outputs: of some weights, an array of any shape.
        loss: to be lowered.
        kl: how far outputs are from those before; zero and flat where they are equal.
        max_kl: δ.
        solver_steps: of conjugate gradients.
        damping: added to the diagonal of F when it is solved for.
        shrink: by which the step is shortened from one try to the next.
        max_tries: how often.
        total: where outputs, loss and KL are one device's part of sums over several: sums them over devices.
    """
    require_region(max_kl=max_kl, solver_steps=solver_steps, damping=damping, shrink=shrink, max_tries=max_tries)
    flat, unravel = ravel_pytree(params)
    of = lambda vector: outputs(unravel(vector))
    before, fisher, slope = _local(of, loss, kl, flat, total)
    natural = conjugate_gradients(lambda v: fisher(v) + damping * v, slope, solver_steps)
    # A slope of zero leaves a direction of zero, whatever it is multiplied by: then no try gains anything.
    whole = jnp.sqrt(2 * max_kl / jnp.maximum(natural @ fisher(natural), jnp.finfo(flat.dtype).tiny)) * natural
    start = total(loss(before, before))

    def one(carry):
        tries, _ = carry
        moved = flat - (shrink**tries).astype(flat.dtype) * whole
        after = of(moved)
        gain, far = start - total(loss(before, after)), total(kl(before, after))
        return tries + 1, TrustStep(moved, (gain > 0) & (far <= max_kl), gain, far)

    none = TrustStep(flat, jnp.array(False), jnp.zeros_like(start), jnp.zeros_like(start))
    _, last = jax.lax.while_loop(lambda carry: ~carry[1].accepted & (carry[0] < max_tries), one, (jnp.zeros(()), none))
    kept = TrustStep(*(jnp.where(last.accepted, new, old) for new, old in zip(last, none, strict=True)))
    return kept._replace(params=unravel(kept.params))


def fisher_product(outputs: Callable[[PyTree], Array], kl: Between, params: PyTree, direction: PyTree) -> PyTree:
    """F times a direction, both in the shape of the weights."""
    flat, unravel = ravel_pytree(params)
    _, fisher, _ = _local(lambda vector: outputs(unravel(vector)), kl, kl, flat, lambda part: part)
    return unravel(fisher(ravel_pytree(direction)[0]))


def conjugate_gradients(
    product: Callable[[Float[Array, " W"]], Float[Array, " W"]], target: Float[Array, " W"], steps: int
) -> Float[Array, " W"]:
    """The x with product(x) ≈ target after so many steps, or as soon as it is solved."""
    return jax.scipy.sparse.linalg.cg(product, target, maxiter=steps, tol=1e-10)[0]


def require_region(*, max_kl: Scalar, solver_steps: int, damping: float, shrink: float, max_tries: int) -> None:
    """Refuse numbers with which no step could be found."""
    require_positive("the KL bound of a step", max_kl, "0.01 is a good start")
    if solver_steps < 1 or max_tries < 1:
        raise ValueError(
            f"a trust region needs at least one solver step and one try, got solver_steps={solver_steps}, max_tries={max_tries}"
        )
    if not damping >= 0:
        raise ValueError(f"damping cannot be negative, got {damping}")
    if not 0 < shrink < 1:
        raise ValueError(f"steps are shortened by a factor between 0 and 1, got shrink={shrink}: 0.8 is a good start")


def _local(of: Callable[[Array], Array], loss: Between, kl: Between, flat: Float[Array, " W"], total):
    """What holds at the start: the outputs, the Fisher matrix as a product, the slope of the loss."""
    before, pushed = jax.linearize(of, flat)
    pulled = jax.linear_transpose(pushed, flat)
    bend = jax.grad(lambda outputs: kl(before, outputs))

    def fisher(vector):
        return total(pulled(jax.jvp(bend, (before,), (pushed(vector),))[1])[0])

    return before, fisher, total(pulled(jax.grad(lambda outputs: loss(before, outputs))(before))[0])
