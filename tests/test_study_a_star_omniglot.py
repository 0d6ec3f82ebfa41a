"""The shape of adapted weights against closed forms, and A* on pictures made here from cells to figure."""

import json
from dataclasses import replace
from math import log

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_study_images import pictures

import experiments
from experiments import a_star_omniglot, displacements, few_shot, images, study, trainings
from experiments.a_star_omniglot import GEOMETRY, SMOKE, STUDY
from metaprior import data, figures
from metaprior.classes import ClassPredictive, class_scores
from metaprior.data import ImageSet

close = np.testing.assert_allclose
SETTINGS = replace(SMOKE, setting="3w1s", iterations=2, adapted=6, mixed=(1, 3, 6), points=2, steps=2, test_tasks=2)

# -- the shape of a cloud --------------------------------------------------------------------------


@given(directions=st.integers(1, 6), each=st.integers(1, 4), length=st.floats(0.1, 10), seed=st.integers(0, 99))
def test_equal_orthogonal_directions_are_counted(directions, each, length, seed):
    """K of them, m tasks along each: a participation ratio of k, and (km − 1)/(m − 1) where only different tasks count."""
    axes = np.linalg.qr(np.random.default_rng(seed).normal(size=(9, 9)))[0][:directions]
    away = length * np.repeat(axes, each, axis=0)
    gram = away @ away.T
    close(displacements.participation_ratio(gram), directions, rtol=1e-9)
    if each > 1:
        close(displacements.dimensions(gram), (directions * each - 1) / (each - 1), rtol=1e-9)


def test_the_number_of_dimensions_does_not_depend_on_that_of_tasks():
    """Gaussian displacements in 40 dimensions: their own ratio is that of few tasks, the estimate that of the Gaussian."""
    rng = np.random.default_rng(0)
    grams = [away @ away.T for away in rng.normal(size=(200, 30, 40))]
    close(np.mean([displacements.dimensions(gram) for gram in grams]), 40, rtol=0.02)
    assert np.mean([displacements.participation_ratio(gram) for gram in grams]) < 20


def test_the_share_in_common():
    """Displacements m + z with |m|² = 9 and E|z|² = 7 have 9/16 in common; equal ones have all, opposite ones none."""
    rng = np.random.default_rng(1)
    away = rng.normal(size=(4000, 7)) + 3 * np.eye(7)[0]
    close(displacements.in_common(away @ away.T), 9 / 16, atol=0.01)
    assert displacements.in_common(np.ones((5, 5))) == pytest.approx(1.0)
    assert displacements.in_common(np.array([[1.0, 0.0], [0.0, 1.0]])) == 0.0
    assert displacements.in_common(np.array([[1.0, -1.0], [-1.0, 1.0]])) == -1.0


@pytest.mark.parametrize("shape", [(5, 40), (9, 3)])
def test_coordinates_keep_every_distance(shape):
    """More weights than tasks or fewer: the Gram matrix gives the distances of the weights themselves."""
    away = jax.random.normal(jax.random.key(0), shape)
    seen, axes = displacements.along_axes(away)
    direct = np.linalg.norm(np.asarray(away)[:, None] - np.asarray(away)[None], axis=2)
    close(displacements.distances(np.asarray(seen @ seen.T)), direct, atol=1e-6)
    close(np.linalg.norm(seen, axis=1), np.linalg.norm(away, axis=1), rtol=1e-9)
    close(axes @ axes.T, np.eye(2), atol=1e-9)
    close(away @ axes.T, seen[:, :2], atol=1e-9)
    lengths = np.linalg.svd(away, compute_uv=False)
    close(np.linalg.norm(seen, axis=0)[: len(lengths)], lengths, rtol=1e-6)


# -- characters ------------------------------------------------------------------------------------


def test_halves_of_the_classes_share_none():
    members = np.arange(14).reshape(7, 2)
    one, other = a_star_omniglot.halves(members)
    assert not set(one.ravel()) & set(other.ravel())
    assert sorted([*one.ravel(), *other.ravel()]) == list(range(14))


def test_errors_are_those_of_the_judge_of_classes():
    logits, y = jax.random.normal(jax.random.key(0), (12, 3)), jnp.arange(12) % 3
    expected = class_scores(ClassPredictive(jax.nn.softmax(logits)), y)
    found = a_star_omniglot.judge(logits, y)
    close(found["NLL"], expected.nll, rtol=1e-9)
    close(found["error in %"], 100 * (1 - expected.accuracy), rtol=1e-9)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """As they come back from their file; float32, as for a user, and compiled quickly."""
    found = ImageSet("omniglot", pictures(12, 0), pictures(7, 1), pictures(8, 2))
    before = jax.config.read("jax_disable_most_optimizations")
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(False):
        patch.setattr(data, "load", lambda name, folder=None: found)
        patch.setattr(trainings, "STATES", tmp_path_factory.mktemp("states"))
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            measured = study.run(STUDY, SETTINGS, scale="smoke")
        finally:
            jax.config.update("jax_disable_most_optimizations", before)
    return json.loads(json.dumps(measured))


