"""Heads whose classes share one prior: the truth is that class numbers mean nothing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import families, likelihoods, methods
from metaprior.families import Delta, MeanField, Particles
from metaprior.heads import over_weights, shared_columns, with_classes
from metaprior.last_layer import LastLayer
from metaprior.meta import meta_learner
from metaprior.models import conv4, conv4_features, mlp
from metaprior.models.head import with_head
from metaprior.optimizers import meta_optimizer
from metaprior.types import Data, Episode, Prior

SHAPE = (8, 8, 1)
MODEL = conv4(SHAPE, 3, filters=2)


def episodes(count=2, ways=3):
    """Tasks of random pictures, one a class."""
    rng = np.random.default_rng(0)
    points = lambda: Data(jnp.asarray(rng.normal(size=(count, ways, *SHAPE))), jnp.tile(jnp.arange(ways), (count, 1)))
    return Episode(points(), points())


def renumbered(data: Data, order) -> Data:
    """The same pictures with other class numbers."""
    return data._replace(y=jnp.asarray(order)[data.y])


def learner_of(name, **changes):
    method = methods.get(name, **changes)
    likelihood = likelihoods.categorical(MODEL.apply, temperature=method.temperature)
    optimizer = meta_optimizer(1e-3, warm_up=0)  # the first step of a warm-up is none
    return meta_learner(method, likelihood, model=MODEL, optimizer=optimizer, tie=shared_columns(MODEL))


@pytest.mark.parametrize("name", ["gem-bml+", pytest.param("maml", marks=pytest.mark.slow)])
def test_a_meta_step_with_a_shared_head_does_not_see_class_numbers(name):
    learner = learner_of(name, draw_steps=False)
    state = learner.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
    keys, given = jax.random.split(jax.random.key(2), 2), episodes()
    other = Episode(*(renumbered(data, [2, 0, 1]) for data in given))
    step = jax.jit(learner.step)
    steps = [step(state, keys, tasks)[0].prior.dist.mean for tasks in (given, other)]
    for a, b in zip(*map(jax.tree.leaves, steps), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    head = steps[0].head.weight
    np.testing.assert_array_equal(head, jnp.broadcast_to(head[:, :1], head.shape))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), steps[0], state.prior.dist.mean)
    assert moved.features.convs[0].weight > 1e-6  # something is learned
    # What is common to all columns is nothing to a softmax: its gradient is zero, up to rounding that Adam would blow up.
    assert moved.head.weight < 1e-6


def test_the_first_step_from_a_shared_head_moves_nothing_but_the_head():
    """Where all columns are alike, W(p − y) is zero: no gradient leads to the features. From other heads one does."""
    loss = likelihoods.categorical(MODEL.apply)
    own: Any = MODEL.init(jax.random.key(1))
    support = jax.tree.map(lambda leaf: leaf[0], episodes().support)
    largest = lambda tree: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))
    for weights, reaches in ((own, True), (shared_columns(MODEL)(Prior(Delta(own))).dist.mean, False)):  # type: ignore[attr-defined]
        slope = jax.grad(lambda weights: loss.log_prob(weights, support))(weights)
        assert largest(slope.head) > 1e-2 and (largest(slope.features) > 1e-3) == reaches
        assert reaches or largest(slope.features) < 1e-12


def test_rates_of_a_shared_head_are_learned():
    learner = learner_of("gem-bml+", draw_steps=False)
    state = learner.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
    keys = jax.random.split(jax.random.key(2), 2)
    after = jax.jit(learner.step)(state, keys, episodes())[0].prior.dist.log_std.head.weight
    assert float(jnp.abs(after - state.prior.dist.log_std.head.weight).min()) > 1e-6
    np.testing.assert_array_equal(after, jnp.broadcast_to(after[:, :1], after.shape))


def test_a_shared_prior_serves_any_number_of_classes_and_comes_back():
    dist = MeanField(MODEL.init(jax.random.key(0)), MODEL.init(jax.random.key(1)))
    prior = shared_columns(MODEL)(Prior(dist, log_rate=MODEL.init(jax.random.key(2))))
    wide: Any = with_classes(MODEL, prior, 7)
    x = jnp.ones((4, *SHAPE))
    assert MODEL.apply(wide.dist.mean, x).shape == (4, 7)
    assert wide.dist.log_std.head.weight.shape == (2, 7) and wide.log_rate.head.bias.shape == (7,)
    for a, b in zip(jax.tree.leaves(with_classes(MODEL, wide, 3)), jax.tree.leaves(prior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_every_family_with_weights_can_be_resized():
    params = MODEL.init(jax.random.key(0))
    particles = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    for dist in (Delta(params), Particles(particles)):
        resized = with_classes(MODEL, Prior(dist), 5).dist
        assert jax.tree.leaves(resized)[0].shape == jax.tree.leaves(dist)[0].shape  # features stay
    assert with_classes(MODEL, Prior(Particles(particles)), 5).dist.params.head.weight.shape == (2, 2, 5)
    body, width = conv4_features(SHAPE, filters=2, stride=2)
    exact = with_head(body, width, 3, activation=None, scale=True)
    head = exact.init(jax.random.key(0))
    prior = Prior(LastLayer(head.features, head.head, jnp.zeros((width + 1, width + 1))))
    resized = with_classes(exact, prior, 4).dist
    assert resized.mean.shape == (width + 1, 4) and resized.tril.shape == prior.dist.tril.shape


def test_what_cannot_be_shared_is_refused_in_words():
    line = mlp((1, 2, 1))
    with pytest.raises(ValueError, match="has no classes to share a head"):
        shared_columns(line)
    with pytest.raises(ValueError, match="no head whose classes could change"):
        with_classes(line, Prior(Delta(line.init(jax.random.key(0)))), 3)
    with pytest.raises(ValueError, match="two classes or more, got 1"):
        with_classes(MODEL, Prior(Delta(MODEL.init(jax.random.key(0)))), 1)
    full = families.full().init(jax.random.key(0), {"w": jnp.zeros(2)}, 1.0)
    with pytest.raises(ValueError, match="head of a Full prior cannot be shared"):
        over_weights(lambda weights: weights, Prior(full))
    with pytest.raises(ValueError, match="keeps more than a prior over weights"):
        over_weights(lambda weights: weights, Prior(Delta({}), extra=(1,)))
