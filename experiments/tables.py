"""Rebuild the tables of README.md from the results: `python -m experiments.tables`. No number there is typed."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from experiments import sinusoid_core, study

Load = Callable[[str], dict[str, Any]]  # name of a results file -> what it holds


def core(load: Load) -> str:
    """GEM-BML+ on both sinusoid settings."""
    results = load("sinusoid-core")
    return f"{sinusoid_core.table(results)}\n\n{provenance(results)}"


# Name of a block of README.md -> what stands in it, made from as many results files as it needs. For rows of studies,
# `experiments.report` has `layout.tables` and `markdown.table`, and `section.origin` and `markdown.origin` for where from.
TABLES: Mapping[str, Callable[[Load], str]] = {"sinusoid-core": core}


def filled(text: str, load: Load = study.load) -> str:
    """The text with every marked block replaced by what the results say."""
    for name, block in TABLES.items():
        whole = f"<!-- {name} -->\n{block(load)}\n<!-- /{name} -->"
        text, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, whole=whole: whole, text, flags=re.S)
        if count != 1:
            raise ValueError(f"README.md needs exactly one block <!-- {name} --> … <!-- /{name} -->, found {count}")
    return text


def provenance(results: dict[str, Any]) -> str:
    """Command, seed, hardware and versions in one line."""
    settings, versions = results["settings"], results["versions"]
    return (
        f"`{results['command']}` · seed {settings['seed']} · {settings['iterations']:,} iterations · "
        f"{results['hardware']} · jax {versions['jax']} · "
        f"training took {max(row['seconds'] for row in results['rows']):.0f} s at most"
    )


if __name__ == "__main__":
    readme = study.ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
