"""Processes that share a card: how many compute at a time, who is alone, and what a kill leaves behind.

Locks belong to open files, so that threads take turns as processes do.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

from experiments import study, turns


@pytest.fixture
def at_once(tmp_path, monkeypatch):
    """Set how many may compute at a time."""
    monkeypatch.setattr(study, "ROOT", tmp_path)
    return lambda count: monkeypatch.setenv(turns.VARIABLE, str(count))


def taking(count, *, alone=False, seconds=0.02):
    """Take some turns; when each began and ended."""
    spans = []
    for _ in range(count):
        with turns.turn(alone=alone):
            began = time.monotonic()
            time.sleep(seconds)
            spans.append((began, time.monotonic()))
    return spans


def most_at_once(spans):
    moments = sorted((moment, change) for span in spans for moment, change in zip(span, (1, -1), strict=True))
    now = peak = 0
    for _, change in moments:
        now += change
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_more_compute_than_may_and_all_do(at_once, count):
    at_once(count)
    with ThreadPoolExecutor(5) as pool:
        taken = list(pool.map(taking, [4] * 5))
    assert [len(spans) for spans in taken] == [4] * 5
    assert most_at_once([span for spans in taken for span in spans]) == count


def test_who_is_alone_is_beside_none_and_does_not_wait_for_all_to_be_through(at_once):
    at_once(2)
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(taking, 20) for _ in range(3)]
        time.sleep(0.05)  # until they compute
        alone = pool.submit(taking, 2, alone=True).result()
        others = [span for one in others for span in one.result()]
    for began, ended in alone:
        assert not any(first < ended and last > began for first, last in others)
    assert alone[0][1] < max(last for _, last in others)


def test_who_is_killed_holds_nobody_up(at_once, tmp_path):
    at_once(1)
    holding = (
        "import sys, time; from pathlib import Path; from experiments import study, turns; study.ROOT = Path(sys.argv[1])\n"
        "with turns.turn(): print('computes', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", holding, str(tmp_path)]
    root = os.path.dirname(os.path.dirname(study.__file__))
    with (
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor() as pool,
    ):
        assert process.stdout is not None and process.stdout.readline() == "computes\n"
        waiting = pool.submit(taking, 1)
        time.sleep(0.1)
        assert not waiting.done()
        process.kill()
        assert len(waiting.result(timeout=20)) == 1  # of the 60 s


def test_nothing_waits_where_turns_are_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.delenv(turns.VARIABLE, raising=False)
    with turns.turn(alone=True), turns.turn(alone=True):
        assert list(tmp_path.iterdir()) == []


def test_a_program_is_compiled_once_for_arguments_of_one_kind():
    traced = []

    @turns.by_turns
    @jax.jit
    def double(tree):
        traced.append(tree)
        return jax.tree.map(lambda leaf: 2 * leaf, tree)

    for value in (1.0, 2.0):
        found, seconds = double({"a": jnp.full(3, value)})
        assert found["a"].tolist() == [2 * value] * 3 and seconds > 0
    assert len(traced) == 1
    for other in ({"a": jnp.ones(2)}, {"b": jnp.ones(2)}, {"b": jnp.ones(2, jnp.int32)}):
        double(other)
    assert len(traced) == 4
