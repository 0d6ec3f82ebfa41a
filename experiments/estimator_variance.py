r"""How far the learned prior scatters when L[2] is maximised instead of L[1] (Appendix A.2).

Tasks are a random intercept, θ ~ N(μ, σ²), with m points y = θ + N(0, v) each, of which L[2] gives k to the support. The prior
(μ, log σ²) that maximises the exact evidence of n tasks is found again and again, and its spread held against two formulas:
the paper's m/(m − k) · I⁻¹ and (I_m − I_k)⁻¹, with I_j what j points of one task tell about the prior.

metaprior reproduce estimator-variance --scale full
"""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments import study
from metaprior.figures import BLUE, GREY, ORANGE

PARAMETERS = {"mean": "μ", "log_var": "log σ²"}
GRID = np.linspace(-9.0, 9.0, 181)  # log σ²: a maximum beyond is none
CHUNK = 250  # repetitions drawn at once, for memory


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the repetitions, which are then taken together."""
    repetitions: int = 2000
    """Priors learned for each seed, number of tasks and split."""
    num_tasks: tuple[int, ...] = (50, 200, 800, 3200)
    """From which a prior is learned."""
    points: int = 20
    """m, of every task."""
    support: tuple[int, ...] = (0, 1, 2, 3, 5, 8, 10, 12, 15, 18)
    """k; none is L[1]."""
    variance: float = 1.0
    """σ² of the true prior."""
    noise_variance: float = 1.0
    """v, known."""
    resamples: int = 200
    """Of the bootstrap behind the intervals."""


SMOKE = Settings(seeds=(0,), repetitions=200, num_tasks=(100, 400), support=(0, 5, 10), resamples=50)


# --- formulas ---------------------------------------------------------------------------------------------------------


def information(settings: Settings, num_points: int) -> np.ndarray:
    r"""About (μ, log σ²) in j points of one task, whose mean is N(μ, σ² + v/j): a diagonal matrix, as its diagonal.

    $$I_j = \Big(\frac{1}{\sigma^2 + v/j},\ \frac{1}{2}\Big(\frac{\sigma^2}{\sigma^2 + v/j}\Big)^2\Big)$$

    It is bounded: even θ itself tells only so much about the prior it came from.
    """
    if num_points == 0:
        return np.zeros(2)
    total = settings.variance + settings.noise_variance / num_points
    return np.array([1 / total, 0.5 * (settings.variance / total) ** 2])


def corrected(settings: Settings, support: int) -> np.ndarray:
    """Variance × number of tasks under L[2], in the limit: L[2] is a likelihood given the support, so (I_m − I_k)⁻¹."""
    return 1 / (information(settings, settings.points) - information(settings, support))


def printed(settings: Settings, support: int) -> np.ndarray:
    """The paper's m/(m − k) · I_m⁻¹."""
    return settings.points / (settings.points - support) / information(settings, settings.points)


# --- the learned prior ------------------------------------------------------------------------------------------------

Moments = dict[int, np.ndarray]  # number of points -> mean over tasks of ȳ and of ȳ² [2, repetitions]


def draw_moments(rng: np.random.Generator, settings: Settings, repetitions: int, num_tasks: int) -> Moments:
    """All that the evidence knows of the data: ȳ of the first k and of all points; μ is zero."""
    theta = settings.variance**0.5 * rng.normal(size=(repetitions, num_tasks))
    noise, before, moments = np.zeros_like(theta), 0, {}
    for count in sorted({*settings.support, settings.points} - {0}):
        noise = noise + ((count - before) * settings.noise_variance) ** 0.5 * rng.normal(size=theta.shape)
        average, before = theta + noise / count, count
        moments[count] = np.stack([average.mean(axis=1), np.square(average).mean(axis=1)])
    return moments


