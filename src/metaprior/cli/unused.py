"""Flags that a method would not look at, and words that are no tasks: refused before any time is spent on them."""

from pathlib import Path

from metaprior import methods
from metaprior.rl import rows
from metaprior.rl.named import ENVIRONMENTS
from metaprior.settings import TASK_SETS, Settings, method_of
from metaprior.tasks import IMAGE_SETS

TABLES = (".csv", ".tsv", ".xlsx", ".xls", ".parquet", ".json")


def require_tasks(tasks: str) -> None:
    """A table is learned from in Python."""
    if tasks not in TASK_SETS and Path(tasks).suffix.lower() in TABLES:
        raise ValueError(
            f"{tasks} is a table, and train learns from task sets ({', '.join(list(TASK_SETS)[:3])}, …): tables of many groups "
            "are learned from in Python, MetaRegressor().fit(table, y=…, groups=…), see docs/tables.md"
        )


def require_used(settings: Settings) -> None:
    """What was given and has no meaning for the method is not passed over."""
    if settings.tasks in IMAGE_SETS and settings.hidden != Settings.hidden:
        raise ValueError(f"--hidden is for curves, {settings.tasks} is seen by a network of --filters: leave it out")
    row, method = method_of(settings), settings.method
    particles = row.posterior == "particles" or row.prior == "particles" or row.inference == "platipus"
    if settings.num_particles is not None and not particles:
        raise ValueError(
            f"--num-particles is for methods of particles{_such('particles')}, {method} has none: leave it out"
        )
    if settings.num_samples is not None and row.posterior not in ("mean-field", "full"):
        raise ValueError(
            f"--num-samples is for posteriors that have widths to draw from{_such('mean-field')}, that of {method} is "
            f"{_POSTERIORS.get(row.posterior, row.posterior)}: leave it out"
        )
    if settings.query_steps and row.second_stage == "none":
        raise ValueError(
            f"--query-steps is for methods that see the query in a second stage, {method} has none: leave it out"
        )
    meta_update = rows.get(method).meta_update if settings.tasks in ENVIRONMENTS else None
    if settings.max_kl is not None and meta_update != "trpo":
        raise ValueError(f"--max-kl is for meta-steps of TRPO (maml-trpo), {method} takes none: leave it out")
    if settings.width_rate is not None and meta_update != "adam":
        raise ValueError(f"--width-rate is for meta-steps of Adam (gem-bml+, maml), {method} takes none: leave it out")


_POSTERIORS = {"delta": "a point", "last-layer": "exact", "particles": "a set of particles"}


def _such(posterior: str) -> str:
    names = [row.name for row in methods.METHODS if row.posterior == posterior]
    return f" ({', '.join(names[:3])})" if names else ""
