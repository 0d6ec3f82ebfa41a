"""Out of memory in any command: one line that names its own flags, exit code 1; what else XLA says keeps its traceback."""

import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_photos
import tiny_study

import experiments
from experiments import side_by_side, study
from metaprior import estimates, evaluation, policies, training
from metaprior.cli import COMMANDS, act, adapt, evaluate, exhausted, label, main, quickstart, reproduce
from metaprior.labelled import BATCH as TOGETHER
from metaprior.learned import Learned

pytestmark = pytest.mark.usefixtures("quick_compile_here", "few_validation_tasks")
FLAG = re.compile(r"--[a-z-]+")
BYTES = re.compile(r"metaprior: out of memory \([^()]*[0-9] [kMGT]?B[^()]*\): ")  # what was needed, in brackets
TINY = ["train", "sinusoid", "--hidden", "4", "--iterations", "2", "--chunk", "2", "--quiet"]


def full(*given, **options):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 bytes.")


def broken(*given, **options):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, trained once for all tests; they only read it."""
    path = tmp_path_factory.mktemp("exhausted") / "run"
    assert main([*TINY, "--out", str(path)]) == 0
    return str(path)


@pytest.fixture
def points(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("x,y\n1,2\n")
    return str(path)


def complaint(capsys, argv):
    """The one line that a command ends with."""
    capsys.readouterr()
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert BYTES.match(err) and err.count("\n") == 1
    assert "RESOURCE_EXHAUSTED" not in err
    return err


def flags_of(capsys, *words):
    capsys.readouterr()
    assert main([*words, "--help"]) == 0
    return set(FLAG.findall(capsys.readouterr().out))


# --- commands that say more than their flags --------------------------------------------------------------------------


def test_evaluate(folder, monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "evaluate", full)
    err = complaint(capsys, ["evaluate", folder, "--steps", "3", "--tasks-count", "70"])
    tasks = f"--tasks-count (70, of which up to {evaluation.TOGETHER} are judged at a time)"
    assert f": lower --queries, --shots, --steps (3) or {tasks}, or use a machine with more\n" in err
    total = estimates.size(estimates.of_evaluation(training.open_state(folder)[0], steps=3, num_tasks=70).total)
    assert f"(the program that judges tasks needs {total}, " in err
    asked = evaluate.Evaluate(Path(folder), views=True, queries=9, ways=20)
    of_images = evaluate.less(asked, images=True)
    assert of_images.startswith("leave out --views, lower --queries (9), --shots, --ways (20), --steps (10) or ")
    assert set(FLAG.findall(err + of_images)) <= flags_of(capsys, "evaluate")


def test_evaluate_of_a_run_that_cannot_even_be_opened(folder, monkeypatch, capsys):
    """There is nothing yet to compile: what XLA asked for is told."""
    monkeypatch.setattr(training, "open_trained", full)
    assert " (137 GB were asked for in one piece): lower --queries" in complaint(capsys, ["evaluate", folder])


def test_calibration_of_another_way_to_ask(folder, monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "calibrate_steps", full)
    err = complaint(capsys, ["evaluate", folder, "--queries", "7"])
    assert "(the program that judges tasks needs " in err and "lower --queries (7), " in err


def test_adapt(folder, points, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Learned, "adapt", full)
    err = complaint(capsys, ["adapt", folder, points, "--out", str(tmp_path / "out")])
    assert f"give fewer points in {points}, or fewer inputs with --at ({adapt.BATCH} are predicted at a time)" in err
    total = estimates.size(adapt.of_points(adapt.Adapt(Path(folder), Path(points), tmp_path)).total)
    assert f"(adapting and predicting at the least needs {total}, " in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags, words", [([], "give fewer pictures of each"), (["--transductive"], "leave out --tra")])
def test_adapt_to_pictures(folder, points, monkeypatch, capsys, flags, words):
    monkeypatch.setattr(adapt, "IMAGE_SETS", ["sinusoid"])  # so that the run is taken for one of images
    monkeypatch.setattr(label, "run", full)
    err = complaint(capsys, ["adapt", folder, points, "--out", "out", *flags])
    assert words in err and f"class in {points}" in err
    assert set(FLAG.findall(err)) <= flags_of(capsys, "adapt")


def test_bytes_of_pictures_are_those_of_the_ones_looked_at_together(tmp_path):
    """Each picture more to label takes its own bytes among the arguments; answered one by one, up to a batch of them."""
    run = tiny_photos.untrained(tmp_path / "run", method="gem-bml+last-layer")
    for name, count in {"shown/cat": 2, "shown/dog": 3, "few": 4, "batch": TOGETHER, "many": TOGETHER + 9}.items():
        (tmp_path / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / name / f"{number}.png").touch()  # they are counted, not read

    def arguments(new, **flags):
        asked = adapt.Adapt(run, tmp_path / "shown", tmp_path / "out", at=str(tmp_path / new), **flags)
        return adapt.of_pictures(asked).arguments

    picture = 28 * 28 * np.dtype(float).itemsize
    assert arguments("batch") - arguments("few") == (TOGETHER - 4) * picture
    assert arguments("many") == arguments("batch")
    assert arguments("many", transductive=True) - arguments("few", transductive=True) == (TOGETHER + 5) * picture


def test_agents(folder, monkeypatch, capsys):
    monkeypatch.setattr(policies, "is_policy", lambda run: True)
    monkeypatch.setattr(policies, "load_policy", full)
    err = complaint(capsys, ["evaluate", folder, "--rollouts", "8"])
    assert f"lower --tasks-count ({policies.TASKS}) or --rollouts (8), or" in err
    monkeypatch.setattr(act, "require_policy", lambda run: None)
    monkeypatch.setattr(act, "load_policy", full)
    err = complaint(capsys, ["adapt", folder, "--goal", "1", "--rollouts", "9", "--updates", "2"])
    assert "lower --rollouts (9) or --updates (2), or" in err


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """An experiment of four cells, the second of which needs too much."""

    def measure(settings, cell):
        return full() if cell == ("easy", "gem-bml+") else tiny_study.measure(settings, cell)

    one = tiny_study.STUDY._replace(measure=measure)
    monkeypatch.setattr(experiments, "NAMES", (one.name,))
    monkeypatch.setattr(experiments, "find", {one.name: one}.__getitem__)
    monkeypatch.setattr(study, "ROOT", tmp_path)


def test_reproduce(tiny, capsys):
    err = complaint(capsys, ["reproduce", "tiny", "--out", "nowhere"])
    assert "1 of 4 cells of tiny are kept: the same command goes on from there; choose others with --setting" in err
    assert set(FLAG.findall(err)) <= flags_of(capsys, "reproduce")
    assert "--scale" not in reproduce.less(reproduce.Reproduce(scale="smoke"))


def test_reproduce_in_several_processes(tiny, monkeypatch, capsys):
    def each(measure, _, settings, *given):
        yield ("easy", "maml"), measure(tiny_study.STUDY, settings, ("easy", "maml"))
        try:
            full()
        except jax.errors.JaxRuntimeError as error:
            raise ValueError(f"1 of 4 cells failed (easy gem-bml+); first: {error}") from error

    monkeypatch.setattr(side_by_side, "each", each)
    err = complaint(capsys, ["reproduce", "tiny", "--jobs", "2", "--out", "nowhere"])
    assert "1 of 4 cells of tiny are kept: the same command goes on from there; lower --jobs (2), or" in err


def test_calibration_after_training_can_be_done_later(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a run"
    with monkeypatch.context() as short:
        short.setattr(training, "calibrate_steps", full)
        err = complaint(capsys, [*TINY, "--out", str(path)])
    _, _, rest = err.partition("done and saved, and metaprior ")
    command, _, _ = rest.partition(" calibrates it")
    assert not list(path.glob("calibration*"))
    assert main([*shlex.split(command), "--quiet"]) == 0
    assert list(path.glob("calibration*"))


# --- all others -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", exhausted.KNOBS)
def test_flags_that_are_named_are_flags_of_the_command(words, capsys):
    named = set(FLAG.findall(exhausted.KNOBS[words]))
    assert named and named <= flags_of(capsys, *words.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_ends_in_a_traceback(name, monkeypatch, capsys):
    module = __import__(COMMANDS[name][0], fromlist=["run"])
    monkeypatch.setattr(module, "run", full)
    assert exhausted.of_command([name]) in complaint(capsys, [name])


def test_quickstart_names_no_flags_of_train(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "train", full)
    err = complaint(capsys, ["quickstart", "--out", str(tmp_path / "run")])
    assert exhausted.NO_KNOB in err and not FLAG.findall(err)


def test_a_gpu_is_not_the_only_memory(monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "run", full)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert complaint(capsys, ["quickstart"]).endswith(", or use that of the host: JAX_PLATFORMS=cpu\n")


def test_debug_shows_where_and_other_errors_keep_their_traceback(folder, monkeypatch):
    monkeypatch.setattr(evaluation, "evaluate", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        main(["evaluate", folder])
    monkeypatch.setattr(evaluation, "evaluate", full)
    with pytest.raises(OSError, match="out of memory") as caught:
        main(["evaluate", folder, "--debug"])
    assert "RESOURCE_EXHAUSTED" in str(caught.value.__cause__)
