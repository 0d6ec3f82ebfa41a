"""The command line: what it prints and writes is what the library computes, and bad input is one clear line and exit code 2."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import metaprior
from metaprior import benchmarks, evaluation, runs, training
from metaprior.checkpoints import available
from metaprior.cli import COMMANDS, evaluate, main, quickstart
from metaprior.cli.adapt import inputs_at
from metaprior.cli.points import read_columns
from metaprior.methods import METHODS
from metaprior.settings import Settings

SRC = Path(metaprior.__file__).parents[1]
TINY = ["--hidden", "8", "8", "--rate", "0.001", "--iterations", "40", "--chunk", "20"]

pytestmark = pytest.mark.usefixtures("quick_compile_here", "few_validation_tasks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, trained once for all tests; they only read it."""
    path = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "sinusoid", *TINY, "--out", str(path), "--quiet"]) == 0
    return path


@pytest.fixture
def points(tmp_path):
    def write(text):
        path = tmp_path / "points.csv"
        path.write_text(text)
        return str(path)

    return write


def read_csv(path):
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, np.array(rows, float).T, strict=True))


def refused(capsys, argv, *words, code=2):
    """The command fails with one line on stderr that holds these words, and says nothing else."""
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("metaprior: ") and err.count("\n") == 1 and err.endswith("\n")
    for word in words:
        assert word in err
    return err


