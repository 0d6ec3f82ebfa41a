"""The implicit derivative (iMAML) against dense linear algebra, finite differences, and closed forms.

At the point θ that the steps reach, with H the Hessian of N_eff · mean loss there and Λ the precision of the prior,
gᵀ∂θ/∂μ = Λ(Λ + H)⁻¹g and gᵀ∂θ/∂log σ = 2Λ(θ−μ) ⊙ (Λ + H)⁻¹g.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from worlds import KEY, adapted, close, flat, network, silent_data, weights, words, world

from metaprior import families, likelihoods
from metaprior.families import Delta, MeanField
from metaprior.inference import gradient, implicit, infer
from metaprior.inference.base import mean_loss
from metaprior.types import Prior

FAMILY, NET = families.delta(), network()
LIKELIHOOD = likelihoods.gaussian(NET.apply, noise_std=0.5, temperature=0.5)
SUPPORT = NET.episode.support
SIZE = flat(NET.params).size
UNRAVEL = ravel_pytree(NET.params)[1]
LOG_STD = np.random.default_rng(0).uniform(-1.2, -0.5, SIZE)
COTANGENT = np.random.default_rng(1).normal(size=SIZE)  # g: any slope of a query loss
PRIOR = MeanField(NET.params, UNRAVEL(jnp.asarray(LOG_STD)))
CONVERGED = 6000
HESSIAN = jax.jit(jax.hessian(lambda v: mean_loss(LIKELIHOOD, UNRAVEL(v), SUPPORT)))


def reach(steps, **options):
    """Θ.dist -> θ, as a function to differentiate."""
    inference = implicit(LIKELIHOOD, FAMILY, optimizer=0.02, **options)
    return lambda dist: flat(infer(inference, KEY, Prior(dist), FAMILY.start(dist), SUPPORT, steps)[0].mean)


@cache
def point_and_derivative(steps, **options):
    point, pull_back = jax.jit(lambda dist: jax.vjp(reach(steps, **options), dist))(PRIOR)
    return np.asarray(point), pull_back(jnp.asarray(COTANGENT))[0]


def dense(point, damping):
    """The two derivatives by a dense Hessian and a dense solve."""
    num_eff = 6 / 0.5
    hessian = num_eff * HESSIAN(jnp.asarray(point))
    precision = np.exp(-2 * LOG_STD)
    solved = np.linalg.solve(np.asarray(hessian) + np.diag(precision + damping), COTANGENT)
    return precision * solved, 2 * precision * (point - np.asarray(flat(NET.params))) * solved


# (inner steps, solver steps, damping); conjugate gradients go on after they have converged: 0/0 must not follow
SOLVES = [(1, 60, 3.0), (7, 2000, 0.0), (CONVERGED, 60, 0.0)]


@pytest.mark.parametrize(("steps", "solver_steps", "damping"), SOLVES)
def test_the_derivative_is_a_dense_solve(steps, solver_steps, damping):
    """At whatever point the steps end: converged or not, nothing is known of the way there."""
    point, slope = point_and_derivative(steps, solver_steps=solver_steps, damping=damping)
    by_mean, by_width = dense(point, damping)
    close(flat(slope.mean), by_mean, 1e-8)
    close(flat(slope.log_std), by_width, 1e-8)


def test_the_point_is_that_of_the_explicit_steps():
    point, _ = point_and_derivative(7, solver_steps=2000, damping=0.0)
    q = adapted(gradient(LIKELIHOOD, FAMILY, optimizer=0.02), FAMILY, Prior(PRIOR), SUPPORT, 7)
    close(point, flat(q.mean), 1e-13)


def test_steps_that_no_prior_pulls_back_have_the_same_derivative_at_their_own_end():
    point, slope = point_and_derivative(7, solver_steps=60, damping=3.0, pull=False)
    q = adapted(gradient(LIKELIHOOD, FAMILY, optimizer=0.02, pull=False), FAMILY, Prior(PRIOR), SUPPORT, 7)
    close(point, flat(q.mean), 1e-13)
    assert np.abs(point - point_and_derivative(7, solver_steps=2000, damping=0.0)[0]).max() > 1e-4
    close(flat(slope.mean), dense(point, 3.0)[0], 1e-8)


def test_nothing_is_solved_for_where_nobody_differentiates():
    adapt = reach(7, damping=3.0)
    solves = lambda function: "custom_linear_solve" in str(jax.make_jaxpr(function)(PRIOR))
    assert solves(jax.grad(lambda dist: adapt(dist).sum())) and not solves(adapt)


def test_at_convergence_it_is_the_derivative_of_the_solution():
    """By finite differences of the whole adaptation, in μ and in log σ."""
    point, slope = point_and_derivative(CONVERGED, solver_steps=60, damping=0.0)
    objective = lambda p: 12 * mean_loss(LIKELIHOOD, p, SUPPORT) + FAMILY.kl(Delta(p), PRIOR)
    assert np.abs(flat(jax.jit(jax.grad(objective))(UNRAVEL(jnp.asarray(point))))).max() < 1e-8
    end = jax.jit(reach(CONVERGED))
    direction = jax.tree.map(
        jnp.asarray, MeanField(*(UNRAVEL(jnp.asarray(v)) for v in np.random.default_rng(2).normal(size=(2, SIZE))))
    )
    for part in ("mean", "log_std"):
        moved = lambda h, part=part: PRIOR._replace(
            **{part: jax.tree.map(lambda a, d: a + h * d, getattr(PRIOR, part), getattr(direction, part))}
        )
        finite = COTANGENT @ (np.asarray(end(moved(1e-4))) - np.asarray(end(moved(-1e-4)))) / 2e-4
        np.testing.assert_allclose(flat(getattr(slope, part)) @ flat(getattr(direction, part)), finite, rtol=1e-5)


def test_too_many_solver_steps_do_no_harm_in_single_precision():
    point, _ = point_and_derivative(7, solver_steps=2000, damping=0.0)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (PRIOR, SUPPORT))
    inference = implicit(LIKELIHOOD, FAMILY, optimizer=0.02, solver_steps=2000)
    end = lambda dist: flat(infer(inference, KEY, Prior(dist), FAMILY.start(dist), single[1], 7)[0].mean)
    slope = jax.jit(lambda dist: jax.vjp(end, dist)[1](jnp.asarray(COTANGENT, jnp.float32))[0])(single[0])
    np.testing.assert_allclose(flat(slope.mean), dense(point, 0.0)[0], atol=1e-2)


@pytest.mark.parametrize("kind", ["full", "mean-field"])
def test_in_a_linear_world_it_is_the_exact_posterior_mean(kind):
    """θ* is the posterior mean, ∂θ*/∂μ = C Λ with C the posterior covariance: for any Gaussian prior."""
    known = world(temperature=2.0, correlated=kind == "full")
    prior = known.full_prior if kind == "full" else known.mean_field_prior
    inference = implicit(known.likelihood, FAMILY, optimizer=0.2, solver_steps=10)

    def end(mean):
        dist = prior.dist._replace(mean=weights(mean))
        return flat(infer(inference, KEY, Prior(dist), FAMILY.start(dist), known.all_data, 3000)[0].mean)

    mean, covariance = known.posterior(known.all_data)
    close(jax.jit(end)(jnp.asarray(known.mean)), mean, 1e-9)
    close(jax.jit(jax.jacobian(end))(jnp.asarray(known.mean)), covariance @ np.linalg.inv(known.covariance), 1e-9)


def test_it_solves_imamls_problem():
    """Mean loss + λ/2‖θ−μ‖² with λ = (T/n)/σ²: the fixed point of delta-VI is iMAML's, and so is the derivative."""
    std, weight = 0.4, 0.5 / 6  # w = T/n
    dist = MeanField(NET.params, jax.tree.map(lambda m: jnp.full_like(m, np.log(std)), NET.params))
    point, pull_back = jax.jit(lambda dist: jax.vjp(reach(CONVERGED, solver_steps=60), dist))(dist)
    regularised = lambda v: (
        mean_loss(LIKELIHOOD, UNRAVEL(v), SUPPORT) + weight / std**2 / 2 * jnp.square(v - flat(NET.params)).sum()
    )
    assert np.abs(jax.jit(jax.grad(regularised))(point)).max() < 1e-9
    hessian = np.asarray(HESSIAN(point))
    textbook = np.linalg.solve(np.eye(SIZE) + hessian / (weight / std**2), COTANGENT)  # (I + H/λ)⁻¹ g
    close(flat(pull_back(jnp.asarray(COTANGENT))[0].mean), textbook, 1e-8)


