"""Classes of one's own: a prior learned from images meets a few labelled pictures, and labels new ones with probabilities."""

from collections.abc import Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.typing import ArrayLike

from metaprior.classes import class_predictor
from metaprior.data import DataError, load_folder, read_image
from metaprior.evaluation import for_classes
from metaprior.tasks import IMAGE_SETS
from metaprior.tasks.images import class_targets, seen
from metaprior.training import CALIBRATION_FILE, INDUCTIVE_FILE, TEST_STEPS, Trained
from metaprior.types import Data, Dist

BATCH = 32  # new images looked at together: memory grows with them, what is said of each does not change


class Labelled(NamedTuple):
    """What is said of N new images: a row of probabilities for each, a column for each of the `classes`."""

    probabilities: Float[np.ndarray, "N C"]
    classes: tuple[Hashable, ...]

    @property
    def labels(self) -> tuple[Hashable, ...]:
        """The most probable class of each image."""
        return tuple(self.classes[number] for number in self.probabilities.argmax(axis=1))


class Labeller(NamedTuple):
    """A prior that has been adapted to the classes of a few labelled images; made by `adapt` and `adapt_folder`."""

    trained: Trained
    classes: tuple[Hashable, ...]
    images: UInt8[np.ndarray, "M H W C"]  # the support
    numbers: Int[np.ndarray, " M"]  # of their classes
    posterior: Dist
    steps: int
    inverted: bool = False  # whether pictures are read as their negatives
    notes: tuple[str, ...] = ()  # what a person should know about it, in sentences

    def predict(self, images: ArrayLike, *, transductive: bool = False, seed: int = 0) -> Labelled:
        """Probabilities of the classes for new images, uint8 [N, H, W, C].

        Args:
            images: of the size that the prior was trained with; `read` brings files to it.
            transductive: normalise all of them together, as in the literature on few-shot images, which supposes that they
                come in the same mixture of classes as in training. Otherwise each is answered by itself.
            seed: of the weights drawn, where the posterior has a width.
        """
        new = _as_images(images, self.trained)
        setup, calibration = self.trained.setup, self.trained.inductive
        if transductive or calibration is None:
            calibration = self.trained.calibration
        calibration = jax.tree.map(lambda leaf: leaf[min(self.steps, len(leaf) - 1)], calibration)
        answer = partial(
            _probabilities,
            jax.random.key(seed),
            self.posterior,
            _support(self.trained, self.images, self.numbers, len(self.classes)),
            calibration=calibration,
            model=setup.model,
            family=setup.learner.cell.family,
            inductive=not transductive,
        )
        size = max(len(new), 1) if transductive else BATCH
        starts = range(0, max(len(new), 1), size)
        rows = [np.asarray(answer(_seen(self.trained, new[start : start + size]))) for start in starts]
        return Labelled(np.concatenate(rows), self.classes)

    def read(self, files: str | Path | Sequence[str | Path]) -> UInt8[np.ndarray, "N H W C"]:
        """Picture files, or one, as the network is to see them; all that cannot be read are named in one error."""
        files = [files] if isinstance(files, str | Path) else files
        height, width, channels = _shape(self.trained)
        pixels, problems = np.empty((len(files), height, width, channels), np.uint8), []
        for place, file in enumerate(files):
            try:
                pixels[place] = read_image(file, size=(height, width), channels=channels)
            except ValueError as error:
                problems.append(f"{error}, or leave it out")
        if problems:
            raise DataError(f"{len(problems)} of {len(files)} pictures", problems)
        return 255 - pixels if self.inverted else pixels


def adapt(
    trained: Trained,
    images: ArrayLike,
    labels: ArrayLike | Sequence[Hashable],
    *,
    steps: int = TEST_STEPS,
    seed: int = 0,
    inverted: bool = False,
) -> Labeller:
    """Adapt to labelled images: two classes or more, whatever number the prior was trained with.

    Args:
        trained: a run on images.
        images: uint8 [M, H, W, C], of the size that the prior was trained with.
        labels: one for each, numbers or names; classes are in sorted order.
        steps: of adaptation.
        seed: of adaptation, where it draws weights.
        inverted: whether these images are negatives of the pictures they were read from, as new ones shall be.
    """
    if steps < 1:
        raise ValueError(f"labels are learned by adaptation: it needs one step or more, got {steps}")
    pixels, (classes, numbers) = _as_images(images, trained), _numbered(labels)
    if len(pixels) != len(numbers):
        raise ValueError(f"there are {len(pixels)} images and {len(numbers)} labels: they must be pairs")
    if len(classes) < 2:
        found = f"only {classes[0]}" if classes else "none"
        raise ValueError(f"to tell classes apart takes two or more, the labels name {found}: add images of others")
    support = _support(trained, pixels, numbers, len(classes))
    state = for_classes(trained.setup, trained.state, len(classes))
    posteriors = jax.jit(trained.setup.learner.adapt, static_argnums=3)(jax.random.key(seed), state, support, steps)
    posterior = jax.tree.map(lambda leaf: leaf[steps], posteriors)
    return Labeller(trained, classes, pixels, numbers, posterior, steps, inverted, tuple(_notes(trained, len(classes))))


