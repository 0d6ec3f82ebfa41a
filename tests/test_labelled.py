"""A prior trained on five classes meets two, three and twenty: what it says against the formulas, and what cannot matter."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_photos
from PIL import Image

import metaprior
from metaprior import checkpoints, families, labelled, runs, training
from metaprior.evaluation import for_classes
from metaprior.heads import with_classes
from metaprior.last_layer import HeadParams
from metaprior.settings import as_dict
from metaprior.tasks import IMAGE_SETS
from metaprior.tasks.images import class_targets, seen
from metaprior.training import INDUCTIVE_FILE, TEST_STEPS
from metaprior.types import Data


@pytest.fixture(autouse=True)
def no_data_set(monkeypatch):
    """Adaptation must not ask for the images of the training."""
    monkeypatch.delenv("METAPRIOR_DATA", raising=False)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Runs by their settings, each made once."""
    made = {}

    def loaded(**settings):
        name = str(settings)
        if name not in made:
            made[name] = metaprior.load(tiny_photos.untrained(tmp_path_factory.mktemp("run") / "run", **settings))
        return made[name]

    return loaded


def pictures(classes, each=5, seed=0):
    pixels = np.concatenate([tiny_photos.drawings(30 + kind, each, seed) for kind in range(classes)])
    return pixels, np.repeat(np.arange(classes), each)


NEW = pictures(3, each=4, seed=1)
as_seen = lambda pixels: seen(jnp.asarray(pixels), IMAGE_SETS["omniglot"].look)


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("classes", "transductive"),
    [
        pytest.param(3, False, marks=pytest.mark.slow),
        (2, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, False), (20, False), (20, True))),
    ],
)
def test_probabilities_are_the_softmax_of_the_adapted_network(load, classes, transductive):
    """Trained 5-way: the resized prior adapted by the learner, the network called by hand, and the temperature of that step."""
    prior, (x, y) = load(), pictures(classes)
    setup, state = prior.trained.setup, prior.trained.state
    found = prior.adapt(x, y).predict(NEW[0], transductive=transductive)
    resized = state._replace(prior=with_classes(setup.model, state.prior, classes))
    posteriors = setup.learner.adapt(jax.random.key(0), resized, Data(as_seen(x), jnp.asarray(y)), TEST_STEPS)
    mean = jax.tree.map(lambda leaf: leaf[-1], posteriors).mean
    network = setup.model.apply if transductive else lambda params, new: setup.model.inductive(params, as_seen(x), new)
    calibration = tiny_photos.calibration(0.7 if transductive else 0.9)
    expected = softmax(np.asarray(network(mean, as_seen(NEW[0]))) / np.exp(float(calibration.log_noise[TEST_STEPS])))
    assert found.classes == tuple(range(classes))
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-9)
    assert found.labels == tuple(expected.argmax(axis=1).tolist())


def test_pictures_that_are_easy_to_tell_apart_are_told_apart(load):
    found = load().adapt(*pictures(3)).predict(NEW[0])
    np.testing.assert_array_equal(found.labels, NEW[1])
    assert found.probabilities[np.arange(len(NEW[1])), NEW[1]].mean() > 0.7  # by chance a third


