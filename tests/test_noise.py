"""Noise in weights: three ways to draw it, one expectation.

What is linear in the weights has a closed-form variance, Σᵢ Jᵢ² sᵢ² with J its derivative: the reference of most tests.
Monte Carlo checks have fixed seeds and state their tolerance in standard errors.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaprior import trees
from metaprior.families import MeanField, mean_field_sample
from metaprior.models import Conv, Dense, NoisyWeight, conv4, foreign, mlp, noisy_params, require_noisy, variance_ratio

HOWS = ("weights", "local", "flipout")
every_how = pytest.mark.parametrize("how", HOWS)
reduced = pytest.mark.parametrize("how", HOWS[1:])
every_layer = pytest.mark.parametrize("kind", ["dense", "conv"])

CONV4 = conv4((9, 9, 2), 3, filters=2)


def points(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape))


def random_like(tree, seed=0):
    """A mean and widths, both different from weight to weight."""
    random = np.random.default_rng(seed)
    mean = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), tree)
    return mean, jax.tree.map(lambda leaf: jnp.asarray(random.uniform(0.1, 0.8, leaf.shape)), tree)


@cache
def network(model, seed=0):
    return random_like(jax.eval_shape(model.init, jax.random.key(0)), seed)


@cache
def layer_of(kind):
    """A layer, its widths, and three points."""
    zero = {
        "dense": Dense(jnp.zeros((4, 3)), jnp.zeros(3)),
        "conv": Conv(jnp.zeros((3, 3, 2, 3)), jnp.zeros(3), stride=2),
    }[kind]
    return *random_like(zero), 0.5 + (points(3, 4) if kind == "dense" else points(3, 5, 4, 2))


def draws(key, mean, std, statistic, how, num_draws):
    """`statistic(params)` of many draws, stacked."""
    one = lambda k: statistic(noisy_params(k, mean, std, how))
    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(key, num_draws)))


def linear_variance(statistic, mean, std):
    """Σᵢ Jᵢ² sᵢ²: the variance of a statistic which is linear in the weights."""
    shape = jax.eval_shape(statistic, mean).shape
    jacobian = jax.tree.leaves(jax.jit(jax.jacobian(statistic))(mean))
    squares = [np.asarray(j).reshape(*shape, -1) ** 2 for j in jacobian]
    return np.sum([j @ np.asarray(s).ravel() ** 2 for j, s in zip(squares, jax.tree.leaves(std), strict=True)], axis=0)


@every_how
@pytest.mark.parametrize(
    ("model", "shape"),
    [(mlp((3, 8, 2)), (3,)), pytest.param(CONV4, (9, 9, 2), marks=pytest.mark.slow)],
    ids=["mlp", "conv4"],
)
def test_without_width_a_draw_is_the_plain_forward_pass(model, shape, how):
    mean, std = network(model)
    zero, x = jax.tree.map(jnp.zeros_like, std), points(4, *shape)
    drawn = jax.jit(lambda key: model.apply(noisy_params(key, mean, zero, how), x))(jax.random.key(2))
    np.testing.assert_allclose(drawn, jax.jit(model.apply)(mean, x), rtol=1e-10, atol=1e-12)


@every_how
@every_layer
def test_pre_activations_have_the_moments_of_weight_sampling(kind, how):
    """⟨x, m⟩ + b and Σ J² s² at every point, position and channel; 10,000 draws, five standard errors."""
    mean, std, x = layer_of(kind)
    n, statistic = 10_000, lambda layer: layer(x)
    h = draws(jax.random.key(0), mean, std, statistic, how, n)
    variance = linear_variance(statistic, mean, std)
    assert (np.abs(h.mean(0) - statistic(mean)) < 5 * np.sqrt(variance / n)).all()
    np.testing.assert_allclose(h.var(0), variance, rtol=5 * np.sqrt(2 / n))


@every_layer
def test_noise_is_not_shared_between_points(kind):
    """This is what makes the estimators better: 10,000 draws, correlations within five standard errors of zero."""
    mean, std, x = layer_of(kind)
    statistic = lambda layer: layer(x)[:2].reshape(2, -1)[:, -3:]

    def correlations(how):
        h = draws(jax.random.key(1), mean, std, statistic, how, 10_000)
        return np.abs([np.corrcoef(h[:, 0, channel], h[:, 1, channel])[0, 1] for channel in range(3)])

    assert correlations("local").max() < 5 / np.sqrt(10_000)
    assert correlations("flipout").max() < 5 / np.sqrt(10_000)
    assert correlations("weights").max() > 0.3


@pytest.mark.parametrize(("how", "expected"), [("weights", 1), ("flipout", 1 / 16), ("local", 0)])
def test_sizes_of_the_noise_are_shared_between_points_by_one_in_sixteen_under_flipout(how, expected):
    """Two equal points of 16 ones: given its signs, flipout's noise correlates by ρ = Σ r r' / 16, and E ρ² = 1 / 16.

    Signs on outputs alone would leave |h| the same for every point. 10,000 draws; 0.05 is about five standard errors.
    """
    mean, std = Dense(jnp.zeros((16, 1)), jnp.zeros(1)), Dense(jnp.ones((16, 1)), jnp.zeros(1))
    h = draws(jax.random.key(5), mean, std, lambda layer: layer(jnp.ones((2, 16)))[:, 0], how, 10_000)
    np.testing.assert_allclose(np.corrcoef(h[:, 0] ** 2, h[:, 1] ** 2)[0, 1], expected, atol=0.05)


def test_positions_stay_together_under_flipout_and_not_under_local():
    """The mean over positions shows whether they share weights: under `local` its variance is that of independent ones."""
    mean, std, x = layer_of("conv")
    n, statistic = 10_000, lambda layer: layer(x).mean((1, 2))
    variance = linear_variance(statistic, mean, std)
    spread = {how: draws(jax.random.key(2), mean, std, statistic, how, n).var(0) for how in HOWS}
    np.testing.assert_allclose(spread["weights"], variance, rtol=5 * np.sqrt(2 / n))
    np.testing.assert_allclose(spread["flipout"], variance, rtol=5 * np.sqrt(2 / n))
    marginal = linear_variance(lambda layer: layer(x), mean, std)
    independent = marginal.mean((1, 2)) / marginal[0, :, :, 0].size
    np.testing.assert_allclose(spread["local"], independent, rtol=5 * np.sqrt(2 / n))
    assert (independent < 0.9 * variance).all()


@every_how
def test_the_gradient_of_the_expected_loss_is_unbiased(how):
    """E(xw + b − y)² = (xm + b − y)² + x²s² + s_b² for one linear layer; 20,000 draws, four standard errors."""
    mean, std = random_like(Dense(jnp.zeros((3, 1)), jnp.zeros(1)))
    x, y = points(5, 3), points(5, 1)

    def expected(m, s):
        return ((m(x) - y) ** 2 + x**2 @ s.weight**2 + s.bias[None] ** 2).mean()

    def drawn(m, s, key):
        return ((noisy_params(key, m, s, how)(x) - y) ** 2).mean()

    gradient = jax.jit(jax.vmap(partial(jax.grad(drawn, (0, 1)), mean, std)))
    estimates = jax.tree.leaves(gradient(jax.random.split(jax.random.key(3), 20_000)))
    for exact, estimate in zip(jax.tree.leaves(jax.grad(expected, (0, 1))(mean, std)), estimates, strict=True):
        assert (jnp.abs(estimate.mean(0) - exact) < 4 * estimate.std(0) / np.sqrt(20_000)).all()


def test_the_expected_loss_of_a_deep_network_is_that_of_weight_sampling():
    """Dense layers stay exact when stacked: 5,000 draws of a loss summed over points, four standard errors."""
    model, n = mlp((2, 6, 6, 1), activation=jnp.tanh), 5_000
    (mean, std), x = network(model), points(4, 2)
    loss = lambda params: (lambda f: (f**2 - f).sum())(model.apply(params, x))
    losses = {how: draws(jax.random.key(i), mean, std, loss, how, n) for i, how in enumerate(HOWS)}
    plain = losses["weights"]
    for how in HOWS[1:]:
        assert abs(losses[how].mean() - plain.mean()) < 4 * np.sqrt((losses[how].var() + plain.var()) / n)
    assert abs(plain.mean() - loss(mean)) > 10 * plain.std() / np.sqrt(n)  # the noise does matter here


@reduced
@pytest.mark.parametrize("sizes", [(4, 1), (1, 40, 40, 1)], ids=["linear", "mlp"])
def test_gradients_vary_less_on_a_batch_of_64(sizes, how, capsys):
    model, x = mlp(sizes), points(64, sizes[0])
    mean, y = jax.jit(model.init)(jax.random.key(0)), jnp.sin(2 * x[:, :1])
    std = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.1), mean)
    loss = lambda params: jnp.square(model.apply(params, x) - y).mean()
    ratio = variance_ratio(jax.random.key(4), loss, mean, std, how, num_draws=300)
    with capsys.disabled():
        print(f"\n{model.name}: variance of the gradient under {how} / under weights = {ratio:.3f}")
    assert ratio < 1


def test_variance_ratio_is_the_ratio_of_variances():
    """The same sums, with a loop over draws."""
    (mean, std, x), keys = layer_of("dense"), jax.random.split(jax.random.key(0), 7)
    loss = lambda params: (params(x) ** 2).sum()

    def total(how):
        gradient = jax.jit(jax.grad(lambda q, k: loss(noisy_params(k, q[0], q[1], how))))
        draws = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(gradient((mean, std), k))]) for k in keys]
        return np.var(draws, axis=0).sum()

    ratio = variance_ratio(jax.random.key(0), loss, mean, std, "local", num_draws=7)
    np.testing.assert_allclose(ratio, total("local") / total("weights"), rtol=1e-8)


@every_how
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_inputs_and_widths_of_zero_keep_gradients_finite(how, value):
    """A square root has no derivative at zero; black images and vanished widths are where it would show."""
    model, x = mlp((3, 8, 2)), jnp.full((4, 3), value)
    mean, std = network(model)
    zero = jax.tree.map(jnp.zeros_like, std)
    drawn = lambda m, s, x: (model.apply(noisy_params(jax.random.key(1), m, s, how), x) ** 2).sum()
    gradients = jax.jit(jax.grad(drawn, (0, 1, 2)))(mean, zero, x)
    plain = jax.jit(jax.grad(lambda m: (model.apply(m, x) ** 2).sum()))(mean)
    assert trees.all_finite(gradients)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), gradients[0], plain)


@cache
def deviation(kind, how):
    mean, std, x = layer_of(kind)
    wider = lambda factor: jax.tree.map(lambda s: factor * s, std)
    return jax.jit(lambda seed, factor: noisy_params(jax.random.key(seed), mean, wider(factor), how)(x) - mean(x))


@every_how
@every_layer
@given(factor=st.floats(0.01, 100), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=30)
def test_the_deviation_is_proportional_to_the_width(kind, how, factor, seed):
    wide, one = deviation(kind, how)(seed, factor), deviation(kind, how)(seed, 1.0)
    np.testing.assert_allclose(wide, factor * one, rtol=1e-6, atol=1e-9)


def test_drawing_weights_is_drawing_from_the_mean_field_family():
    mean, std = network(CONV4)
    q = MeanField(mean, jax.tree.map(jnp.log, std))
    drawn, expected = noisy_params(jax.random.key(2), mean, std, "weights"), mean_field_sample(jax.random.key(2), q)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), drawn, expected)


@reduced
def test_layers_become_noisy_and_other_leaves_are_drawn(how):
    """10,000 draws of the scales and offsets of a batch normalisation, five standard errors."""
    mean, std = network(CONV4)
    params = noisy_params(jax.random.key(2), mean, std, how)
    assert all(isinstance(layer.weight, NoisyWeight) for layer in (*params.features.convs, params.head))
    assert isinstance(params.head.bias, NoisyWeight)
    read = lambda params: jnp.stack([params.features.norms[0].scale, params.features.norms[3].offset])
    drawn = draws(jax.random.key(3), mean, std, read, how, 10_000)
    assert (np.abs(drawn.mean(0) - read(mean)) < 5 * read(std) / 100).all()
    np.testing.assert_allclose(drawn.std(0), read(std), rtol=5 / np.sqrt(2 * 10_000))


@every_how
def test_one_width_for_an_array_is_not_one_draw_for_it(how):
    mean, std, x = layer_of("dense")
    shared, spread = jax.tree.map(lambda s: s.mean(), std), jax.tree.map(lambda s: jnp.full_like(s, s.mean()), std)
    first, second = (noisy_params(jax.random.key(0), mean, s, how)(x) for s in (shared, spread))
    np.testing.assert_array_equal(first, second)
    assert np.unique(first - mean(x)).size == first.size


@every_how
@every_layer
def test_tasks_at_once_equal_tasks_alone(kind, how):
    mean, _, x = layer_of(kind)
    keys, tasks = jax.random.split(jax.random.key(0), 3), [random_like(mean, seed) for seed in range(3)]
    outputs = lambda key, q: noisy_params(key, q[0], q[1], how)(x)
    together = jax.jit(jax.vmap(outputs))(keys, jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks))
    for t, alone in enumerate(map(jax.jit(outputs), keys, tasks)):
        np.testing.assert_allclose(together[t], alone, rtol=1e-10, atol=1e-12)


@every_how
def test_new_keys_and_weights_do_not_trace_again(how):
    traces, model = [], mlp((2, 4, 1))

    @jax.jit
    def outputs(params, x):
        traces.append(1)
        return model.apply(params, x)

    for seed in range(3):
        mean, std = network(model, seed)
        outputs(noisy_params(jax.random.key(seed), mean, std, how), points(3, 2))
    assert len(traces) == 1


@every_how
def test_single_precision_stays_single(how):
    model = mlp((2, 4, 1))
    mean, std = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), network(model))
    params = noisy_params(jax.random.key(1), mean, std, how)
    assert model.apply(params, jnp.ones((3, 2), jnp.float32)).dtype == jnp.float32


def test_foreign_models_are_refused_in_words():
    ours = mlp((2, 1))
    theirs = foreign(ours.init, ours.apply, "theirs")
    words = "'theirs': local reparameterisation needs the layers of a built-in network; use how='weights'"
    with pytest.raises(ValueError, match=words):
        require_noisy(theirs, "local")
    with pytest.raises(ValueError, match="flipout needs the layers of a built-in network"):
        require_noisy(theirs, "flipout")
    require_noisy(theirs, "weights")
    for how in HOWS:
        require_noisy(ours, how)


@reduced
def test_weights_without_layers_are_refused_rather_than_drawn_plainly(how):
    mean = {"weight": jnp.ones((2, 1)), "bias": jnp.ones(1)}
    with pytest.raises(ValueError, match="use how='weights'"):
        noisy_params(jax.random.key(0), mean, mean, how)
    assert noisy_params(jax.random.key(0), mean, mean, "weights").keys() == mean.keys()


def test_unknown_estimators_are_refused_with_the_nearest_name():
    words = "unknown estimator 'flip-out': did you mean flipout"
    with pytest.raises(ValueError, match=words):
        require_noisy(mlp((2, 1)), "flip-out")
    mean, std = network(mlp((2, 1)))
    with pytest.raises(ValueError, match=words):
        noisy_params(jax.random.key(0), mean, std, "flip-out")
