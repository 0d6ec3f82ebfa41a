"""Few groups: each is held out in turn, and intervals of a prior that was learned from a handful hold what they promise."""

import jax
import numpy as np
import pytest

from metaprior import MetaRegressor
from metaprior.estimators import folds as folding
from metaprior.estimators.folds import doubts, folds, trainings
from metaprior.estimators.learning import less_sure
from metaprior.predict import Calibration

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("count", [2, 3, 5, 7, 19])
def test_of_few_groups_each_is_held_out_once_and_never_learned_from_then(count):
    turns = folds(jax.random.key(0), count, 0.3)
    assert sorted(np.concatenate([turn.held for turn in turns])) == list(range(count))
    for turn in turns:
        assert len(turn.learned) and sorted([*turn.learned, *turn.held]) == list(range(count))
    assert trainings(count, 0.3) == len(turns) + 1 == min(count, folding.FOLDS) + 1


def test_of_many_groups_a_share_is_held_out():
    (turn,) = folds(jax.random.key(0), 50, 0.3)
    assert len(turn.held) == 15 and sorted([*turn.learned, *turn.held]) == list(range(50))
    (all_of_them,) = folds(jax.random.key(0), 50, 0.0)
    assert (all_of_them.learned == all_of_them.held).all()
    assert trainings(50, 0.3) == trainings(50, 0.0) == 1


def test_the_log_of_a_scale_is_known_to_what_so_many_groups_tell():
    """Standard deviation of log s over samples of n normal numbers, and the spread that is added."""
    zero = jax.numpy.zeros(())
    for count in (5, 20, 80):
        draws = np.random.default_rng(0).normal(size=(20_000, count))
        told = np.log(np.square(draws).mean(axis=1)).std() / 2
        assert float(less_sure(Calibration(zero, zero, spread=zero), count).spread) == pytest.approx(told, rel=0.15)


def mixed(groups, rng, rows=12):
    """A random intercept and slope for each group, and noise."""
    group = np.repeat(np.arange(groups), rows)
    a, b, x = rng.normal(3, 1, groups), rng.normal(-2, 0.5, groups), rng.uniform(10, 14, groups * rows)
    return x[:, None], a[group] + b[group] * (x - 12) + 0.2 * rng.normal(size=len(x)), group


def coverage(groups, repetitions, **options):
    """Mean over tables of the share of 30 new groups' rows inside 90 % intervals, from three rows of each."""
    found = []
    for seed in range(repetitions):
        rng = np.random.default_rng([seed, groups, 99])
        prior = MetaRegressor(random_state=seed, **options).fit(*mixed(groups, rng))
        x, y, _ = mixed(30, rng)
        for start in range(0, len(x), 12):
            known, asked = slice(start, start + 3), slice(start + 3, start + 12)
            low, high = prior.adapt(x[known], y[known]).predict_interval(x[asked])
            found.append(((low <= y[asked]) & (y[asked] <= high)).mean())
    return np.mean(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:there are only:UserWarning")
@pytest.mark.parametrize("groups", [5, 12])
def test_intervals_from_few_groups_cover(groups):
    """About nine tenths, on average over tables."""
    assert 0.84 < coverage(groups, 8, hidden=(20,), max_iter=1000) < 0.96


def test_few_groups_are_said_to_be_few_and_none_held_out_too():
    x, y, group = np.arange(12.0)[:, None], np.arange(12.0), np.repeat(np.arange(4), 3)
    with pytest.warns(UserWarning, match="only 4 groups, which tell little of how groups differ"):
        model = MetaRegressor(hidden=(), max_iter=10, random_state=0).fit(x, y, group)
    assert model.prior_.facts["groups learned from"] == model.prior_.facts["groups held out"] == 4
    for count in (4, 50):
        assert (doubts(count, 0.0) or "").startswith(f"none of {count} groups is held out")
    assert doubts(10, 0.3) is doubts(50, 0.3) is None
