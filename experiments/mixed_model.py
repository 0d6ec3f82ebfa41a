"""A linear-Gaussian mixed model, random intercept and slope: what statsmodels estimates, the learned prior estimates.

metaprior reproduce mixed-model

Maximum likelihood in both: the Gradient-EM gradient of L[1] is that of the marginal likelihood where the posterior is exact. So
it is for a posterior with every covariance (`full`, by one Newton step; or the exact head of `MetaRegressor(hidden=())`, which
learns the noise as well), and not for one that factorises.
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from experiments import study
from metaprior import methods, trees
from metaprior.estimators.pieces import Spec, assemble
from metaprior.families import Full, MeanField, cholesky
from metaprior.figures import BLACK, BLUE, GREY, ORANGE
from metaprior.likelihoods import Weighted, gaussian, weighted
from metaprior.meta import meta_learner, task_keys
from metaprior.models import foreign
from metaprior.types import Episode

MEAN, STD, CORRELATION, NOISE = (2.0, -1.0), (1.0, 0.5), 0.5, 0.6
NAMES = (
    "mean of intercepts",
    "mean of slopes",
    "variance of intercepts",
    "variance of slopes",
    "correlation",
    "noise variance",
)
LEARNED = ("exact head", "full", "mean-field")
FIELDS: dict[str, Any] = dict(
    column="joint", second_stage="joint-from-prior", rates="none", widths="exact", std=1.0, draw_steps=False, clip=None
)


@dataclass(frozen=True)
class Settings:
    """Groups of each table, and training."""

    seeds: tuple[int, ...] = (0, 1, 2)
    groups: int = 300
    iterations: int = 1500


SMOKE = Settings(seeds=(0,), groups=20, iterations=20)
TABLES = {
    "centred": ((-2.0, 2.0), (4, 12)),
    "shifted": ((0.0, 4.0), (4, 12)),
    "few rows": ((0.0, 4.0), (2, 3)),
}  # inputs, rows


class Table(NamedTuple):
    """Rows of groups of different sizes."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray


def draw(settings: Settings, kind: str, seed: int) -> Table:
    """Random intercepts and slopes, and noise."""
    rng = np.random.default_rng([seed, 11])
    cov = np.array([[STD[0] ** 2, CORRELATION * STD[0] * STD[1]], [CORRELATION * STD[0] * STD[1], STD[1] ** 2]])
    weights = rng.multivariate_normal(MEAN, cov, settings.groups)
    ends, (least, most) = TABLES[kind]
    group = np.repeat(np.arange(settings.groups), rng.integers(least, most + 1, settings.groups))
    x = rng.uniform(*ends, len(group))
    return Table(x, weights[group, 0] + weights[group, 1] * x + NOISE * rng.normal(size=len(group)), group)


def by_statsmodels(table: Table) -> np.ndarray:
    """MixedLM by maximum likelihood: the six numbers of `NAMES`."""
    import statsmodels.api as sm

    design = np.c_[np.ones(len(table.x)), table.x]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps on the way
        found = sm.MixedLM(table.y, design, table.group, exog_re=design).fit(reml=False)
    return _six(np.asarray(found.fe_params), np.asarray(found.cov_re), float(found.scale))


def episodes_of(table: Table) -> Episode:
    """A task for each group, with all of its rows as query; small groups are filled up with points of weight zero."""
    counts = np.bincount(table.group)
    place = np.arange(len(table.group)) - np.repeat(np.cumsum(counts) - counts, counts)
    x, y, weight = (np.zeros((len(counts), counts.max())) for _ in range(3))
    for array, values in ((x, table.x), (y, table.y), (weight, 1.0)):
        array[table.group, place] = values
    query = Weighted(*(jnp.asarray(array) for array in (x[..., None], y[..., None], weight)))
    return Episode(jax.tree.map(lambda leaf: 0 * leaf[:, :1], query), query)


def learned(settings: Settings, table: Table, family: str, noise_variance: float) -> np.ndarray:
    """The same six numbers of a prior learned by Gradient-EM; the noise is learned by the exact head and given to the others."""
    if family == "exact head":
        pieces = assemble(Spec("regression", 1, 1, "gem-bml+last-layer", (("column", "joint"),), hidden=()))
        learner, model = pieces.learner, pieces.model
    else:
        model = foreign(lambda key: jnp.zeros(2), lambda w, x: w[0] + w[1] * x, "line")
        exact: dict[str, Any] = dict(inference="laplace", rate=1.0, steps=(0, 1))
        factorised: dict[str, Any] = dict(
            inference="natural_vi", rate=0.9, num_samples=1, steps=(0, 200), options={"num_samples": 0}
        )
        fields = FIELDS | {"prior": family, "posterior": family} | (exact if family == "full" else factorised)
        likelihood = weighted(gaussian(model.apply, noise_std=noise_variance**0.5))
        learner = meta_learner(methods.get("gem-bml", **fields), likelihood)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.05, settings.iterations))
    state = learner.init(jax.random.key(0), model.init(jax.random.key(1)))
    prior = _ascended(learner, state, episodes_of(table), optimizer, settings.iterations)
    return _numbers(prior.dist, noise_variance)


def _ascended(learner, state, episodes, optimizer, iterations):
    """All groups in every iteration: what is climbed is the likelihood itself, and no sample of it."""
    keys = task_keys(jax.random.key(2), len(episodes.query.x))

    def one(carry, _):
        prior, opt_state = carry
        found = learner.learn(state._replace(prior=prior), keys, episodes)
        grads = trees.like(prior, -found.gradient / found.kept)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(prior, updates), opt_state), None

    run = jax.jit(lambda prior: jax.lax.scan(one, (prior, optimizer.init(prior)), None, length=iterations)[0][0])
    return jax.tree.map(np.asarray, run(state.prior))


