"""`metaprior reproduce`: what it writes is what the study measured, once, wherever it was cut off."""

import html
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_study

import experiments
import metaprior
from experiments import study, turns
from metaprior.cli import checkout, main, reproduce

FILES = Path(tiny_study.__file__)
TINY = tiny_study.STUDY


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The only experiment of a checkout in `tmp_path`; the list names the cells it has measured."""
    asked = []

    def measure(settings, cell):
        asked.append(cell)
        return tiny_study.measure(settings, cell)

    register(monkeypatch, TINY._replace(measure=measure))
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(study, "RESULTS", tmp_path / "results")
    return asked


def register(monkeypatch, *studies):
    monkeypatch.setattr(experiments, "NAMES", tuple(one.name for one in studies))
    monkeypatch.setattr(experiments, "find", {one.name: one for one in studies}.__getitem__)


def refused(capsys, argv, *words, code=2):
    assert main(["reproduce", *argv]) == code
    err = capsys.readouterr().err
    assert err.startswith("metaprior: ") and err.count("\n") == 1
    for word in words:
        assert word in err


# --- what is written and shown ----------------------------------------------------------------------------------------


def test_results_figure_table_and_remarks(tiny, tmp_path, capsys):
    assert main(["reproduce", "tiny"]) == 0
    assert tiny == TINY.cells(TINY.scales["full"])
    results = json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert [tuple(row) for row in results["rows"]] == [study.COLUMNS] * 8
    expected = study.run(TINY, TINY.scales["full"])
    for found, row in zip(results["rows"], expected["rows"], strict=True):
        assert found == row | {"seconds": found["seconds"]}
    assert results["settings"] == expected["settings"] and results["curves"] == expected["curves"]
    assert (tmp_path / "results" / "figures" / "tiny.png").read_bytes()[:4] == b"\x89PNG"
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "tiny begins easy maml"
    assert [line.rsplit(" ", 2)[0] for line in lines[1:4:2]] == ["tiny 1/4 easy maml", "tiny 2/4 easy gem-bml+"]
    assert "setting method MSE, paper MSE NLL seeds" in lines
    assert "hard maml 1.5 12.5 ± 2.8 – 3" in lines  # means 11 … 14 over seeds and tasks
    assert "- The first mean is 2.5 by `maml`." in lines
    assert f"results: {tmp_path / 'results' / 'tiny.json'}" in lines


def test_smoke_scale_stays_away_from_the_results_that_are_reported(tiny, tmp_path):
    assert main(["reproduce", "tiny", "--scale", "smoke"]) == 0
    assert not (tmp_path / "results" / "tiny.json").exists()
    results = study.load("tiny", tmp_path / "results" / "smoke")
    assert results["settings"] == {"scale": "smoke", **study.plain(vars(tiny_study.SMOKE))}
    assert (tmp_path / "results" / "smoke" / "figures" / "tiny.png").exists()


def test_a_real_study_from_the_command_to_the_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(study, "ROOT", tmp_path)  # what is kept goes there
    assert main(["reproduce", "estimator-variance", "--scale", "smoke", "--out", str(tmp_path / "out")]) == 0
    assert main(["report", "--results", str(tmp_path / "out")]) == 0
    results, real = study.load("estimator-variance", tmp_path / "out"), experiments.get("estimator-variance")
    assert [tuple(row) for row in results["rows"]] == [study.COLUMNS] * len(results["rows"])
    page = (tmp_path / "out" / "index.html").read_text()
    assert html.escape(real.title) in page and "Smoke scale" in page
    out = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(remark.split()) in out for remark in real.remarks(results))


def test_git_ignores_the_smoke_folder():
    root = Path(experiments.__file__).parents[1]
    assert "results/smoke/" in (root / ".gitignore").read_text().split()


def test_out_and_seeds(tiny, tmp_path):
    assert main(["reproduce", "tiny", "--seeds", "5", "--out", str(tmp_path / "here")]) == 0
    results = study.load("tiny", tmp_path / "here")
    assert results["settings"]["seeds"] == [0, 1, 2, 3, 4]
    assert {row["seeds"] for row in results["rows"]} == {5}
    assert results["rows"][0]["command"] == "metaprior reproduce tiny --scale full --seeds 5"
    assert len(results["curves"]["easy maml"]) == 5


def test_seeds_are_counted_from_the_first_of_the_study(tiny, monkeypatch, tmp_path):
    register(monkeypatch, TINY._replace(scales={"full": tiny_study.Settings(seeds=(100,))}))
    assert main(["reproduce", "tiny", "--seeds", "2"]) == 0
    assert study.load("tiny", tmp_path / "results")["settings"]["seeds"] == [100, 101]


def test_all_runs_every_experiment_in_order_and_a_name_twice_runs_once(tiny, monkeypatch, tmp_path, capsys):
    register(monkeypatch, TINY._replace(name="second"), TINY._replace(name="first"))
    assert main(["reproduce", "all"]) == 0
    out = capsys.readouterr().out
    assert out.index("second.json") < out.index("first.json")
    assert main(["reproduce", "first", "first", "--fresh"]) == 0
    assert capsys.readouterr().out.count("first.json") == 1


# --- cut off, and again -----------------------------------------------------------------------------------------------


def test_interrupted_runs_keep_their_cells_and_go_on(tiny, monkeypatch, tmp_path, capsys):
    done = []

    def stop_at_third(settings, cell):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(cell)
        return tiny_study.measure(settings, cell)

    with monkeypatch.context() as patch:
        register(patch, TINY._replace(measure=stop_at_third))
        refused(
            capsys, ["tiny"], "stopped; 2 of 4 cells of tiny are kept: the same command goes on from there\n", code=130
        )
    assert not (tmp_path / "results").exists()
    assert main(["reproduce", "tiny"]) == 0
    assert tiny == TINY.cells(TINY.scales["full"])[2:]
    assert "note: 2 of 4 cells of tiny are kept from before; --fresh measures them anew" in capsys.readouterr().err
    found = study.load("tiny", tmp_path / "results")
    assert found["curves"] == study.run(TINY, TINY.scales["full"])["curves"]


def test_what_is_not_begun_in_time_is_left_for_the_next_run(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv(reproduce.AT_ONCE, raising=False)
    assert main(["reproduce", "tiny", "--minutes", "0", "--at-once", "2"]) == 0
    assert "note: no cell of tiny was begun within 0 minutes: the same command goes on" in capsys.readouterr().err
    assert tiny == [] and not (tmp_path / "results").exists()
    assert reproduce.AT_ONCE == turns.VARIABLE and os.environ[turns.VARIABLE] == "2"
    assert main(["reproduce", "tiny", "--minutes", "10"]) == 0
    assert len(tiny) == 4 and "missing" not in study.load("tiny", tmp_path / "results")


def test_fresh_measures_anew_and_leaves_other_settings_alone(tiny):
    main(["reproduce", "tiny"])
    main(["reproduce", "tiny", "--scale", "smoke"])
    assert len(tiny) == 8
    main(["reproduce", "tiny", "--scale", "smoke", "--fresh"])
    assert len(tiny) == 12
    main(["reproduce", "tiny"])
    assert len(tiny) == 12


def test_fresh_with_a_setting_measures_that_alone_anew(tiny):
    main(["reproduce", "tiny"])
    main(["reproduce", "tiny", "--fresh", "--setting", "hard"])
    assert tiny[4:] == [("hard", "maml"), ("hard", "gem-bml+")]
    main(["reproduce", "tiny"])
    assert len(tiny) == 6, "what is easy is still kept"


def test_a_cell_that_fails_says_so_and_the_others_are_kept(tiny, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        register(patch, TINY._replace(scales={"full": tiny_study.Settings(fail="gem-bml+")}))
        refused(capsys, ["tiny"], "gem-bml+ failed in easy")
        heard = []
        with pytest.raises(ValueError):
            study.run(
                experiments.get("tiny"),
                tiny_study.Settings(fail="gem-bml+"),
                keep=study.ROOT / ".cache" / "reproduce",
                report=lambda *news: heard.append(news),
            )
        assert heard == [(1, 4, "")]


# --- asked wrongly ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["tinny"], ["unknown experiment 'tinny': did you mean tiny? choose from tiny, all"]),
        (["tiny", "larg"], ["unknown experiment 'larg'"]),
        (["tiny", "--seeds", "0"], ["--seeds must be at least 1, got 0"]),
        (["tiny", "--jobs", "-1"], ["--jobs must be at least 1, got -1"]),
        (["tiny", "--at-once", "0"], ["--at-once must be at least 1, got 0"]),
        (["tiny", "--minutes", "-0.5"], ["--minutes must be at least 0, got -0.5"]),
    ],
)
def test_refuses(tiny, capsys, argv, words):
    refused(capsys, argv, *words)
    assert tiny == []


def test_without_a_name_and_in_the_help_experiments_are_listed_with_their_titles(tiny, capsys):
    for argv in ([], ["--help"]):
        assert main(["reproduce", *argv]) == 0
        assert "\n  tiny  A tiny study\n" in f"\n{capsys.readouterr().out}"
    assert tiny == []


def test_an_experiment_that_lacks_something_is_named_and_hides_no_other(tiny, monkeypatch, capsys):
    def find(name):
        if name == "rich":
            raise ModuleNotFoundError("No module named 'gymnasium'")
        return TINY

    monkeypatch.setattr(experiments, "NAMES", ("rich", "tiny"))
    monkeypatch.setattr(experiments, "find", find)
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert "  tiny  A tiny study\n" in out and "No module named 'gymnasium'" in out
    refused(capsys, ["tiny", "rich"], "rich cannot be loaded here: No module named 'gymnasium'")
    assert tiny == []  # known before hours go into the first


@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_without_the_source_one_line_says_where_experiments_are(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metaprior, "__file__", str(tmp_path / "site-packages" / "metaprior" / "__init__.py"))
    assert main([command]) == 2
    err = capsys.readouterr().err
    assert err.startswith("metaprior: experiments come with the source") and err.count("\n") == 1
    assert main(["reproduce", "--help"]) == 0
    assert "experiments come with the source" in " ".join(capsys.readouterr().out.split())


# --- other checkouts, other processes ---------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """A checkout whose only experiment is the tiny one."""
    folder = tmp_path / "checkout"
    (folder / "src" / "metaprior").mkdir(parents=True)
    (folder / "experiments").mkdir()
    source = Path(experiments.__file__).parent
    text = (source / "__init__.py").read_text()
    (folder / "experiments" / "__init__.py").write_text(f'{text}\n\nNAMES = ("tiny-study",)\n')
    shutil.copytree(source / "report", folder / "experiments" / "report")
    for name in ("study.py", "side_by_side.py"):
        shutil.copy(source / name, folder / "experiments")
    (folder / "experiments" / "tiny_study.py").write_text(FILES.read_text().replace('name="tiny"', 'name="tiny-study"'))
    return folder


def test_the_checkout_one_stands_in_comes_before_the_installed_one(elsewhere, monkeypatch, tmp_path):
    installed = Path(metaprior.__file__).parents[2]
    monkeypatch.chdir(elsewhere / "experiments")
    assert checkout.find() == elsewhere
    monkeypatch.chdir(tmp_path)
    assert checkout.find() == installed
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "study.py").touch()
    assert checkout.find() == installed  # somebody else's experiments


def by_two_processes(folder):
    """The tiny study there, from a shell."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "metaprior", "reproduce", "tiny-study", "--jobs", "2"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_cell_that_fails_beside_others_does_not_take_them_along(elsewhere):
    """The first to start fails; those that are not even begun then are measured, and kept."""
    file = elsewhere / "experiments" / "tiny_study.py"
    file.write_text(file.read_text().replace('"full": Settings()', '"full": Settings(fail="maml")'))
    done = by_two_processes(elsewhere)
    assert done.returncode != 0 and "2 of 4 cells failed (" in done.stderr and "first: maml failed in" in done.stderr
    kept = [path.name for path in (elsewhere / ".cache" / "reproduce" / "tiny-study").iterdir()]
    assert len(kept) == 2 and all("gem-bml+" in name for name in kept)
    assert not (elsewhere / "results").exists()


