"""`metaprior plan`: what training would take on many devices, and on many phones, from what it takes on this one."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from rich import box
from rich.table import Table

from metaprior import estimates, plans
from metaprior.benchmarks.images_problem import SETTINGS, set_up
from metaprior.benchmarks.origin import commit, hardware
from metaprior.cli import console
from metaprior.cli.arguments import parse
from metaprior.cli.bench import write
from metaprior.cli.train import Choices
from metaprior.names import require_known
from metaprior.plans import GB, MB, Measured, Network, Phones, Row
from metaprior.settings import Setup, assemble
from metaprior.training import initial_state

HELP = """Plan past one machine: bytes, seconds and tasks a second on 8, 64 and 512 devices, and of a round of 10,000 phones.

examples:
  metaprior plan omniglot --method gem-bml+ --meta-batch 32
  metaprior plan sinusoid --seconds 0.002 --phone-slower 20
  metaprior plan --measured results/bench-images.json --setting 'omniglot-5w1s, tf32' --phone-slower 500
  metaprior plan omniglot --between 50 --phone-up 0.5 --out results/bench-plan.json

A meta-step is timed here, on one device, unless --seconds says what it takes, or --measured where it was written down by
metaprior bench images; the rest is arithmetic, and is printed below the table. How fast connections are is assumed: the flags
say what. Every device gets as many tasks as the one that was timed (--meta-batch)."""

USUAL, POCKET = Network(), Phones()


@dataclass(frozen=True)
class Plan:
    """The flags of `metaprior plan`."""

    settings: Choices
    seconds: float | None = None
    """Of a meta-step on one device, where it is known; auto: it is timed here."""
    measured: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results of `metaprior bench images`, measured on any machine; settings are then those that were timed."""
    setting: Annotated[str | None, tyro.conf.arg(help_behavior_hint="(default: the first)")] = None
    """Which of them: 'omniglot-5w1s, tf32'."""
    per_host: int = USUAL.per_host
    """Devices of a host."""
    inside: float = USUAL.inside / GB
    """GB/s between devices of a host."""
    between: float = USUAL.between / GB
    """GB/s between hosts."""
    inside_latency: float = USUAL.inside_latency
    """Seconds for the shortest message between devices of a host."""
    between_latency: float = USUAL.between_latency
    """Seconds for the shortest message between hosts."""
    phone_tasks: int = POCKET.tasks
    """Tasks of a phone in a round."""
    phone_slower: float = POCKET.slower
    """How many times longer a phone takes for a task than this device."""
    phone_start: float = POCKET.start
    """Seconds until a phone has begun."""
    phone_down: float = POCKET.down / MB
    """MB/s to a phone."""
    phone_up: float = POCKET.up / MB
    """MB/s from a phone."""
    server: float = POCKET.server / GB
    """GB/s from and to the server of the phones."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Plan, argv, prog="metaprior plan", help=HELP)
    for name, value in vars(asked).items():
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above zero, got {value:g}")
    network = Network(
        asked.per_host, asked.inside * GB, asked.inside_latency, asked.between * GB, asked.between_latency
    )
    phones = Phones(
        asked.phone_tasks, asked.phone_slower, asked.phone_start, asked.phone_down * MB, asked.phone_up * MB,
        asked.server * GB,
    )  # fmt: skip
    if asked.measured is not None:
        setting, found = from_results(asked.measured, asked.setting)
    else:
        setting = f"{asked.settings.tasks}, {asked.settings.method}"
        found = measured(assemble(asked.settings.checked()), asked.seconds)
    rows = plans.plan(found, network, phones)
    if asked.out is not None:
        write(asked.out, record(found, network, phones, rows, setting, shlex.join(["metaprior", "plan", *argv])))
    if asked.json:
        told = [row._asdict() | {"tasks_per_second": row.tasks_per_second} for row in rows]
        print(json.dumps({"measured": found._asdict(), "rows": told}))
        return 0
    console.output().print(table(found, rows))
    for line in formulas(found, network, phones):
        console.output().print(line)
    return 0


def measured(setup: Setup, seconds: float | None = None) -> Measured:
    """What this device does, timed unless the seconds of a meta-step are given."""
    if setup.learner.learn is None:
        raise ValueError(
            f"a meta-step of {setup.settings.method} sums over tasks many times: plan a method with an optimiser"
        )
    state = jax.eval_shape(lambda: initial_state(setup))
    leaves = [leaf for leaf in jax.tree.leaves((state.prior, state.memory)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    entries, itemsize = sum(leaf.size for leaf in leaves), max(leaf.dtype.itemsize for leaf in leaves)
    device = "as given" if seconds is not None else hardware()
    if seconds is None:
        with console.waiting("compiling and timing"), estimates.explained(setup):
            seconds = estimates.estimate(setup).seconds_of_iteration
    return Measured(entries, itemsize, setup.learner.method.meta_batch, seconds, device)


METHOD, METRIC = "gem-bml+", "ms of an iteration"


def from_results(path: Path, setting: str | None) -> tuple[str, Measured]:
    """What `metaprior bench images` has written down: of which setting, and what one device does in it."""
    try:
        rows = {
            row["setting"]: row
            for row in json.loads(path.read_bytes())["rows"]
            if (row["method"], row["metric"]) == (METHOD, METRIC)
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as results of metaprior bench images ({error})") from None
    if not rows:
        raise ValueError(f"{path} has no {METRIC} of {METHOD}: write it with metaprior bench images --out")
    chosen = str(next(iter(rows)) if setting is None else setting)
    require_known("setting", chosen, rows)
    name, precision = chosen.rsplit(", ", 1)
    require_known("setting", name, SETTINGS)
    row, setup = rows[chosen], set_up(SETTINGS[name], METHOD, precision=precision)
    return chosen, measured(setup, row["mean"] / 1e3)._replace(device=row["hardware"])


def table(found: Measured, rows: list[Row]) -> Table:
    """A line for each number of devices."""
    grid = Table(box=box.SIMPLE_HEAD, title=f"a meta-step; one device: {found.device}", title_justify="left")
    grid.add_column("who")
    for head in ("tasks", "each sends", "all send", "communication", "in all", "tasks / s", "bound by"):
        grid.add_column(head, justify="left" if head == "bound by" else "right")
    for row in rows:
        sizes = (estimates.size(round(count)) for count in (row.sent, row.in_all))
        times = (short(seconds) for seconds in (row.communication, row.seconds))
        grid.add_row(row.who, f"{row.tasks:,}", *sizes, *times, f"{row.tasks_per_second:,.0f}", row.bound)
    return grid


def formulas(found: Measured, network: Network, phones: Phones) -> list[str]:
    """The arithmetic, with its numbers."""
    size, each = estimates.size, found.seconds / found.tasks
    ring = lambda bandwidth, latency: f"(B = {size(round(bandwidth))}/s, l = {short(latency)})"
    return [
        f"S = ({found.entries:,} entries of the prior + {plans.EXTRA}) × {found.itemsize} B = {size(round(found.summed))}",
        f"devices: {found.tasks} tasks on each, t = {short(found.seconds)} + all-reduce; "
        + "all-reduce = 2 (g−1)/g S/B + 2 ⌈log2 g⌉ l "
        + f"inside hosts of g = {network.per_host} {ring(network.inside, network.inside_latency)} "
        + f"+ the same between hosts {ring(network.between, network.between_latency)}",
        f"phones: t = max({short(phones.start)} to start + S / {size(round(phones.down))}/s + {phones.tasks} tasks × "
        + f"{short(each)} × {phones.slower:g} + S / {size(round(phones.up))}/s, phones × S / {size(round(phones.server))}/s)",
    ]


def record(
    found: Measured, network: Network, phones: Phones, rows: list[Row], setting: str, command: str
) -> dict[str, Any]:
    """Rows as results files have them."""
    origin = {"seeds": 1, "command": command, "hardware": found.device, "seconds": 0.0, "commit": commit()}
    metrics = ("tasks", "sent", "in_all", "communication", "seconds", "tasks_per_second")
    made = [
        {"experiment": "bench-plan", "setting": setting, "method": row.who, "metric": metric, "paper": None,
         "mean": float(getattr(row, metric)), "ci95": None, **origin}
        for row in rows for metric in metrics
    ]  # fmt: skip
    settings = {"measured": found._asdict(), "network": network._asdict(), "phones": phones._asdict()}
    return {"settings": settings, "rows": made, "curves": {}}


def short(seconds: float) -> str:
    """Seconds for people.

    >>> [short(seconds) for seconds in (0.0, 5e-6, 0.0123, 4.25, 900.0)]
    ['0 µs', '5 µs', '12.3 ms', '4.25 s', '900 s']
    """
    if seconds < 1e-3:
        return f"{1e6 * seconds:.3g} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