@pytest.mark.slow
def test_rows_are_whole_and_not_repeated(results):
    rows = results["rows"]
    assert all(tuple(row) == study.COLUMNS and row["mean"] is not None for row in rows)
    assert len({(row["setting"], row["method"], row["metric"]) for row in rows}) == len(rows)
    shape = {row["metric"]: row["mean"] for row in rows if row["setting"] == GEOMETRY}
    assert shape["participation ratio"] <= SETTINGS.adapted
    assert 0 < shape["share in the head"] < 1 and 0 < shape["share of two directions"] < 1
    close(shape["between / from Θ"], shape["distance between"] / shape["distance from Θ"], rtol=1e-6)


@pytest.mark.slow
def test_a_shared_head_knows_nothing_before_the_first_step(results):
    """All its columns are alike: every class is as likely as the others."""
    (row,) = [row for row in results["rows"] if (row["setting"], row["metric"]) == ("trained Θ", "NLL after 0")]
    assert row["mean"] == pytest.approx(log(3), rel=1e-5)


@pytest.mark.slow
def test_paths_lead_from_the_prior_to_the_adapted_weights(results):
    """By two ways: weights along the axes, and coordinates from the Gram matrix."""
    curve = results["curves"]["gem-bml+"]
    paths, ends = np.asarray(curve["paths"]), np.asarray(curve["θᵢ"])
    assert paths.shape == (SETTINGS.single, SETTINGS.steps + 1, 2)
    close(paths[:, 0], 0, atol=1e-4)
    close(paths[:, -1], ends[: SETTINGS.single], atol=2e-4)
    assert np.abs(ends).max() > 1e-3
    for point in curve["kinds"]["one θᵢ"]["map"]:
        assert np.abs(ends - np.asarray(point)).max(axis=1).min() < 2e-4
    spectrum = np.asarray(curve["spectrum"])
    assert (np.diff(spectrum) > -1e-4).all() and spectrum[-1] == pytest.approx(1, abs=1e-3)
    (low, _, middle, _, high), shape = curve["far"]["from Θ"], results["rows"]
    (mean,) = [row["mean"] for row in shape if row["metric"] == "distance / length of Θ"]
    assert low <= middle <= high and low <= mean <= high


@pytest.mark.slow
def test_results_alone_give_figure_remarks_and_table(results, tmp_path):
    """Of all four methods, of which the others are copies here; what ran away is said."""
    one = json.loads(json.dumps(results))
    for name in ("gem-bml", "reptile", "maml"):
        one["curves"][name] = one["curves"]["gem-bml+"]
        one["rows"] += [row | {"method": name} for row in results["rows"]]
    figures.save(STUDY.figure(one), tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    said = STUDY.remarks(one)
    assert all(text.endswith(".") and "nan" not in text for text in said)
    assert sum(text.startswith("reptile: the θᵢ lie") for text in said) == 1
    table = STUDY.shown(one)
    assert {row["setting"] for row in table} > {GEOMETRY, "trained Θ"} and all(row in one["rows"] for row in table)
    for row in one["rows"]:
        if row["method"] == "maml":
            row["mean"] = None
    assert any("maml: some adaptations ran away" in text for text in STUDY.remarks(one))


def test_what_is_kept_rests_on_the_recipe(monkeypatch, tmp_path):
    cell = ("gem-bml+",)
    before = STUDY.rests_on(SETTINGS, cell)
    monkeypatch.setitem(few_shot.VARIANTS, "gem-bml+", images.Variant("gem-bml+", {"rate": 0.123}))
    assert STUDY.rests_on(SETTINGS, cell) != before
    monkeypatch.setattr(trainings, "STATES", tmp_path)
    mine = trainings.state_folder(a_star_omniglot.put(SETTINGS, cell), SETTINGS.seeds)
    for folder in (mine, other := tmp_path / "another"):
        folder.mkdir()
    study.forget(STUDY, SETTINGS, tmp_path)
    assert not mine.exists() and other.exists()


def test_four_methods_at_full_scale():
    full = experiments.get("a-star-omniglot").scales["full"]
    assert full.methods == ("gem-bml", "gem-bml+", "reptile", "maml") and full.iterations == 1000
    assert full.mixed[-1] == full.adapted and set(full.methods) <= set(few_shot.VARIANTS)
