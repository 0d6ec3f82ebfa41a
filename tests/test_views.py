"""Answers averaged over views of images: what a loop over turned images gives, in every form a model has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.benchmarks.images_problem import Setting, random_pool
from metaprior.benchmarks.images_problem import set_up as usual
from metaprior.evaluation import adapted_parts
from metaprior.models import conv4, seen, views
from metaprior.predict import Calibration
from metaprior.settings import Settings, assemble
from metaprior.training import initial_state
from metaprior.types import Episode

NETWORK = conv4((9, 10, 2), 3, filters=3)
PARAMS = jax.tree.map(lambda leaf: leaf + 0.1, NETWORK.init(jax.random.key(0)))


def images(count, seed=0, shape=(9, 10, 2)):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(count, *shape)))


def shifted(x, i, j):
    """By numbers of pixels; the edge is repeated."""
    rows = np.clip(np.arange(x.shape[1]) - i, 0, x.shape[1] - 1)
    columns = np.clip(np.arange(x.shape[2]) - j, 0, x.shape[2] - 1)
    return x[:, rows][:, :, columns]


def mirror(x):
    return x[:, :, np.arange(x.shape[2])[::-1]]


WAYS = {
    "shifted": (views.SHIFTED, [lambda x, i=i, j=j: shifted(x, i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]),
    "mirrored": (views.MIRRORED, [lambda x: x, mirror]),
    "far": ((views.shifted(3, -2),), [lambda x: shifted(x, 3, -2)]),
}


@pytest.mark.parametrize(
    "name", [pytest.param(way, marks=pytest.mark.slow) if way == "shifted" else way for way in WAYS]
)
def test_answers_are_the_mean_over_turned_batches(name):
    asked, ways = WAYS[name]
    model, support, x = seen(NETWORK, asked), images(4), images(5, seed=1)
    expected = np.mean([NETWORK.apply(PARAMS, way(x)) for way in ways], axis=0)
    np.testing.assert_allclose(jax.jit(model.apply)(PARAMS, x), expected, atol=1e-10)
    assert NETWORK.inductive is not None and model.inductive is not None
    alone = [NETWORK.inductive(PARAMS, way(support), way(x)) for way in ways]
    np.testing.assert_allclose(jax.jit(model.inductive)(PARAMS, support, x), np.mean(alone, axis=0), atol=1e-10)


def test_an_exact_head_is_inferred_from_averaged_features():
    """A setup with views answers as one whose features were averaged by hand and given to the same formulas."""
    setting = Setting("omniglot", ways=2, shots=1, queries=2, meta_batch=1, filters=2, target=None)
    plain = usual(setting, "gem-bml+last-layer", precision=None)
    setup = assemble(plain.settings, views=True)
    state, episode = initial_state(plain), plain.tasks.sample(jax.random.key(1), *random_pool("omniglot", 3, 4))
    prior, noise = state.prior.dist, plain.learner.method.options["noise_std"]
    found = setup.learner.adapt(jax.random.key(2), state, episode.support, 1).mean[-1]
    unit = state.prior.dist._replace(mean=jnp.eye(prior.mean.shape[0]))
    read = lambda x: plain.model.apply(type(plain.model.init(jax.random.key(0)))(unit.features, unit.mean), x)
    ways = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    features = np.mean([read(shifted(episode.support.x, *way)) for way in ways], axis=0)
    lower = np.tril(np.asarray(prior.tril), -1) + np.diag(np.exp(np.diag(np.asarray(prior.tril))))
    precision = np.linalg.inv(lower @ lower.T) + features.T @ features / noise**2
    residual = np.asarray(episode.support.y) - features @ np.asarray(prior.mean)
    expected = np.asarray(prior.mean) + np.linalg.solve(precision, features.T @ residual) / noise**2
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.usefixtures("quick_compile")
def test_a_task_of_characters_is_judged_by_all_four_ways_to_turn_it():
    """Probabilities are the mean over tasks that were turned by hand, and so the same whichever way the task was given."""
    setting = Setting("omniglot", ways=2, shots=1, queries=2, meta_batch=1, filters=2, target=None)
    plain = usual(setting, "gem-bml+last-layer", precision=None)
    state, episode = initial_state(plain), plain.tasks.sample(jax.random.key(1), *random_pool("omniglot", 3, 4))
    turn = lambda k: Episode(*(part._replace(x=jnp.asarray(np.rot90(part.x, k, (1, 2)))) for part in episode))
    once = Calibration(jnp.log(0.5), jnp.zeros(()))

    def probabilities(setup, task):
        setup = setup._replace(tasks=setup.tasks._replace(evaluation=lambda key: task))
        first, rest, _ = adapted_parts(setup, setup.predictor, state, jax.random.key(3), (0, 1))
        parts = first, jax.tree.map(lambda leaf: leaf[0], rest)
        return np.stack([setup.predictor.finish(part, once).probabilities for part in parts])

    turned = assemble(plain.settings, views=True)
    assert turned.turned and not plain.turned
    seen_plainly = turned._replace(turned=False)
    expected = np.mean([probabilities(seen_plainly, turn(k)) for k in range(4)], axis=0)
    assert np.abs(probabilities(seen_plainly, episode) - expected).max() > 1e-3
    for k in range(4):
        np.testing.assert_allclose(probabilities(turned, turn(k)), expected, atol=1e-10)


def test_photographs_are_mirrored_and_characters_shifted():
    names = {name: assemble(Settings(name, filters=2), views=True).model.name for name in ("omniglot", "miniimagenet")}
    assert [name.removeprefix("conv4-") for name in names.values()] == ["28x28x1-5-9-views", "84x84x3-5-2-views"]
    assert not assemble(Settings("miniimagenet", filters=2), views=True).turned  # a house on its side is no other house


def test_what_cannot_be_seen_otherwise_is_refused_in_words():
    with pytest.raises(ValueError, match="one view or more, got none"):
        seen(NETWORK, ())
    with pytest.raises(ValueError, match="sinusoid has none: leave views out"):
        assemble(Settings("sinusoid"), views=True)
