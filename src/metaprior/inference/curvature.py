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
from metaprior.types import Batch, Key, Likelihood, Params


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


def probed_ggn_diagonal(key: Key, likelihood: Likelihood, params: Params, batch: Batch, num_probes: int) -> Params:
    """The same by random signs: a backward pass a probe, where the exact one takes one for every output.

    Right on average, but for the millionth that roots need. Where images of a batch are normalised together each of the exact
    one's passes goes through all of them.
    """
    shape = jax.eval_shape(lambda p: likelihood.outputs(p, batch), params).shape
    signs = jax.random.rademacher(key, (num_probes, *shape), ravel_pytree(params)[0].dtype)
    return signed_ggn_diagonal(likelihood, params, batch, signs)


def signed_ggn_diagonal(likelihood: Likelihood, params: Params, batch: Batch, signs: Float[Array, "K N O"]) -> Params:
    r"""$\frac1n \big(\sum_i J_i^\top R_i\, \varepsilon_i\big)^2$ with $R_i R_i^\top = H_i$, averaged over the rows ε of signs."""
    _, pull_back = jax.vjp(lambda p: likelihood.outputs(p, batch), params)
    roots = _roots(output_hessian(likelihood, params, batch))
    seen = jax.vmap(lambda sign: pull_back(jnp.einsum("nop,np->no", roots, sign))[0])(signs)
    points = at_least_one(likelihood.size(batch))
    return jax.tree.map(lambda leaf: jnp.square(leaf).mean(axis=0) / points, seen)


def _roots(matrices: Float[Array, "N O O"]) -> Float[Array, "N O O"]:
    """Lower triangles; the curvature of a softmax has a direction without any, so a little is added to the diagonal."""
    little = 1e-6 * jnp.trace(matrices, axis1=1, axis2=2) + 1e-12
    return jnp.linalg.cholesky(matrices + little[:, None, None] * jnp.eye(matrices.shape[1])[None])


def ggn_dense(likelihood: Likelihood, params: Params, batch: Batch) -> Float[Array, "W W"]:
    """G whole."""
    jacobian, hessian = output_jacobian(likelihood, params, batch), output_hessian(likelihood, params, batch)
    return jnp.einsum("nov,nop,npw->vw", jacobian, hessian, jacobian) / at_least_one(likelihood.size(batch))
