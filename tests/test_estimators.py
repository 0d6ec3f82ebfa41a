"""Estimators in scikit-learn's manner: what they learn, and that they are what scikit-learn expects."""

import pickle
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn import base
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from metaprior import AdaptedClassifier, AdaptedRegressor, MetaClassifier, MetaRegressor, learned
from metaprior.families import Full, cholesky
from metaprior.tasks.linear import exact_posterior

clone: Any = base.clone
pytestmark = pytest.mark.usefixtures("quick_compile")
QUICK: dict[str, Any] = dict(max_iter=40, hidden=(4,), meta_batch=4, shots=4, queries=4, random_state=0)


def lines(groups=30, seed=0):
    """Lines of many groups: y = a + b x + noise, with groups of 2 to 12 rows."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rng.integers(2, 13, groups))
    a, b = rng.normal(3, 1, groups), rng.normal(-2, 0.5, groups)
    x = rng.uniform(10, 14, len(group))
    return x[:, None], a[group] + b[group] * (x - 12) + 0.2 * rng.normal(size=len(group)), group


@pytest.fixture(scope="module")
def mixed_model():
    """A linear mixed model: no hidden layer."""
    return MetaRegressor(hidden=(), max_iter=600, meta_rate=0.02, random_state=0).fit(*lines(100))


@pytest.fixture(scope="module")
def frame():
    """A table with words, missing values, and a column each for targets and groups."""
    x, y, group = lines()
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"shop": [f"s{g}" for g in group], "size": x[:, 0], "sales": y})
    table["kind"] = rng.choice(["town", "road"], len(y))
    table["sales"] += np.where(table["kind"] == "town", 3.0, 0.0)
    table.loc[rng.random(len(y)) < 0.2, "size"] = np.nan
    return table


@pytest.fixture(scope="module")
def of_frame(frame):
    return MetaRegressor(**QUICK, groups="shop").fit(frame, "sales")


def test_adapting_is_bayes_rule_on_the_learned_prior(mixed_model):
    """Mean and noise-free spread of a group by the closed form, from the numbers of the prior alone."""
    x, y, _ = lines(1, seed=5)
    prior = mixed_model.prior_
    dist, (column,) = prior.prior.dist, prior.columns.columns
    phi = lambda x: np.c_[(x - column.mean) / column.std, np.ones(len(x))]
    lower = cholesky(Full(dist.mean, dist.tril))
    log_noise = np.log(1e-3) + np.logaddexp(0, dist.features.log_noise - np.log(1e-3))
    target = (y - prior.target.mean) / prior.target.std
    mean, cov = exact_posterior(
        jnp.asarray(dist.mean[:, 0]), lower @ lower.T, jnp.asarray(phi(x)), jnp.asarray(target), np.exp(log_noise)
    )
    at = np.linspace(10, 14, 5)[:, None]
    group = mixed_model.adapt(x, y)
    np.testing.assert_allclose(
        group.predict(at), prior.target.mean + prior.target.std * phi(at) @ np.asarray(mean), rtol=1e-9
    )
    c = prior.calibration
    size = 0.5 * np.log(np.square(target).mean() + 1e-6)
    spread = (
        np.square(np.exp(c.log_width + c.power * size)) * np.einsum("nf,fg,ng->n", phi(at), cov, phi(at)) ** c.contrast
    )
    functions = group.sample_functions(at, 4000)
    np.testing.assert_allclose(functions.std(axis=0), prior.target.std * np.sqrt(spread), rtol=0.05)


def test_a_learned_prior_beats_the_group_alone_and_covers(mixed_model):
    """Two points of each of 40 new groups: nearly what Bayes' rule makes of the true prior; 90 % intervals hold about 90 %."""
    x, y, group = lines(40, seed=7)
    errors, alone, best, inside = [], [], [], []
    for g in np.flatnonzero(np.bincount(group) >= 6):
        rows = np.flatnonzero(group == g)
        known, asked = rows[:2], rows[2:]
        adapted = mixed_model.adapt(x[known], y[known])
        low, high = adapted.predict_interval(x[asked])
        errors.append(np.square(adapted.predict(x[asked]) - y[asked]).mean())
        inside.append(((low <= y[asked]) & (y[asked] <= high)).mean())
        alone.append(np.square(np.polyval(np.polyfit(x[known, 0], y[known], 1), x[asked, 0]) - y[asked]).mean())
        design = np.c_[np.ones(2), x[known] - 12]
        truth = exact_posterior(
            jnp.array([3.0, -2.0]), jnp.diag(jnp.array([1.0, 0.25])), jnp.asarray(design), jnp.asarray(y[known]), 0.2
        )
        best.append(np.square(np.c_[np.ones(len(asked)), x[asked] - 12] @ np.asarray(truth[0]) - y[asked]).mean())
    assert np.mean(errors) < 1.2 * np.mean(best) < 0.5 * np.mean(alone)
    assert 0.8 < np.mean(inside) < 0.98


