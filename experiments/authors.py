"""Baselines of few-shot images as their own authors train and ask them.

Every method of the tables is trained in one way, with rates that an equal search chose; where a baseline comes out below what its
authors print, a row with their settings tells whether ours are the reason. Network, images and tasks stay those of all others.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.images import Setting, setting_of


class Training(NamedTuple):
    """What the authors' public code has."""

    changes: Mapping[str, Any]  # of the row
    around: Mapping[str, Any]  # of the settings
    test_steps: int


def training(method: str, setting: str) -> Training:
    """Of a baseline on N-way K-shot Omniglot."""
    return {"maml": _maml, "fomaml": _maml, "reptile": _reptile}[method](setting_of(setting))


def _maml(setting: Setting) -> Training:
    """cbfinn/maml on 5-way tasks: one step, as many queries as shots, a start for each class number, a meta-rate that stays.

    Its rate is .4 of a loss that is summed over classes, so 2 of the mean; our network learns more slowly with 2 than with .4 of
    the mean, by a trial on validation classes, and has the latter.
    """
    row = {"steps": (1, 0), "rate": 0.4, "meta_rate": 1e-3, "meta_batch": 32, "clip": None}
    return Training(row, {"head": "own", "decay": False, "queries": setting.shots}, test_steps=10)


def _reptile(setting: Setting) -> Training:
    """openai/supervised-reptile: ten images a class, a few steps of Adam on small batches of them; 50 steps when asked.

    Adam has no momentum, and its second moment is shared by all tasks. Theirs moves the prior by plain interpolation, ours by
    Adam as in all rows, so that inner and meta-rate were chosen by a trial on validation classes.
    """
    few = setting.ways == 5
    row = {
        "steps": (0, 5 if few else 10), "rate": 0.003, "optimizer": "shared-adam", "meta_rate": 0.003, "meta_batch": 5,
        "clip": None, "options": {"pull": False, "batch_size": 10 if few else 20},
    }  # fmt: skip
    return Training(row, {"head": "own", "queries": 10}, test_steps=50)
