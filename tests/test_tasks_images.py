"""Episodes of images: what is drawn, that nothing is drawn twice, and that the draws do not depend on where they run."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_images import SIDE, image_set, images

from metaprior.data import Images, ImageSet
from metaprior.tasks.augmentation import augmented_characters
from metaprior.tasks.images import (
    Look,
    draw_episode,
    first_of_shuffle,
    image_tasks,
    member_table,
    seen,
    turn,
    with_targets,
)

SHAPE = (SIDE, SIDE, 1)


def tiny_tasks(counts=8, eval_queries=2, **options: Any):
    return image_tasks("tiny", "by heart", lambda: image_set(counts), shape=SHAPE, eval_queries=eval_queries, **options)


def said(x):
    """(class, number) of images that were not turned, from their pixels."""
    pixels = np.rint(np.asarray(x) * 255).astype(int)
    return pixels[:, 0, 0, 0], pixels[:, 0, 1, 0]


def draws(tasks, split, count, how="sample"):
    draw = jax.vmap(lambda key: getattr(tasks, how)(key, *tasks.pool(split)))
    return draw(jax.random.split(jax.random.key(0), count))


@pytest.mark.parametrize(
    "split, classes", [("train", range(12)), ("validation", range(12, 18)), ("test", range(18, 25))]
)
def test_an_episode_is_made_of_its_split_alone(split, classes):
    episodes = draws(tiny_tasks(ways=3, shots=2, queries=3), split, 40)
    found = {kind for episode in zip(*map(np.asarray, (episodes.support.x, episodes.query.x)), strict=True) for x in episode
             for kind in said(x)[0].tolist()}  # fmt: skip
    assert found == set(classes)  # every class comes, and no other


def test_support_and_query_share_no_image_and_labels_say_the_class():
    tasks = tiny_tasks(ways=4, shots=2, queries=5)
    episodes = draws(tasks, "train", 200)
    for place in range(200):
        support, query = jax.tree.map(lambda leaf, i=place: np.asarray(leaf[i]), episodes)
        kinds, numbers = (np.concatenate(parts) for parts in zip(said(support.x), said(query.x), strict=True))
        labels = np.concatenate([support.y, query.y])
        assert len(set(zip(kinds.tolist(), numbers.tolist(), strict=True))) == 4 * 7  # all different
        assert len({(kind, label) for kind, label in zip(kinds.tolist(), labels.tolist(), strict=True)}) == 4
        assert np.bincount(support.y).tolist() == [2] * 4 and np.bincount(query.y).tolist() == [5] * 4


def test_evaluation_asks_for_its_own_number_of_queries():
    episodes = draws(tiny_tasks(ways=2, shots=1, queries=1, eval_queries=6), "test", 3, how="evaluation")
    assert episodes.query.x.shape == (3, 12, *SHAPE)


def test_class_numbers_and_images_are_uniform():
    """Each class is as often under each number, and each image as often in the support: chi-square at 1e-4."""
    import scipy.stats

    count = 4000
    episodes = draws(tiny_tasks(ways=3, shots=1, queries=2), "validation", count)
    kinds, numbers = (part.reshape(count, 3) for part in said(np.asarray(episodes.support.x).reshape(-1, *SHAPE)))
    for place in range(3):
        assert scipy.stats.chisquare(np.bincount(kinds[:, place] - 12, minlength=6)).pvalue > 1e-4
    assert scipy.stats.chisquare(np.bincount(numbers.ravel(), minlength=8)).pvalue > 1e-4
    pairs = np.bincount((kinds[:, 0] - 12) * 6 + kinds[:, 1] - 12, minlength=36).reshape(6, 6)
    assert (np.diag(pairs) == 0).all() and scipy.stats.chisquare(pairs[~np.eye(6, dtype=bool)]).pvalue > 1e-4


def test_classes_of_different_sizes_are_drawn_from_what_they_have():
    sizes = np.array([3, 9, 4, 3, 7, 3])
    few = images(6, sizes)
    pool = (jnp.asarray(few.pixels), jnp.asarray(member_table(few)))
    keys = jax.random.split(jax.random.key(1), 300)
    episodes = jax.vmap(lambda key: draw_episode(key, *pool, Look(), ways=3, shots=1, queries=2))(keys)
    kinds, numbers = said(np.asarray(episodes.query.x).reshape(-1, *SHAPE))
    for kind, size in enumerate(sizes):
        assert set(numbers[kinds == kind].tolist()) == set(range(size))


def test_turns_are_those_of_numpy_and_the_same_for_a_class():
    pictures = np.random.default_rng(0).integers(0, 255, (4, SIDE, SIDE, 2), np.uint8)
    for quarters in range(4):
        expected = np.rot90(pictures, quarters, axes=(1, 2))
        np.testing.assert_array_equal(turn(jnp.asarray(pictures), jnp.asarray(quarters)), expected)
    tasks = tiny_tasks(ways=3, shots=2, queries=2, look=Look(characters=True))
    corners = np.array([[5, 0], [0, 0], [0, 5], [5, 5]])  # where (5, 0) may go
    seen_turns = set()
    for support, query in zip(*(np.asarray(part.x) for part in draws(tasks, "train", 60)), strict=True):
        pixels = np.concatenate([support.reshape(3, 2, *SHAPE), query.reshape(3, 2, *SHAPE)], axis=1)
        bright = pixels[:, :, corners[:, 0], corners[:, 1], 0] == 1.0
        assert (bright == bright[:, :1]).all() and (bright.sum(axis=2) == 1).all()
        seen_turns |= set(bright[:, 0].argmax(axis=1).tolist())
    assert seen_turns == {0, 1, 2, 3}


def test_bytes_become_what_the_look_says():
    look = Look(centre=(0.5, 0.25), scale=(0.25, 2.0))
    x = seen(jnp.asarray(np.array([[[[255, 0]]], [[[51, 102]]]], np.uint8)), look)
    np.testing.assert_allclose(x, [[[[2.0, -0.125]]], [[[-1.2, 0.075]]]], rtol=1e-6)


def test_characters_are_varied_in_training_alone():
    options: dict[str, Any] = {"ways": 3, "shots": 1, "queries": 2}
    plain, varied, photographs = (
        tiny_tasks(look=Look(augmented=augment, characters=characters), **options)
        for augment, characters in ((False, True), (True, True), (True, False))
    )
    key, (pixels, members) = jax.random.key(3), plain.pool("train")
    as_bytes = lambda data: np.asarray(data.x).tobytes()
    judged = [tasks.evaluation(key, pixels, members) for tasks in (plain, varied)]
    assert as_bytes(judged[0].query) == as_bytes(judged[1].query)
    before = plain.sample(key, pixels, members)
    changed, other = (tasks.sample(key, pixels, members) for tasks in (varied, photographs))
    assert len({as_bytes(data.query) for data in (before, changed, other)}) == 3
    by_hand = augmented_characters(jax.random.split(key)[1], before, classes=3)
    np.testing.assert_allclose(changed.query.x, by_hand.query.x, rtol=1e-12)


@pytest.mark.parametrize("characters", [False, True])
def test_support_and_query_share_no_image_where_they_are_varied(characters):
    """Each image is of one grey, its own, which no shift, turn or mirror changes: it tells the image and the class."""
    counts = np.array([6, 7, 6, 9, 6, 8], np.int32)
    greys = np.arange(counts.sum(), dtype=np.uint8)
    pixels = np.broadcast_to(greys[:, None, None, None], (len(greys), 12, 12, 1))
    split = Images(pixels, (np.cumsum(counts) - counts).astype(np.int32), counts, tuple("abcdef"))
    look = Look(characters=characters, augmented=True)
    options: dict[str, Any] = {"look": look, "ways": 4, "shots": 2, "queries": 4, "eval_queries": 1}
    tasks = image_tasks("greys", "", lambda: ImageSet("greys", split, split, split), shape=(12, 12, 1), **options)
    (support, labels), (query, asked) = draws(tasks, "train", 500)
    x = np.rint(np.concatenate([support, query], axis=1) * 255).astype(int)
    assert (x == x[..., :1, :1, :]).all()  # of one grey still
    found, kinds = x[..., 0, 0, 0], np.repeat(np.arange(6), counts)
    assert all(len(set(episode)) == 4 * 6 for episode in found.tolist())
    labels = np.concatenate([labels, asked], axis=1)
    for each in (
        kinds[found],
        labels,
        4 * kinds[found] + labels,
    ):  # four classes, four labels, and four pairs of the two
        assert all(len(set(episode)) == 4 for episode in each.tolist())
    assert set(found.ravel().tolist()) == set(greys.tolist())


def test_the_first_of_a_shuffle_are_different_and_present():
    present = jnp.asarray([True, False, True, True, False])
    for seed in range(20):
        chosen = first_of_shuffle(jax.random.key(seed), present, 3)
        assert sorted(chosen.tolist()) == [0, 2, 3]


def test_draws_do_not_depend_on_batching_or_sharding():
    """Task by task, in one batch, and (where there are several devices) spread over them: bit for bit the same."""
    tasks = tiny_tasks(ways=3, shots=1, queries=2, look=Look(characters=True))
    pool = jax.device_put(tasks.pool("train"))
    keys = jax.random.split(jax.random.key(5), 8)
    one_by_one = [tasks.sample(key, *pool) for key in keys]
    batch = jax.jit(jax.vmap(lambda key: tasks.sample(key, *pool)))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("task",))
    spread = jax.device_put(keys, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("task")))
    for episodes in (batch(keys), batch(spread)):
        for place, alone in enumerate(one_by_one):
            for a, b in zip(jax.tree.leaves(episodes), jax.tree.leaves(alone), strict=True):
                np.testing.assert_array_equal(a[place], b)


def test_the_pool_is_an_argument_and_not_part_of_the_program():
    tasks = tiny_tasks(200, ways=2)
    pool = tasks.pool("train")
    text = jax.jit(lambda key, *pool: tasks.sample(key, *pool)).lower(jax.random.key(0), *pool).as_text()
    assert f"{pool[0].shape[0]}x{SIDE}x{SIDE}x1xui8" in text
    assert len(text) < pool[0].size  # written out, a byte would take two characters


def test_images_are_read_once_and_only_when_needed():
    calls = []
    tasks = image_tasks("lazy", "", lambda: (calls.append(1), image_set())[1], shape=SHAPE, eval_queries=2)
    assert not calls
    for split in ("train", "validation", "train"):
        tasks.pool(split)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "options, words",
    [
        ({"ways": 1}, "two classes or more"),
        ({"shots": -1}, "shots must be a whole number"),
        ({"shots": 0}, "images of each, got shots=0: pass for example shots=1"),
        ({"train_shots": 0}, "images of each, got train_shots=0"),
        ({"queries": 0}, "queries must be a whole number"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        tiny_tasks(**options)


def test_a_split_that_cannot_fill_a_task_is_refused_in_words():
    with pytest.raises(ValueError, match="validation split has 6 classes and a task needs 7: lower --ways"):
        tiny_tasks(ways=7, eval_queries=2).pool("validation")
    with pytest.raises(
        ValueError, match="class class0 of the train split has 8 images and a task needs 9 of each class"
    ):
        tiny_tasks(shots=5, queries=4).pool("train")
    with pytest.raises(ValueError, match=r": lower --shots or --queries \(of metaprior evaluate\), or add images"):
        tiny_tasks(shots=5, queries=1, eval_queries=4).pool("validation")
    with pytest.raises(ValueError, match=r": lower --queries, or add images"):
        tiny_tasks(shots=1, queries=8).pool("train")
    with pytest.raises(ValueError, match=r": lower --train-shots, or add images"):
        tiny_tasks(train_shots=8, queries=1).pool("train")
    with pytest.raises(ValueError, match=r"has 1 images and a task needs 2 of each class: add images"):
        tiny_tasks(1, shots=1, eval_queries=1).pool("test")


def test_targets_are_centred_one_hot_rows():
    tasks = tiny_tasks(ways=4, shots=1, queries=2)
    keys = jax.random.split(jax.random.key(0), 1)
    plain, rows = tasks.sample(keys[0], *tasks.pool("train")), with_targets(tasks).sample(keys[0], *tasks.pool("train"))
    np.testing.assert_array_equal(rows.query.y.argmax(axis=1), plain.query.y)
    np.testing.assert_allclose(rows.query.y.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(rows.query.y.max(axis=1), 0.75)
    np.testing.assert_array_equal(rows.query.x, plain.query.x)


def test_tasks_can_be_traced_with_any_split():
    tasks = tiny_tasks(ways=2, shots=1, queries=1, eval_queries=2)
    compiled = jax.jit(partial(tasks.evaluation, jax.random.key(0)))
    kinds = {split: said(compiled(*tasks.pool(split)).query.x)[0] for split in ("validation", "test")}
    assert set(kinds["validation"]) <= set(range(12, 18)) and set(kinds["test"]) <= set(range(18, 25))