def test_intervals_std_and_density_are_of_one_distribution(mixed_model):
    x, y, _ = lines(1, seed=5)
    group, at = mixed_model.adapt(x, y), np.array([[11.0], [13.5]])
    mean, std = group.predict(at, return_std=True)
    grid = np.linspace(-30, 30, 20_001)
    for i in range(2):
        density = np.exp(group.log_density(np.repeat(at[i : i + 1], len(grid), axis=0), mean[i] + std[i] * grid))
        weight = density * std[i] * (grid[1] - grid[0])
        assert weight.sum() == pytest.approx(1, abs=1e-3)
        assert (weight * grid**2).sum() == pytest.approx(1, rel=2e-2)
        low, high = (end[i] for end in group.predict_interval(at))
        held = weight[(mean[i] + std[i] * grid > low) & (mean[i] + std[i] * grid < high)].sum()
        assert held == pytest.approx(0.9, abs=2e-3)


def test_words_missing_values_and_names_of_columns(frame, of_frame):
    one = frame[frame["shop"] == "s3"]
    by_name = of_frame.adapt(one, "sales")
    by_value = of_frame.adapt(one[["size", "kind"]], one["sales"].to_numpy())
    new = pd.DataFrame({"size": [11.0, np.nan], "kind": ["road", "town"]})
    np.testing.assert_array_equal(by_name.predict(new), by_value.predict(new))
    assert list(of_frame.feature_names_in_) == ["size", "kind"]
    same = MetaRegressor(**QUICK).fit(frame[["size", "kind"]], frame["sales"], frame["shop"])
    np.testing.assert_array_equal(same.adapt(one[["size", "kind"]], one["sales"]).predict(new), by_name.predict(new))


def test_columns_are_found_by_name_whatever_else_a_table_holds(frame, of_frame):
    """The whole table, columns in another order, before and after adapting."""
    one = frame[frame["shop"] == "s3"]
    adapted, plain = of_frame.adapt(one, "sales"), one[["size", "kind"]]
    np.testing.assert_array_equal(adapted.predict(one), adapted.predict(plain))
    np.testing.assert_array_equal(adapted.predict(one[["kind", "size"]]), adapted.predict(plain))
    np.testing.assert_array_equal(of_frame.predict_interval(one), of_frame.predict_interval(plain[["kind", "size"]]))
    scores = of_frame.score(frame, "sales"), of_frame.score(frame, frame["sales"].to_numpy(), groups="shop")
    assert scores[0] == scores[1]
    assert "gem-bml+last-layer for sales" in repr(adapted) and len(repr(adapted)) < 200
    with pytest.raises(ValueError, match="X has no column 'kind', and the prior was learned with size, kind"):
        adapted.predict(one.drop(columns="kind"))
    with pytest.raises(ValueError, match="unknown column of X 'sale': did you mean sales"):
        of_frame.adapt(one, "sale")


def test_the_same_seed_is_the_same_prior_whatever_jax_is_set_to(frame, of_frame):
    one = frame[frame["shop"] == "s3"]
    with jax.enable_x64(False):
        again = clone(of_frame).fit(frame, "sales").adapt(one, "sales").predict(one[["size", "kind"]])
    np.testing.assert_array_equal(again, of_frame.adapt(one, "sales").predict(one[["size", "kind"]]))


