"""Many small groups: scikit-learn estimators that learn from all of them what a new group needs only a few rows for."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from metaprior.estimators import tables
from metaprior.estimators.adapted import READ, AdaptedClassifier, AdaptedRegressor, as_targets, validate_data
from metaprior.estimators.columns import Columns, encode, learn_columns
from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.folds import doubts, require_groups, trainings
from metaprior.estimators.groups import gathered
from metaprior.estimators.learning import Course, Outcome, learn
from metaprior.estimators.networks import as_model
from metaprior.estimators.pieces import Spec, assemble, method_of
from metaprior.estimators.prior import TablePrior, Target, model_of, scaled, unadapted
from metaprior.estimators.publishing import publish, read_back
from metaprior.published import Published, PublishedError
from metaprior.runs import versions

SCORED = 5  # rows of a group that `score` adapts to


class MetaEstimator:
    """What both have in common."""

    _alone: Any  # the estimator of one group
    _metric: Any
    _target: Any
    get_params: Any
    prior_: TablePrior

    def __init__(
        self,
        method: str = "gem-bml+last-layer",
        *,
        groups: str | None = None,
        model: Any = None,
        hidden: tuple[int, ...] = (40, 40),
        shots: int | tuple[int, int] = 10,
        queries: int = 20,
        max_iter: int = 2000,
        meta_batch: int = 16,
        meta_rate: float | None = None,
        options: dict[str, Any] | None = None,
        steps: int = 10,
        validation_fraction: float = 0.3,
        random_state: Any = None,
        verbose: bool = True,
    ):
        self.method, self.groups, self.model, self.hidden, self.shots = method, groups, model, hidden, shots
        self.queries, self.max_iter, self.meta_batch, self.meta_rate = queries, max_iter, meta_batch, meta_rate
        self.options, self.steps, self.validation_fraction = options, steps, validation_fraction
        self.random_state, self.verbose = random_state, verbose

    def fit(self, X, y, groups=None):
        """Learn the prior from many groups.

        Args:
            X: rows and columns, an array or a DataFrame, of which every column but those of y and groups is an input; words
                are categories, NaN is missing.
            y: a target for each row, or the name of a column of X.
            groups: the group of each row, or the name of a column of X.
        """
        given = tables.read(X, y, groups, self.groups)
        table = validate_data(self, given.X, reset=True, **READ)
        names = [str(name) for name in getattr(self, "feature_names_in_", [f"x{i}" for i in range(table.shape[1])])]
        columns, target = learn_columns(table, names), self._target(given)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with small_and_precise():
            empty = self._empty(columns, target)
            pieces = assemble(empty.spec, model_of(empty), iterations=self.max_iter)
        rows = gathered(encode(columns, table), scaled(empty, given.y), given.groups)
        require_groups(np.asarray(rows.counts))
        if words := doubts(len(rows.counts), self.validation_fraction):
            warnings.warn(words, UserWarning, stacklevel=2)
        total = self.max_iter * trainings(len(rows.counts), self.validation_fraction)
        with _progress(total, shown=self.verbose) as report:
            outcome = learn(pieces, rows, self._course(seed, int(rows.counts.max())), report)
        self.n_groups_, self.validation_log_density_ = len(rows.counts), outcome.log_density
        learned = {name: getattr(outcome, name) for name in ("prior", "memory", "calibration")}
        self.prior_ = empty._replace(**learned, facts=self._facts(outcome, len(table), seed))
        self.target_, self.group_ = given.target, given.group
        if target.classes is not None:
            self.classes_ = np.asarray(target.classes)
        return self

    def save(self, folder: str | Path) -> None:
        """Publish the prior: safetensors, JSON and a model card, which `metaprior.load` reads without running anything."""
        check_is_fitted(self)
        params = {name: value for name, value in self.get_params().items() if name not in ("model", "random_state")}
        publish(self.prior_, folder, params, self.group_)

    def adapt(self, X, y):
        """The prior adapted to the rows of one group, ready to predict.

        Args:
            X: the columns that the prior was learned with; those of targets and groups may be there, and are not looked at.
            y: a target for each row, or the name of a column of X.
        """
        check_is_fitted(self)
        X, y = self._columns(X), tables.targets(X, y)
        validate_data(self, X, reset=False, **READ)
        return self._alone(prior=self.prior_, random_state=self.random_state).fit(X, y)

    def predict(self, X, **options):
        """For a group of which nothing is known yet: what the prior says by itself; see `adapt`."""
        check_is_fitted(self)
        return self._unadapted(X).predict(self._columns(X), **options)

    def score(self, X, y, groups=None, sample_weight=None):
        """Of groups that may be new: adapt to the first rows of each, five or half of them, and judge the rest.

        R² for numbers and accuracy for classes, over those rows of all groups together.
        """
        check_is_fitted(self)
        given, found = tables.read(X, y, groups, self.groups), []
        for group in np.unique(given.groups):
            rows = np.flatnonzero(given.groups == group)
            known, asked = np.split(rows, [min(SCORED, len(rows) // 2)])
            part = lambda rows: given.X.iloc[rows] if hasattr(given.X, "iloc") else np.asarray(given.X)[rows]
            adapted = self.adapt(part(known), given.y[known]) if len(known) else self._unadapted(part(asked))
            found.append((asked, adapted.predict(part(asked))))
        asked, values = (np.concatenate(part) for part in zip(*found, strict=True))
        weight = None if sample_weight is None else np.asarray(sample_weight)[asked]
        return self._metric(given.y[asked], values, sample_weight=weight)

    def _columns(self, X):
        """Those that the prior was learned with, by name where they have names; whatever else a table holds is left alone."""
        return tables.readable(X, getattr(self, "feature_names_in_", None))

    def _unadapted(self, X):
        """The prior as if it had been adapted to no rows at all."""
        alone = self._alone(prior=self.prior_)
        validate_data(alone, self._columns(X), reset=True, **READ)
        alone.prior_, alone.fitted_ = self.prior_, unadapted(self.prior_)
        if self.prior_.target.classes is not None:
            alone.classes_ = np.asarray(self.prior_.target.classes)
        return alone

    def _spec(self, columns: Columns, target: Target) -> Spec:
        kind, outputs = ("regression", 1) if target.classes is None else ("classification", len(target.classes))
        changes = dict(self.options or {}) | ({} if self.meta_rate is None else {"meta_rate": self.meta_rate})
        given: dict[str, Any] = {"hidden": tuple(self.hidden)}
        if self.model is not None:
            given = {"network": "given", "hidden": (), "features": as_model(self.model, columns.width)[1]}
        spec = Spec(
            kind, columns.width, outputs, self.method, tuple(sorted(changes.items())), steps=self.steps, **given
        )
        method_of(spec)  # refuses what does not go together, before any time is spent
        return spec

    def _empty(self, columns: Columns, target: Target) -> TablePrior:
        """All but what is to be learned."""
        nothing: Any = None
        named = hasattr(self, "feature_names_in_")
        return TablePrior(self._spec(columns, target), columns, target, nothing, (), nothing, self.model, named=named)

    def _course(self, seed: int, largest: int) -> Course:
        least, most = (0, self.shots) if isinstance(self.shots, int | np.integer) else tuple(self.shots)
        if not 0 <= least <= most or self.queries < 1:
            raise ValueError(
                f"shots must be a number or a rising pair and queries at least 1, got {self.shots} and {self.queries}"
            )
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction is a share of the groups below 1, got {self.validation_fraction}")
        most = max(1, min(most, largest - 1))
        queries = max(1, min(self.queries, largest))
        return Course(self.max_iter, self.meta_batch, (min(least, most), most), queries, self.validation_fraction, seed)

    def _facts(self, outcome: Outcome, rows: int, seed: int) -> dict[str, Any]:
        return {
            "rows": rows,
            "groups learned from": outcome.groups[0],
            "groups held out": outcome.groups[1],
            "iterations": self.max_iter,
            "seed": seed,
            "log density of a point of a held-out group, scaled, before calibration": float(
                np.nanmax(outcome.log_density)
            ),
            "versions": versions(),
        }

    def __sklearn_tags__(self):
        """NaN is read as missing, and words as categories."""
        above: Any = super()
        tags = above.__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags


class MetaRegressor(MetaEstimator, RegressorMixin, BaseEstimator):
    """Learns from many groups of rows, and adapts to a new group from a few.

    Args:
        method: a row of `metaprior methods`; the default infers its last layer exactly.
        groups: the column of X that names groups, where `fit` is not given them.
        model: a network of your own, an Equinox or Flax module or `metaprior.foreign(…)`; None is an MLP.
        hidden: widths of the MLP's layers; () is a linear mixed model.
        shots: most rows that training adapts to, or least and most.
        queries: most rows that training judges by.
        max_iter: meta-iterations.
        meta_batch: groups in each.
        meta_rate: step size of the meta-optimiser; None is the method's own.
        options: further fields of the method's row, `{"temperature": 0.1}`.
        steps: of adaptation, where the method takes steps.
        validation_fraction: share of the groups held out to stop and to calibrate by. With fewer than twenty groups, all are
            held out in turn instead, and training takes longer; 0 holds out none, and intervals are then not calibrated.
        random_state: a whole number makes everything repeatable.
        verbose: whether a terminal or a notebook shows a progress bar.
    """

    _alone, _metric = AdaptedRegressor, staticmethod(r2_score)

    def predict_interval(self, X, level: float = 0.9):
        """For a group of which nothing is known yet: both ends of the interval that holds a share `level`; see `adapt`."""
        check_is_fitted(self)
        return self._unadapted(X).predict_interval(self._columns(X), level)

    def _target(self, given: tables.Given) -> Target:
        y = as_targets(given.y)
        std = float(y.std())
        return Target(given.target, float(y.mean()), std if std > 1e-12 else 1.0)


class MetaClassifier(MetaEstimator, ClassifierMixin, BaseEstimator):
    """Learns from many groups of labelled rows, and adapts to a new group from a few. Groups share their classes.

    What it is made with is as for `MetaRegressor`.
    """

    _alone, _metric = AdaptedClassifier, staticmethod(accuracy_score)

    def predict_proba(self, X):
        """Probabilities of the classes for a group of which nothing is known yet; see `adapt`."""
        check_is_fitted(self)
        return self._unadapted(X).predict_proba(self._columns(X))

    def _target(self, given: tables.Given) -> Target:
        check_classification_targets(given.y)
        classes = np.unique(given.y)
        if len(classes) < 2:
            raise ValueError(f"all rows are of one class, {classes[0]!r}: there is nothing to tell apart")
        return Target(given.target, classes=tuple(classes.tolist()))


def load(found: Published, folder: str | Path, model: Any = None) -> MetaRegressor | MetaClassifier:
    """A fitted estimator from a published folder."""
    makers = {"regression": MetaRegressor, "classification": MetaClassifier}
    if found.kind not in makers:
        raise PublishedError(
            f"{folder} holds a prior of kind {found.kind!r}, which this metaprior does not know: use a newer one"
        )
    prior, params, group = read_back(found, folder, model)
    known = makers[found.kind]._get_param_names()
    made = makers[found.kind](**{name: _as_made(value) for name, value in params.items() if name in known}, model=model)
    made.prior_, made.group_, made.target_ = prior, group, prior.target.name
    made.n_features_in_ = len(prior.columns.columns)
    if prior.named:
        made.feature_names_in_ = np.array([column.name for column in prior.columns.columns], object)
    if prior.target.classes is not None:
        made.classes_ = np.asarray(prior.target.classes)
    return made


def _as_made(value: Any) -> Any:
    """JSON has lists for pairs."""
    return tuple(value) if isinstance(value, list) else value


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal and in a notebook, nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(
        console=console, disable=not (shown and (console.is_terminal or console.is_jupyter)), transient=True
    ) as bar:
        task = bar.add_task("learning the prior", total=total)
        yield lambda done: bar.update(task, completed=done)
