"""Gradient steps on the ELBO: their limit of stability, their exact course in a scalar world, and their options."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from worlds import KEY, adapted, close, flat, network, predict, scalar_world, silent_data, weights, words, world

from metaprior import families, likelihoods, methods
from metaprior.families import Delta, MeanField
from metaprior.inference import gradient, infer
from metaprior.inference.base import kl_weight, mean_loss
from metaprior.meta import meta_learner
from metaprior.models import mlp, noisy_params
from metaprior.tasks.linear import log_evidence
from metaprior.types import Data, Episode, Prior

DELTA, MEAN_FIELD, FULL = families.delta(), families.mean_field(), families.full()
LINE = likelihoods.gaussian(predict, noise_std=0.7)

# Stability: with data that say nothing a step multiplies m − μ by 1 − rate·(T/n)/σ²


def pulled(family, prior, rate, steps, offset=1.0, number=4):
    """How far the mean is from the prior's after some steps that began `offset` away."""
    start = family.start(prior.dist)
    start = start._replace(mean=jax.tree.map(lambda m: m + offset, start.mean))
    size = flat(prior.dist.mean).size
    q = adapted(gradient(LINE, family, optimizer=rate), family, prior, silent_data(number, size), steps, start=start)
    return flat(q.mean) - flat(prior.dist.mean)


@pytest.mark.parametrize("growth", [0.5, 1.9, 2.1, 3.0])
@pytest.mark.parametrize("family", [DELTA, MEAN_FIELD], ids=lambda f: f.name)
def test_the_pull_contracts_below_two_and_diverges_above(family, growth):
    std, number = 0.1, 4
    prior = Prior(MeanField(weights([0.3]), weights([np.log(std)])))
    rate = growth * std**2 * number  # rate·(T/n)/σ² = growth, at temperature 1
    close(pulled(family, prior, rate, 12), np.array([(1 - growth) ** 12]), 1e-8)
    said = words(gradient(LINE, family, optimizer=rate), prior, silent_data(number))
    assert (said == "") == (growth < 2)
    assert (abs(1 - growth) ** 12 < 1) == (growth < 2)
    if said:
        assert f"{rate:g}·0.25/0.1² = {growth:.3g}" in said and "below 2" in said
        assert f"Lower the inner rate below {2 * std**2 * number:.3g}" in said
        assert f"widen the prior above σ = {(rate / number / 2) ** 0.5:.3g}" in said


def test_the_narrowest_weight_decides():
    prior = Prior(MeanField(weights([0.0, 0.0]), weights(np.log([10.0, 0.01]))))
    inference = gradient(LINE, DELTA, optimizer=1e-3)
    assert "1e-03·0.25/0.01²" in words(inference, prior, silent_data(4, 2)).replace("0.001", "1e-03")
    assert gradient(LINE, DELTA, optimizer=7e-4).check(prior, silent_data(4, 2)) is None


def test_temperature_and_points_enter_the_limit():
    prior = Prior(MeanField(weights([0.0]), weights(np.log([0.1]))))
    check = lambda temperature, number: gradient(
        likelihoods.gaussian(predict, temperature=temperature), DELTA, optimizer=0.1
    ).check(prior, silent_data(number))
    assert check(1.0, 4) is not None  # 0.1·0.25/0.01 = 2.5
    assert check(0.5, 4) is None and check(1.0, 8) is None


@pytest.mark.parametrize("growth", [1.9, 2.1])
def test_the_narrowest_direction_of_a_full_prior_decides(growth):
    """Correlations make directions narrower than any single weight."""
    lower = np.linalg.cholesky(np.array([[1.0, 0.99], [0.99, 1.0]]))
    prior = Prior(families.from_covariance(weights([0.0, 0.0]), jnp.asarray(lower @ lower.T)))
    rate = growth * 4 * 0.01  # the smallest eigenvalue of the covariance is 0.01
    far = pulled(DELTA, prior, rate, 12, offset=1.0)
    # offset (1, 1) lies along the wide direction; start along the narrow one as well
    start = Delta(weights([1.0, -1.0]))
    q = adapted(gradient(LINE, DELTA, optimizer=rate), DELTA, prior, silent_data(4, 2), 12, start=start)
    close(flat(q.mean), (1 - growth) ** 12 * np.array([1.0, -1.0]), 1e-8)
    assert np.abs(far).max() < 1
    assert (gradient(LINE, DELTA, optimizer=rate).check(prior, silent_data(4, 2)) is None) == (growth < 2)


