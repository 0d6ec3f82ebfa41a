"""A run folder says what was run, belongs to one process at a time, and does not show that it was interrupted."""

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import checkpoints, runs

SRC = str(Path(runs.__file__).parents[1])
SETTINGS = {"method": "gem", "iterations": 100, "inner": {"steps": (1, 5), "rate": 0.1}, "seed": None}


@pytest.fixture
def create():
    """`runs.create`, with locks given back at the end of the test."""
    made = []

    def make(*args, **options):
        made.append(runs.create(*args, **options))
        return made[-1]

    yield make
    for run in made:
        runs.release(run)


def names(folder):
    return sorted(os.listdir(folder))


def test_a_new_run_describes_itself(tmp_path, create):
    run = create(tmp_path / "a" / "b", {**SETTINGS, "out": tmp_path})
    assert names(run.folder) == ["run.lock", "settings.json", "versions.json"]
    expected = {**SETTINGS, "inner": {"steps": [1, 5], "rate": 0.1}, "out": str(tmp_path)}
    assert json.loads((run.folder / "settings.json").read_text()) == expected
    assert runs.open_run(run.folder) == runs.Run(run.folder, expected)
    assert run.notes == ()
    found = json.loads((run.folder / "versions.json").read_text())
    assert {name: found[name] for name in ("jax", "optax", "numpy")} == {
        name: version(name) for name in ("jax", "optax", "numpy")
    }
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"jaxlib", "metaprior", "platform", "device"} < found.keys()
    assert found["float"] == "float64"


def test_occupied_folders_are_refused_and_left_alone(tmp_path, create):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(runs.RunError, match=r"not empty \(it holds thesis.txt\): choose another --out, .* --resume"):
        create(tmp_path, SETTINGS)
    with pytest.raises(runs.RunError, match=r"is not a run: settings\.json is missing"):
        create(tmp_path, SETTINGS, resume=True)
    assert names(tmp_path) == ["thesis.txt"]


def test_files_and_paths_under_files_are_refused(tmp_path, create):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(runs.RunError, match=r"is a file.*choose another --out"):
        create(tmp_path / "file", SETTINGS)
    with pytest.raises(runs.RunError, match=r"cannot be used \(Not a directory\): choose another --out"):
        create(tmp_path / "file" / "run", SETTINGS)


def test_read_only_folder_is_refused(tmp_path, create):
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write anywhere")
        with pytest.raises(runs.RunError, match=r"is not writable.*choose another --out"):
            create(tmp_path, SETTINGS)
    finally:
        tmp_path.chmod(0o755)


def test_a_disk_that_fills_up_is_named_and_unlocks(tmp_path, create, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(runs.RunError, match=r"not writable \(No space left on device\): choose another --out"):
            create(tmp_path, SETTINGS)
    assert names(tmp_path) == ["run.lock"]
    create(tmp_path, SETTINGS)  # what is left is no obstacle


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"inner": {"clip": float("inf")}}, r"inner\.clip is inf, which JSON cannot hold: use None"),
        ({"inner": [{"optimiser": print}]}, r"inner\.0\.optimiser is a builtin_function_or_method"),
    ],
)
def test_settings_must_be_json(tmp_path, create, settings, words):
    with pytest.raises(runs.RunError, match=words):
        create(tmp_path / "run", settings)
    assert names(tmp_path) == []


def test_resume_with_equal_settings(tmp_path, create):
    runs.release(create(tmp_path / "run", {**SETTINGS, "data": Path("here")}))
    changed = {**SETTINGS, "iterations": 500, "data": Path("there")}
    run = create(tmp_path / "run", changed, resume=True)
    assert run.settings["iterations"] == 500 and run.settings["data"] == "there"
    assert runs.open_run(run.folder).settings == run.settings
    assert run.notes == ()


