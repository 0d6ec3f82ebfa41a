"""The README says what the results say, and its Python runs."""

import re
from pathlib import Path

import pytest

from experiments import tables

README = Path(__file__).parents[1] / "README.md"


def test_tables_are_those_of_the_results():
    text = README.read_text()
    assert tables.filled(text) == text, "run: python -m experiments.tables"


def test_every_method_of_the_table_is_named():
    from metaprior import METHODS

    text = README.read_text()
    missing = [method.name for method in METHODS if f"`{method.name}`" not in text]
    assert not missing


def test_the_long_python_example_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    (example,) = [block for block in blocks if "meta_learner" in block]
    names: dict = {}
    exec(example.replace("train(state, 1000)", "train(state, 3)"), names)
    assert int(names["state"].iteration) == 3


def test_the_three_lines_name_real_things():
    """Run for real in the tests of training; here: every name used exists."""
    import metaprior
    from metaprior.predict import Predictive

    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    (example,) = [block for block in blocks if "metaprior.load" in block]
    assert callable(metaprior.load)
    for name in re.findall(r"\.(moments|interval|quantile|log_density|functions)\b", example):
        assert hasattr(Predictive, name)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)h#][^)]*)\)", README.read_text()))
def test_links_lead_somewhere(link):
    assert (README.parent / link).exists()