def test_cross_validation_over_groups_clone_and_pickle(mixed_model):
    x, y, group = lines()
    table = pd.DataFrame({"x": x[:, 0], "g": group})
    estimator = MetaRegressor(**QUICK | {"hidden": (), "max_iter": 100, "groups": "g"})
    scores = cross_val_score(estimator, table, y, groups=group, cv=GroupKFold(3), error_score=cast(Any, "raise"))
    assert scores.shape == (3,) and np.isfinite(scores).all()
    copy = clone(mixed_model)
    assert copy.get_params() == mixed_model.get_params() and not hasattr(copy, "prior_")
    back = pickle.loads(pickle.dumps(mixed_model))
    group = pickle.loads(pickle.dumps(back.adapt(x[:3], y[:3])))
    np.testing.assert_array_equal(group.predict(x), mixed_model.adapt(x[:3], y[:3]).predict(x))


@pytest.mark.slow
def test_in_a_pipeline_scaling_before_changes_nothing():
    """Columns are scaled inside: what a scaler does before is undone, to rounding."""
    x, y, group = lines()
    made = partial(MetaRegressor, **QUICK)
    piped = make_pipeline(StandardScaler(), made()).fit(x, y, metaregressor__groups=group)
    np.testing.assert_allclose(piped.predict(x[:4]), made().fit(x, y, group).predict(x[:4]), rtol=1e-5)


