"""`metaprior bench`: measurements of the program itself."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich import box
from rich.table import Table

from metaprior.cli import console
from metaprior.cli.arguments import parse

HELP = """Measure the memory that one meta-step needs besides its inputs and outputs, as compiled.

examples:
  metaprior bench memory
  metaprior bench memory --methods gem-bml+ maml imaml --steps 1 10 100
  metaprior bench memory --json

Methods that go through inference by back-propagation keep every inner step; GEM-BML and GEM-BML+ keep none."""


@dataclass(frozen=True)
class Bench:
    """The flags of `metaprior bench`."""

    what: Annotated[Literal["memory"], tyro.conf.Positional]
    """What to measure."""
    steps: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (2, 100)
    """Inner steps, of each stage."""
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("gem-bml+", "maml")
    """Methods to compare; see `metaprior methods`."""
    tasks: str = "sinusoid"
    """Which tasks the meta-batch is drawn from."""
    json: bool = False
    """Print one JSON object on stdout: method -> steps -> bytes."""


def run(argv: list[str]) -> int:
    """The command."""
    from metaprior import benchmarks

    asked = parse(Bench, argv, prog="metaprior bench", help=HELP)
    if not asked.steps or not asked.methods:
        raise ValueError("--steps and --methods need at least one value each")
    with console.waiting("compiling"):
        found = benchmarks.memory(asked.methods, asked.steps, tasks=asked.tasks)
    if asked.json:
        print(json.dumps(found))
    else:
        console.output().print(table(found))
    return 0


def table(found: dict[str, dict[str, int]]) -> Table:
    """Memory by method and steps, and how much it grows from the first to the last."""
    steps = list(next(iter(found.values())))
    grid = Table(box=box.SIMPLE_HEAD, title="temporary memory of one meta-step", title_justify="left")
    grid.add_column("method")
    for step in steps:
        grid.add_column(f"{step} steps", justify="right")
    grid.add_column("growth", justify="right")
    for method, sizes in found.items():
        growth = sizes[steps[-1]] / max(sizes[steps[0]], 1)
        grid.add_row(method, *(f"{sizes[step] / 1024:,.0f} KiB" for step in steps), f"× {growth:.2f}")
    return grid
