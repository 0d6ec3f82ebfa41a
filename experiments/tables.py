"""Rebuild the tables of README.md and docs/ from the results: `python -m experiments.tables`. No number there is typed."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from experiments import leakage_report, study
from experiments.report import layout, markdown, section

Load = Callable[[str], dict[str, Any]]  # name of a results file -> what it holds
SHOWN = tuple(f"{word} after 10" for word in ("MSE", "NLL", "CRPS", "coverage near", "coverage far"))


def sinusoids(load: Load) -> str:
    """Every method of Figure 2a at its best, on both settings."""
    parts = []
    for name, title in (("sinusoid-default", "default"), ("sinusoid-challenging", "challenging")):
        rows = [row for row in load(name)["rows"] if row["setting"] == "best" and row["metric"] in SHOWN]
        rows = [{**row, "setting": title} for row in rows]
        parts += [*(markdown.table(each) for each in layout.tables(rows)), markdown.origin(section.origin(rows))]
    return "\n\n".join(parts)


def speed(load: Load) -> str:
    """Meta-iterations a second beside other libraries, as measured in one run."""
    rows = load("bench-sinusoid")["rows"]
    return "\n\n".join([*(markdown.table(each) for each in layout.tables(rows)), markdown.origin(section.origin(rows))])


def leakage(load: Load) -> str:
    """What attacks on messages of clients recovered."""
    results = load("leakage")
    return "\n\n".join([leakage_report.compact(results), markdown.origin(section.origin(results["rows"]))])


def federated(load: Load) -> str:
    """What clients learned beside one machine."""
    rows = load("federated")["rows"]
    return "\n\n".join([*(markdown.table(each) for each in layout.tables(rows)), markdown.origin(section.origin(rows))])


# Name of a block of README.md -> what stands in it, made from as many results files as it needs.
TABLES: Mapping[str, Callable[[Load], str]] = {"sinusoids": sinusoids, "speed": speed}
# Other pages, and their blocks.
PAGES: Mapping[str, Mapping[str, Callable[[Load], str]]] = {
    "docs/federated.md": {"leakage": leakage, "federated": federated},
}


def filled(text: str, load: Load = study.load, tables: Mapping[str, Callable[[Load], str]] = TABLES) -> str:
    """The text with every marked block replaced by what the results say."""
    for name, block in tables.items():
        whole = f"<!-- {name} -->\n{block(load)}\n<!-- /{name} -->"
        text, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, whole=whole: whole, text, flags=re.S)
        if count != 1:
            raise ValueError(f"the page needs exactly one block <!-- {name} --> … <!-- /{name} -->, found {count}")
    return text


if __name__ == "__main__":
    readme = study.ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
    for name, tables in PAGES.items():
        page = study.ROOT / name
        page.write_text(filled(page.read_text(), tables=tables))
