"""The search on validation classes: traced points train as plain ones, the best is the best, and recipes follow it."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from test_study_images import pictures

from experiments import few_shot, image_search, image_search_report, images, miniimagenet, study, trainings
from experiments.images import PROTOCOLS
from metaprior import data, recipes
from metaprior.data import ImageSet
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED
from metaprior.settings import Settings, method_of

FULL, SMOKE, STUDY = image_search.STUDY.scales["full"], image_search.SMOKE, image_search.STUDY


@pytest.fixture
def no_test_classes(monkeypatch, tmp_path, quick_compile):
    """In the place of Omniglot, with a test split that cannot fill a task: who looks at it fails."""
    found = ImageSet("omniglot", pictures(12, 0), pictures(7, 1), pictures(1, 2))
    monkeypatch.setattr(data, "load", lambda name, folder=None: found)
    monkeypatch.setattr(trainings, "STATES", tmp_path / "states")


def tiny(**changes):
    """Three classes, two filters."""
    small = {
        "tasks": (("omniglot", "3w1s"),),
        "around": (("filters", 2),),
        "iterations": 2,
        "validation": 2,
        "judged": 4,
    }
    return replace(SMOKE, **{**small, **changes})


@pytest.mark.slow
@pytest.mark.usefixtures("no_test_classes")
def test_it_runs_from_cells_to_figure_without_test_classes():
    settings = tiny(methods=("gem-bml+last-layer",), factors=(1.0, 3.0))
    results = json.loads(json.dumps(study.run(STUDY, settings, scale="smoke")))
    assert len(results["rows"]) == 2 * 3 * 2 and all(tuple(row) == study.COLUMNS for row in results["rows"])
    assert results["rows"][0]["setting"] == "omniglot 3w1s: noise std 0.1, meta rate 0.001"
    assert {row["metric"] for row in results["rows"]} == {"validation accuracy", "validation NLL"}
    assert isinstance(STUDY.figure(results), Figure)
    assert "6 settings" in STUDY.remarks(results)[0]
    shown = STUDY.shown(results)
    best = max(row["mean"] for row in results["rows"] if row["metric"] == "validation accuracy")
    assert [row["metric"] for row in shown] == ["validation accuracy", "validation NLL"]
    assert shown[0]["mean"] == pytest.approx(best)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gem-bml+", "gem-bml+last-layer", "fomaml"])
@pytest.mark.usefixtures("no_test_classes")
def test_a_traced_point_trains_as_a_plain_one(method):
    """Between others a point scores what it scores alone, even beside one that runs away; that one is out."""
    cell, runs_away = ("omniglot", "3w1s", method), method == "fomaml"
    factors = (1.0, 3.0, 1e300) if runs_away else (1.0, 3.0)
    settings = tiny(methods=(method,), factors=factors, meta_rates=(0.02,), seeds=(3,), iterations=3)
    tried = image_search.measure(settings, cell)["curves"]["/".join(cell)]["tried"]
    assert len(tried) == len(factors)
    point = image_search.grid(settings, cell)[1].tolist()
    trained = trainings.train(image_search.put(settings, cell, point), settings.seeds)
    asked = image_search.put(settings, cell, point, PROTOCOLS["paper"])
    alone = images.judge(asked, trained.states, steps=10, num_tasks=4, validation=2, split="validation")
    assert tried[1]["accuracy"] == pytest.approx(100 * alone.accuracy.mean(), abs=1e-9)
    assert tried[1]["nll"] == pytest.approx(alone.nll.mean(), rel=1e-6)
    assert tried[1]["nll"] != pytest.approx(tried[0]["nll"], rel=1e-4)
    if runs_away:
        assert tried[2]["accuracy"] is None and tried[2]["nll"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_test_classes")
def test_a_sweep_that_was_cut_off_goes_on_to_the_same_end():
    settings, cell = tiny(factors=(1.0,)), ("omniglot", "3w1s", "gem-bml+last-layer")
    sweep, seeds = image_search.sweep(settings, cell)
    whole = trainings.train(sweep, seeds, chunk=1)
    folder = trainings.state_folder(sweep, seeds)
    saved = sorted(folder.glob("*.safetensors"))
    assert len(saved) >= 1
    again = trainings.train(sweep, seeds, chunk=1)
    np.testing.assert_array_equal(whole.query_nll, again.query_nll)
    assert whole.seconds == again.seconds  # nothing was trained again
    whole, again = (jax.tree.leaves(trained.states.prior) for trained in (whole, again))
    for a, b in zip(whole, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_point_that_leaves_the_finite_numbers_is_out():
    """In training with one of two seeds, or in one task of testing; an accuracy at chance does not save it."""
    points = np.array([[0.1, 1e-3], [0.2, 1e-3], [0.3, 1e-3]])
    accuracy, nll = np.full((3, 2, 4), 0.5), np.full((3, 2, 4), 1.5)
    nll[2, 1, 3] = np.nan
    finite = [True, True, True, False, True, True]
    tried, rows = image_search.judged(("omniglot", "5w1s", "maml"), points, finite, accuracy, nll)
    assert [one["accuracy"] for one in tried] == [50.0, None, None]
    assert [one["nll"] for one in tried] == [1.5, None, None]
    assert [row["mean"] for row in rows] == [50.0, 1.5, None, None, None, None]
    assert rows[2]["setting"] == "omniglot 5w1s: rate 0.2, meta rate 0.001"


def made_up(*scores, method="maml", meta_batch=16, setting="5w1s"):
    """A cell with rates 0.1, 0.2, … and these pairs of accuracy and NLL."""
    tried = [
        {"changes": {"rate": round(0.1 * (i + 1), 1), "meta_rate": 1e-3}, "accuracy": accuracy, "nll": nll}
        for i, (accuracy, nll) in enumerate(scores)
    ]
    return {f"omniglot/{setting}/{method}": {"tried": tried, "fixed": {"meta_batch": meta_batch}}}


def test_the_best_point_has_the_highest_accuracy_and_then_the_least_nll(monkeypatch):
    curves = made_up((90.0, 0.1), (95.0, 0.5), (95.0 - 1e-9, 0.4), (None, None))
    curves |= made_up((99.0, 0.1), method="fomaml") | made_up((None, None), method="reptile")
    monkeypatch.setattr(image_search, "_results", lambda: {"curves": curves})
    assert image_search.best("omniglot", "5w1s", "maml") == {"rate": 0.3, "meta_rate": 1e-3}  # rounding breaks no tie
    for where in (("omniglot", "5w1s", "reptile"), ("omniglot", "20w1s", "maml"), ("miniimagenet", "5w1s", "maml")):
        with pytest.raises(ValueError, match=f"no result for {where[2]} on {where[1]} of {where[0]}: run metaprior"):
            image_search.best(*where)


def test_remarks_and_figure_say_what_is_lost_and_what_lies_at_the_edge():
    curves = made_up((90.0, 0.1), (95.0, 0.5), (None, None)) | made_up((99.0, 0.1), (98.0, 0.1), method="fomaml")
    curves |= made_up((70.0, 1.0), (75.0, 1.0), (71.0, 1.0), method="bmaml", meta_batch=8, setting="20w1s")
    curves |= made_up((70.0, 1.0), method="maml", setting="20w1s") | made_up(
        (70.0, 1.0), method="imaml", setting="20w1s"
    )
    settings = {"factors": [0.3, 1, 3], "meta_rates": [1e-3], "seeds": [0], "iterations": 2000}
    results = {"settings": settings, "rows": [], "curves": curves}
    said = STUDY.remarks(results)
    assert "1 of 10 settings left the finite numbers" in said[0] and "2,000 iterations" in said[0]
    assert "omniglot 5w1s 16; omniglot 20w1s 16 (bmaml 8)" in said[1]
    assert any(
        "Best on omniglot 5w1s: maml rate 0.2, meta rate 0.001 (95.00 %); fomaml rate 0.1" in one for one in said
    )
    assert said[-2].partition(": ")[2] == (
        "at the smallest omniglot 5w1s fomaml; at the only one tried omniglot 20w1s maml, omniglot 20w1s imaml."
    )
    drawn = STUDY.figure(results)
    drawn.canvas.draw()
    assert [axes.get_title() for axes in drawn.axes] == ["omniglot 5w1s", "omniglot 20w1s"]
    assert [text.get_text() for axes in drawn.axes for text in axes.texts] == ["+ 1"]


@pytest.mark.parametrize(
    ("best", "inner", "meta"),
    [
        ((0.1, 3e-3), "at the smallest omniglot 5w1s maml", "none"),
        ((0.2, 1e-2), "none", "at the largest omniglot 5w1s maml"),
        ((0.3, 1e-3), "at the largest omniglot 5w1s maml", "at the smallest omniglot 5w1s maml"),
        ((0.2, 3e-3), "none", "none"),
    ],
)
@pytest.mark.parametrize("noise", [False, True], ids=["rate", "noise"])
def test_edges_are_told_of_both_numbers_of_a_point(best, inner, meta, noise):
    tried = [
        {
            "changes": {**({"options": {"noise_std": value}} if noise else {"rate": value}), "meta_rate": meta_rate},
            "accuracy": 90.0 + 5.0 * ((value, meta_rate) == best),
            "nll": 1.0,
        }
        for value in (0.1, 0.2, 0.3)
        for meta_rate in (1e-3, 3e-3, 1e-2)
    ]
    settings = {"factors": [0.5, 1, 1.5], "meta_rates": [1e-3, 3e-3, 1e-2], "seeds": [0], "iterations": 600}
    curves = {"omniglot/5w1s/maml": {"tried": tried, "fixed": {"meta_batch": 16}}}
    said = STUDY.remarks({"settings": settings, "rows": [], "curves": curves})[-2:]
    assert said == [
        f"Winners at the edge of their inner rates or noises, beyond which a better one may lie: {inner}.",
        f"Winners at the edge of their meta-rates, beyond which a better one may lie: {meta}.",
    ]


def test_every_method_gets_the_same_budget_around_a_centre_of_its_own():
    for cell in image_search.cells(FULL):
        if cell[2] in image_search.DEEP_METHODS:
            continue
        points = image_search.grid(FULL, cell)
        assert points.shape == (9, 2) and len({tuple(point) for point in points.tolist()}) == 9
        middle = np.sort(np.unique(points[:, 0]))
        assert middle[1] == image_search.CENTRE[cell[0]][cell[2]]
        np.testing.assert_allclose(middle / middle[1], [0.3, 1.0, 3.0], rtol=0.01)
        made = [image_search.put(FULL, cell, point) for point in points[[0, -1]]]
        assert {(one.settings.iterations, one.learner.method.meta_batch) for one in made} == {
            (FULL.iterations, recipes.recipe(cell[0], cell[2])["meta_batch"])
        }
        assert [one.learner.method.meta_rate for one in made] == [1e-3, 1e-2]


def test_deep_networks_are_searched_on_photographs_at_all_meta_rates():
    cells = [cell for cell in image_search.cells(FULL) if cell[2] in image_search.DEEP_METHODS]
    assert cells == [
        ("miniimagenet", "5w1s", "gem-bml+last-layer, resnet12"),
        ("miniimagenet", "5w1s", "maml, resnet12"),
    ]
    for cell in cells:
        points = image_search.grid(FULL, cell)
        middle = image_search.CENTRE["miniimagenet"][image_search.DEEP_METHODS[cell[2]]]
        assert points.tolist() == [[middle, rate] for rate in FULL.meta_rates]
        made = image_search.put(FULL, cell, points[2])
        assert made.settings.network == "resnet12" and made.settings.iterations == image_search.DEEP_ITERATIONS
        assert made.learner.method.meta_rate == 1e-2


@pytest.mark.parametrize("method", ["gem-bml+last-layer", "maml", "gem-bml+"])
def test_a_deep_network_takes_no_larger_meta_rate_than_the_search_found_for_it(method):
    row = lambda kind: few_shot.put(miniimagenet.FULL, ("5w1s", kind, method)).learner.method
    usual = recipes.recipe("miniimagenet", method)["meta_rate"]
    assert row("best").meta_rate == usual and row("resnet12").meta_rate == min(usual, recipes.DEEPER["resnet12"])
    assert row("resnet12") == row("best")._replace(meta_rate=row("resnet12").meta_rate)
    asked = Settings(tasks="miniimagenet", method=method, network="resnet12")
    assert method_of(asked).meta_rate == row("resnet12").meta_rate


def test_a_search_with_another_budget_says_so():
    curves = made_up((90.0, 0.1), (95.0, 0.5))
    curves |= {
        "miniimagenet/5w1s/maml, resnet12": {
            **made_up((30.0, 1.0), (31.0, 1.0))["omniglot/5w1s/maml"],
            "iterations": 100,
        }
    }
    settings = {"factors": [1], "meta_rates": [1e-3], "seeds": [0], "iterations": 2000}
    said = STUDY.remarks({"settings": settings, "rows": [], "curves": curves})
    assert said[0].startswith("The grid of every method has 2 settings on each task set")
    assert said[1].endswith("alone: miniimagenet 5w1s maml, resnet12 2 settings of 100 iterations.")


def test_a_search_does_not_move_when_its_result_is_taken(monkeypatch):
    """Recipes follow the winners: their rates change nothing of the search, their structure does."""
    for method, taken in (("maml", {"rate": 7.0}), ("gem-bml+last-layer", {"options": {"noise_std": 7.0}})):
        cell = ("omniglot", "5w1s", method)
        before = image_search.rests_on(FULL, cell)
        row = recipes.RECIPES["omniglot"][method]
        monkeypatch.setitem(recipes.RECIPES["omniglot"], method, {**row, **taken, "meta_rate": 7.0})
        assert image_search.rests_on(FULL, cell) == before
        monkeypatch.setitem(recipes.RECIPES["omniglot"], method, {**row, "meta_batch": 7})
        assert image_search.rests_on(FULL, cell) != before


@pytest.mark.usefixtures("no_test_classes")
def test_fresh_forgets_the_trainings_of_the_study_alone(tmp_path):
    mine = trainings.state_folder(*image_search.sweep(SMOKE, image_search.cells(SMOKE)[0]))
    other = trainings.state_folder(*image_search.sweep(replace(SMOKE, factors=(2.0,)), image_search.cells(SMOKE)[0]))
    for folder in (mine, other):
        folder.mkdir(parents=True)
    study.forget(STUDY, SMOKE, tmp_path)
    assert not mine.exists() and other.exists()


def test_settings_are_compared_on_tasks_of_their_own():
    """Not those that temperatures are fitted on, nor those that are reported."""
    assert len({images.JUDGED_SEED["validation"], images.JUDGED_SEED["test"], VALIDATION_SEED}) == 3
    assert images.JUDGED_SEED["test"] == TEST_SEED


def astray(results):
    """The cells of a task set's first setting whose winner is not the recipe."""
    first = dict(reversed(results["settings"]["tasks"]))
    won = image_search_report.winners(results)

    def differs(tasks, name, fields):
        method = image_search.DEEP_METHODS.get(name)
        taken = recipes.recipe(tasks, name) if method is None else recipes.recipe(tasks, method, "resnet12")
        return {field: taken.get(field) for field in fields} != fields

    return [
        cell for cell, one in won.items() if cell[1] == first[cell[0]] and differs(cell[0], cell[2], one["changes"])
    ]


def test_recipes_that_are_not_the_winners_are_noticed(monkeypatch):
    """Of the first setting of a task set; others may have other winners."""
    monkeypatch.setitem(recipes.RECIPES["omniglot"], "maml", {"rate": 0.1, "meta_rate": 1e-3, "steps": (5, 0)})
    monkeypatch.setitem(recipes.RECIPES["omniglot"], "fomaml", {"rate": 0.1, "meta_rate": 2e-3})
    curves = made_up((99.0, 0.1), (98.0, 0.1)) | made_up((98.0, 0.1), (99.0, 0.1), setting="20w1s")
    curves |= made_up((99.0, 0.1), method="fomaml")
    tasks = [["omniglot", "5w1s"], ["omniglot", "20w1s"]]
    assert astray({"settings": {"tasks": tasks}, "curves": curves}) == [("omniglot", "5w1s", "fomaml")]
    assert len(astray({"settings": {"tasks": tasks[::-1]}, "curves": curves})) == 1  # 20w1s of maml


def test_recipes_are_the_winners():
    if not (study.RESULTS / "image-search.json").exists():
        pytest.skip("there are no results of the search yet: metaprior reproduce image-search")
    assert astray(study.load("image-search")) == []
