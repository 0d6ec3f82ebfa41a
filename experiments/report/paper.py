"""The paper beside the results, as tables of words: one for all of it, and one for each of its tables and figures."""

from experiments.report import beside
from experiments.report.beside import Beside
from experiments.report.layout import BESIDE, Table

TITLE = "The paper, table by table and figure by figure"
ANCHOR = "paper"
INTRODUCTION = (
    "What the paper prints or claims, what was found here, and how the two stand to each other. Verdicts and sentences are "
    "computed from the results; what was not measured is named."
)
OVERVIEW = ("where", "what", "verdict")
KINDS = {"good": beside.GOOD, "mixed": beside.MIXED, "bad": beside.BAD}


def details(one: Beside) -> Table:
    """A line for each number and claim of it."""
    return Table(BESIDE, tuple(tuple(line) for line in one.lines))


def kind(verdict: str) -> str:
    """How a verdict is coloured: a word of the style sheet."""
    return next((kind for kind, verdicts in KINDS.items() if verdict in verdicts), "none")
