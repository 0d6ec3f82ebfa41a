"""Exact identities between methods, laws of the scalar world, and the theorems, each checked in numbers.

Our inner steps follow the mean loss and our scores are in nats, N_eff × the mean loss: hence the factor T/n where a step of
Gradient-EM meets the gradient of a score.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import multivariate_normal

from metaprior import matrix, methods
from metaprior.families import Delta, MeanField, mean_field
from metaprior.inference import infer, laplace
from metaprior.likelihoods import gaussian
from metaprior.meta import meta_learner
from metaprior.types import Data, Episode, Prior

KEY = jax.random.key(3)
RATE, TEMPERATURE, NUM_SUPPORT, NUM_QUERY = 0.05, 0.4, 5, 4
map_ = jax.tree.map
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)

# Gradient-EM by plain gradient descent on a point, in two stages; `KL` and `NO_KL` say whether the prior pulls.
KL, NO_KL = {}, {"pull": False}
POINT = dict(
    posterior="delta", inference="gradient", second_stage="sequential", draw_steps=False, widths="frozen", rates="none",
    rate=RATE, options=KL,
)  # fmt: skip


def net(params, x):
    return jnp.tanh(x @ params["w0"] + params["b0"][None]) @ params["w1"] + params["b1"][None]


def random_tree(seed, scale=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    shapes = {"w0": (1, 3), "b0": (3,), "w1": (3, 1), "b1": (1,)}
    return {name: jnp.asarray(shift + scale * rng.normal(size=shape)) for name, shape in shapes.items()}


def tasks(num_tasks, num_support=NUM_SUPPORT):
    """Sinusoids of their own amplitude and phase, stacked."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-3, 3, size=(num_tasks, num_support + NUM_QUERY, 1))
    y = rng.uniform(0.5, 2, size=(num_tasks, 1, 1)) * np.sin(x + rng.uniform(0, 3, size=(num_tasks, 1, 1)))
    parts = (slice(0, num_support), slice(num_support, None))
    return Episode(*(Data(jnp.asarray(x[:, part]), jnp.asarray(y[:, part])) for part in parts))


def one_task(num_support=NUM_SUPPORT):
    return map_(lambda leaf: leaf[0], tasks(1, num_support))


def prior():
    """Widths differ from weight to weight."""
    return Prior(MeanField(random_tree(1, 0.5), random_tree(2, 0.3, shift=-1.0)))


def loss(params, data):
    return jnp.square(net(params, data.x) - data.y).mean()


def gradient(method, prior, episode=None, likelihood=None):
    likelihood = likelihood or gaussian(net, temperature=TEMPERATURE)
    learner = meta_learner(method._replace(temperature=likelihood.temperature), likelihood)
    return jax.jit(lambda prior: learner.gradient(KEY, prior, (), episode or one_task())[0])(prior)


def gem(name, **changes):
    return gradient(methods.get(name, **(POINT | changes)), prior()).dist.mean


def over_variance(tree, scale=1.0):
    return map_(lambda g, s: scale * g * jnp.exp(-2 * s), tree, prior().dist.log_std)


def assert_same(ours, reference, **tolerance):
    map_(partial(close, **tolerance), ours, reference)


# -- Gradient-EM and its point limits --------------------------------------------------------------


def test_one_step_gem_plus_is_first_order_maml():
    """K = 1, the KL on: GEM-BML+ = (α/σ²) × FOMAML, since the KL has no gradient where a stage starts."""
    fomaml = gradient(methods.get("fomaml", steps=(1, 0), rate=RATE), Prior(Delta(prior().dist.mean))).dist.mean
    assert_same(gem("gem-bml+", steps=(1, 1)), over_variance(fomaml, RATE * TEMPERATURE / NUM_QUERY))


def test_one_step_gem_is_two_step_reptile():
    """K = 1, the KL on: GEM-BML = (1/σ²) × the displacement of one step on the support and one on the query."""
    reptile = gradient(methods.get("reptile", steps=(1, 1), rate=RATE), Prior(Delta(prior().dist.mean))).dist.mean
    assert_same(gem("gem-bml", steps=(1, 1)), over_variance(reptile))


