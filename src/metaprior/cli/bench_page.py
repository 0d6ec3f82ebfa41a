"""`metaprior bench page`: how quickly the page of `metaprior demo` answers."""

import json
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from metaprior.cli import console
from metaprior.cli.arguments import parse

HELP = """Time the answers of the page that `metaprior demo` opens, step by step, over a real connection on this machine.

examples:
  metaprior bench page
  metaprior bench page --requests 500 --out results/bench-page.json

A step is what a visitor does: a point added or moved, another inner update, a stroke. Every request has other numbers of points,
updates or strokes, so that a program compiled anew would show. Other work on the machine makes answers late: `processor` is the
time that cores spent on one, whoever else was there. It needs starlette and uvicorn (the extra demo)."""


@dataclass(frozen=True)
class Page:
    """The flags of `metaprior bench page`."""

    requests: int = 200
    """Of each kind."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write."""
    json: bool = False
    """Print one JSON object on stdout: step -> milliseconds."""


def page(argv: list[str]) -> int:
    """`metaprior bench page`; the exit code is 1 where a step takes longer than it may."""
    from metaprior.cli.bench import progress, words_table, write
    from metaprior.cli.demo import require_extra

    asked = parse(Page, argv, prog="metaprior bench page", help=HELP)
    if asked.requests < 1:
        raise ValueError(f"--requests must be at least 1, got {asked.requests}")
    require_extra()
    from metaprior.benchmarks import page as benchmark  # here, because it needs the extra

    began, load = time.perf_counter(), os.getloadavg()[0]
    with progress() as report:
        found, ready = benchmark.measure(asked.requests, report=report)
    if asked.out is not None:
        command = shlex.join(["metaprior", "bench", "page", *argv])
        write(asked.out, benchmark.record(found, ready, command, time.perf_counter() - began, load))
    if asked.json:
        print(json.dumps({name: times._asdict() for name, times in found.items()}))
    else:
        lines = [
            (name, str(times.requests), *(f"{getattr(times, field):.1f}" for field in benchmark.METRICS.values()))
            for name, times in found.items()
        ]
        head = ("step", "requests", *benchmark.METRICS)
        console.output().print(words_table(f"the page: ready after {ready:.0f} s", head, lines))
    slow = [name for name, times in found.items() if times.p95 > benchmark.LIMIT]
    if slow:
        console.note(f"slower than {benchmark.LIMIT:g} ms (load before: {load:.1f}): {', '.join(slow)}")
    return 1 if slow else 0