def test_the_exact_last_layer_regresses_on_centred_targets(load):
    """The head's mean by the normal equations of ridge regression, features and targets by hand."""
    prior, (x, y) = load(method="gem-bml+last-layer"), pictures(3)
    setup, dist = prior.trained.setup, prior.trained.state.prior.dist
    labeller = prior.adapt(x, y)
    unit = HeadParams(dist.features, jnp.eye(dist.mean.shape[0]))
    features = np.asarray(setup.model.apply(unit, as_seen(x)))
    targets = np.eye(3)[y] - 1 / 3
    np.testing.assert_allclose(class_targets(jnp.asarray(y), 3), targets, rtol=1e-12)
    start = np.asarray(dist.mean).mean(axis=1, keepdims=True)  # a shared head: all columns are one
    covariance = families.cholesky(families.Full(dist.mean, dist.tril))
    noise = setup.learner.method.options["noise_std"]
    precision = np.linalg.inv(covariance @ covariance.T) + features.T @ features / noise**2
    expected = start + np.linalg.solve(precision, features.T @ (targets - features @ start)) / noise**2
    np.testing.assert_allclose(labeller.posterior.mean, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(labeller.predict(NEW[0]).probabilities.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("method", ["gem-bml+", "gem-bml+last-layer"])
def test_other_names_for_classes_permute_the_probabilities(load, method):
    prior, (x, y) = load(method=method), pictures(3)
    plain, renamed = prior.adapt(x, y), prior.adapt(x, np.array(["wren", "finch", "lark"])[y])
    assert renamed.classes == ("finch", "lark", "wren")  # columns 1, 2, 0 of the plain ones
    found = renamed.predict(NEW[0])
    np.testing.assert_allclose(
        found.probabilities, plain.predict(NEW[0]).probabilities[:, [1, 2, 0]], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("method", ["gem-bml+", "gem-bml+last-layer"])
def test_the_order_of_the_support_does_not_matter(load, method):
    prior, (x, y) = load(method=method), pictures(3)
    order = np.random.default_rng(0).permutation(len(y))
    once, again = (prior.adapt(x[order], y[order]).predict(NEW[0]), prior.adapt(x, y).predict(NEW[0]))
    np.testing.assert_allclose(once.probabilities, again.probabilities, rtol=0, atol=1e-6)


def test_a_photo_is_answered_by_itself_unless_asked_otherwise(load, monkeypatch):
    labeller = load().adapt(*pictures(3))
    together, alone = labeller.predict(NEW[0]), [labeller.predict(NEW[0][i : i + 1]) for i in range(3)]
    np.testing.assert_allclose(
        np.concatenate([one.probabilities for one in alone]), together.probabilities[:3], atol=1e-12
    )
    monkeypatch.setattr(labelled, "BATCH", 5)
    np.testing.assert_allclose(labeller.predict(NEW[0]).probabilities, together.probabilities, atol=1e-12)
    mixed = partial(labeller.predict, transductive=True)
    assert np.abs(mixed(NEW[0][:3]).probabilities - mixed(NEW[0]).probabilities[:3]).max() > 1e-3
    assert labeller.predict(NEW[0][:0]).probabilities.shape == (0, 3)


@pytest.mark.parametrize("method", ["gem-bml+", "gem-bml+last-layer", "maml", "amortized-bml", "bmaml"])
def test_a_shared_head_survives_a_change_of_classes(load, method):
    """5 → 3 → 5 classes is where it began, for every family of priors."""
    trained = load(method=method).trained
    there = with_classes(trained.setup.model, trained.state.prior, 3)
    back = with_classes(trained.setup.model, there, 5)
    for ours, theirs in zip(jax.tree.leaves(back), jax.tree.leaves(trained.state.prior), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_a_head_of_its_own_stays_as_it_is_for_as_many_classes(load):
    """And is averaged, with a note, for any other number."""
    prior = load(head="own", method="maml")
    state = prior.trained.state
    assert for_classes(prior.trained.setup, state, 5) is state
    resized: Any = for_classes(prior.trained.setup, state, 3).prior.dist
    average = state.prior.dist.mean.head.weight.mean(1, keepdims=True)
    np.testing.assert_allclose(resized.mean.head.weight, np.repeat(average, 3, axis=1))
    assert prior.adapt(*pictures(5), steps=1).notes == ()
    assert "3 classes all begin with their average" in prior.adapt(*pictures(3), steps=1).notes[0]


@pytest.mark.slow
def test_what_an_inner_adam_shares_between_tasks_is_resized_too(load):
    """One step of Adam from second moments that are known: m − α g / √(ν̂), ν̂ as the shared state has it for all classes."""
    prior = load(method="reptile", optimizer="shared-adam", rate=0.01)
    state, setup = prior.trained.state, prior.trained.setup
    memory = jax.tree.map(lambda leaf: leaf + 3 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state.memory)
    trained, (x, y) = prior.trained._replace(state=state._replace(memory=memory)), pictures(3)
    found = labelled.adapt(trained, x, y, steps=1).posterior.mean
    start = with_classes(setup.model, state.prior, 3).dist.mean
    loss = lambda params: -setup.likelihood.log_prob(params, Data(as_seen(x), jnp.asarray(y))) / len(y)
    grads = jax.grad(loss)(start)
    nu = jax.tree.map(lambda g: (0.999 * 3 + 0.001 * g**2) / (1 - 0.999), grads)
    expected = jax.tree.map(lambda m, g, v: m - 0.01 * g / (jnp.sqrt(v + 1e-8) + 1e-8), start, grads, nu)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([(1, 2), (0, 9), (0, 9)], ((0, 9), (1, 2))),
        ([7, "seven", 7], (7, "seven")),  # cannot be sorted: as they come
        (np.array([2, 2, 0], np.uint8), (0, 2)),
        (jnp.array([1, 0, 1]), (0, 1)),
    ],
)
def test_labels_may_be_anything_that_has_an_equal(labels, classes):
    found, numbers = labelled._numbered(labels)
    assert found == classes and [found[n] for n in numbers] == [v.item() if hasattr(v, "item") else v for v in labels]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (NEW[0] / 255.0, NEW[1], "dtype uint8, got float64"),
        (NEW[0][:, :20], NEW[1], r"of shape \[N, 28, 28, 1\], got \[12, 20, 28, 1\]: resize"),
        (NEW[0], NEW[1][:5], "12 images and 5 labels"),
        (NEW[0], ["cat"] * 12, "two or more, the labels name only cat"),
        (NEW[0][:0], [], "the labels name none"),
        (NEW[0], np.eye(3)[NEW[1]], "not a row of them"),
    ],
)
def test_images_and_labels_that_cannot_be_are_refused(load, x, y, words):
    with pytest.raises(ValueError, match=words):
        load().adapt(x, y)


