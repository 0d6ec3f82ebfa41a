"""Several real processes that train one prior: what they learn, who writes, and what happens when one of them is killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from metaprior import runs
from metaprior.checkpoints import available

ROOT = Path(__file__).parents[1]
ITERATIONS = 120
TINY = [
    "sinusoid",
    "--method",
    "gem-bml+",
    "--hidden",
    "8",
    "8",
    "--rate",
    "0.001",
    "--meta-batch",
    "6",
    "--chunk",
    "20",
]
WHOLE = [*TINY, "--iterations", str(ITERATIONS), "--checkpoint-every", "20"]
BOUND = 30  # seconds in which those that are left must have ended
# The command, calibrated on a handful of tasks; every save takes its time, so that there is some to be killed in.
PROGRAM = """
import functools, os, sys, time
from metaprior import checkpoints, evaluation, training
from metaprior.cli import main
training.calibrate_steps = functools.partial(evaluation.calibrate_steps, num_tasks=5)
save = checkpoints.save
checkpoints.save = lambda *args: (save(*args), time.sleep(float(os.environ.get("SLOWER", "0"))))
sys.exit(main(sys.argv[1:]))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(argv, *, slower=0.0):
    environment = os.environ | {
        "JAX_ENABLE_X64": "1",
        "SLOWER": str(slower),
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-u", "-c", PROGRAM, "train", *argv]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def job(*argvs, slower=0.0):
    """Processes of one job, each with its own flags; nothing of it outlives the block."""
    port, started = free_port(), []
    try:
        for number, argv in enumerate(argvs):
            flags = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(len(argvs)), "--process-id", str(number)]
            started.append(start([*argv, *flags], slower=slower))
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ended(*processes):
    """(exit code, stdout, stderr) of each; the runtime's own word that it has connected is left out."""
    told = [process.communicate(timeout=180) for process in processes]
    lines = lambda text: [line for line in text.splitlines() if not line.startswith("[Gloo]")]
    return [(process.returncode, lines(out), err) for process, (out, err) in zip(processes, told, strict=True)]


def saved(folder):
    iteration, path = list(available(folder / "checkpoints").items())[-1]
    assert iteration == ITERATIONS
    return load_file(path)


def assert_same_end(folder, reference, *, tolerance):
    ours, theirs = saved(folder), saved(reference)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """By one process on one device."""
    folder = tmp_path_factory.mktemp("processes") / "alone"
    [(code, _, err)] = ended(start([*WHOLE, "--out", str(folder)]))
    assert code == 0, err
    return folder


@pytest.mark.slow
def test_two_processes_end_where_one_does_and_only_the_first_writes_and_shows(alone, tmp_path):
    folder, other = tmp_path / "run", tmp_path / "other"
    # What the second is given does not count: it computes what the first is asked for.
    with job([*WHOLE, "--out", str(folder)], ["sinusoid", "--iterations", "7", "--out", str(other)]) as both:
        first, second = ended(*both)
    assert first[0] == 0, first[2]
    assert second[0] == 0, second[2]
    assert_same_end(folder, alone, tolerance=1e-10)
    assert first[1][-1].split(maxsplit=1) == ["next", f"metaprior evaluate {folder}"]
    assert second[1] == [] and not other.exists()
    assert (folder / "settings.json").read_bytes() == (alone / "settings.json").read_bytes()
    rows, expected = (runs.read_metrics(runs.open_run(path)) for path in (folder, alone))
    assert [row["iteration"] for row in rows] == [row["iteration"] for row in expected]
    np.testing.assert_allclose([row["query_nll"] for row in rows], [row["query_nll"] for row in expected], rtol=1e-9)
    assert json.loads((folder / "versions.json").read_text())["num_devices"] == 2


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """By two processes that nobody disturbs."""
    folder = tmp_path_factory.mktemp("processes") / "together"
    argv = [*WHOLE, "--out", str(folder)]
    with job(argv, argv) as both:
        assert [code for code, _, _ in ended(*both)] == [0, 0]
    return folder


def disturbed(folder, number, signum):
    """What the other of two processes says after one got a signal in the middle of the run, and how long it took."""
    argv = [*WHOLE, "--out", str(folder)]
    with job(argv, argv, slower=0.3) as both:
        while len(available(folder / "checkpoints")) < 2:
            assert all(process.poll() is None for process in both)
            time.sleep(0.02)
        both[number].send_signal(signum)
        began = time.monotonic()
        [found] = ended(both[1 - number])
        took = time.monotonic() - began
    assert 0 < max(available(folder / "checkpoints")) < ITERATIONS
    return found, took


def resume(folder, *, processes):
    argv = ["--resume", "--out", str(folder)]
    if processes == 1:
        [(code, _, err)] = ended(start([*argv, "--chunk", "20"]))
        assert code == 0, err
        return
    with job(*[[*argv, "--chunk", "20"]] * processes) as all_of_them:
        for code, _, err in ended(*all_of_them):
            assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_kill_one_of_two_and_the_other_ends_by_itself_with_a_clear_message(tmp_path, together, killed):
    folder = tmp_path / "run"
    (code, _, err), took = disturbed(folder, killed, signal.SIGKILL)
    assert code == 1 and took < BOUND
    last = err.splitlines()[-1]
    assert last.startswith("metaprior: another process of the job is gone")
    if killed == 1:  # the first knows where it has saved
        assert last.endswith(f"metaprior train --resume --out {folder}")
    resume(folder, processes=2)
    assert_same_end(folder, together, tolerance=0)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_after_a_kill_another_number_of_processes_can_go_on(tmp_path, together, processes):
    folder = tmp_path / "run"
    disturbed(folder, 1, signal.SIGKILL)
    resume(folder, processes=processes)
    assert_same_end(folder, together, tolerance=1e-10)


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_job_too(tmp_path):
    (code, _, err), took = disturbed(tmp_path / "run", 1, signal.SIGSTOP)
    assert code != 0 and took < BOUND
    assert "stopped sending heartbeats" in err


@pytest.mark.slow
def test_ctrl_c_in_one_process_saves_and_stops_all(tmp_path, together):
    folder = tmp_path / "run"
    (code, _, err), took = disturbed(folder, 1, signal.SIGINT)
    assert code == 130 and took < BOUND
    assert f"saved in {folder}" in err and err.strip().endswith(f"metaprior train --resume --out {folder}")
    resume(folder, processes=2)
    assert_same_end(folder, together, tolerance=0)


@pytest.mark.slow
def test_if_the_first_process_is_refused_the_second_does_not_wait_forever(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("do not touch")
    argv = [*WHOLE, "--out", str(tmp_path / "run")]
    with job(argv, argv) as both:
        (code, _, err), (other, _, _) = ended(*both)
    assert code == 2 and "is not empty" in err.splitlines()[-1]
    assert other != 0
