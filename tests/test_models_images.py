"""Image networks: convolutions computed in several ways, PyTorch's answers, points answered alone, any number of classes."""

import re
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.last_layer import HeadParams
from metaprior.models import BatchNorm, conv4, conv4_features, mlp, resnet12, resnet12_features
from metaprior.models.classifier import resize, shared
from metaprior.models.head import with_head
from metaprior.models.layers import max_pool

REFERENCE = Path(__file__).parent / "reference" / "torch_images.npz"
CONV4 = conv4((9, 9, 2), 3, filters=2)
NETWORKS = {  # those of tests/reference/record_torch_images.py
    "strided": (conv4((9, 10, 2), 3, filters=3), (9, 10, 2)),
    "pooled": (conv4((17, 16, 2), 3, filters=3, stride=1), (17, 16, 2)),
    "resnet": (resnet12((16, 17, 2), 3, widths=(2, 3, 2, 3)), (16, 17, 2)),
}
SEPARATE = with_head(mlp((2, 4)), 4, 3)
every_network = pytest.mark.parametrize("kind", NETWORKS)
by_patches = pytest.mark.parametrize("how", ["patches", "recomputed"])


def points(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@cache
def weights(model, seed=0):
    """Weights without the zeros and ones of initialisation, which would hide mistakes."""
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape)), shapes)


def close(found, expected, *, rtol=1e-10, atol=1e-10):
    """All leaves close."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def inductive(model, params, support, x):
    return model.inductive(params, support, x)


# PyTorch -----------------------------------------------------------------------------------------------------------


@cache
def recorded(kind):
    with np.load(REFERENCE) as arrays:
        return {name.removeprefix(f"{kind}/"): arrays[name] for name in arrays.files if name.startswith(f"{kind}/")}


def from_torch(kind, what):
    """The recorded arrays as a tree of weights. PyTorch's convolutions have biases, which normalisation takes away again."""
    arrays, model = recorded(kind), NETWORKS[kind][0]
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(shapes)]
    recorded_names = {name for name in arrays if name.startswith(f"{what}/")}
    assert {f"{what}/{name}" for name in names} == {n for n in recorded_names if not re.search(r"convs\.\d\.bias$", n)}
    return jax.tree.structure(shapes).unflatten([jnp.asarray(arrays[f"{what}/{name}"]) for name in names])


@every_network
def test_logits_and_gradients_are_those_of_pytorch(kind):
    model, arrays = NETWORKS[kind][0], recorded(kind)

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def loss(params, x):
        logits = model.apply(params, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), arrays["labels"][:, None], axis=1).mean(), logits

    (_, logits), gradient = loss(from_torch(kind, "weights"), arrays["support"])
    close(logits, arrays["logits"], rtol=1e-9)
    close(gradient, from_torch(kind, "gradient"), rtol=1e-8)


@every_network
def test_answers_by_the_statistics_of_the_support_are_those_of_pytorch(kind):
    model, arrays = NETWORKS[kind][0], recorded(kind)
    found = jax.jit(partial(inductive, model))(from_torch(kind, "weights"), arrays["support"], arrays["query"])
    close(found, arrays["inductive"], rtol=1e-9)


# Points answered alone ---------------------------------------------------------------------------------------------


def test_inductive_answers_do_not_depend_on_other_queries_and_transductive_ones_do():
    params, support, queries = weights(CONV4), points(3, 9, 9, 2), points(3, 9, 9, 2, seed=2)
    sets = jnp.stack([support, queries, queries.at[1:].set(5.0)])

    @jax.jit
    def answers(params):
        by_support = partial(inductive, CONV4, params, support)
        return by_support(queries[:1]), jax.vmap(by_support)(sets), jax.vmap(partial(CONV4.apply, params))(sets)

    alone, by_support, transductive = answers(params)
    close(by_support[0], transductive[0], rtol=1e-12, atol=1e-12)
    close(by_support[1, :1], alone, rtol=1e-12, atol=1e-12)
    close(by_support[2, :1], alone, rtol=1e-12, atol=1e-12)
    assert np.abs(transductive[1, 0] - transductive[2, 0]).max() > 1e-3


def test_without_support_each_point_is_normalised_by_itself():
    params, queries = weights(CONV4), points(3, 9, 9, 2)
    nothing = jnp.zeros((0, 9, 9, 2))
    found = jax.jit(partial(inductive, CONV4))(params, nothing, queries)
    alone = jax.jit(jax.vmap(lambda x: CONV4.apply(params, x[None])[0]))(queries)
    close(found, alone)
    assert jax.eval_shape(partial(inductive, CONV4), params, queries, nothing).shape == (0, 3)


