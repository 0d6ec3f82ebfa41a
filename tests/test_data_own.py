"""A folder of one's own classes as a data set: how it is split, and a prior learned from it on the command line."""

import numpy as np
import pytest
import tiny_photos
from PIL import Image

from metaprior.cli import main
from metaprior.data import load_own

SIZE = {"size": (84, 84), "channels": 3}


@pytest.fixture
def folder(tmp_path):
    """Twelve classes of four pictures, each class in a shade of its own."""
    for kind in range(12):
        place = tmp_path / "mine" / f"kind{kind:02d}"
        place.mkdir(parents=True)
        for number, drawing in enumerate(tiny_photos.drawings(kind, 4)):
            Image.fromarray(drawing[..., 0]).convert("RGB").save(place / f"{number}.png")
    return tmp_path / "mine"


def test_classes_are_split_without_loss_and_share_nothing(folder):
    found = load_own(folder, **SIZE)
    names = [found.train.classes, found.validation.classes, found.test.classes]
    assert [len(part) for part in names] == [8, 2, 2]  # of 12: the rest, 0.16 and 0.2 of them, rounded
    assert sorted(sum(names, ())) == [f"kind{kind:02d}" for kind in range(12)]
    for part in (found.train, found.validation, found.test):
        for name, start, count in zip(part.classes, part.starts, part.counts, strict=True):
            expected = tiny_photos.drawings(int(name[4:]), 4)[..., 0]
            resized = [
                np.asarray(Image.fromarray(x).convert("RGB").resize((84, 84), Image.Resampling.LANCZOS))
                for x in expected
            ]
            close = np.abs(part.pixels[start : start + count].astype(int) - np.stack(resized).astype(int)).mean()
            assert count == 4 and close < 12  # the right pictures, whatever filter made them larger


def test_pictures_that_are_added_move_no_class(folder):
    before = load_own(folder, **SIZE)
    Image.new("RGB", (9, 9)).save(folder / "kind03" / "more.png")
    after = load_own(folder, **SIZE)
    assert (before.train.classes, before.test.classes) == (after.train.classes, after.test.classes)


def test_too_few_classes_are_refused_in_words(folder):
    for kind in range(2, 12):
        for file in (folder / f"kind{kind:02d}").iterdir():
            file.unlink()
        (folder / f"kind{kind:02d}").rmdir()
    with pytest.raises(ValueError, match="has 2 classes, too few to keep some for validation and test: add classes"):
        load_own(folder, **SIZE)


@pytest.mark.slow
def test_a_prior_is_learned_from_a_folder_on_the_command_line(folder, tmp_path, capsys):
    flags = [
        "--ways",
        "2",
        "--queries",
        "2",
        "--filters",
        "2",
        "--meta-batch",
        "1",
        "--iterations",
        "2",
        "--chunk",
        "1",
    ]
    run = [
        "train",
        "images",
        "--method",
        "gem-bml+last-layer",
        "--data-dir",
        str(folder),
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*run, *flags]) == 2  # evaluation asks for fifteen more pictures of a class
    assert "has 4 images and a task needs 16 of each class" in capsys.readouterr().err
