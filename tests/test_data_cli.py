"""`metaprior data`: what is printed is what the folder holds, and the exit code says whether it can be used."""

import hashlib
import http.server
import json
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny_data

from metaprior.cli import main
from metaprior.data import contents, download


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(contents, "OMNIGLOT", tiny_data.OMNIGLOT)
    monkeypatch.setattr(contents, "MINIIMAGENET", tiny_data.MINIIMAGENET)
    monkeypatch.setenv("no_proxy", "*")  # servers of the tests are on this machine


def checked(capsys, *argv, code=0) -> Any:
    assert main(["data", "check", *map(str, argv)]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out) if "--json" in argv else [" ".join(line.split()) for line in out.splitlines()]


# --- check ------------------------------------------------------------------------------------------------------------


def test_a_whole_data_set(tmp_path, capsys):
    lines = checked(capsys, tiny_data.write_zips(tmp_path, tiny_data.omniglot_files()))
    assert lines[0] == f"omniglot: public PNG files (images_background.zip, images_evaluation.zip) in {tmp_path}"
    assert lines[1] == "whole; read as 28 × 28 pixels, 1 channel"
    assert {"split classes images", "train 4 12", "validation 1 3", "test 2 6", "7 21"} <= set(lines)


def test_two_data_sets_of_which_one_is_whole(tmp_path, capsys):
    tiny_data.write_folder(tmp_path, tiny_data.omniglot_files() | tiny_data.miniimagenet_files())
    (tmp_path / "images_background/Runes/character01/0000_02.png").unlink()
    found = checked(capsys, tmp_path, "--json")
    assert found["usable"] is True and found["folder"] == str(tmp_path)
    omniglot, miniimagenet = found["found"]
    assert (omniglot["name"], omniglot["splits"], omniglot["size"]) == ("omniglot", {}, None)
    (problem,) = omniglot["problems"]
    assert problem.startswith(
        "images_background/Runes/character01 has 2 of 3 drawings, without 0000_02.png: metaprior data"
    )
    assert (miniimagenet["name"], miniimagenet["problems"]) == ("miniimagenet", [])
    assert miniimagenet["layout"] == "images and CSV files" and miniimagenet["size"] == [84, 84, 3]
    assert miniimagenet["splits"]["train"] == {"num_classes": 2, "num_images": 4, "classes": {"n01": 2, "n02": 2}}


def test_what_is_wrong_is_listed_up_to_ten(tmp_path, capsys):
    tiny_data.write_folder(tmp_path, dict.fromkeys(tiny_data.omniglot_files(), b""))
    lines = checked(capsys, tmp_path, code=2)
    assert lines[1] == "not usable:"
    assert len(lines) == 13 and lines[2].startswith("- images_background/Dots/character01/0003_01.png is broken")
    assert lines[-1] == "and 11 more, which --json lists"
    assert len(checked(capsys, tmp_path, "--json", code=2)["found"][0]["problems"]) == 21


