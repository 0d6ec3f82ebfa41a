"""The predictive of a classifier against softmax by hand, and its calibration against a temperature that is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import families
from metaprior.calibration import calibrate
from metaprior.classes import ClassPredictive, calibration_error, class_predictor, class_scores, labels_of, together
from metaprior.last_layer import LastLayer, last_layer
from metaprior.models import foreign
from metaprior.predict import Calibration
from metaprior.types import Data

NOTHING = Data(jnp.zeros((0, 2)), jnp.zeros((0,), int))
linear = foreign(lambda key: {"w": jax.random.normal(key, (2, 3))}, lambda params, x: x @ params["w"], "linear")


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def calibration(noise=1.0, width=1.0):
    return Calibration(jnp.log(width), jnp.log(noise))


def test_a_point_answers_with_its_softmax_at_a_temperature():
    q, x = families.Delta({"w": jnp.arange(6.0).reshape(2, 3)}), jnp.array([[1.0, -1.0], [0.5, 2.0]])
    predictor = class_predictor(linear, families.delta())
    found = predictor.finish(predictor.prepare(jax.random.key(0), None, q, NOTHING, x), calibration(noise=2.5))
    np.testing.assert_allclose(found.probabilities, softmax(np.asarray(x @ q.mean["w"]) / 2.5), rtol=1e-12)


def test_a_gaussian_answers_with_the_average_over_its_draws():
    q = families.MeanField({"w": jnp.ones((2, 3))}, {"w": jnp.full((2, 3), -1.0)})
    x, key = jnp.array([[1.0, -1.0]]), jax.random.key(3)
    predictor = class_predictor(linear, families.mean_field(), num_samples=4)
    found = predictor.finish(predictor.prepare(key, None, q, NOTHING, x), calibration())
    draws = np.asarray(families.mean_field().samples(key, q, 4)["w"])
    np.testing.assert_allclose(found.probabilities, softmax(np.asarray(x)[None] @ draws).mean(axis=0), rtol=1e-12)


def test_the_exact_layer_doubts_where_its_variance_is_large():
    """softmax(f / (noise √(1 + c² v))) with v the variance of a linear Gaussian, by hand."""
    features = foreign(lambda key: (), lambda params, x: x @ params.head, "features")
    mean, root = np.arange(6.0).reshape(2, 3) / 3, np.array([[0.5, 0.0], [0.3, 2.0]])
    tril = jnp.asarray(np.tril(root, -1) + np.diag(np.log(np.diag(root))))
    q = LastLayer((), jnp.asarray(mean), tril)
    x = jnp.array([[1.0, 0.0], [1.0, 3.0]])
    predictor = class_predictor(features, last_layer())
    found = predictor.finish(predictor.prepare(jax.random.key(0), None, q, NOTHING, x), calibration(0.7, 1.5))
    variance = np.square(np.asarray(x) @ root).sum(axis=1)
    expected = softmax(np.asarray(x) @ mean / (0.7 * np.sqrt(1 + 1.5**2 * variance))[:, None])
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-12)


def test_calibration_finds_the_temperature_at_which_labels_were_drawn():
    """Labels drawn from softmax(f); a network that says 3 f must be divided by three."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 1, 50, 4)) * 1.5
    labels = np.array([[rng.choice(4, p=softmax(f)) for f in task[0]] for task in logits])
    predictor = class_predictor(linear, families.delta())
    found = calibrate(predictor, (jnp.asarray(3 * logits), jnp.zeros((60, 1, 50))), jnp.asarray(labels))
    assert float(jnp.exp(found.log_noise)) == pytest.approx(3.0, rel=0.06)  # two standard errors of 3,000 labels


def test_scores_and_reliability_are_those_of_the_predictions():
    predictive = ClassPredictive(jnp.array([[0.9, 0.1], [0.2, 0.8], [0.45, 0.55]]))
    for y in (jnp.array([0, 0, 1]), jnp.array([[0.5, -0.5], [0.5, -0.5], [-0.5, 0.5]])):
        found = class_scores(predictive, y)
        assert float(found.accuracy) == pytest.approx(2 / 3)
        assert float(found.nll) == pytest.approx(-np.log([0.9, 0.2, 0.55]).mean())
        np.testing.assert_array_equal(found.correct, [1, 0, 1])
        assert labels_of(y).tolist() == [0, 0, 1]
    table = calibration_error(found, num_bins=5)
    np.testing.assert_allclose(table.confidence, [0, 0, 0.55, 0.8, 0.9])


def test_a_probability_of_zero_does_not_make_the_score_infinite():
    assert np.isfinite(ClassPredictive(jnp.array([[1.0, 0.0]])).log_density(jnp.array([1]))).all()


def test_askings_of_the_same_questions_are_as_many_more_samples():
    """With draws of weights for each of three askings, at two numbers of steps."""
    random = np.random.default_rng(0)
    logits, variance = random.normal(size=(3, 2, 5, 4, 2)), random.uniform(size=(3, 2, 5, 4))
    found = together((jnp.asarray(logits), jnp.asarray(variance)))
    for step in range(2):
        np.testing.assert_array_equal(found[0][step], np.concatenate(logits[:, step]))
        np.testing.assert_array_equal(found[1][step], np.concatenate(variance[:, step]))
