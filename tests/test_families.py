"""Distributions over weights: KL divergences against closed forms, SciPy and Monte Carlo; the meta-gradients in closed form.

`Λ` in the names of Appendix B.7 are covariances, as they must be for its formulas to hold.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import KEY, close, flat, network, stats, weights, world

from metaprior import families, likelihoods, trees
from metaprior.families import Delta, Full, MeanField, Particles

SIZE = 3
DELTA, MEAN_FIELD, FULL = families.delta(), families.mean_field(), families.full()
KL = {family.name: jax.jit(family.kl) for family in (DELTA, MEAN_FIELD, FULL)}


def random_dist(kind, seed) -> Any:
    """A distribution of that kind over three weights in two leaves."""
    rng = np.random.default_rng(seed)
    mean = weights(rng.normal(size=SIZE))
    if kind == "delta":
        return Delta(mean)
    if kind == "mean-field":
        return MeanField(mean, weights(rng.uniform(-1.5, 0.7, SIZE)))
    return Full(mean, jnp.asarray(np.tril(0.6 * rng.normal(size=(SIZE, SIZE)))))


def moments(dist):
    """Mean vector and covariance matrix, by plain linear algebra; a prior point has width one."""
    if isinstance(dist, MeanField):
        return np.asarray(flat(dist.mean)), np.diag(np.exp(2 * np.asarray(flat(dist.log_std))))
    if isinstance(dist, Full):
        lower = np.tril(np.asarray(dist.tril), -1) + np.diag(np.exp(np.diag(dist.tril)))
        return np.asarray(flat(dist.mean)), lower @ lower.T
    return np.asarray(flat(dist.mean)), np.eye(SIZE)


def gaussian_kl(q, p):
    """The textbook formula, with inverses and determinants."""
    (m, S), (mu, P) = moments(q), moments(p)
    inverse = np.linalg.inv(P)
    return 0.5 * (
        np.trace(inverse @ S) + (m - mu) @ inverse @ (m - mu) - SIZE + np.log(np.linalg.det(P) / np.linalg.det(S))
    )


GAUSSIANS = ("mean-field", "full")
PRIORS = ("delta", "mean-field", "full")


@pytest.mark.parametrize("p_kind", PRIORS)
@pytest.mark.parametrize("q_kind", GAUSSIANS)
def test_kl_is_the_textbook_formula(q_kind, p_kind):
    for seed in range(3):
        q, p = random_dist(q_kind, seed), random_dist(p_kind, seed + 100)
        close(KL[q_kind](q, p), gaussian_kl(q, p), 1e-11)


@pytest.mark.parametrize("p_kind", PRIORS)
@pytest.mark.parametrize("q_kind", GAUSSIANS)
def test_kl_is_an_expected_log_ratio(q_kind, p_kind):
    """By SciPy's densities at draws of our own sampler: an estimate within four standard errors."""
    q, p = random_dist(q_kind, 1), random_dist(p_kind, 2)
    family = MEAN_FIELD if q_kind == "mean-field" else FULL
    draws = np.asarray(jax.jit(lambda key, q: jax.vmap(flat)(family.samples(key, q, 20_000)))(KEY, q))
    ratios = stats.multivariate_normal(*moments(q)).logpdf(draws) - stats.multivariate_normal(*moments(p)).logpdf(draws)
    assert abs(ratios.mean() - KL[q_kind](q, p)) < 4 * ratios.std() / np.sqrt(len(ratios))


vectors = st.lists(st.floats(-3, 3), min_size=SIZE, max_size=SIZE).map(np.array)
matrices = st.lists(st.floats(-2, 2), min_size=SIZE**2, max_size=SIZE**2).map(lambda x: np.reshape(x, (SIZE, SIZE)))
factorised = st.builds(lambda m, s: MeanField(weights(m), weights(s)), vectors, vectors)
correlated = st.builds(lambda m, t: Full(weights(m), jnp.asarray(t)), vectors, matrices)
gaussians = st.one_of(factorised, correlated)


@settings(max_examples=60)
@given(gaussians, gaussians)
def test_kl_is_never_negative_and_zero_only_of_itself(q, p):
    kl = KL["full" if isinstance(q, Full) else "mean-field"]
    scale = 1 + abs(float(kl(q, p)))
    assert kl(q, p) >= -1e-9 * scale
    np.testing.assert_allclose(kl(q, q), 0.0, atol=1e-9)


