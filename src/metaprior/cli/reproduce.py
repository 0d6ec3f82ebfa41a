"""`metaprior reproduce`: run experiments of the source, and go on where an earlier run was cut off."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from metaprior.cli import checkout, console, exhausted
from metaprior.cli.arguments import parse
from metaprior.data.sets import VARIABLE
from metaprior.names import require_known

if TYPE_CHECKING:  # at run time, `checkout.enter` has to find them first
    from experiments.report import Section
    from experiments.study import Results, Study
else:
    Results = Section = Study = Any

HELP = """Run experiments: each writes its results as JSON and a figure, and prints a table and remarks.

examples:
  metaprior reproduce gradient-error
  metaprior reproduce all --scale smoke
  metaprior reproduce inner-steps --seeds 1 --jobs 2
  metaprior reproduce omniglot --setting 5w1s --data-dir FOLDER
  metaprior reproduce omniglot --complete --cells '*/imaml' '20w5s/longer/*' --data-dir FOLDER

The work is done in cells, and cells that are done are kept: a run that was cut off goes on with the same command, and with
--complete from its results alone, on another machine.

experiments:
"""
ALL = "all"
AT_ONCE = "METAPRIOR_AT_ONCE"  # what `experiments.turns` looks at, in all processes


@dataclass(frozen=True)
class Reproduce:
    """The flags of `metaprior reproduce`."""

    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")
    ] = ()
    """Which experiments: `all` for all of them, nothing for a list."""
    scale: Literal["smoke", "full"] = "full"
    """Smoke shows that everything runs, full is what is reported."""
    seeds: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: as many as the experiment has)")] = None
    """Number of repetitions."""
    jobs: int = 1
    """Processes that measure cells side by side."""
    at_once: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: all of them)")] = None
    """How many of them compute at a time, where they share a card, while the others compile."""
    minutes: Annotated[float | None, tyro.conf.arg(help_behavior_hint="(default: no limit)")] = None
    """Begin no cell later than this; those under way are measured, and the same command goes on with the others."""
    setting: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(default: all of them)")
    ] = ()
    """Only these settings of an experiment that has several, such as 5w1s."""
    cells: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="PATTERN ...", help_behavior_hint="(default: all of them)")
    ] = ()
    """Only cells whose name fits one of these patterns, such as '*/maml'. Results that miss cells name them."""
    data_dir: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: where METAPRIOR_DATA says)")] = None
    """Where the images are."""
    fresh: bool = False
    """Measure anew what is kept of an earlier run."""
    kept: bool = False
    """Measure nothing: write down what is kept so far, and which cells are missing."""
    complete: bool = False
    """Take over the cells of results that are not complete, wherever they were measured; what is missing is measured."""
    out: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: results in the source; at smoke scale results/smoke)")
    ] = None
    """Folder for NAME.json and figures/NAME.png."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Reproduce, argv, prog="metaprior reproduce", help=_help(argv))
    for flag, least in (("seeds", 1), ("jobs", 1), ("at_once", 1), ("minutes", 0)):
        if (value := getattr(asked, flag)) is not None and value < least:
            raise ValueError(f"--{flag.replace('_', '-')} must be at least {least}, got {value:g}")
    if asked.fresh and asked.kept:
        raise ValueError("--fresh throws away what --kept would write down: leave one of them out")
    if asked.fresh and asked.complete:
        raise ValueError("--fresh measures anew what --complete would take over: leave one of them out")
    checkout.enter()
    if asked.data_dir is not None:
        os.environ[VARIABLE] = str(asked.data_dir.resolve())  # for other processes, too
    if asked.at_once is not None:
        os.environ[AT_ONCE] = str(asked.at_once)
    if not asked.names:
        print(f"{listing()}\nto run one: metaprior reproduce NAME; to see in little time that it runs: --scale smoke")
        return 0
    until = time.monotonic() + 60 * (math.inf if asked.minutes is None else asked.minutes)
    for study in studies(asked.names):
        reproduce(study, asked, until)
    return 0


def _help(argv: Sequence[str]) -> str:
    if not {"-h", "--help"} & set(argv):
        return HELP  # titles are in the files of the experiments, which take a while to load
    try:
        checkout.enter()
    except ValueError as missing:
        return f"{HELP}  {missing}"
    return HELP + listing()


def listing() -> str:
    """Every experiment with its title; one that cannot be loaded does not hide the others."""
    from experiments import NAMES

    width = max(map(len, NAMES))
    return "\n".join(f"  {name:<{width}}  {_title(name)}" for name in NAMES)


def _title(name: str) -> str:
    try:
        return _load(name).title
    except ValueError as problem:
        return f"({problem})"


def studies(names: Sequence[str]) -> list[Study]:
    """Those of these names, each once. All are loaded before hours go into the first."""
    from experiments import NAMES

    for name in names:
        require_known("experiment", name, (*NAMES, ALL))
    return [_load(name) for name in (NAMES if ALL in names else dict.fromkeys(names))]


def _load(name: str) -> Study:
    from experiments import get

    try:
        return get(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} cannot be loaded here: {error}") from error


def reproduce(study: Study, asked: Reproduce, until: float) -> None:
    """One experiment: measure, save, draw, show. Of one for which there was no time at all nothing is written."""
    from experiments import report
    from experiments.study import RESULTS, save

    settings = study.scales[asked.scale]
    if asked.seeds is not None:
        first = settings.seeds[0]  # what is only for validation has seeds apart from those that are reported
        settings = replace(settings, seeds=tuple(range(first, first + asked.seeds)))
    folder = asked.out or (RESULTS / "smoke" if asked.scale == "smoke" else RESULTS)
    before = unfinished(study, settings, folder) if asked.complete else None
    found = measure(study, settings, asked, until, before, on_file(study, folder))
    if not found["rows"] and asked.minutes is not None:
        console.note(f"no cell of {study.name} was begun within {asked.minutes:g} minutes: the same command goes on")
        return
    path = save(study, found, folder)
    figure = report.draw(study.name, folder)
    show(report.of_study(study.name, folder))
    print(f"results: {path}\nfigure: {figure}")


