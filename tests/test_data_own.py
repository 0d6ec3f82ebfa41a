"""A folder of one's own classes as a data set: how it is split, and a prior learned from it on the command line."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_photos
from PIL import Image

from metaprior import training
from metaprior.cli import main, train
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
    with pytest.raises(
        ValueError,
        match=r"has 2 classes, too few to keep some for validation and test: add classes, or .*metaprior adapt",
    ):
        load_own(folder, **SIZE)


FLAGS = "--method gem-bml+last-layer --ways 2 --queries 2 --filters 2 --meta-batch 1 --iterations 2 --chunk 1".split()


@pytest.fixture
def run(folder, tmp_path):
    """The command that learns from the folder."""
    return ["train", "images", "--data-dir", str(folder), "--out", str(tmp_path / "run"), *FLAGS]


def test_a_prior_is_calibrated_on_as_many_queries_as_there_are_pictures(folder, run, capsys, monkeypatch):
    """Evaluation usually asks for fifteen beside the shot; here are three, and then two."""
    asked = []
    monkeypatch.setattr(train, "estimated", lambda setup, done: asked.append(setup) or "estimated")
    kept = (*load_own(folder, **SIZE).validation.classes, *load_own(folder, **SIZE).test.classes)
    for left in (4, 3):
        assert main([*run, "--estimate"]) == 0
        found = capsys.readouterr().err
        assert found.startswith(f"note: a class kept for validation or testing has {left} pictures")
        assert f"on {left - 1} images of each class instead of 15" in found and found.count("\n") == 1
        for split in ("validation", "test"):
            episode = jax.eval_shape(asked[-1].tasks.evaluation, jax.random.key(0), *asked[-1].tasks.pool(split))
            assert episode.query.x.shape[0] == 2 * (left - 1)
        (folder / kept[-1] / "3.png").unlink(missing_ok=True)


def test_as_many_queries_as_usual_are_no_news(folder, run, capsys, monkeypatch):
    monkeypatch.setattr(train, "estimated", lambda setup, done: "estimated")
    for file in list(folder.rglob("0.png")):
        for number in range(4, 16):
            shutil.copy(file, file.with_name(f"{number}.png"))
    assert main([*run, "--estimate"]) == 0
    assert capsys.readouterr().err == ""


def test_too_few_pictures_for_calibration_are_found_out_before_training(folder, run, capsys, monkeypatch):
    """What is advised can be done: with a single picture of a class there is nothing to lower."""
    monkeypatch.setattr(training, "train", lambda *args, **flags: pytest.fail("trained in vain"))
    assert main([*run, "--ways", "3"]) == 2
    assert (
        "the validation split has 2 classes and a task needs 3: lower --ways, or add classes" in capsys.readouterr().err
    )
    name = load_own(folder, **SIZE).validation.classes[0]
    for number in (1, 2, 3):
        (folder / name / f"{number}.png").unlink()
    said = f"metaprior: class {name} of the validation split has 1 images and a task needs"
    for shots, advice in ((1, "2 of each class: add images"), (2, "3 of each class: lower --shots, or add images")):
        assert main([*run, "--shots", str(shots)]) == 2
        assert capsys.readouterr().err == f"{said} {advice}\n"
    assert not Path(run[run.index("--out") + 1]).exists()


@pytest.mark.slow
def test_a_prior_is_learned_from_a_folder_on_the_command_line(folder, run, tmp_path, capsys):
    assert main(run) == 0
    lines = [line.rstrip().split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["calibrated", "probabilities, on classes kept for validation"] in lines
    assert not [words for words in lines if words[0] == "noise"]  # of curves; classes have none
    (nll,) = [words[1] for words in lines if words[:1] == ["query"]]
    assert "not the NLL of its probabilities" in nll
    learned = str(tmp_path / "run")
    assert lines[-1][1].startswith(f"adapt {learned} EXAMPLES --at NEW")
    adapt = ["adapt", learned, str(folder), "--at", str(folder / "kind00"), "--out", str(tmp_path / "labelled")]
    assert main(adapt) == 0 and (tmp_path / "labelled" / "predictions.csv").exists()
    evaluate = ["evaluate", learned, "--tasks-count", "2", "--steps", "1"]
    capsys.readouterr()
    assert main([*evaluate, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 3, "as many as there are beside the shot, as in training"
    assert main([*evaluate, "--queries", "4"]) == 2
    assert "a task needs 5 of each class: lower --queries (of metaprior evaluate), or add" in capsys.readouterr().err


@pytest.mark.parametrize(("classes", "ways"), [(29, 5), (10, 2)])
def test_the_least_number_of_classes_is_the_one_that_the_page_names(tmp_path, classes, ways):
    """docs/photos.md: so many fill a task in every split, and one fewer does not."""
    for kind in range(classes):
        place = tmp_path / f"kind{kind:02d}"
        place.mkdir()
        Image.new("RGB", (1, 1)).save(place / "0.png")
    least = lambda: min(len(split.classes) for split in load_own(tmp_path, size=(1, 1), channels=3).splits.values())
    assert least() == ways
    shutil.rmtree(tmp_path / "kind00")
    assert least() == ways - 1
    page = " ".join((Path(__file__).parents[1] / "docs" / "photos.md").read_text().split())
    assert f"{classes} classes or more" in page or f"{classes} or more for `--ways {ways}`" in page
