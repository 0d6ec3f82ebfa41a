"""One command from a folder of pictures to labels with probabilities, and one clear line for all that can be wrong."""

import csv
import json
import shutil
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import tiny_data
import tiny_photos
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import metaprior
from metaprior import checkpoints, evaluation, runs, training
from metaprior.cli import label, main
from metaprior.cli.contact_sheet import LIMIT, New, Shown, contact_sheet
from metaprior.settings import Settings, as_dict, assemble

NAMES = ("cat", "dog", "owl")  # of the drawings 30, 31 and 32


@pytest.fixture(autouse=True)
def no_data_set(monkeypatch):
    """Adaptation must not ask for the images of the training."""
    monkeypatch.delenv("METAPRIOR_DATA", raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A prior that begins where it begins: what the command does with it is the question here."""
    return tiny_photos.untrained(tmp_path_factory.mktemp("labels") / "run")


@pytest.fixture(scope="module")
def curves(tmp_path_factory):

    setup = assemble(Settings(hidden=(4,)))
    folder = runs.create(tmp_path_factory.mktemp("curves") / "run", as_dict(setup.settings))
    checkpoints.save(folder.checkpoints, 0, training.initial_state(setup))
    runs.release(folder)
    return folder.folder


def write(folder, name, kind, count, seed=0, *, negative=False):
    """So many drawings of a kind as PNG files: NAME0.png and so on."""
    drawn = tiny_photos.drawings(kind, count, seed)[..., 0]
    drawn = 255 - drawn if negative else drawn
    return tiny_data.write_folder(folder, {f"{name}{i}.png": tiny_data.encoded(one) for i, one in enumerate(drawn)})


@pytest.fixture
def folders(tmp_path):
    """3 classes × 5 pictures, and two new ones of each."""
    for place, name in enumerate(NAMES):
        write(tmp_path / "shown" / name, "", 30 + place, 5)
        write(tmp_path / "new", name, 30 + place, 2, seed=1)
    return tmp_path


def read(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def command(run, folders, *flags, shown="shown"):
    return ["adapt", str(run), str(folders / shown), "--out", str(folders / "out"), *flags]


def refused(capsys, argv, *words):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("metaprior: ")
    for word in words:
        assert word in error


def labelled_right(run, folders, *flags):
    """Of six pictures: files and labels of the table, each row of which sums to one."""
    assert main(command(run, folders, "--at", str(folders / "new"), *flags)) == 0
    header, *rows = read(folders / "out" / "predictions.csv")
    assert header == ["file", "label", "probability", *NAMES]
    numbers = np.array([row[2:] for row in rows], float)
    np.testing.assert_allclose(numbers[:, 1:].sum(axis=1), 1, atol=1e-8)
    np.testing.assert_array_equal(numbers[:, 0], numbers[:, 1:].max(axis=1))
    assert [row[1] for row in rows] == [NAMES[place] for place in numbers[:, 1:].argmax(axis=1)]
    with Image.open(folders / "out" / "prediction.png") as sheet:
        assert sheet.format == "PNG" and sheet.width > 1000
    return [row[:2] for row in rows] == [[f"{name}{i}.png", name] for name in NAMES for i in range(2)]


def test_from_pictures_to_labels(run, folders, capsys):
    assert labelled_right(run, folders)
    printed = capsys.readouterr()
    assert "6 labelled from 15 pictures" in printed.out and "owl1.png" in printed.out and printed.err == ""


@pytest.mark.slow
def test_from_training_to_labels(folders, tmp_path, capsys, monkeypatch):
    """A few iterations on drawings of other classes, five at a time, and both calibrations; then one command for three."""
    monkeypatch.setattr(training, "calibrate_steps", partial(evaluation.calibrate_steps, num_tasks=5))
    run = tiny_photos.trained(tmp_path / "run", iterations=200, rate=0.2, queries=5)
    assert labelled_right(run, folders, "--steps", "40")
    said = capsys.readouterr().err
    assert said.startswith("note: calibrated for up to 10 steps") and said.count("\n") == 1  # and nothing else


@pytest.mark.slow
def test_what_is_written_is_what_the_library_predicts(run, folders):
    argv = command(run, folders, "--at", str(folders / "new" / "dog1.png"), "--steps", "3")
    for flags, options in (([], {}), (["--transductive"], {"transductive": True})):
        assert main([*argv, *flags]) == 0
        labeller = metaprior.load(run).adapt_folder(folders / "shown", steps=3)
        expected = labeller.predict(tiny_photos.drawings(31, 2, 1)[1:], **options).probabilities
        (row,) = read(folders / "out" / "predictions.csv")[1:]
        assert row[0] == "dog1.png"
        np.testing.assert_allclose(np.array(row[3:], float), expected[0], rtol=1e-8)


def test_invert_takes_the_negatives_of_all_pictures(run, folders, tmp_path):
    """Dark drawings on a light ground, inverted, are answered as the light ones on dark that they are negatives of."""
    assert main(command(run, folders, "--at", str(folders / "new"))) == 0
    expected = read(folders / "out" / "predictions.csv")
    for place, name in enumerate(NAMES):
        write(tmp_path / "shown" / name, "", 30 + place, 5, negative=True)
        write(tmp_path / "new", name, 30 + place, 2, seed=1, negative=True)
    assert main(command(run, folders, "--at", str(folders / "new"), "--invert")) == 0
    assert read(folders / "out" / "predictions.csv") == expected
    assert main(command(run, folders, "--at", str(folders / "new"))) == 0
    assert read(folders / "out" / "predictions.csv") != expected


@pytest.mark.slow
def test_any_number_of_classes(run, folders, capsys):
    """Trained with five: two classes, and twenty; columns in the order of their names."""
    shutil.rmtree(folders / "shown" / "owl")
    assert main(command(run, folders, "--at", str(folders / "new"))) == 0
    assert read(folders / "out" / "predictions.csv")[0][3:] == ["cat", "dog"]
    for kind in range(18):
        write(folders / "shown" / f"kind{kind:02d}", "", kind, 2)
    assert main(command(run, folders, "--at", str(folders / "new"))) == 0
    table = read(folders / "out" / "predictions.csv")
    assert table[0][3:] == ["cat", "dog", *(f"kind{kind:02d}" for kind in range(18))]
    np.testing.assert_allclose(np.array([row[3:] for row in table[1:]], float).sum(axis=1), 1, atol=1e-7)


def test_a_run_without_its_second_calibration_says_so(folders, tmp_path, capsys):
    run = tiny_photos.untrained(tmp_path / "run", inductive=False)
    assert main(command(run, folders, "--at", str(folders / "new"))) == 0
    assert f"not one by one: to fit {training.INDUCTIVE_FILE}, delete" in capsys.readouterr().err


def test_classes_may_be_called_as_the_columns_are(run, folders):
    shown = folders / "shown"
    for old, new in zip(NAMES, ("file", "label", "owl"), strict=True):
        (shown / old).rename(shown / new)
    assert main(command(run, folders, "--at", str(folders / "new"))) == 0
    assert read(folders / "out" / "predictions.csv")[0] == [
        "file",
        "label",
        "probability",
        "class file",
        "class label",
        "owl",
    ]


def test_wrong_kinds_of_files_are_refused(run, curves, folders, capsys):
    (folders / "points.csv").write_text("x,y\n1,2\n")
    new = ["--at", str(folders / "new")]
    refused(capsys, command(run, folders, *new, shown="points.csv"), "prior of images", "is a file: name a folder")
    refused(capsys, command(curves, folders), "prior of curves", "is a folder: name a CSV file")
    refused(capsys, command(curves, folders, "--invert", shown="points.csv"), "--invert is for priors of images")
    refused(capsys, command(run, folders, *new, "--x-column", "time"), "--x-column is for priors of curves")
    refused(capsys, command(run, folders, *new, shown="nowhere"), "nowhere is not a folder")
    assert not (folders / "out").exists()


def test_what_is_wrong_with_new_pictures_is_said(run, folders, capsys):
    refused(capsys, command(run, folders), "which pictures are to be labelled?", "--at")
    refused(capsys, command(run, folders, "--at", str(folders / "none")), "there is no picture or folder", "check --at")
    refused(capsys, command(run, folders, "--at", str(folders / "shown")), "holds no pictures to label", "shown/cat")
    (folders / "empty").mkdir()
    refused(
        capsys,
        command(run, folders, "--at", str(folders / "empty")),
        "holds no pictures to label (.jpg, .jpeg, .jpe, .jfif, .png), check --at",
    )
    for name in ("cut.png", "html.jpg"):
        (folders / "new" / name).write_bytes((folders / "new" / "cat0.png").read_bytes()[:60])
    words = ["2 of 8 pictures cannot be used", "new/cut.png cannot be read as a picture", "new/html.jpg"]
    refused(capsys, command(run, folders, "--at", str(folders / "new")), *words)
    (folders / "new" / "phone.HEIC").write_bytes(b"heic")
    refused(
        capsys,
        command(run, folders, "--at", str(folders / "new")),
        "phone.HEIC",
        "convert them to JPEG or PNG, or leave",
    )
    assert not (folders / "out").exists()


def test_pictures_in_folders_below_are_told(run, folders, capsys):
    """They are not labelled: a note names their folders, but for that of --out."""
    (folders / "new" / "dog0.png").rename(folders / "new" / "dog0.jfif")  # what it holds decides how it is read
    at = ["--at", str(folders / "new"), "--out", str(folders / "new" / "out")]
    for place in ("week", "a/b", ".trash"):
        write(folders / "new" / place, "", 31, 1)
    for _ in range(2):  # the second time, there is a contact sheet in new/out
        assert main(command(run, folders, *at)) == 0
        printed = capsys.readouterr()
        deeper = f"{folders / 'new' / 'week'}, {folders / 'new' / 'a' / 'b'}"
        assert printed.err == f"note: pictures of {deeper} are not labelled: name one folder at a time with --at\n"
        assert "6 labelled from 15 pictures" in printed.out and "dog0.jfif" in printed.out
    write(folders / "only" / "a" / "b", "", 31, 1)
    refused(capsys, command(run, folders, "--at", str(folders / "only")), f"such as {folders / 'only' / 'a' / 'b'}")


def test_what_is_written_is_never_taken_for_a_picture_or_a_class(run, folders, capsys):
    new = ["--at", str(folders / "new")]
    for out, words in {
        "new": "is the folder of --at",
        "shown": "would be an example next time",
        "shown/labelled": "would be an example",
    }.items():
        refused(capsys, command(run, folders, *new, "--out", str(folders / out)), words, "choose another --out")
    assert not list(folders.rglob("prediction*"))


def test_a_terminal_shows_that_something_is_under_way(run, folders, monkeypatch):
    said = []
    monkeypatch.setattr(label.console, "waiting", lambda what: said.append(what) or nullcontext())
    assert main(command(run, folders, "--at", str(folders / "new"))) == 0
    assert said == ["reading pictures, compiling and adapting"]


def test_what_is_wrong_with_classes_is_said(run, folders, capsys):
    argv = command(run, folders, "--at", str(folders / "new"))
    refused(capsys, [*argv, "--steps", "0"], "one step or more, got 0")
    (folders / "shown" / "dog" / "3.png").write_bytes(b"\x89PNG")
    refused(capsys, argv, "shown/dog/3.png cannot be read as a picture")
    for file in (folders / "shown" / "dog").iterdir():
        file.unlink()
    refused(capsys, argv, "shown/dog holds no pictures")
    shutil.rmtree(folders / "shown" / "dog")
    shutil.rmtree(folders / "shown" / "owl")
    refused(capsys, argv, "holds one class, cat", "two or more")
    assert not (folders / "out").exists()
    (folders / "out").write_text("a file")
    write(folders / "shown" / "owl", "", 32, 2)
    refused(capsys, argv, "is not writable", "--out")


# --- the contact sheet ------------------------------------------------------------------------------------------------


def sheet(classes, photos, channels=1):
    pixels = np.zeros((7, 20, 30, channels), np.uint8)
    shown = [Shown(f"${place}_class", pixels) for place in range(classes)]
    sure = np.eye(classes)[np.arange(photos) % classes] * 0.9 + 0.1 / classes
    return contact_sheet(shown, [New(f"{i}.jpg", pixels[0], sure[i]) for i in range(photos)], title="a title")


@pytest.mark.parametrize(("classes", "photos"), [(2, 1), (3, 12), (20, 60), (3, LIMIT + 40)])
def test_every_picture_is_on_the_sheet_with_its_label_and_probability(classes, photos):
    figure = sheet(classes, photos)
    texts = [text.get_text() for text in figure.axes[0].texts]
    drawn = min(photos, LIMIT)
    assert len(figure.axes[0].images) == 5 * classes + drawn  # five of each class, and the new ones
    assert [text for text in texts if text.endswith(".jpg")] == [f"{i}.jpg" for i in range(drawn)]
    first = texts.index("0.jpg")
    assert texts[first + 1 : first + 3] == ["$0_class", f"{100 * (0.9 + 0.1 / classes):.0f} %"]
    assert ("new: the first 60 of 100 pictures" in texts) == (photos > LIMIT)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    for text in figure.axes[0].texts:  # nothing runs over an edge
        box = text.get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height


def test_names_in_letters_that_the_font_lacks_do_no_harm_and_are_remarked(tmp_path, capsys):
    from metaprior.cli import outputs

    pixels = np.zeros((1, 8, 8, 3), np.uint8)
    shown = [Shown("猫", pixels), Shown("a\nname " * 30, pixels)]
    figure = contact_sheet(shown, [New("写真.jpg", pixels[0], np.array([0.5, 0.5]))], title="$ \\frac")
    outputs.write(tmp_path / "out", b"", figure)  # warnings are errors here
    assert (tmp_path / "out" / "prediction.png").stat().st_size > 1000
    assert capsys.readouterr().err.startswith("note: names in letters that the font lacks are boxes in prediction.png")


def test_a_training_that_has_not_ended_is_calibrated_anew_and_said(curves, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "calibrate_steps", partial(evaluation.calibrate_steps, num_tasks=5))
    (note,) = metaprior.load(curves).trained.notes
    assert "no calibration of iteration 0 yet" in note and f"metaprior train --resume --out {curves} ends" in note
    shutil.copytree(curves, tmp_path / "ended")
    setup, state, _ = training.open_state(curves)
    training.finish(setup, runs.open_run(tmp_path / "ended"), state)
    assert metaprior.load(tmp_path / "ended").trained.notes == []


# --- judged -----------------------------------------------------------------------------------------------------------


def test_images_are_asked_otherwise_than_in_training_and_the_answer_says_how(tmp_path, capsys):
    """Numbers of images depend on how tasks are asked: the file and the table say it."""
    for kind in range(20):
        write(tmp_path / "photos" / f"kind{kind:02d}", "", kind, 4)
    settings = Settings(tasks="images", method="gem-bml+last-layer", ways=2, filters=1, data_dir=tmp_path / "photos")
    made = assemble(settings)
    run = runs.create(tmp_path / "run", as_dict(settings))
    checkpoints.save(run.checkpoints, 0, training.initial_state(made))
    runs.release(run)
    train_ask = ["evaluate", str(tmp_path / "run"), "--tasks-count", "2", "--steps", "1", "--queries", "1", "--json"]
    found = []
    for size in ((), ("--ways", "2", "--shots", "1"), ("--ways", "3", "--shots", "2")):
        assert main([*train_ask, *size]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]  # asked as in training, whether that is said or not
    assert (found[2]["ways"], found[2]["shots"]) == (3, 2) and found[2]["nll"] != found[0]["nll"]
    (tmp_path / "photos").rename(tmp_path / "moved")
    ask = ["evaluate", str(tmp_path / "run"), "--tasks-count", "2", "--steps", "1", "--queries", "1"]
    refused(capsys, ask, "photos is not a folder")
    assert main([*ask, "--inductive", "--data-dir", str(tmp_path / "moved")]) == 0
    printed = capsys.readouterr()
    assert "of each of 2 classes, 1 query of each, classified one by one" in " ".join(printed.out.split())
    assert printed.err == ""
    found = json.loads((tmp_path / "run" / "evaluation.json").read_bytes())
    assert (found["queries"], found["inductive"], found["views"]) == (1, True, False)
