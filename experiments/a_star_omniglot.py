r"""A* of characters: where the weights of 5-way 1-shot tasks lie, and whether one may start between them (Appendix C.3).

The questions of `a-star` on Omniglot, and how the priors of four methods differ in what lies around them: how far the adapted
weights θᵢ are from Θ and from each other, how much of the way they have in common, in how many directions they spread.
Test classes are cut in two halves that share none: the θᵢ come from tasks of one, starts are judged on tasks of the other.

metaprior reproduce a-star-omniglot --data-dir FOLDER
"""

from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments import a_star, a_star_omniglot_report, displacements, few_shot, images, study, trainings
from experiments.turns import by_turns
from metaprior.meta import State
from metaprior.settings import Setup

TASKS = "omniglot"
GEOMETRY = "the adapted weights"
NLL, WRONG = "NLL", "error in %"


@dataclass(frozen=True)
class Settings:
    """The scale of the study: that of `a_star.Settings`, and of the images."""

    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ("gem-bml", "gem-bml+", "reptile", "maml")
    iterations: int = 1_000
    adapted: int = 200
    mixed: tuple[int, ...] = (1, 3, 200)
    points: int = 30
    steps: int = images.TEST_STEPS
    test_tasks: int = 100
    single: int = 12
    """Random points whose own curve is kept, and θᵢ whose path is."""
    setting: str = "5w1s"
    queries: int = 5
    """Of each class, by which starts are judged."""
    around: tuple[tuple[str, Any], ...] = ()
    """Fields of the settings that differ from the defaults, for all."""


SMOKE = Settings(
    seeds=(0,), methods=("gem-bml+",), iterations=20, adapted=12, mixed=(1, 3, 12), points=3, steps=3, test_tasks=4,
    single=4, queries=2, around=(("filters", 4), ("queries", 2)),
)  # fmt: skip


def cells(settings: Settings) -> list[study.Cell]:
    """A method."""
    return [(name,) for name in settings.methods]


def put(settings: Settings, cell: study.Cell) -> Setup:
    """The pieces of a cell."""
    variant = few_shot.VARIANTS[cell[0]]
    variant = variant._replace(around={**variant.around, **dict(settings.around)})
    asked = images.Protocol("classified together", settings.queries, False, settings.test_tasks)
    return images.set_up(variant, tasks=TASKS, setting=settings.setting, iterations=settings.iterations, protocol=asked)


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The recipe of the method, and all other settings."""
    return images.identity(put(settings, cell))


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the training that is kept."""
    trainings.forget(put(settings, cell), settings.seeds)


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train on every seed, adapt, look at where that leads, and start from everywhere."""
    setup, scale = put(settings, cell), scale_of(settings)
    trained = trainings.train(setup, settings.seeds)
    found = explore(scale, setup, trained.states)
    shape = geometry(setup, found)
    rows = [a_star.row(GEOMETRY, cell[0], word, values) for word, values in shape.items()]
    curve = {
        "error": NLL,
        **a_star.curve(scale, found, NLL),
        "paths": a_star.rounded(found.paths[0], 4),
        "wrong": a_star.rounded(np.mean(found.trained[WRONG], axis=(0, 1)), 3),
        "far": far(found),
        "spectrum": a_star.rounded(np.mean([np.cumsum(a_star.spectrum(seen)) for seen in found.adapted], axis=0), 4),
        "finite": trained.finite,
        "training_seconds": round(trained.seconds, 1),
        **rests_on(settings, cell),
    }
    return {"rows": [*rows, *a_star.rows(scale, cell[0], found)], "curves": {cell[0]: curve}}


def scale_of(settings: Settings) -> a_star.Settings:
    """What both studies are asked."""
    return a_star.Settings(**{field.name: getattr(settings, field.name) for field in fields(a_star.Settings)})


def explore(scale: a_star.Settings, setup: Setup, states: State) -> a_star.Found:
    """`a_star.explore` for all seeds in one program, one after the other."""

    @jax.jit
    def every_seed(states, hull, test):
        one = lambda state: a_star.explore(scale, setup, state, judge=judge, hull=hull, test=test)
        return jax.lax.map(one, states)

    pixels, members = setup.tasks.pool("test")
    found, _ = by_turns(every_seed)(states, *((pixels, half) for half in halves(members)))
    return jax.tree.map(np.asarray, found)


def halves(members: Int[np.ndarray, "K I"]) -> tuple[Int[np.ndarray, "K1 I"], Int[np.ndarray, "K2 I"]]:
    """Every other class, and those between."""
    return members[::2], members[1::2]


def judge(logits: Float[Array, "N C"], y: Int[Array, " N"]) -> a_star.Errors:
    """Cross-entropy, which every step moves, and answers that are wrong."""
    right = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
    return {NLL: -right.mean(), WRONG: 100 * (logits.argmax(axis=1) != y).astype(logits.dtype).mean()}


# --- the shape of what lies around Θ ----------------------------------------------------------------------------------


def geometry(setup: Setup, found: a_star.Found) -> dict[str, Float[np.ndarray, "seeds tasks"]]:
    """Where the θᵢ lie, in numbers for each seed; for each task, too, where a task has its own."""
    grams = [seen @ seen.T for seen in np.asarray(found.adapted, float)]
    away = np.stack([np.sqrt(np.diag(gram)) for gram in grams])
    apart = np.stack([displacements.distances(gram).sum(axis=1) / (len(gram) - 1) for gram in grams])
    lengths, parts = np.asarray(found.length), np.asarray(found.parts)
    of_seed = lambda measured: np.asarray([[measured(gram)] for gram in grams])
    return {
        "distance from Θ": away,
        "distance / length of Θ": away / lengths[:, None],
        "distance between": apart,
        "between / from Θ": (apart.mean(axis=1) / away.mean(axis=1))[:, None],
        "share in common": of_seed(displacements.in_common),
        "participation ratio": of_seed(displacements.participation_ratio),
        "dimensions": of_seed(displacements.dimensions),
        "share of two directions": np.asarray([[a_star.spectrum(seen)[:2].sum()] for seen in found.adapted]),
        "share in the head": parts[..., in_head(setup)].sum(axis=2) / parts.sum(axis=2),
    }


def in_head(setup: Setup) -> Int[np.ndarray, " arrays"]:
    """Which arrays of weights are the head's, by their numbers."""
    weights = jax.eval_shape(setup.model.init, jax.random.key(0))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(weights)[0]]
    return np.asarray([number for number, path in enumerate(paths) if path.startswith(".head")])


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def far(found: a_star.Found) -> dict[str, Float[np.ndarray, " quantiles"]]:
    """Distances as shares of the length of Θ, over tasks and seeds."""
    away, apart = [], []
    for seen, length in zip(np.asarray(found.adapted, float), found.length, strict=True):
        gram = seen @ seen.T
        away.append(np.sqrt(np.diag(gram)) / length)
        apart.append(displacements.distances(gram)[np.triu_indices(len(gram), 1)] / length)
    quantiles = lambda values: a_star.rounded(np.quantile(np.concatenate(values), QUANTILES), 6)
    return {"from Θ": quantiles(away), "between": quantiles(apart)}


STUDY, run = study.declare(
    __name__,
    title="A* on Omniglot: the weights of tasks and what lies between them (Appendix C.3)",
    paper="As for sinusoids: Θ is best after adaptation, points of A* are good starts too; A* is a small zone around Θ.",
    full=Settings(),
    smoke=SMOKE,
    report=a_star_omniglot_report,
)
