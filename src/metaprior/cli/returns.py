"""Returns of agents as people see them: of held-out tasks, and of one goal."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from metaprior.policies import LearnedPolicy


def scores(prior: LearnedPolicy, **options: Any) -> dict[str, Any]:
    """What `metaprior evaluate` prints and saves of an agent: returns after each update, and of what."""
    settings = prior.setup.settings
    about = {"task_set": settings.tasks, "method": settings.method, "seed": settings.seed}
    return {**prior.evaluate(**options), **about, "iteration": int(prior.state.iteration)}


def table(result: dict[str, Any]) -> Group:
    """A row for each number of updates."""
    about = f"{result['tasks']} unseen tasks, {result['rollouts']} rollouts for each update"
    title = f"{result['method']} on {result['task_set']}: {about}"
    caption = "mean undiscounted returns, of as many rollouts in each task; ± is the 95 % interval over tasks"
    return returns_table(title, caption, result["updates"], result["return"], result["return_ci95"])


def returns_table(
    title: str, caption: str, updates: Sequence[int], means: Sequence[float | None], halves: Sequence[float | None]
) -> Group:
    """Mean returns, each with half the width of its interval."""
    grid = Table(box=box.SIMPLE_HEAD)
    for name in ("updates", "return"):
        grid.add_column(name, justify="right")
    for update, mean, half in zip(updates, means, halves, strict=True):
        around = "" if half is None else f" ± {number(half)}"
        grid.add_row(str(update), f"{number(mean)}{around}")
    return Group(
        Text(title, style="bold"), grid, Text(caption, style="dim italic")
    )  # a title in so narrow a table would wrap


def number(value: float | None) -> str:
    """For people.

    >>> number(-41.666), number(None)
    ('−41.67', '–')
    """
    return "–" if value is None else f"{value:,.2f}".replace("-", "−")