def test_two_processes_measure_what_one_does(elsewhere):
    done = by_two_processes(elsewhere)
    assert done.returncode == 0, done.stderr
    assert f"note: the experiments of {elsewhere} run with the metaprior of " in done.stderr
    results = study.load("tiny-study", elsewhere / "results")
    expected = study.run(TINY, TINY.scales["full"])
    values = lambda of: [[row[name] for name in ("setting", "method", "metric", "mean", "ci95")] for row in of["rows"]]
    assert values(results) == values(expected)  # in the order of the cells, whichever ended first
    assert results["curves"] == expected["curves"]
    assert len(list((elsewhere / ".cache" / "reproduce" / "tiny-study").iterdir())) == 4


def test_kept_writes_down_what_there_is_and_names_what_is_missing(tiny, monkeypatch, tmp_path, capsys):
    refused(capsys, ["tiny", "--kept"], "no cell of tiny is kept: leave --kept out, and it is measured")
    assert main(["reproduce", "tiny", "--setting", "hard"]) == 0
    whole = json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert whole["missing"] == ["easy/maml", "easy/gem-bml+"]
    measured = list(tiny)
    assert main(["reproduce", "tiny", "--kept"]) == 0
    assert tiny == measured  # nothing anew
    assert json.loads((tmp_path / "results" / "tiny.json").read_text()) == whole
    assert "Not measured yet, 2 cells: easy/maml, easy/gem-bml+." in capsys.readouterr().out
    assert main(["reproduce", "tiny"]) == 0
    assert "missing" not in json.loads((tmp_path / "results" / "tiny.json").read_text())
    capsys.readouterr()
    refused(capsys, ["tiny", "--kept", "--fresh"], "--fresh throws away what --kept would write down")


