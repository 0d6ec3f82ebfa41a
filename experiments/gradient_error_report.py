"""How `gradient-error` is told: its figure, its remarks, and the rows of its table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from metaprior.figures import BLACK, BLUE, GREY, ORANGE

GREEN, SKY, PINK, YELLOW = "#009E73", "#56B4E9", "#CC79A7", "#E69F00"  # more of Okabe and Ito's
METHODS = {"gem": ("GEM", BLUE), "elbo": ("ELBO", ORANGE)}
COLOURS = {"informative": GREEN, "weak": PINK, "tight": YELLOW, "orthogonal": GREY}
NOISY = " (noisy)"
THREE = ("informative", "weak", "tight")
IN_TABLE = (" 1 step", " 10 steps")
NOT_IN_TABLE = ("cosine", "GEM closer in μ")
ALWAYS = "after any number of steps"
STEPS = "K, steps of variational inference"


def shown(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """After one step and after ten; laws and bounds in full."""
    apart = [row for row in results["rows"] if "step" not in row["setting"]]
    steps = [row for row in results["rows"] if row["setting"].endswith(IN_TABLE) and row["metric"] not in NOT_IN_TABLE]
    return apart + steps


# --- figure -----------------------------------------------------------------------------------------------------------


def figure(results: Mapping[str, Any]) -> Figure:
    """Eight panels; one of which the results hold nothing stays empty."""
    curves = results["curves"]
    canvas = Figure(figsize=(19, 9.5), layout="constrained")
    grid = canvas.subplots(2, 4)
    _draw_laws(grid[0, 0], named_curves(curves, "law"))
    for axes, name in zip(grid[0, 1:], THREE, strict=True):
        _draw_errors(axes, name, curves.get(f"regime {name}"))
    _draw_cosines(grid[1, 0], named_curves(curves, "regime"))
    _draw_closer(grid[1, 1], named_curves(curves, "regime"))
    _draw_bounds(grid[1, 2], named_curves(curves, "bound"), curves["displaced"])
    _draw_split(grid[1, 3], named_curves(curves, "split"))
    for axes in grid.flat:
        axes.grid(color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.suptitle(
        "GEM is nearer to the exact gradient after few steps or noisy ones; "
        "the ELBO once exact steps have nearly converged, and under a tight prior",
        fontsize="x-large",
    )
    return canvas


def named_curves(curves, kind):
    """The curves of one kind, by regime."""
    return {name.removeprefix(f"{kind} "): curve for name, curve in curves.items() if name.startswith(f"{kind} ")}


def _draw_laws(axes, laws):
    """How far from one the ratio to the exact gradient is: straight lines, that of the ELBO twice as steep."""
    for name, law in laws.items():
        far = {key: np.abs(np.subtract(law[key], 1)) for key in ("gem", "gem_law", "elbo", "elbo_law")}
        colour, ratio = COLOURS[name], law["data_over_prior"]
        label = r"GEM: $\rho^K$" if name == next(iter(laws)) else None  # the same in all regimes
        axes.plot(law["steps"], far["gem_law"], color=BLUE, label=label)
        axes.plot(law["steps"], far["gem"], "o", color=BLUE, markersize=6)
        label = rf"ELBO: $\rho^{{2K}}a/b$, $a/b={ratio:.3g}$"
        axes.plot(law["steps"], far["elbo_law"], color=colour, linestyle="--", label=label)
        axes.plot(law["steps"], far["elbo"], "D", color=colour, markersize=5)
    rho = next(iter(laws.values()))["rho"]
    axes.set(yscale="log", title=f"one weight, ρ = {rho:g}: dots measured, lines the laws")
    axes.set(xlabel=STEPS, ylabel="|estimate / exact − 1|")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)


def _over_steps(axes, curve):
    """Numbers of steps as places of their own: from none to hundreds."""
    axes.set_xticks(range(len(curve["steps"])), [str(k) for k in curve["steps"]])
    axes.set_xlabel(STEPS)


def _draw_errors(axes, name, curve):
    axes.set(title=f"{name}: median error of the gradient", ylabel="error relative to the exact gradient")
    if curve is None:
        axes.set_axis_off()
        return
    for method, (label, colour) in METHODS.items():
        for part, style, opacity in (("μ", "o-", 1), ("log σ", "s--", 0.6)):
            values = curve[f"{method} error in {part}"]
            axes.plot(values, style, color=colour, markersize=5, label=f"{label}, {part}", alpha=opacity)
    axes.set(yscale="log", ylim=(1e-4, 3e2))  # below, there is nothing to choose
    _over_steps(axes, curve)
    axes.legend(frameon=False, ncols=2, loc="upper right")


def _draw_cosines(axes, regimes):
    for name, curve in regimes.items():
        for method, style in (("gem", "o-"), ("elbo", "D:")) if name in THREE else ():
            values = np.array(curve[f"{method} cosine"], float)  # null, where nothing is estimated, becomes NaN
            axes.plot(values, style, color=COLOURS[name], markersize=5, label=f"{name}, {METHODS[method][0]}")
        _over_steps(axes, curve)
    axes.set(title="direction: cosine with the exact gradient", ylabel="median cosine, μ and log σ together")
    if set(regimes) & set(THREE):
        axes.legend(frameon=False, loc="lower right")


def _draw_closer(axes, regimes):
    for name, curve in regimes.items():
        base, noisy = name.removesuffix(NOISY), name.endswith(NOISY)
        style = {"linestyle": "--", "markerfacecolor": "white"} if noisy else {}
        label = f"{base}, one-sample steps" if noisy else base
        axes.plot(curve["gem GEM closer"], marker="o", markersize=5, color=COLOURS[base], label=label, **style)
        _over_steps(axes, curve)
    axes.axhline(0.5, color=BLACK, linewidth=0.8, linestyle=":")
    axes.set(
        title="how often GEM is closer than the ELBO", ylabel="share of tasks, ties count half", ylim=(-0.03, 1.03)
    )
    axes.legend(frameon=False, fontsize="small", loc="center right", bbox_to_anchor=(1, 0.67))


def _draw_bounds(axes, bounds, displaced):
    """Errors in units of a bound's constant, so that either bound is the diagonal."""
    for name, dots in bounds.items():
        if name in THREE:
            root, height = _in_units_of_the_bound(dots, "valid")
            axes.plot(root, height, ".", color=COLOURS[name], markersize=4, label=f"tasks, {name}: bound that holds")
    for which, colour, whose in (("valid", BLUE, "bound that holds"), ("printed", ORANGE, "the paper's bound")):
        axes.plot(*_in_units_of_the_bound(displaced, which), color=colour, linewidth=2.5, label=f"q displaced: {whose}")
    axes.axline((1, 1), (10, 10), color=BLACK, linewidth=1.2, label="where error = bound")
    axes.set(xscale="log", yscale="log", xlim=(5e-2, 40), ylim=(1e-3, 900), title="error of GEM against √KL")
    axes.set(xlabel="√KL(q ‖ posterior)", ylabel="error in units of the bound's constant")
    axes.legend(frameon=False, fontsize="small", loc="upper left", markerscale=2.5)


