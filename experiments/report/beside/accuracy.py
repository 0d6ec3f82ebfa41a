"""Tables 2 and 3: accuracies and calibration errors, number by number."""

from collections.abc import Callable
from math import hypot

from experiments import few_shot, image_search_report, long_trials_report, paper, study
from experiments.calibration import EXACT, WIDE
from experiments.few_shot import (
    AUTHORS,
    AUTHORS_SHORT,
    LONGER,
    LONGER_SOLVED,
    MORE_STEPS,
    ONE_PRIOR,
    PRINTED_ONCE,
    SOLVED,
    STEPS,
)
from experiments.report.beside import training
from experiments.report.beside.line import NAMES, Load, Value, compared, unmeasured, values
from experiments.report.verdicts import AGREES, BETTER, UNMEASURED, WORSE, Line

# The exact head stands beside the paper's number for GEM-BML+, of which it is a kind.
WORDS = {"5w1s": "5-way 1-shot", "5w5s": "5-way 5-shot", "20w1s": "20-way 1-shot", "20w5s": "20-way 5-shot"}


def omniglot(load: Load) -> list[Line]:
    """Table 2."""
    rates = load("long-trials")
    reason = lambda setting, method: long_trials_report.why(rates, method) if setting == "5w1s" else ""
    return _accuracies(load("omniglot"), "omniglot", reason)


def miniimagenet(load: Load) -> list[Line]:
    """Table 3, left."""
    results, search = load("miniimagenet"), load("image-search")
    return _accuracies(results, "miniimagenet", lambda setting, method: _grown(search, results, setting, method))


def _grown(search: study.Results | None, results: study.Results | None, setting: str, method: str) -> str:
    """What a method gained from the short training of the search, at the same rates, to that of the table; if it did."""
    tasks = "miniimagenet"
    won = {} if search is None else image_search_report.winners(search)
    curve = (results or {}).get("curves", {}).get(f"{setting}/best/{method}")
    if search is None or curve is None or (best := won.get((tasks, setting, method))) is None:
        return ""
    words = image_search_report.words(tasks, setting, best["changes"])
    short = values(search).get((words, method, "validation accuracy"))
    gap = _gained(short, _measured(results, setting, "best", method))
    if short is None or not gap:
        return ""
    whose, iterations, size = paper.length(tasks, setting, method)
    return (
        f" Its length may be the reason: after the {search['settings']['iterations']:,} iterations of the search, without "
        f"augmentation, it has {_digits(short, 2)} % right of validation classes, {gap:.2f} less than of test classes after "
        f"{curve['iterations']:,}; {whose} authors train for {iterations:,} of {size}."
    )


def _gained(less: Value | None, more: Value | None) -> float:
    """How far the second lies above the first, where their intervals tell them apart; else zero."""
    if less is None or more is None or less.mean is None or more.mean is None:
        return 0.0
    gap = more.mean - less.mean
    return gap if gap > hypot(less.ci95, more.ci95) else 0.0


def calibration(load: Load) -> list[Line]:
    """Table 3, right: with the temperature that validation classes ask for."""
    results, lines = load("calibration"), []
    exact = {EXACT: NAMES[EXACT], WIDE: f"{NAMES[EXACT]}, trained with 20 classes"}
    for whose in (*paper.CALIBRATION, *exact):
        who = exact.get(whose) or NAMES[whose]
        for metric, printed in paper.CALIBRATION["gem-bml+" if whose in exact else whose].items():
            ours = values(results).get(("temperature fitted", whose, metric))
            if ours is None:
                lines += [] if whose in exact else [unmeasured(metric, who, printed.text)]
                continue
            verdict, gap, _ = compared(printed, ours, less_is_better=True)
            plain = values(results).get(("as it is", whose, metric))
            said = "Some task ran away."
            if ours.mean is not None:
                said = f"{_apart(gap, 4)}; the paper prints no interval."
            if plain is not None:
                bare, *_ = compared(printed, plain, less_is_better=True)
                said += f" Without the temperature: {_digits(plain, 4)} ({bare})."
            lines.append(Line(metric, who, printed.text, _digits(ours, 4), verdict, said))
    return sorted(lines, key=lambda line: line.where)


