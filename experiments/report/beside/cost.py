"""Figure 2b: what is claimed of memory and time against the number of inner steps."""

from experiments import study
from experiments.compute_memory import ALLOWED, BYTES, FLAT, GROWS, SECONDS
from experiments.report.beside.line import NAMES, Load, Value, listed, named, share_of, unmeasured, values
from experiments.report.verdicts import FAILS, HOLDS, PART, Line

LINEAR = 0.05  # largest distance from a straight line, as a share of the largest value
Costs = dict[str, dict[int, Value]]  # method -> steps -> number


def figure_2b(load: Load) -> list[Line]:
    """Claim by claim."""
    results = load("compute-memory")
    memory, seconds = _costs(results, BYTES), _costs(results, SECONDS)
    where = _where(results)
    lines = [_flat(memory, where), _linear(memory, where), _faster(seconds, where), _base(seconds, where)]
    return [*lines, _beyond(memory, where)]


def _where(results: study.Results | None) -> str:
    told = {"tasks": "miniimagenet", "ways": 5, "shots": 1} | ({} if results is None else results["settings"])
    names = {"omniglot": "Omniglot", "miniimagenet": "miniImageNet"}
    return f"{names.get(told['tasks'], told['tasks'])}, {told['ways']}-way {told['shots']}-shot"


def _costs(results: study.Results | None, metric: str) -> Costs:
    found: Costs = {}
    for (setting, method, name), value in values(results).items():
        if name == metric and value.mean is not None:
            found.setdefault(method, {})[int(setting.split()[0])] = value
    return {method: dict(sorted(by.items())) for method, by in found.items() if len(by) > 1}


def _ends(by: dict[int, Value]) -> tuple[float, float]:
    first, *_, last = (value.mean or 0.0 for value in by.values())
    return first, last


def _times(memory: Costs, methods: tuple[str, ...]) -> dict[str, float]:
    ends = {method: _ends(memory[method]) for method in methods if method in memory}
    return {method: last / first for method, (first, last) in ends.items() if first}


def _steps(costs: Costs) -> str:
    counts = sorted({count for by in costs.values() for count in by})
    return f"from {counts[0]} to {counts[-1]} steps" if counts else ""


def _flat(memory: Costs, where: str) -> Line:
    what, claim = (
        "memory of GEM-BML(+), first-order MAML, Reptile, iMAML",
        "does not depend on the number of inner steps",
    )
    times = _times(memory, FLAT)
    if not times:
        return unmeasured(where, what, claim)
    grown = [method for method, factor in times.items() if factor > ALLOWED]
    said = f"That of {named(grown)} grows." if grown else ""
    told = ", ".join(
        f"{NAMES[method]} {100 * (factor - 1):+.1f} %".replace("-0.0", "+0.0") for method, factor in times.items()
    )
    return Line(where, what, claim, f"{_steps(memory)}: {told}", share_of([m not in grown for m in times]), said)


def _linear(memory: Costs, where: str) -> Line:
    what, claim, methods = (
        "memory of MAML and Amortized BML",
        "grows linearly with the number of inner steps",
        GROWS[:2],
    )
    times = _times(memory, methods)
    if not times:
        return unmeasured(where, what, claim)
    off = {method: _bend(memory[method]) for method in times}
    held = [times[method] > ALLOWED and off[method] < LINEAR for method in times]
    told = listed([f"{NAMES[method]} {factor:.3g} times" for method, factor in times.items()])
    said = f"No point is further than {100 * max(off.values()):.2g} % of the largest from a straight line."
    return Line(where, what, claim, f"{_steps(memory)}: {told}", share_of(held), said)


def _bend(by: dict[int, Value]) -> float:
    """Largest distance from the line through the first point and the last, as a share of the last."""
    (start, *_, end), (first, last) = by, _ends(by)
    line = lambda count: first + (last - first) * (count - start) / (end - start)
    return max(abs((value.mean or 0.0) - line(count)) for count, value in by.items()) / last


def _faster(seconds: Costs, where: str) -> Line:
    what, claim = "time of MAML and Amortized BML", "grows faster than that of the others"
    slopes = {method: _slope(by) for method, by in seconds.items() if method in (*FLAT, *GROWS[:2])}
    fast, slow = ({m: slopes[m] for m in names if m in slopes} for names in (GROWS[:2], FLAT))
    if not fast or not slow:
        return unmeasured(where, what, claim)
    steepest = max(slow, key=lambda method: slow[method].mean or 0.0)
    bound = slow[steepest]
    clear = [(v.mean or 0.0) - (bound.mean or 0.0) > v.ci95 + bound.ci95 for v in fast.values()]
    close = [method for method, keep in zip(fast, clear, strict=True) if not keep]
    said = (
        f"{named(close)} {'is' if len(close) == 1 else 'are'} not clearly above {NAMES[steepest]}, which takes as many "
        "steps again in its second stage."
    )
    told = ", ".join(f"{NAMES[method]} {1e3 * (value.mean or 0.0):.2g}" for method, value in (fast | slow).items())
    return Line(where, what, claim, f"milliseconds a further step: {told}", share_of(clear), said if close else "")


def _slope(by: dict[int, Value]) -> Value:
    (start, *_, end), (first, last) = by, _ends(by)
    return Value((last - first) / (end - start), by[end].ci95 / (end - start))


def _base(seconds: Costs, where: str) -> Line:
    what, claim = "time of iMAML", "starts high, for its second derivatives"
    first = {method: _ends(seconds[method])[0] for method in FLAT if method in seconds}
    if "imaml" not in first or len(first) < 2:
        return unmeasured(where, what, claim)
    mine, others = first.pop("imaml"), max(first.values())
    told = (
        f"{1e3 * mine:.3g} ms with the fewest steps; at most {1e3 * others:.3g} of the others that are flat in memory"
    )
    return Line(where, what, claim, told, HOLDS if mine > others else FAILS)


def _beyond(memory: Costs, where: str) -> Line:
    what, claim = "memory of BMAML", "is beyond the range of the plot"
    if "bmaml" not in memory or "maml" not in memory:
        return unmeasured(where, what, claim)
    (_, most), (_, maml) = _ends(memory["bmaml"]), _ends(memory["maml"])
    told = f"{most / 1e9:.3g} GB with the most steps, MAML {maml / 1e9:.3g} GB"
    return Line(where, what, claim, told, HOLDS if most > 2 * maml else PART if most > maml else FAILS)