def test_a_point_as_prior_has_width_one():
    prior, data = Prior(Delta(weights([0.0]))), silent_data(4)
    assert gradient(LINE, DELTA, optimizer=7.9).check(prior, data) is None
    assert "8.1·0.25/1² = 2.02" in words(gradient(LINE, DELTA, optimizer=8.1), prior, data)


@pytest.mark.parametrize("step", [0.9, 1.1])
def test_widths_settle_only_below_one(step):
    """In log s the curvature of the KL is 2 at s = σ: a wide prior is stable in its means and not in its widths."""
    prior = Prior(MeanField(weights([0.0]), weights([np.log(3.0)])))
    start = MeanField(weights([0.0]), weights([np.log(3.0) + 1e-4]))
    inference = gradient(LINE, MEAN_FIELD, optimizer=4 * step)
    q = adapted(inference, MEAN_FIELD, prior, silent_data(4), 30, start=start)
    assert (abs(flat(q.log_std)[0] - np.log(3.0)) < 1e-4) == (step < 1)
    said = words(inference, prior, silent_data(4))
    assert (said == "") == (step < 1)
    if said:
        assert "widths of the posterior would not settle" in said and "Lower the inner rate below 4 " in said
    assert gradient(LINE, DELTA, optimizer=4 * step).check(prior, silent_data(4)) is None


@pytest.mark.parametrize("family", [MEAN_FIELD, FULL], ids=lambda f: f.name)
def test_there_is_no_pull_at_the_prior(family):
    prior = world().full_prior if family is FULL else world().mean_field_prior
    q = adapted(gradient(LINE, family, optimizer=0.3), family, prior, silent_data(4, 3), 1)
    close(q, prior.dist, 1e-14)


def test_other_steps_have_no_such_limit():
    prior = Prior(MeanField(weights([0.0]), weights([-9.0])))
    assert gradient(LINE, DELTA, optimizer=optax.adam(0.1)).check(prior, silent_data(4)) is None
    assert gradient(LINE, DELTA, optimizer=0.1, pull=False).check(prior, silent_data(4)) is None


# The scalar law: with ρ = 1 − α(a + b), a the precision of the data, b of the prior, α = rate/n

SCALAR = scalar_world(inputs=[0.5, -1.0, 2.0], targets=[1.0, 0.3, 2.5], noise_std=0.8, mean=0.4, std=0.6)


def scalar_law(steps, rate):
    """ρ, a/b, the exact gradient of the evidence in μ, and the point posterior as a function of μ."""
    data, std = SCALAR.episode.support, 0.6
    a, b = float(jnp.square(data.x).sum()) / SCALAR.noise_std**2, 1 / std**2
    inference = gradient(SCALAR.likelihood, DELTA, optimizer=rate)
    evidence = lambda mu: log_evidence(mu, jnp.asarray(SCALAR.covariance), data.x, data.y, SCALAR.noise_std)

    def prior(mu):
        return Prior(MeanField(weights(mu), weights([np.log(std)])))

    def point(mu):
        return infer(inference, KEY, prior(mu), DELTA.start(prior(mu).dist), data, steps)[0]

    return 1 - rate / 3 * (a + b), a / b, jax.grad(evidence)(jnp.array([0.4])), prior, point


@pytest.mark.parametrize("steps", [0, 1, 5, 20])
def test_gem_undershoots_by_a_power_of_rho(steps):
    rho, _, exact, prior, point = scalar_law(steps, 0.05)
    assert 0 < rho < 1

    def gem(mu):
        return -DELTA.kl(jax.lax.stop_gradient(point(mu)), prior(mu).dist)

    close(jax.jit(jax.grad(gem))(jnp.array([0.4])) / exact, np.array([1 - rho**steps]), 1e-10)


@pytest.mark.parametrize("steps", [0, 5])
def test_the_elbo_gradient_overshoots_by_an_even_power(steps):
    rho, ratio, exact, prior, point = scalar_law(steps, 0.05)

    def elbo(mu):
        q = point(mu)
        return SCALAR.likelihood.log_prob(q.mean, SCALAR.episode.support) - DELTA.kl(q, prior(mu).dist)

    close(jax.jit(jax.grad(elbo))(jnp.array([0.4])) / exact, np.array([1 + rho ** (2 * steps) * ratio]), 1e-10)


