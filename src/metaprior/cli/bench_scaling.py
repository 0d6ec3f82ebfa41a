"""`metaprior bench scaling`: twice the processes with twice the tasks."""

import json
import os
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from metaprior.cli import console
from metaprior.cli.arguments import parse

HELP = """Time meta-steps of several processes on one host, each on a core of its own and with tasks of its own.

examples:
  metaprior bench scaling
  metaprior bench scaling --processes 4 --tasks 4 --out results/bench-scaling.json

GEM-BML+ trains conv4 on images (random bytes: time does not see them). Three things are timed, one after the other: one process;
as many as asked for that do not know of each other; and as many that train one prior together, with an all-reduce in every
meta-step. What the second loses is due to cores that share memory, what the third loses on top is the price of working together.
Nothing else should run on the machine."""

BUSY = 0.5  # processes that wanted to run in the minute before, on average


@dataclass(frozen=True)
class Scaling:
    """The flags of `metaprior bench scaling`."""

    processes: int = 2
    """How many, at most as many as there are cores."""
    tasks: int = 2
    """Of a meta-batch, for each process."""
    filters: int = 64
    """Channels of every block of the network."""
    iterations: int = 5
    """Meta-iterations of one dispatch."""
    rounds: int = 5
    """How often a dispatch is timed; the median counts."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write."""
    json: bool = False
    """Print one JSON object on stdout: who -> seconds of a meta-step, dispatch by dispatch."""


def scaling(argv: list[str]) -> int:
    """`metaprior bench scaling`."""
    from metaprior.benchmarks import scaling as benchmark
    from metaprior.cli.bench import words_table, write

    asked = parse(Scaling, argv, prog="metaprior bench scaling", help=HELP)
    work = benchmark.Work(**{name: getattr(asked, name) for name in benchmark.Work._fields})
    if (load := os.getloadavg()[0]) > BUSY:
        console.note(f"the machine is busy (load {load:.1f}): these numbers will say more about that than about us")
    with console.waiting("timing"):
        found = benchmark.measure(work, asked.processes)
    if asked.out is not None:
        command = shlex.join(["metaprior", "bench", "scaling", *argv])
        write(asked.out, benchmark.record(found, work, asked.processes, load, command))
    if asked.json:
        print(json.dumps(found))
        return 0
    middle = statistics.median(found[benchmark.TOGETHER])
    lines = []
    for name, seconds in found.items():
        tasks = asked.tasks * (1 if name == benchmark.ALONE else asked.processes)
        median = statistics.median(seconds)
        lines.append((name, str(tasks), f"{1e3 * median:.4g}", f"{tasks / median:.3g}", f"{middle / median:.3f}"))
    head = ("who", "tasks", "ms a meta-step", "tasks / s", "together, in these")
    console.output().print(words_table(f"{asked.processes} processes", head, lines))
    return 0