def _numbers(dist, noise_variance: float) -> np.ndarray:
    if isinstance(dist, MeanField):
        return _six(dist.mean, np.diag(np.exp(2 * dist.log_std)), noise_variance)
    if isinstance(dist, Full):
        lower = np.asarray(cholesky(dist))
        return _six(dist.mean, lower @ lower.T, noise_variance)
    lower = np.asarray(cholesky(Full(dist.mean, dist.tril)))
    cov, floor = lower @ lower.T, np.log(1e-3)  # its features are the row, then the constant
    log_noise = floor + np.logaddexp(0, dist.features.log_noise - floor)
    return _six(dist.mean[::-1, 0], cov[::-1, ::-1], float(np.exp(2 * log_noise)))


def _six(mean, cov, noise_variance: float) -> np.ndarray:
    return np.array([*mean, cov[0, 0], cov[1, 1], cov[0, 1] / np.sqrt(cov[0, 0] * cov[1, 1]), noise_variance])


def cells(settings: Settings) -> list[study.Cell]:
    """Inputs around zero, or to one side of it, where intercept and slope of a group are hard to tell apart; many rows or few."""
    del settings
    return [(kind,) for kind in TABLES]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Every estimate of every seed, and how far each is from statsmodels' own."""
    (kind,) = cell
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("statsmodels", *LEARNED)}
    with jax.enable_x64(True):
        for seed in settings.seeds:
            table = draw(settings, kind, seed)
            found["statsmodels"].append(by_statsmodels(table))
            for family in LEARNED:
                found[family].append(learned(settings, table, family, found["statsmodels"][-1][-1]))
    rows = []
    for name, values in found.items():
        for number, column in zip(NAMES, np.transpose(values), strict=True):
            mean, half = study.mean_and_ci(column)
            rows.append(study.row(setting=kind, method=name, metric=number, mean=mean, ci95=half))
        if name != "statsmodels":
            mean, half = study.mean_and_ci(off(values, found["statsmodels"]).max(axis=1))
            rows.append(study.row(setting=kind, method=name, metric="largest difference", mean=mean, ci95=half))
    return {"rows": rows, "curves": {kind: found}}


def off(values: Any, reference: Any) -> np.ndarray:
    """Relative differences."""
    return np.abs(np.asarray(values, float) / np.asarray(reference, float) - 1)


def shown(results: study.Results) -> list[dict[str, Any]]:
    """All rows."""
    return results["rows"]


def figure(results: study.Results) -> Figure:
    """The distribution of intercepts and slopes that each has found, for the first seed."""
    drawn = Figure(figsize=(13, 4.8), layout="constrained")
    axes = drawn.subplots(1, len(TABLES), sharex=True, sharey=True)
    styles = {
        "statsmodels": (BLACK, "-", 3.5),
        "exact head": (BLUE, "-", 1.5),
        "full": (GREY, ":", 2.5),
        "mean-field": (ORANGE, "--", 2),
    }
    for axis, kind in zip(axes, TABLES, strict=True):
        for name, (colour, line, width) in styles.items():
            axis.add_patch(
                _ellipse(
                    results["curves"][kind][name][0], edgecolor=colour, linestyle=line, linewidth=width, label=name
                )
            )
            axis.plot(*results["curves"][kind][name][0][:2], "+", color=colour)
        axis.set(xlabel="intercept", xlim=(-1, 5), ylim=(-3, 1))
        axis.set_title(f"{kind}: {_told(kind)}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("slope")
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    drawn.suptitle("How intercepts and slopes vary over groups: ellipses of two standard deviations, as estimated")
    return drawn


def _told(kind: str) -> str:
    (low, high), (least, most) = TABLES[kind]
    return f"inputs from {low:g} to {high:g}, {least} to {most} rows a group"


def _ellipse(six, **style) -> Ellipse:
    m0, m1, v0, v1, correlation, _ = six
    cross = correlation * (v0 * v1) ** 0.5
    values, vectors = np.linalg.eigh(np.array([[v0, cross], [cross, v1]]))
    angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
    return Ellipse((m0, m1), 4 * values[1] ** 0.5, 4 * values[0] ** 0.5, angle=angle, fill=False, **style)


def remarks(results: study.Results) -> list[str]:
    """How far each is off, and in what."""
    sentences = []
    for kind, found in results["curves"].items():
        worst = {name: float(off(found[name], found["statsmodels"]).max()) for name in LEARNED}
        mean_field = off(found["mean-field"], found["statsmodels"]).mean(axis=0)
        variances = "; ".join(f"{NAMES[i]} off by {mean_field[i]:.1%}" for i in (0, 1, 2, 3))
        correlation = np.mean([six[4] for six in found["statsmodels"]])
        sentences.append(
            f"{kind.capitalize()} ({_told(kind)}): the learned prior agrees with MixedLM in all six numbers to "
            f"{worst['exact head']:.2%} (exact head, noise learned too) and {worst['full']:.2%} (full, noise given). "
            f"Mean-field: {variances}; it has no correlation to show where MixedLM finds {correlation:.2f}."
        )
    return sentences


STUDY, run = study.declare(
    __name__,
    title="A mixed model: random intercept and slope, beside statsmodels",
    paper="Not in the paper; its Theorem 1 says that Gradient-EM is exact where the posterior is: the oldest model of groups.",
    full=Settings(),
    smoke=SMOKE,
)
