"""`metaprior train … --estimate`: what a run will take, as a table."""

from rich.table import Table

from metaprior import estimates
from metaprior.cli import console
from metaprior.settings import Setup


def estimated(setup: Setup, *, done: int) -> Table:
    """Memory and time, from a trial of a few iterations; `done` of them are behind the run."""
    with console.waiting("compiling and trying"), estimates.explained(setup):
        found = estimates.estimate(setup, iterations=max(setup.settings.iterations - done, 0))
    memory, size = found.memory, estimates.size
    per_iteration = found.seconds_of_iteration
    rows = {
        "memory": f"{size(memory.total)} for a compiled chunk of iterations",
        "arguments": f"{size(memory.arguments)}, {size(memory.pool)} of it images"
        if memory.pool
        else size(memory.arguments),
        "temporaries": size(memory.temporaries),
        "results": size(memory.results),
        "device": "does not say what it has" if memory.device is None else f"{size(memory.device)} in all",
        "time": f"{_duration(found.seconds)} for {found.iterations:,} iterations of {_each(per_iteration)} "
        f"({found.seconds_to_compile:.0f} s to compile), {'looks at returns' if setup.rl else 'calibration'} not counted",
    }
    if memory.device is not None and memory.total > memory.device:
        rows["too much"] = estimates.less(setup)
    grid = Table.grid(padding=(0, 2))
    for word, value in rows.items():
        grid.add_row(word, value)
    return grid


def _each(seconds: float) -> str:
    """Of an iteration.

    >>> [_each(seconds) for seconds in (0.00123, 0.5, 19.61)]
    ['1.23 ms', '500 ms', '19.6 s']
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _duration(seconds: float) -> str:
    """For people.

    >>> [_duration(seconds) for seconds in (4.2, 150.0, 5400.0)]
    ['4 s', '2.5 min', '1.5 h']
    """
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.0f} s"
