"""How close Gradient-EM and the ELBO's gradient come to the exact gradient of the evidence (Appendix C.1, §3.2, A.3).

Linear-Gaussian tasks, so that everything is known exactly; the estimators are the library's own, after 0 to 200 steps of
variational inference, where tasks say much, little, or less than a tight prior. Also: the laws both follow, the error against
√KL with a bound that holds, and the estimators of the predictive evidence L[2].

metaprior reproduce gradient-error --scale full
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import gradient_error_report, study
from experiments.exact_linear import (
    Estimator,
    Regime,
    bounds,
    draw_tasks,
    estimate,
    exact_gradients,
    gem_gradient,
    laws,
    posterior,
    split,
)
from metaprior.families import MeanField
from metaprior.types import Data

REGIMES = {
    "informative": Regime(20, 0.5, 1.0),
    "weak": Regime(5, 2.0, 1.0),
    "tight": Regime(20, 0.5, 0.1),
    "orthogonal": Regime(20, 0.5, 1.0, orthogonal=True),
    "informative (noisy)": Regime(20, 0.5, 1.0, sampled=True, step=0.25),
    "tight (noisy)": Regime(20, 0.5, 0.1, sampled=True, step=0.25),
}
SPLIT_REGIMES = REGIMES | {"weak": Regime(10, 2.0, 1.0)}  # halves: five points say as little as before
L1 = {row: Estimator(row, "joint", "none") for row in ("gem", "elbo")}
L2 = {
    "A: GEM, sequential (the paper's)": Estimator("gem", "difference", "sequential"),
    "B: GEM, joint from q1": Estimator("gem", "difference", "joint-from-q1"),
    "C: GEM, joint from the prior": Estimator("gem", "difference", "joint-from-prior"),
    "E: difference of ELBOs": Estimator("elbo", "difference", "joint-from-prior"),
    "F: conditional ELBO": Estimator("elbo", "conditional", "sequential"),
    "G: KL-chaser": Estimator("gem", "conditional", "sequential"),
    "H: query under q1": Estimator("elbo", "conditional", "none"),
}
PARTS = {"error in μ": "mean", "error in log σ": "log_std"}
COSINE, CLOSER, CLOSER_MEAN = "cosine", "GEM closer", "GEM closer in μ"
LAW_STEP = 0.25  # ρ of the scalar laws is one minus this
DISPLACED = Regime(1, 2.0, 1.0)  # little is known, so that the posterior is wide


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the tasks."""
    tasks: int = 200
    """For each seed."""
    weights: int = 5
    """Of the linear model."""
    regimes: tuple[str, ...] = tuple(REGIMES)
    """In which the gradient of L[1] is estimated."""
    steps: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50, 200)
    """Of variational inference."""
    law_regimes: tuple[str, ...] = ("informative", "weak", "tight")
    """Whose version with one weight is held against the laws."""
    law_steps: tuple[int, ...] = (0, 1, 2, 4, 7, 10, 15, 20)
    """Of inference with one weight."""
    split_regimes: tuple[str, ...] = ("informative", "weak", "tight")
    """In which the gradient of L[2] is estimated, with as many query points as support points."""
    split_steps: tuple[int, ...] = (1, 2, 5, 10, 50)
    """Of each of the two inferences behind L[2]."""
    scattered: int = 25
    """Tasks whose error is drawn against √KL."""


SMOKE = Settings(
    seeds=(0,), tasks=20, regimes=("informative", "tight (noisy)"), steps=(0, 10), law_regimes=("informative",), law_steps=(3,),
    split_regimes=("weak",), split_steps=(10,), scattered=10,
)  # fmt: skip


def cells(settings: Settings) -> list[study.Cell]:
    """The laws, each regime of L[1], each of L[2], and the bound beyond what inference reaches."""
    regimes = [("regime", name) for name in settings.regimes]
    return [("laws",), *regimes, ("displaced",), *(("split", name) for name in settings.split_regimes)]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """In float64: some of the errors are of the order of its rounding."""
    kinds = {"laws": _laws, "regime": _regime, "displaced": _displaced, "split": _split}
    with jax.enable_x64(True):
        return kinds[cell[0]](settings, *cell[1:])


