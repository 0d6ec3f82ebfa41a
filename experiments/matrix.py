"""The paper's matrix, explored: its six cells with everything else held equal, and every row of the table as it is.

metaprior reproduce matrix --scale full
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import regression, study
from metaprior import figures
from metaprior.methods import METHODS

ROWS, COLUMNS = ("elbo", "gem"), ("joint", "conditional", "difference")
# Of the six cells only row and column differ: prior, inference, rates, steps and second stage are the same for all.
_SAME: dict[str, Any] = {
    "prior": "mean-field", "inference": "gradient", "second_stage": "sequential", "steps": (5, 5), "draw_steps": False,
    "widths": "frozen", "rates": "none", "rate": 0.01, "clip": 10.0,
}  # fmt: skip
POSTERIORS: dict[str, dict[str, Any]] = {
    "point": {**_SAME, "posterior": "delta", "std": 0.1, "temperature": 0.01},
    "mean-field": {**_SAME, "posterior": "mean-field", "std": 0.0183, "temperature": 0.01},
}


@dataclass(frozen=True)
class Settings:
    """One task set for all."""

    seeds: tuple[int, ...] = (0, 1, 2)
    tasks: str = "sinusoid-challenging"
    iterations: int = 40_000
    posteriors: tuple[str, ...] = tuple(POSTERIORS)
    rows: tuple[str, ...] = ROWS
    columns: tuple[str, ...] = COLUMNS
    methods: tuple[str, ...] = tuple(method.name for method in METHODS)
    at: tuple[int, ...] = (0, 1, 5, 10)
    test_tasks: int = 600
    validation: int = 100


SMOKE = Settings(
    seeds=(0,),
    iterations=10,
    posteriors=("point",),
    columns=("joint",),
    methods=("gem-bml+",),
    at=(0, 1),
    test_tasks=4,
    validation=4,
)


def cells(settings: Settings) -> list[study.Cell]:
    """Cells of the matrix, then rows of the table."""
    of_matrix = [
        ("cell", posterior, row, column)
        for posterior, row, column in product(settings.posteriors, settings.rows, settings.columns)
    ]
    return of_matrix + [("row", name) for name in settings.methods]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train on every seed and score."""
    if cell[0] == "cell":
        _, posterior, row, column = cell
        variant = regression.Variant("gem-bml+", {**POSTERIORS[posterior], "row": row, "column": column})
        setting, method = f"cells, {posterior} posterior", f"{row} × {column}"
    else:
        variant, setting, method = regression.Variant(cell[1]), "rows as they are", cell[1]
    outcome = regression.train_and_judge(
        variant,
        tasks=settings.tasks,
        iterations=settings.iterations,
        seeds=settings.seeds,
        at=settings.at,
        num_tasks=settings.test_tasks,
        validation=settings.validation,
    )
    rows = regression.rows(outcome.scores, setting=setting, method=method, at=settings.at)
    by_seed = {
        field: np.round(getattr(outcome.scores, field).astype(float).mean(axis=1), 5) for field in ("mse", "nll")
    }
    return {"rows": rows, "curves": {"/".join(cell): {**by_seed, "finite": outcome.finite}}}


def shown(results: study.Results) -> list[dict[str, Any]]:
    """After the last step."""
    last = max(results["settings"]["at"])
    words = [f"{word} after {last}" for word in ("MSE", "NLL", "CRPS", "coverage near", "coverage far")]
    return [row for row in results["rows"] if row["metric"] in words]


def figure(results: study.Results) -> Figure:
    """Two heat maps of the six cells, and the rows as bars."""
    posteriors = results["settings"]["posteriors"]
    drawn = Figure(figsize=(12, 2.8 + 0.26 * len(results["settings"]["methods"])), layout="constrained")
    grid = drawn.add_gridspec(len(posteriors), 2, width_ratios=(1.0, 1.3))
    for place, posterior in enumerate(posteriors):
        _draw_cells(drawn.add_subplot(grid[place, 0]), results, posterior)
    axes = drawn.add_subplot(grid[:, 1])
    errors = {name: _error(results, ("row", name)) for name in results["settings"]["methods"]}
    names = sorted(errors, key=lambda name: np.nan_to_num(errors[name], nan=np.inf), reverse=True)
    values = [np.nan_to_num(errors[name]) for name in names]
    colors = [figures.BLUE if name.startswith("gem") else figures.GREY for name in names]
    axes.barh(names, values, color=colors)
    for name, value in zip(names, values, strict=True):
        words = f"{value:.2g}" if np.isfinite(errors[name]) else "some task ran away"
        axes.annotate(words, (value, name), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set(title="rows of the table, as they are", xlabel=_label(results))
    axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(f"The matrix on {results['settings']['tasks']}")
    return drawn


def _draw_cells(axes, results: study.Results, posterior: str) -> None:
    rows, columns = results["settings"]["rows"], results["settings"]["columns"]
    values = np.array([[_error(results, ("cell", posterior, row, column)) for column in columns] for row in rows])
    axes.imshow(np.log(values), cmap="Blues", aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        dark = value > np.sqrt(np.nanmin(values) * np.nanmax(values))  # the upper half of the colours
        words = f"{value:.2g}" if np.isfinite(value) else "ran away"
        axes.text(j, i, words, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(f"six cells, {posterior} posterior, all else equal:\n{_label(results)}", fontsize="medium")


def _label(results: study.Results) -> str:
    return f"mean squared error after {max(results['settings']['at'])} steps"


def _error(results: study.Results, cell: study.Cell) -> float:
    return study.average([by_step[-1] for by_step in results["curves"]["/".join(cell)]["mse"]])


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2f}" if np.isfinite(part / whole) else "unknown, for one ran away"


def remarks(results: study.Results) -> list[str]:
    """Best cells, and the price of not going through inference."""
    sentences, rows, columns = [], results["settings"]["rows"], results["settings"]["columns"]
    for posterior in results["settings"]["posteriors"]:
        errors = {
            (row, column): _error(results, ("cell", posterior, row, column)) for row, column in product(rows, columns)
        }
        best = min(errors, key=lambda pair: np.nan_to_num(errors[pair], nan=np.inf))
        ratios = ", ".join(f"{column} {_share(errors['gem', column], errors['elbo', column])}" for column in columns)
        sentences.append(
            f"With a {posterior} posterior and all else equal the best cell is {best[0]} × {best[1]} ({errors[best]:.2g}); "
            f"error of gem as a share of elbo's: {ratios}."
        )
    astray = [cell for cell in results["curves"] if not np.isfinite(_error(results, tuple(cell.split("/"))))]
    sentences.append(f"Where some test task ran away to infinity: {', '.join(astray) or 'nowhere'}.")
    sentences.append(
        "Rows of the table keep their own defaults, which were not searched to the same depth; see `search` for equal budgets."
    )
    return sentences


STUDY, run = study.declare(
    __name__,
    title="The matrix: six cells and every row on one task set (Table 1)",
    paper="The matrix relates methods by row and column; its unexplored combinations are left to future work.",
    full=Settings(),
    smoke=SMOKE,
)
