"""What every experiment shares: the numbers, what JSON keeps of them, and cells that are measured once."""

import dataclasses
import importlib.util
import json
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_study
from scipy import stats

import experiments
from experiments import study

TINY, SMOKE = tiny_study.STUDY, tiny_study.SMOKE


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_one_seed_has_the_interval_of_its_tasks():
    scores = np.random.default_rng(0).normal(size=(1, 400))
    mean, ci95 = study.mean_and_ci(scores)
    low, high = stats.norm.interval(0.95, scores.mean(), stats.sem(scores[0]))
    assert (mean - ci95, mean + ci95) == pytest.approx((low, high), rel=1e-4)
    assert study.mean_and_ci(scores[0]) == (mean, ci95)  # a plain list is one seed


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
def test_equal_tasks_leave_the_t_interval_of_the_seeds(num_seeds):
    seeds = np.random.default_rng(1).normal(size=num_seeds)
    mean, ci95 = study.mean_and_ci(np.repeat(seeds[:, None], 7, axis=1))
    assert mean == pytest.approx(seeds.mean())
    assert ci95 == pytest.approx(stats.t.ppf(0.975, num_seeds - 1) * stats.sem(seeds), rel=2.5e-3)  # quantiles to 0.01


def test_spread_over_tasks_and_over_seeds_add_up_as_squares():
    tasks, seeds = np.array([1.0, 2.0, 4.0, 9.0]), np.array([[0.0], [1.0], [5.0]])
    _, of_tasks = study.mean_and_ci(tasks)
    _, of_seeds = study.mean_and_ci(np.repeat(seeds, 4, axis=1))
    mean, both = study.mean_and_ci(tasks + seeds)
    assert mean == pytest.approx(tasks.mean() + seeds.mean())
    assert both == pytest.approx(np.sqrt(of_tasks**2 + of_seeds**2))


def test_more_seeds_than_the_table_has_are_given_no_less_than_their_due():
    seeds = np.random.default_rng(2).normal(size=30)
    _, ci95 = study.mean_and_ci(np.repeat(seeds[:, None], 2, axis=1))
    exact = stats.t.ppf(0.975, 29) * stats.sem(seeds)
    assert exact <= ci95 <= 1.15 * exact


def test_one_number_has_no_spread():
    assert study.mean_and_ci([[3.0]]) == (3.0, 0.0)


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, np.float32("nan"), None])
def test_what_is_not_finite_is_null(value):
    assert study.finite(value) is None
    assert study.plain([value]) == [None]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        ((1, "a", None, True), [1, "a", None, True]),
        (Path("a/b"), "a/b"),
        ({1: (0.5,), "x": {"y": Path("z")}}, {"1": [0.5], "x": {"y": "z"}}),
    ],
)
def test_plain_is_what_json_gives_back(value, expected):
    plain = study.plain(value)
    assert plain == expected
    assert json.loads(json.dumps(plain, allow_nan=False)) == expected


def test_jax_numbers_are_plain_too():
    import jax.numpy as jnp

    assert study.plain({"a": jnp.array([1.0, jnp.inf]), "b": jnp.array(2)}) == {"a": [1.0, None], "b": 2}


def test_a_row_has_null_for_what_is_not_known():
    row = study.row(setting="s", method="m", metric="x", mean=float("inf"), ci95=None)
    assert row == {"setting": "s", "method": "m", "metric": "x", "paper": None, "mean": None, "ci95": None}


# --- running ----------------------------------------------------------------------------------------------------------


def counting():
    """The tiny study, and the list of cells it was asked to measure."""
    asked = []

    def measure(settings, cell):
        asked.append(cell)
        return tiny_study.measure(settings, cell)

    return TINY._replace(measure=measure), asked


def test_rows_have_the_twelve_columns_in_order_and_say_where_they_come_from():
    results = study.run(TINY, SMOKE, scale="smoke")
    assert set(results) == {"settings", "rows", "curves", "cells"}
    assert len(study.COLUMNS) == 12
    assert [tuple(row) for row in results["rows"]] == [study.COLUMNS] * 8
    assert [(row["setting"], row["method"]) for row in results["rows"][::2]] == TINY.cells(SMOKE)
    for row in results["rows"]:
        assert (row["experiment"], row["seeds"]) == ("tiny", 1)
        assert row["command"] == "metaprior reproduce tiny --scale smoke --seeds 1"
        assert row["hardware"] == study.hardware() and row["commit"] == study.commit() and row["seconds"] >= 0
    assert (
        results["rows"][0]["mean"] == 0.5 and results["rows"][0]["paper"] == 1.5 and results["rows"][1]["mean"] is None
    )
    assert results["settings"] == {"scale": "smoke", "seeds": [0], "tasks": 2, "folder": "nowhere", "fail": ""}
    assert results["curves"]["hard maml"] == [[10.0, 11.0]]
    json.dumps(results, allow_nan=False)