def test_many_steps_without_a_kl_telescope():
    """GEM-BML is all of Reptile's way over σ²; GEM-BML+ the part behind q1: −(α/σ²) Σ_j ∇loss_val(m1⁽ʲ⁾)."""
    steps = (3, 2)

    @jax.jit
    def sums():
        point, found = prior().dist.mean, []
        for count, data in zip(steps, one_task(), strict=True):
            slopes = []
            for _ in range(count):
                slopes.append(jax.grad(loss)(point, data))
                point = map_(lambda p, g: p - RATE * g, point, slopes[-1])
            found.append(map_(lambda *gs: -RATE * sum(gs), *slopes))
        return found

    support, query = sums()
    reptile = gradient(methods.get("reptile", steps=steps, rate=RATE), Prior(Delta(prior().dist.mean))).dist.mean
    assert_same(reptile, map_(jnp.add, support, query))
    assert_same(gem("gem-bml", steps=steps, options=NO_KL), over_variance(reptile))
    assert_same(gem("gem-bml+", steps=steps, options=NO_KL), over_variance(query))


def test_with_a_kl_the_second_step_is_pulled_back():
    """From step 2 on the KL adds −α(T/n)(m − μ)/σ²: K = 2 on the support, none after."""
    mu, widths = prior().dist

    @jax.jit
    def by_hand():
        first = map_(lambda m, g: m - RATE * g, mu, jax.grad(loss)(mu, one_task().support))
        pull = map_(lambda m, p, s: (m - p) * jnp.exp(-2 * s) * TEMPERATURE / NUM_SUPPORT, first, mu, widths)
        slope = jax.grad(loss)(first, one_task().support)
        return map_(lambda m, g, p, start: m - RATE * (g + p) - start, first, slope, pull, mu)

    assert_same(gem("gem-bml", steps=(2, 0)), over_variance(by_hand()))


def test_natural_gem_steps_are_reptiles():
    """Preconditioned by the Fisher matrix, 1/σ² for the mean, a meta-step of GEM-BML is Reptile's interpolation."""

    def update(grads, params):
        scaled = map_(lambda g, s: -0.3 * g * jnp.exp(2 * s), grads.dist.mean, params.dist.log_std)
        return grads._replace(dist=grads.dist._replace(mean=scaled))

    natural = optax.stateless(update)
    changes = POINT | {"options": NO_KL, "steps": (2, 3), "clip": None}
    bayes = meta_learner(methods.get("gem-bml", **changes), gaussian(net), optimizer=natural)
    plain = meta_learner(methods.get("reptile", steps=(2, 3), rate=RATE), gaussian(net), optimizer=optax.sgd(0.3))
    mean = random_tree(1, 0.5)
    keys = jax.random.split(KEY, 3)
    ends = [
        jax.jit(learner.step)(learner.init(KEY, mean), keys, tasks(3))[0].prior.dist.mean for learner in (bayes, plain)
    ]
    assert_same(*ends)
    assert not np.allclose(ends[0]["w0"], mean["w0"])


def test_no_steps_no_gradient():
    """K = 0: nothing was learned of the task, so the means stay, and so do widths under the debiased rule.

    Under the exact rule widths stay too if the posterior has the prior's width. A point has none: to GEM-BML it is
    evidence for a narrower prior, −1 in every log σ; in GEM-BML+ two points cancel.
    """
    zero, minus_one = (map_(lambda leaf, v=v: jnp.full_like(leaf, v), prior().dist.mean) for v in (0.0, -1.0))
    tied = {"steps": (0, 0), "widths": "debiased", "inference": "preconditioned", "rates": "tied"}
    for name in ("gem-bml", "gem-bml+"):
        found = gradient(methods.get(name, **(POINT | tied)), prior()).dist
        assert_same(found, MeanField(zero, zero))
        wide = {"steps": (0, 0), "widths": "exact", "posterior": "mean-field"}
        assert_same(gradient(methods.get(name, **(POINT | wide)), prior()).dist, MeanField(zero, zero))
        point = gradient(methods.get(name, **(POINT | {"steps": (0, 0), "widths": "exact"})), prior()).dist
        assert_same(point, MeanField(zero, minus_one if name == "gem-bml" else zero))


