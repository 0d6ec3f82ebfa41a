"""Episodes of ragged groups, and columns as numbers."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import worlds
from worlds import close

from metaprior import likelihoods
from metaprior.estimators.columns import as_json, encode, from_json, learn_columns
from metaprior.estimators.groups import chosen, draw_episode, gathered, padded, shuffled
from metaprior.estimators.tables import read, readable
from metaprior.inference import conjugate
from metaprior.last_layer import HeadParams, LastLayer, last_layer
from metaprior.likelihoods import Weighted, WithNoise
from metaprior.tasks.linear import exact_posterior
from metaprior.types import Data, Prior

SIZES = (1, 2, 3, 7, 20)


def ragged():
    """Every row is its own number, and its target the number of its group."""
    groups = np.repeat(np.arange(len(SIZES)), SIZES)
    order = np.random.default_rng(0).permutation(len(groups))
    return gathered(np.arange(float(len(groups)))[order, None], groups[order, None].astype(float), groups[order])


def test_groups_are_gathered_and_chosen_whole():
    table = ragged()
    assert table.counts.tolist() == list(SIZES)
    two = chosen(table, np.array([1, 3]))
    assert two.counts.tolist() == [2, 7, 0, 0, 0] and two.starts.tolist() == [1, 6, 0, 0, 0]
    draw = partial(draw_episode, shots=(1, 3), queries=4)
    episodes = jax.vmap(lambda key: draw(key, *map(jnp.asarray, two)))(jax.random.split(jax.random.key(0), 200))
    seen = [part.x[part.weight > 0, 0].tolist() for part in jax.tree.map(np.asarray, episodes)]
    assert {*seen[0], *seen[1]} == {1, 2, 6, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_a_shuffle_is_uniform_over_ordered_choices(count):
    """Of `count` numbers into 4 slots: every ordered choice as often as any other, by χ² of 6,000 draws."""
    keys = jax.random.split(jax.random.key(count), 6000)
    found, there = jax.jit(jax.vmap(lambda key: shuffled(key, jnp.asarray(count), 4)))(keys)
    filled = min(count, 4)
    assert (there.sum(axis=1) == filled).all() and (there[:, :filled]).all()
    seen = Counter(tuple(row[:filled]) for row in np.asarray(found).tolist())
    possible = int(np.prod(range(count - filled + 1, count + 1)))
    assert all(len(set(row)) == filled and 0 <= min(row) and max(row) < count for row in seen)
    expected = 6000 / possible
    statistic = (sum((n - expected) ** 2 for n in seen.values()) + (possible - len(seen)) * expected**2) / expected
    assert statistic < possible + 5 * (2 * possible) ** 0.5


@pytest.mark.parametrize("shots", [(0, 5), (2, 4)])
def test_episodes_are_of_one_group_and_share_no_row(shots):
    table, queries = ragged(), 6
    draw = partial(draw_episode, shots=shots, queries=queries)
    keys = jax.random.split(jax.random.key(0), 2000)
    episodes = jax.jit(jax.vmap(lambda key: draw(key, *map(jnp.asarray, table))))(keys)
    support, query = (jax.tree.map(np.asarray, part) for part in episodes)
    sizes = Counter()
    for s_x, s_y, s_w, q_x, q_y, q_w in zip(*support, *query, strict=True):
        rows = [*s_x[s_w > 0, 0], *q_x[q_w > 0, 0]]
        (group,) = {*s_y[s_w > 0, 0], *q_y[q_w > 0, 0]}
        size, count = SIZES[int(group)], int(s_w.sum())
        assert len(set(rows)) == len(rows) and q_w.sum() >= 1
        assert q_w.sum() == min(size - count, queries, min(size, shots[1] + queries) - count)
        assert min(shots[0], size - 1) <= count <= min(shots[1], size - 1)
        sizes[int(group), count] += 1
    assert {count for group, count in sizes if group == 4} == set(range(shots[0], shots[1] + 1))


def test_points_of_weight_zero_say_nothing():
    """The exact head on a padded task is that on its points, noise learned with the features, any temperature."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))
    features = WithNoise({"w": normal(2, 3)}, jnp.log(jnp.asarray(0.4)))
    apply = lambda params, x: jnp.tanh(x @ params.features.weights["w"]) @ params.head
    prior = Prior(LastLayer(features, normal(3, 2), jnp.tril(0.5 * normal(3, 3))))
    likelihood = likelihoods.gaussian_shared_noise(apply, temperature=2.0)
    points = Data(normal(5, 2), normal(5, 2))
    x, y = (jnp.concatenate([leaf, 9 + normal(3, 2)]) for leaf in points)
    masked = Weighted(x, y, jnp.repeat(jnp.array([1.0, 0.0]), jnp.array([5, 3])))
    family = last_layer()
    infer = lambda like, source: worlds.adapted(conjugate(like, family, noise_std=None), family, prior, source, 1)
    padded_q, plain_q = infer(likelihoods.weighted(likelihood), masked), infer(likelihood, points)
    close(padded_q.mean, plain_q.mean)
    close(padded_q.tril, plain_q.tril)
    noise = likelihood.outputs(HeadParams(features, prior.dist.mean), points)[0, -1]
    lower = jnp.tril(prior.dist.tril, -1) + jnp.diag(jnp.exp(jnp.diagonal(prior.dist.tril)))
    phi = jnp.tanh(points.x @ features.weights["w"])
    exact = exact_posterior(prior.dist.mean[:, 0], lower @ lower.T, phi, points.y[:, 0], jnp.exp(noise), 2.0)[0]
    close(plain_q.mean[:, 0], exact)
    of = lambda like, source: family.expected_log_prob(worlds.KEY, like, plain_q, source)
    close(of(likelihoods.weighted(likelihood), masked), of(likelihood, points))
    assert float(likelihoods.weighted(likelihood).size(masked)) == 5


