"""Where the defaults of the estimators come from: tables on which nothing else is judged.

metaprior reproduce estimator-defaults

Two tables are drawn (lines, and waves of different phase), two ship with statsmodels: the temperature of the Pacific by month, in
61 years, and carbon dioxide by week, in 44. A third of the groups is new each time, three to five rows of each are known. What is
compared are the share of groups that a fit holds out, and what a group alone expects of its noise before it is seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments import estimator_defaults_report, study

SHARES = {"0.2 held out": 0.2, "0.3 held out": 0.3}
# weight of what is likely of noise and widths beforehand, and whether few rows leave doubt about the scale of errors
ALONE = {"alone": (1.0, 1.0), "alone, nothing beforehand": (0.0, 1.0), "alone, no spread": (1.0, 0.0)}
METRICS = ("NLL", "RMSE", "coverage of 90 % intervals")


@dataclass(frozen=True)
class Settings:
    """Tables and what is tried on each."""

    seeds: tuple[int, ...] = (0, 1, 2)
    iterations: int = 2000
    tables: tuple[str, ...] = ("lines", "waves", "pacific", "carbon-dioxide")
    choices: tuple[str, ...] = (*SHARES, *ALONE)


SMOKE = Settings(seeds=(0,), iterations=10, tables=("lines",), choices=("0.3 held out", "alone", "alone, no spread"))


class Table(NamedTuple):
    """Rows in a scale of their own, and the group of each."""

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray


def lines() -> Table:
    """Random intercepts and slopes."""
    rng = np.random.default_rng(11)
    group = np.repeat(np.arange(60), 12)
    a, b, x = rng.normal(0, 1, 60), rng.normal(1, 0.5, 60), rng.uniform(-2, 2, len(group))
    return Table(x, a[group] + b[group] * x + 0.2 * rng.normal(size=len(x)), group)


def waves() -> Table:
    """Random amplitudes and phases."""
    rng = np.random.default_rng(12)
    group = np.repeat(np.arange(60), 12)
    a, phase, x = rng.uniform(0.5, 2, 60), rng.uniform(0, 3, 60), rng.uniform(-3, 3, len(group))
    return Table(x, a[group] * np.sin(x + phase[group]) + 0.1 * rng.normal(size=len(x)), group)


def pacific() -> Table:
    """Temperature of the sea by month, a group for each year."""
    import statsmodels.api as sm

    wide: Any = sm.datasets.elnino.load_pandas().data
    months = wide.drop(columns="YEAR").to_numpy(float)
    there = np.isfinite(months)
    year, month = np.nonzero(there)
    return Table(month.astype(float), months[there], year)


def carbon_dioxide() -> Table:
    """Parts in a million by week, a group for each year."""
    import statsmodels.api as sm

    loaded: Any = sm.datasets.co2.load_pandas()
    found = loaded.data["co2"].dropna()
    return Table(found.index.dayofyear.to_numpy(float), found.to_numpy(float), found.index.year.to_numpy())


TABLES: dict[str, Callable[[], Table]] = {
    "lines": lines, "waves": waves, "pacific": pacific, "carbon-dioxide": carbon_dioxide,
}  # fmt: skip


def cells(settings: Settings) -> list[study.Cell]:
    """A table and a choice each."""
    return [(table, choice) for table in settings.tables for choice in settings.choices]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """All seeds; errors and densities in units of the table's own spread, so that tables can be averaged."""
    name, choice = cell
    table = TABLES[name]()
    table = table._replace(y=(table.y - table.y.mean()) / table.y.std())
    groups, scores = np.unique(table.group), []
    for seed in settings.seeds:
        rng = np.random.default_rng([seed, 31])
        new = rng.permutation(groups)[: len(groups) // 3]
        adapt = _learner(choice, table, ~np.isin(table.group, new), seed, settings.iterations)
        scores.append([_judged(adapt, table, np.flatnonzero(table.group == group), rng) for group in new])
    rows = []
    for metric, values in zip(METRICS, np.moveaxis(np.asarray(scores), 2, 0), strict=True):
        mean, half = study.mean_and_ci(values)
        rows.append(study.row(setting=name, method=choice, metric=metric, mean=mean, ci95=half))
    return {"rows": rows, "curves": {}}


def _learner(choice: str, table: Table, known: np.ndarray, seed: int, iterations: int) -> Callable[..., Any]:
    """(x, y) -> an adapted estimator."""
    from metaprior import AdaptedRegressor, MetaRegressor
    from metaprior.estimators.generic import generic_prior

    if choice in SHARES:
        share = SHARES[choice]
        prior = MetaRegressor(random_state=seed, max_iter=iterations, validation_fraction=share, verbose=False)
        return prior.fit(table.x[known, None], table.y[known], table.group[known]).adapt

    beforehand, spread = ALONE[choice]

    def alone(x, y):
        made = generic_prior(x, y, ["x"], classes=None, seed=seed, beforehand=beforehand, spread=spread)
        return AdaptedRegressor(made, random_state=seed).fit(x, y)

    return alone


def _judged(adapt: Callable[..., Any], table: Table, rows: np.ndarray, rng: np.random.Generator) -> list[float]:
    """NLL, RMSE and coverage over the rows of a group that are not known."""
    rows = rng.permutation(rows)
    few, rest = np.split(rows, [rng.integers(3, 6)])
    adapted = adapt(table.x[few, None], table.y[few])
    x, y = table.x[rest, None], table.y[rest]
    low, high = adapted.predict_interval(x)
    return [
        float(-adapted.log_density(x, y).mean()),
        float(np.sqrt(np.square(adapted.predict(x) - y).mean())),
        float(((low <= y) & (y <= high)).mean()),
    ]


STUDY, run = study.declare(
    __name__,
    title="Where the defaults of the estimators come from",
    paper="Not in the paper: settings of this project's estimators, settled on tables on which they are not judged.",
    full=Settings(),
    smoke=SMOKE,
    report=estimator_defaults_report,
)
