"""The paper beside the results, as tables of words: one for all of it, and one for each of its tables and figures."""

from experiments.report.layout import BESIDE, Table
from experiments.report.verdicts import Beside

TITLE = "The paper, table by table and figure by figure"
ANCHOR = "paper"
INTRODUCTION = (
    "What the paper prints or claims, what was found here, and how the two stand to each other. Verdicts and sentences are "
    "computed from the results; what was not measured is named."
)
OVERVIEW = ("where", "what", "verdict")


def details(one: Beside) -> Table:
    """A line for each number and claim of it."""
    return Table(BESIDE, tuple(tuple(line) for line in one.lines))
