"""Families of tasks, by name: `get("sinusoid", shots=5)`. A new family is one more entry of `TASKS`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from metaprior.names import require_known
from metaprior.tasks.base import Curve, Tasks, regression
from metaprior.tasks.image_sets import IMAGE_SETS, image_set
from metaprior.tasks.linear import linear
from metaprior.tasks.mixture import mixture
from metaprior.tasks.sinusoid import SETTINGS, sinusoid
from metaprior.tasks.tables import NAME as OWN_ROWS
from metaprior.tasks.tables import tables

__all__ = [
    "IMAGE_SETS",
    "OWN_ROWS",
    "TASKS",
    "Curve",
    "Tasks",
    "get",
    "image_set",
    "linear",
    "mixture",
    "regression",
    "sinusoid",
    "tables",
]

TASKS: dict[str, Callable[..., Tasks]] = {
    **{name: partial(sinusoid, name) for name in SETTINGS},
    "mixture": mixture,
    "lines": partial(mixture, "lines", kinds=("lines",)),
    "parabolas": partial(mixture, "parabolas", kinds=("parabolas",)),
    "linear": linear,
    **{name: partial(image_set, name) for name in IMAGE_SETS},
    OWN_ROWS: tables,
}


def get(name: str, **options: Any) -> Tasks:
    """The tasks called `name`; every family takes the options `shots`, `queries` and `eval_queries`, images `ways` and more.

    >>> get("sinusoid", shots=5).describe
    'y = A sin(wx + b), A ~ U[0.1, 5], w = 1, b ~ U[0, 3.142], no noise'
    """
    require_known("task set", name, TASKS)
    return TASKS[name](**options)