def unfinished(study: Study, settings: Any, folder: Path) -> Results:
    """Results to go on from; those that miss nothing are not to be replaced by themselves."""
    from experiments.study import lacks, load

    found = load(study.name, folder)
    if "cells" not in found:
        raise ValueError(
            f"the results of {study.name} in {folder} do not say whose rows are whose (an older version wrote them): "
            "--fresh measures them anew"
        )
    if not lacks(study, settings, found):
        raise ValueError(f"the results of {study.name} in {folder} miss nothing: --fresh measures them anew")
    return found


def on_file(study: Study, folder: Path) -> Results | None:
    """Results that are there already: a part of a study that is measured anew does not take the place of the rest."""
    from experiments.study import load

    return load(study.name, folder) if (folder / f"{study.name}.json").exists() else None


def measure(
    study: Study, settings: Any, asked: Reproduce, until: float, before: Results | None, others: Results | None
) -> Results:
    """The cells that are not kept from before; a run that is stopped says how to go on."""
    from experiments.study import ROOT, forget, run

    keep = ROOT / ".cache" / "reproduce"
    only = chosen(study, settings, asked.setting, asked.cells)
    if asked.kept:
        only = lambda cell: False
    if asked.fresh:
        forget(study, settings, keep, only)
    counted = (0, 0)
    advice = lambda: f"{kept(study, asked, counted)}; {less(asked)}"
    with exhausted.explained(advice), progress(study.name) as (start, end):

        def report(done: int, total: int, cell: str) -> None:
            nonlocal counted
            counted = done, total
            end(done, total, cell)

        # Only cells that are measured in this process can be named when they start.
        named = study._replace(measure=lambda settings, cell: (start(" ".join(cell)), study.measure(settings, cell))[1])
        try:
            found = run(
                named, settings, scale=asked.scale, jobs=asked.jobs, keep=keep, before=before, others=others, only=only,
                until=until, report=report,
            )  # fmt: skip
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {kept(study, asked, counted)}") from None
    if not found["rows"] and asked.kept:
        raise ValueError(f"no cell of {study.name} is kept: leave --kept out, and it is measured")
    return found


def kept(study: Study, asked: Reproduce, counted: tuple[int, int]) -> str:
    """Of a run that ended too early: what is not lost, and how to go on."""
    how = "the same command goes on from there" + (", without --fresh" if asked.fresh else "")
    return f"{counted[0]} of {counted[1]} cells of {study.name} are kept: {how}"


def less(asked: Reproduce) -> str:
    """What to turn down where memory is short: what a cell is made of is the experiment's own, side by side they need not be."""
    if asked.jobs > 1:
        return f"lower --jobs ({asked.jobs})"
    return "choose others with --setting or --cells" + (", or --scale smoke" if asked.scale == "full" else "")


def chosen(
    study: Study, settings: Any, names: Sequence[str], patterns: Sequence[str] = ()
) -> Callable[[tuple[str, ...]], bool]:
    """Whether a cell belongs to these settings, which are the first words of cells, and fits a pattern; none choose all."""
    cells = study.cells(settings)
    for name in names:
        require_known(f"setting of {study.name}", name, list(dict.fromkeys(cell[0] for cell in cells)))
    fits = lambda cell, pattern: fnmatchcase("/".join(cell), pattern)
    for pattern in patterns:
        if not any(fits(cell, pattern) for cell in cells):
            known = ", ".join("/".join(cell) for cell in cells)
            raise ValueError(f"no cell of {study.name} fits {pattern!r}; there are {known}")
    return lambda cell: (
        (not names or cell[0] in names) and (not patterns or any(fits(cell, pattern) for pattern in patterns))
    )


@contextmanager
def progress(name: str) -> Iterator[tuple[Callable[[str], None], Callable[[int, int, str], None]]]:
    """What to call when a cell starts and when one ends: a live bar on a terminal, a line per cell elsewhere."""
    began = time.perf_counter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("cells"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[cell]}"),
    )
    with Progress(*columns, console=console.output(), disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task(name, total=None, cell="")

        def start(cell: str) -> None:
            bar.update(task, cell=cell)
            if bar.disable:
                print(f"{name}  begins {cell}", flush=True)

        def end(done: int, total: int, cell: str) -> None:
            bar.update(task, completed=done, total=total, cell=f"done: {cell}" if cell else "")
            if not cell and done:
                console.note(f"{done} of {total} cells of {name} are kept from before; --fresh measures them anew")
            elif cell and bar.disable:
                print(f"{name}  {done}/{total}  {cell}  {time.perf_counter() - began:.0f} s", flush=True)

        yield start, end


def show(section: Section) -> None:
    """The tables and the remarks."""
    screen = console.output()
    screen.print(f"\n{section.title}")
    for table in section.tables:
        grid = Table(box=box.SIMPLE_HEAD)
        for column, name in enumerate(table.head):
            grid.add_column(name, justify="left" if table.is_words(column) else "right")
        for line in table.lines:
            grid.add_row(*line)
        screen.print(grid)
    for remark in section.remarks:
        screen.print(f"- {' '.join(remark.split())}")
