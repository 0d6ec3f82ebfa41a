"""Convolutions computed in several ways: the same values and derivatives, chosen by who asks and where."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import settings
from metaprior.benchmarks.images_problem import Setting, random_pool, set_up
from metaprior.estimates import keeps_steps
from metaprior.meta import task_keys
from metaprior.methods import METHODS
from metaprior.models import Conv, convolution, noisy_params
from metaprior.models.convolution import PRODUCTS, aligned, convolve, quickest
from metaprior.training import initial_state

by_patches = pytest.mark.parametrize("how", ["patches", "recomputed"])
SETTING = Setting("omniglot", ways=2, shots=1, queries=1, meta_batch=2, filters=2, target=None)


def points(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def close(found, expected, *, rtol=1e-10, atol=1e-10):
    """All leaves close."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def primitives(function, *arguments):
    """Names of what a function is made of."""
    return str(jax.make_jaxpr(function)(*arguments))


def one_step(method):
    """The prior after a meta-step."""
    setup, pool = set_up(SETTING, method, precision=None), random_pool("omniglot", 3, 4)
    keys, state = task_keys(jax.random.key(0), SETTING.meta_batch), initial_state(setup)
    episodes = jax.vmap(lambda key: setup.tasks.sample(key, *pool))(keys)
    return jax.jit(setup.learner.step)(state, keys, episodes)[0].prior


@by_patches
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_patches_times_a_matrix_are_the_convolution(how, padding):
    cases = [
        (points(2, size, size + 1, 3), points(*window, 3, 4), stride)
        for stride in (1, 2, 3)
        for size in (5, 6)
        for window in ((1, 1), (3, 3), (2, 3))
    ]

    def answers(how):
        return [convolve(x, w, stride=stride, padding=padding, how=how) for x, w, stride in cases]

    found, expected = jax.jit(lambda: (answers(how), answers("direct")))()
    close(found, expected)


@by_patches
@pytest.mark.parametrize("stride", [1, 2])
def test_derivatives_of_both_orders_agree_for_tasks_with_weights_of_their_own(how, stride):
    x, w, direction = points(2, 3, 6, 5, 2), points(2, 3, 3, 2, 4), points(2, 3, 3, 2, 4, seed=2)

    def derivatives(how):
        def loss(w, x):
            return jnp.tanh(convolve(x, w, stride=stride, how=how)).sum()

        gradient = jax.grad(loss, (0, 1))
        return jax.vmap(lambda w, x, d: jax.jvp(lambda w: gradient(w, x), (w,), (d,)))(w, x, direction)

    found, expected = jax.jit(lambda: (derivatives(how), derivatives("direct")))()
    close(found, expected)


@pytest.mark.parametrize(("stride", "unrolled"), [(1, 8), (2, 8), (1, 2)])
def test_convolutions_of_one_task_after_another_are_the_same_and_are_never_grouped(stride, unrolled, monkeypatch):
    """With weights of their own for seeds and tasks, forwards and backwards; images alone may be shared."""
    monkeypatch.setattr(convolution, "MANY", 0)
    monkeypatch.setattr(convolution, "UNROLLED", unrolled)
    x, w = points(3, 2, 6, 5, 2), points(2, 3, 3, 3, 2, 4)

    def gradients(how, w):
        loss = lambda w, x: jnp.tanh(convolve(x, w, stride=stride, how=how)).sum()
        tasks = jax.vmap(jax.value_and_grad(loss, (0, 1)))
        return jax.vmap(tasks, in_axes=(0, None))(w, x)

    close(jax.jit(partial(gradients, "apart"))(w), jax.jit(partial(gradients, "direct"))(w))
    close(convolve(x[0], w[0, 0], stride=stride, how="apart"), convolve(x[0], w[0, 0], stride=stride, how="direct"))
    loss = lambda how: lambda w, x: jnp.tanh(convolve(x, w, how=how)).sum()
    weights_of_all = lambda how: jax.jit(jax.vmap(jax.grad(loss(how), (0, 1)), in_axes=(None, 0)))
    close(weights_of_all("apart")(w[0, 0], x), weights_of_all("direct")(w[0, 0], x))
    grouped = lambda how: re.findall(r"(?:feature|batch)_group_count=([2-9])", primitives(partial(gradients, how), w))
    assert grouped("direct")
    assert not grouped("apart")


@pytest.mark.slow
def test_gradient_em_takes_the_same_steps_with_convolutions_apart(monkeypatch):
    """As a card does them; MAML, which differentiates steps, keeps to patches there."""
    expected = one_step("gem-bml+"), one_step("gem-bml+last-layer")
    monkeypatch.setattr(convolution, "MANY", 0)
    monkeypatch.setattr(convolution, "quickest", lambda **given: "apart")
    monkeypatch.setattr(settings, "quickest", lambda **given: "apart")
    close((one_step("gem-bml+"), one_step("gem-bml+last-layer")), expected, rtol=1e-9)


