"""Tables 4, 5 and 6: the paper's hyper-parameters, and those that validation tasks chose for GEM-BML+ here."""

from collections.abc import Mapping
from typing import Any

from experiments import paper, study
from experiments.images import TEST_STEPS
from experiments.report.beside.accuracy import WORDS as WAYS
from experiments.report.beside.agents import WORDS as PLACES
from experiments.report.beside.line import Load, unmeasured
from experiments.report.verdicts import OTHER, PRINTED, Line
from metaprior import methods
from metaprior.rl import rows

META_RATE, RATE, TRAIN_STEPS, STEPS = paper.RATES
BATCH, INNER_BATCH = paper.SIZES
Chosen = Mapping[str, Any]
# Why ours are others.
ON_TASKS, ON_CLASSES = "Chosen on validation tasks.", "Chosen on validation classes."
SEARCHED = {META_RATE: ON_TASKS, RATE: ON_TASKS, TRAIN_STEPS: ON_TASKS, BATCH: "The row’s own."}
TRIED = {
    META_RATE: ON_CLASSES,
    RATE: ON_CLASSES,
    TRAIN_STEPS: "From short trials on validation classes.",
    BATCH: "Another number of tasks, for cost.",
}
LEARNED = {
    META_RATE: ON_TASKS,
    BATCH: "Another number of tasks, for cost.",
    INNER_BATCH: "Another number of rollouts, for cost.",
}


def sinusoids(load: Load) -> list[Line]:
    """Table 4."""
    results, lines = load("search"), []
    for tasks, where in (("sinusoid", "default"), ("sinusoid-challenging", "challenging")):
        lines += _lines(where, paper.SINUSOIDS, _searched(results, tasks), SEARCHED)
    return lines


def _searched(results: study.Results | None, tasks: str) -> Chosen:
    """The setting of GEM-BML+ of least validation NLL."""
    cells = {} if results is None else results["curves"]
    tried = [one for cell, each in cells.items() if cell.startswith(f"{tasks}/gem-bml+/") for one in each]
    best = min((one for one in tried if one["nll"] is not None), key=lambda one: one["nll"], default=None)
    if best is None:
        return {}
    found, row = best["changes"], methods.get("gem-bml+")
    chosen = {META_RATE: found.get("meta_rate", row.meta_rate), RATE: found.get("rate", row.rate)}
    return chosen | {TRAIN_STEPS: _stages(found.get("steps", row.steps)), STEPS: TEST_STEPS, BATCH: row.meta_batch}


def images(load: Load) -> list[Line]:
    """Table 5."""
    lines = []
    for (tasks, setting), printed in paper.IMAGES.items():
        results = load(tasks)
        curve = {} if results is None else results["curves"].get(f"{setting}/best/gem-bml+", {})
        where = f"{'Omniglot' if tasks == 'omniglot' else 'miniImageNet'}, {WAYS[setting]}"
        lines += _lines(where, printed, _of_row(curve.get("method")), TRIED)
    return lines


def agents(load: Load) -> list[Line]:
    """Table 6."""
    lines = []
    for name, printed in paper.AGENTS.items():
        results, chosen = load(name), {}
        if results is not None and "gem-bml+" in results["curves"]:
            row, settings = rows.get("gem-bml+").method, results["settings"]
            chosen = {
                META_RATE: results["curves"]["gem-bml+"]["number"],
                RATE: row.rate,
                TRAIN_STEPS: _stages(row.steps),
            }
            chosen |= {STEPS: settings["updates"], BATCH: settings["meta_batch"], INNER_BATCH: settings["rollouts"]}
        lines += _lines(PLACES[name], printed, chosen, LEARNED)
    return lines


def _of_row(method: Chosen | None) -> Chosen:
    if not method:
        return {}
    chosen = {META_RATE: method["meta_rate"], RATE: method["rate"], TRAIN_STEPS: _stages(method["steps"])}
    return chosen | {STEPS: TEST_STEPS, BATCH: method["meta_batch"]}


def _stages(steps: Any) -> str:
    """On the support, and on the query where there is a second stage."""
    first, second = steps
    return f"{first} + {second}" if second else f"{first}"


def _lines(where: str, printed: Mapping[str, str], chosen: Chosen, why: Mapping[str, str]) -> list[Line]:
    lines = []
    for what, text in printed.items():
        if chosen.get(what) is None:
            lines.append(unmeasured(where, what, text))
            continue
        ours = chosen[what] if isinstance(chosen[what], str) else f"{chosen[what]:g}"
        same = ours.split(" + ")[0] == text  # the paper gives one number for both stages
        lines.append(Line(where, what, text, ours, PRINTED if same else OTHER, "" if same else why.get(what, "")))
    return lines
