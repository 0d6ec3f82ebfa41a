"""One group: scikit-learn estimators that a learned prior, or a generic one, makes sure of themselves from a few rows."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from sklearn.utils.validation import validate_data as _validate_data

from metaprior.estimators import answers, tables
from metaprior.estimators.generic import generic_prior
from metaprior.estimators.prior import Fitted, TablePrior, adapt, class_functions, predict

validate_data: Any = _validate_data  # it returns one array or two, and its types say anything
READ: dict[str, Any] = dict(dtype=None, ensure_all_finite=False)  # columns say themselves what they cannot take


class AdaptedEstimator(BaseEstimator):
    """What both have in common; `prior=None` takes a generic prior, fitted to the group alone."""

    _kind: str
    prior_: TablePrior
    fitted_: Fitted

    def __init__(self, prior: Any = None, *, random_state: Any = None):
        self.prior, self.random_state = prior, random_state

    def _begin(self, X, y, *, reset: bool = True):
        self._require_prior()
        X, y = validate_data(self, self._readable(X), y, reset=reset, ensure_min_samples=1, **READ)
        if self.prior is not None and X.shape[1] != len(self.prior.columns.columns):
            names = ", ".join(column.name for column in self.prior.columns.columns)
            raise ValueError(
                f"the prior was learned with {len(self.prior.columns.columns)} columns ({names}), got {X.shape[1]}"
            )
        return X, y

    def _readable(self, X):
        """Where there is a learned prior, its columns by name; alone, scikit-learn's rule: the columns of `fit` and no others."""
        if self.prior is None or not self.prior.named:
            return tables.readable(X)
        return tables.readable(X, [column.name for column in self.prior.columns.columns])

    def _require_prior(self):
        kind = type(self)._kind
        if self.prior is None:
            return
        if not isinstance(self.prior, TablePrior):
            raise ValueError(f"prior is a {type(self.prior).__name__}: pass the prior_ of a fitted Meta{kind}, or None")
        if (self.prior.target.classes is None) != (kind == "Regressor"):
            other = "Classifier" if kind == "Regressor" else "Regressor"
            raise ValueError(f"this prior was learned for the other kind of target: use Adapted{other}")

    def _names(self, count: int) -> list[str]:
        return [str(name) for name in getattr(self, "feature_names_in_", [f"x{i}" for i in range(count)])]

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _answer(self, X, *, num_functions: int = 0, seed: int = 0) -> Any:
        check_is_fitted(self)
        X = validate_data(self, self._readable(X), reset=False, **READ)
        return predict(self.prior_, self.fitted_, X, num_functions=num_functions, seed=seed), len(X)

    def __repr__(self, N_CHAR_MAX=700):
        """Without the numbers of the prior, of which there are thousands."""
        if self.prior is None:
            return super().__repr__(N_CHAR_MAX)
        about = f"{self.prior.spec.method} for {self.prior.target.name}" if isinstance(self.prior, TablePrior) else "…"
        return f"{type(self).__name__}(prior=<{about}>, random_state={self.random_state!r})"

    def export(self, path) -> None:
        """Predictions as one StableHLO file, which `metaprior.exported` runs: neither this class nor the prior is needed."""
        from metaprior.estimators.exporting import export

        check_is_fitted(self)
        export(self.prior_, self.fitted_, path)

    def __sklearn_tags__(self):
        """NaN is read as missing, and words as categories."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags


class AdaptedRegressor(RegressorMixin, AdaptedEstimator):
    """Regression in one group.

    Args:
        prior: the `prior_` of a fitted `MetaRegressor`; None is a generic one, fitted to the group alone.
        random_state: of the generic prior's random waves, and of sampled methods.
    """

    _kind = "Regressor"

    def fit(self, X, y):
        """Adapt to the rows of one group."""
        X, y = self._begin(X, y)
        y = as_targets(y)
        seed = self._seed()
        self.prior_ = self.prior or generic_prior(X, y, self._names(X.shape[1]), classes=None, seed=seed)
        self.fitted_ = adapt(self.prior_, X, y, seed=seed)
        return self

    def predict(self, X, *, return_std: bool = False):
        """The expected target, and with `return_std` its standard deviation, noise included."""
        found, count = self._answer(X)
        mean, std = answers.moments(self.prior_.target, found, count)
        return (mean, std) if return_std else mean

    def predict_interval(self, X, level: float = 0.9):
        """Lower and upper ends of the central interval that holds a share `level` of what may be observed."""
        found, count = self._answer(X)
        return answers.interval(self.prior_.target, found, count, level)

    def log_density(self, X, y):
        """Log p(y) of each row."""
        found, count = self._answer(X)
        y = as_targets(np.asarray(y))
        if y.shape != (count,):
            raise ValueError(f"y must hold one target for each of {count} rows, got shape {list(y.shape)}")
        return answers.log_density(self.prior_.target, found, y)

    def sample_functions(self, X, n_samples: int = 20, *, random_state=0):
        """Draws of the noise-free function at the rows of `X`, one each row of the result."""
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        found, count = self._answer(X, num_functions=n_samples, seed=seed)
        return self.prior_.target.mean + self.prior_.target.std * np.asarray(found.functions)[:, :count, 0]


class AdaptedClassifier(ClassifierMixin, AdaptedEstimator):
    """Classification in one group.

    Args:
        prior: the `prior_` of a fitted `MetaClassifier`, whose classes it has; None is a generic one.
        random_state: of the generic prior's random waves, and of sampled methods.
    """

    _kind = "Classifier"

    def fit(self, X, y):
        """Adapt to the rows of one group."""
        X, y = self._begin(X, y)
        check_classification_targets(y)
        seed, found = self._seed(), np.unique(y)
        if self.prior is None:
            numbers = np.asarray(np.searchsorted(found, y))
            self.prior_ = generic_prior(X, numbers, self._names(X.shape[1]), classes=found, seed=seed)
        else:
            self.prior_ = self.prior
            known = np.asarray(self.prior.target.classes)
            if unknown := [value for value in found.tolist() if value not in self.prior.target.classes]:
                raise ValueError(f"class {unknown[0]!r} is none of those the prior knows: {', '.join(map(str, known))}")
        self.classes_ = np.asarray(self.prior_.target.classes, dtype=found.dtype if self.prior is None else None)
        self.fitted_ = adapt(self.prior_, X, y, seed=seed)
        return self

    def predict_proba(self, X):
        """Probabilities of the classes, in the order of `classes_`."""
        found, count = self._answer(X)
        return np.asarray(found.probabilities)[:count]

    def predict(self, X):
        """The most probable class."""
        numbers = self.predict_proba(X).argmax(axis=1)
        return self.classes_[numbers]

    def log_density(self, X, y):
        """Log probability of the right class, row by row."""
        probabilities = self.predict_proba(X)
        return np.log(probabilities[np.arange(len(y)), np.searchsorted(self.classes_, y)])

    def sample_functions(self, X, n_samples: int = 20, *, random_state=0):
        """Draws of the class probabilities at the rows of `X`: [draws, rows, classes]."""
        check_is_fitted(self)
        X = validate_data(self, self._readable(X), reset=False, **READ)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return class_functions(self.prior_, self.fitted_, X, n_samples, seed)


def as_targets(y: np.ndarray) -> np.ndarray:
    """Numbers, or a refusal."""
    try:
        return np.asarray(y, float)
    except (TypeError, ValueError):
        row, value = next(
            (row, value) for row, value in enumerate(np.asarray(y).ravel().tolist()) if not _is_float(value)
        )
        raise ValueError(
            f"the targets of a regression are numbers, and row {row} has {value!r}: mend it, or use the classifier for classes"
        ) from None


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
