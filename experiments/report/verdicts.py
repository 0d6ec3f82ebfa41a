"""What stands beside the paper, in words alone: lines with a verdict each, and how often each verdict is given."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# Verdicts: on numbers, on claims, on settings, and where there is none.
AGREES, BETTER, WORSE = "agrees", "better", "worse"
HOLDS, PART, FAILS, UNDECIDED = "holds", "holds in part", "does not hold", "undecided"
PRINTED, OTHER = "as printed", "other"
UNMEASURED, NOTHING = "not measured", "nothing to compare"
ORDER = (AGREES, BETTER, WORSE, HOLDS, PART, FAILS, UNDECIDED, PRINTED, OTHER, UNMEASURED, NOTHING)
KINDS = {"good": (AGREES, BETTER, HOLDS, PRINTED), "mixed": (PART, UNDECIDED, OTHER), "bad": (WORSE, FAILS)}


class Line(NamedTuple):
    """One number or claim of the paper and what was found."""

    where: str
    what: str
    paper: str
    ours: str
    verdict: str
    said: str = ""


class Beside(NamedTuple):
    """A table or figure of the paper with what the results say of it."""

    name: str
    place: str
    title: str
    note: str
    lines: tuple[Line, ...]
    studies: tuple[str, ...]
    commands: tuple[str, ...]


class Paper(NamedTuple):
    """All of them."""

    summary: str
    items: tuple[Beside, ...]


def counts(lines: Sequence[Line]) -> dict[str, int]:
    """How often each verdict, those of numbers first."""
    found = Counter(line.verdict for line in lines)
    return {verdict: found[verdict] for verdict in ORDER if found[verdict]}


def counted(lines: Sequence[Line]) -> str:
    """The same in words.

    >>> counted([Line("", "", "", "", "holds"), Line("", "", "", "", "agrees"), Line("", "", "", "", "holds")])
    '1 agrees, 2 hold'
    """
    several = {AGREES: "agree", HOLDS: "hold", PART: "hold in part", FAILS: "do not hold"}
    word = lambda verdict, count: verdict if count == 1 else several.get(verdict, verdict)
    return ", ".join(
        verdict if verdict == NOTHING else f"{count} {word(verdict, count)}" for verdict, count in counts(lines).items()
    )


def kind(verdict: str) -> str:
    """How a verdict is coloured: a word of the style sheet."""
    return next((kind for kind, verdicts in KINDS.items() if verdict in verdicts), "none")