def test_a_point_as_prior_has_width_one():
    known = world()
    inference = implicit(known.likelihood, FAMILY, optimizer=0.1, solver_steps=10)
    end = lambda mean: flat(
        infer(inference, KEY, Prior(Delta(weights(mean))), Delta(weights(mean)), known.all_data, 3)[0].mean
    )
    hessian = np.asarray(known.all_data.x.T @ known.all_data.x) / known.noise_std**2
    close(jax.jit(jax.jacobian(end))(jnp.asarray(known.mean)), np.linalg.inv(np.eye(3) + hessian), 1e-10)


def test_without_data_the_point_moves_with_the_prior():
    known = world()
    inference = implicit(known.likelihood, FAMILY)

    def end(mean):
        dist = known.mean_field_prior.dist._replace(mean=weights(mean))
        return flat(infer(inference, KEY, Prior(dist), FAMILY.start(dist), silent_data(0, 3), 5)[0].mean)

    close(end(jnp.asarray(known.mean)), known.mean, 0)
    close(jax.jit(jax.jacobian(end))(jnp.asarray(known.mean)), np.eye(3), 1e-10)


def test_its_check_is_that_of_gradient_steps():
    prior = Prior(MeanField(weights([0.0]), weights([-5.0])))
    assert "would diverge" in words(implicit(world().likelihood, FAMILY, optimizer=0.1), prior, silent_data(4))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="at least one solver step, got 0"):
        implicit(LIKELIHOOD, FAMILY, solver_steps=0)
    with pytest.raises(ValueError, match="damping cannot be negative, got -1"):
        implicit(LIKELIHOOD, FAMILY, damping=-1.0)