def test_a_run_of_an_older_version_goes_on_where_a_new_choice_is_not_made(tmp_path, create):
    runs.release(create(tmp_path / "run", SETTINGS))
    runs.release(create(tmp_path / "run", {**SETTINGS, "new": None, "newer": False}, resume=True))
    with pytest.raises(runs.RunError, match="newest was not set, now 3"):
        create(tmp_path / "run", {**SETTINGS, "newest": 3}, resume=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "maml"}, r'\(method was "gem", now "maml"\)'),
        ({"inner": {"steps": [1, 6], "rate": 0.1}}, r"\(inner\.steps\.1 was 5, now 6\)"),
        ({"inner": {"steps": [1], "rate": 2}}, r"\(inner\.steps\.1 was 5, now not set; inner\.rate was 0\.1, now 2\)"),
        ({"iterations_inner": 3}, r"\(iterations_inner was not set, now 3\)"),
        ({"seed": 0}, r"\(seed was null, now 0\)"),
    ],
)
def test_resume_with_other_settings_says_which(tmp_path, create, change, words):
    runs.release(create(tmp_path, SETTINGS))
    before = (tmp_path / "settings.json").read_bytes()
    with pytest.raises(runs.RunError, match=words + r": use those, or choose another --out"):
        create(tmp_path, {**SETTINGS, **change}, resume=True)
    assert (tmp_path / "settings.json").read_bytes() == before
    create(tmp_path, {**SETTINGS, **change}, resume=True, may_change=list(change))


def test_resume_needs_a_run(tmp_path, create):
    with pytest.raises(runs.RunError, match=r"there is no run at .* to resume: check --out, or leave out --resume"):
        create(tmp_path / "nowhere", SETTINGS, resume=True)
    assert names(tmp_path) == []
    # A run killed before it wrote its settings leaves at most this; both ways of starting it again work.
    for resume in (True, False):
        folder = tmp_path / str(resume)
        folder.mkdir()
        (folder / "run.lock").write_text("process 1 on earth")
        (folder / f"{checkpoints.TEMPORARY}0-settings.json").write_text("{")
        run = create(folder, SETTINGS, resume=resume)
        assert names(run.folder) == ["run.lock", "settings.json", "versions.json"]


def test_resume_on_other_versions_is_noted_and_remembered(tmp_path, create, monkeypatch):
    runs.release(create(tmp_path, SETTINGS))
    for number in ("77", "78"):
        monkeypatch.setattr(runs, "versions", lambda number=number: {"python": "3.99", "jax": number})
        run = create(tmp_path, SETTINGS, resume=True)
        runs.release(run)
    assert run.notes == ("jax was 77 and is now 78: numbers may differ.",)
    found = json.loads((tmp_path / "versions.json").read_text())
    assert [found["jax"], *(old["jax"] for old in found["earlier"])] == ["78", version("jax"), "77"]


def test_opening_what_is_not_a_run(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "settings.json").write_text("{")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "settings.json").write_text("[]")
    for name, words in {
        "nowhere": "is missing, a run is a folder",
        "file": "is a file, a run is a folder",
        "empty": r"is not a run: settings\.json is missing",
        "damaged": r"settings\.json cannot be read",
        "list": r"settings\.json does not hold settings",
    }.items():
        with pytest.raises(runs.RunError, match=words):
            runs.open_run(tmp_path / name)


HOLDER = """
import os, sys
from metaprior import runs
run = runs.create(sys.argv[1], {"seed": 0})
del run  # the lock is the process's, not the object's
print("locked", flush=True)
sys.stdin.read()
"""


