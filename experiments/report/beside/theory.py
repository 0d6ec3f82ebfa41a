"""Drawings, the matrix, the error of gradients (Appendix C.1) and A* (Appendix C.3)."""

from experiments import a_star_report, study
from experiments.gradient_error_report import METHODS, NOISY, after_some_steps, named_curves
from experiments.report.beside.line import NAMES, Load, listed, share_of, unmeasured, values
from experiments.report.verdicts import FAILS, HOLDS, NOTHING, PART, UNDECIDED, Line

EXACT = 0.01  # an error below this share of the exact gradient counts as none
CELLS = (
    ("ELBO gradient, L[1]", "amortized-bml", "Amortized BML"),
    ("ELBO gradient, L[2]", "pmaml", "related to PMAML"),
    ("Gradient-EM, L[1]", "gem-bml", "GEM-BML"),
    ("Gradient-EM, L[1]", "reptile", "Reptile, with points"),
    ("Gradient-EM, L[2]", "kl-chaser", "KL-chaser, never studied before"),
    ("Gradient-EM, L[2]", "bmaml", "related to BMAML"),
    ("Gradient-EM, L[2] as a difference", "gem-bml+", "GEM-BML+; in the text, as a further column"),
    ("ELBO gradient, L[2] as a difference", "elbo-difference", "blank"),
)


def figure_1(load: Load) -> list[Line]:
    """Two drawings: what stands for them here."""
    results, told = load("a-star"), "–"
    curve = {} if results is None else results["curves"].get("maml", {})
    if curve.get("distance of θᵢ") and curve.get("length of Θ"):
        told = f"adapted weights lie {curve['distance of θᵢ']:.2g} from Θ, which is {curve['length of Θ']:.3g} long"
    return [
        Line(
            "(a) A*",
            "MAML on sinusoids",
            "a drawing",
            told,
            NOTHING,
            "Drawn from real weights in the figure of a-star.",
        ),
        Line("(b)", "graphical model", "a drawing", "drawn anew, in the documentation", NOTHING),
    ]


def table_1(load: Load) -> list[Line]:
    """Cells of the matrix with the error that their methods reach; the paper prints names only."""
    found, lines = values(load("matrix")), []
    for where, method, printed in CELLS:
        value = found.get(("rows as they are", method, "MSE after 10"))
        if value is None:
            lines.append(unmeasured(where, method, printed))
            continue
        told = f"MSE {value} after 10 steps" if value.mean is not None else "some test task ran away"
        lines.append(Line(where, method, printed, told, NOTHING))
    return lines


def gradients(load: Load) -> list[Line]:
    """Appendix C.1."""
    results = load("gradient-error")
    regimes = {} if results is None else named_curves(results["curves"], "regime")
    return [_limit(regimes), _closer(regimes)]


def _limit(regimes) -> Line:
    where, what, claim = "exact expectations", "GEM and ELBO", "both match the exact gradient in the limit"
    left = {}
    for name, curve in regimes.items():
        if NOISY not in name:
            errors = [
                curve.get(f"{method} error in {part}", [None])[-1] for method in METHODS for part in ("μ", "log σ")
            ]
            left[name] = max((error for error in errors if error is not None), default=float("nan"))
    if not left:
        return unmeasured(where, what, claim)
    held = [error < EXACT for error in left.values()]
    off = [name for name, keep in zip(left, held, strict=True) if not keep]
    steps = max(curve["steps"][-1] for curve in regimes.values())
    told = ", ".join(f"{name} {error:.2g}" for name, error in left.items())
    said = f"Not for {listed(off)}: the best factorised posterior is too narrow, and no step mends that." if off else ""
    return Line(where, what, claim, f"largest relative error after {steps} steps: {told}", share_of(held), said)


def _closer(regimes) -> Line:
    where, what, claim = "all regimes", "GEM", "has the lower error after finitely many steps"
    shares = {name: after_some_steps(curve, "gem GEM closer") for name, curve in regimes.items()}
    if not shares:
        return unmeasured(where, what, claim)
    always = [name for name, by in shares.items() if min(by.values()) > 0.5]
    told = ", ".join(
        f"{name} {min(by.values()):.0%} to {max(by.values()):.0%}".replace("%", " %") for name, by in shares.items()
    )
    often = [max(by.values()) > 0.5 for by in shares.values()]
    verdict = HOLDS if len(always) == len(shares) else PART if any(often) else FAILS
    said = f"On most tasks after any number of steps for {listed(always)} only." if always and verdict == PART else ""
    return Line(where, what, claim, f"on {told} of tasks, over numbers of steps", verdict, said)


ANSWERS = {
    "holds": HOLDS,
    "holds in part": PART,
    "does not show": FAILS,
    "does not hold": FAILS,
    "cannot be said": UNDECIDED,
}


def a_star(load: Load) -> list[Line]:
    """Appendix C.3: MAML, as in the paper, on both sets of tasks."""
    lines = []
    for name, where in (("a-star", "sinusoids"), ("a-star-omniglot", "Omniglot")):
        results = load(name)
        for claim in (a_star_report.BEST, a_star_report.TOO, a_star_report.BEFORE):
            lines.append(_of_a_star(results, where, claim))
    return lines


def _of_a_star(results: study.Results | None, where: str, claim: str) -> Line:
    if results is None or "maml" not in results["curves"]:
        return unmeasured(where, NAMES["maml"], claim)
    answer, words, against = a_star_report.claims(results, "maml")[claim]
    said = f"Otherwise for points {listed(against)}." if against else ""
    return Line(where, NAMES["maml"], claim, words, ANSWERS.get(answer, PART), said)