def profile(settings: Settings, moments: Moments, support: int, log_var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best μ at each log σ² and L[2] per task there, up to a constant: L[1] of m points less L[1] of k points."""
    linear, precision, value = (np.zeros(1) for _ in range(3))
    for count, sign in ((settings.points, 1), (support, -1)):
        if count > 0:
            total = np.exp(log_var) + settings.noise_variance / count
            average, square = moments[count][:, :, None]
            linear, precision = linear + sign * average / total, precision + sign / total
            value = value - 0.5 * sign * (np.log(total) + square / total)
    return linear / precision, value + 0.5 * linear**2 / precision


def learn(settings: Settings, moments: Moments, support: int) -> tuple[np.ndarray, np.ndarray]:
    """The (μ, log σ²) that maximises the evidence, for every repetition; infinite where it rises without end."""
    grid = GRID[None] * np.ones((moments[settings.points].shape[1], 1))
    rises = profile(settings, moments, support, grid)[1].argmax(axis=1) == GRID.size - 1
    for _ in range(6):  # each narrows the bracket ten times
        best = np.clip(profile(settings, moments, support, grid)[1].argmax(axis=1), 1, grid.shape[1] - 2)
        low, high = (np.take_along_axis(grid, (best + side)[:, None], axis=1) for side in (-1, 1))
        grid = low + (high - low) * np.linspace(0, 1, 21)[None]
    log_var = grid[:, 10:11]
    mean = profile(settings, moments, support, log_var)[0]
    return np.where(rises, np.copysign(np.inf, mean[:, 0]), mean[:, 0]), np.where(rises, np.inf, log_var[:, 0])


def spread(estimates: np.ndarray) -> np.ndarray:
    """The variance of the normal distribution with the same quartiles: a few estimates at infinity do not spoil it."""
    low, high = np.percentile(estimates, [25, 75], axis=-1, method="nearest")  # no mean of a number and infinity
    return ((high - low) / 1.349) ** 2  # the quartiles of a standard normal are 1.349 apart


# --- the study --------------------------------------------------------------------------------------------------------


def cells(settings: Settings) -> list[study.Cell]:
    """One for each number of tasks."""
    return [(str(num_tasks),) for num_tasks in settings.num_tasks]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Every split of the same data."""
    num_tasks = int(cell[0])
    moments = _all_moments(settings, num_tasks)
    learned = {k: np.stack(learn(settings, moments, k)) for k in settings.support}  # [2, repetitions]
    rows: list[dict[str, Any]] = []
    curve: dict[str, Any] = {"support": settings.support}
    for k, estimates in learned.items():
        row = partial(study.row, setting=f"{num_tasks} tasks, {k} of {settings.points} points support")
        ours = partial(row, method="L[2]" if k else "L[1]")
        for index, (name, symbol) in enumerate(PARAMETERS.items()):
            (variance, half), ratio = _with_intervals(estimates[index], learned[0][index], settings.resamples)
            metric, paper = f"variance of {symbol} × tasks", float(f"{printed(settings, k)[index]:.3g}")
            rows.append(ours(metric=metric, mean=num_tasks * float(variance), ci95=num_tasks * half, paper=paper))
            rows.append(row(method="(I_m − I_k)⁻¹", metric=metric, mean=corrected(settings, k)[index]))
            for key, value in zip(("ratio", "ci95"), ratio, strict=True):
                curve.setdefault(f"{name} {key}", []).append(value)
        curve.setdefault("escaped", []).append(np.isinf(estimates[1]).mean())
        rows.append(ours(metric="share without a maximum", mean=curve["escaped"][-1]))
    priors = {str(k): np.round(learned[k][:, :300], 4) for k in (0, _half(settings))}
    return {"rows": rows, "curves": {f"{num_tasks} tasks": curve, f"priors of {num_tasks} tasks": priors}}


def _half(settings) -> int:
    """The split nearest to halves."""
    return min(settings.support, key=lambda k: abs(2 * k - settings.points))


def _all_moments(settings, num_tasks) -> Moments:
    parts = []
    for seed in settings.seeds:
        rng = np.random.default_rng([seed, num_tasks])
        for start in range(0, settings.repetitions, CHUNK):
            parts.append(draw_moments(rng, settings, min(CHUNK, settings.repetitions - start), num_tasks))
    return {k: np.concatenate([part[k] for part in parts], axis=1) for k in parts[0]}


def _with_intervals(estimates, reference, resamples):
    """Spread and spread over that of L[1], each with the half-width of its 95 % interval by a paired bootstrap."""
    chosen = np.random.default_rng(0).integers(estimates.size, size=(resamples, estimates.size))
    again, base = spread(estimates[chosen]), spread(reference[chosen])
    halves = [1.96 * values.std() if np.isfinite(values).all() else np.nan for values in (again, again / base)]
    return zip((spread(estimates), spread(estimates) / spread(reference)), halves, strict=True)


def figure(results: study.Results) -> Figure:
    """The two formulas and what was measured; and what it means for the learned prior."""
    settings = _settings(results)
    canvas = Figure(figsize=(15, 5), layout="constrained")
    axes = canvas.subplots(1, 3)
    for index, (place, name) in enumerate(zip(axes[:2], PARAMETERS, strict=True)):
        _draw_ratio(place, results, settings, index, name)
    _draw_priors(axes[2], results, settings)
    for place in axes:
        place.grid(color="0.92", linewidth=0.8)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
    canvas.suptitle("Giving points to the support costs far more precision than m/(m − k) says", fontsize="x-large")
    return canvas


def _draw_ratio(axes, results, settings, index, name):
    base = corrected(settings, 0)[index]
    inner = np.arange(settings.points)
    lines = (
        (printed, ORANGE, "--", "the paper: $m/(m-k)$"),
        (corrected, BLUE, "-", "$(I_m-I_k)^{-1}$ over $I_m^{-1}$"),
    )
    for formula, colour, style, label in lines:
        axes.plot(
            inner, [formula(settings, k)[index] / base for k in inner], color=colour, linestyle=style, label=label
        )
    shades = np.linspace(0.9, 0.0, len(settings.num_tasks))  # the more tasks the darker
    for num_tasks, shade in zip(settings.num_tasks, shades, strict=True):
        curve = results["curves"][f"{num_tasks} tasks"]
        dots = zip(curve["support"], curve[f"{name} ratio"], curve[f"{name} ci95"], strict=True)
        # what has no quartiles (too many estimates at infinity) cannot be drawn; at k = 0 both are the same
        x, y, half = np.array([dot for dot in dots if dot[0] > 0 and None not in dot], float).reshape(-1, 3).T
        axes.errorbar(x + 0.5 * (0.45 - shade), y, half, fmt="o", color=str(shade), ecolor=GREY, markersize=5,
                      markeredgecolor=GREY, markeredgewidth=0.7, label=f"measured, {num_tasks} tasks")  # fmt: skip
    axes.set(yscale="log", xlabel=f"k, support points of m = {settings.points}", ylim=(0.8, None), xlim=(-0.5, None))
    axes.set(ylabel="variance under L[2] over that under L[1]", title=f"learned {list(PARAMETERS.values())[index]}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:g}")
    if index == 0:
        axes.legend(frameon=False, loc="upper left")


def _draw_priors(axes, results, settings):
    num_tasks, half = settings.num_tasks[len(settings.num_tasks) // 2 - 1], _half(settings)
    found = results["curves"][f"priors of {num_tasks} tasks"]
    for k, colour, label in ((half, ORANGE, f"L[2], k = {half}"), (0, BLUE, "L[1]")):
        mean, log_var = np.array(found[str(k)], float)  # null, which is infinite, becomes NaN
        axes.plot(mean, log_var, "o", color=colour, markersize=4, alpha=0.6, markeredgewidth=0, label=label)
    axes.plot(0, np.log(settings.variance), "+", color="black", markersize=11, markeredgewidth=2, label="truth")
    axes.set(xlabel="learned μ", ylabel="learned log σ²")
    axes.set_title(f"priors learned from {num_tasks} tasks, again and again")
    axes.legend(frameon=False, loc="center right")


def _settings(results) -> Settings:
    """As they were when the results were made."""
    kept: dict[str, Any] = {field.name: results["settings"][field.name] for field in fields(Settings)}
    for name in ("seeds", "num_tasks", "support"):
        kept[name] = tuple(kept[name])  # JSON has lists
    return Settings(**kept)


def remarks(results: study.Results) -> list[str]:
    """By how much the printed formula is off, and what happens before its limit."""
    settings = _settings(results)
    k, many = _half(settings), max(settings.num_tasks)
    curve, place = results["curves"][f"{many} tasks"], settings.support.index(k)
    said = []
    for index, (name, symbol) in enumerate(PARAMETERS.items()):
        ratio, half = curve[f"{name} ratio"][place], curve[f"{name} ci95"][place]
        base = corrected(settings, 0)[index]
        wrong, right = (formula(settings, k)[index] / base for formula in (printed, corrected))
        measured = "not finite" if None in (ratio, half) else f"{ratio:.1f} ± {half:.1f}"
        said.append(
            f"With {k} of {settings.points} points as support the variance of {symbol} under L[2] is {measured} times "
            f"that under L[1] ({many} tasks). The paper's m/(m − k) says {wrong:.1f}, too small by a factor of "
            f"{right / wrong:.1f}; (I_m − I_k)⁻¹ says {right:.1f}."
        )
    return [*said, _reason(settings), _escapes(results, settings)]


def _reason(settings) -> str:
    share = information(settings, _half(settings))[0] / information(settings, settings.points)[0]
    return (
        "The paper's step takes information as proportional to the number of points. Points of one task share their θ, so "
        f"it levels off: {_half(settings)} points already tell {share:.0%} of what {settings.points} tell about μ, and L[2] "
        "learns from the rest alone. For μ the formula would hold for points that are nearly all noise."
    )


def _escapes(results, settings) -> str:
    shares = {n: results["curves"][f"{n} tasks"]["escaped"] for n in settings.num_tasks}
    worst = ", ".join(f"{max(share):.1%} for {n}" for n, share in shares.items())
    under_l1 = max(share[settings.support.index(0)] for share in shares.values())
    return (
        "With few tasks L[2] may have no maximum at all: σ² and μ rise together without end, and all that is fitted is how the "
        f"query differs from the support. At the worst split this befell this share of the repetitions, by tasks: {worst}; under "
        f"L[1] {under_l1:.1%}. Variances here are therefore those of the normal distribution with the same quartiles."
    )


def shown(results: study.Results) -> list[dict]:
    """The variances with the largest number of tasks."""
    most = f"{max(_settings(results).num_tasks)} tasks"
    return [row for row in results["rows"] if row["setting"].startswith(most) and row["metric"].startswith("variance")]


STUDY, run = study.declare(
    __name__,
    title="What a support set costs: the spread of the prior learned by L[1] and by L[2] (App. A.2)",
    paper="The asymptotic variance under L[2] is m/(m − k) times that under L[1] (Appendix A.2); as numbers, in this model.",
    full=Settings(),
    smoke=SMOKE,
)