def _laws(settings) -> study.Results:
    """One weight: both estimates over the exact gradient, beside the law."""
    rows, curves = [], {}
    for name in settings.law_regimes:
        regime = REGIMES[name]._replace(orthogonal=True, step=LAW_STEP)  # for one weight, Σx² = n exactly
        data = draw_tasks(regime, settings.seeds[:1], 1, 1)
        exact = exact_gradients(regime, split(data, 0)).mean
        law_of = _laws_of(regime)
        law = [law_of(data, exact, k) for k in settings.law_steps]
        curve: dict[str, Any] = {"steps": settings.law_steps, "data_over_prior": _ratio(regime), "rho": 1 - LAW_STEP}
        for method, estimator in L1.items():
            found = [
                estimate(regime, estimator, split(data, regime.num_points), (k, 0))[0].mean for k in settings.law_steps
            ]
            curve[method] = [float((f / exact)[0, 0]) for f in found]
            curve[f"{method}_law"] = [float((w[method] / exact)[0, 0]) for w in law]
            gap = np.abs(np.subtract(curve[method], curve[f"{method}_law"])).max()
            setting = f"one weight, {name}"
            rows.append(study.row(setting=setting, method=method, metric="largest distance from the law", mean=gap))
        curves[f"law {name}"] = curve
    return {"rows": rows, "curves": curves}


def _laws_of(regime):
    """For every task: (data, exact gradients in μ, number of steps) -> what the laws say."""
    return jax.jit(jax.vmap(lambda one, exact, k: laws(regime, one, exact, k), in_axes=(0, 0, None)))


def _regime(settings, name) -> study.Results:
    """Every number of steps in one regime."""
    regime = REGIMES[name]
    data = draw_tasks(regime, settings.seeds, settings.tasks, settings.weights)
    exact = exact_gradients(regime, split(data, 0))
    posteriors = jax.jit(jax.vmap(lambda data: posterior(regime, data)))(data)
    law_of = _laws_of(regime)
    bound_of = jax.jit(jax.vmap(lambda q, posterior: bounds(regime, q, *posterior)))
    curve: dict[str, Any] = {"steps": settings.steps, "data_over_prior": _ratio(regime), "rho": 1 - regime.step}
    rows, scatter, gaps = [], [], dict.fromkeys(L1, 0.0)
    for k in settings.steps:
        pairs = {name: estimate(regime, by, split(data, regime.num_points), (k, 0)) for name, by in L1.items()}
        found = {method: gradient for method, (gradient, _) in pairs.items()}
        law = law_of(data, exact.mean, k)
        gaps = {m: max(gap, _relative(found[m].mean, law[m], exact.mean).max()) for m, gap in gaps.items()}
        bound = bound_of(pairs["gem"][1], posteriors)
        scatter.append({"error": _norm(_minus(found["gem"], exact)), **bound._asdict()})
        for method, metric, summary in _summaries(found, exact, settings):
            rows.append(study.row(setting=_at(name, k), method=method, metric=metric, **summary))
            curve.setdefault(f"{method} {metric}", []).append(summary["mean"])
    if not regime.sampled:
        rows += [_number(name, method, "largest relative distance from the law", gap) for method, gap in gaps.items()]
    bound_rows, dots = _against_bounds(name, scatter, settings.scattered)
    return {"rows": rows + bound_rows, "curves": {f"regime {name}": curve, f"bound {name}": dots}}


def _summaries(found, exact, settings):
    """Of all tasks of a seed the median error and cosine, and how often Gradient-EM is closer; then over seeds."""
    for method, gradient in found.items():
        for metric, part in PARTS.items():
            error = _relative(getattr(gradient, part), getattr(exact, part), getattr(exact, part))
            yield method, metric, _over_seeds(error, settings, np.median)
        yield method, COSINE, _over_seeds(_cosine(gradient, exact), settings, np.median)
    gem, elbo = (_minus(found[method], exact) for method in ("gem", "elbo"))
    yield "gem", CLOSER, _over_seeds(_closer(_norm(gem), _norm(elbo), _norm(exact)), settings, np.mean)
    in_mean = _closer(_length(gem.mean), _length(elbo.mean), _length(exact.mean))
    yield "gem", CLOSER_MEAN, _over_seeds(in_mean, settings, np.mean)


def _against_bounds(name, scatter, num_tasks):
    """How near the error of Gradient-EM comes to what √KL allows, at worst; and some tasks for the figure."""
    columns = {key: np.stack([np.asarray(one[key]) for one in scatter]) for key in scatter[0]}
    rows = [
        _number(name, "gem", f"largest error over the {which} bound", (columns["error"] / columns[which]).max())
        for which in ("valid", "printed")
    ]
    dots = {key: [float(f"{value:.4g}") for value in column[:, :num_tasks].ravel()] for key, column in columns.items()}
    return rows, dots


