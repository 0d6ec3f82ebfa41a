"""The six cells against exact evidence, in a linear-Gaussian world where every posterior is known.

θ ~ N(μ, diag σ²) or N(μ, Σ), y = Φθ + ε: the evidence is N(y; Φμ, ΦΣΦᵀ + s²I), and the gradient of that formula by automatic
differentiation is the reference. Laplace with a full posterior and one whole Newton step is exact there.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import multivariate_normal

from metaprior import families, matrix
from metaprior.families import Full, MeanField
from metaprior.inference import laplace, natural_vi
from metaprior.inference.base import infer
from metaprior.likelihoods import gaussian
from metaprior.matrix import SECOND_STAGES, Cell
from metaprior.types import Data, Episode, Inference, Prior

pytestmark = pytest.mark.usefixtures("quick_compile")

NOISE = 0.5
STAGES = tuple(name for name in SECOND_STAGES if name != "none")
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)


def line(params, x):
    """An affine function of two inputs: three weights in two leaves, Φ = (1, x)."""
    return x @ params["slope"] + params["bias"][None]


def features(data):
    return jnp.concatenate([jnp.ones((data.x.shape[0], 1)), data.x], axis=1)


def episode(num_support=4, num_query=3, seed=0):
    """A task far from the prior's mean."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_support + num_query, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    y = 2.0 + x @ np.array([[1.5], [-1.0]]) + NOISE * rng.normal(size=(x.shape[0], 1))
    split = lambda a: (jnp.asarray(a[:num_support]), jnp.asarray(a[num_support:]))
    return Episode(*(Data(*pair) for pair in zip(split(x), split(y), strict=True)))


def diagonal_prior():
    mean = {"bias": jnp.array([0.3]), "slope": jnp.array([[-0.4], [0.2]])}
    log_std = {"bias": jnp.array([0.2]), "slope": jnp.array([[-0.5], [0.4]])}
    return Prior(MeanField(mean, log_std))


def correlated_prior():
    root = jnp.array([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.4, 0.9]])
    return Prior(families.from_covariance(diagonal_prior().dist.mean, root @ root.T))


PRIORS = {"diagonal": diagonal_prior, "correlated": correlated_prior}


def moments(dist):
    mean = ravel_pytree(dist.mean)[0]
    if isinstance(dist, MeanField):
        return mean, jnp.diag(jnp.exp(2 * ravel_pytree(dist.log_std)[0]))
    return mean, families.cholesky(dist) @ families.cholesky(dist).T


def log_evidence(prior, data, noise=NOISE):
    """The evidence p(D; Θ) in logs: one multivariate normal density."""
    mean, cov = moments(prior.dist)
    phi = features(data)
    return multivariate_normal.logpdf(data.y[:, 0], phi @ mean, phi @ cov @ phi.T + noise**2 * jnp.eye(phi.shape[0]))


def joined(task):
    return Data(jnp.concatenate([task.support.x, task.query.x]), jnp.concatenate([task.support.y, task.query.y]))


def evidence_of_all(prior, task):
    return log_evidence(prior, joined(task))


def log_predictive(prior, task, noise=NOISE):
    """The predictive evidence p(D_val | D_tr; Θ) in logs: one normal conditioned on another, not a difference."""
    mean, cov = moments(prior.dist)
    phi1, phi2 = features(task.support), features(task.query)
    eye = lambda phi: noise**2 * jnp.eye(phi.shape[0])
    gain = phi2 @ cov @ phi1.T @ jnp.linalg.inv(phi1 @ cov @ phi1.T + eye(phi1))
    centre = phi2 @ mean + gain @ (task.support.y[:, 0] - phi1 @ mean)
    spread = phi2 @ cov @ phi2.T + eye(phi2) - gain @ phi1 @ cov @ phi2.T
    return multivariate_normal.logpdf(task.query.y[:, 0], centre, spread)


