"""What was found, from the results alone: `RESULTS.md`, `index.html` and every figure. `metaprior report` writes them."""

from collections.abc import Sequence
from pathlib import Path

import experiments
from experiments import study
from experiments.report import markdown, page
from experiments.report.section import FIGURES, Missing, Section, of_study, sections
from experiments.study import RESULTS
from metaprior import figures
from metaprior.checkpoints import write_atomically

__all__ = ["DOCUMENTS", "RESULTS", "Missing", "Section", "documents", "draw", "of_study", "sections", "write"]

DOCUMENTS = {"RESULTS.md": markdown.document, "index.html": page.document}


def documents(found: Sequence[Section | Missing], folder: Path = RESULTS) -> dict[str, str]:
    """File -> text: the paper beside the results, where there are any of it, then every section."""
    from experiments.report import beside  # which imports most studies: not to be done to run one of them

    whole = beside.of_paper(folder)
    return {name: document(found, whole) for name, document in DOCUMENTS.items()}


def write(found: Sequence[Section | Missing], folder: Path = RESULTS) -> list[Path]:
    """The figures of the studies that were found, and the documents; returns their paths. No dates: same in, same out."""
    studies = [section for section in found if isinstance(section, Section) and section.name in experiments.NAMES]
    written = [draw(section.name, folder) for section in studies]
    for name, text in documents(found, folder).items():
        write_atomically(folder / name, text.encode())
        written.append(folder / name)
    return written


def draw(name: str, folder: Path = RESULTS) -> Path:
    """The figure of a study, from its results file."""
    path = folder / FIGURES / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figures.save(experiments.get(name).figure(study.load(name, folder)), path)
    return path
