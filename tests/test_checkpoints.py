"""Whatever happens to the process or the disk, a whole checkpoint is restored, and exactly."""

import os
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaprior import checkpoints, codec

SRC = str(Path(codec.__file__).parents[1])


def state(iteration):
    """A state of which every number depends on the iteration."""
    params = {"w": jnp.arange(4, dtype=jnp.float32) + iteration}
    return (params, optax.adam(1e-3).init(params), jax.random.key(iteration), jnp.asarray(iteration, jnp.int32))


def assert_state(tree, iteration):
    expected = codec.flatten(state(iteration))
    found = codec.flatten(tree)
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def flip(path, position=-1):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_save_and_restore(tmp_path):
    folder = tmp_path / "run" / "checkpoints"  # made on the way
    path = checkpoints.save(folder, 12000, state(12000), {"method": "gem"})
    assert path == folder / "checkpoint-0000012000.safetensors"
    assert checkpoints.available(folder) == {12000: path}
    assert codec.unpack(path.read_bytes()).metadata == {"method": "gem", "iteration": 12000}
    iteration, tree, notes = checkpoints.restore(folder, state(0))
    assert (iteration, notes) == (12000, [])
    assert_state(tree, 12000)


def test_keeps_the_newest(tmp_path):
    for iteration in (5, 10, 9_999_999_999, 10_000_000_000, 10_000_000_001):  # in order even past ten digits
        checkpoints.save(tmp_path, iteration, state(1), keep=2)
    assert list(checkpoints.available(tmp_path)) == [10_000_000_000, 10_000_000_001]
    checkpoints.save(tmp_path, 10_000_000_002, state(1))
    assert list(checkpoints.available(tmp_path)) == [10_000_000_000, 10_000_000_001, 10_000_000_002]


def test_damaged_ones_are_named_and_skipped(tmp_path):
    paths = [checkpoints.save(tmp_path, i, state(i), keep=9) for i in range(5)]
    flip(paths[4])
    os.truncate(paths[3], 100)
    paths[1].replace(paths[2])  # a whole file under the name of another
    iteration, tree, notes = checkpoints.restore(tmp_path, state(0))
    assert iteration == 0
    assert_state(tree, 0)
    assert [str(path) in note for path, note in zip([paths[4], paths[3], paths[2]], notes, strict=True)] == [True] * 3
    assert "checksum does not match" in notes[0]
    assert "it holds iteration 1, its name says 2" in notes[2]


def test_a_folder_without_a_whole_checkpoint(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert checkpoints.available(folder) == {}
        with pytest.raises(checkpoints.CheckpointError, match="holds no checkpoint"):
            checkpoints.restore(folder, state(0))
    flip(checkpoints.save(tmp_path, 1, state(1)), 0)
    (tmp_path / "checkpoint-0000000002.safetensors").mkdir()  # unreadable as a file
    with pytest.raises(checkpoints.CheckpointError, match=r"no checkpoint in .* is whole") as caught:
        checkpoints.restore(tmp_path, state(0))
    assert all(f"checkpoint-000000000{i}.safetensors was skipped" in str(caught.value) for i in (1, 2))


def test_what_does_not_fit_is_an_error_and_not_damage(tmp_path):
    path = checkpoints.save(tmp_path, 1, {"w": jnp.zeros(3)})
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} cannot be restored: w has the wrong shape"):
        checkpoints.restore(tmp_path, {"w": jnp.zeros(4)})


def test_falling_back_never_deletes_what_was_just_saved(tmp_path):
    for i in (10, 20, 30, 40):
        path = checkpoints.save(tmp_path, i, state(i), keep=4)
        if i > 10:
            flip(path)
    assert checkpoints.restore(tmp_path, state(0)).iteration == 10
    for i in (12, 14):
        checkpoints.save(tmp_path, i, state(i), keep=2)
        assert checkpoints.restore(tmp_path, state(0)).iteration == i
    checkpoints.save(tmp_path, 40, state(40), keep=2)
    assert list(checkpoints.available(tmp_path)) == [30, 40]


@pytest.mark.parametrize(("iteration", "keep"), [(-1, 3), (1, 0)])
def test_senseless_numbers_are_refused(tmp_path, iteration, keep):
    with pytest.raises(ValueError, match="iteration must be at least 0 and keep at least 1"):
        checkpoints.save(tmp_path, iteration, state(0), keep=keep)


