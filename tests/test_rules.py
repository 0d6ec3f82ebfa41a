"""How widths and rates are learned: the parts of a gradient that each rule keeps, in closed form."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import families, matrix, methods
from metaprior.cells import make_cell
from metaprior.families import Delta, Full, MeanField, Particles
from metaprior.inference.platipus import PlatipusExtra
from metaprior.last_layer import LastLayer
from metaprior.likelihoods import gaussian
from metaprior.rules import LOG_RATE_BOUNDS, RATE_RULES, WIDTH_RULES, apply_rules, bounded, clipped, cross_term
from metaprior.types import Data, Episode, Posteriors, Prior

RATE = 0.02
map_ = jax.tree.map
close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)


def tree(seed):
    rng = np.random.default_rng(seed)
    return {"w": jnp.asarray(rng.normal(size=(2, 3))), "b": jnp.asarray(rng.normal(size=3))}


PRIOR = Prior(MeanField(tree(0), tree(1)), log_rate=tree(2))
Q1, Q2 = MeanField(tree(3), tree(4)), MeanField(tree(5), tree(6))
GRADIENT = Prior(MeanField(tree(7), tree(8)), log_rate=tree(9))


def rule(widths, rates, prior=PRIOR, posteriors=None, gradient=GRADIENT, family=None):
    posteriors = posteriors or Posteriors(Q1, Q2)
    return apply_rules(widths, rates, family or families.mean_field(), prior, posteriors, gradient, RATE)


def assert_same(ours, reference):
    assert jax.tree.structure(ours) == jax.tree.structure(reference)
    map_(close, ours, reference)


zeros = partial(map_, jnp.zeros_like)


@pytest.mark.parametrize("rates", RATE_RULES)
@pytest.mark.parametrize("widths", WIDTH_RULES)
def test_each_rule_touches_its_own_part(widths, rates):
    """The means are never touched; widths and rates are replaced, zeroed or left."""
    cross = map_(lambda m2, m1, mu: (m2 - m1) * (m1 - mu), Q2.mean, Q1.mean, PRIOR.dist.mean)
    log_std = {
        "exact": GRADIENT.dist.log_std,
        "frozen": zeros(GRADIENT.dist.log_std),
        "debiased": map_(lambda c, s: 2 * c / jnp.exp(s) ** 2, cross, PRIOR.dist.log_std),
    }[widths]
    log_rate = {
        "frozen": zeros(GRADIENT.log_rate),
        "debiased": map_(lambda c, r: c / (RATE * jnp.exp(r)), cross, PRIOR.log_rate),
    }.get(rates, GRADIENT.log_rate)
    assert_same(rule(widths, rates), Prior(MeanField(GRADIENT.dist.mean, log_std), log_rate))


def test_without_rates_there_is_nothing_to_do():
    prior, gradient = PRIOR._replace(log_rate=None), GRADIENT._replace(log_rate=None)
    for rates in RATE_RULES:
        assert rule("exact", rates, prior=prior, gradient=gradient).log_rate is None


def test_the_exact_width_gradient_is_noise_widths_and_cross_term():
    r"""$[(s_2^2 - s_1^2) + (m_2-m_1)^2 + 2(m_2-m_1)(m_1-\mu)]/\sigma^2$ by automatic differentiation of −KL(q2‖p) + KL(q1‖p)."""
    family = families.mean_field()
    exact = jax.jit(jax.grad(lambda prior: family.kl(Q1, prior) - family.kl(Q2, prior)))(PRIOR.dist)
    variance = map_(lambda s: jnp.exp(2 * s), PRIOR.dist.log_std)
    widths = map_(lambda b, a: jnp.exp(2 * b) - jnp.exp(2 * a), Q2.log_std, Q1.log_std)
    noise = map_(lambda b, a: (b - a) ** 2, Q2.mean, Q1.mean)
    cross = rule("debiased", "none").dist.log_std
    assert_same(exact.log_std, map_(lambda w, n, c, v: (w + n) / v + c, widths, noise, cross, variance))
    assert_same(exact.mean, map_(lambda b, a, v: (b - a) / v, Q2.mean, Q1.mean, variance))


def test_gem_bml_closed_form():
    """−KL(q‖p) has the gradient (m − μ)/σ² and ((m − μ)² + s²)/σ² − 1."""
    family = families.mean_field()
    grads = jax.jit(jax.grad(lambda prior: -family.kl(Q2, prior)))(PRIOR.dist)
    mean = lambda m, mu, s: (m - mu) / jnp.exp(2 * s)
    width = lambda m, mu, s, q: ((m - mu) ** 2 + jnp.exp(2 * q)) / jnp.exp(2 * s) - 1
    assert_same(grads.mean, map_(mean, Q2.mean, *PRIOR.dist))
    assert_same(grads.log_std, map_(width, Q2.mean, *PRIOR.dist, Q2.log_std))


def test_points_count_by_their_mean():
    """A point posterior gives the same cross term as a Gaussian with that mean."""
    points = Posteriors(Delta(Q1.mean), Delta(Q2.mean))
    assert_same(
        cross_term(families.delta(), PRIOR, points), cross_term(families.mean_field(), PRIOR, Posteriors(Q1, Q2))
    )


def test_frozen_covers_every_kind_of_width():
    """Full covariances and PLATIPUS's second width are widths too."""
    full = Prior(Full(tree(0), jnp.ones((9, 9))))
    assert_same(rule("frozen", "none", prior=full, gradient=full), Prior(Full(tree(0), jnp.zeros((9, 9)))))
    extra = PlatipusExtra(tree(1), jnp.ones(()), jnp.ones(()))
    platipus = Prior(MeanField(tree(2), tree(3)), extra=extra)
    expected = Prior(MeanField(tree(2), zeros(tree(3))), extra=extra._replace(query_log_std=zeros(tree(1))))
    assert_same(rule("frozen", "none", prior=platipus, gradient=platipus), expected)