def exact_expectation(key, likelihood, q, batch, num_samples=1):
    """E_q log p for a log density quadratic in θ: its value at the mean and half the trace of curvature × covariance."""
    del key, num_samples
    mean, cov = moments(q)
    log_prob = lambda flat: likelihood.log_prob(ravel_pytree(q.mean)[1](flat), batch)
    return log_prob(mean) + 0.5 * jnp.trace(jax.hessian(log_prob)(mean) @ cov)


def cell(row, column, second_stage, *, temperature=1.0, posterior="full", inference=None, steps=(1, 1)):
    likelihood = gaussian(line, noise_std=NOISE, temperature=temperature)
    family = {"full": families.full, "mean-field": families.mean_field}[posterior]()
    family = family._replace(expected_log_prob=exact_expectation)
    inference = inference or laplace(likelihood, family, rate=1.0)
    return Cell(likelihood, family, inference, row, column, second_stage, steps)


def value_and_grad(cell, prior, task):
    score = lambda prior: matrix.score(cell, jax.random.key(0), prior, task)[0]
    return jax.value_and_grad(score)(prior)


def assert_same(ours, reference):
    jax.tree.map(close, ours, reference)


@pytest.mark.parametrize(
    ("row", "column", "second_stage", "kind"),
    [
        ("elbo", "joint", "sequential", "diagonal"),
        ("elbo", "conditional", "sequential", "diagonal"),
        ("elbo", "difference", "sequential", "diagonal"),
        ("gem", "joint", "sequential", "diagonal"),
        ("gem", "conditional", "sequential", "diagonal"),
        ("gem", "difference", "sequential", "diagonal"),
        ("elbo", "conditional", "joint-from-prior", "correlated"),
        ("gem", "joint", "joint-from-q1", "correlated"),
        ("gem", "difference", "sequential", "correlated"),
    ],
)
def test_every_cell_is_the_evidence_and_its_gradient(row, column, second_stage, kind):
    """With exact posteriors all formulas are exact, in value and in gradient, with diagonal and correlated priors.

    For gem × joint this is Theorem 1, for gem × difference GEM-BML+; elbo × joint and elbo × difference are exact because the
    ELBO is flat in q at its maximum; elbo × conditional because log p(D_val | D_tr) is what its value is, for every Θ.
    """
    task = episode()
    target = evidence_of_all if column == "joint" else log_predictive

    @jax.jit
    def both(prior):
        ours = value_and_grad(cell(row, column, second_stage), prior, task)
        return ours, jax.value_and_grad(target)(prior, task)

    assert_same(*both(PRIORS[kind]()))


def test_the_predictive_evidence_is_a_difference_in_value_and_gradient():
    """Appendix A.4, of the reference and of our own joint column: L[2](tr → val) = L[1](tr ∪ val) − L[1](tr)."""
    task, prior = episode(), diagonal_prior()

    @jax.jit
    def all_three(prior):
        whole, part = (jax.value_and_grad(log_evidence)(prior, data) for data in (joined(task), task.support))
        nothing = Data(task.query.x[:0], task.query.y[:0])
        ours_whole, ours_part = (
            value_and_grad(cell("gem", "joint", "sequential"), prior, e) for e in (task, Episode(task.support, nothing))
        )
        subtract = partial(jax.tree.map, jnp.subtract)
        return jax.value_and_grad(log_predictive)(prior, task), subtract(whole, part), subtract(ours_whole, ours_part)

    conditional, difference, ours = all_three(prior)
    assert_same(difference, conditional)
    assert_same(ours, conditional)


