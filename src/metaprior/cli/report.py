"""`metaprior report`: the results as pages to read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from metaprior.cli import checkout, console
from metaprior.cli.arguments import parse

HELP = """Rebuild RESULTS.md, index.html and every figure from the results files, and from nothing else.

First come the paper's tables and figures one by one: what is printed or claimed there, what was found here with its interval, the
command, and a verdict. Then every study in full. What was not measured is named.

examples:
  metaprior report
  metaprior report --results results/smoke"""


@dataclass(frozen=True)
class Report:
    """The flags of `metaprior report`."""

    results: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: results, of the source)")] = None
    """Folder of results files; what is made goes there too."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Report, argv, prog="metaprior report", help=HELP)
    checkout.enter()
    from experiments import report

    folder = asked.results or report.RESULTS
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {folder}: metaprior reproduce makes results, --results says where they are"
        )
    with console.waiting("drawing"):
        found = report.sections(folder)
        written = report.write(found, folder)
    if gaps := [section.name for section in found if isinstance(section, report.Missing)]:
        console.note(f"without results: {', '.join(gaps)}")
    print(*written, sep="\n")
    return 0