@pytest.mark.parametrize("second_stage", ["sequential", "joint-from-q1"])
def test_without_support_gem_plus_is_gem(second_stage):
    """In the means always; in the widths under the debiased rule, where both are zero."""
    changes = dict(steps=(3, 2), draw_steps=False, rate=RATE, second_stage=second_stage)
    found = [gradient(methods.get(name, **changes), prior(), one_task(0)) for name in ("gem-bml", "gem-bml+")]
    assert_same(*found)
    assert_same(found[0].dist.log_std, map_(jnp.zeros_like, found[0].dist.log_std))
    assert all(np.abs(leaf).min() > 0 for leaf in jax.tree.leaves(found[0].dist.mean))


def test_the_first_order_chaser_is_scaled_by_the_posterior():
    """With inner gradients held, −∇KL(q2 ‖ q1): (m2 − m1)/s1² and ((m2 − m1)² + s2²)/s1² − 1."""
    options = {"first_order": True, "draw": lambda key, q: map_(lambda m, s: m + 0.5 * jnp.exp(s), q.mean, q.log_std)}
    method = methods.get("kl-chaser", steps=(2, 3), rate=RATE, widths="exact", options=options, temperature=TEMPERATURE)
    cell = meta_learner(method, gaussian(net, temperature=TEMPERATURE)).cell
    score = lambda prior: matrix.score(cell, KEY, prior, one_task())
    found, (q1, q2) = jax.jit(lambda prior: (jax.grad(lambda p: score(p)[0])(prior), score(prior)[1][0]))(prior())
    mean = map_(lambda b, a, s: (b - a) * jnp.exp(-2 * s), q2.mean, q1.mean, q1.log_std)
    width = lambda b, a, t, s: ((b - a) ** 2 + jnp.exp(2 * t)) * jnp.exp(-2 * s) - 1
    reference = MeanField(mean, map_(width, q2.mean, q1.mean, q2.log_std, q1.log_std))
    assert_same(found.dist, reference)


# -- learned rates ---------------------------------------------------------------------------------


def held_step(log_rate, mean, data):
    """μ − α∇loss with the inner gradient held: first-order Meta-SGD."""
    slope = jax.lax.stop_gradient(jax.grad(loss)(mean, data))
    return map_(lambda m, r, g: m - RATE * jnp.exp(r) * g, mean, log_rate, slope)


META_SGD = dict(
    posterior="delta", inference="preconditioned", second_stage="sequential", draw_steps=False, steps=(1, 1), rate=RATE
)


def test_debiased_free_rates_are_first_order_meta_sgd():
    """One step per stage: ∂ log α = minus the gradient of the query's mean loss in log α, inner gradient held."""
    log_rate = random_tree(5, 0.5)
    start = prior()._replace(log_rate=log_rate)
    method = methods.get("gem-bml+", **META_SGD, widths="frozen", rates="debiased")
    query_loss = lambda log_rate: loss(held_step(log_rate, start.dist.mean, one_task().support), one_task().query)
    reference = jax.jit(jax.grad(query_loss))(log_rate)
    assert_same(gradient(method, start).log_rate, map_(jnp.negative, reference))


def test_debiased_tied_widths_are_first_order_meta_sgd_too():
    """α = α₀(σ/σ₀)²: the rule is α/σ² = α₀/σ₀² times minus the gradient in log σ, of which log α is twice."""
    std = 0.4
    method = methods.get("gem-bml+", **META_SGD, widths="debiased", rates="tied", std=std)
    query_loss = lambda widths: loss(
        held_step(map_(lambda s: 2 * (s - jnp.log(std)), widths), prior().dist.mean, one_task().support),
        one_task().query,
    )
    reference = jax.jit(jax.grad(query_loss))(prior().dist.log_std)
    assert_same(gradient(method, prior()).dist.log_std, map_(lambda g: -RATE / std**2 * g, reference))