def test_padding_is_to_powers_of_two_and_weightless():
    points = padded(np.ones((9, 2)), np.ones((9, 1)))
    assert points.x.shape == (16, 2) and points.weight.sum() == 9 and not points.x[9:].any()


TABLE = np.array([[1.0, "red", None], [3.0, "blue", 2.0], [5.0, "red", 4.0]], object)


def test_columns_are_scaled_named_and_marked():
    columns = learn_columns(TABLE, ["a", "b", "c"])
    found = encode(columns, TABLE)
    scaled = (np.array([1.0, 3.0, 5.0]) - 3) / np.std([1, 3, 5])
    np.testing.assert_allclose(found[:, 0], scaled)
    assert found[:, 1:3].tolist() == [[0, 1], [1, 0], [0, 1]]  # blue, red
    np.testing.assert_allclose(found[:, 3:], [[0, 1], [-1, 0], [1, 0]])  # missing is the mean, and marked
    assert columns.width == found.shape[1] == 5
    assert from_json(as_json(columns)) == columns


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([None, "red", 1.0], "column a has missing values"),
        ([1.0, "green", 1.0], "column b holds 'green', which the prior has never seen"),
        (["much", "red", 1.0], "column a held numbers"),
        ([np.inf, "red", 1.0], "column a holds infinity"),
    ],
)
def test_what_was_never_seen_is_refused_by_its_column(row, words):
    columns = learn_columns(TABLE, ["a", "b", "c"])
    with pytest.raises(ValueError, match=words):
        encode(columns, np.array([row], object))


def test_names_and_dates_are_no_categories():
    with pytest.raises(ValueError, match="too many for categories"):
        learn_columns(np.array([[f"id {i}"] for i in range(200)], object), ["who"])
    with pytest.raises(ValueError, match="column 'when' holds dates"):
        learn_columns(np.array([["2020-01-01"]], "datetime64[D]"), ["when"])
    with pytest.raises(TypeError, match="a string or a number"):
        learn_columns(np.array([[{"a": 1}]], object), ["x"])


def test_dates_stray_words_and_categories_of_numbers_are_told_from_words():
    """As they come from files: dates as text, a number column with one cell that is none, and numbers that are names."""
    column = lambda *values: np.array([[value] for value in values], object)
    with pytest.raises(ValueError, match="column 'when' holds dates"):
        learn_columns(column("2024-01-05", "2024-02-11", None), ["when"])
    with pytest.raises(ValueError, match=r"column size holds numbers, and '\?' in row 2"):
        learn_columns(column("12", "15.5", "?", "7"), ["size"])
    with pytest.raises(ValueError, match="column size holds numbers, and 'n/a' in row 1"):
        learn_columns(column(12, "n/a", 3.5), ["size"])
    frame = pd.DataFrame({"floor": pd.Categorical([1, 2, None]), "area": [1.5, 2.5, 3.5]})
    (floor, area) = learn_columns(readable(frame).to_numpy(object), ["floor", "area"]).columns
    assert floor.categories == ("1", "2") and floor.missing and area.categories is None
    with pytest.raises(ValueError, match="column 'day' holds dates"):
        readable(pd.DataFrame({"day": pd.to_datetime(["2024-01-05"])}))


def test_a_column_is_not_both_an_input_and_the_answer():
    table = pd.DataFrame({"shop": ["a", "a", "b", "b"], "size": [1.0, 2.0, 3.0, 4.0], "sales": [1.0, 2.0, 3.0, 4.5]})
    with pytest.raises(ValueError, match="'sales' of X is the target itself: leave it out of X, or pass y='sales'"):
        read(table, table["sales"], "shop", None)
    with pytest.raises(ValueError, match="'shop' of X is the group of each row"):
        read(table, "sales", table["shop"], None)
    assert list(read(table, "sales", "shop", None).X.columns) == ["size"]
