"""Figure 3: what is claimed of agents, environment by environment."""

from math import isfinite

from experiments import study
from experiments.report.beside.line import NAMES, Load, Value, apart, named, unmeasured, values
from experiments.report.verdicts import FAILS, HOLDS, PART, UNDECIDED, Line
from experiments.rl_remarks import BOUND, PAPER, best_on_validation, by_trust, difference
from experiments.rl_settings import POLICIES

WORDS = {
    "rl-navigation": "2D navigation",
    "rl-cheetah-velocity": "half-cheetah, velocity",
    "rl-cheetah-direction": "half-cheetah, direction",
}


def figure_3(load: Load) -> list[Line]:
    """Three claims on each environment."""
    lines = []
    for name, where in WORDS.items():
        results = load(name)
        lines += [_ahead(results, where), _behind(results, where), _trust(results, where, PAPER[name])]
    return lines


def _value(found: tuple[float, float] | None) -> Value | None:
    if found is None:
        return None
    return Value(found[0], found[1]) if isfinite(found[0]) else Value(None)


def _differences(
    results: study.Results | None, rivals: tuple[str, ...], ours: str = "gem-bml+"
) -> dict[str, list[Value]]:
    """GEM-BML+, or another row, minus each rival that was measured, after 1, 2, … updates."""
    if results is None:
        return {}
    found = {}
    for rival in rivals:
        counts = range(1, results["settings"]["updates"] + 1)
        each = [_value(difference(results, ours, rival, count)) for count in counts]
        if each and None not in each:
            found[rival] = [value for value in each if value is not None]
    return found


def _signed(value: Value) -> str:
    return str(value) if value.mean is None or value.mean < 0 else f"+{value}"


def _told(differences: dict[str, list[Value]], ours: str = "GEM-BML+") -> str:
    return "; ".join(
        f"{ours} minus {NAMES[rival]}: {', '.join(map(_signed, each))} after {_counted(len(each))}"
        for rival, each in differences.items()
    )


def _counted(updates: int) -> str:
    return "1 update" if updates == 1 else f"{', '.join(map(str, range(1, updates)))} and {updates} updates"


def _ahead(results: study.Results | None, where: str) -> Line:
    what, claim = "GEM-BML+", "outperforms MAML"
    differences = _differences(results, ("maml-trpo", "maml"))
    if not differences or results is None:
        return unmeasured(where, what, claim)
    verdicts = [apart(value) for each in differences.values() for value in each]
    said = {
        UNDECIDED: "No difference is larger than its interval.",
        PART: f"{verdicts.count(HOLDS)} of {len(verdicts)} differences are clearly above zero, {verdicts.count(FAILS)} below.",
        FAILS: "MAML is ahead wherever intervals tell them apart.",
    }.get(_across(differences), "")
    short = f"Trained for {results['settings']['iterations']} iterations; the paper does not say for how many."
    best = best_on_validation(results)
    if best not in (None, "gem-bml+"):  # the row that one would take without a look at test tasks
        found = _told(_differences(results, tuple(differences), best), best)
        short += f" Of the rows that were tried, {best} is best on validation tasks: {found}."
    return Line(where, what, claim, _told(differences), _across(differences), f"{said} {short}".strip())


def _behind(results: study.Results | None, where: str) -> Line:
    what, claim = "GEM-BML and Reptile", "stay behind GEM-BML+"
    differences = _differences(results, ("gem-bml", "reptile"))
    if not differences:
        return unmeasured(where, what, claim)
    last = {rival: apart(each[-1]) for rival, each in differences.items()}
    ahead = [rival for rival, verdict in last.items() if verdict == FAILS]
    level = [rival for rival, verdict in last.items() if verdict == UNDECIDED]
    said = [f"After the last update {named(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of it."] if ahead else []
    said += [f"{named(level)} cannot be told from it there."] if level else []
    return Line(where, what, claim, _told(differences), _across(differences), " ".join(said))


def _trust(results: study.Results | None, where: str, sign: int) -> Line:
    what, claim = "inner steps of TRPO", "do better than plain ones" if sign > 0 else "do worse than plain ones"
    curve = {} if results is None else results["curves"].get("gem-bml+", {})
    counts = () if results is None else sorted({1, results["settings"]["updates"]})
    found = {count: value for count in counts if (value := _value(by_trust(curve, count))) is not None}
    if not found:
        return unmeasured(where, what, claim)
    verdicts = [apart(Value(None if value.mean is None else sign * value.mean, value.ci95)) for value in found.values()]
    told = ", ".join(f"{_signed(value)} after {count}" for count, value in found.items())
    step = values(results).get((POLICIES, "gem-bml+", "KL of the first step"))
    said = "From the same prior of GEM-BML+."
    if step is not None and step.mean is not None:
        said += f" A first plain step goes a KL of {step.mean:.2g}, where TRPO’s bound is {BOUND:g}."
    return Line(where, what, claim, f"return with TRPO minus plain: {told}", _together(verdicts), said)


def _across(differences: dict[str, list[Value]]) -> str:
    """Of all rivals: one that cannot be told from GEM-BML+ leaves a claim about all of them true in part."""
    by_rival = {_together([apart(value) for value in each]) for each in differences.values()}
    return by_rival.pop() if len(by_rival) == 1 else PART


def _together(verdicts: list[str]) -> str:
    """Of several: what all of them say that say anything."""
    decided = set(verdicts) - {UNDECIDED}
    return UNDECIDED if not decided else PART if len(decided) > 1 else decided.pop()
