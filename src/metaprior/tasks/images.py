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
from metaprior.tasks.augmentation import augmented, augmented_characters
from metaprior.tasks.base import Tasks, check_sizes
from metaprior.types import Data, Episode, Key


class Look(NamedTuple):
    """How bytes become what a network sees: (byte/255 − centre)/scale, channel by channel, and what is done to them first."""

    centre: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    characters: bool = (
        False  # each class of a task is turned by a multiple of 90°: a turned character is another character
    )
    augmented: bool = False  # in training, varied at random as suits photographs, or characters: see `augmentation`


PLAIN = Look()


def image_tasks(
    name: str,
    describe: str,
    read: Callable[[], ImageSet],
    *,
    shape: tuple[int, int, int],
    look: Look = PLAIN,
    ways: int = 5,
    train_ways: int | None = None,
    shots: int = 1,
    train_shots: int | None = None,
    queries: int = 1,
    eval_queries: int = 15,
    elsewhere: bool = False,
) -> Tasks:
    """Tasks of `ways` classes from a set of images.

    Args:
        name: what the registry calls them.
        describe: one line for people.
        read: called once, when the images are needed for the first time.
        shape: height, width and channels of an image.
        look: how a network sees it.
        ways: classes of a task.
        train_ways: classes of a task in training, where they are to be more or fewer; None: as many.
        shots: support images of each class.
        train_shots: support images of each class in training, where they are to be more or fewer; None: as many.
        queries: query images of each class in training.
        eval_queries: query images of each class in evaluation.
        elsewhere: whether there are none here: clients have them.
    """
    learned_ways = ways if train_ways is None else train_ways
    learned_shots = shots if train_shots is None else train_shots
    check_sizes(shots=shots, train_shots=learned_shots, queries=queries, eval_queries=eval_queries)
    for word, value in (("shots", shots), ("train_shots", learned_shots)):
        if value < 1:
            raise ValueError(f"classes are told apart by images of each, got {word}={value}: pass for example {word}=1")
    for word, value in (("ways", ways), ("train_ways", learned_ways)):
        if value < 2:
            raise ValueError(f"a task needs two classes or more, got {word}={value}: pass for example {word}=5")

    def sample(key: Key, pixels, members) -> Episode:
        key_draw, key_augment = jax.random.split(key)
        pool = jnp.asarray(pixels), jnp.asarray(members)
        episode = draw_episode(key_draw, *pool, look, ways=learned_ways, shots=learned_shots, queries=queries)
        if not look.augmented:
            return episode
        if look.characters:
            return augmented_characters(key_augment, episode, classes=learned_ways)
        return augmented(key_augment, episode)

    def evaluation(key: Key, pixels, members) -> Episode:
        pool = jnp.asarray(pixels), jnp.asarray(members)
        return draw_episode(jax.random.split(key)[0], *pool, look, ways=ways, shots=shots, queries=eval_queries)

    @cache
    def image_set() -> ImageSet:
        return read()

    def pool(split: str) -> tuple[UInt8[np.ndarray, "M H W C"], Int[np.ndarray, "K I"]]:
        images: Images = getattr(image_set(), split)
        trains = split == "train"
        require_enough(
            images,
            split,
            ways=learned_ways if trains else ways,
            shots=learned_shots if trains else shots,
            queries=queries if trains else eval_queries,
            flag="--train-ways" if trains and train_ways is not None else "--ways",
            shots_flag="--train-shots" if trains and train_shots is not None else "--shots",
        )
        return images.pixels, member_table(images)

    return Tasks(
        name,
        sample,
        evaluation,
        describe,
        outputs=ways,
        train_ways=train_ways,
        shots=shots,
        queries=queries,
        eval_queries=eval_queries,
        shape=shape,
        pool=pool,
        classes=lambda split: getattr(image_set(), split).classes,
        turns=look.characters,
        elsewhere=elsewhere,
    )


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
    if look.characters:
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


def member_table(images: Images) -> Int[np.ndarray, "K I"]:
    """The images of each class by their numbers, −1 where a class has fewer than the largest."""
    places = np.arange(images.counts.max())[None]
    table = np.where(places < images.counts[:, None], images.starts[:, None] + places, -1)
    return table.astype(np.int32)


def require_enough(
    images: Images,
    split: str,
    *,
    ways: int,
    shots: int,
    queries: int,
    flag: str = "--ways",
    shots_flag: str = "--shots",
) -> None:
    """Refuse a split that cannot fill a task; the flags are those that its numbers of classes and of shots come from."""
    if len(images.classes) < ways:
        raise ValueError(
            f"the {split} split has {len(images.classes)} classes and a task needs {ways}: lower {flag}, or add classes"
        )
    if (least := int(images.counts.min())) < shots + queries:
        queries_flag = "--queries" if split == "train" else "--queries (of metaprior evaluate)"
        fewer = " or ".join(word for word, number in ((shots_flag, shots), (queries_flag, queries)) if number > 1)
        raise ValueError(
            f"class {images.classes[int(images.counts.argmin())]} of the {split} split has {least} images and a task needs "
            f"{shots + queries} of each class: {fewer and f'lower {fewer}, or '}add images"
        )


def _of_classes(images: Float[Array, "W I H W2 C"]) -> Data:
    """Class by class in one list, with the number of the class as label."""
    ways, count = images.shape[:2]
    return Data(images.reshape(ways * count, *images.shape[2:]), jnp.repeat(jnp.arange(ways), count))


def with_targets(tasks: Tasks) -> Tasks:
    """The same tasks with rows of targets for labels: classes as regression."""

    def both(draw, classes):
        as_targets = lambda data: data._replace(y=class_targets(data.y, classes))
        return lambda key, *pool: Episode(*(as_targets(data) for data in draw(key, *pool)))

    return tasks._replace(
        sample=both(tasks.sample, tasks.outputs_in_training), evaluation=both(tasks.evaluation, tasks.outputs)
    )


def class_targets(labels: Int[Array, " N"], classes: int) -> Float[Array, "N C"]:
    """1 − 1/C for the class and −1/C for the others.

    >>> class_targets(jnp.array([1]), 4).tolist()
    [[-0.25, 0.75, -0.25, -0.25]]
    """
    return jax.nn.one_hot(labels, classes, dtype=jnp.result_type(float)) - 1 / classes
