"""What `fit` was given, in whatever form, as three arrays: columns, targets, and the group of each row."""

from typing import Any, NamedTuple

import numpy as np

from metaprior.names import require_known


class Given(NamedTuple):
    """The columns as they came (an array or a DataFrame), targets and groups as arrays, and what targets are called."""

    X: Any
    y: np.ndarray
    groups: np.ndarray
    target: str
    group: str | None


def read(X: Any, y: Any, groups: Any, column: str | None) -> Given:
    """Columns of a DataFrame may be named instead of handed over; `column` names the groups where `groups` is None."""
    groups = column if groups is None else groups
    if groups is None:
        raise ValueError(
            "groups are needed, one for each row, to learn what they have in common: fit(X, y, groups), the name of a column "
            "of X, or groups= when the estimator is made. For a single group there is AdaptedRegressor or AdaptedClassifier"
        )
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")
    _require_apart(X, y, "y", "the target itself")
    _require_apart(X, groups, "groups", "the group of each row")
    target = y if isinstance(y, str) else str(getattr(y, "name", None) or "y")
    named = groups if isinstance(groups, str) else None
    values = _groups(_column(X, named) if named else groups, len(X))
    y, taken = targets(X, y), [name for name in (y, named) if isinstance(name, str)]
    X = X.drop(columns=taken) if taken else X
    return Given(readable(X), y, values, target, named)


def readable(X: Any, names: Any = None) -> Any:
    """A DataFrame as `columns` reads it: only the columns of these names, in this order; categories as words; no dates."""
    if not hasattr(X, "iloc") or not hasattr(X, "columns"):
        return X
    if names is not None:
        if missing := [str(name) for name in names if name not in X.columns]:
            raise ValueError(
                f"X has no column {missing[0]!r}, and the prior was learned with {', '.join(map(str, names))}; feature names "
                "should match those that were passed during fit"
            )
        X = X[list(names)]
    for name in X.columns:
        kind = getattr(X[name].dtype, "kind", "") if X.columns.is_unique else ""
        if kind in "mM" and kind:
            raise ValueError(dates(str(name)))
        if type(getattr(X[name], "dtype", None)).__name__ == "CategoricalDtype":
            # else categories that are numbers would be measured, and not told apart
            words = X[name].astype(object)
            X = X.assign(**{name: words.where(words.isna(), words.map(str))}) if isinstance(name, str) else X
    return X


def dates(name: str) -> str:
    """What to do about them."""
    return (
        f'column {name!r} holds dates: turn them into a number, days since the first say, (pd.to_datetime(table["{name}"]) - '
        f'pd.Timestamp("2020-01-01")).dt.days, for all tables in the same way'
    )


def _require_apart(X: Any, values: Any, argument: str, what: str) -> None:
    """A column that was handed over twice would be an input, too, and tell the answer."""
    name = getattr(values, "name", None)
    if isinstance(name, str) and hasattr(X, "columns") and name in X.columns and X[name].equals(values):
        raise ValueError(f"column {name!r} of X is {what}: leave it out of X, or pass {argument}={name!r}")


def targets(X: Any, y: Any) -> np.ndarray:
    """One for each row, none of them missing; the values, or the name of a column of X."""
    return _targets(_column(X, y) if isinstance(y, str) else y, len(X))


def _column(X: Any, name: str) -> Any:
    if not hasattr(X, "columns"):
        raise ValueError(
            f"{name!r} names a column, and X is a {type(X).__name__} without names: pass a DataFrame or the values"
        )
    if name not in X.columns:
        require_known("column of X", name, map(str, X.columns))
    return X[name]


def _targets(y: Any, count: int) -> np.ndarray:
    y = np.asarray(y)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or len(y) != count:
        raise ValueError(f"y must hold one target for each of {count} rows, got shape {list(y.shape)}")
    missing = np.array([value is None or value != value for value in y.tolist()], bool)
    if missing.any():
        raise ValueError(
            f"{missing.sum()} targets are missing, the first in row {int(missing.argmax())}: leave these rows out"
        )
    return y


def _groups(groups: Any, count: int) -> np.ndarray:
    groups = np.asarray(groups)
    if groups.ndim != 1 or len(groups) != count:
        raise ValueError(f"groups must name the group of each of {count} rows, got shape {list(groups.shape)}")
    missing = np.array([value is None or value != value for value in groups.tolist()], bool)
    if missing.any():
        raise ValueError(
            f"{missing.sum()} rows have no group, the first is row {int(missing.argmax())}: leave these rows out"
        )
    return groups.astype(str) if groups.dtype.kind == "O" else groups