# Beside the paper's number for GEM-BML+ or the method: (kind of cell, as rows say it, method) -> what it is called.
VARIANTS = {
    (PRINTED_ONCE, PRINTED_ONCE, "gem-bml+"): "GEM-BML+ at the printed settings, asked after one step",
    ("paper", "the paper’s settings", "gem-bml+"): "GEM-BML+ at the printed settings",
    ("longer", "longer", "gem-bml+"): "GEM-BML+, trained longer",
    (SOLVED, SOLVED, "imaml"): f"iMAML, asked after {STEPS[SOLVED]} steps",
    (LONGER_SOLVED, LONGER_SOLVED, "imaml"): f"iMAML, trained longer, asked after {STEPS[LONGER_SOLVED]} steps",
    ("longer", "longer", "imaml"): "iMAML, trained longer",
    (
        MORE_STEPS,
        MORE_STEPS,
        "gem-bml+",
    ): f"GEM-BML+, one prior for all settings, asked after {STEPS[MORE_STEPS]} steps",
    (ONE_PRIOR, ONE_PRIOR, "gem-bml+"): "GEM-BML+, one prior for all settings",
    ("authors", "its authors’ settings", "maml"): "MAML at its authors’ settings",
    ("authors", "its authors’ settings", "fomaml"): "first-order MAML at its authors’ settings",
    ("authors", "its authors’ settings", "reptile"): "Reptile at its authors’ settings",
    ("authors", "its authors’ settings", "imaml"): "iMAML at its authors’ settings",
    ("best", "best", EXACT): NAMES[EXACT],
    ("trained 20-way", "trained 20-way", EXACT): f"{NAMES[EXACT]}, trained with 20 classes",
    ("longer 20-way", "longer 20-way", EXACT): f"{NAMES[EXACT]}, trained longer with 20 classes",
}


def _accuracies(
    results: study.Results | None, tasks: str, reason: Callable[[str, str], str] = lambda setting, method: ""
) -> list[Line]:
    """`reason` says what another study knows of a number of a setting and method that is low."""
    table, lines = paper.ACCURACY[tasks], []
    for setting in next(iter(table.values())):
        beside = {}
        for cell, what in VARIANTS.items():
            printed = table["gem-bml+" if cell[2] == EXACT else cell[2]].get(setting)
            same = beside.get((asked := SAME.get(cell[0], ""), asked, cell[2]))
            others = {kind: line for (kind, _, whose), line in beside.items() if whose == cell[2] and kind in AGAIN}
            known = f" At our settings:{told}" if cell[0] == AUTHORS and (told := _again(others)) else ""
            known += _lengthened(results, setting, cell[2]) if cell[0] == AUTHORS else ""
            line = _accuracy(results, tasks, setting, cell, printed, what, known, same) if printed else None
            beside |= {cell: line} if line is not None and line.verdict != UNMEASURED else {}
        for method, numbers in table.items():
            cell = ("best", "best", method)
            others = {kind: line for (kind, _, whose), line in beside.items() if whose == method and kind in AGAIN}
            known = _again(others) or _closer(results, setting, method) or reason(setting, method)
            lines.append(_accuracy(results, tasks, setting, cell, numbers[setting], NAMES[method], known))
        lines += beside.values()
    return lines


# The same prior, asked after another number of steps; it comes before in `VARIANTS`.
SAME = {ONE_PRIOR: MORE_STEPS, LONGER: LONGER_SOLVED, "paper": PRINTED_ONCE}
# The same method, trained or asked otherwise, as a reason for a low number: kind of cell -> how it is told.
AGAIN = {
    AUTHORS: "At its authors’ settings",
    LONGER: "Trained longer",
    SOLVED: f"Asked after {STEPS[SOLVED]} steps",
    LONGER_SOLVED: f"Trained longer and asked after {STEPS[LONGER_SOLVED]} steps",
    MORE_STEPS: f"One prior for all settings, asked after {STEPS[MORE_STEPS]} steps",
}


