"""What a new country is predicted by: the learned prior, and what statisticians would use instead.

Each is fitted on known countries and has its choices made on validation countries. An answer is Gaussian, but for the learned
prior's, which is a mixture of Gaussians of different widths.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.stats

stats: Any = scipy.stats  # its own types know scalars only
NAMES = ("metaprior", "alone", "per-group", "pooled", "mixed-model", "gp", "gp-shared")
WIDTHS = np.exp(np.linspace(-1.5, 2.5, 41))  # factors of a method's standard deviation that validation chooses among
CENTRE, SCALE = 1987.0, 15.0  # years, as polynomials see them


class Answer(NamedTuple):
    """At some years."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    log_density: Callable[[np.ndarray], np.ndarray]


class Fitted(NamedTuple):
    """A method that is ready for a new country."""

    answer: Callable[[Any, np.ndarray], Answer]  # (country, years)
    chosen: Any  # what validation chose, for the record


Moments = Callable[[Any, np.ndarray], tuple[np.ndarray, np.ndarray]]  # (country, years) -> mean, std


def fit(name: str, split: Any, *, seed: int, iterations: int) -> Fitted:
    """The method of that name, from known countries."""
    if name == "metaprior":
        return _metaprior(split, seed, iterations)
    if name == "alone":
        return _alone(seed)
    maker, choices = _MAKERS[name]
    made = [(choice, maker(split.train, choice)) for choice in choices]
    scored = [(*_width(moments, split.validation), choice) for choice, moments in made]
    _, width, choice = min(scored, key=lambda found: found[0])
    known = split.train + split.validation  # chosen: now all that is known counts
    return Fitted(_gaussian(maker(known, choice), width), {"choice": choice, "width": float(width)})


def _metaprior(split, seed, iterations) -> Fitted:
    from metaprior import MetaRegressor

    known = split.train + split.validation
    column = lambda get: np.concatenate([get(country) for country in known])
    years, births = column(lambda c: c.year)[:, None], column(lambda c: c.births)
    groups = np.repeat([country.name for country in known], [len(country.year) for country in known])
    prior = MetaRegressor(random_state=seed, max_iter=iterations, verbose=False).fit(years, births, groups)
    adapt = lambda country: prior.adapt(country.year[country.known][:, None], country.births[country.known])
    return Fitted(lambda country, years: _of_estimator(adapt(country), years), "as it comes")


def _alone(seed) -> Fitted:
    """The same estimator without a learned prior."""
    from metaprior import AdaptedRegressor

    def answer(country, years):
        alone = AdaptedRegressor(random_state=seed)
        return _of_estimator(alone.fit(country.year[country.known][:, None], country.births[country.known]), years)

    return Fitted(answer, "as it comes")


def _of_estimator(adapted, years) -> Answer:
    rows = years[:, None]
    low, high = adapted.predict_interval(rows)
    return Answer(adapted.predict(rows), low, high, lambda truth: adapted.log_density(rows, truth))


def _gaussian(moments: Moments, width: float):
    def answer(country, years):
        mean, std = moments(country, years)
        normal = stats.norm(mean, width * std)
        return Answer(mean, normal.ppf(0.05), normal.ppf(0.95), normal.logpdf)

    return answer


def _width(moments: Moments, countries) -> tuple[float, float]:
    """The factor of least NLL on these countries, and that NLL."""
    parts = []
    for country in countries:
        asked = ~country.known
        parts.append((*moments(country, country.year[asked]), country.births[asked]))
    nll = lambda width: np.mean([-stats.norm(m, width * s).logpdf(y).mean() for m, s, y in parts])
    best = min(WIDTHS, key=nll)
    return float(nll(best)), float(best)


def powers(years: np.ndarray, degree: int) -> np.ndarray:
    """1, t, t², … of scaled years."""
    return np.stack([((years - CENTRE) / SCALE) ** k for k in range(degree + 1)], axis=1)


def _per_group(countries, degree) -> Moments:
    """A polynomial through the known years of the country, and nothing else."""
    del countries

    def moments(country, years):
        x, y = powers(country.year[country.known], degree), country.births[country.known]
        inverse = np.linalg.pinv(x.T @ x)
        coefficients = inverse @ x.T @ y
        spare = max(len(y) - degree - 1, 1)
        noise = max(
            np.square(y - x @ coefficients).sum() / spare, 0.01
        )  # 0.1 births: a line through two points has no residual
        at = powers(years, degree)
        return at @ coefficients, np.sqrt(noise * (1 + np.einsum("nf,fg,ng->n", at, inverse, at)))

    return moments


