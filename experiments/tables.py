"""Rebuild the tables of README.md from the results: `python -m experiments.tables`. No number there is typed."""

import json
import re
from pathlib import Path

from experiments import sinusoid_core

ROOT = Path(__file__).parents[1]
TABLES = {"sinusoid-core": sinusoid_core.table}


def filled(text: str) -> str:
    """The text with every marked block replaced by its table and the line that says where it came from."""
    for name, table in TABLES.items():
        results = json.loads((ROOT / "results" / f"{name}.json").read_text())
        block = f"<!-- {name} -->\n{table(results)}\n\n{provenance(results)}\n<!-- /{name} -->"
        text, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, block=block: block, text, flags=re.S)
        if count != 1:
            raise ValueError(f"README.md needs exactly one block <!-- {name} --> … <!-- /{name} -->, found {count}")
    return text


def provenance(results: dict) -> str:
    """Command, seed, hardware and versions in one line."""
    settings, versions = results["settings"], results["versions"]
    return (
        f"`{results['command']}` · seed {settings['seed']} · {settings['iterations']:,} iterations · "
        f"{results['hardware']} · jax {versions['jax']} · "
        f"training took {max(row['seconds'] for row in results['rows']):.0f} s at most"
    )


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
