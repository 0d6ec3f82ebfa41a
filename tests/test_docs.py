"""The documentation: its code runs, its links lead somewhere, its numbers are those of the results, no public name is missing."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import metaprior
from experiments import tables
from metaprior import inference
from metaprior.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
MADE = {"results.md": "results/RESULTS.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}

pytestmark = pytest.mark.usefixtures("quick_compile_here", "few_validation_tasks")


def code(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.S)


# --- names ------------------------------------------------------------------------------------------------------------


def documented():
    """What the reference names, as objects."""
    found = {}
    for path in re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), flags=re.M):
        module, _, name = path.rpartition(".")
        found[path] = getattr(importlib.import_module(module), name)
    return found


def test_every_public_name_is_in_the_reference():
    named = [id(value) for value in documented().values()]
    missing = [
        name for name in metaprior.__all__ if name != "__version__" and id(getattr(metaprior, name)) not in named
    ]
    assert not missing, f"add to docs/api.md: {missing}"


def test_everything_in_the_reference_says_what_it_is():
    silent = [path for path, value in documented().items() if not isinstance(value, tuple) and not value.__doc__]
    assert not silent


def test_methods_of_public_classes_say_what_they_do():
    silent = [
        f"{path}.{name}"
        for path, value in documented().items()
        if isinstance(value, type) and path.startswith("metaprior.")
        for name, member in vars(value).items()
        if callable(member)
        and not name.startswith("_")
        and not member.__doc__
        and name not in getattr(value, "_fields", ())
    ]
    assert not silent


# --- links and pages --------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert sorted(listed) == sorted([*(page.name for page in PAGES), *MADE])


def test_links_and_pictures_lead_somewhere():
    broken = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^()\s#]+)(?:#[^()\s]*)?\)", text):
            place = ROOT / MADE[target] if target in MADE else page.parent / target
            if "://" not in target and not place.exists():
                broken.append(f"{page.name}: {target}")
    assert not broken


@pytest.mark.parametrize("page", [page for page in tables.PAGES if page.startswith("docs/")])
def test_tables_are_those_of_the_results(page):
    text = (ROOT / page).read_text()
    assert tables.filled(text, page=page) == text, "run: python -m experiments.tables"


def test_a_block_that_is_missing_or_there_twice_is_named():
    text = (ROOT / "docs/page.md").read_text()
    for wrong in (text.replace("<!-- latency -->", ""), 2 * text):
        with pytest.raises(ValueError, match=r"docs/page\.md needs exactly one block <!-- (page|latency) -->"):
            tables.filled(wrong, page="docs/page.md")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="no mkdocs: pip install 'metaprior[docs]'")
    pytest.importorskip("mkdocstrings", reason="no mkdocstrings: pip install 'metaprior[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0 and "WARNING" not in found.stderr, found.stderr[-3000:]
    assert "metaprior.learned.load" in (tmp_path / "api.html").read_text()
    assert "<math" in (tmp_path / "api.html").read_text()


# --- the ten minutes --------------------------------------------------------------------------------------------------


def follow(page):
    """Commands and code of a page in the order of the text, in the folder one stands in; returns the names that are left."""
    blocks = re.findall(r"```(sh|python)\n(.*?)```", (DOCS / page).read_text(), flags=re.S)
    names: dict = {}
    for language, block in blocks:
        if language == "python":
            exec(block, names)
            continue
        for name, text in re.findall(r"cat > (\S+) <<'END'\n(.*?)END\n", block, flags=re.S):
            Path(name).write_text(text)
        for line in block.splitlines():
            if line.startswith("metaprior "):
                assert main(shlex.split(line, comments=True)[1:]) == 0, line
    return names


@pytest.mark.slow
def test_the_ten_minutes(tmp_path, monkeypatch):
    """All of it, as it stands there."""
    monkeypatch.chdir(tmp_path)
    names = follow("tutorial.md")
    assert (tmp_path / "adapted" / "predictions.csv").exists() and (tmp_path / "adapted" / "prediction.png").exists()
    assert names["mean"].shape == (3, 1) and bool((names["low"] < names["high"]).all())
    assert names["after"] < 0.5 * names["before"]  # points narrow the band where they are
    assert names["errors"][10] < 0.3 * names["errors"][0]  # tasks of one's own are learned


# --- a method of your own ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_method():
    """The example, and after it the table of inferences as it was."""
    before = dict(inference.INFERENCES)
    (text,) = code("own-method.md", "python")
    yield text
    inference.INFERENCES.clear()
    inference.INFERENCES.update(before)


def test_a_method_takes_less_than_forty_lines(own_method):
    assert len(own_method.strip().splitlines()) < 40
    names: dict = {}
    exec(own_method.replace("train(state, 3000)", "train(state, 3)"), names)
    assert int(names["state"].iteration) == 3
    assert names["learner"].cell.inference.name == "signs"


@pytest.mark.slow
def test_the_method_learns(own_method):
    names: dict = {}
    exec(own_method, names)
    loss = names["infos"].query_nll
    assert loss[-300:].mean() < 0.7 * loss[:100].mean()