@pytest.mark.parametrize("p_kind", PRIORS)
def test_kl_of_a_point_is_minus_the_log_density(p_kind):
    q, p = random_dist("delta", 1), random_dist(p_kind, 2)
    (m, _), (mu, covariance) = moments(q), moments(p)
    value, (slope, prior_slope) = jax.jit(jax.value_and_grad(DELTA.kl, (0, 1)))(q, p)
    close(value, -stats.multivariate_normal(mu, covariance).logpdf(m))
    close(flat(slope), np.linalg.solve(covariance, m - mu))  # −∇ log p
    close(flat(prior_slope.mean), -np.linalg.solve(covariance, m - mu))


def test_a_point_against_mean_field_has_the_gradient_of_the_log_density():
    """Also in the widths of the prior: −∇ log p(θ) in log σ is 1 − (θ−μ)²/σ²."""
    q, p = random_dist("delta", 3), random_dist("mean-field", 4)
    slope = jax.grad(DELTA.kl, argnums=1)(q, p)
    squared = np.square(flat(q.mean) - flat(p.mean)) * np.exp(-2 * np.asarray(flat(p.log_std)))
    close(flat(slope.log_std), 1 - squared)


@pytest.mark.parametrize("p_kind", PRIORS)
def test_a_vanishing_width_has_the_gradients_of_a_point(p_kind):
    """The gradient in the mean does not know the width; the one in the prior's width converges to the point's."""
    q, p = random_dist("mean-field", 5), random_dist(p_kind, 6)
    narrow = q._replace(log_std=jax.tree.map(lambda s: s - 20, q.log_std))
    for argnum in (0, 1):
        point = jax.jit(jax.grad(DELTA.kl, argnums=argnum))(Delta(q.mean), p)
        gaussian = jax.jit(jax.grad(MEAN_FIELD.kl, argnums=argnum))(narrow, p)
        close(gaussian.mean, point.mean)
        if argnum == 1:
            close(gaussian, point, 1e-12)


@pytest.mark.parametrize("family", [DELTA, MEAN_FIELD, FULL], ids=lambda f: f.name)
def test_kl_has_no_gradient_at_the_prior(family):
    p = random_dist(family.name, 7)
    close(jax.jit(jax.grad(family.kl))(p, p), jax.tree.map(jnp.zeros_like, p), 1e-14)


# The meta-gradients of Gradient-EM: ∇Θ of −KL(q ‖ p_Θ)


def pieces(q1, q2, p):
    vector = lambda tree: np.asarray(flat(tree))
    m1, m2, mu = vector(q1.mean), vector(q2.mean), vector(p.mean)
    return m1, m2, mu, np.exp(2 * vector(q1.log_std)), np.exp(2 * vector(q2.log_std)), np.exp(2 * vector(p.log_std))


def test_gem_gradient_is_the_closed_form():
    q, p = random_dist("mean-field", 1), random_dist("mean-field", 2)
    m, _, mu, s2, _, sigma2 = pieces(q, q, p)
    slope = jax.grad(lambda p: -MEAN_FIELD.kl(q, p))(p)
    close(flat(slope.mean), (m - mu) / sigma2)
    close(flat(slope.log_std), (np.square(m - mu) + s2) / sigma2 - 1)


def test_gem_plus_gradient_is_the_closed_form():
    """In mean and log width; in the precision by the chain rule d/dlogσ = −2/σ² · d/d(1/σ²)."""
    q1, q2, p = (random_dist("mean-field", seed) for seed in (1, 2, 3))
    m1, m2, mu, v1, v2, sigma2 = pieces(q1, q2, p)
    difference = lambda p: MEAN_FIELD.kl(q1, p) - MEAN_FIELD.kl(q2, p)
    slope = jax.grad(difference)(p)
    close(flat(slope.mean), (m2 - m1) / sigma2)
    close(flat(slope.log_std), ((v2 - v1) + (m2 - m1) * (m2 + m1 - 2 * mu)) / sigma2)

    def of_precision(precision):
        return difference(MeanField(p.mean, jax.tree.map(lambda a: -0.5 * jnp.log(a), precision)))

    by_precision = flat(jax.grad(of_precision)(jax.tree.map(lambda s: jnp.exp(-2 * s), p.log_std)))
    close(by_precision, -0.5 * (v2 - v1) - 0.5 * (m2 - m1) * (m2 + m1 - 2 * mu))
    close(flat(slope.log_std), -2 / sigma2 * by_precision)


