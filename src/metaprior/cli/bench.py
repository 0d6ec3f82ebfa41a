"""`metaprior bench`: measurements of the program itself."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from metaprior.cli import console
from metaprior.cli.arguments import parse
from metaprior.names import require_known

HELP = """usage: metaprior bench WHAT …

Measure the program itself: what a meta-step costs, whatever it learns.

what:
  memory     temporary memory of one meta-step, by method and number of inner steps
  sinusoid   meta-iterations per second beside PyTorch, TorchOpt, higher and a bare JAX loop, on one problem

examples:
  metaprior bench memory
  metaprior bench sinusoid

options:
  -h, --help   this text; of a measurement: metaprior bench sinusoid --help
"""

MEMORY_HELP = """Measure the memory that one meta-step needs besides its inputs and outputs, as compiled.

examples:
  metaprior bench memory
  metaprior bench memory --methods gem-bml+ maml imaml --steps 1 10 100
  metaprior bench memory --json

Methods that go through inference by back-propagation keep every inner step; GEM-BML and GEM-BML+ keep none."""

SINUSOID_HELP = """Time our MAML and GEM-BML+ beside the libraries people would use instead.

examples:
  metaprior bench sinusoid
  metaprior bench sinusoid --only 'metaprior maml' 'bare JAX' --rounds 21
  metaprior bench sinusoid --out results/bench-sinusoid.json

All train on 10-shot sinusoids (MLP 1-40-40-1, 5 tasks, one inner step, Adam) from the same weights on the same batches, and
every implementation of MAML must have the same loss after 200 iterations. They are timed in turns, round after round: on a
busy machine look at the ratios, not at the speeds. PyTorch and its libraries come with pip install 'metaprior[bench]';
what is missing is named and left out.

gem-bml+ has a point as prior and posterior and takes one step of MAML's kind on the support and one on the query; its
default recipe also learns a width for every weight. Of torch.func the meta-gradient is compiled and PyTorch's Adam follows,
or the whole iteration is compiled, Adam written out. Losses are those of unseen tasks after one step."""


@dataclass(frozen=True)
class Memory:
    """The flags of `metaprior bench memory`."""

    steps: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (2, 100)
    """Inner steps, of each stage."""
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("gem-bml+", "maml")
    """Methods to compare; see `metaprior methods`."""
    tasks: str = "sinusoid"
    """Which tasks the meta-batch is drawn from."""
    json: bool = False
    """Print one JSON object on stdout: method -> steps -> bytes."""


@dataclass(frozen=True)
class Sinusoid:
    """The flags of `metaprior bench sinusoid`."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """Implementations to time, by the names of the table."""
    rounds: int = 9
    """How often each is timed; the median counts."""
    iterations: int = 200
    """Meta-iterations between two looks at the clock; for JAX this is one dispatch."""
    threads: int = 1
    """Threads of PyTorch. One is the fastest on networks this small."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write."""
    json: bool = False
    """Print one JSON object on stdout, with the speeds as `implementations` and the losses as `loss_after_200`."""


def run(argv: list[str]) -> int:
    """The command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    measurements = {"memory": memory, "sinusoid": sinusoid}
    require_known("measurement", argv[0], measurements)
    return measurements[argv[0]](argv[1:])


def memory(argv: list[str]) -> int:
    """`metaprior bench memory`."""
    from metaprior import benchmarks

    asked = parse(Memory, argv, prog="metaprior bench memory", help=MEMORY_HELP)
    if not asked.steps or not asked.methods:
        raise ValueError("--steps and --methods need at least one value each")
    with console.waiting("compiling"):
        found = benchmarks.memory(asked.methods, asked.steps, tasks=asked.tasks)
    if asked.json:
        print(json.dumps(found))
    else:
        console.output().print(memory_table(found))
    return 0


def sinusoid(argv: list[str]) -> int:
    """`metaprior bench sinusoid`."""
    from metaprior.benchmarks import sinusoid as benchmark

    asked = parse(Sinusoid, argv, prog="metaprior bench sinusoid", help=SINUSOID_HELP)
    with progress() as report:
        found = benchmark.measure(
            only=asked.only, rounds=asked.rounds, iterations=asked.iterations, threads=asked.threads, report=report
        )
    for name, reason in found["left_out"].items():
        console.note(f"{name} is left out: {reason}")
    if asked.out is not None:
        command = shlex.join(["metaprior", "bench", "sinusoid", *argv])
        _write(asked.out, benchmark.record(found, command))
    if asked.json:
        print(json.dumps(found))
    else:
        console.output().print(speed_table(found))
    disagreements = benchmark.disagreements(found["loss_after_200"])
    for sentence in disagreements:
        console.note(f"speeds say nothing: {sentence}")
    return 1 if disagreements else 0


def memory_table(found: dict[str, dict[str, int]]) -> Table:
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


def speed_table(found: dict[str, Any]) -> Table:
    """Speed, how many times that of the references, and what was learned."""
    title = f"meta-iterations per second; {found['hardware']}"
    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    grid.add_column("implementation")
    for head in ("it/s", *(f"× {reference}" for reference in found["ratios"]), "loss after 200"):
        grid.add_column(head, justify="right")
    for name, speed in found["implementations"].items():
        ratios = [f"{ratios[name]:.3g}" for ratios in found["ratios"].values()]
        grid.add_row(name, f"{speed:,.0f}", *ratios, f"{found['loss_after_200'][name]:.4f}")
    return grid


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr with what is being timed; nothing where there is no terminal."""
    terminal = Console(stderr=True)
    columns = (BarColumn(bar_width=16), TimeRemainingColumn(compact=True), TextColumn("{task.description}"))
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("drawing tasks", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _write(path: Path, results: dict[str, Any]) -> None:
    from metaprior.checkpoints import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())
