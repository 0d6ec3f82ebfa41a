"""Figure 2a and the figure of Appendix C.2: what is claimed of sinusoids, at the paper's settings and at the best ones."""

from math import hypot

from experiments import paper, study
from experiments.figure_2a import HARDLY
from experiments.report.beside.line import NAMES, Load, Value, Values, named, share_of, unmeasured, values
from experiments.report.verdicts import FAILS, HOLDS, PART, UNDECIDED, Line

SETTINGS = {"paper": "the paper’s settings", "best": "best on validation"}
OURS, BAYESIAN, POINTS = ("gem-bml+", "gem-bml"), ("gem-bml+", "gem-bml", "bmaml", "amortized-bml"), ("maml", "reptile")
EARLIER = ("maml", "reptile", "bmaml", "amortized-bml")


def figure_2a(load: Load) -> list[Line]:
    """Both panels."""
    lines = []
    for name, words in (("sinusoid-default", "default"), ("sinusoid-challenging", "challenging")):
        results = load(name)
        for setting, whose in SETTINGS.items():
            where, found = f"{words}, {whose}", values(results)
            claims = [_as_fast] if words == "default" else [_bayesian_learn, _points_fail, _go_on]
            lines += [_with_length(claim(found, setting, where), results) for claim in claims]
    return lines


def _error(found: Values, setting: str, method: str, steps: int) -> Value | None:
    return found.get((setting, method, f"MSE after {steps}"))


def _left(found: Values, setting: str, method: str) -> float | None:
    """Error after ten steps as a share of that before any; infinite where some task ran away, None where not measured."""
    before, after = (_error(found, setting, method, steps) for steps in (0, 10))
    if before is None or after is None:
        return None
    return float("inf") if after.mean is None or not before.mean else after.mean / before.mean


def _shares(found: Values, setting: str, methods: tuple[str, ...]) -> dict[str, float]:
    pairs = ((method, _left(found, setting, method)) for method in methods)
    return {method: share for method, share in pairs if share is not None}


def _told(shares: dict[str, float]) -> str:
    return "error left: " + ", ".join(f"{NAMES[method]} {_percent(share)}" for method, share in shares.items())


def _percent(share: float) -> str:
    return "ran away" if share == float("inf") else f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:,.0f} %"


def _as_fast(found: Values, setting: str, where: str) -> Line:
    what, claim = "GEM-BML and GEM-BML+", "adapt about as fast as earlier methods"
    ours, others = _shares(found, setting, OURS), _shares(found, setting, EARLIER)
    steady = [share for share in others.values() if share != float("inf")]
    if not ours or not steady:
        return unmeasured(where, what, claim)
    slow = [method for method, share in ours.items() if share > max(steady)]
    verb = "keeps" if len(slow) == 1 else "keep"
    said = f"{named(slow)} {verb} more than the slowest of the others, {_percent(max(steady))}." if slow else ""
    verdict = share_of([method not in slow for method in ours])
    return Line(where, what, claim, _told(ours | others), verdict, said)


def _bayesian_learn(found: Values, setting: str, where: str) -> Line:
    what, claim, shares = "Bayesian methods", "still learn", _shares(found, setting, BAYESIAN)
    if not shares:
        return unmeasured(where, what, claim)
    failed = [method for method, share in shares.items() if share > HARDLY]
    said = f"{named(failed)} {'does' if len(failed) == 1 else 'do'} not." if failed else ""
    return Line(where, what, claim, _told(shares), share_of([m not in failed for m in shares]), said)


def _points_fail(found: Values, setting: str, where: str) -> Line:
    what, claim, shares = "MAML and Reptile", "fail to learn", _shares(found, setting, POINTS)
    if not shares:
        return unmeasured(where, what, claim)
    learned = [method for method, share in shares.items() if share <= HARDLY]
    said = f"{named(learned)} {'learns' if len(learned) == 1 else 'learn'}." if learned else ""
    return Line(where, what, claim, _told(shares), share_of([m not in learned for m in shares]), said)


