"""Throughput of agents: what is counted is what is done, and results files have the columns of all others."""

import json

import jax
import pytest

from experiments import study, tables
from metaprior.benchmarks import rl
from metaprior.benchmarks.rl import Apart, Scale, Timed
from metaprior.cli import bench

TINY = Scale(trajectories=40, meta_batch=2, rollouts=3, horizon=4, repeats=2)


@pytest.mark.usefixtures("quick_compile")
def test_steps_are_those_that_are_lived():
    """By hand: 40 trajectories of 4 steps; 2 tasks, 3 rollouts for each of two stages, 4 steps."""
    found = rl.measure(TINY, ("navigation rollouts", "navigation meta-iteration"))
    timings = [timed for timed in found.values() if isinstance(timed, Timed)]
    assert [timed.steps for timed in timings] == [40 * 4, 2 * (3 + 3) * 4]
    assert all(len(timed.seconds) == 2 and min(timed.seconds) > 0 for timed in timings)


@pytest.mark.slow
def test_half_cheetah_is_timed():
    timed = rl.measure(TINY, ("half-cheetah meta-iteration",))["half-cheetah meta-iteration"]
    assert isinstance(timed, Timed) and timed.steps == 2 * (3 + 3) * 4 and timed.per_second > 0


def test_speed_is_that_of_the_median_call(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rl, "MEASURED", {"walk": lambda scale: Timed("a stroll", scale.trajectories, [1.0, 4.0, 2.0])})
    asked = ["rl", "--trajectories", "100"]
    assert bench.run([*asked, "--out", str(tmp_path / "bench-rl.json")]) == 0
    assert "a stroll" in (told := capsys.readouterr().out) and " 50 environment steps / s" in " ".join(told.split())
    assert bench.run([*asked, "--json"]) == 0 and json.loads(capsys.readouterr().out) == {"walk": 50.0}
    rows = json.loads((tmp_path / "bench-rl.json").read_text())["rows"]
    assert all(tuple(row) == study.COLUMNS for row in rows)
    assert [row["mean"] for row in rows] == [50.0, 2.0]


def test_a_file_keeps_what_was_measured_before(tmp_path, monkeypatch):
    """Of other things and other batches; the same thing at the same batch is replaced."""
    file, seconds = tmp_path / "bench-rl.json", [4.0]
    walk = lambda scale: Timed(f"{scale.trajectories} steps", scale.trajectories, seconds)
    monkeypatch.setattr(rl, "MEASURED", {"walk": walk, "run of a cheetah": walk})
    for asked in (["100"], ["200", "--engine", "c"], ["100"]):
        assert bench.run(["rl", "--out", str(file), "--trajectories", *asked]) == 0
        seconds[0] /= 2
    rows = [row for row in json.loads(file.read_text())["rows"] if row["metric"] != "s"]
    assert {(row["method"], row["mean"]) for row in rows} == {
        ("walk", 100.0), ("walk", 100.0), ("run of a cheetah, engine c", 100.0), ("run of a cheetah", 100.0),
    }  # fmt: skip
    assert len(rows) == 4 and rows[-1]["command"].endswith("--trajectories 100")
    monkeypatch.setattr(rl, "hardware", lambda: "another machine")
    assert bench.run(["rl", "--out", str(file), "--trajectories", "100"]) == 0
    found = json.loads(file.read_text())
    assert len(found["rows"]) == 2 * (4 + 2) and len(found["curves"]) == 4 + 2  # both machines' walks and runs


def test_gaps_are_the_largest_and_the_median_difference(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rl, "MEASURED", {rl.GAP: lambda scale: Apart("a few", [3.0, 1.0, 0.5], [1.0])})
    assert bench.run(["rl", "--only", rl.GAP, "--engine", "c", "--out", str(tmp_path / "bench-rl.json")]) == 0
    assert "apart by 3 at most, 1 in the median" in " ".join(capsys.readouterr().out.split())
    rows = json.loads((tmp_path / "bench-rl.json").read_text())["rows"]
    assert [(row["method"], row["metric"], row["mean"]) for row in rows] == [
        ("half-cheetah gap, engine c", "largest difference", 3.0), ("half-cheetah gap, engine c", "median difference", 1.0),
    ]  # fmt: skip
    assert rl.measure(TINY) == {}  # unless it is asked for, nothing is compared
    table = tables.agents(lambda name: json.loads((tmp_path / f"{name}.json").read_text()))
    assert "| c | a few | 3 | 1 |" in table


@pytest.mark.slow
def test_arrays_are_as_near_to_the_c_engine_as_single_precision():
    with jax.enable_x64(False):
        found = rl.engine_apart(TINY._replace(engine="plane", horizon=None))
    assert 0 < found.numbers["median difference"] < 1e-4 and found.numbers["largest difference"] < 5e-3


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="engine"):
        rl.time_rollouts("rl-cheetah-velocity", TINY._replace(engine="steam"))
    with pytest.raises(ValueError, match="measurement"):
        rl.measure(TINY, ("flying",))
    with pytest.raises(ValueError, match="multiple"):
        rl.time_rollouts("rl-navigation", TINY._replace(trajectories=41))