def test_two_processes_cannot_train_into_one_folder(tmp_path, create):
    environment = {**os.environ, "PYTHONPATH": SRC, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "locked\n"
        try:
            for resume in (True, False):
                with pytest.raises(runs.RunError, match=rf"process {holder.pid} on .* is training into .* --out"):
                    create(tmp_path, {"seed": 0}, resume=resume)
            assert runs.open_run(tmp_path).settings == {"seed": 0}  # looking is allowed
        finally:
            holder.kill()  # SIGKILL: it cannot clean up, the kernel does
    create(tmp_path, {"seed": 0}, resume=True)


def test_one_process_cannot_open_a_run_twice(tmp_path, create):
    run = create(tmp_path, SETTINGS)
    with pytest.raises(runs.RunError, match=rf"process {os.getpid()} on .* is training into"):
        create(tmp_path, SETTINGS, resume=True)
    runs.release(run)
    create(tmp_path, SETTINGS, resume=True)


def test_metrics_round_trip(tmp_path, create):
    run = create(tmp_path, SETTINGS)
    assert runs.read_metrics(run) == []
    runs.rewind(run, 0)  # nothing to forget
    runs.append_metrics(run, [{"iteration": 1, "loss": 0.1, "text": "a\nb é"}])
    rows = [
        {"iteration": np.int64(2), "loss": jnp.asarray(0.25), "nll": np.float32("nan"), "ece": [float("inf"), 1.0]},
        {"iteration": 3, "loss": -np.inf, "flag": np.True_, "nested": {"widths": jnp.arange(2)}},
    ]
    runs.append_metrics(run, iter(rows))
    runs.append_metrics(run, [])
    assert runs.read_metrics(runs.open_run(tmp_path)) == [
        {"iteration": 1, "loss": 0.1, "text": "a\nb é"},
        {"iteration": 2, "loss": 0.25, "nll": None, "ece": [None, 1.0]},
        {"iteration": 3, "loss": None, "flag": True, "nested": {"widths": [0, 1]}},
    ]


@pytest.mark.parametrize("row", [{"loss": 1.0}, {"iteration": 1.5}, {"iteration": float("nan")}, {"iteration": True}])
def test_rows_need_an_iteration(tmp_path, create, row):
    run = create(tmp_path, SETTINGS)
    with pytest.raises(runs.RunError, match="needs an integer iteration"):
        runs.append_metrics(run, [{"iteration": 1}, row])
    assert runs.read_metrics(run) == []  # all or none


def test_a_run_opened_for_reading_cannot_be_written(tmp_path, create):
    create(tmp_path, SETTINGS)
    released = create(tmp_path / "released", SETTINGS)
    runs.release(released)
    for run in (runs.open_run(tmp_path), released):
        with pytest.raises(runs.RunError, match="open for reading only"):
            runs.append_metrics(run, [{"iteration": 1}])
        with pytest.raises(runs.RunError, match="open for reading only"):
            runs.rewind(run, 0)


def row(iteration):
    return {"iteration": iteration, "loss": 1 / (iteration + 1), "bad": float("nan")}


def test_a_resumed_run_has_the_metrics_of_an_uninterrupted_one(tmp_path, create):
    """Killed at every byte of the metrics file after the checkpoint at iteration 2, then resumed from there."""
    whole = create(tmp_path / "whole", SETTINGS)
    for i in range(5):
        runs.append_metrics(whole, [row(i)])
    expected = (whole.folder / "metrics.jsonl").read_bytes()
    checkpoint = expected.index(b'{"iteration": 3')
    rows = runs.read_metrics(whole)
    runs.release(create(tmp_path / "killed", SETTINGS))
    run = create(tmp_path / "killed", SETTINGS, resume=True)
    for length in range(checkpoint, len(expected) + 1):
        (run.folder / "metrics.jsonl").write_bytes(expected[:length])
        assert runs.read_metrics(run) == rows[: expected[:length].count(b"\n")]
        runs.rewind(run, 2)
        runs.append_metrics(run, map(row, (3, 4)))
        assert (run.folder / "metrics.jsonl").read_bytes() == expected


def test_rewinding_is_atomic(tmp_path, create, monkeypatch):
    run = create(tmp_path, SETTINGS)
    runs.append_metrics(run, map(row, range(4)))
    before = runs.read_metrics(run)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            runs.rewind(run, 1)
    assert runs.read_metrics(run) == before
    runs.rewind(run, 1)
    assert runs.read_metrics(run) == before[:2]
    runs.rewind(run, -1)
    assert runs.read_metrics(run) == []


def test_rows_are_appended_all_or_none_when_the_disk_fills_up(tmp_path, create):
    run = create(tmp_path, SETTINGS)
    runs.append_metrics(run, [row(0)])
    before = (run.folder / "metrics.jsonl").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * len(before) + 10, hard))
    try:
        with pytest.raises(OSError, match="could not write metrics"):
            runs.append_metrics(run, map(row, range(1, 9)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (run.folder / "metrics.jsonl").read_bytes() == before


def test_a_damaged_line_is_named(tmp_path, create):
    run = create(tmp_path, SETTINGS)
    (run.folder / "metrics.jsonl").write_text('{"iteration": 1}\n\x00\x00\n{"iteration": 2}\n')
    with pytest.raises(runs.RunError, match=r"metrics\.jsonl holds a line that is not JSON"):
        runs.read_metrics(run)
