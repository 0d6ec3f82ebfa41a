"""Flags that a method would not look at are refused in words, and so are words that are no tasks and flags cut short."""

import re

import pytest

from metaprior import cli
from metaprior.cli.arguments import parse
from metaprior.cli.demo import Demo
from metaprior.cli.train import Train
from metaprior.cli.unused import require_used
from metaprior.settings import Settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "maml", "num_particles": 5}, "--num-particles is for methods of particles .*bmaml.*maml has none"),
        ({"method": "maml", "num_samples": 3}, "--num-samples is for .*that of maml is a point"),
        ({"method": "gem-bml+last-layer", "num_samples": 3}, "that of gem-bml.last-layer is exact"),
        ({"tasks": "omniglot", "hidden": (8,)}, "--hidden is for curves, omniglot is seen by .*: leave it out"),
        ({"method": "maml", "query_steps": 5}, "--query-steps is for .*maml has none: leave it out"),
    ],
)
def test_flags_without_a_meaning_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        require_used(Settings(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "bmaml", "num_particles": 7},
        {"method": "pmaml", "num_particles": 7},
        {"method": "amortized-bml", "num_samples": 3},
        {"method": "gem-bml+", "query_steps": 3},
        {"method": "maml", "query_steps": 0},
    ],
)
def test_flags_with_a_meaning_are_not(changes):
    require_used(Settings(**changes))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train"], "say which tasks to learn from: metaprior train sinusoid"),
        (["train", "shops.csv"], "shops.csv is a table.*MetaRegressor.*docs/tables.md"),
        (["train", "sinusoid", "--iters", "5"], "no flag --iters: did you mean --iterations"),
        (["train", "sinusoid", "--method", "MAML", "--num-particles", "5"], "unknown method 'MAML': did you mean maml"),
        (["train", "sinusoid", "--method", "maml", "--num-particles", "5"], "--num-particles"),
    ],
)
def test_it_is_said_at_the_command_line(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == cli.BAD_INPUT
    assert re.search(words, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_whole_flags_and_values_that_begin_with_dashes_pass():
    asked = parse(Train, ["sinusoid", "--iterations=7", "--checkpoint_every", "9"], prog="train", help="")
    assert (asked.settings.iterations, asked.checkpoint_every) == (7, 9)
    assert parse(Demo, ["--no-browser"], prog="demo", help="").no_browser
