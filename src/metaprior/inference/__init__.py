"""Inference: from a prior and a task's data to a posterior. One idea per file."""

from collections.abc import Callable
from typing import NamedTuple

from metaprior.inference.base import infer, trajectory
from metaprior.inference.gradient import gradient
from metaprior.inference.implicit import implicit
from metaprior.inference.laplace import laplace
from metaprior.inference.natural import natural_vi
from metaprior.inference.platipus import platipus
from metaprior.inference.preconditioned import preconditioned
from metaprior.inference.svgd import svgd
from metaprior.inference.trpo import trpo
from metaprior.last_layer import conjugate
from metaprior.types import Inference


class Maker(NamedTuple):
    """How an inference is made, and which posterior families it infers."""

    make: Callable[..., Inference]
    families: tuple[str, ...]


INFERENCES = {
    "gradient": Maker(gradient, ("delta", "mean-field", "full")),
    "preconditioned": Maker(preconditioned, ("delta", "mean-field")),
    "natural_vi": Maker(natural_vi, ("mean-field",)),
    "svgd": Maker(svgd, ("particles",)),
    "implicit": Maker(implicit, ("delta",)),
    "laplace": Maker(laplace, ("full", "mean-field")),
    "platipus": Maker(platipus, ("particles",)),
    "conjugate": Maker(conjugate, ("last-layer",)),
    "trpo": Maker(trpo, ("delta",)),
}

__all__ = [
    "INFERENCES", "Maker", "conjugate", "gradient", "implicit", "infer", "laplace", "natural_vi", "platipus",
    "preconditioned", "svgd", "trajectory", "trpo",
]  # fmt: skip
