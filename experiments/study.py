"""What every experiment shares: independent cells of work, rows that say where they come from, and one way to run them.

An experiment is a file with a frozen dataclass of settings and a `STUDY`. Its work is cut into *cells* (one method in one
setting, say), each measured by itself: in any order, in several processes, and kept when a long run is cut off.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from experiments import side_by_side
from experiments.side_by_side import FOREVER, Cell
from metaprior.benchmarks.origin import commit, hardware
from metaprior.checkpoints import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
Results = dict[str, Any]

# The columns of every row, in the order of the file.
COLUMNS = (
    "experiment", "setting", "method", "metric", "paper", "mean", "ci95", "seeds", "command", "hardware", "seconds", "commit",
)  # fmt: skip
_MEASURED = ("setting", "method", "metric", "paper", "mean", "ci95")  # what a cell says of itself
_ORIGIN = ("hardware", "seconds", "commit")


class Study(NamedTuple):
    """One experiment."""

    name: str
    title: str
    paper: str  # what the paper claims or shows, in a sentence
    scales: Mapping[str, Any]  # "smoke" and "full" -> settings, frozen dataclasses with `seeds: tuple[int, ...]`
    cells: Callable[[Any], Sequence[Cell]]
    measure: Callable[[Any, Cell], Results]  # -> {"rows": [row(...), ...], "curves": {name: anything for JSON}}
    figure: Callable[[Results], Any]  # results -> a Matplotlib figure
    remarks: Callable[[Results], list[str]]  # honest sentences; their numbers come from the results
    # the rows of the table for people
    shown: Callable[[Results], list[dict[str, Any]]] = lambda results: results["rows"]
    # What is kept of a cell besides its results, thrown away.
    forget: Callable[[Any, Cell], None] = lambda settings, cell: None
    # What decides the outcome of a cell besides the settings, for JSON: where it changes, a kept cell no longer counts.
    rests_on: Callable[[Any, Cell], Any] = lambda settings, cell: None
    # The settings without what only says which cells there are: a cell that is added leaves the kept ones alone.
    decides: Callable[[Any], Any] = lambda settings: settings
    # Which seeds a cell has, where not all have the same.
    seeds_of: Callable[[Any, Cell], Sequence[int]] = lambda settings, cell: settings.seeds


def declare(
    module: str,
    *,
    title: str,
    paper: str,
    full: Any,
    smoke: Any,
    name: str | None = None,
    report: ModuleType | None = None,
) -> tuple[Study, Callable[[Any], Results]]:
    """The study of a file, and a function that runs it: its parts are the functions of the file that are called like them.

    Args:
        module: `__name__` of the file; of another one, where several studies share their parts.
        title: for people.
        paper: what the paper claims or shows.
        full: settings of what is reported.
        smoke: settings that show in little time that everything runs.
        name: what it is called on the command line; the file's own name if None.
        report: the file of what is shown (`figure`, `remarks`, `shown`), where that is another.
    """
    file = vars(sys.modules[module]) | ({} if report is None else vars(report))
    parts = {part: file[part] for part in Study._fields if part in file and callable(file[part])}
    called = name or module.rpartition(".")[2].replace("_", "-")
    study = Study(name=called, title=title, paper=paper, scales={"smoke": smoke, "full": full}, **parts)
    return study, lambda settings: run(study, settings)


def row(
    *, setting: str, method: str, metric: str, mean: float, ci95: float | None = None, paper: float | None = None
) -> dict[str, Any]:
    """One number. `ci95` is the half-width of its 95 % interval; `paper` what the paper prints, if it prints anything."""
    return {
        "setting": setting,
        "method": method,
        "metric": metric,
        "paper": paper,
        "mean": finite(mean),
        "ci95": finite(ci95),
    }


def run(
    study: Study,
    settings: Any,
    *,
    scale: str = "full",
    jobs: int = 1,
    keep: Path | None = None,
    before: Results | None = None,
    others: Results | None = None,
    only: Callable[[Cell], bool] = lambda cell: True,
    until: float = FOREVER,
    report: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Results:
    """Measure every cell of a study.

    Args:
        study: which.
        settings: of its own type.
        scale: what the command is called with, for the record.
        jobs: processes; one measures here.
        keep: folder in which finished cells are kept, so that a run that is cut off goes on; None keeps nothing.
        before: results of an earlier run, on whatever machine: its cells count as kept where they rest on the same settings.
        others: results whose cells count in the same way where they are not asked for: what a file has is not lost to a part.
        only: which cells to measure; the results also hold those that are kept.
        until: the time of `time.monotonic` after which no cell is begun; those that are not are missing.
        report: called as cells end with how many are done, how many there are, and the name of the last.
    """
    earlier, beside = ({} if known is None else pieces_of(known) for known in (before, others))
    prints = {cell: _print(study, settings, cell) for cell in study.cells(settings)}
    measured: dict[Cell, Results] = {}
    for cell, print_of in prints.items():
        on_file = earlier if only(cell) else beside | earlier
        if (kept := _kept(study, settings, cell, keep) or on_file.get(print_of)) is not None:
            measured[cell] = kept
    asked = [cell for cell in prints if cell not in measured and only(cell)]
    total = len(measured) + len(asked)
    report(len(measured), total, "")
    for cell, piece in side_by_side.each(measure, study, settings, asked, jobs, until):
        measured[cell] = piece
        if keep is not None:
            place = _place(study, settings, cell, keep)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, json.dumps(piece).encode())
        report(len(measured), total, " ".join(cell))
    for cell in asked:  # those that were not begun in time stay as a file has them
        if cell not in measured and (known := beside.get(prints[cell])) is not None:
            measured[cell] = known
    return _gathered(study, settings, scale, prints, measured)


def _gathered(
    study: Study, settings: Any, scale: str, prints: Mapping[Cell, str], measured: Mapping[Cell, Results]
) -> Results:
    """What a file says: the rows and curves of all cells that are measured, in the order of the study, and those that are not."""
    missing = ["/".join(cell) for cell in prints if cell not in measured]
    cells = [cell for cell in prints if cell in measured]
    command = f"metaprior reproduce {study.name} --scale {scale} --seeds {len(settings.seeds)}"
    origin = lambda cell: {
        "experiment": study.name, "seeds": len(study.seeds_of(settings, cell)), "command": command, **measured[cell]["origin"],
    }  # fmt: skip
    rows = [
        {column: (origin(cell) | row)[column] for column in COLUMNS} for cell in cells for row in measured[cell]["rows"]
    ]
    curves = {name: curve for cell in cells for name, curve in measured[cell].get("curves", {}).items()}
    found = {"settings": {"scale": scale, **plain(asdict(settings))}, "rows": rows, "curves": curves}
    # What another run needs to go on from these results alone: whose rows and curves are whose, and on what they rest. Those that
    # miss nothing need it, too: a study may get more cells.
    parts = [[prints[cell], len(measured[cell]["rows"]), list(measured[cell].get("curves", {}))] for cell in cells]
    return found | ({"missing": missing} if missing else {}) | {"cells": parts}


def lacks(study: Study, settings: Any, results: Results) -> bool:
    """Whether results miss any cell of the study as it is."""
    known = pieces_of(results)
    return any(_print(study, settings, cell) not in known for cell in study.cells(settings))


def pieces_of(results: Results) -> dict[str, Results]:
    """The cells of results by what they rest on."""
    pieces, rows = {}, iter(results["rows"])
    for print_of, count, names in results.get("cells", []):
        if not (mine := [next(rows) for _ in range(count)]):
            continue  # nothing says where it comes from
        pieces[print_of] = {
            "rows": [{column: each[column] for column in _MEASURED} for each in mine],
            "curves": {name: results["curves"][name] for name in names},
            "origin": {column: mine[0][column] for column in _ORIGIN},
        }
    return pieces


def measure(study: Study, settings: Any, cell: Cell) -> Results:
    """One cell, with where and how long."""
    start = time.perf_counter()
    piece = study.measure(settings, cell)
    origin = dict(zip(_ORIGIN, (hardware(), round(time.perf_counter() - start, 1), commit()), strict=True))
    return {**plain(piece), "origin": origin}


def _place(study: Study, settings: Any, cell: Cell, keep: Path) -> Path:
    """Where a cell is kept: other settings, another file."""
    return keep / study.name / f"{'-'.join(cell).replace('/', '-')}-{_print(study, settings, cell)}.json"


def _print(study: Study, settings: Any, cell: Cell) -> str:
    """Of all that a cell rests on."""
    others = study.rests_on(settings, cell)
    what = [plain(asdict(study.decides(settings))), list(cell), *([] if others is None else [plain(others)])]
    return sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def forget(study: Study, settings: Any, keep: Path, only: Callable[[Cell], bool] = lambda cell: True) -> None:
    """Delete what is kept of the cells of these settings, or only of some; those of other settings stay."""
    for cell in filter(only, study.cells(settings)):
        study.forget(settings, cell)
        _place(study, settings, cell, keep).unlink(missing_ok=True)


def _kept(study: Study, settings: Any, cell: Cell, keep: Path | None) -> Results | None:
    if keep is None or not (place := _place(study, settings, cell, keep)).exists():
        return None
    return json.loads(place.read_text())


# --- numbers ----------------------------------------------------------------------------------------------------------

# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom: few seeds deserve wide intervals.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def mean_and_ci(values: Any) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval of scores [seeds, tasks]: the spread over tasks and that over seeds add up.

    With one seed only the tasks speak; an array of one dimension is taken as repetitions of equal standing.
    """
    scores = np.asarray(values, float)
    if not np.isfinite(scores).all():  # one task that ran away takes the mean with it
        return float("nan"), float("nan")
    scores = scores[None] if scores.ndim == 1 else scores
    num_tasks = scores.shape[1]
    over_tasks = 1.96 * scores.mean(axis=0).std(ddof=1) / num_tasks**0.5 if num_tasks > 1 else 0.0
    return float(scores.mean()), float(np.hypot(over_tasks, over_seeds(scores.mean(axis=1))))


