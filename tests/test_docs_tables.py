"""The tutorial on tables is a program, the README's example too; and the studies behind both pages say what the pages say."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from experiments import estimator_defaults, estimator_defaults_report, fertility, mixed_model, study
from metaprior import MetaRegressor
from metaprior.estimators.generic import generic_prior

ROOT = Path(__file__).parents[1]


def blocks(page, word=""):
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    return [block for block in found if word in block]


@pytest.mark.slow
def test_the_tutorial_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("docs/tables.md"):
        exec(block, names)
    inside = (names["low"] <= names["one"]["births"]) & (names["one"]["births"] <= names["high"])
    assert inside.mean() > 0.7 and names["functions"].shape == (20, len(names["one"]))
    assert np.mean(names["inside"]) > 0.8
    assert len(names["scores"]) == 2 and (tmp_path / "births.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_example_of_the_readme_runs():
    (example,) = blocks("README.md", "MetaRegressor")
    names: dict = {}
    exec(example, names)
    low, high = names["low"], names["high"]
    assert 3.3 < high[0] < 5.5 and 2 < low[0] < 5.1  # 1970: between 5.1 and 3.3, the years before and after
    assert low[1] < 2.0 < high[1] < 4  # 2010, where it was 2.0 in 1994


@pytest.mark.usefixtures("quick_compile")
def test_the_tutorial_runs_when_little_is_learned(tmp_path, monkeypatch):
    """The same text with a training of a few iterations and without cross-validation, to be quick."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("docs/tables.md"):
        if "cross_val_score" not in block:
            exec(
                block.replace(
                    "MetaRegressor(random_state=0)", "MetaRegressor(random_state=0, max_iter=10, hidden=(4,))"
                ),
                names,
            )
    assert np.isfinite(names["mean"]).all()


@pytest.mark.parametrize("name", ["fertility", "mixed-model"])
def test_pictures_of_the_pages_are_those_of_the_results(name):
    assert (ROOT / f"docs/images/{name}.png").read_bytes() == (ROOT / f"results/figures/{name}.png").read_bytes()


def test_the_learned_prior_wins_on_births_and_its_intervals_cover():
    """From the results: least RMSE and NLL of all, and 85 to 95 % inside 90 % intervals."""
    rows = study.load("fertility")["rows"]
    of = lambda metric: {row["method"]: row["mean"] for row in rows if row["metric"] == metric}
    for metric in ("RMSE", "NLL"):
        assert min(of(metric), key=lambda name: of(metric)[name]) == "metaprior"
    assert 0.85 <= of("coverage of 90 % intervals")["metaprior"] <= 0.95


def test_the_defaults_are_those_of_the_tables_on_which_they_were_settled():
    """Of least NLL on average over tables that nothing else is judged by, as the rule of the study says."""
    results = study.load("estimator-defaults")
    assert results["settings"]["scale"] == "full" and "fertility" not in results["settings"]["tables"]
    best = estimator_defaults_report.chosen(results, estimator_defaults_report.HELD_OUT)
    assert estimator_defaults.SHARES[best] == MetaRegressor().validation_fraction
    alone = estimator_defaults.ALONE[estimator_defaults_report.chosen(results, estimator_defaults_report.ALONE)]
    signature = inspect.signature(generic_prior).parameters
    assert alone == (signature["beforehand"].default, signature["spread"].default)


def test_countries_are_apart_and_known_years_are_few():
    settings = fertility.Settings()
    split = fertility.split_of(settings, 0)
    names = [{country.name for country in part} for part in split]
    assert not (names[0] & names[1] or names[0] & names[2] or names[1] & names[2])
    assert [len(part) for part in split[1:]] == [40, 60] and len(split.train) > 90
    assert {int(country.known.sum()) for country in split.test} == {3, 4, 5}
    again = fertility.split_of(settings, 0)
    assert all((a.known == b.known).all() for a, b in zip(split.test, again.test, strict=True))


@pytest.mark.parametrize("kind", mixed_model.TABLES)
def test_the_results_agree_with_statsmodels(kind):
    found = study.load("mixed-model")["curves"][kind]
    for name in ("exact head", "full"):
        assert mixed_model.off(found[name], found["statsmodels"]).max() < 0.05
    assert np.allclose([six[4] for six in found["mean-field"]], 0)


@pytest.mark.usefixtures("quick_compile")
def test_a_learned_prior_is_a_mixed_model():
    """Means, variances, correlation and noise by maximum likelihood, to 5 % of statsmodels' own, from 60 ragged groups."""
    import jax

    settings = mixed_model.Settings(groups=60, iterations=400)
    table = mixed_model.draw(settings, "shifted", 3)
    reference = mixed_model.by_statsmodels(table)
    with jax.enable_x64(True):
        found = mixed_model.learned(settings, table, "exact head", float(reference[-1]))
    assert mixed_model.off(found, reference).max() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", mixed_model.TABLES)
def test_every_covariance_is_found_and_mean_field_has_none(kind):
    import jax

    settings = mixed_model.Settings(groups=150, iterations=1000)
    table = mixed_model.draw(settings, kind, 4)
    reference = mixed_model.by_statsmodels(table)
    with jax.enable_x64(True):
        found = {name: mixed_model.learned(settings, table, name, float(reference[-1])) for name in mixed_model.LEARNED}
    for name in ("exact head", "full"):
        assert mixed_model.off(found[name], reference).max() < 0.05
    np.testing.assert_allclose(found["mean-field"][:2], reference[:2], rtol=0.05 if kind != "few rows" else 0.15)
    assert found["mean-field"][4] == 0


def test_the_table_of_arguments_is_what_they_are():
    """Names and defaults of `MetaRegressor`, as the page lists them."""
    signature = inspect.signature(MetaRegressor)
    found = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", (ROOT / "docs/tables.md").read_text(), flags=re.M)
    assert [(name, ast.literal_eval(text)) for name, text in found] == [
        (name, parameter.default) for name, parameter in signature.parameters.items()
    ]