def _again(others: dict[str, Line]) -> str:
    """What other trainings of a method came to, where one of them does reach what is printed."""
    if not {line.verdict for line in others.values()} & {AGREES, BETTER}:
        return ""
    return "".join(f" {AGAIN[kind]}: {line.ours} ({line.verdict})." for kind, line in others.items())


def _closer(results: study.Results | None, setting: str, method: str) -> str:
    """What its authors' settings come to, where that is more than ours and not all that is printed: they explain a part."""
    theirs = _measured(results, setting, few_shot.WORDS[AUTHORS], method)
    gap = _gained(_measured(results, setting, "best", method), theirs)
    return (
        f" {AGAIN[AUTHORS]}: {_digits(theirs, 2)} %, {gap:.2f} more; what is left is told there."
        if theirs and gap
        else ""
    )


def _lengthened(results: study.Results | None, setting: str, method: str) -> str:
    """What a shorter training at its authors' settings came to."""
    short, long = (_measured(results, setting, few_shot.WORDS[kind], method) for kind in few_shot.AS_AUTHORS[::-1])
    if results is None or short is None or long is None:
        return ""
    iterations = results["curves"][f"{setting}/{AUTHORS_SHORT}/{method}"]["iterations"]
    gap = _gained(short, long)
    told = f"{gap:.2f} less, so that length may be the reason" if gap else "which is not apart from it"
    return f" Trained for {iterations:,} iterations it has {_digits(short, 2)} %, {told}."


def _accuracy(
    results: study.Results | None,
    tasks: str,
    setting: str,
    cell: tuple[str, str, str],
    printed: paper.Printed,
    what: str,
    reason: str = "",
    same: Line | None = None,
) -> Line:
    """As the paper asks: as many queries as shots, statistics of the batch.

    `reason`: what else may be behind a low number; `same`: that of the same training, asked otherwise, which is reason enough
    where it is not low itself.
    """
    kind, words, method = cell
    curve = (results or {}).get("curves", {}).get(f"{setting}/{kind}/{method}", {})
    ours = _measured(results, setting, words, method)
    if ours is None:
        return unmeasured(WORDS[setting], what, f"{printed.text} %")
    verdict, gap, allowed = compared(printed, ours)
    said = "Some task ran away."
    if ours.mean is not None:
        said = f"{_apart(gap, 2)}, where the two intervals allow {allowed:.2f}."
    if verdict == WORSE and same is not None:
        steps, trained = STEPS[SAME[kind]], "settings" if kind == "paper" else "prior"
        after = "one step" if steps == 1 else f"{steps} steps"
        said += f" The same {trained}, asked after {after}: {same.ours} ({same.verdict})."
    if verdict == WORSE and (same is None or same.verdict == WORSE):
        rest = "the distance" if same is None else "what is left"
        said += training.why(curve, tasks, setting, known=reason or training.widened(curve), rest=rest)
    return Line(WORDS[setting], what, f"{printed.text} %", f"{_digits(ours, 2)} %", verdict, said)


def _measured(results: study.Results | None, setting: str, words: str, method: str) -> Value | None:
    """Accuracy by the paper's protocol."""
    found = {where: value for (where, *rest), value in values(results).items() if rest == [method, "accuracy, paper"]}
    # A training that is shorter than usual says so at the end of its name.
    begins = (f"{setting}, {words}", f"{setting}, {words}, ")
    return next((v for where, v in found.items() if where == begins[0] or where.startswith(begins[1])), None)


def _digits(value: Value, digits: int) -> str:
    if value.mean is None:
        return str(value)
    return f"{value.mean:.{digits}f} ± {value.ci95:.{digits}f}" if value.ci95 else f"{value.mean:.{digits}f}"


def _apart(gap: float, digits: int) -> str:
    return f"{abs(gap):.{digits}f} {'above' if gap > 0 else 'below'}"