def _displaced(settings) -> study.Results:
    """A posterior found too far away by δ of its own standard deviations: where steps overshoot, or q is out of date."""
    del settings
    away = np.linspace(0, 4, 41)

    def at(delta):
        nothing_seen = Data(jnp.ones((1, 1)), jnp.zeros((1, 1)))
        mean, cov = posterior(DISPLACED, nothing_seen)
        std = jnp.sqrt(jnp.diagonal(cov))
        q = MeanField(mean + delta * std, jnp.log(std))  # with one weight, the posterior itself at δ = 0
        return gem_gradient(DISPLACED, q), bounds(DISPLACED, q, mean, cov)

    found, allowed = jax.tree.map(np.asarray, jax.jit(jax.vmap(at))(away))
    error = _norm(_minus(found, jax.tree.map(lambda leaf: leaf[:1], found)))
    curve = {key: column[1:] for key, column in {"away": away, "error": error, **allowed._asdict()}.items()}
    broken = curve["away"][curve["error"] > curve["printed"]]
    metric = "standard deviations from which the printed bound is broken"
    return {"rows": [_number("one weight, q displaced", "gem", metric, broken.min())], "curves": {"displaced": curve}}


def _split(settings, name) -> study.Results:
    """The estimators of the gradient of L[2]."""
    regime = SPLIT_REGIMES[name]
    half = regime.num_points // 2
    episodes = split(draw_tasks(regime, settings.seeds, settings.tasks, settings.weights), half)
    exact = exact_gradients(regime, episodes)
    curve, rows = {"steps": settings.split_steps}, []
    for method, estimator in L2.items():
        for k in settings.split_steps:
            found, _ = estimate(regime, estimator, episodes, (k, k))
            for metric, values in (
                ("error", _norm(_minus(found, exact)) / _norm(exact)),
                (COSINE, _cosine(found, exact)),
            ):
                summary = _over_seeds(values, settings, np.median)
                setting = _at(f"L[2], {name} ({half} + {half} points)", k)
                rows.append(study.row(setting=setting, method=method, metric=metric, **summary))
                curve.setdefault(f"{method} {metric}", []).append(summary["mean"])
    return {"rows": rows, "curves": {f"split {name}": curve}}


# --- small pieces -----------------------------------------------------------------------------------------------------


def _ratio(regime):
    """a/b, of the precision of n unit inputs to that of the prior; ρ belongs to it where inputs are orthogonal."""
    return regime.num_points * (regime.std / regime.noise_std) ** 2


def _at(name, k):
    return f"{name}, {k} step{'' if k == 1 else 's'}"


def _number(setting, method, metric, value):
    return study.row(setting=setting, method=method, metric=metric, mean=float(value))


def _minus(a, b):
    return MeanField(a.mean - b.mean, a.log_std - b.log_std)


def _length(vectors):
    return np.linalg.norm(vectors, axis=-1)


def _norm(gradient):
    """Over all coordinates, μ and log σ together."""
    return np.hypot(_length(gradient.mean), _length(gradient.log_std))


def _relative(found, reference, scale):
    return _length(found - reference) / _length(scale)


def _closer(gem, elbo, scale):
    """One where Gradient-EM is closer, a half where rounding alone would decide."""
    return np.where(np.abs(gem - elbo) < 1e-10 * scale, 0.5, gem < elbo)


def _cosine(a, b):
    """Not a number where an estimate is zero but for rounding, as Gradient-EM's is before any step."""
    product = sum((x * y).sum(axis=-1) for x, y in zip(a, b, strict=True))
    size = np.where(_norm(a) > 1e-12 * _norm(b), _norm(a), np.nan)
    return product / (size * _norm(b))


def _over_seeds(values, settings, statistic) -> dict[str, Any]:
    per_seed = statistic(np.asarray(values).reshape(len(settings.seeds), -1), axis=1)
    mean, ci95 = study.mean_and_ci(per_seed[:, None])
    return {"mean": mean, "ci95": ci95 if len(settings.seeds) > 1 else None}


STUDY, run = study.declare(
    __name__,
    title="The gradient of the evidence: Gradient-EM and the ELBO against the exact one (App. C.1)",
    paper="Both match the exact gradient in the limit; GEM has stably lower error in finitely many steps (C.1, §3.2).",
    full=Settings(),
    smoke=SMOKE,
    report=gradient_error_report,
)
