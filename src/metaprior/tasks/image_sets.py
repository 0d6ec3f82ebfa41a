"""The sets of images that have names, and what is known of each without reading it."""

from pathlib import Path
from typing import NamedTuple

from metaprior import data
from metaprior.data.own import fewest_kept
from metaprior.tasks.base import Tasks
from metaprior.tasks.images import Look, image_tasks


class Known(NamedTuple):
    """What a set is like: enough to build a network for it where the images themselves are not at hand."""

    describe: str
    shape: tuple[int, int, int]
    look: Look
    queries: int  # of each class in training


# Means and standard deviations of the channels of natural photographs, as usual in the literature on ImageNet.
PHOTO = Look(centre=(0.485, 0.456, 0.406), scale=(0.229, 0.224, 0.225))
OWN = "images"  # a folder of the user's
IMAGE_SETS = {
    "omniglot": Known(
        "handwritten characters of 50 alphabets, 28×28, turned by multiples of 90°",
        (28, 28, 1),
        Look(characters=True),
        5,
    ),
    "miniimagenet": Known("photographs of 100 kinds of things, 84×84", (84, 84, 3), PHOTO, 15),
    OWN: Known("your own images: a folder of classes, each a folder of files, seen at 84×84", (84, 84, 3), PHOTO, 5),
}


EVAL_QUERIES = 15  # query images of each class in evaluation, where nobody says how many


def image_set(
    name: str,
    *,
    ways: int = 5,
    train_ways: int | None = None,
    shots: int = 1,
    train_shots: int | None = None,
    queries: int | None = None,
    eval_queries: int | None = None,
    data_dir: Path | str | None = None,
    augmented: bool = False,
) -> Tasks:
    """Tasks from one of `IMAGE_SETS`; the images are read when they are first needed.

    Args:
        name: of the set.
        ways: classes of a task.
        train_ways: classes of a task in training, where they are to be more or fewer; None: as many.
        shots: support images of each class.
        train_shots: support images of each class in training, where they are to be more or fewer; None: as many.
        queries: query images of each class in training; None takes the set's own number.
        eval_queries: query images of each class in evaluation; None: `EVAL_QUERIES`, or as many as a folder of one's own has.
        data_dir: where the images are; None looks where METAPRIOR_DATA says.
        augmented: vary images in training: photographs are mirrored and shifted; characters are shifted, turned and stretched a
            little, and classes of them mirrored as a whole.
    """
    known = IMAGE_SETS[name]
    return image_tasks(
        name,
        known.describe,
        lambda: _own(known, data_dir) if name == OWN else data.load(name, data_dir),
        shape=known.shape,
        look=known.look._replace(augmented=augmented),
        ways=ways,
        train_ways=train_ways,
        shots=shots,
        train_shots=train_shots,
        queries=known.queries if queries is None else queries,
        eval_queries=_usual_queries(name, data_dir, shots) if eval_queries is None else eval_queries,
        elsewhere=name == OWN and data_dir is None,
    )


def _usual_queries(name: str, folder: Path | str | None, shots: int) -> int:
    """In evaluation: fewer where a class of one's own that is kept for it has not so many pictures beside the shots."""
    found = 0 if name != OWN or folder is None else fewest_kept(folder)
    return min(EVAL_QUERIES, max(found - shots, 1)) if found else EVAL_QUERIES


def _own(known: Known, folder: Path | str | None) -> data.ImageSet:
    if folder is None:
        raise ValueError("where are your images? name their folder with --data-dir: it has a sub-folder for each class")
    height, width, channels = known.shape
    return data.load_own(folder, size=(height, width), channels=channels)
