"""Generalised Gauss–Newton curvature against Hessians and hand-made products."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from worlds import close, flat, network, weights, world

from metaprior import likelihoods
from metaprior.inference import curvature
from metaprior.inference.base import mean_loss

output_jacobian, output_hessian, ggn_dense, ggn_diagonal = (
    lambda likelihood, params, batch, of=of: jax.jit(lambda params, batch: of(likelihood, params, batch))(params, batch)
    for of in (curvature.output_jacobian, curvature.output_hessian, curvature.ggn_dense, curvature.ggn_diagonal)
)
NET = network(sizes=(1, 3, 2))
CLASSES = likelihoods.categorical(NET.apply)
LABELLED = NET.episode.query._replace(y=jnp.asarray([0, 1, 1, 0, 1]))


def test_in_a_linear_model_it_is_the_hessian():
    known = world()
    data, params = known.all_data, weights(known.mean)
    hessian = jax.jit(jax.hessian(lambda v: mean_loss(known.likelihood, weights(v), data)))(jnp.asarray(known.mean))
    close(ggn_dense(known.likelihood, params, data), hessian, 1e-10)
    close(flat(ggn_diagonal(known.likelihood, params, data)), np.diag(hessian), 1e-10)


def test_curvature_of_outputs():
    """diag(p) − ppᵀ for cross-entropy; 1/noise² for a Gaussian."""
    p = np.asarray(jax.nn.softmax(NET.apply(NET.params, LABELLED.x)))
    expected = np.stack([np.diag(row) - np.outer(row, row) for row in p])
    close(output_hessian(CLASSES, NET.params, LABELLED), expected, 1e-10)
    gaussian = likelihoods.gaussian(NET.apply, noise_std=0.5)
    close(output_hessian(gaussian, NET.params, NET.episode.query), np.tile(4 * np.eye(2), (5, 1, 1)), 1e-10)


def test_jacobian_is_that_of_the_flattened_weights():
    vector, unravel = ravel_pytree(NET.params)
    jacobian = np.asarray(output_jacobian(CLASSES, NET.params, LABELLED))
    direction = np.random.default_rng(0).normal(size=vector.size)
    outputs = jax.jit(lambda h: NET.apply(unravel(vector + h * direction), LABELLED.x))
    np.testing.assert_allclose(jacobian @ direction, (outputs(1e-6) - outputs(-1e-6)) / 2e-6, atol=1e-8)


def test_it_is_the_expected_outer_product_of_scores():
    """For a softmax the Gauss–Newton matrix is the Fisher matrix: an average over labels drawn by the model itself."""
    vector, unravel = ravel_pytree(NET.params)
    log_p = lambda v: jax.nn.log_softmax(NET.apply(unravel(v), LABELLED.x))
    scores, p = np.asarray(jax.jit(jax.jacobian(log_p))(vector)), np.exp(np.asarray(log_p(vector)))
    fisher = np.einsum("no,nov,now->vw", p, scores, scores) / 5
    dense = np.asarray(ggn_dense(CLASSES, NET.params, LABELLED))
    close(dense, fisher, 1e-10)
    close(flat(ggn_diagonal(CLASSES, NET.params, LABELLED)), np.diag(dense), 1e-12)
    assert np.linalg.eigvalsh(dense)[0] > -1e-12


def test_no_points_have_no_curvature():
    none = jax.tree.map(lambda leaf: leaf[:0], LABELLED)
    close(ggn_dense(CLASSES, NET.params, none), np.zeros((14, 14)), 0)


def test_signs_average_to_the_exact_diagonal():
    """Over all 2⁴ signs of two images with two outputs: to what is added before a root is taken."""
    batch = jax.tree.map(lambda leaf: leaf[:2], LABELLED)
    exact = flat(ggn_diagonal(CLASSES, NET.params, batch))
    signs = jnp.asarray(list(product((-1.0, 1.0), repeat=4))).reshape(16, 2, 2)
    every = jax.jit(lambda signs: curvature.signed_ggn_diagonal(CLASSES, NET.params, batch, signs))
    np.testing.assert_allclose(flat(every(signs)), exact, rtol=1e-4, atol=1e-6 * float(exact.max()))
    assert np.abs(flat(every(signs[:1])) - exact).max() > 0.01 * exact.max()  # one of them does not say it


def test_probes_are_drawn_anew_and_right_on_average():
    exact = flat(ggn_diagonal(CLASSES, NET.params, LABELLED))
    one = lambda key: curvature.probed_ggn_diagonal(key, CLASSES, NET.params, LABELLED, 2)
    draws = np.asarray(jax.vmap(flat)(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 3000))))
    assert (draws.std(axis=0)[exact > 1e-6] > 0).all()
    assert (np.abs(draws.mean(axis=0) - exact) < 4 * draws.std(axis=0) / np.sqrt(3000) + 1e-5 * exact.max()).all()
