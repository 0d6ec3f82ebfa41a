"""Settings of the studies of reinforcement learning, and the pieces of a method that they put together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from metaprior.optimizers import flat_adam, meta_optimizer
from metaprior.rl import rows
from metaprior.rl.environment import Environment
from metaprior.rl.named import environment_called
from metaprior.rl.setup import RLSetup, rl_setup

SCRATCH = "scratch"
METHODS = (
    "gem-bml+", "gem-bml+natural", "gem-bml", "reptile", "maml", "maml-trpo", "fomaml", "pretrain", "gem-bml+two", "gem-bml+late",
    "gem-bml+queries", "gem-bml+short", "gem-bml+long", "maml-two", "gem-bml+rates", "gem-bml+trpo", SCRATCH,
)  # fmt: skip


class Variant(NamedTuple):
    """A row with something changed that users have a flag for."""

    row: str
    changes: Mapping[str, Any] = {}
    queries: int = 1  # rollouts of the query, in those of the support


VARIANTS = {
    "gem-bml+queries": Variant("gem-bml+", queries=4),
    "gem-bml+short": Variant("gem-bml+", {"rate": 0.03}),
    "gem-bml+long": Variant("gem-bml+", {"rate": 0.3}),
}
RETURNS, TRUST, POLICIES = "own updates", "trust-region updates", "adapted policies"


@dataclass(frozen=True)
class Settings:
    """One environment."""

    environment: str
    seeds: tuple[int, ...] = tuple(range(6))
    methods: tuple[str, ...] = METHODS
    iterations: int = 200
    shortened: tuple[tuple[str, int], ...] = ()
    """Iterations of methods that cost more."""
    looks: int = 10
    """Points of a learning curve."""
    meta_batch: int = 20
    rollouts: int = 20
    """Of each inner step in training, and of each query."""
    horizon: int | None = None
    """Steps of a trajectory; None is the environment's own."""
    factors: tuple[float, ...] = (0.333, 1.0, 3.0)
    """Of the row's meta-rate that are tried; the paper's rate is among them."""
    bounds: tuple[float, ...] = (0.03, 0.1, 0.3)
    """Of a meta-step of TRPO that are tried in the place of rates, as many."""
    beyond: int = 1
    """How often the row of numbers may be made longer, one at a time, while the best of them is the first or the last."""
    validation: tuple[int, int] = (20, 20)
    """Tasks of a look, and trajectories of each update and mean."""
    updates: int = 3
    test: tuple[int, int] = (40, 40)
    drawn: int = 4
    """Test tasks whose trajectories are kept."""
    scratch: tuple[int, ...] = (0, 1, 2, 3, 5, 10, 20, 30, 50, 100, 200)
    """Updates after which training from scratch is looked at."""
    scratch_rates: tuple[float, ...] = (0.001, 0.003, 0.01)
    """Of Adam."""


def variant_of(name: str) -> Variant:
    """What a name of `METHODS` stands for."""
    return VARIANTS.get(name, Variant(name))


def iterations_of(settings: Settings, name: str) -> int:
    """Of a training: what costs more a step gets fewer of them."""
    return dict(settings.shortened).get(name, settings.iterations)


def put(
    settings: Settings,
    name: str,
    number: Any = None,
    length: Any = None,
    *,
    environment: Environment | None = None,
    **changes: Any,
) -> RLSetup:
    """The pieces of a method.

    Args:
        settings: of the study.
        name: of the row.
        number: its meta-rate, or the bound of its meta-step; may be traced. None is the row's own.
        length: of the training, over which the meta-rate falls to zero; may be traced, so that one program serves all lengths.
        environment: made before, where a program is traced.
        **changes: of the row.
    """
    variant = variant_of(name)
    row, optimizer, changes = rows.get(variant.row), None, {**variant.changes, **changes}
    is_region = row.meta_update == "trpo"
    if number is not None and not is_region:
        changes["meta_rate"] = number
        if length is not None:
            optimizer = meta_optimizer(number, warm_up=0, make=lambda rate: _falling(row.meta_update, rate, length))
    return rl_setup(
        environment or place_of(settings),
        rows.get(variant.row, meta_batch=settings.meta_batch, **changes),
        rollouts=settings.rollouts,
        queries=variant.queries * settings.rollouts,
        eval_rollouts=settings.test[1],
        optimizer=optimizer,
        region={"max_kl": number} if number is not None and is_region else None,
        watch_every=None,
        check=False,
    )


def _falling(meta_update: str, rate: Any, length: Any) -> optax.GradientTransformation:
    """Along half a cosine: at a rate that stays, priors keep jumping about where they should settle."""
    share = lambda count: 0.5 + 0.5 * jnp.cos(jnp.pi * jnp.minimum(count / length, 1.0))
    return (optax.sgd if meta_update == "sgd" else flat_adam)(lambda count: rate(count) * share(count))


def place_of(settings: Settings) -> Environment:
    """Where agents act. Not to be made while a program is traced: an engine's own arrays would become a part of it."""
    return environment_called(settings.environment, horizon=settings.horizon)


def numbers_of(settings: Settings, name: str) -> list[float]:
    """What is tried first: meta-rates around that of the row, or bounds."""
    row = rows.get(variant_of(name).row)
    if row.meta_update == "trpo":
        return list(settings.bounds)
    return [float(f"{factor * row.method.meta_rate:.3g}") for factor in settings.factors]


def rounded(values: Any, digits: int) -> Any:
    """In doubles: rounded single precision is long again in JSON."""
    return np.round(np.asarray(values, float), digits)