def over_seeds(values: Any) -> float:
    """Half-width of the 95 % interval of a mean of one number a seed, by Student's t; of one seed nothing is known: zero."""
    numbers = np.asarray(values, float)
    if len(numbers) < 2:
        return 0.0
    return float(_T95[min(len(numbers) - 1, len(_T95)) - 1] * numbers.std(ddof=1) / len(numbers) ** 0.5)


def verdict(difference: float, allowed: float) -> str:
    """Of a difference of which more is better, and whose interval may hold zero.

    >>> [verdict(gap, 1.0) for gap in (0.5, 2.0, -2.0)]
    ['not apart', 'better', 'worse']
    """
    return "not apart" if abs(difference) <= allowed else "better" if difference > 0 else "worse"


def finite(value: Any) -> float | None:
    """JSON has no NaN: what is not finite is null."""
    return None if value is None or not np.isfinite(value) else float(value)


def average(values: Any) -> float:
    """The mean of numbers from a results file; not a number where one of them is null, so that no failure is averaged away."""
    return float(np.mean(np.asarray(values, float)))


def plain(value: Any) -> Any:
    """Arrays, tuples and paths as JSON writes them."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float | np.floating) or getattr(value, "ndim", None) == 0:
        return plain(value.item()) if not isinstance(value, float) else finite(value)
    return [plain(item) for item in value]


# --- files ------------------------------------------------------------------------------------------------------------


def save(study: Study, results: Results, folder: Path = RESULTS) -> Path:
    """As `NAME.json`, wholly or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{study.name}.json"
    write_atomically(path, text(results).encode())
    return path


def text(results: Results) -> str:
    """JSON with a line for each row and each curve: short, and a change shows where it is."""
    rows = ",\n".join(json.dumps(each) for each in results["rows"])
    curves = ",\n".join(f"{json.dumps(name)}: {json.dumps(curve)}" for name, curve in results["curves"].items())
    others = "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in results.items() if k not in ("rows", "curves"))
    return f'{{\n{others}"rows": [\n{rows}\n],\n"curves": {{\n{curves}\n}}\n}}\n'


def load(name: str, folder: Path = RESULTS) -> Results:
    """The committed results of a study."""
    path = folder / f"{name}.json"
    if not path.exists():
        raise ValueError(f"there are no results of {name} in {folder}: run metaprior reproduce {name}")
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no whole results file ({error}): mend it, or move it away") from None


def module_of(name: str) -> str:
    """The file of a study: `a-star` is `experiments.a_star`."""
    return f"experiments.{name.replace('-', '_')}"


def find(name: str) -> Study:
    """The study that the file of that name holds."""
    return importlib.import_module(module_of(name)).STUDY