def test_pickles_are_refused(tmp_path, capsys):
    (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(b"")
    text = " ".join(checked(capsys, tmp_path, code=2))
    assert "loading a pickle runs whatever code" in text and "docs/data.md" in text


def test_a_folder_of_classes(tmp_path, capsys):
    picture = tiny_data.encoded(np.zeros((9, 9, 3), np.uint8))
    folder = tiny_data.write_folder(
        tmp_path / "photos", {"cat/1.png": picture, "dog/1.png": picture, "dog/2.png": picture}
    )
    lines = checked(capsys, folder)
    assert lines[:2] == [f"photos: folder of classes in {folder}", "whole; read as 84 × 84 pixels, 3 channels"]
    assert {"class images", "cat 1", "dog 2", "2 classes 3"} <= set(lines)
    assert checked(capsys, folder, "--json")["found"][0]["splits"]["all"]["classes"] == {"cat": 1, "dog": 2}


@pytest.mark.parametrize("tables", [["train.csv"], ["train.csv", "test.csv"], ["train.csv", "val.csv", "test.csv"]])
def test_a_folder_of_classes_may_hold_tables(tmp_path, capsys, tables):
    """Many people's do: that does not make it an unusable miniImageNet."""
    picture = tiny_data.encoded(np.zeros((9, 9, 3), np.uint8))
    folder = tiny_data.write_folder(
        tmp_path / "photos", {"a/1.png": picture, "b/1.png": picture} | dict.fromkeys(tables, b"")
    )
    assert checked(capsys, folder)[0] == f"photos: folder of classes in {folder}"


def test_tables_without_their_images_are_no_folder_of_classes(tmp_path, capsys):
    tiny_data.write_folder(tmp_path, dict.fromkeys(("train.csv", "val.csv", "test.csv"), b""))
    lines = checked(capsys, tmp_path, code=2)
    assert lines[0].startswith("miniimagenet: images and CSV files (train.csv, val.csv, test.csv)")
    assert "the folder images is missing" in lines[2]


def test_one_class_alone_is_remarked(tmp_path, capsys):
    folder = tiny_data.write_folder(
        tmp_path / "photos", {"cat/1.png": tiny_data.encoded(np.zeros((9, 9, 3), np.uint8))}
    )
    assert "1 class: to tell apart takes two 1" in checked(capsys, folder)


def test_an_empty_folder_and_none(tmp_path, capsys):
    assert "has no sub-folders: make one for each class" in checked(capsys, tmp_path, code=2)[2]
    assert main(["data", "check", str(tmp_path / "nothing")]) == 2
    assert "nothing is not a folder: check the path" in capsys.readouterr().err
    assert main(["data", "check", str(tmp_path / "nothing"), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] is False and found["found"] == [] and "is not a folder" in found["problem"]


def test_it_starts_without_jax():
    program = "import sys; from metaprior.cli import data; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- get --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """The tiny Omniglot, published on this machine."""
    folder = tiny_data.write_zips(tmp_path / "mirror", tiny_data.omniglot_files())
    data = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    files = tuple(download.Published(name, len(each), hashlib.sha256(each).hexdigest()) for name, each in data.items())
    monkeypatch.setattr(download, "OMNIGLOT", files)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *args: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_what_is_downloaded_can_be_used(mirror, tmp_path, capsys):
    folder = tmp_path / "my data"
    argv = ["data", "get", "omniglot", "--out", str(folder), "--from", mirror]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{folder / 'images_background.zip'}: downloaded",
        f"{folder / 'images_evaluation.zip'}: downloaded",
        f"next: metaprior data check '{folder}'",
    ]
    assert err == ""
    assert "train 4 12" in checked(capsys, folder)
    assert main(argv) == 0
    assert capsys.readouterr().out.count("was there already") == 2


def test_files_go_where_they_are_looked_for(mirror, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "named"))
    assert main(["data", "get", "omniglot", "--from", mirror]) == 0
    monkeypatch.delenv("METAPRIOR_DATA")
    monkeypatch.chdir(tmp_path)
    assert main(["data", "get", "omniglot", "--from", mirror]) == 0
    for folder in ("named", "data"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == sorted(
            file.name for file in download.OMNIGLOT
        )


@pytest.mark.parametrize(
    ("argv", "words", "code"),
    [
        (["get", "omniglot", "--from", "{mirror}/no", "--out", "{tmp}/out"], "answers 404", 1),
        (["get", "omniglot", "--from", "http://127.0.0.1:9", "--out", "{tmp}/out"], "check the network", 1),
        (["get", "miniimagenet"], "only omniglot can be downloaded: of miniimagenet, docs/data.md says", 2),
        (["get", "omniglott"], "unknown data set 'omniglott': did you mean omniglot", 2),
        (["chekc"], "unknown data command 'chekc': did you mean check", 2),
    ],
)
def test_failures_are_one_line(mirror, tmp_path, capsys, argv, words, code):
    assert main(["data", *(word.format(mirror=mirror, tmp=tmp_path) for word in argv)]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("metaprior: ") and err.count("\n") == 1 and words in err


@pytest.mark.parametrize("command", ["check", "get"])
def test_help_teaches_by_examples(command, capsys):
    assert main(["data", command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: metaprior data {command}")
    assert out.count(f"\n  metaprior data {command}") == 2
    assert "None" not in out


def test_the_bar_shows_bytes_and_speed(monkeypatch, capsys):
    import rich.console

    from metaprior.cli import data

    monkeypatch.setattr(data, "_terminal", lambda: rich.console.Console(stderr=True, force_terminal=True, width=100))
    file = download.Published("images.zip", 4_000_000, "")
    with data.progress() as advance:
        advance(file, 1_000_000)
        advance(file, 4_000_000)
    err = capsys.readouterr().err
    assert "images.zip" in err and "4.0/4.0 MB" in err