def test_converged_steps_reach_the_exact_posterior_mean():
    """And the mean-field optimum 1/diag(precision) in the widths, from the exact expected loss of many draws."""
    known = world(temperature=2.0)
    inference = gradient(known.likelihood, DELTA, optimizer=0.2)
    q = adapted(inference, DELTA, known.full_prior, known.all_data, 2000)
    close(flat(q.mean), known.posterior(known.all_data)[0], 1e-10)


def test_mean_field_widths_reach_one_over_the_diagonal_of_the_precision():
    """The gradient in log s has mean s²·(Λ + XᵀX/noise²)ᵢᵢ − 1; the draws' noise is small at a small rate."""
    known = world(correlated=False)
    inference = gradient(
        known.likelihood, MEAN_FIELD, optimizer=optax.adam(optax.exponential_decay(0.05, 400, 0.2)), num_samples=64
    )
    q = adapted(inference, MEAN_FIELD, known.mean_field_prior, known.all_data, 2000)
    mean, covariance = known.posterior(known.all_data)
    np.testing.assert_allclose(flat(q.mean), mean, atol=0.02)
    np.testing.assert_allclose(flat(q.log_std), -0.5 * np.log(np.diag(np.linalg.inv(covariance))), atol=0.02)


# Options


def test_mini_batch_steps_average_to_the_whole_step():
    """Over many draws, within four standard errors; the pull keeps the weight T/n of all n points."""
    known = world(shots=6)
    prior, start = known.mean_field_prior, Delta(weights(known.mean + 0.3))
    one = lambda key, size: flat(
        infer(
            gradient(known.likelihood, DELTA, optimizer=0.1, batch_size=size),
            key,
            prior,
            start,
            known.episode.support,
            1,
        )[0]
    )
    draws = np.asarray(jax.jit(jax.vmap(partial(one, size=2)))(jax.random.split(KEY, 3000)))
    whole = jax.jit(partial(one, size=None))(KEY)
    assert (np.abs(draws.mean(axis=0) - whole) < 4 * draws.std(axis=0) / np.sqrt(3000)).all()
    assert draws.std(axis=0).min() > 1e-3


def noisy_steps(inference, q, data, number):
    """The step from `q` under many keys, as vectors (means, then log widths)."""
    prior = Prior(MeanField(*jax.tree.map(jnp.zeros_like, q)))
    one = lambda key: flat(infer(inference, key, prior, q, data, 1)[0]) - flat(q)
    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(KEY, number)))


def test_more_samples_leave_the_step_and_divide_its_variance():
    known = world()
    q = MeanField(weights(known.mean), weights([-0.5, 0.0, -1.0]))
    steps = {
        number: noisy_steps(gradient(known.likelihood, MEAN_FIELD, num_samples=number), q, known.all_data, 4000)
        for number in (1, 8)
    }
    error = np.sqrt(sum(s.var(axis=0) for s in steps.values()) / 4000)
    assert (np.abs(steps[1].mean(axis=0) - steps[8].mean(axis=0)) < 4 * error).all()
    np.testing.assert_allclose(steps[8].var(axis=0) / steps[1].var(axis=0), 1 / 8, rtol=0.2)


