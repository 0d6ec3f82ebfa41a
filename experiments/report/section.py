"""What the report says of one results file: taken from the file and its study, written in no format yet."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import experiments
from experiments import study
from experiments.report.layout import Row, Table, tables
from experiments.report.numbers import duration

FIGURES = "figures"  # beneath the results


class Section(NamedTuple):
    """One study, or one benchmark, whose `paper` is empty."""

    name: str
    title: str
    paper: str
    tables: tuple[Table, ...]
    remarks: tuple[str, ...]
    origin: Mapping[str, tuple[str, ...]]  # "command", "seeds", … -> what the rows say of it, each once
    seconds: float
    figure: str | None  # as seen from the results
    is_smoke: bool


class Missing(NamedTuple):
    """A study without results."""

    name: str
    title: str


def sections(folder: Path = study.RESULTS) -> list[Section | Missing]:
    """Every study in order, then whatever else has rows of the same columns."""
    measured = lambda name: (folder / f"{name}.json").exists()
    studies = [of_study(name, folder) if measured(name) else _missing(name) for name in experiments.NAMES]
    strangers = sorted(path for path in folder.glob("*.json") if path.stem not in experiments.NAMES)
    found = [(path.stem, json.loads(path.read_text())) for path in strangers]
    return [*studies, *(of_benchmark(name, results, folder) for name, results in found if _has_rows(results))]


def _missing(name: str) -> Missing:
    return Missing(name, experiments.get(name).title)


def of_study(name: str, folder: Path) -> Section:
    """From its results file; its own functions say which rows are shown and what is to be said of them."""
    chosen, results = experiments.get(name), study.load(name, folder)
    try:
        shown, remarks = tuple(tables(chosen.shown(results))), tuple(chosen.remarks(results))
    except KeyError as lacking:
        raise ValueError(
            f"the results of {name} in {folder} lack {lacking}, which its file now asks for: metaprior reproduce {name} --fresh"
        ) from lacking
    words = {"title": chosen.title, "paper": chosen.paper, "remarks": (*remarks, *_unmeasured(results))}
    return _section(name, results, **words, tables=shown, figure=f"{FIGURES}/{name}.png")


def _unmeasured(results: study.Results) -> list[str]:
    missing = results.get("missing", [])
    count = "1 cell" if len(missing) == 1 else f"{len(missing)} cells"
    return [f"Not measured yet, {count}: {', '.join(missing)}."] if missing else []


def of_benchmark(name: str, results: study.Results, folder: Path) -> Section:
    """From rows alone; a figure of its name is shown if there is one."""
    figure = f"{FIGURES}/{name}.png"
    title = f"Benchmark: {name.removeprefix('bench-').replace('-', ' ')}"
    present = figure if (folder / figure).exists() else None
    shown = tuple(tables(results["rows"]))
    return _section(name, results, title=title, paper="", tables=shown, remarks=(), figure=present)


def _section(name: str, results: study.Results, **parts: Any) -> Section:
    rows, scale = results["rows"], results.get("settings", {}).get("scale")
    return Section(name, origin=origin(rows), seconds=seconds(rows), is_smoke=scale == "smoke", **parts)


def origin(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Where rows come from: command, seeds, hardware, time and version."""
    once = lambda column: tuple(dict.fromkeys(str(row[column]) for row in rows))
    took = f"{duration(seconds(rows))}, all cells together"
    return {
        "command": once("command"),
        "seeds": once("seeds"),
        "hardware": once("hardware"),
        "time": (took,),
        "commit": once("commit"),
    }


def seconds(rows: Sequence[Row]) -> float:
    """Of all cells. Each row says how long its whole cell took, and the rows of a cell are neighbours."""
    return sum(time for time, _ in groupby(row["seconds"] for row in rows) if time is not None)


def _has_rows(results: Any) -> bool:
    rows = results.get("rows") if isinstance(results, dict) else None
    return bool(rows) and all(set(study.COLUMNS) <= set(row) for row in rows)
