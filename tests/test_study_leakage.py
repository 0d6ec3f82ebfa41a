"""The attack of the leakage study is what it says: it inverts what clients send, and finds data where that is easy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import leakage
from experiments.inversion import attack, error, message, scale_of, sent
from experiments.leakage import Settings, learner_of, start_of

SMALL = Settings(hidden=(5,), points=2)
TASKS = leakage._tasks(SMALL)


def episodes(seed, count):
    return jax.vmap(TASKS.sample)(jax.random.split(jax.random.key(seed), count))


@pytest.mark.parametrize("name", ["gem-bml+", pytest.param("gem-bml", marks=pytest.mark.slow)])
def test_what_is_inverted_is_what_is_sent(name):
    """Value for value; and unlike the library's own program, it can be differentiated in the data."""
    learner = learner_of(SMALL, name, 3)
    state, tasks = start_of(SMALL, learner, 1), episodes(2, 3)
    told = message(learner, state)
    np.testing.assert_allclose(told(tasks), sent(learner, state, tasks).gradient, rtol=1e-9, atol=1e-12)
    moved = lambda y: tasks._replace(support=tasks.support._replace(y=y))
    slope = jax.jit(jax.jacfwd(lambda y: told(moved(y))))(tasks.support.y)
    step = 1e-5 * jnp.zeros_like(tasks.support.y).at[0, 0, 0].set(1.0)
    finite = (told(moved(tasks.support.y + step)) - told(moved(tasks.support.y - step))) / 2e-5
    np.testing.assert_allclose(slope[:, 0, 0, 0], finite, rtol=1e-4, atol=1e-6 * float(jnp.abs(slope).max()))


def test_the_error_does_not_mind_the_order_of_tasks_and_points():
    truth = episodes(3, 3)
    shuffled = jax.tree.map(lambda leaf: leaf[jnp.array([2, 0, 1])][:, ::-1], truth)
    assert error(shuffled, truth, TASKS) == pytest.approx(0.0, abs=1e-12)
    away = truth._replace(query=truth.query._replace(x=truth.query.x + scale_of(TASKS)[0]))
    assert 0 < error(away, truth, TASKS) <= 0.5 + 1e-9  # a quarter of the squares, each one; matching may do better


def test_knowing_nothing_costs_about_a_standard_deviation():
    truth = episodes(4, 200)
    middle = jax.tree.map(jnp.zeros_like, truth)
    assert error(middle, truth, TASKS) == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_an_attack_that_begins_near_the_data_ends_at_them():
    wide = Settings(hidden=(20,), points=2)
    learner = learner_of(wide, "gem-bml+", 1)
    state, truth = start_of(wide, learner, 1), episodes(5, 1)
    observed = sent(learner, state, truth).gradient
    near = jax.tree.map(lambda leaf: leaf + 0.05, truth)
    guess, misfit = jax.jit(lambda start: attack(message(learner, state), state, observed, start, 60))(near)
    assert error(near, truth, TASKS) > 0.02
    assert float(misfit) < 1e-14 and error(guess, truth, TASKS) < 1e-4