@pytest.mark.parametrize("how", ["local", "flipout"])
def test_other_estimators_draw_inside_the_steps(how):
    """One dense layer: E loss = loss at the mean + Σ x²s²/2noise², so the expected step is known; it is less noisy."""
    model = mlp((2, 1))
    likelihood = likelihoods.gaussian(model.apply, noise_std=0.5)
    rng = np.random.default_rng(0)
    data = Data(jnp.asarray(rng.normal(size=(8, 2))), jnp.asarray(rng.normal(size=(8, 1))))
    mean = model.init(KEY)
    q = MeanField(mean, jax.tree.map(lambda m: jnp.full_like(m, -0.3), mean))

    def draw(key, q):
        return noisy_params(key, q.mean, jax.tree.map(jnp.exp, q.log_std), how)

    def expected_loss(q):
        inputs = jnp.concatenate([data.x, jnp.ones((8, 1))], axis=1)
        layer = jax.tree.map(lambda s: jnp.exp(2 * s), q.log_std).layers[0]
        variances = jnp.concatenate([layer.weight[:, 0], layer.bias])
        return mean_loss(likelihood, q.mean, data) + (jnp.square(inputs) @ variances).mean() / (2 * 0.5**2)

    number = 2000
    options: dict[str, Any] = dict(optimizer=1.0, pull=False, num_samples=2)
    estimates, plain = (
        noisy_steps(gradient(likelihood, MEAN_FIELD, draw=how, **options), q, data, number) for how in (draw, None)
    )
    expected = -flat(jax.jit(jax.grad(expected_loss))(q))
    for steps in (estimates, plain):
        assert (np.abs(steps.mean(axis=0) - expected) < 4 * steps.std(axis=0) / np.sqrt(number)).all()
    assert estimates.var(axis=0).sum() < 0.8 * plain.var(axis=0).sum()


OPTIMISERS = {
    "momentum": optax.sgd(0.05, momentum=0.9),
    "adam": optax.adam(0.05),
    "rmsprop": optax.rmsprop(0.05),
    "clipped adamw": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.05, weight_decay=0.1)),
    "schedule": optax.sgd(optax.linear_schedule(0.1, 0.0, 4)),
}


@pytest.mark.parametrize("optimizer", OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_any_optimiser_runs_as_by_hand(optimizer):
    known = world()
    data, prior = known.episode.support, known.mean_field_prior
    q = adapted(gradient(known.likelihood, DELTA, optimizer=optimizer), DELTA, prior, data, 4)

    @jax.jit
    def by_hand(params, state):
        def objective(params):
            deviation = (flat(params) - flat(prior.dist.mean)) * jnp.exp(-flat(prior.dist.log_std))
            residual = data.y - predict(params, data.x)
            return jnp.square(residual).mean() / (2 * 0.7**2) + jnp.square(deviation).sum() / (2 * 5)

        updates, state = optimizer.update(jax.grad(objective)(params), state, params)
        return optax.apply_updates(params, updates), state

    params = prior.dist.mean
    state = optimizer.init(params)
    for _ in range(4):
        params, state = by_hand(params, state)
    close(q.mean, params, 1e-10)


def test_first_order_holds_the_inner_gradients():
    """d(adapted)/dμ: the identity at first order, (I − rate·H)^K with H the curvature of the mean loss otherwise."""
    known = world()
    data, rate, steps = known.episode.support, 0.1, 3

    def end(mu, **options):
        prior = Prior(Delta(weights(mu)))
        inference = gradient(known.likelihood, DELTA, optimizer=rate, pull=False, **options)
        return flat(infer(inference, KEY, prior, prior.dist, data, steps)[0].mean)

    mu = jnp.asarray(known.mean)
    hessian = np.asarray(data.x.T @ data.x) / 5 / 0.7**2
    close(jax.jit(jax.jacobian(partial(end, first_order=True)))(mu), np.eye(3), 1e-14)
    close(jax.jit(jax.jacobian(end))(mu), np.linalg.matrix_power(np.eye(3) - rate * hessian, steps), 1e-12)
    close(end(mu, first_order=True), end(mu), 0)


def test_a_fresh_adam_begins_with_a_sign_step():
    net = network()
    likelihood = likelihoods.gaussian(net.apply)
    prior = Prior(Delta(net.params))
    inference = gradient(likelihood, DELTA, optimizer=optax.adam(0.01, eps=1e-16), pull=False)
    q = adapted(inference, DELTA, prior, net.episode.support, 1)
    slope = flat(jax.jit(jax.grad(lambda p: mean_loss(likelihood, p, net.episode.support)))(net.params))
    close(flat(q.mean) - flat(net.params), -0.01 * np.sign(slope), 1e-9)


def test_a_shared_second_moment_is_the_average_over_tasks():
    """Two meta-steps over two tasks and two stages, against Adam run by hand from the averaged state."""
    optimizer, tasks = optax.adam(0.02, b1=0.0), [world(seed, shots=4, queries=4) for seed in (1, 2)]
    likelihood = likelihoods.gaussian(predict)
    method = methods.get("reptile", steps=(2, 1), options={"pull": False, "optimizer": optimizer, "share_state": True})
    learner = meta_learner(method, likelihood, optimizer=optax.sgd(0.1))
    state = learner.init(KEY, weights(np.zeros(3)))
    episodes = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(known.episode for known in tasks))
    step = jax.jit(learner.step)

    mean, memory = weights(np.zeros(3)), optimizer.init(Delta(weights(np.zeros(3))))
    for _ in range(2):
        state, _ = step(state, jax.random.split(KEY, 2), episodes)
        ends, memories = zip(
            *(by_hand(optimizer, memory, mean, likelihood, known.episode) for known in tasks), strict=True
        )
        # Reptile: the gradient of −½‖μ − m2‖² is m2 − μ
        mean = jax.tree.map(lambda m, *end: m + 0.1 * (average(*end) - m), mean, *ends)
        memory = jax.tree.map(average, *memories)
        close(state.prior.dist.mean, mean, 1e-12)
        close(flat(state.memory[0].nu), flat(memory[0].nu), 1e-14)
        assert state.memory[0].count == memory[0].count