def test_progress_is_reported_cell_by_cell():
    heard = []
    study.run(TINY, SMOKE, report=lambda *news: heard.append(news))
    names = ["", *(" ".join(cell) for cell in TINY.cells(SMOKE))]
    assert heard == [(done, 4, name) for done, name in enumerate(names)]


def test_kept_cells_are_not_measured_again_and_give_the_same_results(tmp_path):
    tiny, asked = counting()
    first = study.run(tiny, SMOKE, keep=tmp_path)
    assert asked == TINY.cells(SMOKE)
    heard = []
    assert study.run(tiny, SMOKE, keep=tmp_path, report=lambda *news: heard.append(news)) == first
    assert asked == TINY.cells(SMOKE) and heard == [(4, 4, "")]
    study.run(tiny, SMOKE)
    assert len(asked) == 8  # nothing kept, nothing reused


def test_cells_are_kept_by_settings(tmp_path):
    tiny, asked = counting()
    for settings in (SMOKE, replace(SMOKE, tasks=3), replace(SMOKE, seeds=(1,)), replace(SMOKE, folder=Path("x"))):
        expected = study.run(TINY, settings)["curves"]
        assert study.run(tiny, settings, keep=tmp_path)["curves"] == expected
    assert len(asked) == 16


def test_a_cell_is_kept_only_while_what_it_rests_on_stays(tmp_path):
    tiny, asked = counting()
    for rate, measured in ((1.0, 4), (1.0, 4), (2.0, 8), (1.0, 8)):
        study.run(tiny._replace(rests_on=lambda settings, cell, rate=rate: {"rate": rate}), SMOKE, keep=tmp_path)
        assert len(asked) == measured


def test_a_run_that_is_cut_off_goes_on(tmp_path):
    asked = []

    def stop_at_third(settings, cell):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(cell)
        return tiny_study.measure(settings, cell)

    with pytest.raises(KeyboardInterrupt):
        study.run(TINY._replace(measure=stop_at_third), SMOKE, keep=tmp_path)
    tiny, rest = counting()
    results = study.run(tiny, SMOKE, keep=tmp_path)
    assert rest == TINY.cells(SMOKE)[2:]
    assert results["curves"] == study.run(TINY, SMOKE)["curves"]


def test_results_that_miss_cells_are_enough_to_go_on_from():
    """As a file carries them to another machine: what is there is not measured again, and the end is that of a whole run."""
    whole = study.run(TINY, SMOKE)
    part = json.loads(study.text(study.run(TINY, SMOKE, only=lambda cell: cell[1] == "maml")))
    assert len(part["missing"]) == len(part["cells"]) == 2
    tiny, asked = counting()
    found = study.run(tiny, SMOKE, before=part)
    assert asked == [cell for cell in TINY.cells(SMOKE) if cell[1] != "maml"]
    bare = lambda results: [{**row, "seconds": 0} for row in results["rows"]]
    assert bare(found) == bare(whole) and found["curves"] == whole["curves"] and set(found) == set(whole)
    tiny, asked = counting()
    study.run(tiny, replace(SMOKE, tasks=3), before=part)
    assert len(asked) == 4  # they rest on other settings


def test_a_study_that_grows_goes_on_from_results_that_missed_nothing():
    """With more cells than when they were written: only those are measured."""
    small = TINY._replace(cells=lambda settings: TINY.cells(settings)[:2])
    whole = json.loads(study.text(study.run(small, SMOKE)))
    assert "missing" not in whole and not study.lacks(small, SMOKE, whole) and study.lacks(TINY, SMOKE, whole)
    tiny, asked = counting()
    found = study.run(tiny, SMOKE, before=whole)
    assert asked == TINY.cells(SMOKE)[2:]
    assert not study.lacks(TINY, SMOKE, found)


def test_a_part_that_is_measured_anew_leaves_the_rest_of_a_file():
    """Cells that are not asked for come back from it; those that are asked for are measured, whatever it says."""
    file = json.loads(study.text(study.run(TINY, SMOKE)))
    for row in file["rows"]:
        row["commit"] = "of the file"
    tiny, asked = counting()
    found = study.run(tiny, SMOKE, others=file, only=lambda cell: cell[0] == "hard")
    assert asked == [cell for cell in TINY.cells(SMOKE) if cell[0] == "hard"] and "missing" not in found
    assert {row["setting"] for row in found["rows"] if row["commit"] == "of the file"} == {"easy"}


