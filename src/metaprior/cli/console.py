"""What people see besides results: notes, spinners, and the progress of training on a terminal or in a log file."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from metaprior.training import Progress

PLAIN_LINES = 10  # of a whole run, where there is no terminal
WIDE = 240  # columns, where there is no terminal


def output() -> Console:
    """For results: stdout. Made when asked for: what stdout is may change between two commands of one process."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE)


def note(message: str) -> None:
    """For what people should know and programs should not read: one line on stderr."""
    print(f"note: {message}", file=sys.stderr, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on stderr while something takes its time; nothing where there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"{what} …"):
        yield


@contextmanager
def progress(total: int, *, start: int = 0, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """What `training.train` is to call after each chunk: a live bar on a terminal, about ten lines elsewhere.

    Notes and warnings are shown in any case, also where `quiet` hides the rest.
    """
    if quiet:
        yield _notes
    elif sys.stdout.isatty():
        with _bar() as bar:
            yield _on_bar(bar, total, start)
    else:
        yield _in_lines(total, start)


def _bar() -> Bar:
    columns = (
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[metrics]}"),
    )
    return Bar(*columns, console=output())


def _on_bar(bar: Bar, total: int, start: int) -> Callable[[Progress], None]:
    task = bar.add_task("", total=total, completed=start, metrics="compiling …")
    describe = _describer()

    def advance(report: Progress) -> None:
        for line in report.warnings:  # by the bar's own console, which writes them above the bar
            bar.console.print(f"note: {line}")
        bar.update(task, completed=report.iteration, metrics=describe([report]))

    return advance


def _in_lines(total: int, start: int) -> Callable[[Progress], None]:
    """A line whenever another tenth of the run is done."""
    tenth = lambda iteration: iteration * PLAIN_LINES // max(total, 1)
    shown, waiting, describe = tenth(start), [], _describer()

    def advance(report: Progress) -> None:
        nonlocal shown, waiting
        _notes(report)
        waiting.append(report)
        if tenth(report.iteration) > shown:
            print(f"{report.iteration:>{len(str(total))}}/{total}  {describe(waiting)}", flush=True)
            shown, waiting = tenth(report.iteration), []

    return advance


def _notes(report: Progress) -> None:
    for line in report.warnings:
        note(line)


def _describer() -> Callable[[list[Progress]], str]:
    """Puts the newest of a few reports into words, with the speed since the last time and the tasks left out so far."""
    before: tuple[float, int] | None = None  # the first time, compilation would spoil the speed
    left_out, nll = 0, math.nan

    def describe(reports: list[Progress]) -> str:
        nonlocal before, left_out, nll
        now, newest = time.perf_counter(), reports[-1]
        speed = before and (newest.iteration - before[1]) / max(now - before[0], 1e-9)
        before, left_out = (now, newest.iteration), left_out + sum(int(report.info.left_out) for report in reports)
        looks = [float(report.info.query_nll) for report in reports]  # of images not every iteration is looked at
        nll = next((look for look in reversed(looks) if math.isfinite(look)), nll)
        parts = [in_returns(newest.returns) if newest.returns else f"query NLL {nll:.3f}"]
        for word, logs in (("widths", newest.info.log_std), ("rates ×", newest.info.log_rate)):
            parts += [f"{word} {extent(np.asarray(logs))}"] if np.isfinite(logs).all() else []
        parts += [f"{speed:,.{0 if speed >= 10 else 1}f} it/s"] if speed else []
        return "  ".join([*parts, *([f"{left_out} tasks left out"] if left_out else [])])

    return describe


def in_returns(returns: Sequence[float | None]) -> str:
    """What a look at a few validation tasks found; a dash where it is no number.

    >>> in_returns((-41.7, None))
    'return −41.7, after an update –'
    """
    known = [value is not None and math.isfinite(value) for value in returns]
    before, after = (
        f"{value:,.1f}".replace("-", "−") if sure else "–" for value, sure in zip(returns, known, strict=True)
    )
    return f"return {before}, after an update {after}"


def extent(logs: Float[np.ndarray, "3"]) -> str:
    """Least and largest of a part of the prior, from (mean, least, largest) of its logarithms.

    >>> extent(np.log([0.05, 0.01, 0.25]))
    '0.01–0.25'
    """
    return "–".join(f"{value:.2g}" for value in np.exp(logs[1:]))