def average(*leaves):
    """Of tasks; counters are equal in all of them and stay whole numbers."""
    return leaves[0] if jnp.issubdtype(leaves[0].dtype, jnp.integer) else sum(leaves) / len(leaves)


def by_hand(optimizer, memory, mean, likelihood, episode):
    """Two steps on the support, one on the query, the state carried through."""
    q: Any = Delta(mean)
    for source in (episode.support, episode.support, episode.query):
        slope = jax.jit(jax.grad(lambda q, source: mean_loss(likelihood, q.mean, source)))(q, source)
        updates, memory = optimizer.update(slope, memory, q)
        q = optax.apply_updates(q, updates)
    return q.mean, memory


def test_a_state_that_is_not_shared_is_fresh():
    inference = gradient(LINE, DELTA, optimizer=optax.adam(0.02))
    q, memory = infer(inference, KEY, world().mean_field_prior, Delta(weights(np.zeros(3))), world().all_data, 1)
    assert memory == () and inference.memory(q) == ()


def test_bad_arguments_are_refused():
    for rate in (0.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="inner rate must be above zero"):
            gradient(LINE, DELTA, optimizer=rate)
    with pytest.raises(ValueError, match="at least one sample per step, got num_samples=0"):
        gradient(LINE, MEAN_FIELD, num_samples=0)


def test_the_kl_counts_as_temperature_over_points():
    """The fixed point of a point posterior is ridge regression with λ = (T/n)/σ² beside the mean loss."""
    known = world(temperature=3.0, correlated=False)
    episode = Episode(*known.episode)
    q = adapted(gradient(known.likelihood, DELTA, optimizer=0.2), DELTA, known.mean_field_prior, episode.support, 1500)
    x, y = np.asarray(episode.support.x), np.asarray(episode.support.y)[:, 0]
    ridge = kl_weight(known.likelihood, episode.support) / np.diag(known.covariance)
    gram = x.T @ x / (5 * 0.7**2)
    close(flat(q.mean), np.linalg.solve(gram + np.diag(ridge), x.T @ y / (5 * 0.7**2) + ridge * known.mean), 1e-9)


@pytest.mark.parametrize(("ways", "shots"), [(5, 1), (20, 5)])
def test_a_rate_on_cross_entropy_per_shot_is_ways_times_a_rate_on_the_mean(ways, shots):
    """The first public MAML sums cross-entropies over a task and divides by shots: its rate of 0.4 is 0.4 × ways of ours."""
    key_x, key_w = jax.random.split(jax.random.key(0))
    data = Data(jax.random.normal(key_x, (ways * shots, 3)), jnp.repeat(jnp.arange(ways), shots))
    first = jax.random.normal(key_w, (3, ways))
    apply = lambda w, x: x @ w

    def summed(w):
        picked = jax.nn.log_softmax(apply(w, data.x))[jnp.arange(ways * shots), data.y]
        return -(picked / shots).sum()

    theirs = first - 0.4 * jax.grad(summed)(first)
    inference = gradient(likelihoods.categorical(apply), DELTA, optimizer=0.4 * ways, pull=False)
    q, _ = infer(inference, jax.random.key(1), Prior(Delta(first)), Delta(first), data, 1)
    np.testing.assert_allclose(q.mean, theirs, atol=1e-12)
