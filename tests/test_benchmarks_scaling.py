"""Weak scaling: what is divided by what, and two real processes that are timed."""

import json
import os

import pytest

from experiments import study
from metaprior.benchmarks import scaling
from metaprior.benchmarks.scaling import ALONE, APART, TOGETHER, Work
from metaprior.cli import bench, main

FOUND = {ALONE: [1.0, 9.0, 1.1], APART: [2.0, 2.0, 2.0], TOGETHER: [2.2, 2.2, 3.0]}


def test_the_medians_are_compared():
    assert scaling.ratios(FOUND) == {f"× {ALONE}": pytest.approx(2.0), f"× {APART}": pytest.approx(1.1)}


def test_twice_the_processes_with_twice_the_tasks_take_about_as_long():
    """From the results: Conv4, on as many cores; within a quarter."""
    rows = study.load("bench-scaling")["rows"]
    (ratio,) = [row["mean"] for row in rows if row["metric"] == f"× {ALONE}"]
    assert "conv4" in rows[0]["setting"] and rows[0]["setting"].endswith("2 processes") and ratio < 1.25


def test_the_command_shows_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaling, "measure", lambda work, count: FOUND)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.0, 0.0))
    out = tmp_path / "results" / "bench-scaling.json"
    assert bench.run(["scaling", "--tasks", "3", "--out", str(out)]) == 0
    told, noted = capsys.readouterr()
    assert noted.startswith("note: the machine is busy (load 1.5)")
    lines = {name: next(line for line in told.splitlines() if name in line).split()[-4:] for name in FOUND}
    assert lines == {ALONE: ["3", "1100", "2.73", "2.000"], APART: ["6", "2000", "3", "1.100"],
                     TOGETHER: ["6", "2200", "2.73", "1.000"]}  # fmt: skip
    assert json.loads(out.read_text())["settings"]["load_before"] == 1.5
    rows = json.loads(out.read_text())["rows"]
    assert all(tuple(row) == study.COLUMNS for row in rows)
    assert {row["metric"]: row["mean"] for row in rows if row["metric"].startswith("×")} == scaling.ratios(FOUND)
    assert bench.run(["scaling", "--json"]) == 0 and json.loads(capsys.readouterr().out) == FOUND


@pytest.mark.parametrize(("flags", "words"), [(["--processes", "1"], "2 to"), (["--rounds", "0"], "--rounds must be")])
def test_what_cannot_be_timed_is_refused(flags, words, capsys):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    assert main(["bench", "scaling", *flags]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_real_processes_are_timed():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    found = scaling.measure(Work(tasks=1, filters=4, iterations=2, rounds=2))
    assert list(found) == [ALONE, APART, TOGETHER]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())
