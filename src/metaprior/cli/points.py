"""Columns of numbers from CSV files written by people: what is wrong is said with its row and column."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float


def read_columns(path: Path, columns: Sequence[str]) -> list[Float[np.ndarray, " N"]]:
    """The named columns of a CSV file with a header; no rows below the header is legal.

    Rows without anything in them are passed over; further columns are not looked at.
    """
    rows = _read(path)
    if not rows:
        raise ValueError(f"{path} is empty: its first line must be a header, {','.join(columns)}")
    header = [name.strip() for name in rows[0][1]]
    places = [_find(path, header, name) for name in columns]
    filled = [(line, row) for line, row in rows[1:] if any(cell.strip() for cell in row)]
    cell = lambda row, place: row[place] if place < len(row) else ""
    table = [
        [_number(path, count, line, name, cell(row, place)) for name, place in zip(columns, places, strict=True)]
        for count, (line, row) in enumerate(filled, start=1)
    ]
    return list(np.asarray(table, float).reshape(len(table), len(columns)).T)


def _read(path: Path) -> list[tuple[int, list[str]]]:
    """Rows with the numbers of their lines."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets begin their files with a mark
            reader = csv.reader(file)
            return [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}: check the path") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file ({error}): save it as CSV in UTF-8") from None


def _find(path: Path, header: list[str], name: str) -> int:
    if header.count(name) == 1:
        return header.index(name)
    found = ", ".join(header)
    if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in found), None)):
        raise ValueError(f"{path} separates its columns by {other!r}: save it with commas")
    if name in header:
        raise ValueError(f"{path} has more than one column {name!r} (its columns are {found}): rename one of them")
    raise ValueError(
        f"{path} has no column {name!r}: its first line names {found}; choose with --x-column and --y-column"
    )


def _number(path: Path, count: int, line: int, name: str, cell: str) -> float:
    where = f"{path}, row {count} (line {line}), column {name!r}"
    try:
        value = float(cell)
    except ValueError:
        problem = f"{cell.strip()!r} is not a number" if cell.strip() else "the cell is empty"
        raise ValueError(f"{where}: {problem}") from None
    if not math.isfinite(value):
        raise ValueError(f"{where}: {cell.strip()} is not finite")
    return value
