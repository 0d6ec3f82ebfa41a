"""Rows of results as tables of words: a line per method with its metrics side by side, or else a line per number."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.report.numbers import number, printed

Row = Mapping[str, Any]
WORDS = ("setting", "method", "metric")  # columns of words; all others hold numbers …
BESIDE = ("where", "what", "the paper", "found here", "verdict", "in words")  # … but these, of claims as well
MOST, MOST_TABLES = 12, 5  # metrics side by side, and tables of one study; beyond that, a list is easier to read


class Table(NamedTuple):
    """Cells as they are shown."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def is_words(self, column: int) -> bool:
        """Whether a column holds words, to be set from the left, or numbers."""
        return self.head[column] in (*WORDS, *BESIDE)


def tables(rows: Sequence[Row]) -> list[Table]:
    """Methods that have the same metrics, or some of them, share a table whose columns are the metrics."""
    pairs = _pairs(rows)
    metrics = {pair: tuple(row["metric"] for row in group) for pair, group in pairs.items()}
    columns = _columns(list(metrics.values()))
    shared: dict[tuple[str, ...], list[Row]] = {}
    for pair, names in metrics.items():
        shared.setdefault(next(each for each in columns if set(names) <= set(each)), []).extend(pairs[pair])
    is_list = any(len(set(names)) < len(names) for names in metrics.values())
    if is_list or len(shared) > MOST_TABLES or any(len(names) > MOST for names in shared):
        return [_list(rows)]
    return [_table(names, group) for names, group in shared.items()]


def _columns(metrics: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those that are not part of others."""
    found: list[tuple[str, ...]] = []
    for names in sorted(dict.fromkeys(metrics), key=len, reverse=True):
        found += [] if any(set(names) <= set(each) for each in found) else [names]
    return found


def _pairs(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        pairs.setdefault((row["setting"], row["method"]), []).append(row)
    return pairs


def _table(metrics: Sequence[str], rows: Sequence[Row]) -> Table:
    """A metric has a column for the paper's numbers only where the paper has some. What was not asked is left empty."""
    in_paper = {row["metric"] for row in rows if row["paper"] is not None}
    columns = [
        (metric, source) for metric in metrics for source in ("paper", "ours") if source == "ours" or metric in in_paper
    ]
    lines = []
    for pair, group in _pairs(rows).items():
        found = {row["metric"]: _cells(row) for row in group}
        values = (found[metric][source] if metric in found else "" for metric, source in columns)
        lines.append((*pair, *values, _seeds(group)))
    names = (f"{metric}, paper" if source == "paper" else metric for metric, source in columns)
    return Table((*WORDS[:2], *names, "seeds"), tuple(lines))


def _list(rows: Sequence[Row]) -> Table:
    lines = [(*(row[word] for word in WORDS), *_cells(row).values(), _seeds([row])) for row in rows]
    return Table((*WORDS, "paper", "ours", "seeds"), tuple(lines))


def _cells(row: Row) -> dict[str, str]:
    return {"paper": printed(row["paper"]), "ours": number(row["mean"], row["ci95"])}


def _seeds(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(str(row["seeds"]) for row in rows))
