"""`metaprior data`: what a folder of images holds, and Omniglot from where its authors published it."""

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from metaprior.cli.arguments import parse
from metaprior.data import Report, check, download
from metaprior.data.check import CLASS_FOLDER
from metaprior.data.problems import SHOWN
from metaprior.data.sets import HOW, VARIABLE
from metaprior.names import require_known

HELP = """usage: metaprior data WHAT …

Real images to learn from: Omniglot, miniImageNet, or a folder of your own with a sub-folder for each class.

what:
  check   say what a folder holds, and by name what is missing or broken
  get     download Omniglot

examples:
  metaprior data get omniglot --out data
  metaprior data check data

options:
  -h, --help   this text; of either: metaprior data check --help
"""

CHECK_HELP = """Read all images of a folder and say what they are; nothing is written.

examples:
  metaprior data check data
  metaprior data check photos --json | jq '.found[].splits.all.classes'

Known are Omniglot (packed npz files, or images_background and images_evaluation as zip files or folders), miniImageNet (packed
npz files, or images/ with train.csv, val.csv and test.csv) and any folder CLASS/*.jpg or *.png. The exit code is 0 if one
of them is there and whole, and 2 otherwise."""

GET_HELP = """Download a data set: two zip files, 16 MB, which need not be unpacked.

examples:
  metaprior data get omniglot
  metaprior data get omniglot --out data --from https://mirror.example.org/omniglot

A download that broke off goes on where it stopped. Files are kept only if they are those the authors published."""

BAD = 2


@dataclass(frozen=True)
class Check:
    """The flags of `metaprior data check`."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Where the images are."""
    json: bool = False
    """Print one JSON object, with all problems, on stdout."""


@dataclass(frozen=True)
class Get:
    """The flags of `metaprior data get`."""

    name: Annotated[str, tyro.conf.Positional]
    """Which data set: omniglot."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint=f"(default: that of {VARIABLE}, or data)")] = None
    """Folder for the files."""
    source: Annotated[str, tyro.conf.arg(name="from", metavar="URL")] = download.OMNIGLOT_URL
    """Where the two zip files lie."""


def run(argv: list[str]) -> int:
    """The command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    commands = {"check": run_check, "get": run_get}
    require_known("data command", argv[0], commands)
    return commands[argv[0]](argv[1:])


def run_check(argv: list[str]) -> int:
    """`metaprior data check`."""
    asked = parse(Check, argv, prog="metaprior data check", help=CHECK_HELP)
    try:
        with _terminal().status("reading images …"):  # shows nothing where there is no terminal
            reports = check(asked.folder)
    except ValueError as error:  # nothing was found: said where others say what was
        if asked.json:
            print(json.dumps({"folder": str(asked.folder), "usable": False, "found": [], "problem": str(error)}))
        raise
    usable = any(not report.problems for report in reports)
    if asked.json:
        print(json.dumps({"folder": str(asked.folder), "usable": usable, "found": [as_dict(each) for each in reports]}))
    else:
        screen = Console(highlight=False, markup=False, soft_wrap=True)
        for report in reports:
            screen.print(headline(report))
            screen.print("\n".join(problem_lines(report)) if report.problems else table(report))
    return 0 if usable else BAD


def run_get(argv: list[str]) -> int:
    """`metaprior data get`."""
    asked = parse(Get, argv, prog="metaprior data get", help=GET_HELP)
    require_known("data set", asked.name, HOW)
    if asked.name != "omniglot":
        raise ValueError(f"only omniglot can be downloaded: of {asked.name}, {HOW[asked.name]}")
    folder = asked.out or Path(os.environ.get(VARIABLE) or "data")
    with progress() as on_progress:
        new = download.get(folder, download.OMNIGLOT, url=asked.source, on_progress=on_progress)
    for file in download.OMNIGLOT:
        print(f"{folder / file.name}: {'downloaded' if folder / file.name in new else 'was there already'}")
    print(f"next: metaprior data check {shlex.quote(str(folder))}")
    return 0


def as_dict(report: Report) -> dict[str, Any]:
    """A report for JSON."""
    shape = next((images.pixels.shape[1:] for images in report.splits.values()), None)
    splits = {
        split: {"num_classes": len(images.classes), "num_images": len(images.pixels)}
        | {"classes": dict(zip(images.classes, images.counts.tolist(), strict=True))}
        for split, images in report.splits.items()
    }
    about = {"name": report.name, "folder": str(report.folder), "layout": report.layout, "files": report.files}
    return {**about, "size": shape, "splits": splits, "problems": report.problems}


def headline(report: Report) -> str:
    """What was found, in a line."""
    files = f" ({', '.join(report.files)})" if report.files else ""
    return f"{report.name}: {report.layout}{files} in {report.folder}"


def table(report: Report) -> Table:
    """Classes and images of each split, or of a folder of classes the images of each class; their sums last."""
    height, width, channels = next(iter(report.splits.values())).pixels.shape[1:]
    title = f"whole; read as {height} × {width} pixels, {channels} {'channel' if channels == 1 else 'channels'}"
    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="")
    if report.layout == CLASS_FOLDER:
        images = report.splits["all"]
        head, rows = ("class", "images"), dict(zip(images.classes, images.counts.reshape(-1, 1), strict=True))
        alone = "1 class: to tell apart takes two" if len(rows) == 1 else f"{len(rows):,} classes"
        sums = (alone, f"{len(images.pixels):,}")
    else:
        head = ("split", "classes", "images")
        rows = {split: (len(images.classes), len(images.pixels)) for split, images in report.splits.items()}
        sums = ("", *(f"{sum(column):,}" for column in zip(*rows.values(), strict=True)))
    for name in head:
        grid.add_column(name, justify="left" if name == head[0] else "right")
    for name, numbers in rows.items():
        grid.add_row(name, *(f"{number:,}" for number in numbers))
    grid.add_section()
    grid.add_row(*sums)
    return grid


def problem_lines(report: Report) -> list[str]:
    """The first problems, a line each, and how many more there are."""
    shown = [f"  - {problem}" for problem in report.problems[:SHOWN]]
    more = len(report.problems) - len(shown)
    return ["not usable:", *shown, *([f"  and {more} more, which --json lists"] if more else [])]


@contextmanager
def progress() -> Iterator[download.OnProgress]:
    """A bar for each file on stderr: bytes, speed, time left; nothing where there is no terminal."""
    terminal = _terminal()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    tasks = {}
    with Progress(*columns, console=terminal, disable=not terminal.is_terminal) as bar:

        def advance(file: download.Published, done: int) -> None:
            if file not in tasks:  # what an earlier call received says nothing about the speed of this one
                tasks[file] = bar.add_task(file.name, total=file.size, completed=done)
            bar.update(tasks[file], completed=done)

        yield advance


def _terminal() -> Console:
    return Console(stderr=True)