def test_steps_and_kinds_of_runs_are_refused_in_words(load, tmp_path):
    with pytest.raises(ValueError, match="one step or more, got 0"):
        load().adapt(*NEW, steps=0)
    curves = load().trained._replace(setup=metaprior.assemble(metaprior.Settings()))
    with pytest.raises(ValueError, match="sinusoid tasks are curves"):
        metaprior.Learned(curves).adapt_folder(tmp_path)


def test_one_file_is_read_as_one_and_names_are_not_taken_for_images(load, tmp_path):
    labeller = load().adapt(*NEW)
    Image.fromarray(NEW[0][3, ..., 0]).save(tmp_path / "one.png")
    for file in (tmp_path / "one.png", str(tmp_path / "one.png")):
        np.testing.assert_array_equal(labeller.read(file), NEW[0][3:4])
        with pytest.raises(
            ValueError, match=r"one.png is a name: have files read by adapt_folder, and new ones by read"
        ):
            labeller.predict([file])
    with pytest.raises(ValueError, match="is a folder: name the pictures in it"):
        labeller.read(tmp_path)


def test_grey_images_need_no_axis_of_channels(load):
    labeller = load().adapt(NEW[0][..., 0], NEW[1])
    np.testing.assert_array_equal(
        labeller.predict(NEW[0][..., 0]).probabilities, labeller.predict(NEW[0]).probabilities
    )


# --- calibration ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_training_ends_with_a_calibration_for_either_way_of_answering(tmp_path, monkeypatch):
    """Each fitted to its own predictor, told by what it says of one task; both are read without any images."""
    x, y = pictures(5)

    def first_logit(setup, state, *, steps):
        q = setup.learner.cell.family.start(state.prior.dist)
        logits, _ = setup.predictor.prepare(
            jax.random.key(0), None, q, Data(as_seen(x), jnp.asarray(y)), as_seen(NEW[0])
        )
        return jax.tree.map(lambda leaf: jnp.full((steps + 1,), logits[0, 0, 0]), tiny_photos.calibration(1.0))

    monkeypatch.setattr(training, "calibrate_steps", first_logit)
    setup = tiny_photos.setup()
    run, state = runs.create(tmp_path / "run", as_dict(setup.settings)), training.initial_state(setup)
    checkpoints.save(run.checkpoints, 0, state)
    training.finish(setup, run, state)
    runs.release(run)
    trained, mean = metaprior.load(tmp_path / "run").trained, state.prior.dist.mean
    assert trained.inductive is not None and setup.model.inductive is not None
    together, one_by_one = float(trained.calibration.log_noise[0]), float(trained.inductive.log_noise[0])
    assert together == pytest.approx(float(setup.model.apply(mean, as_seen(NEW[0]))[0, 0]), rel=1e-9)
    assert one_by_one == pytest.approx(float(setup.model.inductive(mean, as_seen(x), as_seen(NEW[0]))[0, 0]), rel=1e-9)
    assert together != pytest.approx(one_by_one, rel=1e-3)


def test_without_its_calibration_that_of_all_together_is_used_and_said(load, tmp_path):
    folder = tiny_photos.untrained(tmp_path / "run", inductive=False)
    assert not (folder / INDUCTIVE_FILE).exists()
    x, y = pictures(3)
    labeller, whole = metaprior.load(folder).adapt(x, y), load().adapt(x, y)
    assert [INDUCTIVE_FILE in note for note in labeller.notes] == [True] and whole.notes == ()
    both = whole._replace(trained=whole.trained._replace(inductive=tiny_photos.calibration(0.7)))
    np.testing.assert_array_equal(labeller.predict(NEW[0]).probabilities, both.predict(NEW[0]).probabilities)
    assert not np.allclose(labeller.predict(NEW[0]).probabilities, whole.predict(NEW[0]).probabilities)


def test_beyond_the_calibrated_steps_the_last_calibration_goes_on(load):
    labeller = load().adapt(*pictures(3), steps=TEST_STEPS + 3)
    short = labeller._replace(steps=TEST_STEPS)  # the same posterior under the calibration of ten steps
    np.testing.assert_array_equal(labeller.predict(NEW[0]).probabilities, short.predict(NEW[0]).probabilities)