def _in_units_of_the_bound(dots, which):
    kl, error, bound = (np.array(dots[key], float) for key in ("kl", "error", which))
    return np.sqrt(kl), error / bound * np.sqrt(kl)


def _draw_split(axes, splits):
    name = "weak" if "weak" in splits else next(iter(splits))
    curve, colours = splits[name], (BLUE, SKY, GREEN, ORANGE, YELLOW, PINK, GREY)
    for method, colour in zip(_estimators(curve), colours, strict=True):
        axes.plot(curve[f"{method} error"], "o-", color=colour, markersize=5, label=method)
    axes.set(yscale="log", title=f"gradient of L[2], {name}: median error")
    _over_steps(axes, curve)
    axes.set(xlabel="K, steps of each of the two inferences", ylabel="error relative to the exact gradient")
    axes.legend(frameon=False, fontsize="small", loc="lower left")


def _estimators(curve):
    return [key.removesuffix(" error") for key in curve if key.endswith(" error")]


# --- remarks ----------------------------------------------------------------------------------------------------------


def remarks(results: Mapping[str, Any]) -> list[str]:
    """What the numbers say of the paper's claims."""
    curves, rows = results["curves"], results["rows"]
    regimes = named_curves(curves, "regime")
    return [
        _of_laws(rows), _of_regimes(regimes), *_of_the_rule(regimes), *_of_the_limit(regimes),
        _of_bounds(rows), *(_of_split(name, curve) for name, curve in named_curves(curves, "split").items()),
    ]  # fmt: skip