def adapt_folder(
    trained: Trained, folder: str | Path, *, steps: int = TEST_STEPS, seed: int = 0, invert: bool = False
) -> Labeller:
    """Adapt to the pictures of a folder, which has a sub-folder for each class.

    Args:
        trained: a run on images.
        folder: FOLDER/class/*.jpg, *.jpeg and *.png.
        steps: of adaptation.
        seed: of adaptation, where it draws weights.
        invert: take the negatives of these pictures and of new ones: a prior that learned from light ink on a dark ground
            (Omniglot) meets dark ink on paper.
    """
    height, width, channels = _shape(trained)
    found = load_folder(folder, size=(height, width), channels=channels)
    if len(found.classes) < 2:  # none at all has been refused
        raise ValueError(
            f"{folder} holds one class, {' '.join(found.classes)}: to tell classes apart takes two or more, each a sub-folder "
            "with its pictures"
        )
    pixels = 255 - found.pixels if invert else found.pixels
    labels = [name for name, count in zip(found.classes, found.counts, strict=True) for _ in range(count)]
    return adapt(trained, pixels, labels, steps=steps, seed=seed, inverted=invert)


@partial(jax.jit, static_argnames=("model", "family", "inductive"))
def _probabilities(key, posterior, support, x, *, calibration, model, family, inductive):
    predictor = class_predictor(model, family, inductive=inductive)
    return predictor.finish(predictor.prepare(key, None, posterior, support, x), calibration).probabilities


def _notes(trained: Trained, classes: int) -> list[str]:
    settings, trained_with, notes = trained.setup.settings, trained.setup.tasks.outputs_in_training, []
    if settings.head == "own" and classes != trained_with:
        notes.append(
            f"this prior has a head of its own for each of {trained_with} class numbers; {classes} classes all begin with "
            "their average: a prior trained with --head shared suits any number better"
        )
    if trained.inductive is None:
        how = f"to fit {INDUCTIVE_FILE}, delete {CALIBRATION_FILE} of the run and go on with it where its training images are"
        notes.append(
            "probabilities are calibrated for pictures answered together, not one by one: "
            + (how if trained.kept else "that is done when training ends")
        )
    return notes


def _shape(trained: Trained) -> tuple[int, int, int]:
    tasks = trained.setup.tasks
    if tasks.shape is None:
        raise ValueError(f"{tasks.name} tasks are curves, not pictures: adapt to points, adapt(x, y)")
    return tasks.shape


def _seen(trained: Trained, pixels: UInt8[np.ndarray, "N H W C"]):
    return seen(jnp.asarray(pixels), IMAGE_SETS[trained.setup.settings.tasks].look)


def _support(
    trained: Trained, pixels: UInt8[np.ndarray, "M H W C"], numbers: Int[np.ndarray, " M"], classes: int
) -> Data:
    """As inference takes it: labels, or rows of targets where the last layer is exact."""
    y = jnp.asarray(numbers)
    exact = trained.setup.learner.cell.family.name == "last-layer"
    return Data(_seen(trained, pixels), class_targets(y, classes) if exact else y)


def _as_images(values: ArrayLike, trained: Trained) -> UInt8[np.ndarray, "N H W C"]:
    array, shape = np.asarray(values), _shape(trained)
    if array.dtype.kind in "UO" and array.size and isinstance(array.flat[0], str | Path):
        raise ValueError(f"{array.flat[0]} is a name: have files read by adapt_folder, and new ones by read")
    if array.dtype != np.uint8:
        raise ValueError(f"images are bytes from 0 to 255, dtype uint8, got {array.dtype}: scale and convert them")
    if array.ndim == 3 and shape[2] == 1:
        array = array[..., None]
    if array.shape[1:] != shape:
        wanted = ", ".join(map(str, ("N", *shape)))
        raise ValueError(
            f"this prior sees images of shape [{wanted}], got {list(array.shape)}: resize them, or have files read at that "
            "size by adapt_folder and read"
        )
    return array


def _numbered(labels: Any) -> tuple[tuple[Hashable, ...], Int[np.ndarray, " M"]]:
    """The classes that labels name, sorted where they can be, and the number of each label among them."""
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    try:
        classes = tuple(dict.fromkeys(values))
    except TypeError:
        raise ValueError("a label is one number or name for each image, not a row of them") from None
    try:
        classes = tuple(sorted(classes))
    except TypeError:  # names beside numbers: in the order of their first images
        pass
    places = {name: place for place, name in enumerate(classes)}
    return classes, np.array([places[value] for value in values], int)