def test_b7_with_covariances_is_the_gradient_in_the_precision_once_symmetrised():
    q1, q2, p = (random_dist("full", seed) for seed in (1, 2, 3))
    (m1, C1), (m2, C2), (mu, C) = moments(q1), moments(q2), moments(p)

    def difference(mean, precision):
        prior = families.from_covariance(weights(mean), jnp.linalg.inv(precision))
        return FULL.kl(q1, prior) - FULL.kl(q2, prior)

    dmu, dprec = jax.jit(jax.grad(difference, argnums=(0, 1)))(jnp.asarray(mu), jnp.asarray(np.linalg.inv(C)))
    close(dmu, np.linalg.solve(C, m2 - m1))
    symmetric = -0.5 * (C2 - C1) - 0.5 * (np.outer(m2 - mu, m2 - mu) - np.outer(m1 - mu, m1 - mu))
    printed = -0.5 * (C2 - C1) - 0.5 * np.outer(m2 - m1, m2 + m1 - 2 * mu)
    close(dprec, symmetric)
    close(dprec, (printed + printed.T) / 2)
    assert np.abs(dprec - printed).max() > 0.1


def test_gem_at_the_exact_posterior_is_the_gradient_of_the_evidence():
    """Theorem 1 with a full posterior, for a full and for a factorised prior."""
    known = world(2)
    data = known.all_data

    def evidence(p):
        lower = families.cholesky(p) if isinstance(p, Full) else jnp.diag(jnp.exp(flat(p.log_std)))
        return known.log_evidence(flat(p.mean), lower @ lower.T, data)

    for prior in (known.full_prior.dist, known.mean_field_prior.dist):
        mean, covariance = moments(prior)
        mean, covariance = known.posterior(data, mean, covariance)
        q = families.from_covariance(weights(mean), covariance)
        both = jax.jit(lambda p, q: (jax.grad(lambda p: -FULL.kl(q, p))(p), jax.grad(evidence)(p)))
        gem, exact = both(prior, q)
        close(gem, exact, 1e-9)


# Samples, starts and other pieces


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_samples_have_the_moments(kind):
    q = random_dist(kind, 8)
    family = MEAN_FIELD if kind == "mean-field" else FULL
    number = 40_000
    draws = np.asarray(jax.jit(lambda key, q: jax.vmap(flat)(family.samples(key, q, number)))(KEY, q))
    mean, covariance = moments(q)
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < 4 * std / np.sqrt(number)).all()
    # var of a sample covariance of Gaussians: (σᵢᵢσⱼⱼ + σᵢⱼ²)/n
    error = np.sqrt((np.outer(std, std) ** 2 + covariance**2) / number)
    assert (np.abs(np.cov(draws.T) - covariance) < 4 * error).all()
    assert abs(stats.skew(draws)).max() < 4 * np.sqrt(6 / number)


def test_samples_of_a_point_are_the_point():
    q = random_dist("delta", 9)
    assert all(
        (np.asarray(draw) == np.asarray(flat(q.mean))).all() for draw in jax.vmap(flat)(DELTA.samples(KEY, q, 3))
    )


def test_variance_and_covariance_round_trip():
    q = random_dist("full", 10)
    mean, covariance = moments(q)
    close(flat(families.variance(q)), np.diag(covariance))
    again = families.from_covariance(weights(mean), jnp.asarray(covariance))
    close(moments(again), (mean, covariance))
    close(flat(families.variance(random_dist("delta", 0))), np.zeros(SIZE))


@pytest.mark.parametrize("family", [DELTA, MEAN_FIELD, FULL, families.particles(4)], ids=lambda f: f.name)
def test_init_centres_the_prior(family):
    params = weights([1.0, 2.0, 3.0])
    prior = family.init(KEY, params, 0.1)
    if family.name == "particles":
        draws = family.init(KEY, jax.tree.map(lambda p: jnp.broadcast_to(p, (2000, *p.shape)), params), 0.1).params
        deviations = np.concatenate(
            [(np.asarray(draws[k]) - np.asarray(params[k])[None, None]).ravel() for k in params]
        )
        assert abs(deviations.mean()) < 4 * 0.1 / np.sqrt(deviations.size)
        assert abs(deviations.std() / 0.1 - 1) < 4 / np.sqrt(2 * deviations.size)
        return
    close(family.mean(prior), params, 0)
    if family.name != "delta":
        close(moments(prior)[1], 0.01 * np.eye(SIZE), 1e-15)


