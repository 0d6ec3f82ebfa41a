"""The paper's tables and figures one by one: what is printed or claimed there, beside what was measured here."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import study
from experiments.report.beside import accuracy, agents, cost, hyper, sinusoids, theory
from experiments.report.beside.line import Load
from experiments.report.verdicts import NOTHING, Beside, Line, Paper, counted

__all__ = ["ITEMS", "Item", "beside", "is_measured", "of_paper", "summary"]


class Item(NamedTuple):
    """A table or figure of the paper."""

    place: str
    title: str
    studies: tuple[str, ...]  # whose results stand beside it
    lines: Callable[[Load], Sequence[Line]]
    note: str = ""  # what is to be known to read it


RULE = (
    "A number agrees with the paper’s if they lie no further apart than their 95 % intervals allow (the root of the sum of "
    "squares); a difference beyond that is better or worse. In the same way the loss in training falls or rises if the means of "
    "the last two quarters of its curve lie further apart than their intervals over its points allow; else it has settled."
)
ITEMS = (
    Item("Figure 1", "A small neighbourhood of good weights, and the graphical model", ("a-star",), theory.figure_1),
    Item("Table 1", "The matrix of related works", ("matrix",), theory.table_1,
         "The paper prints names of methods, no numbers. That MAML, Reptile and the others are rows of one table is tested as "
         "identities, to rounding."),
    Item("Figure 2 (a)", "Regression of sinusoids", ("sinusoid-default", "sinusoid-challenging", "search"), sinusoids.figure_2a,
         "The figure’s numbers are not printed; its claims are. Once with the hyper-parameters of Table 4, once for every method "
         "with the best of an equal search on validation tasks. A method learns if at most 80 % of its error is left."),
    Item("Figure 2 (b)", "Memory and time of a meta-step", ("compute-memory",), cost.figure_2b,
         "The figure’s numbers are not printed. The paper’s is of 5-way 1-shot miniImageNet; ours as the first column says."),
    Item("Table 2", "Few-shot Omniglot: accuracy", ("omniglot", "image-search", "long-trials", "adaptation-steps"),
         accuracy.omniglot,
         "Rows of other methods are copied there from their own papers; ours are all trained by the same program. "
         "The paper has no exact head: it stands beside GEM-BML+, of which it is a kind. " + RULE),
    Item("Table 3, left", "Few-shot miniImageNet: accuracy", ("miniimagenet", "image-search"), accuracy.miniimagenet, RULE),
    Item("Table 3, right", "Few-shot miniImageNet: calibration", ("calibration",), accuracy.calibration,
         "Ours with one temperature for each method, fitted on validation classes; the paper does not say whether it fits one."),
    Item("Figure 3", "Reinforcement learning", ("rl-navigation", "rl-cheetah-velocity", "rl-cheetah-direction"), agents.figure_3,
         "The figure’s numbers are not printed; its claims are. Differences of returns, task by task."),
    Item("Figure 4 (Appendix C.1)", "Error of the meta-gradient", ("gradient-error",), theory.gradients,
         "The figure’s numbers are not printed. Linear regression, where the exact gradient is known."),
    Item("Figure 5 (Appendix C.2)", "Necessity of many inner steps", ("inner-steps",), sinusoids.inner_steps,
         "The figure’s numbers are not printed. Error after ten test steps, by inner steps of meta-training."),
    Item("Figure 6 (Appendix C.3)", "Points of A* as starts", ("a-star", "a-star-omniglot"), theory.a_star,
         "The figure’s numbers are not printed; its claims are."),
    Item("Table 4", "Hyper-parameters for sinusoids", ("search",), hyper.sinusoids,
         "Ours are those of GEM-BML+ that validation tasks chose; k + l are steps of the first and of the second stage. The "
         "printed ones are tried, too: Figure 2 (a)."),
    Item("Table 5", "Hyper-parameters for images", ("omniglot", "miniimagenet"), hyper.images,
         "Ours are those of GEM-BML+ at its best on validation classes. The paper heads two columns with 5-class; by its numbers "
         "the second is of 20 classes. Ours has no inner Adam: each weight learns a rate instead."),
    Item("Table 6", "Hyper-parameters for agents", ("rl-navigation", "rl-cheetah-velocity", "rl-cheetah-direction"), hyper.agents,
         "Ours are those of GEM-BML+; the meta-rate was chosen on validation tasks, the printed one among others."),
)  # fmt: skip


def beside(folder: Path = study.RESULTS) -> list[Beside]:
    """Every table and figure, from whatever results are there; those of smoke scale show nothing and are left out."""
    kept: dict[str, study.Results | None] = {}

    def load(name: str) -> study.Results | None:
        if name not in kept:
            found = study.load(name, folder) if (folder / f"{name}.json").exists() else None
            kept[name] = None if found and found.get("settings", {}).get("scale") == "smoke" else found
        return kept[name]

    return [_filled(item, load) for item in ITEMS]


def _filled(item: Item, load: Load) -> Beside:
    lines = tuple(item.lines(load))
    commands = [command for name in item.studies for command in _commands(name, load(name))]
    name = re.sub(r"[^a-z0-9]+", "-", item.place.partition(" (A")[0].lower()).strip("-")
    once = tuple(dict.fromkeys(commands))
    return Beside(name, item.place, item.title, item.note, lines, item.studies, once)


def _commands(name: str, results: study.Results | None) -> list[str]:
    if results is None:
        return [f"metaprior reproduce {name} --scale full"]
    return [str(row["command"]) for row in results["rows"]]


NUMBERS, SETTINGS = ("Table 2", "Table 3, left", "Table 3, right"), ("Table 4", "Table 5", "Table 6")


def summary(found: Sequence[Beside]) -> str:
    """How the whole stands, in a few sentences."""
    numbers = [line for each in found if each.place in NUMBERS for line in each.lines]
    claims = [line for each in found if each.place not in (*NUMBERS, *SETTINGS) for line in each.lines]
    claims = [line for line in claims if line.verdict != NOTHING]
    variants = set(accuracy.VARIANTS.values())
    printed, ours = ([line for line in numbers if (line.what in variants) == is_ours] for is_ours in (False, True))
    beside_them = f"; beside them variants that are not in the paper’s tables: {counted(ours)}" if ours else ""
    return (
        f"Of {len(printed)} results that the paper prints as numbers (Tables 2 and 3): {counted(printed)}{beside_them}. "
        f"Of {len(claims)} claims of its figures: {counted(claims)}."
    )


def of_paper(folder: Path = study.RESULTS) -> Paper | None:
    """All of it with its summary; None where there is nothing to put beside the paper."""
    found = beside(folder) if is_measured(folder) else []
    return Paper(summary(found), tuple(found)) if found else None


def is_measured(folder: Path) -> bool:
    """Whether there is anything to put beside the paper."""
    return any((folder / f"{name}.json").exists() for item in ITEMS for name in item.studies)