def test_temperature_keeps_stages_consistent():
    """At temperature T the points count 1/T each: noise s√T. Sequential and joint inference agree, and so does L[2]."""
    temperature, task, prior = 0.3, episode(), correlated_prior()
    noise = NOISE * math.sqrt(temperature)

    @jax.jit
    def both(prior):
        found = {}
        for stage in STAGES:
            cold = cell("gem", "difference", stage, temperature=temperature)
            posteriors, _ = matrix.two_posteriors(cold, jax.random.key(0), prior, task)
            found[stage] = posteriors.q2, value_and_grad(cold, prior, task)[1]
        return found, jax.grad(log_predictive)(prior, task, noise)

    found, reference = both(prior)
    for stage in STAGES:
        assert_same(found[stage][0], found["sequential"][0])
        assert_same(found[stage][1], reference)


def test_a_factorised_posterior_is_exact_only_for_factorised_posteriors():
    """Orthogonal features: mean-field suffices. Correlated ones: it does not, and the widths' gradient shows it."""
    orthogonal = Data(
        jnp.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]), jnp.array([[1.0], [0.5], [2.0], [-1.0]])
    )
    task = Episode(orthogonal, orthogonal._replace(y=orthogonal.y + 0.3))

    @jax.jit
    def both(prior, task):
        likelihood = gaussian(line, noise_std=NOISE)
        inference = natural_vi(likelihood, families.mean_field(), rate=0.5, num_samples=0)
        ours = cell(
            "gem", "difference", "joint-from-prior", posterior="mean-field", inference=inference, steps=(500, 500)
        )
        return value_and_grad(ours, prior, task)[1].dist, jax.grad(log_predictive)(prior, task).dist

    ours, reference = both(diagonal_prior(), task)
    assert_same(ours, reference)
    ours, reference = both(diagonal_prior(), episode(4, 4))
    assert_same(ours.mean, reference.mean)
    assert not np.allclose(ours.log_std["slope"], reference.log_std["slope"], rtol=1e-2)


@pytest.mark.parametrize(("steps", "agree"), [(400, True), (2, False)])
def test_at_converged_inference_the_rows_agree(steps, agree):
    """The envelope theorem, with a mean-field posterior that is not exact: elbo = gem once inference has converged."""
    likelihood = gaussian(line, noise_std=NOISE)
    inference = natural_vi(likelihood, families.mean_field(), rate=0.5, num_samples=0)
    make = partial(
        cell, second_stage="joint-from-prior", posterior="mean-field", inference=inference, steps=(steps, steps)
    )

    @jax.jit
    def both(prior):
        return [value_and_grad(make(row, "difference"), prior, episode())[1] for row in ("elbo", "gem")]

    elbo, gem = both(diagonal_prior())
    if agree:
        assert_same(elbo, gem)
    else:
        assert not np.allclose(elbo.dist.mean["slope"], gem.dist.mean["slope"], rtol=1e-2)


def test_no_support_at_all():
    """Nothing to condition on: both columns of gem score the prior predictive, so GEM-BML+ is GEM-BML."""
    task, prior = episode(0, 3), diagonal_prior()

    @jax.jit
    def all_of_them(prior):
        ours = [
            value_and_grad(cell(row, column, "sequential"), prior, task)
            for row, column in (("gem", "joint"), ("gem", "difference"))
        ]
        return ours, jax.value_and_grad(log_evidence)(prior, task.query)

    ours, reference = all_of_them(prior)
    for one in ours:
        assert_same(one, reference)


def newton_until_flat(likelihood, family):
    """Exact inference by a loop of unknown length, which cannot be differentiated backwards."""
    whole = laplace(likelihood, family, rate=1.0)

    def step(key, state, prior, source):
        def moving(carry):
            before, now = carry
            moved = ravel_pytree(jax.tree.map(jnp.subtract, now, before))[0]
            return jnp.abs(moved).max() > 1e-12

        first = whole.step(key, state, prior, source)
        return jax.lax.while_loop(moving, lambda c: (c[1], whole.step(key, c[1], prior, source)), (state, first))[1]

    return whole._replace(name="newton", step=step)


