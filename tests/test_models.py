"""Networks against slow twins written with loops, known parameter counts, and the contract of a model."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import truncnorm

from metaprior.models import BatchNorm, Conv, Dense, conv4, foreign, mlp, resnet12
from metaprior.models.layers import max_pool

OMNIGLOT = conv4()
MINI_IMAGENET = conv4((84, 84, 3), filters=32, stride=1)
SMALL = {
    "mlp": (mlp((3, 8, 2)), (3,)),
    "strided": (conv4((9, 9, 2), 3, filters=2), (9, 9, 2)),
    "pooled": (conv4((17, 16, 2), 3, filters=2, stride=1), (17, 16, 2)),
    "resnet": (resnet12((16, 17, 2), 3, widths=(2, 3, 2, 2)), (16, 17, 2)),
}
small = pytest.mark.parametrize(("model", "shape"), SMALL.values(), ids=SMALL.keys())


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@cache
def weights(model, seed=0):
    """Weights without the zeros and ones of initialisation, which would hide mistakes."""
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape)), shapes)


def points(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape))


def slow_conv(layer, x):
    """SAME convolution, one output at a time: the padding is split evenly, with the odd row at the end."""
    weight = np.asarray(layer.weight)
    size, step = weight.shape[0], layer.stride
    n, height, width, _ = x.shape
    out = np.zeros((n, math.ceil(height / step), math.ceil(width / step), weight.shape[-1]))
    down, across = (max((out.shape[1 + i] - 1) * step + size - x.shape[1 + i], 0) for i in (0, 1))
    padded = np.pad(x, [(0, 0), (down // 2, down - down // 2), (across // 2, across - across // 2), (0, 0)])
    for i, j in np.ndindex(*out.shape[1:3]):
        window = padded[:, i * step : i * step + size, j * step : j * step + size]
        out[:, i, j] = np.einsum("nhwc,hwcf->nf", window, weight)
    return out if layer.bias is None else out + np.asarray(layer.bias)


def slow_norm(layer, x):
    centred = x - x.mean((0, 1, 2))
    return centred / np.sqrt(np.mean(centred**2, (0, 1, 2)) + 1e-3) * np.asarray(layer.scale) + np.asarray(layer.offset)


def slow_pool(x):
    out = np.zeros((x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]))
    for i, j in np.ndindex(*out.shape[1:3]):
        out[:, i, j] = x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2))
    return out


def slow_conv4(params, x, *, pooled):
    for layer, norm in zip(params.features.convs, params.features.norms, strict=True):
        x = np.maximum(slow_norm(norm, slow_conv(layer, x)), 0)
        x = slow_pool(x) if pooled else x
    features = x.reshape(len(x), -1) if pooled else x.mean((1, 2))
    return features @ np.asarray(params.head.weight) + np.asarray(params.head.bias)


def test_mlp_of_the_paper_has_1761_weights():
    assert count(jax.eval_shape(mlp((1, 40, 40, 1)).init, jax.random.key(0))) == 1761


@pytest.mark.parametrize(
    ("model", "linear", "norms"), [(OMNIGLOT, 111_749 - 256, 512), (MINI_IMAGENET, 32_645 - 128, 256)]
)
def test_conv4_has_the_known_parameter_counts(model, linear, norms):
    """Those of the literature, less the biases that normalisation takes away again."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert count((params.features.convs, params.head)) == linear
    assert count(params.features.norms) == norms == 4 * 2 * params.features.convs[0].weight.shape[-1]


def test_mlp_equals_products_and_activations_written_out():
    model = mlp((3, 5, 4, 2), activation=jnp.tanh)
    params, x = weights(model), points(7, 3)
    first, second, third = ((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in params.layers)
    hidden = np.tanh(np.tanh(np.asarray(x) @ first[0] + first[1]) @ second[0] + second[1])
    np.testing.assert_allclose(model.apply(params, x), hidden @ third[0] + third[1], rtol=1e-10)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [5, 6])
def test_conv_equals_a_loop_over_positions(size, stride):
    layer, x = Conv(points(3, 3, 2, 4), points(4), stride), points(2, size, size + 1, 2)
    np.testing.assert_allclose(layer(x), slow_conv(layer, np.asarray(x)), rtol=1e-10, atol=1e-12)


def test_batch_norm_gives_each_channel_its_offset_and_scale():
    x = 3 + 2 * points(4, 5, 6, 2)
    y = BatchNorm(offset=jnp.array([1.0, -2.0]), scale=jnp.array([0.5, 3.0]))(x)
    shrinkage = x.var((0, 1, 2)) / (x.var((0, 1, 2)) + 1e-3)
    np.testing.assert_allclose(y.mean((0, 1, 2)), [1.0, -2.0], rtol=1e-10)
    np.testing.assert_allclose(y.var((0, 1, 2)), jnp.array([0.25, 9.0]) * shrinkage, rtol=1e-10)


def test_max_pool_equals_a_loop_and_leaves_out_odd_rows():
    x = points(2, 5, 7, 3)
    np.testing.assert_array_equal(max_pool(x), slow_pool(np.asarray(x)))


