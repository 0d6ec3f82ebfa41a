"""Cells of studies one after another, or in several processes; none is begun after a time."""

import math
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from typing import Any

Cell = tuple[str, ...]  # what one piece of work is called: ("best", "maml")
FOREVER = math.inf


def each(
    measure: Callable[..., Any], study: Any, settings: Any, cells: Sequence[Cell], jobs: int, until: float
) -> Iterator[tuple[Cell, Any]]:
    """(cell, what is measured of it), as they end.

    Args:
        measure: (study, settings, cell) -> anything.
        study: whose cells these are; other processes find it by its name, since functions do not travel.
        settings: of it.
        cells: in the order in which they are begun.
        jobs: processes; one measures here.
        until: the time of `time.monotonic` after which no cell is begun.
    """
    if jobs > 1 and len(cells) > 1:
        yield from _elsewhere(measure, study, settings, cells, jobs, until)
        return
    for cell in cells:
        if time.monotonic() >= until:
            return
        yield cell, measure(study, settings, cell)


def _elsewhere(
    measure: Callable[..., Any], study: Any, settings: Any, cells: Sequence[Cell], jobs: int, until: float
) -> Iterator[tuple[Cell, Any]]:
    # One thread each: the programs are small, and threads that wait for each other cost more than they bring.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    spawn = multiprocessing.get_context("spawn")
    failed: list[tuple[Cell, BaseException]] = []
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_end_with, initargs=(os.getpid(),)) as pool:
        waiting, asked = deque(cells), dict[Future[Any], Cell]()
        try:
            while True:
                while waiting and len(asked) < jobs and time.monotonic() < until:
                    cell = waiting.popleft()
                    try:
                        asked[pool.submit(_measure_by_name, measure, study.name, settings, cell)] = cell
                    except BrokenExecutor as error:  # a process was killed, and takes the others along
                        failed.append((cell, error))
                if not asked:
                    break
                for future in wait(asked, return_when=FIRST_COMPLETED).done:
                    cell = asked.pop(future)
                    if (error := future.exception()) is None:
                        yield cell, future.result()
                    else:  # one that has no room on a card, say, is no reason to lose the others
                        failed.append((cell, error))
        except BaseException:  # stopped: what is left would be measured for nobody
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    if failed:
        names, first = ", ".join(" ".join(cell) for cell, _ in failed), failed[0][1]
        raise ValueError(f"{len(failed)} of {len(cells)} cells failed ({names}); first: {first}") from first


def _end_with(parent: int) -> None:
    """In another process: when the one that asked is killed, nobody waits for the answer any more."""

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measure_by_name(measure: Callable[..., Any], name: str, settings: Any, cell: Cell) -> Any:
    """In another process."""
    from experiments import get

    return measure(get(name), settings, cell)
