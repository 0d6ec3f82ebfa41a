"""Evaluation at chosen numbers of steps is evaluation at all of them, looked at where asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import evaluation
from metaprior.evaluation import (
    TEST_SEED,
    VALIDATION_SEED,
    calibrate_steps,
    calibrated_class_scores,
    evaluate,
    in_batches,
    scores,
)
from metaprior.predict import Calibration
from metaprior.settings import Settings, assemble
from metaprior.training import initial_state

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.fixture(scope="module")
def start():
    setup = assemble(Settings(method="gem-bml+", hidden=(6,), iterations=1))
    return setup, initial_state(setup)


def test_chosen_steps_are_those_of_all_steps(start):
    setup, state = start
    everything = calibrate_steps(setup, state, steps=3, num_tasks=4)
    chosen = calibrate_steps(setup, state, at=(1, 3), num_tasks=4)
    for a, b in zip(everything, chosen, strict=True):
        np.testing.assert_allclose(np.asarray(a)[[1, 3]], b, rtol=1e-6, atol=1e-8)
    whole = scores(setup, state, everything, at=(0, 1, 2, 3), num_tasks=5)
    some = scores(
        setup,
        state,
        Calibration(*(jax.numpy.asarray(leaf)[np.array([1, 3])] for leaf in everything)),
        at=(1, 3),
        num_tasks=5,
    )
    for a, b in zip(whole, some, strict=True):
        np.testing.assert_allclose(a[:, [1, 3]], b, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_tasks_depend_on_the_seed_alone(start):
    """The first tasks are the same however many are asked for, so methods and runs pair up."""
    setup, state = start
    calibration = calibrate_steps(setup, state, at=(1,), num_tasks=3)
    few, many = (scores(setup, state, calibration, at=(1,), num_tasks=n) for n in (3, 7))
    np.testing.assert_allclose(few.mse, many.mse[:3], rtol=1e-9)
    other = scores(setup, state, calibration, at=(1,), num_tasks=3, seed=TEST_SEED + 1)
    assert (np.abs(np.asarray(other.mse - few.mse)) > 1e-6).all()
    assert TEST_SEED != VALIDATION_SEED


@pytest.mark.slow
def test_averages_are_those_of_the_single_tasks(start):
    setup, state = start
    calibration = calibrate_steps(setup, state, steps=1, num_tasks=3)
    single = scores(setup, state, calibration, at=(0, 1), num_tasks=6)
    summary = evaluate(setup, state, calibration, steps=1, num_tasks=6)
    np.testing.assert_allclose(summary["nll"], single.nll.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(summary["mse_ci95"], 1.96 * single.mse.std(axis=0) / 6**0.5, rtol=1e-9)
    near = single.coverage90_near.sum(axis=0) / single.share_near.sum(axis=0)
    np.testing.assert_allclose(summary["coverage90_near"], near, rtol=1e-9)
    assert summary["steps"] == [0, 1]


@pytest.mark.parametrize("at", [(), (2, 1), (1, 1), (-1, 2)])
def test_steps_must_rise(start, at):
    setup, state = start
    with pytest.raises(ValueError, match="must rise from zero or more"):
        calibrate_steps(setup, state, at=at, num_tasks=2)


def test_a_calibration_of_too_few_steps_is_refused(start):
    setup, state = start
    short = Calibration(*(jax.numpy.zeros(2) for _ in Calibration._fields))
    with pytest.raises(ValueError, match="calibrated for 1 steps, asked for 4"):
        scores(setup, state, short, at=(0, 2, 4), num_tasks=2)


def test_large_images_are_judged_a_few_tasks_at_a_time():
    """Images of all numbers of steps side by side, at most so many pixels; never less than one task."""
    pool = (jax.ShapeDtypeStruct((40, 84, 84, 3), jnp.uint8), jax.ShapeDtypeStruct((2, 20), jnp.int32))
    setup = assemble(Settings(tasks="miniimagenet", ways=2))
    count = lambda setup, steps: evaluation.side_by_side(setup, range(steps), 600, pool)
    assert count(setup, 10) == evaluation.PIXELS // ((2 + 10 * 2 * 15) * 84 * 84) == 1
    assert count(setup, 1) == evaluation.PIXELS // ((2 + 2 * 15) * 84 * 84) == 17
    assert count(setup, 1000) == 1
    assert count(assemble(Settings()), 1000) == evaluation.TOGETHER


@pytest.mark.parametrize("at", [(0,), (0, 1, 4), (2, 3)])
def test_an_exact_posterior_is_judged_once_for_all_numbers_of_steps(at):
    """Every step after the first changes nothing, and costs nothing; taken one by one they give the same."""
    setup = assemble(Settings(method="gem-bml+last-layer", hidden=(4,)))
    state, key = initial_state(setup), jax.random.key(3)
    once = evaluation.adapted_parts(setup, setup.predictor, state, key, at)
    method = setup.learner.method._replace(inference="another name")
    plain = setup._replace(learner=setup.learner._replace(method=method))
    each = evaluation.adapted_parts(plain, setup.predictor, state, key, at)
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_batches_are_filled_up_and_give_what_each_key_gives(size):
    """Also where the last is not full, and of arrays without elements; what is done is written down once."""
    keys, traced = jax.random.split(jax.random.key(1), 5), []

    def one(key):
        traced.append(1)
        return jax.random.normal(key, (2,)), jnp.zeros((0, 3))

    found, empty = in_batches(one, keys, size)
    np.testing.assert_array_equal(found, np.stack([jax.random.normal(key, (2,)) for key in keys]))
    assert empty.shape == (5, 0, 3) and len(traced) == 1


@pytest.mark.parametrize(
    ("views", "inductive", "pixels"),
    [
        pytest.param(False, False, 10**9, marks=pytest.mark.slow),
        (True, False, 3_000),
        pytest.param(False, True, 1, marks=pytest.mark.slow),
    ],
)
def test_calibration_and_scores_in_one_program_are_those_of_two(monkeypatch, views, inductive, pixels):
    """Validation classes and those that are asked are of different number; batches of all, of some, of one."""
    monkeypatch.setattr(evaluation, "PIXELS", pixels)
    setup = assemble(
        Settings(tasks="omniglot", method="gem-bml+", ways=2, shots=1, filters=2, iterations=1),
        eval_queries=2, views=views, inductive=inductive,
    )  # fmt: skip
    state = initial_state(setup)
    noise = np.random.default_rng(0)
    pools = [
        (noise.integers(0, 256, (classes * 4, 28, 28, 1), np.uint8), np.arange(classes * 4).reshape(classes, 4))
        for classes in (6, 3)
    ]
    known, asked = jax.tree.map(jnp.asarray, pools)
    fitted = calibrate_steps(setup, state, at=(1, 2), num_tasks=5, pool=known)
    slow = scores(setup, state, fitted, at=(1, 2), num_tasks=7, seed=3, pool=asked)
    fast = calibrated_class_scores(
        setup, state, at=(1, 2), validation=5, num_tasks=7, seed=3, known=known, asked=asked
    )  # fmt: skip
    for a, b in zip(slow, fast, strict=True):
        assert a.shape[:2] == (7, 2)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_classes_before_any_step_are_refused(start):
    with pytest.raises(ValueError, match="from 1 on"):
        calibrated_class_scores(*start, at=(0, 1), validation=2, num_tasks=2, seed=0, known=(), asked=())