def test_no_cell_is_begun_too_late_and_what_a_file_has_of_it_stays():
    """The third is begun after the end: it is missing where no file has it, and as the file has it else."""
    cells = TINY.cells(SMOKE)

    def slow(settings, cell):
        if cell == cells[1]:
            time.sleep(0.3)
        return tiny_study.measure(settings, cell)

    late = TINY._replace(measure=slow)
    found = study.run(late, SMOKE, until=time.monotonic() + 0.2)
    assert found["missing"] == ["/".join(cell) for cell in cells[2:]] and len(found["rows"]) == 4
    file = json.loads(study.text(study.run(TINY, SMOKE)))
    for row in file["rows"]:
        row["commit"] = "of the file"
    found = study.run(late, SMOKE, others=file, until=time.monotonic() + 0.2)
    assert "missing" not in found
    assert [row["commit"] == "of the file" for row in found["rows"]] == [False] * 4 + [True] * 4


def test_rows_say_how_many_seeds_their_own_cell_has():
    mixed = TINY._replace(seeds_of=lambda settings, cell: settings.seeds[:1] if cell[1] == "maml" else settings.seeds)
    results = study.run(mixed, tiny_study.Settings())
    assert {(row["method"], row["seeds"]) for row in results["rows"]} == {("maml", 1), ("gem-bml+", 3)}


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    old = study.run(TINY, SMOKE)
    path = study.save(TINY, old, tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        study.save(TINY, old | {"rows": []}, tmp_path)
    assert study.load("tiny", tmp_path) == old
    assert list(tmp_path.iterdir()) == [path]


def test_results_that_are_missing_say_how_to_get_them(tmp_path):
    with pytest.raises(ValueError, match=r"no results of tiny in .*: run metaprior reproduce tiny"):
        study.load("tiny", tmp_path)
    (tmp_path / "tiny.json").write_text('{"rows": [\n<<<<<<< HEAD\n')
    with pytest.raises(ValueError, match=r"tiny.json is no whole results file .*: mend it, or move it away"):
        study.load("tiny", tmp_path)


def test_studies_are_found_by_name():
    assert study.module_of("a-star") == "experiments.a_star"
    with pytest.raises(ValueError, match="unknown experiment 'a-stra': did you mean a-star"):
        experiments.get("a-stra")


@pytest.mark.parametrize("name", experiments.NAMES)
def test_every_study_keeps_the_contract(name):
    """All but measuring: settings of both scales, cells that can be told apart and sent to other processes, and words."""
    if importlib.util.find_spec(study.module_of(name)) is None:
        pytest.skip("its file is not there")
    one = experiments.get(name)
    assert one.name == name and one.title.strip() and one.paper.strip()
    assert set(one.scales) == {"smoke", "full"}
    for settings in one.scales.values():
        first, count = settings.seeds[0], len(settings.seeds)
        assert settings.seeds == tuple(range(first, first + count))  # or else --seeds would not give the same
        assert settings == pickle.loads(pickle.dumps(settings))
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings.seeds = ()
        json.dumps(study.plain(dataclasses.asdict(settings)), allow_nan=False)
        cells = list(one.cells(settings))
        assert cells and len(set(cells)) == len(cells)
        assert all(isinstance(word, str) and word for cell in cells for word in cell)
    smoke, full = (len(one.cells(one.scales[scale])) * len(one.scales[scale].seeds) for scale in ("smoke", "full"))
    assert smoke <= full


def test_the_file_is_json_with_a_line_for_each_row():
    results = {
        "settings": {"scale": "smoke"},
        "rows": [{"mean": 1.0}, {"mean": None}],
        "curves": {"a/b": [1, 2]},
        "more": "é",
    }
    written = study.text(results)
    assert json.loads(written) == results
    assert sum(line.startswith('{"mean"') for line in written.splitlines()) == 2
    assert json.loads(study.text({"rows": [], "curves": {}})) == {"rows": [], "curves": {}}


def test_workers_end_when_the_process_that_asked_is_killed():
    """A kill that nobody can catch: the worker holds the pipe, so its end is the end of the file."""
    worker = "import os, time, experiments.side_by_side as s; s._end_with(os.getppid()); print('on', flush=True); time.sleep(60)"
    asking = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {worker!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", asking], cwd=study.ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "on\n"
        process.kill()
        assert process.communicate(timeout=20)[0] == ""  # within 20 s of 60