def _largest(rows, metric):
    return max(row["mean"] for row in rows if row["metric"] == metric)


def _of_laws(rows) -> str:
    gap = _largest(rows, "largest distance from the law")
    return (
        "With one weight, GEM/exact = 1 − ρ^K and ELBO/exact = 1 + ρ^{2K}·a/b hold to "
        f"{gap:.0e} (a, b the precisions of data and prior): in μ GEM is the more accurate of the two exactly while ρ^K > b/a."
    )


def _of_regimes(regimes) -> str:
    told, always = [], []
    for name, curve in regimes.items():
        shares = after_some_steps(curve, "gem GEM closer")
        when, in_mean = _when_most(shares), _when_most(after_some_steps(curve, "gem GEM closer in μ"))
        told.append(
            f"{name} {when} ({min(shares.values()):.0%} to {max(shares.values()):.0%} of tasks; in μ alone {in_mean})"
        )
        always += [name] if when == ALWAYS else []
    verdict = f"holds throughout for {_listed(always)} only" if len(always) < len(regimes) else "holds in all of them"
    return (
        f"GEM has the smaller error on most tasks, by regime: {', '.join(told)}. Noisy means one weight sample in each step "
        f"and in the score; else expectations are exact. The paper's stably lower error {verdict}."
    )


def after_some_steps(curve, key):
    return {k: value for k, value in zip(curve["steps"], curve[key], strict=True) if k > 0}


def _when_most(shares) -> str:
    won = [k for k, share in shares.items() if share > 0.5]
    return ALWAYS if len(won) == len(shares) else f"after {_listed(won)} steps" if won else "never"


def _listed(items) -> str:
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words or ["none"])


def _of_the_rule(regimes) -> list[str]:
    """Only orthogonal inputs give all weights the same ρ and a/b."""
    if (curve := regimes.get("orthogonal")) is None:
        return []
    last = np.log(curve["data_over_prior"]) / -np.log(curve["rho"])
    shares = dict(zip(curve["steps"], curve["gem GEM closer in μ"], strict=True))
    before, after = ([k for k in shares if (k < last) == early] for early in (True, False))
    if not (before and after):
        return []
    return [
        f"Orthogonal inputs: the rule says that GEM is closer in μ up to {last:.1f} steps; measured on "
        f"{shares[max(before)]:.0%} of tasks after {max(before)} steps and on {shares[min(after)]:.0%} after {min(after)}."
    ]


def _of_the_limit(regimes) -> list[str]:
    if (curve := regimes.get("weak")) is None:
        return []
    gem, elbo = (curve[f"{method} error in log σ"][-1] for method in METHODS)
    return [
        f"Neither is exact in the limit with a factorised posterior: weak data, after {curve['steps'][-1]} steps, leave an error "
        f"of {gem:.2f} (GEM) and {elbo:.2f} (ELBO) in log σ, because the best factorised posterior is too narrow."
    ]


def _of_bounds(rows) -> str:
    valid, printed = (_largest(rows, f"largest error over the {which} bound") for which in ("valid", "printed"))
    broken = _largest(rows, "standard deviations from which the printed bound is broken")
    return (
        f"The error of GEM is at most {valid:.2f} of a bound in √KL that holds for Gaussians. That of Appendix A.3 does not "
        "follow as printed (a root mean square is replaced by a mean, which is smaller): on these tasks the error reaches "
        f"{printed:.2f} of it, but where q lies {broken:.1f} standard deviations off a wide posterior it is broken."
    )


def _of_split(name, curve) -> str:
    ways, best = _estimators(curve), {}
    for place, k in enumerate(curve["steps"]):
        least = min(ways, key=lambda way: curve[f"{way} error"][place])
        best.setdefault(least, []).append(f"{k} ({curve[f'{least} error'][place]:.2g})")
    told = "; ".join(f"{way} after {_listed(steps)}" for way, steps in best.items())
    last = {way: curve[f"{way} error"][-1] for way in ways}
    return (
        f"Gradient of L[2], {name}, way of the least error after so many steps (and that error): {told}. The paper's second "
        f"stage (A) ends at {last[ways[0]]:.2g}, inference on all data from q1 (B) at {last[ways[1]]:.2g}."
    )