def test_a_card_convolves_apart_where_nobody_takes_second_derivatives(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def how(method):
        params = set_up(SETTING, method, precision=None).model.init(jax.random.key(0))
        layers = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, Conv))
        return {layer.how for layer in layers if isinstance(layer, Conv)}

    once, twice = {"apart"}, {"patches"}
    expected = {"gem-bml+": once, "reptile": once, "gem-bml+last-layer": once} | dict.fromkeys(
        ("maml", "fomaml", "imaml", "kl-chaser"), twice
    )
    assert {name: how(name) for name in expected} == expected


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_no_method_whose_steps_are_kept_is_said_to_be_differentiated_once(method):
    """Two rules about one fact: what memory holds, and which convolutions may be taken."""
    assert not (settings.differentiated_once(method) and keeps_steps(method))


@pytest.mark.parametrize("method", ["kl-chaser", "gem-bml+"])
def test_a_meta_step_can_be_traced_as_a_card_convolves(monkeypatch, method):
    """Where every convolution is apart that may be: the conditional column goes back through adaptation."""
    monkeypatch.setattr(convolution, "MANY", 0)
    with monkeypatch.context() as card:
        card.setattr(jax, "default_backend", lambda: "gpu")
        setup = set_up(SETTING, method, precision=None)
    keys, state = task_keys(jax.random.key(0), SETTING.meta_batch), initial_state(setup)
    episodes = jax.vmap(lambda key: setup.tasks.sample(key, *random_pool("omniglot", 3, 4)))(keys)
    after, _ = jax.eval_shape(setup.learner.step, state, keys, episodes)
    assert jax.tree.structure(after.prior) == jax.tree.structure(state.prior)


def test_recomputed_patches_are_not_kept_for_the_backward_pass():
    """What is kept are the leaves of the pullback: the nine-fold images, or the images themselves."""
    x, w = points(2, 8, 8, 4), points(3, 3, 4, 1)

    def kept(how):
        pullback = jax.eval_shape(lambda w: jax.vjp(lambda w: convolve(x, w, how=how), w)[1], w)
        return sum(leaf.size for leaf in jax.tree.leaves(pullback))

    assert kept("patches") == 9 * x.size
    assert kept("recomputed") <= x.size + w.size


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_noise_in_weights_goes_through_any_product(estimator):
    x, w, b = points(3, 7, 6, 2), points(3, 3, 2, 4), points(4)

    def draws(key):
        for how in PRODUCTS:
            for bias in (b, None):
                mean = Conv(w, bias, stride=2, how=how)
                std = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.3), mean)
                yield noisy_params(key, mean, std, estimator)(x), mean(x)

    drawn, plain = zip(*jax.jit(lambda key: list(draws(key)))(jax.random.key(0)), strict=True)
    for with_bias, without in ((drawn[0:2]), (drawn[2:4])):
        close((with_bias, without), drawn[4:6])
    assert all(np.abs(draw - mean).max() > 0.1 for draw, mean in zip(drawn, plain, strict=True))


def test_this_machine_computes_by_patches_unless_told_otherwise():
    assert quickest() == quickest(once=True) == "patches"
    x, w = points(2, 6, 6, 1), points(3, 3, 1, 2)
    assert "conv_general_dilated" not in primitives(convolve, x, w)
    assert "conv_general_dilated" in primitives(partial(convolve, how="direct"), x, w)


@pytest.mark.parametrize("how", ["patches", "direct"])
def test_short_factors_are_exact_where_nothing_is_rounded_and_near_elsewhere(how):
    """A bf16 has 8 significant bits: rounding two factors and a result is off by less than 4 · 2⁻⁹ of the sum of sizes."""
    short = jax.jit(partial(convolve, how=how, precision="bf16"))
    whole = np.random.default_rng(0).integers(-2, 3, size=(2, 6, 6, 2)), np.eye(9)[:, :, None].repeat(2, 1)
    x, w = jnp.asarray(whole[0], float), jnp.asarray(whole[1].reshape(3, 3, 2, 9), float)
    np.testing.assert_array_equal(short(x, w), convolve(x, w))
    x, w = points(2, 6, 6, 2), points(3, 3, 2, 4)
    error = np.abs(short(x, w) - convolve(x, w))
    assert short(x, w).dtype == x.dtype
    assert (0 < error.max()) and (error <= 4 * 2.0**-9 * convolve(jnp.abs(x), jnp.abs(w))).all()


def test_channels_of_zeros_change_nothing():
    x, w = points(2, 6, 5, 3), points(3, 3, 3, 4)
    wide = aligned(x, w)
    assert (wide[0].shape, wide[1].shape) == ((2, 6, 5, 4), (3, 3, 4, 4))
    close(convolve(*wide, stride=2), convolve(x, w, stride=2), rtol=1e-12)


@pytest.mark.parametrize("how", ["patches", "direct"])
def test_precision_is_asked_of_the_product(how):
    x, w = points(2, 6, 6, 2), points(3, 3, 2, 4)
    for precision, name in {"float32": "HIGHEST", "tf32": "HIGH"}.items():
        made = primitives(lambda x, w, p=precision: convolve(x, w, how=how, precision=p), x, w)
        assert f"Precision.{name}" in made
    assert "Precision" not in primitives(partial(convolve, how=how), x, w)
