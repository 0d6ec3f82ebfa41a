"""What is shown of the study of births: four new countries, and a table in pictures."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import study
from metaprior.figures import BLACK, BLUE, GREY, ORANGE

DRAWN = 4  # test countries of the first seed, in the order of the draw
DEFAULTS = (
    "The estimators run as they come. Two of their defaults, the share of groups held out in a fit and what a group alone "
    "expects of noise, were first settled on other splits of this very table; `estimator-defaults` asked other tables and came "
    "to the same, for the share by no more than chance. Networks and meta-rates were compared on splits of this table, too, and "
    "left as they were."
)
METRICS = ("RMSE", "NLL", "coverage of 90 % intervals")
WORDS = {
    "metaprior": "MetaRegressor, as it comes",
    "alone": "AdaptedRegressor, no learned prior",
    "per-group": "polynomial per country",
    "pooled": "one polynomial for all",
    "mixed-model": "mixed model (BLUP)",
    "gp": "Gaussian process per country",
    "gp-shared": "Gaussian process, shared numbers",
}


def figure(results: study.Results) -> Figure:
    """Above, what two methods make of new countries; below, all methods in three numbers."""
    drawn = Figure(figsize=(12, 7.4), layout="constrained")
    parts: Any = drawn.subfigures(2, 1, height_ratios=[1.1, 1])
    above, below = parts
    _countries(above, results)
    _bars(below, results)
    return drawn


def _countries(part, results) -> None:
    methods = results["settings"]["methods"]
    ours = results["curves"]["metaprior"]["countries"]
    other = "mixed-model" if "mixed-model" in methods else methods[-1]
    axes = np.atleast_1d(part.subplots(1, len(ours), sharey=True))
    for axis, (name, curve) in zip(axes, ours.items(), strict=True):
        year, known = np.array(curve["year"]), np.array(curve["known"])
        axis.fill_between(
            year, curve["low"], curve["high"], color=BLUE, alpha=0.2, linewidth=0, label="its 90 % interval"
        )
        axis.plot(year, curve["mean"], color=BLUE, linewidth=2, label="MetaRegressor")
        rival = results["curves"][other]["countries"][name]
        axis.plot(year, rival["mean"], color=ORANGE, linewidth=1.3, linestyle="-.", label=WORDS[other])
        axis.plot(year, curve["births"], color=BLACK, linewidth=1, linestyle="--", label="truth")
        axis.plot(year[known], np.array(curve["births"])[known], "o", color=BLACK, markersize=6, label="known years")
        axis.set(title=name, xlabel="year")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("births per woman")
    part.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)


def _bars(part, results) -> None:
    methods = results["settings"]["methods"][::-1]
    axes = part.subplots(1, len(METRICS), sharey=True)
    for axis, metric in zip(axes, METRICS, strict=True):
        found = [_of(results, name, metric) for name in methods]
        colours = [BLUE if name == "metaprior" else GREY for name in methods]
        values = [np.nan if row["mean"] is None else row["mean"] for row in found]
        axis.barh(
            [WORDS[name] for name in methods],
            values,
            xerr=[row["ci95"] or 0 for row in found],
            color=colours,
            alpha=0.8,
        )
        axis.set_xlabel(metric + (", mean over new countries" if metric != METRICS[-1] else ""))
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].axvspan(0.85, 0.95, color=BLUE, alpha=0.15, linewidth=0)
    axes[-1].set_xlim(0, 1)


def shown(results: study.Results) -> list[dict[str, Any]]:
    """All rows."""
    return results["rows"]


def remarks(results: study.Results) -> list[str]:
    """Who wins, by how much, and why."""
    methods = results["settings"]["methods"]
    sentences = [_winner(results, metric, methods) for metric in ("RMSE", "NLL")]
    coverage = {name: _of(results, name, METRICS[2])["mean"] for name in methods}
    right = [name for name, value in coverage.items() if value is not None and 0.85 <= value <= 0.95]
    sentences.append(
        f"90 % intervals of MetaRegressor cover {coverage['metaprior']:.1%} of the years asked for; between 85 % and 95 % are "
        f"those of {', '.join(right) or 'nobody'}. Every method but the two estimators had the width of its intervals fitted on "
        "validation countries."
    )
    sentences.append(
        "Why: a country by itself (polynomial, Gaussian process) has three to five points and cannot know that births fall "
        "late, steeply and then level off; one curve for all ignores the country; a mixed model knows how countries differ, but "
        "only in the coefficients of a polynomial. The learned prior learns the shapes themselves, and how they vary."
    )
    chosen = {name: results["curves"][name]["chosen"] for name in methods if name not in ("metaprior", "alone")}
    told = "; ".join(f"{name} {[found['choice'] for found in runs]}" for name, runs in chosen.items())
    return [*sentences, f"Chosen on validation countries, seed by seed: {told}.", DEFAULTS]


def _winner(results, metric, methods) -> str:
    found = {name: _of(results, name, metric)["mean"] for name in methods}
    order = sorted((name for name in methods if found[name] is not None), key=lambda name: found[name])
    first, second = order[:2]
    ours = "" if "metaprior" in (first, second) else f" MetaRegressor has {found['metaprior']:.3g}."
    per_country = lambda name: np.asarray(results["curves"][name]["scores"][metric], float)
    gap, half = study.mean_and_ci(per_country(second) - per_country(first))
    better = float((per_country(first) < per_country(second)).mean())
    return (
        f"Least {metric}: {WORDS[first]}, {found[first]:.3g}, before {WORDS[second]}, {found[second]:.3g}: country by country "
        f"{gap:.3g} ± {half:.2g} less, and less in {better:.0%} of them.{ours}"
    )


def _of(results, method: str, metric: str) -> dict[str, Any]:
    return next(row for row in results["rows"] if row["method"] == method and row["metric"] == metric)
