"""Births per woman by country and year, from three to five years of a country that was never seen before.

metaprior reproduce fertility

The table ships with statsmodels (World Bank, 1960 to 2013). Of a new country a few years are known and all others are asked for.
Whatever has to be chosen is chosen on validation countries, and one number, the width of its intervals, is fitted there for
every method that has no such thing of its own. `MetaRegressor` runs as it comes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments import fertility_methods, fertility_report, study

FEWEST = 15  # years of a country that takes part
LEVEL = 0.9


@dataclass(frozen=True)
class Settings:
    """Countries of each kind, and how many years of a new one are known."""

    seeds: tuple[int, ...] = (0, 1, 2)
    test: int = 60
    validation: int = 40
    shots: tuple[int, int] = (3, 5)
    iterations: int = 2000
    countries: int | None = None
    """Only so many of all countries; None takes all."""
    methods: tuple[str, ...] = fertility_methods.NAMES


SMOKE = Settings(
    seeds=(0,), test=4, validation=4, iterations=10, countries=24, methods=("metaprior", "pooled", "per-group")
)


class Country(NamedTuple):
    """One group: years, births per woman, and which of the years are known."""

    name: str
    year: np.ndarray
    births: np.ndarray
    known: np.ndarray


class Split(NamedTuple):
    """Countries to learn from, to choose by, and to be judged by."""

    train: list[Country]
    validation: list[Country]
    test: list[Country]


def countries_of() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, years and values of every country that has enough of them."""
    import statsmodels.api as sm

    table: Any = sm.datasets.fertility.load_pandas().data
    years = [column for column in table.columns if column.isdigit()]
    found = []
    for name, values in zip(table["Country Name"], table[years].to_numpy(float), strict=True):
        there = np.isfinite(values)
        if there.sum() >= FEWEST:
            found.append((str(name), np.array(years, float)[there], values[there]))
    return found


def split_of(settings: Settings, seed: int) -> Split:
    """Countries in random order; the years that are known of each are drawn once, and are the same for all methods."""
    rng = np.random.default_rng([seed, 7])
    found = countries_of()
    found = [found[i] for i in rng.permutation(len(found))][: settings.countries]
    least, most = settings.shots

    def with_known(name, year, births):
        known = np.zeros(len(year), bool)
        known[rng.choice(len(year), rng.integers(least, most + 1), replace=False)] = True
        return Country(name, year, births, known)

    countries = [with_known(*country) for country in found]
    first, second = settings.test, settings.test + settings.validation
    return Split(countries[second:], countries[first:second], countries[:first])


def cells(settings: Settings) -> list[study.Cell]:
    """A method each."""
    return [(name,) for name in settings.methods]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """All seeds of one method."""
    (name,) = cell
    scores: dict[str, list[list[float]]] = {
        metric: [] for metric in ("RMSE", "NLL", "coverage of 90 % intervals", "width")
    }
    chosen, drawn = [], {}
    for seed in settings.seeds:
        split = split_of(settings, seed)
        fitted = fertility_methods.fit(name, split, seed=seed, iterations=settings.iterations)
        chosen.append(fitted.chosen)
        found = [judged(fitted, country) for country in split.test]
        for metric, values in zip(scores, zip(*found, strict=True), strict=True):
            scores[metric].append(list(values))
        if seed == settings.seeds[0]:
            drawn = {country.name: _curve(fitted, country) for country in split.test[: fertility_report.DRAWN]}
    rows = []
    for metric, values in scores.items():
        mean, half = study.mean_and_ci(values)
        rows.append(study.row(setting="3-5 years known", method=name, metric=metric, mean=mean, ci95=half))
    return {"rows": rows, "curves": {name: {"chosen": chosen, "countries": drawn, "scores": scores}}}


def judged(fitted: Any, country: Country) -> tuple[float, float, float, float]:
    """RMSE, NLL, coverage and mean width of the intervals, over the years that are not known."""
    asked = ~country.known
    answer = fitted.answer(country, country.year[asked])
    truth = country.births[asked]
    inside = (answer.low <= truth) & (truth <= answer.high)
    return (
        float(np.sqrt(np.square(answer.mean - truth).mean())),
        float(-answer.log_density(truth).mean()),
        float(inside.mean()),
        float((answer.high - answer.low).mean()),
    )


def _curve(fitted: Any, country: Country) -> dict[str, Any]:
    answer = fitted.answer(country, country.year)
    rounded = lambda values: np.round(values, 4).tolist()
    return {
        "year": country.year.tolist(), "births": rounded(country.births), "known": country.known.tolist(),
        "mean": rounded(answer.mean), "low": rounded(answer.low), "high": rounded(answer.high),
    }  # fmt: skip


STUDY, run = study.declare(
    __name__,
    title="A table of many small groups: births per woman, by country",
    paper="Not in the paper: what its last-layer cell does on a real table beside what statisticians use.",
    full=Settings(),
    smoke=SMOKE,
    report=fertility_report,
)