# --- the front door ---------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_loads_no_heavy_library():
    # A bare package stands in for metaprior's own, so that what is measured is the command line's part.
    program = f"""
import sys, types
package = types.ModuleType("metaprior"); package.__path__ = [{str(SRC / "metaprior")!r}]; sys.modules["metaprior"] = package
from metaprior.cli import main
code = main(["--help"])
assert not {{"jax", "numpy", "tyro", "rich", "matplotlib"}} & set(sys.modules), "a help text needs none of these"
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_by_examples(name, capsys):
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: metaprior {name}")
    assert 2 <= out.count(f"\n  metaprior {name}") <= 5


def test_settings_are_the_flags_of_train_with_their_help(capsys):
    main(["train", "--help"])
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in set(Settings.__dataclass_fields__) - {"tasks", "decay"}:
        assert f"--{name.replace('_', '-')} " in out
    assert "--no-decay" in out
    assert "--hidden INT ... Widths of the hidden layers. (default: 40 40)" in out
    assert "--std FLOAT Width of the prior before training. (default: auto)" in out
    assert "None" not in out


def test_version_and_module_entry_point():
    done = subprocess.run([sys.executable, "-m", "metaprior", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"metaprior {metaprior.__version__}\n"


def test_unknown_commands_are_met_with_the_nearest(capsys):
    refused(capsys, ["trian"], "unknown command 'trian'", "did you mean train or plan?")


def test_unknown_flags_end_with_code_2(capsys):
    assert main(["train", "--ratee", "1"]) == 2
    assert "--rate" in capsys.readouterr().err


def test_debug_shows_the_traceback():
    with pytest.raises(runs.RunError, match="is missing"):
        main(["evaluate", "no-such-run", "--debug"])


def test_defects_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("metaprior.cli.methods.table", lambda names: {}["defect"])
    with pytest.raises(KeyError):
        main(["methods"])


def test_interrupting_any_command_is_code_130(monkeypatch, capsys):
    def interrupt(names):
        raise KeyboardInterrupt

    monkeypatch.setattr("metaprior.cli.methods.table", interrupt)
    refused(capsys, ["methods"], "interrupted", code=130)


# --- methods and bench ------------------------------------------------------------------------------------------------


def test_methods_lists_the_table(capsys):
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    for method in METHODS:
        line = next(line for line in out.splitlines() if line.split()[:1] == [method.name])
        assert all(
            word in line for word in (method.prior, method.posterior, method.inference, method.row, method.column)
        )
        assert method.second_stage in line and method.summary in line
    assert "how the meta-gradient is taken" in out


def test_methods_as_json(capsys):
    assert main(["methods", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    keys = ("name", "inference", "row", "column", "second_stage", "summary")
    assert [[row[key] for key in keys] for row in rows] == [[getattr(m, key) for key in keys] for m in METHODS]
    assert [row["family"] for row in rows] == [method.posterior for method in METHODS]


def test_gradient_em_needs_no_memory_for_inner_steps_and_backpropagation_does(capsys):
    assert main(["bench", "memory", "--json", "--steps", "2", "20"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: list(sizes) for name, sizes in found.items()} == {"gem-bml+": ["2", "20"], "maml": ["2", "20"]}
    assert found["gem-bml+"]["20"] <= 1.01 * found["gem-bml+"]["2"]
    weights, batch = 2 * 40 + 40 * 41 + 41, 5
    assert found["maml"]["20"] - found["maml"]["2"] >= 18 * batch * weights * 8  # at the very least each step's weights


def test_bench_prints_the_growth(capsys, monkeypatch):
    monkeypatch.setattr(
        benchmarks, "step_memory", lambda name, steps, tasks: 1024 * (3 if name == "maml" else 1) ** steps
    )
    assert main(["bench", "memory", "--steps", "1", "4"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "maml 3 KiB 81 KiB × 27.00" in lines
    assert "gem-bml+ 1 KiB 1 KiB × 1.00" in lines


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--methods", "mamml"], ["unknown method 'mamml'", "did you mean maml"]),
        (["--steps", "-1"], ["steps cannot be negative, got -1"]),
        (["--steps"], ["at least one value"]),
        (["--tasks", "sinusoids"], ["unknown task set 'sinusoids'", "sinusoid"]),
    ],
)
def test_bench_refuses(capsys, flags, words):
    refused(capsys, ["bench", "memory", *flags], *words)


# --- evaluate ---------------------------------------------------------------------------------------------------------


def test_evaluate_prints_one_json_object_and_saves_it(folder, capsys):
    assert main(["evaluate", str(folder), "--json", "--tasks-count", "4", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    result = json.loads(out)
    assert out.count("\n") == 1
    assert result["steps"] == [0, 1, 2, 3] and result["tasks"] == 4
    assert (result["method"], result["task_set"], result["iteration"]) == ("gem-bml+", "sinusoid", 40)
    assert json.loads((folder / "evaluation.json").read_text()) == result
    assert result["mse"] == pytest.approx(mean_squared_errors(folder, num_tasks=4, steps=3))
    assert all(0 <= share <= 1 for share in result["coverage90"])
    assert all(len(result[name]) == 4 for name in ("mse", "nll", "crps", "coverage90"))


def mean_squared_errors(folder, *, num_tasks, steps):
    """The slow way: task by task through the library's front door."""
    import jax

    prior = metaprior.load(folder)
    errors = []
    for index in range(num_tasks):
        key = jax.random.fold_in(jax.random.key(evaluation.TEST_SEED), index)
        support, query = prior.trained.setup.tasks.evaluation(jax.random.split(key, 3)[0])
        adapted = prior.adapt(support.x, support.y, steps=steps)
        means = [adapted.predict(query.x, steps=step, num_functions=0).moments()[0] for step in range(steps + 1)]
        errors.append([float(((mean - query.y) ** 2).mean()) for mean in means])
    return np.mean(errors, axis=0).tolist()


def result_of(steps):
    """Scores that are easy to recognise in a table."""
    names = ("mse", "nll", "crps", "coverage90", "coverage90_near", "coverage90_far", "rank_correlation", "mse_ci95")
    values = {name: [float(step) + place / 10 for step in range(steps + 1)] for place, name in enumerate(names)}
    about = {"tasks": 7, "method": "maml", "task_set": "sinusoid", "shots": 5}
    return {"steps": list(range(steps + 1)), **values, **about}


def test_evaluate_prints_a_table_of_chosen_steps(folder, capsys, monkeypatch, tmp_path):
    fixed = result_of(12) | {"coverage90_far": [None] * 13}
    monkeypatch.setattr(evaluate, "scores", lambda trained, steps, tasks_count: fixed | {"tasks": tasks_count})
    path = tmp_path / "scores.json"
    assert main(["evaluate", str(folder), "--steps", "10", "--out", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line[:1].isdigit()]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "5", "10", "12"]
    assert rows[3] == "5 5.0000 ± 5.7000 5.100 5.200 530.0 % 540.0 % – 5.60"
    assert lines[0] == "maml on sinusoid: 600 unseen tasks, 5 support points"
    assert json.loads(path.read_text())["tasks"] == 600