@pytest.mark.parametrize("dist", [Delta(tree(0)), Particles(map_(lambda leaf: leaf[None], tree(0)))])
def test_priors_without_widths_pass_through(dist):
    for widths in WIDTH_RULES:
        assert_same(rule(widths, "none", prior=Prior(dist), gradient=Prior(dist)), Prior(dist))


# -- bounds and clipping ---------------------------------------------------------------------------


def test_rates_and_tied_widths_stay_inside_their_bounds():
    low, high = LOG_RATE_BOUNDS
    far = map_(lambda leaf: 100 * leaf, tree(0))
    std = 0.3
    found = bounded("debiased", "tied", Prior(MeanField(far, far), log_rate=far), std)
    assert_same(found.dist.mean, far)
    assert_same(found.log_rate, map_(lambda leaf: np.clip(leaf, low, high), far))
    # α = α₀(σ/σ₀)², so that log α − log α₀ = 2(log σ − log σ₀) has the same bounds
    doubled = map_(lambda s: 2 * (s - np.log(std)), found.dist.log_std)
    assert_same(doubled, map_(lambda s: np.clip(2 * (s - np.log(std)), low, high), far))


@pytest.mark.parametrize(("widths", "rates"), [("exact", "none"), ("debiased", "debiased"), ("frozen", "tied")])
def test_widths_that_are_no_rates_have_no_bounds(widths, rates):
    far = map_(lambda leaf: 100 * leaf, tree(0))
    assert_same(bounded(widths, rates, Prior(MeanField(far, far)), 0.3), Prior(MeanField(far, far)))


def test_clipping_keeps_directions_and_short_gradients():
    norm = float(np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(GRADIENT.dist.mean))))
    assert_same(clipped(GRADIENT, None), GRADIENT)
    assert_same(clipped(GRADIENT, 1.01 * norm), GRADIENT)
    assert_same(clipped(GRADIENT, 0.25 * norm), map_(lambda g: 0.25 * g, GRADIENT))
    assert_same(clipped(zeros(GRADIENT), 1.0), zeros(GRADIENT))


def test_clipping_counts_features_that_are_not_adapted_and_no_widths():
    gradient = Prior(LastLayer(features=jnp.full((4,), 3.0), mean=jnp.full((4, 1), 4.0), tril=jnp.full((2, 2), 1e6)))
    assert_same(clipped(gradient, 5.0), map_(lambda g: 0.5 * g, gradient))  # √(4·3² + 4·4²) = 10


def test_the_rules_see_the_posteriors_of_the_score():
    """matrix.score hands back the posteriors it scored: the fixture above is what training sees."""
    method = methods.get("gem-bml+", steps=(2, 3), draw_steps=False, second_stage="sequential", rate=0.1, std=0.5)
    line = gaussian(lambda w, x: x @ w)
    cell = make_cell(method, line)
    prior = Prior(families.mean_field().init(jax.random.key(0), jnp.ones((1, 1)), 0.5))
    data = Data(jnp.ones((2, 1)), jnp.full((2, 1), 3.0))
    score = jax.jit(lambda prior: matrix.score(cell, jax.random.key(0), prior, Episode(data, data)))
    _, (posteriors, _) = score(prior)
    # loss (w − 3)², gradient 2(w − 3): each step keeps 0.8 of the distance 2
    close(posteriors.q1.mean, [[3 - 2 * 0.8**2]])
    close(posteriors.q2.mean, [[3 - 2 * 0.8**5]])
