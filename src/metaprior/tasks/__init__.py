"""Families of tasks, by name: `get("sinusoid", shots=5)`. A new family is one more entry of `TASKS`."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from metaprior.tasks.base import Curve, Tasks, regression
from metaprior.tasks.linear import linear
from metaprior.tasks.mixture import mixture
from metaprior.tasks.sinusoid import SETTINGS, sinusoid

__all__ = ["TASKS", "Curve", "Tasks", "get", "linear", "mixture", "regression", "sinusoid"]

TASKS: dict[str, Callable[..., Tasks]] = {
    **{name: partial(sinusoid, name) for name in SETTINGS},
    "mixture": mixture,
    "linear": linear,
}


def get(name: str, **options: Any) -> Tasks:
    """The tasks called `name`; every family takes the options `shots`, `queries` and `eval_queries`.

    >>> get("sinusoid", shots=5).describe
    'y = A sin(wx + b), A ~ U[0.1, 5], w = 1, b ~ U[0, 3.142], no noise'
    """
    if name not in TASKS:
        near = get_close_matches(name, TASKS, n=3, cutoff=0.4)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"no tasks are called {name!r}.{hint} There are: {', '.join(TASKS)}.")
    return TASKS[name](**options)
