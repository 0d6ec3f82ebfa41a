"""`metaprior train`: refusals leave nothing behind, and however a run is interrupted, it ends with the same prior."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import metaprior
from metaprior import runs, training
from metaprior.checkpoints import available
from metaprior.cli import console, main, train
from metaprior.cli.train import default_folder
from metaprior.meta import Info
from metaprior.settings import Settings

pytestmark = pytest.mark.usefixtures("few_validation_tasks")

ROOT = Path(__file__).parents[1]
ITERATIONS = 200
TINY = ["--hidden", "8", "8", "--rate", "0.001", "--chunk", "20"]
WHOLE = [*TINY, "--iterations", str(ITERATIONS)]
OFTEN = ["--chunk", "20", "--checkpoint-every", "20"]
# The command in a process of its own. Writing is slowed down, so that there is time to interrupt it.
SLOW_PROGRAM = """
import sys, time
from metaprior import checkpoints, training
from metaprior.cli import main
save = checkpoints.save
checkpoints.save = lambda *args: (time.sleep(0.25), save(*args), time.sleep(0.25))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What every interrupted run must end with."""
    path = tmp_path_factory.mktemp("train") / "whole"
    assert main(["train", *WHOLE, "--checkpoint-every", "80", "--out", str(path), "--quiet"]) == 0
    return path


def start(argv):
    environment = os.environ | {
        "JAX_ENABLE_X64": "1",  # as in this process
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-u", "-c", SLOW_PROGRAM, "train", *argv]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_same_end(folder, reference):
    """The same numbers, bit for bit, in the checkpoint, the metrics and the settings."""
    newest = [list(available(path / "checkpoints").values())[-1] for path in (folder, reference)]
    assert newest[0].name == newest[1].name
    found, expected = (load_file(path) for path in newest)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    for name in ("metrics.jsonl", "settings.json"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes()


# --- training ---------------------------------------------------------------------------------------------------------


def test_train_leaves_a_run_that_can_be_loaded(uninterrupted):
    assert list(available(uninterrupted / "checkpoints")) == [80, 160, 200]
    rows = runs.read_metrics(runs.open_run(uninterrupted))
    assert [row["iteration"] for row in rows] == list(range(20, 201, 20))
    assert json.loads((uninterrupted / "settings.json").read_text())["hidden"] == [8, 8]
    prior = metaprior.load(uninterrupted)
    assert int(prior.trained.state.iteration) == ITERATIONS
    assert prior.calibration.log_noise.shape == (11,)


def test_progress_in_a_log_is_ten_lines_and_a_summary(tmp_path, capsys):
    argv = ["train", "sinusoid", *TINY, "--iterations", "40", "--chunk", "2", "--checkpoint-every", "40"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    progress = [line for line in lines if re.match(r" *\d+/40  query NLL \d+\.\d{3}  widths [\d.]+–[\d.]+", line)]
    assert [int(line.split("/")[0]) for line in progress] == list(range(4, 41, 4))
    assert all(line.endswith(" it/s") for line in progress[1:])
    assert lines[10].split() == ["run", str(tmp_path / "run")]
    assert lines[-1].split(maxsplit=1) == ["next", f"metaprior evaluate {tmp_path / 'run'}"]


def report(iteration, *, left_out=0, warnings=(), log_rate=(np.nan, np.nan, np.nan)):
    numbers = dict(query_nll=0.5, elbo=-1.0, left_out=left_out, finite=True, step_norm=1.0)
    arrays = {name: jnp.asarray(value) for name, value in numbers.items()}
    info = Info(**arrays, log_std=jnp.log(jnp.array([0.2, 0.1, 0.3])), log_rate=jnp.asarray(log_rate))
    return training.Progress(iteration, info, list(warnings))


def test_tasks_left_out_are_counted_and_warnings_are_notes(capsys):
    with console.progress(100) as advance:
        for iteration, left_out in ((5, 2), (10, 1), (15, 0), (20, 4)):
            advance(report(iteration, left_out=left_out, warnings=["steep"] if iteration == 15 else []))
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == " 10/100  query NLL 0.500  widths 0.1–0.3  3 tasks left out"
    assert lines[1].startswith(" 20/100") and lines[1].endswith("7 tasks left out")
    assert err == "note: steep\n"


def test_the_last_look_at_the_query_is_shown_where_a_chunk_had_none(capsys):
    unseen = lambda iteration: report(iteration)._replace(info=report(0).info._replace(query_nll=jnp.asarray(jnp.nan)))
    with console.progress(100) as advance:
        for progress in (report(10), unseen(20), unseen(30)):
            advance(progress)
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()] == ["0.500"] * 3


@pytest.mark.parametrize(
    ("tasks", "chunk"), [("sinusoid", 500), ("omniglot", 25), ("images", 25), ("rl-navigation", 10)]
)
def test_the_longer_an_iteration_the_more_looks_at_it(tasks, chunk):
    assert train._parsed([tasks]).chunk == chunk
    assert train._parsed([tasks, "--chunk", "7"]).chunk == 7


def test_rates_are_shown_where_there_are_some(capsys):
    with console.progress(10) as advance:
        advance(report(10, log_rate=np.log([1.0, 0.5, 4.0])))
    assert "rates × 0.5–4" in capsys.readouterr().out


def test_quiet_hides_all_but_notes(capsys):
    with console.progress(10, quiet=True) as advance:
        advance(report(10, warnings=["a checkpoint was skipped"]))
    assert capsys.readouterr() == ("", "note: a checkpoint was skipped\n")


def test_a_terminal_gets_a_bar_with_metrics(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with console.progress(100) as advance:
        advance(report(50, left_out=2, warnings=["steep"]))
        advance(report(100))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert "note: steep" in text and "100/100" in text and "━" in text
    assert re.search(r"query NLL 0\.500  widths 0\.1–0\.3  [\d,]+ it/s  2 tasks left out", text)


@pytest.mark.parametrize(
    ("method", "name"),
    [("gem-bml+", "gem-bml-plus"), ("gem-bml+last-layer", "gem-bml-plus-last-layer"), ("maml", "maml")],
)
def test_default_folders_need_no_quotes(method, name):
    assert default_folder(Settings(tasks="linear", method=method, seed=7)) == Path("runs") / f"linear-{name}-7"


def test_without_out_the_run_goes_to_its_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "linear", "--method", "reptile", *TINY, "--iterations", "0", "--quiet"]) == 0
    assert list(available("runs/linear-reptile-0/checkpoints")) == [0]  # an untrained prior is a prior
    assert main(["train", "linear", "--method", "reptile", "--resume", "--quiet"]) == 0


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(capsys, argv, *words, code=2):
    assert main(["train", *argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("metaprior: ") and err.count("\n") == 1 and err.endswith("\n")
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--method", "gem-blm+"], ["unknown method 'gem-blm+'", "did you mean gem-bml+", "reptile"]),
        (["sinusiod"], ["unknown task set 'sinusiod'", "did you mean sinusoid"]),
        (["--std", "-1"], ["-1"]),
        (["--std", "0"], ["0"]),
        (["--steps", "-1"], ["steps cannot be negative, got -1"]),
        (["--query-steps", "-2"], ["query steps cannot be negative, got -2"]),
        (["--iterations", "-1"], ["iterations cannot be negative, got -1"]),
        (["--shots", "-1"], ["shots must be"]),
        (["--hidden", "0"], ["hidden layers need widths of at least 1"]),
        (["--hidden"], ["hidden layers need widths of at least 1"]),
        (["--queries", "-1"], ["queries must be a whole number >= 1"]),
        (["--rate", "0"], ["rate must be above zero"]),
        (["--rate", "nan"], ["rate must be above zero"]),
        (["--meta-batch", "0"], ["meta batch must be above zero"]),
        (["--widths", "exacct"], ["unknown width rule 'exacct'", "did you mean exact?"]),
        (["--method", "maml", "--rates", "tied"], ["has no rates to learn"]),
        (["--chunk", "0"], ["--chunk must be at least 1, got 0"]),
        (["--checkpoint-every", "0"], ["--checkpoint-every must be at least 1, got 0"]),
        (["--hidden", "8", "8", "--rate", "100"], ["diverge", "Lower the inner rate"]),
    ],
)
def test_settings_that_cannot_work_are_refused_and_nothing_is_written(tmp_path, capsys, argv, words):
    refused(capsys, [*argv, "--out", str(tmp_path / "run")], *words)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("flag", [["--std", "wide"], ["--iterations", "1.5"], ["--no-such-flag"], ["--hidden", "a"]])
def test_flags_that_cannot_be_read_end_with_code_2(tmp_path, capsys, flag):
    assert main(["train", *flag, "--out", str(tmp_path / "run")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and flag[-1].lstrip("-") in err and "Traceback" not in err
    assert os.listdir(tmp_path) == []


def test_folders_that_hold_something_are_refused_and_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    refused(capsys, [*WHOLE, "--out", str(tmp_path)], "not empty (it holds thesis.txt)", "--resume")
    refused(capsys, [*WHOLE, "--out", str(tmp_path / "thesis.txt")], "is a file, a run needs a folder")
    refused(capsys, [*WHOLE, "--out", str(tmp_path / "thesis.txt" / "run")], "choose another --out")
    assert os.listdir(tmp_path) == ["thesis.txt"] and (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folders_without_permission_are_refused(tmp_path, capsys):
    (tmp_path / "shut").mkdir(mode=0o500)
    refused(capsys, [*WHOLE, "--out", str(tmp_path / "shut")], "is not writable")


def test_a_run_is_not_begun_anew_nor_resumed_as_another(uninterrupted, tmp_path, capsys):
    out = ["--out", str(uninterrupted)]
    before = {path: path.read_bytes() for path in sorted(uninterrupted.rglob("*.*")) if path.name != "run.lock"}
    refused(capsys, [*WHOLE, *out], "is not empty", "--resume")
    refused(capsys, ["--resume", *out, "--seed", "1"], "seed was 0, now 1")
    refused(capsys, ["linear", "--resume", *out], 'tasks was "sinusoid", now "linear"')
    refused(capsys, ["--resume", *out, "--iterations", "100"], "200 iterations", "can only be raised")
    refused(capsys, ["--resume", "--out", str(tmp_path / "none")], "none is missing")
    refused(
        capsys, ["sinusoid", "--resume", "--seed", "98765"], "name its folder with --out", "sinusoid-gem-bml-plus-98765"
    )
    assert before == {path: path.read_bytes() for path in before}


def test_divergence_is_code_1_and_keeps_the_last_good_state(tmp_path, capsys):
    argv = [*TINY, "--iterations", "40", "--method", "maml", "--temperature", "1e-308", "--out", str(tmp_path / "run")]
    refused(capsys, argv, "training diverged at iteration", "Lower the inner rate or the meta-rate", code=1)
    assert list(available(tmp_path / "run" / "checkpoints")) == [0]
    runs.release(runs.create(tmp_path / "run", runs.open_run(tmp_path / "run").settings, resume=True))  # not locked


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_resuming_ends_with_the_same_prior(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    with start([*WHOLE, *OFTEN, "--out", str(folder)]) as process:
        assert process.stdout is not None
        assert re.match(r" 20/200  query NLL", process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.index("a second Ctrl-C stops at once, without saving") < err.index("stopped at iteration")
    assert f"stopped at iteration {max(available(folder / 'checkpoints'))}; saved in {folder}" in err
    assert f"metaprior train --resume --out {folder}" in err and "Traceback" not in err
    assert 0 < max(available(folder / "checkpoints")) < ITERATIONS
    assert main(["train", "--resume", "--out", str(folder), "--chunk", "20", "--quiet"]) == 0
    assert_same_end(folder, uninterrupted)


def kill_often(folder, reference, argv, *, kills, seed):
    """Kill -9 at random moments, as the program starts and as it saves; resume each time; the end is the same."""
    newest = lambda: max(available(folder / "checkpoints"), default=0)
    draws, reached = random.Random(seed), [0]
    for count in range(kills):
        again = ["--resume"] if (folder / "settings.json").exists() else argv
        with start([*again, *OFTEN, "--out", str(folder)]) as process:
            while count % 3 < 2 and newest() == reached[-1] and process.poll() is None:
                time.sleep(0.01)
            time.sleep(draws.uniform(0, 0.5 if count % 3 < 2 else 3))
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
        reached.append(newest())
    assert reached == sorted(reached) and 0 < reached[-1] < int(argv[-1])  # nothing that was saved is lost
    assert main(["train", "--resume", "--out", str(folder), "--chunk", "20", "--quiet"]) == 0
    assert_same_end(folder, reference)


def test_killed_three_times_a_run_ends_with_the_same_prior(uninterrupted, tmp_path):
    kill_often(tmp_path / "run", uninterrupted, WHOLE, kills=3, seed=0)


@pytest.mark.slow
def test_killed_twenty_times_a_run_ends_with_the_same_prior(tmp_path):
    argv = [*TINY, "--iterations", "1600"]
    assert main(["train", *argv, "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    kill_often(tmp_path / "run", tmp_path / "whole", argv, kills=20, seed=1)


def test_a_damaged_checkpoint_is_passed_over_with_a_note(uninterrupted, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    newest = list(available(folder / "checkpoints").values())[-1]
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.write_bytes(data)
    assert main(["train", "--resume", "--out", str(folder), "--chunk", "20", "--quiet"]) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"note: {newest} was skipped")
    assert_same_end(folder, uninterrupted)


def test_more_iterations_can_be_asked_for_on_resuming(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    argv = ["train", "--resume", "--out", str(folder), "--iterations", "240", "--chunk", "20", "--quiet"]
    assert main(argv) == 0
    assert max(available(folder / "checkpoints")) == 240
    assert json.loads((folder / "settings.json").read_text())["iterations"] == 240
    assert [row["iteration"] for row in runs.read_metrics(runs.open_run(folder))] == list(range(20, 241, 20))
    assert json.loads((folder / "calibration.json").read_text())["iteration"] == 240