def expected_width_gradients(variances, num_support, num_query):
    """E_τ of the exact and the debiased ∂ log σ where σ² = noise² = 1, θ ~ N(0, v) and y = θ + noise, for each v.

    Both rules are quadratic in y, so three Gauss–Hermite nodes per point integrate them exactly.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    size = num_support + num_query
    grid = np.stack(np.meshgrid(*[nodes] * size), axis=-1).reshape(-1, size)
    mass = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * size), axis=-1).reshape(-1, size), axis=1)
    scalar = Prior(MeanField(jnp.zeros((1, 1)), jnp.zeros((1, 1))))
    likelihood = gaussian(lambda theta, x: x @ theta, noise_std=1.0)
    exact = dict(posterior="mean-field", inference="laplace", rate=1.0, rates="none", steps=(1, 1), draw_steps=False,
                 second_stage="sequential")  # fmt: skip
    learners = [
        meta_learner(methods.get("gem-bml+", **exact, widths=rule), likelihood) for rule in ("exact", "debiased")
    ]

    def one(y):
        halves = (y[:num_support, None], y[num_support:, None])
        episode = Episode(*(Data(jnp.ones_like(half), half) for half in halves))
        found = [learner.gradient(KEY, scalar, (), episode)[0].dist.log_std[0, 0] for learner in learners]
        return jnp.stack(found)

    def expected(variance):
        root = jnp.linalg.cholesky(variance + jnp.eye(size))
        return jnp.asarray(mass) @ jax.vmap(one)(jnp.asarray(grid) @ root.T)

    return np.asarray(jax.jit(jax.vmap(expected))(jnp.asarray(variances)))


def test_debiased_and_exact_widths_share_zero_and_sign():
    """One point each: exact 7(v − 1)/36, debiased (v − 1)/6. True variance 2: .194 and .166; .3: −.136 and −.117."""
    variances = np.array([2.0, 0.3, 1.0, 5.0, 0.9])
    found = expected_width_gradients(variances, 1, 1)
    close(found, np.stack([7 * (variances - 1) / 36, (variances - 1) / 6], axis=1))
    np.testing.assert_allclose(found[:2], [[0.194, 0.166], [-0.136, -0.117]], atol=1e-3)


def test_debiased_and_exact_widths_share_zero_and_sign_with_more_points():
    variances = np.array([1.0, 2.0, 1.1, 0.9, 0.1])
    found = expected_width_gradients(variances, 3, 2)
    np.testing.assert_allclose(found[0], 0.0, atol=1e-12)
    np.testing.assert_array_equal(np.sign(found[1:]), np.sign(variances[1:, None] - 1) * np.ones((1, 2)))


# -- laws and theorems -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_scalar_laws(steps):
    """GEM_K = (1 − ρᴷ) × exact and ELBO-grad_K = (1 + ρ²ᴷ a/b) × exact, ρ = 1 − α(a + b)/n, in the prior's mean."""
    x, noise, sigma = np.array([0.5, -1.0, 2.0, 1.5]), 0.8, 0.7
    data = Data(jnp.asarray(x[:, None]), jnp.asarray(1.3 * x[:, None] + 0.4))
    nothing = Data(data.x[:0], data.y[:0])
    a, b, rate, mu = (x**2).sum() / noise**2, 1 / sigma**2, 0.2, 0.25
    rho = 1 - rate * (a + b) / 4
    start = Prior(MeanField(jnp.full((1, 1), mu), jnp.full((1, 1), np.log(sigma))))
    posterior_mean = (float((data.x * data.y).sum()) / noise**2 + mu * b) / (a + b)
    exact = (posterior_mean - mu) * b
    likelihood = gaussian(lambda theta, x: x @ theta, noise_std=noise)
    for row, law in (("gem", 1 - rho**steps), ("elbo", 1 + rho ** (2 * steps) * a / b)):
        changes = POINT | {"rate": rate, "steps": (steps, 0), "row": row, "second_stage": "none"}
        method = methods.get("gem-bml", **changes)
        found = gradient(method, start, Episode(data, nothing), likelihood).dist.mean
        np.testing.assert_allclose(found[0, 0] / exact, law, rtol=1e-12)


def scalar_tasks(num_tasks):
    """θ ~ N(.5, .8²), three support points at x = 1 with noise .6."""
    rng = np.random.default_rng(2)
    theta = 0.5 + 0.8 * rng.normal(size=(num_tasks, 1, 1))
    y = jnp.asarray(theta + 0.6 * rng.normal(size=(num_tasks, 3, 1)))
    return Data(jnp.ones_like(y), y)


