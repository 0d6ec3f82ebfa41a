"""`metaprior methods`: the table of methods."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from metaprior.cli import console
from metaprior.cli.arguments import parse
from metaprior.methods import METHODS, Method
from metaprior.rl import rows

HELP = """List the methods: each is one choice of prior, posterior, inference, and cell of the matrix.

examples:
  metaprior methods
  metaprior methods --rl
  metaprior methods --json | jq '.[] | select(.row == "gem") | .name'"""

LEGEND = (
    ("prior → posterior", "families: what tasks share, and what is inferred for one of them"),
    ("row", "how the meta-gradient is taken: elbo, evidence through inference; gem not, or to q1 alone if conditional"),
    ("column", "which evidence: joint (of all data), conditional or difference (of the query given the support)"),
    ("second stage", "what the query is for: none, or one more inference with it"),
    ("steps", "inner steps on the support + of the second stage"),
    ("widths, rates", "how the prior's widths and the rates of the inner steps are learned"),
)


COLUMNS: dict[str, Callable[[Method], str]] = {
    "method": lambda method: method.name,
    "prior → posterior": lambda method: f"{method.prior} → {method.posterior}",
    "inference": lambda method: method.inference,
    "steps": lambda method: f"{method.steps[0]} + {method.steps[1]}",
    "row": lambda method: method.row,
    "column": lambda method: method.column,
    "second stage": lambda method: method.second_stage,
    "widths, rates": lambda method: f"{method.widths}, {method.rates}",
    "summary": lambda method: method.summary,
}
# One table needs a wide screen; on others it comes in parts.
ROOMY = 180
PARTS = (
    ("method", "prior → posterior", "inference", "steps"),
    ("method", "row", "column", "second stage", "widths, rates"),
    ("method", "summary"),
)


@dataclass(frozen=True)
class Methods:
    """The flags of `metaprior methods`."""

    json: bool = False
    """Print a JSON list on stdout."""
    rl: bool = False
    """Those that learn from rollouts, as they are there: for train rl-navigation and the like."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Methods, argv, prog="metaprior methods", help=HELP)
    if asked.rl:
        return _of_agents(json_wanted=asked.json)
    if asked.json:
        print(json.dumps([as_dict(method) for method in METHODS], indent=2))
        return 0
    screen = console.output()
    for names in [tuple(COLUMNS)] if screen.width >= ROOMY else PARTS:
        screen.print(table(names))
    screen.print(legend())
    screen.print("\ntry one: metaprior train sinusoid --method maml\nof agents: metaprior methods --rl")
    return 0


def _of_agents(*, json_wanted: bool) -> int:
    found = [rows.get(name) for name in rows.ROWS]
    if json_wanted:
        print(
            json.dumps(
                [as_dict(row.method) | {"name": row.name, "meta_update": row.meta_update} for row in found], indent=2
            )
        )
        return 0
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("method", "inner steps", "rate", "meta-step", "summary"):
        grid.add_column(name, no_wrap=name == "method")
    for row in found:
        steps = f"{row.method.steps[0]} + {row.method.steps[1]} of {row.method.inference}"
        grid.add_row(row.name, steps, f"{row.method.rate:g}", row.meta_update, row.summary)
    screen = console.output()
    screen.print(grid)
    named = {rows.ROWS[name][1] for name in rows.ROWS}
    others = [method.name for method in METHODS if method.name not in named and _learns(method)]
    screen.print(
        f"inner steps: on the support + of the second stage, each with rollouts of its own. As in the table: {', '.join(others)}"
    )
    screen.print("\ntry one: metaprior train rl-navigation --method maml-trpo")
    return 0


def _learns(method: Method) -> bool:
    try:
        rows.require_rollouts(method)
    except ValueError:
        return False
    return True


def as_dict(method: Method) -> dict[str, Any]:
    """A row for JSON; `family` is that of the posterior."""
    return {"name": method.name, "family": method.posterior, **method._asdict(), "options": dict(method.options)}


def table(names: Sequence[str]) -> Table:
    """The columns of these names, for all methods."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        grid.add_column(name, no_wrap=name == "method")
    for method in METHODS:
        grid.add_row(*(COLUMNS[name](method) for name in names))
    return grid


def legend() -> Table:
    """What the columns mean."""
    grid = Table.grid(padding=(0, 2))
    for word, meaning in LEGEND:
        grid.add_row(word, meaning)
    return grid