def _pooled(countries, degree) -> Moments:
    """One polynomial for all countries."""
    x = np.concatenate([powers(country.year, degree) for country in countries])
    y = np.concatenate([country.births for country in countries])
    coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
    std = (y - x @ coefficients).std()
    return lambda country, years: (powers(years, degree) @ coefficients, np.full(len(years), std))


def _mixed_model(countries, degrees) -> Moments:
    """Statsmodels' mixed model, fixed and random polynomials; a new country by its best linear unbiased predictor."""
    import statsmodels.api as sm

    fixed, random = degrees
    stacked = lambda get: np.concatenate([get(country) for country in countries])
    x, z = stacked(lambda c: powers(c.year, fixed)), stacked(lambda c: powers(c.year, random))
    groups = np.repeat(np.arange(len(countries)), [len(country.year) for country in countries])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of boundaries on the way
        found = sm.MixedLM(stacked(lambda c: c.births), x, groups, exog_re=z).fit(reml=False, method=["lbfgs"])
    mean, cov, noise = np.asarray(found.fe_params), np.asarray(found.cov_re), float(found.scale)

    def moments(country, years):
        z, at = powers(country.year[country.known], random), powers(years, random)
        rest = country.births[country.known] - powers(country.year[country.known], fixed) @ mean
        gain = cov @ z.T @ np.linalg.inv(z @ cov @ z.T + noise * np.eye(len(rest)))
        left = cov - gain @ z @ cov
        return powers(years, fixed) @ mean + at @ gain @ rest, np.sqrt(np.einsum("nf,fg,ng->n", at, left, at) + noise)

    return moments


def _kernel(a, b, numbers):
    amplitude, length, _ = np.exp(numbers)
    return amplitude**2 * np.exp(-0.5 * np.square((a[:, None] - b[None]) / length))


def _process(mean: Callable[[np.ndarray], np.ndarray], numbers) -> Moments:
    def moments(country, years):
        noise = np.exp(2 * numbers[2])
        known, y = country.year[country.known], country.births[country.known]
        gram = _kernel(known, known, numbers) + noise * np.eye(len(known))
        across = _kernel(known, years, numbers)
        solved = scipy.linalg.cho_solve(scipy.linalg.cho_factor(gram, lower=True), np.c_[y - mean(known), across])
        left = np.exp(2 * numbers[0]) + noise - (across * solved[:, 1:]).sum(axis=0)
        return mean(years) + across.T @ solved[:, 0], np.sqrt(np.maximum(left, 1e-6))

    return moments


def _negative_evidence(numbers, pairs) -> float:
    total = 0.0
    for year, rest in pairs:
        gram = _kernel(year, year, numbers) + (np.exp(2 * numbers[2]) + 1e-8) * np.eye(len(year))
        lower = np.linalg.cholesky(gram)
        white = scipy.linalg.solve_triangular(lower, rest, lower=True)
        total += 0.5 * white @ white + np.log(np.diag(lower)).sum() + 0.5 * len(year) * np.log(2 * np.pi)
    return total


BOUNDS = [(np.log(0.1), np.log(10.0)), (np.log(2.0), np.log(100.0)), (np.log(0.02), np.log(1.0))]
START = np.log([1.5, 20.0, 0.1])


def _gp(countries, mean) -> Moments:
    """A Gaussian process for each country by itself: its three numbers are those of largest evidence for the known years."""
    del countries

    def moments(country, years):
        year, births = country.year[country.known], country.births[country.known]
        level = births.mean() if mean == "own mean" else 0.0
        found = scipy.optimize.minimize(_negative_evidence, START, args=([(year, births - level)],), bounds=BOUNDS)
        return _process(lambda at: np.full(len(at), level), found.x)(country, years)

    return moments


def _gp_shared(countries, degree) -> Moments:
    """A Gaussian process for each country around one polynomial for all, its three numbers learned from all countries."""
    pooled = _pooled(countries, degree)
    mean = lambda years: pooled(None, years)[0]
    pairs = [
        (country.year[::3], (country.births - mean(country.year))[::3]) for country in countries
    ]  # a third will do
    found = scipy.optimize.minimize(_negative_evidence, START, args=(pairs,), bounds=BOUNDS)
    return _process(mean, found.x)


_MAKERS: dict[str, tuple[Callable[..., Moments], tuple]] = {
    "per-group": (_per_group, (0, 1, 2)),
    "pooled": (_pooled, (1, 2, 3)),
    "mixed-model": (_mixed_model, ((1, 1), (2, 1), (2, 2), (3, 3))),
    "gp": (_gp, ("own mean", "zero")),
    "gp-shared": (_gp_shared, (0, 1, 2)),
}
