"""Training with other numbers of classes, or of images of each, than evaluation: nothing else may depend on them."""

from typing import Any

import jax
import numpy as np
import pytest
import tiny_photos
from tiny_images import SIDE, image_set

from metaprior.estimates import knobs
from metaprior.evaluation import calibrate_steps, for_classes, scores
from metaprior.heads import memory_with_classes, with_classes
from metaprior.meta import trainer
from metaprior.settings import Settings, assemble
from metaprior.tasks.images import image_tasks, with_targets
from metaprior.training import initial_state

pytestmark = pytest.mark.usefixtures("quick_compile")

WAYS, TRAIN_WAYS, AT, TASKS = 3, 8, (0, 1), 2
MANY: dict[str, Any] = {"ways": WAYS, "train_ways": TRAIN_WAYS, "shots": 1, "queries": 1, "steps": 1, "filters": 2}


def tiny_tasks(**options: Any):
    return image_tasks("tiny", "by heart", image_set, shape=(SIDE, SIDE, 1), eval_queries=2, **options)


def a_few_iterations(setup):
    learn = jax.jit(trainer(setup.learner, setup.tasks.sample, 2), static_argnums=1)
    return learn(initial_state(setup), 3, *tiny_photos.pool("train"))[0]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"method": "gem-bml+"}, marks=pytest.mark.slow),
        {"method": "gem-bml+last-layer"},
        pytest.param({"method": "reptile", "optimizer": "shared-adam", "rate": 0.01}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: changes["method"],
)
def test_a_prior_trained_with_eight_classes_is_judged_with_three(changes):
    """As if it had been resized by hand and given to one who never heard of eight."""
    wide, narrow = (tiny_photos.setup(**{**MANY, "train_ways": ways, **changes}) for ways in (TRAIN_WAYS, None))
    state = a_few_iterations(wide)
    assert {leaf.shape[-1] for leaf in jax.tree.leaves(_head(state))} == {TRAIN_WAYS}
    made_up = tiny_photos.calibration(0.7)
    found = scores(wide, state, made_up, at=AT, num_tasks=TASKS)
    prior = with_classes(wide.model, state.prior, WAYS)
    by_hand = state._replace(prior=prior, memory=memory_with_classes(wide.model, state.memory, WAYS))
    expected = scores(narrow, by_hand, made_up, at=AT, num_tasks=TASKS)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
        assert np.isfinite(ours).all()
    assert found.confidence.shape == (TASKS, len(AT), WAYS * 15)
    np.testing.assert_allclose(
        found.confidence[:, 0], 1 / WAYS, rtol=1e-9
    )  # before the first step all classes are alike
    assert for_classes(wide, state, TRAIN_WAYS) is state and for_classes(narrow, by_hand, WAYS) is by_hand


@pytest.mark.slow
def test_it_is_calibrated_on_three_classes_too():
    wide, narrow = (tiny_photos.setup(**{**MANY, "train_ways": ways}) for ways in (TRAIN_WAYS, None))
    state = initial_state(wide)
    by_hand = state._replace(prior=with_classes(wide.model, state.prior, WAYS))
    found, expected = (calibrate_steps(*pair, at=AT, num_tasks=TASKS) for pair in ((wide, state), (narrow, by_hand)))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def _head(state):
    dist = state.prior.dist
    return dist.mean.head if hasattr(dist.mean, "head") else dist.mean


def test_evaluation_draws_what_it_draws_without():
    plain, other = tiny_tasks(ways=3), tiny_tasks(ways=3, train_ways=8, train_shots=2)
    for key in jax.random.split(jax.random.key(0), 5):
        for a, b in zip(*(jax.tree.leaves(t.evaluation(key, *t.pool("test"))) for t in (plain, other)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_training_draws_as_tasks_of_so_many_classes_do():
    other, wide = tiny_tasks(ways=3, train_ways=8, queries=2), tiny_tasks(ways=8, queries=2)
    drawn = [tasks.sample(jax.random.key(1), *tasks.pool("train")) for tasks in (other, wide)]
    for a, b in zip(*map(jax.tree.leaves, drawn), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.bincount(drawn[0].query.y).tolist() == [2] * 8
    assert (other.outputs, other.outputs_in_training) == (3, 8) and wide.outputs_in_training == 8


def test_training_draws_as_tasks_of_so_many_images_do():
    other, many = tiny_tasks(ways=3, shots=2, train_shots=1, queries=2), tiny_tasks(ways=3, shots=1, queries=2)
    drawn = [tasks.sample(jax.random.key(1), *tasks.pool("train")) for tasks in (other, many)]
    for a, b in zip(*map(jax.tree.leaves, drawn), strict=True):
        np.testing.assert_array_equal(a, b)
    judged = other.evaluation(jax.random.key(1), *other.pool("test"))
    assert [np.bincount(episode.support.y).tolist() for episode in (drawn[0], judged)] == [[1] * 3, [2] * 3]


def test_targets_have_the_classes_of_their_draw():
    tasks = with_targets(tiny_tasks(ways=3, train_ways=8))
    key = jax.random.key(0)
    learned, judged = tasks.sample(key, *tasks.pool("train")), tasks.evaluation(key, *tasks.pool("test"))
    for episode, classes in ((learned, 8), (judged, 3)):
        assert all(data.y.shape[1] == classes for data in episode)
        np.testing.assert_allclose(episode.query.y.max(axis=1), 1 - 1 / classes)


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(ValueError, match="got train_ways=1: pass for example"):
        tiny_tasks(train_ways=1)
    with pytest.raises(ValueError, match="train split has 12 classes and a task needs 13: lower --train-ways"):
        tiny_tasks(ways=3, train_ways=13).pool("train")
    with pytest.raises(ValueError, match="validation split has 6 classes and a task needs 7: lower --ways"):
        tiny_tasks(ways=7, train_ways=3).pool("validation")
    with pytest.raises(ValueError, match="train_shots must be a whole number >= 0, got -1"):
        tiny_tasks(train_shots=-1)
    with pytest.raises(ValueError, match="a task needs 99 of each class: lower --train-shots, or add images"):
        tiny_tasks(ways=3, train_shots=98, queries=1).pool("train")
    tiny_tasks(ways=3, train_ways=12).pool("validation")  # has six: enough for what is asked of it
    with pytest.raises(ValueError, match="each of 8 class numbers cannot be judged with 3: leave out --train-ways"):
        assemble(Settings(tasks="omniglot", ways=3, train_ways=8, head="own"))
    assemble(Settings(tasks="omniglot", method="maml", ways=3, train_ways=3, head="own"))


def test_memory_depends_on_it():
    setup = assemble(Settings(tasks="omniglot", ways=3, train_ways=8, train_shots=2, filters=2))
    assert {"--train-ways (8)", "--train-shots (2)"} <= set(knobs(setup))
