"""Stein variational gradient descent: particles against loops by hand, symmetry, and a posterior that is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import KEY, adapted, close, flat, network, scalar_world, weights, world

from metaprior import families, likelihoods
from metaprior.families import Particles
from metaprior.inference import infer, svgd
from metaprior.inference.base import mean_loss
from metaprior.inference.svgd import stein_direction
from metaprior.types import Prior

RNG = np.random.default_rng(3)
POSITIONS, SCORES = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 2))


def naive_direction(positions, scores):
    """Two loops, kernel and derivative written out."""
    number = len(positions)
    squared = [[((a - b) ** 2).sum() for b in positions] for a in positions]
    h = np.median(squared) / np.log(number)
    directions = np.zeros_like(positions)
    for i in range(number):
        for j in range(number):
            kernel = np.exp(-squared[i][j] / h)
            derivative = -2 * (positions[j] - positions[i]) / h * kernel  # of k(θ_j, θ_i) in θ_j
            directions[i] += (kernel * scores[j] + derivative) / number
    return directions


def test_direction_is_the_double_loop():
    close(stein_direction(jnp.asarray(POSITIONS), jnp.asarray(SCORES)), naive_direction(POSITIONS, SCORES), 1e-9)


@settings(max_examples=20)
@given(st.permutations(range(5)))
def test_particles_are_exchangeable(order):
    order = np.array(order)
    direction = stein_direction(jnp.asarray(POSITIONS), jnp.asarray(SCORES))
    close(stein_direction(jnp.asarray(POSITIONS[order]), jnp.asarray(SCORES[order])), direction[order], 1e-10)


def test_particles_keep_apart():
    """Without a score two particles move away from each other, along the line between them."""
    positions = jnp.asarray([[0.0, 0.0], [0.1, 0.2]])
    direction = np.asarray(stein_direction(positions, jnp.zeros((2, 2))))
    line = np.asarray(positions[1] - positions[0])
    assert direction[1] @ line > 0 > direction[0] @ line
    close(direction[0], -direction[1], 1e-12)
    close(direction[1] / np.linalg.norm(direction[1]), line / np.linalg.norm(line), 1e-9)


def test_coinciding_particles_are_finite():
    slope = jax.jit(jax.jacobian(lambda p: stein_direction(p, p)))(jnp.ones((3, 2)))
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_one_particle_is_gradient_descent(temperature):
    """MAML's steps: the rate is per point, whatever the temperature."""
    net = network()
    likelihood = likelihoods.gaussian(net.apply, temperature=temperature)
    prior = Prior(Particles(jax.tree.map(lambda leaf: leaf[None], net.params)))
    q = adapted(
        svgd(likelihood, families.particles(1), rate=0.05), families.particles(1), prior, net.episode.support, 3
    )
    params = net.params
    slope = jax.jit(jax.grad(lambda p: mean_loss(likelihood, p, net.episode.support)))
    for _ in range(3):
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, slope(params))
    close(jax.tree.map(lambda leaf: leaf[0], q.params), params, 1e-10)


def test_a_step_is_the_direction_of_the_log_posterior():
    """Several particles of a pytree, a prior on the weights, temperature: by NumPy."""
    known, rate, width = world(temperature=2.0), 0.1, 1.5
    data = known.episode.support
    vectors = np.random.default_rng(0).normal(size=(4, 3))
    prior = Prior(Particles(jax.vmap(weights)(jnp.asarray(vectors))))
    family = families.particles(4)
    q = adapted(svgd(known.likelihood, family, rate=rate, weight_std=width), family, prior, data, 1)
    x, y = np.asarray(data.x), np.asarray(data.y)[:, 0]
    scores = np.stack([x.T @ (y - x @ v) / (2.0 * known.noise_std**2) - v / width**2 for v in vectors])
    expected = vectors + rate / (5 / 2.0) * naive_direction(vectors, scores)
    close(jax.vmap(flat)(q.params), expected, 1e-9)


def test_particles_approach_a_known_posterior():
    """One weight, y = θx + noise, θ ~ N(0, 1): mean and standard deviation of 40 particles."""
    known = scalar_world(inputs=[0.5, -1.0, 1.2], targets=[1.0, -1.1, 1.4], noise_std=0.8, mean=0.0, std=1.0)
    family = families.particles(40)
    prior = Prior(family.init(KEY, weights([3.0]), 0.1))
    inference = svgd(known.likelihood, family, rate=0.3, weight_std=1.0)
    q = adapted(inference, family, prior, known.episode.support, 1500)
    mean, covariance = known.posterior(known.episode.support)
    particles = np.asarray(q.params["bias"])
    assert abs(particles.mean() - mean[0]) < 0.01
    assert abs(particles.std() / np.sqrt(covariance[0, 0]) - 1) < 0.05


def test_mini_batches_are_unbiased():
    known = world(shots=6)
    family = families.particles(1)
    prior = Prior(Particles(jax.tree.map(lambda leaf: leaf[None], weights(known.mean))))
    end = lambda key, size: flat(
        infer(
            svgd(known.likelihood, family, batch_size=size, weight_std=1.0),
            key,
            prior,
            prior.dist,
            known.episode.support,
            1,
        )[0]
    )
    draws = np.asarray(jax.jit(jax.vmap(lambda key: end(key, 2)))(jax.random.split(KEY, 2000)))
    assert (
        np.abs(draws.mean(axis=0) - jax.jit(lambda key: end(key, None))(KEY)) < 4 * draws.std(axis=0) / np.sqrt(2000)
    ).all()


@pytest.mark.parametrize("share", [0.99, 1.01])
@pytest.mark.parametrize("width", [None, 0.2])
def test_check_knows_the_limit(share, width):
    """It is rate · λmax(H + 1/(N_eff width²)) = 2, H the curvature of the mean loss."""
    known = world()
    data, family = known.episode.support, families.particles(1)
    hessian = np.asarray(data.x.T @ data.x) / 5 / known.noise_std**2
    rate = share * 2 / (np.linalg.eigvalsh(hessian)[-1] + (0.0 if width is None else 1 / (5 * width**2)))
    prior = Prior(Particles(jax.tree.map(lambda leaf: leaf[None], weights(known.mean))))
    inference = svgd(known.likelihood, family, rate=rate, weight_std=width)
    assert (inference.check(prior, data) is None) == (share < 1)
    path = lambda steps: flat(adapted(inference, family, prior, data, steps))
    moved = [np.linalg.norm(path(steps + 1) - path(steps)) for steps in (300, 400)]
    assert (moved[1] < moved[0]) == (share < 1)  # the check tells the truth


def test_bad_arguments_are_refused():
    likelihood, family = world().likelihood, families.particles(2)
    with pytest.raises(ValueError, match="inner rate must be above zero and finite, got -1"):
        svgd(likelihood, family, rate=-1.0)
    with pytest.raises(ValueError, match="width of weights must be above zero and finite, got 0"):
        svgd(likelihood, family, weight_std=0.0)
