"""Weak scaling on one host: twice the processes with twice the tasks, each process on a core of its own.

Time is that of whole meta-steps on images. As many processes that do not know of each other are timed too: cores share memory and
caches, and what is lost to that is not the price of working together. The command is `metaprior bench scaling`.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from metaprior import parallel, processes
from metaprior.benchmarks.images_problem import SETTINGS, random_pool, set_up
from metaprior.benchmarks.origin import commit, hardware
from metaprior.training import initial_state

ALONE, APART, TOGETHER = "one process", "processes apart", "processes together"
PATIENCE = 900  # seconds


class Work(NamedTuple):
    """What every process does."""

    tasks: int = 2  # of a meta-batch, for each process
    filters: int = 64
    iterations: int = 5  # of one dispatch
    rounds: int = 5


class Seat(NamedTuple):
    """Where one process sits."""

    core: int
    coordinator: str | None  # None: it works for itself
    processes: int
    process_id: int


def measure(work: Work, count: int = 2, report: Callable[[str], None] = lambda what: None) -> dict[str, list[float]]:
    """Seconds of a meta-step, dispatch by dispatch: of one process, of several apart, and of several together."""
    cores = sorted(os.sched_getaffinity(0))
    if not 2 <= count <= len(cores):
        raise ValueError(f"this process may use {len(cores)} cores: ask for 2 to {len(cores)} processes, got {count}")
    _require_positive(work)
    found = {}
    for name in (ALONE, APART, TOGETHER):
        report(name)
        meeting = f"127.0.0.1:{_free_port()}" if name == TOGETHER else None
        seats = [Seat(cores[place], meeting, count, place) for place in range(1 if name == ALONE else count)]
        found[name] = _slowest(work, seats)
    return found


def ratios(found: dict[str, list[float]]) -> dict[str, float]:
    """How many times longer a meta-step of all together takes, than that of one, and than that of all apart."""
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    return {f"× {name}": medians[TOGETHER] / medians[name] for name in (ALONE, APART)}


def record(found: dict[str, list[float]], work: Work, count: int, load: float, command: str) -> dict[str, Any]:
    """Rows as results files have them; `load` is that of the machine before."""
    setting = (
        f"conv4 with {work.filters} filters, Omniglot 5-way 1-shot, {work.tasks} tasks for each of {count} processes"
    )
    origin = {"seeds": 1, "command": command, "hardware": hardware(), "commit": commit()}
    numbers = {(name, "s a meta-step"): statistics.median(seconds) for name, seconds in found.items()}
    numbers |= {(TOGETHER, name): value for name, value in ratios(found).items()}
    rows = [
        {"experiment": "bench-scaling", "setting": setting, "method": name, "metric": metric, "paper": None, "mean": value,
         "ci95": None, "seeds": origin["seeds"], "command": command, "hardware": origin["hardware"],
         "seconds": round(sum(found[name]) * work.iterations, 1), "commit": origin["commit"]}
        for (name, metric), value in numbers.items()
    ]  # fmt: skip
    return {
        "settings": {**work._asdict(), "processes": count, "load_before": load, "jax": jax.__version__},
        "rows": rows,
        "curves": found,
    }


def _slowest(work: Work, seats: list[Seat]) -> list[float]:
    """Dispatch by dispatch, the seconds of the process that took longest."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "NPROC": "1"}
    command = [sys.executable, "-m", __name__, json.dumps(work)]
    started = [
        subprocess.Popen([*command, json.dumps(seat)], env=environment, stdout=subprocess.PIPE, text=True)
        for seat in seats
    ]
    try:
        told = [process.communicate(timeout=PATIENCE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        raise OSError("a process that was to be timed has failed; what it said is above")
    return [max(seconds) for seconds in zip(*(json.loads(out.splitlines()[-1]) for out in told), strict=True)]


def _timed(work: Work, seat: Seat) -> list[float]:
    """In a process of its own: seconds of a meta-step, dispatch by dispatch, the first left out."""
    os.sched_setaffinity(0, {seat.core})  # before JAX counts cores
    together = seat.coordinator is not None
    if seat.coordinator is not None:
        processes.join(processes.Place(seat.coordinator, seat.processes, seat.process_id))
    tasks = work.tasks * (seat.processes if together else 1)
    setting = SETTINGS["omniglot-5w1s"]._replace(meta_batch=tasks, filters=work.filters)
    setup, mesh = set_up(setting, "gem-bml+", precision=None), parallel.task_mesh()
    train = jax.jit(parallel.trainer(setup.learner, setup.tasks.sample, tasks, mesh), static_argnums=1)
    pool = parallel.everywhere(mesh, random_pool("omniglot", 50, 20))
    state, seconds = parallel.everywhere(mesh, initial_state(setup)), []
    for _ in range(work.rounds + 1):
        began = time.perf_counter()
        state, _ = jax.block_until_ready(train(state, work.iterations, *pool))
        seconds.append((time.perf_counter() - began) / work.iterations)
    if together:
        processes.leave()
    return seconds[1:]


def _require_positive(work: Work) -> None:
    for name, value in work._asdict().items():
        if value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    print(json.dumps(_timed(Work(*json.loads(sys.argv[1])), Seat(*json.loads(sys.argv[2])))))
