"""Few-shot classification of images: N classes, K images of each to learn from, Q of each to be judged by.

The images of a split lie on the device as bytes, sorted by class. An episode is drawn there, inside the compiled program: which
classes, under which numbers, which images of each, turned how, and all of it as floating-point numbers.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from metaprior.data import Images, ImageSet
from metaprior.tasks.base import Tasks, check_sizes
from metaprior.types import Data, Episode, Key


class Look(NamedTuple):
    """How bytes become what a network sees: (byte/255 − centre)/scale, channel by channel, and what is done to them first."""

    centre: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    turned: bool = False  # each class of a task by a multiple of 90°: a turned character is another character
    augmented: bool = False  # in training, mirrored and shifted by a few pixels at random


PLAIN = Look()


def image_tasks(
    name: str,
    describe: str,
    read: Callable[[], ImageSet],
    *,
    shape: tuple[int, int, int],
    look: Look = PLAIN,
    ways: int = 5,
    shots: int = 1,
    queries: int = 1,
    eval_queries: int = 15,
) -> Tasks:
    """Tasks of `ways` classes from a set of images.

    Args:
        name: what the registry calls them.
        describe: one line for people.
        read: called once, when the images are needed for the first time.
        shape: height, width and channels of an image.
        look: how a network sees it.
        ways: classes of a task.
        shots: support images of each class.
        queries: query images of each class in training.
        eval_queries: query images of each class in evaluation.
    """
    check_sizes(shots=shots, queries=queries, eval_queries=eval_queries)
    if ways < 2:
        raise ValueError(f"a task needs two classes or more, got ways={ways}: pass for example ways=5")

    def sample(key: Key, pixels, members) -> Episode:
        key_draw, key_augment = jax.random.split(key)
        pool = jnp.asarray(pixels), jnp.asarray(members)
        episode = draw_episode(key_draw, *pool, look, ways=ways, shots=shots, queries=queries)
        return augmented(key_augment, episode) if look.augmented else episode

    def evaluation(key: Key, pixels, members) -> Episode:
        pool = jnp.asarray(pixels), jnp.asarray(members)
        return draw_episode(jax.random.split(key)[0], *pool, look, ways=ways, shots=shots, queries=eval_queries)

    @cache
    def image_set() -> ImageSet:
        return read()

    def pool(split: str) -> tuple[UInt8[np.ndarray, "M H W C"], Int[np.ndarray, "K I"]]:
        images: Images = getattr(image_set(), split)
        needed = shots + (queries if split == "train" else eval_queries)
        require_enough(images, split, ways=ways, images_per_class=needed)
        return images.pixels, member_table(images)

    return Tasks(name, sample, evaluation, describe, outputs=ways, shots=shots, queries=queries, shape=shape, pool=pool)


def draw_episode(
    key: Key,
    pixels: UInt8[Array, "M H W C"],
    members: Int[Array, "K I"],
    look: Look,
    *,
    ways: int,
    shots: int,
    queries: int,
) -> Episode:
    """One task: `ways` different classes in random order, and different images of each for support and query."""
    key_class, key_image, key_turn = jax.random.split(key, 3)
    chosen = first_of_shuffle(key_class, jnp.ones((members.shape[0],), bool), ways)
    present = members[chosen] >= 0
    keys = jax.random.split(key_image, ways)
    places = jax.vmap(lambda key, there: first_of_shuffle(key, there, shots + queries))(keys, present)
    images = pixels[jnp.take_along_axis(members[chosen], places, axis=1)]
    if look.turned:
        images = jax.vmap(turn)(images, jax.random.randint(key_turn, (ways,), 0, 4))
    images = seen(images, look)
    return Episode(_of_classes(images[:, :shots]), _of_classes(images[:, shots:]))


def first_of_shuffle(key: Key, present, count: int) -> Int[Array, " count"]:
    """The first `count` places of a random order of those that are present."""
    order = jnp.where(present, jax.random.uniform(key, present.shape), -1.0)
    return jax.lax.top_k(order, count)[1]


def turn(images: UInt8[Array, "I H W C"], quarters: Int[Array, ""]) -> UInt8[Array, "I H W C"]:
    """By so many quarters of a circle; images must be square."""
    turned = [jnp.rot90(images, k, axes=(1, 2)) for k in range(4)]
    return jax.lax.select_n(quarters, *turned)


def seen(images: UInt8[Array, "... C"], look: Look) -> Float[Array, "... C"]:
    """As the network sees them."""
    dtype = jnp.result_type(float)
    as_channels = lambda values: jnp.broadcast_to(jnp.asarray(values, dtype), (images.shape[-1],)).reshape(
        (1,) * (images.ndim - 1) + (images.shape[-1],)
    )
    return (images.astype(dtype) / 255 - as_channels(look.centre)) / as_channels(look.scale)


SHIFT = 0.1  # of the side of an image, at most


def augmented(key: Key, episode: Episode) -> Episode:
    """Every image mirrored or not, and shifted by up to a tenth of its side; what comes in at the edge is an edge repeated."""

    def one(key, image):
        key_mirror, key_shift = jax.random.split(key)
        height, width, _ = image.shape
        up, left = round(SHIFT * height), round(SHIFT * width)
        image = jnp.where(jax.random.bernoulli(key_mirror), image[:, ::-1], image)
        wide = jnp.pad(image, ((up, up), (left, left), (0, 0)), mode="edge")
        rows, columns = jax.random.randint(key_shift, (2,), 0, jnp.array([2 * up + 1, 2 * left + 1]))
        return jax.lax.dynamic_slice(wide, (rows, columns, 0), image.shape)

    def each(key, data):
        return data._replace(x=jax.vmap(one)(jax.random.split(key, data.x.shape[0]), data.x))

    key_support, key_query = jax.random.split(key)
    return Episode(each(key_support, episode.support), each(key_query, episode.query))


def member_table(images: Images) -> Int[np.ndarray, "K I"]:
    """The images of each class by their numbers, −1 where a class has fewer than the largest."""
    places = np.arange(images.counts.max())[None]
    table = np.where(places < images.counts[:, None], images.starts[:, None] + places, -1)
    return table.astype(np.int32)


def require_enough(images: Images, split: str, *, ways: int, images_per_class: int) -> None:
    """Refuse a split that cannot fill a task."""
    if len(images.classes) < ways:
        raise ValueError(
            f"the {split} split has {len(images.classes)} classes and a task needs {ways}: lower --ways, or add classes"
        )
    if (least := int(images.counts.min())) < images_per_class:
        name = images.classes[int(images.counts.argmin())]
        raise ValueError(
            f"class {name} of the {split} split has {least} images and a task needs {images_per_class} of each class: "
            "lower --shots or --queries, or add images"
        )


def _of_classes(images: Float[Array, "W I H W2 C"]) -> Data:
    """Class by class in one list, with the number of the class as label."""
    ways, count = images.shape[:2]
    return Data(images.reshape(ways * count, *images.shape[2:]), jnp.repeat(jnp.arange(ways), count))


def with_targets(tasks: Tasks) -> Tasks:
    """The same tasks with rows of targets for labels: classes as regression."""

    def both(draw):
        as_targets = lambda data: data._replace(y=class_targets(data.y, tasks.outputs))
        return lambda key, *pool: Episode(*(as_targets(data) for data in draw(key, *pool)))

    return tasks._replace(sample=both(tasks.sample), evaluation=both(tasks.evaluation))


def class_targets(labels: Int[Array, " N"], classes: int) -> Float[Array, "N C"]:
    """1 − 1/C for the class and −1/C for the others.

    >>> class_targets(jnp.array([1]), 4).tolist()
    [[-0.25, 0.75, -0.25, -0.25]]
    """
    return jax.nn.one_hot(labels, classes, dtype=jnp.result_type(float)) - 1 / classes