def test_score_adapts_to_the_first_rows_of_each_group(mixed_model):
    """R² by hand, of groups never seen; far above that of the prior alone."""
    x, y, group = lines(12, seed=9)
    truth, found, before = [], [], []
    for g in range(12):
        rows = np.flatnonzero(group == g)
        count = min(5, len(rows) // 2)
        truth += y[rows[count:]].tolist()
        found += mixed_model.adapt(x[rows[:count]], y[rows[:count]]).predict(x[rows[count:]]).tolist()
        before += mixed_model.predict(x[rows[count:]]).tolist()
    r2 = lambda values: (
        1 - np.square(np.subtract(values, truth)).sum() / np.square(np.subtract(truth, np.mean(truth))).sum()
    )
    assert mixed_model.score(x, y, group) == pytest.approx(r2(found))
    assert r2(found) > r2(before) + 0.1


def blobs(groups=24, seed=0):
    """Two classes on one side or the other of a line that every group turns as it likes."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), 20)
    angle = rng.uniform(-0.4, 0.4, groups)[group] + np.pi * rng.integers(0, 2, groups)[group]
    x = rng.normal(size=(len(group), 2))
    side = np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1]
    return x, np.where(side > 0, "yes", "no"), group


def test_classes_that_only_the_group_can_tell():
    """The prior alone knows nothing (each group may be the other way round); six rows of a group tell which way."""
    model = MetaClassifier(random_state=0, max_iter=400, hidden=(8,)).fit(*blobs())
    x, y, group = blobs(10, seed=3)
    right, before, nll = [], [], []
    for g in range(10):
        rows = np.flatnonzero(group == g)
        adapted = model.adapt(x[rows[:6]], y[rows[:6]])
        right.append(adapted.score(x[rows[6:]], y[rows[6:]]))
        nll.append(-adapted.log_density(x[rows[6:]], y[rows[6:]]).mean())
        before.append((model.predict(x[rows[6:]]) == y[rows[6:]]).mean())
    assert np.mean(right) > 0.8 and np.mean(before) < 0.65 and np.mean(nll) < np.log(2)
    probabilities = adapted.predict_proba(x[:5])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert adapted.sample_functions(x[:5], 7).shape == (7, 5, 2)
    assert model.score(x, y, group) > 0.75
    with pytest.raises(ValueError, match="'maybe' is none of those the prior knows: no, yes"):
        model.adapt(x[:2], np.array(["yes", "maybe"]))


class Linen:
    """What a Flax module is to its user: `init` and `apply`, all rows at once."""

    def init(self, key, x):
        return {"params": {"kernel": jax.random.normal(key, (x.shape[1], 5), jnp.float32)}}

    def apply(self, variables, x):
        return jnp.tanh(x @ variables["params"]["kernel"])


def flax_network():
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")
    return nn.Sequential([nn.Dense(5), nn.tanh])


def networks():
    yield "equinox", lambda: eqx.nn.MLP(1, 5, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    yield "like flax", Linen
    yield "flax", flax_network


NETWORKS = [
    pytest.param(make, id=name, marks=() if name == "like flax" else pytest.mark.slow) for name, make in networks()
]


@pytest.mark.parametrize("make", NETWORKS)
def test_any_network_may_give_the_features(make, tmp_path):
    x, y, group = lines()
    network = make()
    model = MetaRegressor(**QUICK | {"model": network}).fit(x, y, group)
    assert model.prior_.spec.features == 5 and model.prior_.prior.dist.mean.shape == (6, 1)
    model.save(tmp_path / "mine")
    with pytest.raises(ValueError, match="needs the network that it was learned with"):
        learned.load(tmp_path / "mine")
    back = learned.load(tmp_path / "mine", model=network)
    np.testing.assert_array_equal(back.adapt(x[:3], y[:3]).predict(x), model.adapt(x[:3], y[:3]).predict(x))


def test_other_methods_of_the_table_adapt_by_steps():
    x, y, group = lines()
    model = MetaRegressor(**QUICK | {"method": "maml", "max_iter": 200, "steps": 3}).fit(x, y, group)
    assert np.isfinite(model.adapt(x[:3], y[:3]).predict(x)).all()
    with pytest.raises(ValueError, match="must answer with 1 numbers"):
        MetaRegressor("maml", **QUICK, model=Linen()).fit(x, y, group)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda x, y, g: (x, y), "groups are needed"),
        (lambda x, y, g: (x, y, 0 * g), "only one group"),
        (lambda x, y, g: (x, y, np.arange(len(g))), "has a single row"),
        (lambda x, y, g: (x, np.where(g == 3, "much", y.astype(str)), g), "row [0-9]+ has 'much'"),
        (lambda x, y, g: (x, y, g[:-1]), "one for each of|the group of each of"),
        (lambda x, y, g: (x, np.where(g == 3, np.nan, y), g), "targets are missing"),
        (lambda x, y, g: (x, "births", g), "names a column, and X is a ndarray"),
        (lambda x, y, g: (x, y, np.where(g == 3, None, g)), "rows have no group"),
    ],
)
def test_bad_tables_are_refused_in_words(given, words):
    with pytest.raises(ValueError, match=words):
        MetaRegressor(**QUICK).fit(*given(*lines()))


def test_what_does_not_fit_is_refused_in_words(mixed_model):
    x, y, group = lines()
    with pytest.raises(NotFittedError):
        MetaRegressor().adapt(x, y)
    with pytest.raises(ValueError, match="features"):
        mixed_model.adapt(np.c_[x, x], y)
    with pytest.raises(ValueError, match="use AdaptedRegressor"):
        AdaptedClassifier(mixed_model.prior_).fit(x, y > 3)
    with pytest.raises(ValueError, match="unknown method"):
        MetaRegressor("gem-bml++").fit(x, y, group)
    with pytest.raises(ValueError, match="share between 0 and 1"):
        mixed_model.adapt(x[:2], y[:2]).predict_interval(x, level=90.0)


def test_a_group_alone_is_nearly_a_gaussian_process():
    """Without a learned prior: a sine from 30 noisy points, and doubt where there are none."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (30, 1))
    alone = AdaptedRegressor(random_state=0).fit(x, np.sin(x[:, 0]) + 0.05 * rng.normal(size=30))
    at = np.linspace(-2.5, 2.5, 50)[:, None]
    assert np.abs(alone.predict(at) - np.sin(at[:, 0])).max() < 0.2
    _, std = alone.predict(np.array([[0.0], [8.0]]), return_std=True)
    assert std[1] > 4 * std[0]


EXCEPTIONS: dict[str, str] = {}  # checks of scikit-learn's that are not passed, and why: none


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [AdaptedRegressor(), AdaptedClassifier()], ids=lambda one: type(one).__name__)
def test_scikit_learns_own_checks(estimator):
    found = check_estimator(estimator, expected_failed_checks=EXCEPTIONS, on_fail=None, on_skip=None)
    assert len(found) > 45
    failed = {one["check_name"]: str(one["exception"]) for one in found if one["status"] not in ("passed", "skipped")}
    assert failed == {}
    assert {one["check_name"] for one in found if one["status"] == "skipped"} <= {"check_array_api_input"}
