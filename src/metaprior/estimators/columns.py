"""The columns of a table as numbers: scaled, categories as indicators, missing values marked. Kept with the prior, as JSON."""

import re
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from metaprior.estimators.tables import dates

_DATE = re.compile(r"\d{4}-\d\d?-\d\d?\b|\d\d?[/.]\d\d?[/.]\d{2,4}\b")
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
MOST_CATEGORIES = 100  # more than that is a name, not a category


class Column(NamedTuple):
    """How one column is read."""

    name: str
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False  # whether values were missing when the prior was learned: an indicator then says where
    categories: tuple[str, ...] | None = None  # of words: one indicator each

    @property
    def width(self) -> int:
        """How many numbers it becomes."""
        return (1 if self.categories is None else len(self.categories)) + self.missing


class Columns(NamedTuple):
    """All of them, in order."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(column.width for column in self.columns)


def learn_columns(table: np.ndarray, names: list[str]) -> Columns:
    """From the rows that a prior is learned from."""
    return Columns(tuple(_learn(table[:, i], name) for i, name in enumerate(names)))


def encode(columns: Columns, table: np.ndarray) -> Float[np.ndarray, "N D"]:
    """Rows as the network sees them; what was never seen before is refused, and names its column."""
    parts = [_encode(column, table[:, i]) for i, column in enumerate(columns.columns)]
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(table), 0))


def as_json(columns: Columns) -> list[dict[str, Any]]:
    """For a file."""
    return [column._asdict() for column in columns.columns]


def from_json(values: list[dict[str, Any]]) -> Columns:
    """From a file, in which everything is looked at before it is believed."""
    return Columns(tuple(_checked(value) for value in values))


def _checked(value: Any) -> Column:
    try:
        categories = value["categories"]
        return Column(
            str(value["name"]), float(value["mean"]), float(value["std"]), bool(value["missing"]),
            None if categories is None else tuple(map(str, categories)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a column of the table is not described as it should be ({error!r})") from None


def _learn(values: np.ndarray, name: str) -> Column:
    numbers, absent = _as_numbers(values, name)
    if numbers is None:
        words = sorted({str(value) for value in values[~absent]})
        _require_words(values, absent, words, name)
        if len(words) > MOST_CATEGORIES:
            raise ValueError(
                f"column {name} holds {len(words)} different words, too many for categories (at most {MOST_CATEGORIES}): "
                "leave it out, or turn it into numbers"
            )
        return Column(name, missing=bool(absent.any()), categories=tuple(words))
    present = numbers[~absent]
    mean = float(present.mean()) if present.size else 0.0
    std = float(present.std()) if present.size else 0.0
    constant = not std > 1e-12 * max(1.0, abs(mean))
    return Column(name, mean, 1.0 if constant else std, bool(absent.any()))


def _require_words(values: np.ndarray, absent: np.ndarray, words: list[str], name: str) -> None:
    """Numbers with a stray word among them, and dates as text, are no categories: whoever reads a file gets both that way."""
    if not words:
        return
    if all(_DATE.match(word) for word in words):
        raise ValueError(dates(name))
    numeric = np.array([_is_number(value) or bool(_NUMBER.match(str(value))) for value in values[~absent]], bool)
    stray = int(np.flatnonzero(~absent)[int(numeric.argmin())])
    if not numeric.all() and 2 * numeric.sum() > len(numeric):
        raise ValueError(
            f"column {name} holds numbers, and {str(values[stray])!r} in row {stray}: mend it, or leave it empty (NaN) if it is "
            'missing. If these are names and no numbers, put a letter before each: "k" + table[…].astype(str)'
        )


def _encode(column: Column, values: np.ndarray) -> Float[np.ndarray, "N W"]:
    numbers, absent = _as_numbers(values, column.name, words=column.categories is not None)
    if absent.any() and not column.missing:
        raise ValueError(
            f"column {column.name} has missing values (NaN) and had none when the prior was learned: "
            "fill them in, or leave these rows out"
        )
    if column.categories is None:
        if numbers is None:
            first = next(str(value) for value in values[~absent] if not _is_number(value))
            raise ValueError(f"column {column.name} held numbers when the prior was learned, and now holds {first!r}")
        found = [np.where(absent, 0.0, (np.where(absent, 0.0, numbers) - column.mean) / column.std)]
    else:
        words = np.array([str(value) for value in values])
        unknown = sorted(set(words[~absent]) - set(column.categories))
        if unknown:
            raise ValueError(
                f"column {column.name} holds {str(unknown[0])!r}, which the prior has never seen (it knows "
                f"{', '.join(column.categories[:5])}{' and others' if len(column.categories) > 5 else ''}): "
                "leave these rows out, or learn the prior from groups that have it"
            )
        found = [((words == category) & ~absent).astype(float) for category in column.categories]
    return np.stack([*found, absent.astype(float)] if column.missing else found, axis=1)


def _as_numbers(values: np.ndarray, name: str, *, words: bool = False) -> tuple[np.ndarray | None, np.ndarray]:
    """The column as numbers, or None where it holds words; and where values are missing."""
    if values.dtype.kind in "mM":
        raise ValueError(dates(name))
    if values.dtype.kind in "fiub" and not words:
        numbers = values.astype(float)
        absent = np.isnan(numbers)
    else:
        absent = np.array([_is_missing(value) for value in values], bool)
        kinds = {type(value) for value in values[~absent]}
        if any(hasattr(kind, "isoformat") for kind in kinds):
            raise ValueError(dates(name))
        if strange := [kind for kind in kinds if not _is_readable(kind)]:
            # scikit-learn's own words for what float() refuses
            raise TypeError(f"column {name}: argument must be a string or a number, not {strange[0].__name__!r}")
        if words or not all(map(_is_number, values[~absent])):
            return None, absent
        numbers = np.array([np.nan if gone else float(value) for value, gone in zip(values, absent, strict=True)])
    if np.isinf(numbers).any():
        raise ValueError(f"column {name} holds infinity or a value too large for numbers of 64 bits: remove or mend it")
    return numbers, absent


def _is_readable(kind: type) -> bool:
    return issubclass(kind, str | bytes | bool | int | float | np.generic)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _is_missing(value: Any) -> bool:
    # pandas' NA is not equal to itself either, and has no truth value
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