@pytest.mark.parametrize(
    ("row", "column", "differentiates"),
    [
        ("gem", "joint", False), ("gem", "difference", False), ("gem", "conditional", True),
        ("elbo", "joint", True), ("elbo", "difference", True), ("elbo", "conditional", True),
    ],
)  # fmt: skip
def test_any_inner_loop_will_do_where_nothing_is_differentiated_through_it(row, column, differentiates):
    likelihood = gaussian(line, noise_std=NOISE)
    ours = cell(row, column, "sequential", inference=newton_until_flat(likelihood, families.full()))
    run = jax.jit(lambda prior: value_and_grad(ours, prior, episode()))
    if differentiates:
        with pytest.raises(ValueError, match="while_loop"):
            run(diagonal_prior())
        return
    target = evidence_of_all if column == "joint" else log_predictive
    assert_same(run(diagonal_prior()), jax.jit(jax.value_and_grad(target))(diagonal_prior(), episode()))


def test_second_stages_start_and_look_where_they_say():
    """A spy for inference: what each second stage hands it."""
    seen = []

    def init(key, prior, start, source, memory):
        seen.append((prior, start, source))
        return start

    spy = Inference(
        name="spy",
        init=init,
        step=lambda key, state, prior, source: state._replace(tril=state.tril + 1.0),
        posterior=lambda state, prior, source: state,
        check=lambda prior, source: None,
    )
    task, prior = episode(), correlated_prior()
    q1 = Full(prior.dist.mean, prior.dist.tril + 1.0)
    expected = {
        "sequential": (prior._replace(dist=q1), q1, task.query),
        "joint-from-prior": (prior, prior.dist, joined(task)),
        "joint-from-q1": (prior, q1, joined(task)),
    }
    for stage in STAGES:
        seen.clear()
        matrix.two_posteriors(cell("elbo", "joint", stage, inference=spy), jax.random.key(0), prior, task)
        assert_same(seen[0], (prior, prior.dist, task.support))
        assert_same(seen[1], expected[stage])


def test_steps_and_memory_run_through_both_stages():
    """The second stage begins with the memory the first one leaves, and takes its own number of steps."""
    counter = Inference(
        name="counter",
        init=lambda key, prior, start, source, memory: (start, memory),
        step=lambda key, state, prior, source: (state[0], state[1] + 1),
        posterior=lambda state, prior, source: state[0],
        check=lambda prior, source: None,
        memory=lambda start: jnp.zeros(()),
        recall=lambda state: state[1],
    )
    ours = cell("gem", "joint", "sequential", inference=counter, steps=(3, 4))
    ours = ours._replace(family=ours.family._replace(expected_log_prob=lambda *_, num_samples: jnp.zeros(())))
    _, (_, memory) = matrix.score(ours, jax.random.key(0), correlated_prior(), episode(), jnp.array(10.0))
    assert float(memory) == 17
    q, left = infer(
        counter, jax.random.key(0), correlated_prior(), correlated_prior().dist, episode().support, 0, jnp.array(2.0)
    )
    assert float(left) == 2
    assert_same(q, correlated_prior().dist)


def test_a_task_may_draw_how_long_it_adapts():
    """Steps on the support uniform on 1..K, each step taken in full; the second stage is not drawn."""
    counter = Inference(
        name="counter",
        init=lambda key, prior, start, source, memory: jnp.zeros(()),
        step=lambda key, state, prior, source: state + 1,
        posterior=lambda state, prior, source: state,
        check=lambda prior, source: None,
    )
    ours = cell("gem", "joint", "joint-from-prior", inference=counter, steps=(4, 5))._replace(draw_steps=True)
    lengths = jax.jit(jax.vmap(lambda key: matrix.two_posteriors(ours, key, correlated_prior(), episode())[0]))
    q1, q2 = lengths(jax.random.split(jax.random.key(0), 400))
    assert (np.asarray(q2) == 5).all()
    counts = np.bincount(np.asarray(q1, int), minlength=5)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 100).max() < 5 * np.sqrt(400 * 0.25 * 0.75)  # five standard errors
