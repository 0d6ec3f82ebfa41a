"""The sentences of the report that do not come from a study, shared by its formats."""

import re
from collections.abc import Iterator, Sequence

from experiments.report.numbers import duration
from experiments.report.section import Missing, Section

HEADLINE = "metaprior: results"
INTRODUCTION = (
    "Every number, figure and remark here is made from the files beside this one by `metaprior report`; none is typed. "
    "± is the half-width of the 95 % interval of a mean, over test tasks and seeds. Where the paper prints a number, it "
    "stands in a column before ours; – is a number that the paper does not print, or one of ours that is not finite. "
    "`metaprior reproduce NAME` measures a study anew."
)
SMOKE = "Smoke scale: these numbers show that the program runs, and nothing else."


def missing(section: Missing) -> str:
    """What to say of a gap, and how to fill it."""
    return f"Not measured yet: `metaprior reproduce {section.name} --scale full`."


def alternative(section: Section) -> str:
    """For those who do not see a figure; what it shows is in the table and the remarks."""
    return f"Figure: {section.title}"


def summary(sections: Sequence[Section | Missing]) -> str:
    """How much there is."""
    found = [section for section in sections if isinstance(section, Section)]
    gaps = [section.name for section in sections if isinstance(section, Missing)]
    took = duration(sum(section.seconds for section in found))
    return " ".join(
        [f"{_count(found, 'results file')}, {took} of measuring."] * bool(found)
        + [f"Without results: {', '.join(gaps)}."] * bool(gaps)
    )


def pieces(sentence: str) -> Iterator[tuple[str, bool]]:
    """A sentence on one line, cut at its `code`: each piece, without marks, and whether it is code."""
    for piece in re.split(r"(`[^`]+`)", " ".join(sentence.split())):
        if piece:
            is_code = len(piece) > 2 and piece[0] == piece[-1] == "`"
            yield (piece[1:-1] if is_code else piece), is_code


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"