def test_a_run_that_cannot_be_written_to_can_be_evaluated(folder, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "scores", lambda trained, steps, tasks_count: result_of(2))
    monkeypatch.setattr(evaluate, "FILE", "no/such/place.json")
    assert main(["evaluate", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["tasks"] == 7
    assert err.startswith("note: ") and "cannot be written" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["{tmp}/nothing"], ["nothing is missing, a run is a folder"]),
        (["{tmp}"], ["is not a run: settings.json is missing"]),
        (["{run}", "--steps", "-1"], ["--steps cannot be negative, got -1"]),
        (["{run}", "--tasks-count", "0"], ["--tasks-count must be at least 1, got 0"]),
    ],
)
def test_evaluate_refuses(folder, tmp_path, capsys, argv, words):
    refused(capsys, ["evaluate", *(word.format(tmp=tmp_path, run=folder) for word in argv)], *words)


def test_a_run_without_checkpoint_says_how_to_get_one(tmp_path, capsys):
    runs.release(runs.create(tmp_path / "run", {"hidden": [8]}))
    refused(capsys, ["evaluate", str(tmp_path / "run")], "has no checkpoint yet", "train --resume --out")


# --- adapt ------------------------------------------------------------------------------------------------------------


def test_adapt_writes_what_the_library_predicts(folder, points, tmp_path, capsys):
    out = tmp_path / "adapted"
    argv = ["adapt", str(folder), points("x,y\n-2,1.5\n0.5,-1\n"), "--at", "-4:4:9", "--steps", "3", "--out", str(out)]
    assert main(argv) == 0
    assert "9 predictions from 2 points" in capsys.readouterr().out
    found = read_csv(out / "predictions.csv")
    assert list(found) == ["x", "mean", "std", "q05", "q25", "q50", "q75", "q95"]
    np.testing.assert_array_equal(found["x"], np.linspace(-4, 4, 9))
    task = metaprior.load(folder).adapt([-2, 0.5], [1.5, -1], steps=3)
    predictive, (low, high) = task.predict(found["x"]), task.predict_interval(found["x"])
    np.testing.assert_allclose(np.c_[low, high], np.c_[found["q05"], found["q95"]], rtol=1e-6)
    mean, std = (np.asarray(part)[:, 0] for part in predictive.moments())
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-7)
    np.testing.assert_allclose(found["std"], std, rtol=1e-7)
    for name, level in (("q05", 0.05), ("q25", 0.25), ("q50", 0.5), ("q75", 0.75), ("q95", 0.95)):
        np.testing.assert_allclose(found[name], mean + std * norm.ppf(level), rtol=1e-6, atol=1e-6)  # a Gaussian
    assert (out / "prediction.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_adapt_says_when_bands_go_beyond_what_was_calibrated(folder, points, tmp_path, capsys):
    given = ["adapt", str(folder), points("x,y\n1,0.5\n"), "--at", "0:1:2", "--out", str(tmp_path)]
    assert main([*given, "--steps", "10"]) == 0
    assert "calibrated" not in capsys.readouterr().err
    assert main([*given, "--steps", "12"]) == 0
    assert "calibrated for up to 10 steps: after 12 steps" in capsys.readouterr().err


def test_a_run_that_cannot_be_calibrated_says_that_it_is_not(folder, points, tmp_path, capsys, monkeypatch):
    """A run of images that was stopped before its calibration, on a machine without the images."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "calibration.json").unlink()

    def missing(*_, **__):
        raise ValueError("where is omniglot?")

    monkeypatch.setattr(training, "calibrate_steps", missing)
    assert main(["adapt", str(copy), points("x,y\n1,0.5\n"), "--out", str(tmp_path / "out")]) == 2
    assert "copy is not calibrated for 10 steps yet, which takes its own tasks: where is omniglot?" in (
        capsys.readouterr().err
    )


def test_adapt_reads_named_columns_and_inputs_from_files(folder, points, tmp_path):
    support = points("\ufefftime, note ,volts\n-2,first,1.5\n\n0.5,,-1\n")
    (tmp_path / "at.csv").write_text("time\n3\n1\n")
    argv = [
        "adapt",
        str(folder),
        support,
        "--x-column",
        "time",
        "--y-column",
        "volts",
        "--at",
        str(tmp_path / "at.csv"),
    ]
    assert main([*argv, "--out", str(tmp_path / "named")]) == 0
    found = read_csv(tmp_path / "named" / "predictions.csv")
    assert found["x"].tolist() == [3.0, 1.0]  # in the order asked for
    predictive = metaprior.load(folder).adapt([-2, 0.5], [1.5, -1]).predict([3.0, 1.0])
    np.testing.assert_allclose(found["mean"], np.asarray(predictive.moments()[0])[:, 0], rtol=1e-7)


def test_no_support_points_ask_for_the_prior_predictive(folder, points, tmp_path, capsys):
    argv = ["adapt", str(folder), points("x,y\n"), "--at", "-5:5:3", "--out", str(tmp_path / "prior")]
    assert main(argv) == 0
    assert "holds no points: this is the prior predictive" in capsys.readouterr().err
    found = read_csv(tmp_path / "prior" / "predictions.csv")
    before = metaprior.load(folder).adapt([1.0], [2.0]).predict([-5.0, 0.0, 5.0], steps=0).moments()
    np.testing.assert_allclose(found["mean"], np.asarray(before[0])[:, 0], rtol=1e-7)
    np.testing.assert_allclose(found["std"], np.asarray(before[1])[:, 0], rtol=1e-7)


def test_predictions_do_not_depend_on_how_inputs_are_batched(folder, monkeypatch):
    from metaprior.cli import adapt

    adapted = metaprior.load(folder).adapt([0.0], [1.0])
    whole = adapt.predictions(adapted, np.linspace(-1, 1, 10))
    monkeypatch.setattr(adapt, "BATCH", 5)
    np.testing.assert_allclose(adapt.predictions(adapted, np.linspace(-1, 1, 10)), whole, rtol=1e-12)


CSV_PROBLEMS = [
    ("", ["is empty", "header, x,y"]),
    ("time,volts\n1,2\n", ["no column 'x'", "its first line names time, volts", "--x-column"]),
    ("x,z\n1,2\n", ["no column 'y'", "names x, z"]),
    ("1.0,2.0\n3,4\n", ["no column 'x'", "names 1.0, 2.0"]),
    ("x;y\n1;2\n", ["separates its columns by ';'", "save it with commas"]),
    ("x,y,x\n1,2,3\n", ["more than one column 'x'"]),
    ("x,y\n1,2\n3,volts\n", ["row 2 (line 3), column 'y'", "'volts' is not a number"]),
    ("x,y\n1,2\n\n3,\n", ["row 2 (line 4), column 'y'", "the cell is empty"]),
    ("x,y\n1\n", ["row 1 (line 2), column 'y'", "the cell is empty"]),
    ("x,y\nnan,2\n", ["row 1 (line 2), column 'x'", "nan is not finite"]),
    ("x,y\n1,-inf\n", ["row 1 (line 2), column 'y'", "-inf is not finite"]),
]


@pytest.mark.parametrize(("text", "words"), CSV_PROBLEMS)
def test_adapt_says_what_is_wrong_with_a_file(folder, points, tmp_path, capsys, text, words):
    refused(capsys, ["adapt", str(folder), points(text), "--out", str(tmp_path / "out")], *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "-1"], ["--steps cannot be negative"]),
        (["--at", "1:2"], ["there is no file 1:2"]),
        (["--at", "-5:5:many"], ["is not START:STOP:COUNT"]),
        (["--at", "-5:inf:3"], ["finite ends"]),
        (["--at", "0:1:0"], ["a count of at least 1"]),
        (["--out", "{file}"], ["is not writable"]),
        (["--out", "{file}/below"], ["is not writable"]),
    ],
)
def test_adapt_refuses(folder, points, tmp_path, capsys, flags, words):
    support = points("x,y\n1,2\n")
    argv = [
        "adapt",
        str(folder),
        support,
        "--out",
        str(tmp_path / "out"),
        *(word.format(file=support) for word in flags),
    ]
    refused(capsys, argv, *words)
    assert not (tmp_path / "out").exists()
    assert Path(support).read_text() == "x,y\n1,2\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_adapt_refuses_a_folder_without_permission(folder, points, tmp_path, capsys):
    (tmp_path / "shut").mkdir(mode=0o500)
    refused(capsys, ["adapt", str(folder), points("x,y\n1,2\n"), "--out", str(tmp_path / "shut")], "is not writable")


def test_adapt_refuses_missing_files_and_points_beyond_all_bounds(folder, points, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    refused(capsys, ["adapt", str(folder), str(tmp_path / "none.csv"), *out], "there is no file")
    (tmp_path / "bytes.csv").write_bytes(b"x,y\n\xff\xfe,1\n")
    refused(capsys, ["adapt", str(folder), str(tmp_path / "bytes.csv"), *out], "is not a CSV file")
    refused(capsys, ["adapt", str(folder), points("x,y\n1,1e200\n"), *out], "no longer finite")
    assert not (tmp_path / "out").exists()


def test_shapes_that_do_not_fit_are_refused_by_the_library(folder):
    prior = metaprior.load(folder)
    with pytest.raises(ValueError, match=r"y must have shape \[N\] or \[N, 1\], got \[2, 2\]"):
        prior.adapt([1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="x has 2 points and y has 1"):
        prior.adapt([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="x holds a value that is not finite at point 1"):
        prior.adapt([1.0, np.inf], [1.0, 2.0])


def test_ranges_and_columns():
    assert inputs_at("-1:1:5", "x").tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert inputs_at("2:9:1", "x").tolist() == [2.0]
    with pytest.raises(ValueError, match="cannot be read"):
        read_columns(Path("/"), ("x",))


# --- quickstart -------------------------------------------------------------------------------------------------------------


def test_quickstart_trains_evaluates_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "SETTINGS", Settings(hidden=(8, 8), rate=0.001))
    monkeypatch.setattr(quickstart, "EVALUATION_TASKS", 4)
    monkeypatch.setattr(quickstart, "CHUNK", 20)
    out = tmp_path / "quickstart"
    assert main(["quickstart", "--out", str(out), "--iterations", "40"]) == 0
    text = capsys.readouterr().out
    rows = [line.split()[0] for line in text.splitlines() if "±" in line and line.split()[0].isdigit()]
    assert rows == ["0", "1", "10"]
    assert f"figure: {out / 'quickstart.png'}" in text
    assert len(text.split("figure: ")[1].splitlines()) == 2  # where it is, and what to do next
    assert (out / "quickstart.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((out / "evaluation.json").read_text())["steps"] == list(range(11))
    assert list(available(out / "checkpoints")) == [40]
    quickstart.clear(out)  # what a quickstart leaves, the next one can replace
    assert os.listdir(out) == ["run.lock"]


@pytest.fixture
def old_run(tmp_path):
    old = tmp_path / "quickstart"
    runs.release(runs.create(old, {"iterations": 1}))
    (old / quickstart.MARK).write_text("{}")
    (old / "quickstart.png").write_bytes(b"old")
    return old


def test_an_earlier_quickstart_makes_room(old_run):
    quickstart.clear(old_run)
    assert os.listdir(old_run) == ["run.lock"]
    quickstart.clear(old_run)  # nothing left to do
    quickstart.clear(old_run / "new")
    runs.release(runs.create(old_run, {"iterations": 2}))


def test_a_clearing_that_was_cut_short_is_taken_up(old_run):
    (old_run / "settings.json").unlink()
    quickstart.clear(old_run)
    assert os.listdir(old_run) == ["run.lock"]


def test_nothing_but_a_quickstart_is_replaced(old_run, tmp_path, capsys):
    (old_run / "thesis.txt").write_text("mine")
    refused(capsys, ["quickstart", "--out", str(old_run)], "holds thesis.txt, which no quickstart made")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    refused(
        capsys, ["quickstart", "--out", str(tmp_path / "mine")], "holds no earlier quickstart: choose another --out"
    )
    assert (old_run / "quickstart.png").exists() and os.listdir(tmp_path / "mine") == ["thesis.txt"]


def test_a_quickstart_that_is_still_training_is_left_alone(old_run, capsys):
    training_run = runs.create(old_run, {"iterations": 1}, resume=True)
    refused(capsys, ["quickstart", "--out", str(old_run)], "is training into")
    runs.release(training_run)
    assert (old_run / "quickstart.png").exists()