@pytest.mark.parametrize("kind", ["strided", "pooled"])
def test_conv4_equals_its_slow_twin(kind):
    model, shape = SMALL[kind]
    params, x = weights(model), points(3, *shape)
    slow = slow_conv4(params, np.asarray(x), pooled=kind == "pooled")
    np.testing.assert_allclose(jax.jit(model.apply)(params, x), slow, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("shape", "fan_in", "fan_out"), [((200, 100), 200, 100), ((3, 3, 32, 64), 288, 576)])
def test_initial_weights_have_the_stated_spread(shape, fan_in, fan_out):
    def weight(init):
        model = mlp((200, 100), init=init) if len(shape) == 2 else conv4((28, 28, 32), init=init)
        first = jax.jit(lambda key: jax.tree.leaves(model.init(key))[0])(jax.random.key(0))
        assert first.shape == shape
        return np.asarray(first)

    tolerance = 5 / np.sqrt(2 * np.prod(shape))  # five standard errors of a standard deviation, relative
    he, glorot, truncated = map(weight, ("he", "glorot", "truncated"))
    bound = np.sqrt(6 / (fan_in + fan_out))
    np.testing.assert_allclose(he.std(), np.sqrt(2 / fan_in), rtol=tolerance)
    np.testing.assert_allclose(glorot.std(), bound / np.sqrt(3), rtol=tolerance)
    assert 0.99 * bound < np.abs(glorot).max() <= bound
    np.testing.assert_allclose(truncated.std(), 0.01 * truncnorm.std(-2, 2), rtol=tolerance)
    assert 0.0195 < np.abs(truncated).max() <= 0.02


def test_biases_and_offsets_start_at_zero_and_scales_at_one():
    params = jax.jit(SMALL["pooled"][0].init)(jax.random.key(0))
    assert (params.head.bias == 0).all() and all(layer.bias is None for layer in params.features.convs)
    assert all((norm.offset == 0).all() and (norm.scale == 1).all() for norm in params.features.norms)


@small
def test_a_network_is_a_pytree_of_floating_arrays_and_nothing_else(model, shape):
    params, x = weights(model), points(2, *shape)
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(params))
    gradient = jax.eval_shape(jax.grad(lambda p: model.apply(p, x).sum()), params)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert model.noisy


@small
def test_no_points_have_no_outputs_and_no_gradient(model, shape):
    params, x = weights(model), jnp.zeros((0, *shape))
    outputs = jax.eval_shape(model.apply, params, x)
    gradient = jax.jit(jax.grad(lambda p: model.apply(p, x).sum()))(params)
    assert outputs.shape == (0, jax.tree.leaves(params)[-1].size)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient))


def test_second_derivatives_match_finite_differences():
    """Backprop through inner gradient steps needs these, through pooling and normalisation too."""
    model, shape = SMALL["pooled"]
    params, x = weights(model), points(3, *shape)
    direction, step = weights(model, 2), 1e-6

    @jax.jit
    def gradient(distance):
        return jax.grad(lambda p: (model.apply(p, x) ** 2).mean())(
            jax.tree.map(lambda p, d: p + distance * d, params, direction)
        )

    _, product = jax.jvp(gradient, (0.0,), (1.0,))
    difference = jax.tree.map(lambda a, b: (a - b) / (2 * step), gradient(step), gradient(-step))
    for exact, approximate in zip(jax.tree.leaves(product), jax.tree.leaves(difference), strict=True):
        np.testing.assert_allclose(exact, approximate, rtol=1e-4, atol=1e-6)


@small
def test_tasks_at_once_equal_tasks_alone(model, shape):
    tasks, x = [weights(model, seed) for seed in range(3)], points(3, 4, *shape)
    together = jax.jit(jax.vmap(model.apply))(jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks), x)
    for task in range(3):
        alone = jax.jit(model.apply)(tasks[task], x[task])
        np.testing.assert_allclose(together[task], alone, rtol=1e-10, atol=1e-12)


def test_networks_built_twice_share_compiled_code():
    traces = []

    @jax.jit
    def outputs(params, x):
        traces.append(1)
        return mlp((1, 4, 1)).apply(params, x)

    for seed in range(3):
        outputs(weights(mlp((1, 4, 1)), seed), points(2, 1))
    assert len(traces) == 1
    assert mlp((1, 4, 1)).apply is OMNIGLOT.apply


def test_foreign_models_keep_their_functions():
    ours = mlp((2, 3, 1))
    theirs = foreign(ours.init, ours.apply, "theirs")
    params, x = weights(theirs), points(4, 2)
    np.testing.assert_array_equal(theirs.apply(params, x), ours.apply(params, x))
    assert theirs.name == "theirs" and not theirs.noisy


def test_dense_works_in_single_precision():
    layer = Dense(jnp.ones((2, 3), jnp.float32), jnp.ones(3, jnp.float32))
    assert layer(jnp.ones((4, 2), jnp.float32)).dtype == jnp.float32


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: mlp((1, 4, 1), init="glorott"), "unknown init 'glorott': did you mean glorot"),
        (lambda: conv4(init="xavier"), "unknown init 'xavier': choose from he, glorot, truncated"),
        (lambda: mlp((3,)), "two or more widths"),
        (lambda: mlp((3, 0, 1)), "all at least 1"),
        (lambda: conv4(stride=3), "got stride=3"),
        (lambda: conv4((15, 28, 1), stride=1), "at least 16x16, got 15x28"),
    ],
)
def test_mistakes_are_refused_in_words(build, words):
    with pytest.raises(ValueError, match=words):
        build()