@pytest.mark.parametrize("p_kind", PRIORS)
@pytest.mark.parametrize("family", [DELTA, MEAN_FIELD, FULL], ids=lambda f: f.name)
def test_the_start_is_of_the_posteriors_family_with_the_priors_mean(family, p_kind):
    """Whatever the family of the prior: inference begins with a posterior it can move."""
    prior = random_dist(p_kind, 11)
    start = family.start(prior)
    assert type(start) is {"delta": Delta, "mean-field": MeanField, "full": Full}[family.name]
    close(start.mean, prior.mean, 0)
    if family.name != "delta":
        close(np.diag(moments(start)[1]), np.diag(moments(prior)[1]))
    if family.name == p_kind:
        close(start, prior, 0)


def test_todays_posterior_is_tomorrows_prior():
    q, prior = random_dist("mean-field", 1), random_dist("mean-field", 2)
    assert MEAN_FIELD.as_prior(q, prior) is q
    # a point keeps the width of the prior
    close(DELTA.as_prior(Delta(q.mean), prior), MeanField(q.mean, prior.log_std), 0)
    full_prior = random_dist("full", 3)
    close(DELTA.as_prior(Delta(q.mean), full_prior), Full(q.mean, full_prior.tril), 0)


@pytest.mark.parametrize("kind", PRIORS)
def test_expected_log_prob_of_a_linear_model(kind):
    """E_q log N(y | xθ, s²) = log N(y | xm, s²) − x S xᵀ/2s²."""
    known = world(4)
    q = random_dist(kind, 12)
    family = {"delta": DELTA, "mean-field": MEAN_FIELD, "full": FULL}[kind]
    mean, covariance = moments(q)
    covariance = 0 * covariance if kind == "delta" else covariance
    x, y = np.asarray(known.all_data.x), np.asarray(known.all_data.y)[:, 0]
    spread = np.einsum("ni,ij,nj->", x, covariance, x) / (2 * known.noise_std**2)
    expected = stats.norm(x @ mean, known.noise_std).logpdf(y).sum() - spread
    number = 1 if kind == "delta" else 4000
    estimate = lambda key: family.expected_log_prob(key, known.likelihood, q, known.all_data, number)
    if kind == "delta":
        return close(estimate(KEY), expected)
    repeats = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(KEY, 10)))
    assert abs(repeats.mean() - expected) < 4 * repeats.std(ddof=1) / np.sqrt(10)
    return None


def test_particles():
    family = families.particles(3)
    params = {"bias": jnp.asarray([[0.0], [1.0], [5.0]]), "slope": jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])}
    q, p = Particles(params), Particles(jax.tree.map(lambda leaf: leaf + 0.5, params))
    close(family.mean(q), {"bias": np.array([2.0]), "slope": np.array([3.0, 5.0])})
    close(family.kl(q, p), 0.5 * 9 * 0.25)
    close(family.kl(q, q), 0.0)
    assert family.samples(KEY, q, 3) is q.params  # as many as there are: each once
    drawn = np.asarray(jax.vmap(flat)(family.samples(KEY, q, 3000)))
    rows = np.asarray(jax.vmap(flat)(q.params))
    counts = np.array([(drawn == row).all(axis=1).sum() for row in rows])
    assert counts.sum() == 3000 and (np.abs(counts - 1000) < 4 * np.sqrt(3000 * 2 / 9)).all()
    net = network()
    likelihood = likelihoods.gaussian(net.apply)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), net.params)
    each = [
        likelihood.log_prob(jax.tree.map(lambda leaf, k=k: k * leaf, net.params), net.episode.query) for k in (1, 2)
    ]
    close(families.log_probs(KEY, likelihood, Particles(stacked), net.episode.query), jnp.stack(each))
    expected = families.particles(2).expected_log_prob(KEY, likelihood, Particles(stacked), net.episode.query)
    close(expected, sum(each) / 2)


def test_leaves_are_drawn_independently():
    drawn = trees.normal_like(KEY, {"a": jnp.zeros(1000), "b": jnp.zeros(1000)})
    assert abs(np.corrcoef(drawn["a"], drawn["b"])[0, 1]) < 4 / np.sqrt(1000)


@pytest.mark.parametrize("std", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("family", [MEAN_FIELD, FULL, families.particles(2)], ids=lambda f: f.name)
def test_widths_must_be_positive(family, std):
    with pytest.raises(ValueError, match="width of a prior must be above zero and finite"):
        family.init(KEY, weights([1.0, 2.0, 3.0]), std)


def test_particles_must_be_counted():
    with pytest.raises(ValueError, match="count of at least 1, got 0"):
        families.particles(0)
