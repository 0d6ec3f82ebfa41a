"""Which rows of the table can learn from rollouts, and what they change there.

A row of reinforcement learning is a row of `methods`, some of its fields changed, and how its meta-step is taken. Policies are
points: their randomness is in the actions. The inner rate is the paper's, and each stage collects one batch of rollouts.
"""

from typing import Any, NamedTuple

from metaprior import methods
from metaprior.methods import Method
from metaprior.names import require_known

META_UPDATES = ("adam", "sgd", "trpo")


class RLMethod(NamedTuple):
    """A row of the table with its meta-step: "adam" or "sgd" on meta-gradients, or "trpo" around adapted policies."""

    name: str
    summary: str
    method: Method
    meta_update: str = "adam"


_COMMON: dict[str, Any] = dict(rate=0.1, meta_rate=1e-3, meta_batch=20)
_POINT: dict[str, Any] = dict(prior="delta", posterior="delta", inference="gradient", options={"pull": False}, widths="frozen",
                              rates="none", draw_steps=False, clip=None, second_stage="sequential", steps=(1, 1))  # fmt: skip
_RATES: dict[str, Any] = _POINT | dict(inference="preconditioned", rates="debiased", options={})
_TRPO: dict[str, Any] = dict(inference="trpo", rate=0.01)  # the rate of trust-region steps is their bound on the KL
# Natural steps have their weights in proportion to one another, which Adam would take away: SGD keeps it.
_GEM_TRPO: dict[str, Any] = _POINT | {"options": {}} | _TRPO | {"meta_rate": 1.0}
_NATURAL: dict[str, Any] = _POINT | {"options": {"pull": False, "second": _TRPO | {"rate": 0.03}}, "meta_rate": 6.0}
_FIRST_ORDER: dict[str, Any] = dict(steps=(1, 0), options={"pull": False, "first_order": True})

# name: (what it is, row of the table, fields changed, meta-step)
ROWS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gem-bml+": ("data-free: the change of the second stage", "gem-bml+", _POINT, "adam"),
    "gem-bml": ("data-free: the change of both stages, which with points is Reptile of two steps", "gem-bml", _POINT, "adam"),
    "reptile": ("data-free: the change of three steps", "reptile", dict(second_stage="none", steps=(3, 0)), "adam"),
    "maml": ("backprop through adaptation, meta-steps of Adam", "maml", dict(steps=(1, 0)), "adam"),
    "maml-trpo": ("backprop through adaptation, a trust region around adapted policies", "maml", dict(steps=(1, 0)), "trpo"),
    "fomaml": ("MAML with inner gradients held fixed", "fomaml", _FIRST_ORDER, "adam"),
    "pretrain": ("control: one policy for all tasks, no adaptation in its gradient", "pretrain", {}, "adam"),
    "gem-bml+rates": ("GEM-BML+ with a learned rate for each weight", "gem-bml+", _RATES, "adam"),
    "gem-bml+trpo": ("GEM-BML+ with trust-region inner steps", "gem-bml+", _GEM_TRPO, "sgd"),
    "gem-bml+natural": ("GEM-BML+ whose second stage is a trust-region step", "gem-bml+", _NATURAL, "sgd"),
    "pretrain-trpo": ("the control, adapted by trust-region steps", "pretrain", {"options": {}} | _TRPO, "adam"),
    # What a prior is trained for is the update at which its meta-gradient is taken. These look beyond the first one.
    "gem-bml+two": ("GEM-BML+ with two steps in the second stage: for the first update and the second", "gem-bml+",
                    _POINT | {"steps": (1, 2)}, "adam"),
    "gem-bml+late": ("GEM-BML+ that adapts twice before the second stage: for the second update", "gem-bml+",
                     _POINT | {"steps": (2, 1)}, "adam"),
    "maml-two": ("backprop through two updates, meta-steps of Adam", "maml", dict(steps=(2, 0)), "adam"),
}  # fmt: skip


def get(name: str, **changes: Any) -> RLMethod:
    """The row of that name for rollouts, with fields changed; the result is checked.

    Any row of the table that can learn from rollouts may be named, as `amortized-bml`; what is not in `ROWS` keeps its defaults.
    """
    require_known("method", name, dict.fromkeys([*ROWS, *(method.name for method in methods.METHODS)]))
    if name not in ROWS:
        method = methods.get(name, **changes)
        require_rollouts(method)
        return RLMethod(name, method.summary, method)
    summary, row, fields, meta_update = ROWS[name]
    method = methods.get(row, **_COMMON | fields | changes)
    require_rollouts(method)
    return RLMethod(name, summary, method, meta_update)


_GIVEN_DATA = {
    "laplace": "Laplace takes the curvature of given data, which for rollouts weighted by advantages is not that of a likelihood",
    "implicit": "the implicit derivative is that of a minimum on given data, and every policy meets other rollouts",
    "platipus": "PLATIPUS draws weights from the query's data, which nobody has before a policy has acted",
    "conjugate": "the exact last layer needs answers y to regress on, and rollouts have none",
    "natural_vi": "natural steps need a likelihood that curves downwards, and advantages below zero curve it upwards",
}


def require_rollouts(method: Method) -> None:
    """Refuse rows that cannot learn from rollouts, in words."""
    use = (
        "use gem-bml+, gem-bml, reptile, maml, fomaml or pretrain, or inference 'gradient', 'preconditioned' or 'trpo'"
    )
    if method.inference in _GIVEN_DATA:
        raise ValueError(f"{method.name} cannot learn from rollouts: {_GIVEN_DATA[method.inference]}: {use}")
    if method.row == "evidence" and method.posterior == "delta":
        raise ValueError(f"{method.name} cannot learn from rollouts: {_GIVEN_DATA['laplace']}: {use}")
    if method.estimator != "weights":
        raise ValueError(
            f"{method.name} cannot learn from rollouts with the estimator {method.estimator!r}, which draws other weights for "
            "every step of a trajectory than those that acted: set estimator='weights'"
        )
    if method.options.get("batch_size") is not None:
        raise ValueError(
            f"{method.name} cannot take mini-batches of rollouts, which are collected anew for every step: leave out batch_size, "
            "and set the number of trajectories"
        )