def test_statistics_of_the_reference_normalise_everything():
    layer, x = BatchNorm(offset=jnp.array([1.0, -2.0]), scale=jnp.array([0.5, 3.0])), 3 + 2 * points(6, 3, 4, 2)
    first = np.asarray(x[:4])
    standardised = (np.asarray(x) - first.mean((0, 1, 2))) / np.sqrt(first.var((0, 1, 2)) + 1e-3)
    close(layer(x, reference=4), standardised * np.array([0.5, 3.0]) + np.array([1.0, -2.0]))


def test_channels_far_from_zero_keep_their_variance_in_single_precision():
    """Mean of squares minus square of mean would have no correct digit here."""
    x = np.asarray(1000 + 0.1 * points(8, 4, 4, 1), np.float32)
    exact = x.astype(float)
    expected = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-3)
    found = BatchNorm(jnp.zeros(1, jnp.float32), jnp.ones(1, jnp.float32))(jnp.asarray(x))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=2e-3)  # the mean itself is rounded to about 1e-4


def test_networks_without_statistics_or_classes_say_so():
    plain = mlp((2, 3, 1))
    assert plain.inductive is None and plain.shared is None and plain.resize is None
    assert with_head(plain, 1, 1).inductive is None


# Any number of classes ---------------------------------------------------------------------------------------------

HEADED = pytest.mark.parametrize("model", [CONV4, SEPARATE], ids=lambda model: model.name)


def columns(params):
    """The head as one matrix, biases in the last row."""
    return params.head if isinstance(params, HeadParams) else jnp.vstack([params.head.weight, params.head.bias[None]])


@HEADED
def test_shared_heads_have_the_average_in_every_column(model):
    params = weights(model)
    tied = model.shared(params)
    average = np.asarray(columns(params)).mean(1, keepdims=True)
    close(columns(tied), np.repeat(average, 3, axis=1), rtol=1e-14)
    close(model.shared(tied), tied, rtol=1e-14)
    close(tied.features, params.features, rtol=0, atol=0)


@HEADED
def test_resized_heads_answer_for_other_numbers_of_classes(model):
    params, x = weights(model), points(2, 9, 9, 2) if model is CONV4 else points(2, 2)
    five = model.resize(params, 5)
    found, old = jax.jit(lambda: (model.apply(five, x), model.apply(params, x)))()
    close(found, np.repeat(np.asarray(old).mean(1, keepdims=True), 5, axis=1))
    close(model.resize(five, 3), model.shared(params), rtol=1e-14)
    close(five.features, params.features, rtol=0, atol=0)


def test_gradients_and_stacked_weights_are_shared_as_weights_are():
    """The gradient in a common column is the sum over columns: the mean, in each of them, is its share."""
    assert CONV4.shared is SEPARATE.shared is NETWORKS["resnet"][0].shared is shared
    assert CONV4.resize is SEPARATE.resize is NETWORKS["resnet"][0].resize is resize
    params, x = shared(weights(SEPARATE)), points(4, 2)
    loss = lambda params: (SEPARATE.apply(params, x) ** 2 @ jnp.array([1.0, 2.0, 3.0])).mean()
    from_column = lambda column: loss(HeadParams(params.features, jnp.broadcast_to(column, (5, 3))))
    expected = jax.grad(from_column)(params.head[:, :1])
    close(shared(jax.grad(loss)(params)).head, np.repeat(expected / 3, 3, axis=1))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), weights(CONV4), weights(CONV4, 3))
    for form in (shared, partial(resize, classes=5)):
        second = jax.tree.map(lambda leaf: leaf[1], jax.jit(jax.vmap(form))(stacked))
        close(second, form(weights(CONV4, 3)), rtol=1e-14)


# Forms and beginnings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "width", "shape"),
    [
        (conv4_features(), 64, (28, 28, 1)),
        (conv4_features(pool="flatten"), 256, (28, 28, 1)),
        (conv4_features((33, 20, 1), filters=3, pool="flatten"), 3 * 3 * 2, (33, 20, 1)),
        (conv4_features((84, 84, 3), filters=32, stride=1), 800, (84, 84, 3)),
        (conv4_features((84, 84, 3), filters=32, stride=1, pool="mean"), 32, (84, 84, 3)),
        (resnet12_features(), 512, (84, 84, 3)),
    ],
)
def test_features_have_the_stated_width(features, width, shape):
    model, stated = features
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((2, *shape), float))
    assert found.shape == (2, width) and stated == width