def test_a_full_disk_leaves_old_checkpoints_untouched(tmp_path):
    """The kernel itself refuses the write half-way: a limit on file size stands for a disk that is full."""
    small, large = {"w": np.zeros(4)}, {"w": np.zeros(20_000)}
    old = checkpoints.save(tmp_path, 1, small)
    before = old.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match=r"could not save .*earlier checkpoints are untouched.*--out"):
            checkpoints.save(tmp_path, 2, large, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == [old.name]
    assert old.read_bytes() == before


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_at_any_step_leaves_old_checkpoints_untouched(tmp_path, monkeypatch, step):
    old = checkpoints.save(tmp_path, 1, state(1))

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space left on device"):
            checkpoints.save(tmp_path, 2, state(2), keep=1)
    assert os.listdir(tmp_path) == [old.name]
    assert_state(checkpoints.restore(tmp_path, state(0)).tree, 1)


def test_data_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Flush the file, rename it, flush the folder; and delete old checkpoints only after that."""
    checkpoints.save(tmp_path, 1, state(1))
    done = []
    kind = lambda fd: "folder" if os.path.isdir(f"/dev/fd/{fd}") else "file"
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(f"fsync {kind(fd)}"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), replace(a, b)))
    monkeypatch.setattr(Path, "unlink", lambda path: (done.append("delete"), unlink(path)))
    checkpoints.save(tmp_path, 2, state(2), keep=1)
    assert done == ["fsync file", "rename", "fsync folder", "delete"]


def test_unwritable_folders_are_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"could not save .*choose another with --out"):
        checkpoints.save(tmp_path / "file" / "run", 1, state(1))


def test_read_only_folder(tmp_path):
    checkpoints.save(tmp_path, 1, state(1))
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write anywhere")
        with pytest.raises(OSError, match=r"could not save .*make the folder writable"):
            checkpoints.save(tmp_path, 2, state(2))
    finally:
        tmp_path.chmod(0o755)
    assert_state(checkpoints.restore(tmp_path, state(0)).tree, 1)


# Imports once, then forks: each child saves in a loop until it is killed. Lines in: seconds to live. Lines out: done.
SAVER = """
import os, signal, sys, time
import numpy as np
from metaprior import checkpoints

folder = sys.argv[1]
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        iteration = max(checkpoints.available(folder), default=0)
        while True:
            iteration += 1
            numbers = np.random.default_rng(iteration).standard_normal(60_000)
            checkpoints.save(folder, iteration, {"numbers": numbers, "count": np.array(iteration)}, keep=2)
    time.sleep(float(line))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
"""


def test_kill_at_any_moment(tmp_path):
    like = {"numbers": np.zeros(60_000), "count": np.array(0)}
    checkpoints.save(tmp_path, 0, {**like, "numbers": np.random.default_rng(0).standard_normal(60_000)})
    moments = random.Random(0)
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": SRC, "JAX_PLATFORMS": "cpu"}
    reached = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1
    ) as saver:
        assert saver.stdin and saver.stdout
        assert saver.stdout.readline() == "ready\n"
        for _ in range(20):
            saver.stdin.write(f"{moments.uniform(0.0, 0.15)}\n")
            assert saver.stdout.readline() == "killed\n"
            iteration, tree, notes = checkpoints.restore(tmp_path, like)
            assert notes == []  # what has a checkpoint's name is whole
            assert tree["count"] == iteration
            np.testing.assert_array_equal(tree["numbers"], np.random.default_rng(iteration).standard_normal(60_000))
            reached.append(iteration)
        saver.stdin.close()
    assert saver.returncode == 0
    assert reached == sorted(reached) and reached[-1] > 0  # it did save, and never fell back
    checkpoints.save(tmp_path, reached[-1] + 1, like, keep=2)
    assert len(os.listdir(tmp_path)) == 2  # nothing is left of those who were killed


def test_sweeping_spares_what_is_being_written(tmp_path, monkeypatch):
    stale = tmp_path / f"{checkpoints.TEMPORARY}0-checkpoint-0000000001.safetensors"
    stale.write_bytes(b"half")
    seen = []
    replace = os.replace

    def sweep_then_replace(source, target):
        checkpoints.sweep(tmp_path)  # another writer comes by at the worst moment
        seen.extend(os.listdir(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", sweep_then_replace)
    path = checkpoints.save(tmp_path, 1, state(1))
    assert len(seen) == 1 and seen[0] != stale.name
    assert os.listdir(tmp_path) == [path.name]