def _go_on(found: Values, setting: str, where: str) -> Line:
    what, claim = "GEM-BML and GEM-BML+", "go on improving with more steps, without overfitting"
    pairs = {method: [_error(found, setting, method, steps) for steps in (10, 50)] for method in OURS}
    known = {method: pair for method, pair in pairs.items() if None not in pair}
    if not known:
        return unmeasured(where, what, claim)
    told = [f"{NAMES[method]} {pair[0]} after 10 steps, {pair[1]} after 50" for method, pair in known.items()]
    fell = {m: (b.mean - a.mean) / b.mean for m, (b, a) in known.items() if b and a and b.mean and a.mean is not None}
    # Less than a hundredth is no improvement worth the name.
    held = [fell.get(method, -1.0) > 0.01 for method in known]
    still = [method for method, keep in zip(known, held, strict=True) if not keep]
    said = "" if all(held) else f"{named(still)} {'does' if len(still) == 1 else 'do'} not move any more."
    return Line(where, what, claim, "; ".join(told), share_of(held), said)


def _with_length(line: Line, results: study.Results | None) -> Line:
    """A training that is not as long as the paper's is said to be."""
    length = paper.SINUSOID_ITERATIONS if results is None else results["settings"]["iterations"]
    if length == paper.SINUSOID_ITERATIONS or "iterations" in line.said:
        return line
    more = f"Trained for {length:,} iterations, not {paper.SINUSOID_ITERATIONS:,}."
    return line._replace(said=f"{line.said} {more}".strip())


def inner_steps(load: Load) -> list[Line]:
    """Appendix C.2: MAML with 1, 2 and 3 steps, and whether the other methods are alike."""
    found, lines = values(load("inner-steps")), []
    for setting, whose in SETTINGS.items():
        lines += [_needs(found, setting, whose), _alike(found, setting, whose)]
    return lines


def _by_steps(found: Values, setting: str, method: str, steps: tuple[int, ...]) -> dict[int, Value]:
    pairs = {k: found.get((f"{setting}, {k} steps", method, "MSE after 10")) for k in steps}
    return {k: value for k, value in pairs.items() if value is not None}


def _needs(found: Values, setting: str, where: str) -> Line:
    what, claim, errors = "MAML", "needs several inner steps to work", _by_steps(found, setting, "maml", (1, 2, 3))
    first, best = errors.get(1), _least(errors)
    if first is None or first.mean is None or best is None or best.mean is None:
        return unmeasured(where, what, claim)
    before = found.get((f"{setting}, 1 steps", "maml", "MSE after 0"))
    works = before is not None and before.mean is not None and first.mean < HARDLY * before.mean
    better = first.mean - best.mean > hypot(first.ci95, best.ci95)
    verdict = PART if works and better else HOLDS if better else FAILS if works else UNDECIDED
    left = f" It keeps {_percent(first.mean / before.mean)} of its error." if works and before and before.mean else ""
    said = {
        PART: "Several are better, but one step works, too.",
        FAILS: "One step works about as well: the difference is within the intervals.",
    }.get(verdict, "")
    told = "; ".join(f"{value} with {k}" for k, value in errors.items())
    return Line(where, what, claim, told, verdict, said + (left if verdict in (PART, FAILS) else ""))


def _least(errors: dict[int, Value]) -> Value | None:
    finite = [value for value in errors.values() if value.mean is not None]
    return min(finite, key=lambda value: value.mean or 0.0, default=None)


def _alike(found: Values, setting: str, where: str) -> Line:
    """Others: is the error with one step above the least with more, by more than the intervals?"""
    what, claim = "other methods", "behave alike"
    verdicts = {}
    for method in ("gem-bml+", "gem-bml", "reptile", "bmaml", "amortized-bml"):
        errors = _by_steps(found, setting, method, (1, 2, 3, 5, 10))
        first, best = errors.pop(1, None), _least(errors)
        if first is not None and first.mean is not None and best is not None and best.mean is not None:
            verdicts[method] = first.mean - best.mean > hypot(first.ci95, best.ci95), first, best
    if not verdicts:
        return unmeasured(where, what, claim)
    told = "; ".join(f"{NAMES[m]} {first} with 1, at best {best}" for m, (_, first, best) in verdicts.items())
    gain = [method for method, (better, *_) in verdicts.items() if better]
    said = f"More than one step is better, beyond the intervals, for {named(gain) if gain else 'none'}."
    return Line(where, what, claim, told, share_of([better for better, *_ in verdicts.values()]), said)
