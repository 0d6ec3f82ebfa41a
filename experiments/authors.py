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


def training(tasks: str, setting: str, method: str) -> Training:
    """Of a baseline on N-way K-shot tasks of a set of images."""
    return {"maml": _maml, "fomaml": _maml, "reptile": _reptile, "imaml": _imaml}[method](tasks, setting_of(setting))


def _maml(tasks: str, setting: Setting) -> Training:
    """cbfinn/maml: few steps, a start for each class number, a meta-rate that stays.

    On 5-way Omniglot one step, and as many queries as shots; its rate of .4 is for a loss that is summed over classes, and here
    for the mean. On photographs five steps of a rate of .01, which is .05 of the mean, and 15 queries of each class.
    """
    photographs = tasks == "miniimagenet"
    steps, rate, meta_batch, queries = (5, 0.05, 4, 15) if photographs else (1, 0.4, 32, setting.shots)
    row = {"steps": (steps, 0), "rate": rate, "meta_rate": 1e-3, "meta_batch": meta_batch, "clip": None}
    return Training(row, {"head": "own", "decay": False, "augmented": False, "queries": queries}, test_steps=10)


def _reptile(tasks: str, setting: Setting) -> Training:
    """openai/supervised-reptile: ten images a class, 15 of photographs, a few steps of Adam on small batches; 50 when asked.

    Adam has no momentum, and its second moment is shared by all tasks. Theirs moves the prior by plain interpolation and ours by
    Adam, as in all rows, so both rates are others.
    """
    photographs, few = tasks == "miniimagenet", setting.ways == 5
    row = {
        "steps": (0, 8 if photographs else 5 if few else 10), "rate": 0.003, "optimizer": "shared-adam", "meta_rate": 0.003,
        "meta_batch": 5, "clip": None, "options": {"pull": False, "batch_size": 10 if few else 20},
    }  # fmt: skip
    around = {"head": "own", "queries": 10} | ({"queries": 15, "augmented": False} if photographs else {})
    return Training(row, around, test_steps=50)


def _imaml(tasks: str, setting: Setting) -> Training:
    """aravindr93/imaml_dev: 16 plain steps (25 with 20 classes), which no prior pulls back, and as many queries as shots.

    Their conjugate gradients solve (2 + H/12) v = g, H being the curvature of the mean loss of n images. That is the direction
    of (Λ + nH + damping) v = g where Λ, the precision of the prior, is their λ = 2 times n, and damping is 22 n.
    """
    del tasks
    images, steps = setting.ways * setting.shots, 16 if setting.ways == 5 else 25
    row = {
        "steps": (steps, 0), "rate": 0.1, "temperature": 1.0, "std": (2.0 * images) ** -0.5, "meta_rate": 1e-3,
        "meta_batch": 32, "clip": None, "options": {"pull": False, "damping": 22.0 * images},
    }  # fmt: skip
    return Training(row, {"head": "own", "decay": False, "queries": setting.shots}, test_steps=steps)
