r"""Generalised Gauss–Newton curvature of the mean loss: exact for models linear in their weights.

$$G = \frac1n \sum_i J_i^\top H_i J_i, \qquad J_i = \partial f_\theta(x_i)/\partial\theta, \quad
H_i = -\partial^2 \log p(y_i \mid f)/\partial f^2$$

Positive semi-definite where log p is concave in the outputs: known noise and classes. Learned noise is not, but its diagonal is.
"""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from metaprior.scalars import at_least_one
from metaprior.types import Batch, Likelihood, Params


def output_jacobian(likelihood: Likelihood, params: Params, batch: Batch) -> Float[Array, "N O W"]:
    """∂ outputs / ∂ weights, the weights flattened to one axis."""
    flat, unravel = ravel_pytree(params)
    return jax.jacrev(lambda vector: likelihood.outputs(unravel(vector), batch))(flat)


def output_hessian(likelihood: Likelihood, params: Params, batch: Batch) -> Float[Array, "N O O"]:
    """−∂² log p / ∂ outputs², point by point."""

    def point_loss(output, point):
        return -likelihood.log_density(output[None], jax.tree.map(lambda leaf: leaf[None], point))[0]

    return jax.vmap(jax.hessian(point_loss))(likelihood.outputs(params, batch), batch)


def ggn_diagonal(likelihood: Likelihood, params: Params, batch: Batch) -> Params:
    """The diagonal of G, in the shape of the weights."""
    jacobian, hessian = output_jacobian(likelihood, params, batch), output_hessian(likelihood, params, batch)
    diagonal = jnp.einsum("now,nop,npw->w", jacobian, hessian, jacobian) / at_least_one(likelihood.size(batch))
    return ravel_pytree(params)[1](diagonal)


def ggn_dense(likelihood: Likelihood, params: Params, batch: Batch) -> Float[Array, "W W"]:
    """G whole."""
    jacobian, hessian = output_jacobian(likelihood, params, batch), output_hessian(likelihood, params, batch)
    return jnp.einsum("nov,nop,npw->vw", jacobian, hessian, jacobian) / at_least_one(likelihood.size(batch))
