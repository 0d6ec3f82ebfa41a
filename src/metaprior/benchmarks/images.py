"""What a meta-iteration on images costs beside the passes that it cannot do without, and our MAML beside torch.func's.

Everything is compiled first, then timed in turns, round after round, so that what else the machine is doing meets all alike; of
the rounds the median counts. Without the command line: `from metaprior.benchmarks.images import run; run("bench-images.json")`.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metaprior.benchmarks.images_beside import beside
from metaprior.benchmarks.images_maml import INNER_STEPS
from metaprior.benchmarks.images_maml import SETTING as COMPARED_ON
from metaprior.benchmarks.images_problem import SETTINGS, Pool, Setting, passes, pool
from metaprior.benchmarks.images_programs import FLOORS, METHODS, programs
from metaprior.benchmarks.images_record import BESIDE, disagreements, notes, record, tables
from metaprior.benchmarks.origin import hardware, versions
from metaprior.checkpoints import write_atomically
from metaprior.models.convolution import PRECISIONS
from metaprior.names import require_known

__all__ = ["NAMES", "SETTINGS", "costs", "disagreements", "measure", "notes", "run", "tables", "write"]

TORCH = "torch"
NAMES = (*METHODS, *FLOORS, TORCH)
COUNTED = (
    "a meta-iteration draws its tasks, takes 5 steps on the support and (gem-bml+) one on the query, updates the prior and "
    "reports now and then; the floor is as many forward and backward passes over as many images with one set of weights for all "
    "tasks, and nothing else"
)
Report = Callable[[int, int, str], None]  # (pieces of work done, of how many, what comes next)


def measure(
    *,
    settings: Sequence[str] = tuple(SETTINGS),
    only: Sequence[str] = (),
    precisions: Sequence[str] = ("tf32", "float32"),
    rounds: int = 9,
    iterations: int = 50,
    compiled: bool = False,
    sizes: Mapping[str, int] | None = None,
    report: Report = lambda done, total, what: None,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Milliseconds of a meta-iteration and of the floor, by setting and precision; and our MAML beside torch.func's.

    Args:
        settings: names from `SETTINGS`.
        only: names from `NAMES`; none takes all.
        precisions: of products: "tf32", "float32", "bf16". PyTorch takes part in the first two.
        rounds: how often each is timed.
        iterations: meta-iterations of a compiled chunk; a multiple of 25, since every 25th is reported on.
        compiled: whether torch.compile takes part, which takes minutes.
        sizes: fields of the settings that are to differ: queries, meta_batch, filters.
        report: called before each piece of work.
        keep: called with what was found so far, after each piece.
    """
    _check(settings, only, precisions, rounds, iterations)
    chosen = {name: SETTINGS[name]._replace(**(sizes or {})) for name in settings}
    timed = {"rounds": rounds, "iterations": iterations}
    work: list[tuple[str, str, int | None]] = [  # the last: inner steps of the comparison with torch
        (name, precision, None) for name in chosen for precision in precisions if not only or set(only) != {TORCH}
    ]
    if COMPARED_ON in chosen and (not only or TORCH in only):
        work += [(COMPARED_ON, precision, k) for k in INNER_STEPS for precision in precisions if precision != "bf16"]
    began, found = time.perf_counter(), _origin(iterations, rounds)
    for done, (name, precision, steps) in enumerate(work):
        tell = lambda what, done=done, of=f"{name}, {precision}": report(done, len(work), f"{of}: {what}")
        setting = chosen[name]
        images, found["images"][setting.tasks] = pool(setting)
        if steps is None:
            place = found["settings"].setdefault(name, {"passes": passes(setting), "target": setting.target})
            place[precision] = costs(setting, images, only=only, precision=precision, report=tell, **timed)
        else:
            place = found[BESIDE].setdefault(f"{steps} inner step{'s' if steps > 1 else ''}", {})
            place[precision] = beside(
                setting, images, steps=steps, precision=precision, compiled=compiled, report=tell, **timed
            )
        found["seconds"] = time.perf_counter() - began
        keep(found)
    return found


def costs(
    setting: Setting,
    images: Pool,
    *,
    precision: str,
    rounds: int,
    iterations: int,
    only: Sequence[str] = (),
    report: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Milliseconds of an iteration, by name, and their ratio to the faster floor."""
    ready = {}
    for name, make in programs(setting, images, precision=precision, iterations=iterations).items():
        if not only or name in only:
            report(f"compiling {name}")
            ready[name] = make()
    carries = {name: one.advance(one.carry) for name, one in ready.items()}  # the first call is slower
    times: dict[str, list[float]] = {name: [] for name in ready}
    for count in range(rounds):
        report(f"round {count + 1} of {rounds}")
        for name, one in ready.items():
            began = time.perf_counter()
            carries[name] = one.advance(carries[name])
            times[name].append(1e3 * (time.perf_counter() - began) / iterations)
    medians = {name: statistics.median(values) for name, values in times.items()}
    floor = min((name for name in FLOORS if name in medians), key=medians.__getitem__, default=None)
    return {
        "milliseconds": medians,
        "floor": floor,
        "ratio": {} if floor is None else {n: medians[n] / medians[floor] for n in METHODS if n in medians},
        "bytes": {name: one.bytes for name, one in ready.items()},
        "calls of an iteration": {name: one.calls for name, one in ready.items()},
        "seconds to compile": {name: one.seconds for name, one in ready.items()},
        "rounds": times,
    }


def run(out: str | Path, **options: Any) -> dict[str, Any]:
    """Measure into a results file, with a line for each piece of work."""
    say = lambda done, total, what: print(f"{done}/{total}  {what}", flush=True)
    return measure(report=say, keep=lambda found: write(out, found, f"metaprior bench images --out {out}"), **options)


def write(out: str | Path, found: Mapping[str, Any], command: str) -> None:
    """As results files are."""
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(out), (json.dumps(record(found, command), indent=1) + "\n").encode())


def _check(settings, only, precisions, rounds: int, iterations: int) -> None:
    for what, asked, known in (
        ("setting", settings, SETTINGS), ("implementation", only, NAMES), ("precision", precisions, PRECISIONS)
    ):  # fmt: skip
        for name in asked:
            require_known(what, name, known)
    for word, value in (("rounds", rounds), ("iterations", iterations)):
        if value < 1:
            raise ValueError(f"{word} must be at least 1, got {value}")
    for word, names in (("setting", settings), ("precision", precisions)):
        if not names:
            raise ValueError(f"name at least one {word}")


def _origin(iterations: int, rounds: int) -> dict[str, Any]:
    return {
        "counted": COUNTED,
        "settings": {},
        BESIDE: {},
        "images": {},
        "iterations": iterations,
        "repeats": rounds,
        "hardware": hardware(),
        "versions": versions(("metaprior", "jax", "jaxlib", "optax", "torch")),
        "seconds": 0.0,
    }