def test_the_posterior_is_the_best_predictor():
    """Proposition 1: moving or rescaling the exact posterior lowers E log E_Q p(D_val | θ) over query sets of two points.

    Both integrals by Gauss–Hermite: over θ on 60 nodes, over D_val | D_tr on 3 per point, exact for the quadratic integrand.
    """
    noise = 0.6
    likelihood = gaussian(lambda theta, x: x @ theta, noise_std=noise)
    start = Prior(MeanField(jnp.full((1, 1), 0.5), jnp.full((1, 1), np.log(0.8))))
    inference = laplace(likelihood, mean_field(), rate=1.0)
    nodes, weights = (jnp.asarray(v) for v in np.polynomial.hermite_e.hermegauss(60))
    few, few_weights = np.polynomial.hermite_e.hermegauss(3)
    grid = jnp.asarray(np.stack(np.meshgrid(few, few), axis=-1).reshape(-1, 2))
    mass = jnp.asarray(np.outer(few_weights, few_weights).reshape(-1) / few_weights.sum() ** 2)

    def predictive_score(support, shift, stretch):
        q, _ = infer(inference, KEY, start, start.dist, support, 1)
        m, s = q.mean[0, 0], jnp.exp(q.log_std[0, 0])
        root = jnp.linalg.cholesky(s**2 + noise**2 * jnp.eye(2))
        queries = m + grid @ root.T  # D_val | D_tr

        def log_predictive(y):
            theta = m + shift + s * jnp.exp(stretch) * nodes
            at = lambda theta: likelihood.log_prob(theta.reshape(1, 1), Data(jnp.ones((2, 1)), y[:, None]))
            return jax.nn.logsumexp(jax.vmap(at)(theta) + jnp.log(weights / weights.sum()))

        return mass @ jax.vmap(log_predictive)(queries)

    def average(shift_and_stretch):
        return jax.vmap(lambda data: predictive_score(data, *shift_and_stretch))(scalar_tasks(4)).mean()

    offsets = np.array(
        [[-0.4, 0.0], [-0.02, 0.0], [0.05, 0.0], [0.6, 0.0], [0.0, -0.8], [0.0, -0.05], [0.0, 0.1], [0.0, 1.0]]
    )
    scores, best, slope = jax.jit(
        lambda grid: (jax.lax.map(average, grid), *jax.value_and_grad(average)(jnp.zeros(2)))
    )(jnp.asarray(offsets))
    assert (np.asarray(scores) < float(best) - 1e-6).all()
    np.testing.assert_allclose(slope, 0.0, atol=1e-10)


def test_gem_ascends_the_evidence_without_a_step_back():
    """Appendix B.3: exact E-steps and small gradient M-steps on all tasks never lower Σ log p(D_τ; Θ)."""
    noise, rng = 0.5, np.random.default_rng(4)
    theta = np.array([[1.0], [-2.0]]) + np.array([[0.3], [1.5]]) * rng.normal(size=(6, 2, 1))
    x = rng.normal(size=(6, 5, 2))
    y = x @ theta + noise * rng.normal(size=(6, 5, 1))
    halves = [Data(jnp.asarray(x[:, part]), jnp.asarray(y[:, part])) for part in (slice(0, 3), slice(3, 5))]
    episodes = Episode(*halves)
    everything = Data(*(jnp.asarray(v) for v in (x, y)))

    def evidence(prior):
        mean, widths = (ravel_pytree(tree)[0] for tree in prior.dist)
        one = lambda x, y: multivariate_normal.logpdf(
            y[:, 0], x @ mean, x @ jnp.diag(jnp.exp(2 * widths)) @ x.T + noise**2 * jnp.eye(5)
        )
        return jnp.sum(jax.vmap(one)(*everything))

    exact = dict(posterior="full", inference="laplace", rate=1.0, rates="none", widths="exact", steps=(1, 1), std=1.0,
                 draw_steps=False, clip=None, second_stage="sequential")  # fmt: skip
    learner = meta_learner(
        methods.get("gem-bml", **exact), gaussian(lambda w, x: x @ w, noise_std=noise), optimizer=optax.sgd(0.05)
    )
    keys = jax.random.split(KEY, 6)

    def iteration(state, _):
        state = learner.step(state, keys, episodes)[0]
        return state, evidence(state.prior)

    start = learner.init(KEY, jnp.array([[-1.0], [0.5]]))
    end, curve = jax.jit(lambda state: jax.lax.scan(iteration, state, None, length=100))(start)
    (before, steep), (_, flat) = (jax.jit(jax.value_and_grad(evidence))(state.prior) for state in (start, end))
    curve = np.concatenate([[before], curve])
    assert (np.diff(curve) > -1e-12).all()
    assert curve[-1] - curve[0] > 10
    assert optax.tree.norm(flat) < 0.1 * optax.tree.norm(steep)