def test_heads_begin_as_asked():
    def head(**options):
        model = conv4((28, 28, 1), 20, filters=16, pool="flatten", **options)
        head = jax.jit(lambda key: model.init(key).head)(jax.random.key(0))  # the compiler leaves out all other draws
        assert (head.bias == 0).all()
        return np.asarray(head.weight)

    count = head().size
    assert head().shape == (64, 20)
    assert (head(head_init="zeros") == 0).all()
    np.testing.assert_allclose(head(head_init="normal").std(), 1, rtol=5 / np.sqrt(2 * count))
    np.testing.assert_allclose(head(init="he").std(), np.sqrt(2 / 64), rtol=5 / np.sqrt(2 * count))
    assert 0.98 * np.sqrt(6 / 84) < np.abs(head()).max() <= np.sqrt(6 / 84)
    np.testing.assert_array_equal(head(init="he", head_init="glorot"), head())


def test_resnet12_has_the_known_number_of_weights():
    """12.4 million in the wide form: kernels 9·c·f and c·f of the shortcut, and two numbers a channel of four norms."""
    wide = resnet12_features(widths=(64, 160, 320, 640))[0]
    shapes = jax.eval_shape(wide.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 12_424_320


def test_residual_blocks_without_their_last_scale_are_pooled_shortcuts():
    block, x = weights(NETWORKS["resnet"][0]).features.blocks[1], points(3, 6, 7, 2)
    last = BatchNorm(jnp.zeros(3), jnp.zeros(3))
    block = type(block)(block.convs, (*block.norms[:-1], last), block.shortcut, block.shortcut_norm)
    pixels = np.asarray(x) @ np.asarray(block.shortcut.weight[0, 0])
    shortcut = np.asarray(block.shortcut_norm(jnp.asarray(pixels)))
    close(jax.jit(lambda x: block(x))(x), max_pool(jnp.asarray(np.where(shortcut > 0, shortcut, 0.1 * shortcut))))


def test_resnet12_begins_with_kernels_of_the_stated_spread():
    """Std √(2 / fan_out), also of the shortcut's single pixel."""
    model = resnet12_features((16, 16, 3), widths=(1, 1, 1, 64))[0]

    @jax.jit
    def kernels(key):
        last = model.init(key).blocks[3]
        return last.convs[2].weight, last.shortcut.weight

    for kernel, window in zip(kernels(jax.random.key(0)), (9, 1), strict=True):
        np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (window * 64)), rtol=5 / np.sqrt(2 * kernel.size))


@every_network
def test_networks_keep_to_single_precision(kind):
    model, shape = NETWORKS[kind]
    single = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32))
    gradient = jax.grad(lambda params, x: (model.apply(params, x) ** 2).mean())
    found = jax.eval_shape(gradient, single(weights(model)), single(points(3, *shape)))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}


def test_heads_apart_are_a_product_with_features_and_a_constant():
    features, x = mlp((2, 4)), points(3, 2)
    for model, change in (
        (with_head(features, 4, 5), jnp.tanh),
        (with_head(features, 4, 5, activation=None), lambda h: h),
        (with_head(features, 4, 5, activation=jnp.sin, scale=True), lambda h: jnp.sin(h) / 2),
    ):
        params = weights(model)
        hidden = change(features.apply(params.features, x))
        close(model.apply(params, x), hidden @ params.head[:-1] + params.head[-1:], rtol=1e-12)
    plain, scaled = (with_head(features, 4, 5, scale=scale).init(jax.random.key(0)).head for scale in (False, True))
    close(scaled, plain * np.sqrt(5), rtol=1e-12)


def test_heads_apart_pass_on_inductive_features():
    features = mlp((2, 4))._replace(inductive=lambda params, support, x: (x - support.mean(0, keepdims=True)) @ params)
    params, support, x = HeadParams(points(2, 4), points(5, 3)), points(6, 2), points(3, 2, seed=2)
    hidden = np.tanh((np.asarray(x) - np.asarray(support).mean(0)) @ np.asarray(params.features))
    found = inductive(with_head(features, 4, 3), params, support, x)
    close(found, hidden @ np.asarray(params.head[:-1]) + np.asarray(params.head[-1]))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: conv4(pool="maximum"), "unknown pool 'maximum'.*mean, flatten"),
        (lambda: conv4(how="patch"), "unknown how 'patch': did you mean patches"),
        (lambda: conv4(precision="float16"), "unknown precision 'float16'.*bf16"),
        (lambda: conv4(head_init="zero"), "unknown head_init 'zero': did you mean zeros"),
        (lambda: conv4(classes=0), "at least one class, got classes=0"),
        (lambda: resize(weights(CONV4), 0), "at least one class, got classes=0"),
        (lambda: resnet12((84, 15, 3)), "at least 16x16, got 84x15"),
        (lambda: resnet12(widths=(64, 128)), "four blocks .* got widths=\\(64, 128\\)"),
    ],
)
def test_mistakes_are_refused_in_words(build, words):
    with pytest.raises(ValueError, match=words):
        build()
