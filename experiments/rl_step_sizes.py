r"""How far an update of a policy may go: plain steps and trust-region steps of several sizes, from the same priors.

The paper finds that trust regions help in navigation and not with half-cheetah, and supposes that they hold back where adapted
policies lie far apart. A bound on the KL says how far a step goes as well as in which direction, so here both kinds of step are
taken in many sizes, and compared where they go equally far. The priors are those of GEM-BML+ in the three studies of agents; all
is asked on validation tasks, for nothing is to be chosen by test tasks.

metaprior reproduce rl-step-sizes                   # uses the trainings of the three studies where they are kept
metaprior reproduce rl-step-sizes --scale smoke
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments import rl, rl_cheetah_direction, rl_cheetah_velocity, rl_measures, rl_navigation, rl_settings, study
from experiments import rl_step_sizes_report as report
from metaprior.evaluation import VALIDATION_SEED

METHOD = "gem-bml+"
PLAIN, TRUST = "plain", "trust region"
ROWS = {PLAIN: METHOD, TRUST: "pretrain-trpo"}  # whose updates are taken


@dataclass(frozen=True)
class Settings:
    """Three worlds, two kinds of steps, some sizes of each."""

    worlds: tuple[rl_settings.Settings, ...] = (rl_navigation.FULL, rl_cheetah_velocity.FULL, rl_cheetah_direction.FULL)
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the trainings, those whose priors are asked."""
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    """Of plain steps; the priors were trained with 0.1."""
    bounds: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    """Of trust-region steps, on the KL."""
    tasks: tuple[int, int] = (40, 40)
    """Their number, and trajectories of each update and mean."""


SMOKE = Settings(
    worlds=(replace(rl_navigation.SMOKE, methods=(METHOD,)),),
    seeds=(0,),
    rates=(0.1, 0.3),
    bounds=(0.01,),
    tasks=(3, 3),
)


def cells(settings: Settings) -> list[study.Cell]:
    """A world, a kind of step and its size."""
    sizes = [(PLAIN, f"{rate:g}") for rate in settings.rates] + [(TRUST, f"{bound:g}") for bound in settings.bounds]
    return [(world.environment, *size) for world in settings.worlds for size in sizes]


def _world(settings: Settings, name: str) -> rl_settings.Settings:
    return next(world for world in settings.worlds if world.environment == name)


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The training whose priors are asked, and the step."""
    world = _world(settings, cell[0])
    return {
        "training": rl.rests_on(world, (METHOD,)),
        "seeds": world.seeds,
        "step": rl.rests_on(world, (ROWS[cell[1]],)),
    }


def decides(settings: Settings) -> Settings:
    """Which worlds and sizes there are decides nothing for one of them."""
    return replace(settings, worlds=(), rates=(), bounds=())


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """The same priors with other updates."""
    name, kind, size = cell
    world = _world(settings, name)
    asked = replace(world, seeds=settings.seeds, test=settings.tasks, drawn=1)
    setup = rl_settings.put(asked, ROWS[kind], rate=float(size))
    found = rl.judged(asked, setup, rl.searched(world, METHOD).kept.states, seed=VALIDATION_SEED)
    returns = np.asarray(found.returns, float)
    numbers = {f"return after {count}": returns[..., count] for count in range(world.updates + 1)}
    numbers["KL of the first step"] = rl_measures.spread(found)["KL of the first step"]
    rows = []
    for metric, values in numbers.items():
        mean, ci95 = study.mean_and_ci(values)
        rows.append(study.row(setting=name, method=f"{kind} {size}", metric=metric, mean=mean, ci95=ci95))
    curve = {"kind": kind, "size": float(size), "returns": np.round(returns, 3)}
    return {"rows": rows, "curves": {"/".join(cell): curve}}


STUDY, run = study.declare(
    __name__,
    report=report,
    title="Reinforcement learning: how far an update goes",
    paper="TRPO inner steps are better in navigation, and not with half-cheetah, where adapted policies lie far apart.",
    full=Settings(),
    smoke=SMOKE,
)