def test_cells_are_chosen_by_patterns(tiny, tmp_path, capsys):
    """What fits one of them is measured, beside what was there; a pattern that fits nothing is a mistake."""
    missing = lambda: json.loads((tmp_path / "results" / "tiny.json").read_text()).get("missing")
    assert main(["reproduce", "tiny", "--cells", "*/maml"]) == 0
    assert missing() == ["easy/gem-bml+", "hard/gem-bml+"] and len(tiny) == 2
    assert main(["reproduce", "tiny", "--setting", "hard", "--cells", "*/gem*", "easy/maml"]) == 0
    assert missing() == ["easy/gem-bml+"] and len(tiny) == 3
    capsys.readouterr()
    refused(capsys, ["tiny", "--cells", "*/mmal"], "no cell of tiny fits '*/mmal'; there are easy/maml, easy/gem-bml+")


def test_complete_goes_on_from_the_file_alone(tiny, tmp_path, capsys):
    """Where nothing is kept any more: the file's cells come back as they were, the others are measured."""
    where = ["--out", str(tmp_path / "results")]
    refused(capsys, ["tiny", "--complete", *where], "there are no results of tiny")
    first = tiny_study.STUDY.cells(tiny_study.STUDY.scales["full"])[0][0]
    assert main(["reproduce", "tiny", "--setting", first, *where]) == 0
    part = json.loads((tmp_path / "results" / "tiny.json").read_text())
    shutil.rmtree(tmp_path / ".cache")
    part["rows"][0]["commit"] = "of another machine"
    (tmp_path / "results" / "tiny.json").write_text(study.text(part))
    assert main(["reproduce", "tiny", "--complete", *where]) == 0
    whole = json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert whole["rows"][0]["commit"] == "of another machine" and len(whole["rows"]) == 2 * len(part["rows"])
    capsys.readouterr()
    refused(capsys, ["tiny", "--complete", *where], "miss nothing: --fresh measures them anew")
    refused(capsys, ["tiny", "--complete", "--fresh"], "leave one of them out")
    del whole["cells"]
    (tmp_path / "results" / "tiny.json").write_text(study.text(whole))
    refused(capsys, ["tiny", "--complete", *where], "do not say whose rows are whose")
