r"""Whether any point between the adapted weights of tasks is a good place to start from: A* (Section 2.3, Appendix C.3).

A prior is trained and adapted to many tasks; random convex combinations of the adapted weights θᵢ then replace its mean Θ, and
new tasks are adapted to from there. Two controls lie just as far from Θ but not between the θᵢ: in a random direction, and
mirrored at Θ. If those did as well, being inside would not be what counts.

metaprior reproduce a-star --scale full
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from experiments import a_star_report, displacements, regression, search, study
from metaprior.evaluation import TEST_SEED, for_classes
from metaprior.meta import State, task_keys
from metaprior.settings import Setup
from metaprior.types import Data, Key

TASKS = "sinusoid"
HULL_SEED = 7_000_003  # of the tasks whose θᵢ span A*: neither trained nor tested on
TRAINED = "trained Θ"
PLACES = ("inside", "random direction", "mirrored")  # the point, and its two controls
SIDE_BY_SIDE = 100  # tasks adapted to at a time


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ("maml", "gem-bml+")
    iterations: int = 40_000
    adapted: int = 100
    """Tasks whose adapted weights span A*."""
    mixed: tuple[int, ...] = (1, 3, 100)
    """How many of the θᵢ a point combines, in equally likely shares; one is a θᵢ itself."""
    points: int = 100
    """Random points of each kind."""
    steps: int = 10
    """Of adaptation, to the θᵢ as well as to test tasks."""
    test_tasks: int = 100
    single: int = 8
    """Random points whose own curve is kept."""


SMOKE = Settings(
    seeds=(0,), methods=("maml",), iterations=30, adapted=6, mixed=(1, 3, 6), points=3, steps=3, test_tasks=4, single=2
)


Errors = dict[str, Array]  # by what they are called


class Found(NamedTuple):
    """Of one seed. Errors are those of a start on tasks after 0, 1, … steps; where weights lie is seen from Θ."""

    trained: Errors  # [tasks, steps]
    starts: Errors  # [kinds, places, points, tasks, steps]
    own: Errors  # [adapted, steps], of Θ on the tasks that give the θᵢ
    length: Float[Array, ""]  # of Θ
    adapted: Float[Array, "adapted axes"]  # the θᵢ along their own principal axes
    where: Float[Array, "kinds points axes"]  # likewise, the points inside
    paths: Float[Array, "single steps 2"]  # likewise, the first θᵢ step by step
    parts: Float[Array, "adapted arrays"]  # squared distance of the θᵢ in each array of weights


def cells(settings: Settings) -> list[study.Cell]:
    """A method."""
    return [(name,) for name in settings.methods]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train on every seed, then start from everywhere."""
    setup = regression.set_up(search.best(cell[0], TASKS), tasks=TASKS, iterations=settings.iterations)
    states, _, _ = regression.train(setup, settings.seeds)
    found = jax.jit(lambda states: jax.lax.map(lambda state: explore(settings, setup, state), states))(states)
    found = jax.tree.map(np.asarray, found)
    return {"rows": rows(settings, cell[0], found), "curves": {cell[0]: curve(settings, found, "MSE")}}


def squared_error(outputs: Float[Array, "N O"], y: Float[Array, "N O"]) -> Errors:
    """What curves are judged by."""
    return {"MSE": jnp.square(outputs - y).mean()}


Judge = Callable[[Array, Array], Errors]  # the network's outputs at the query, its targets


def explore(
    settings: Settings, setup: Setup, state: State, *, judge: Judge = squared_error, hull: tuple = (), test: tuple = ()
) -> Found:
    """Adapt to the tasks that span A*, draw points there and beside it, and adapt to test tasks from all of them.

    Args:
        settings: how much of it.
        setup: the pieces.
        state: as trained.
        judge: of a task's answers.
        hull: the data that tasks of the θᵢ are made of, where they are made of data.
        test: likewise, the tasks on which starts are judged.
    """
    state = for_classes(setup, state, setup.tasks.outputs)
    theta, unravel = ravel_pytree(state.prior.dist.mean)
    key_hull, key_points = jax.random.split(jax.random.key(HULL_SEED))

    def errors(start, key, count, pool):
        return adapt(setup, with_mean(state, unravel(start)), key, count, settings.steps, judge=judge, pool=pool)

    own, ways = errors(theta, key_hull, settings.adapted, hull)
    adapted = ways[:, -1]
    seen, axes = displacements.along_axes(adapted - theta[None])
    where, inside = [], []
    for key, mixed in zip(jax.random.split(key_points, len(settings.mixed)), settings.mixed, strict=True):
        shares = hull_weights(key, settings.points, settings.adapted, mixed)
        where.append(jnp.stack(beside(key, theta, hull_points(shares, adapted))))
        inside.append(hull_points(shares, seen))
    judged = lambda start: errors(start, jax.random.key(TEST_SEED), settings.test_tasks, test)[0]
    # Θ among the others: one program to compile instead of two.
    starts = jax.lax.map(judged, jnp.concatenate([jnp.stack(where).reshape(-1, theta.size), theta[None]]))
    shape = (len(where), len(PLACES), settings.points)
    return Found(
        trained=jax.tree.map(lambda leaf: leaf[-1], starts),
        starts=jax.tree.map(lambda leaf: leaf[:-1].reshape(*shape, *leaf.shape[1:]), starts),
        own=own,
        length=jnp.linalg.norm(theta),
        adapted=seen,
        where=jnp.stack(inside),
        paths=jnp.matmul(ways[: settings.single] - theta[None, None], axes.T, precision="highest"),
        parts=jax.vmap(lambda away: _squares(unravel(away)))(adapted - theta[None]),
    )


def _squares(tree) -> Float[Array, " arrays"]:
    return jnp.stack([jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree)])


def with_mean(state: State, mean) -> State:
    """The prior moved elsewhere; its widths and rates stay."""
    return state._replace(prior=state.prior._replace(dist=state.prior.dist._replace(mean=mean)))


def adapt(
    setup: Setup,
    state: State,
    key: Key,
    num_tasks: int,
    steps: int,
    *,
    judge: Judge = squared_error,
    pool: tuple = (),
) -> tuple[Errors, Float[Array, "tasks steps W"]]:
    """Errors after 0..steps steps, [tasks, steps], and the weights on the way; tasks as in `metaprior.evaluation`."""

    def one_task(key):
        key_task, key_adapt, _ = jax.random.split(key, 3)
        episode = setup.tasks.evaluation(key_task, *pool)
        means = setup.learner.cell.family.mean(setup.learner.adapt(key_adapt, state, episode.support, steps))
        errors = jax.vmap(lambda params: _judged(setup, judge, params, episode.query))(means)
        return errors, jax.vmap(lambda params: ravel_pytree(params)[0])(means)

    return jax.lax.map(one_task, task_keys(key, num_tasks), batch_size=min(num_tasks, SIDE_BY_SIDE))


def _judged(setup: Setup, judge: Judge, params, query: Data) -> Errors:
    return judge(setup.model.apply(params, query.x), query.y)


def hull_weights(key: Key, num_points: int, num_vertices: int, mixed: int) -> Float[Array, "points vertices"]:
    """Shares of a convex combination of `mixed` vertices picked at random, uniform on their simplex: Dirichlet(1, …, 1)."""
    key_pick, key_share = jax.random.split(key)
    rank = jnp.argsort(jnp.argsort(jax.random.uniform(key_pick, (num_points, num_vertices)), axis=1), axis=1)
    shares = jnp.where(rank < mixed, jax.random.exponential(key_share, (num_points, num_vertices)), 0.0)
    return shares / shares.sum(axis=1, keepdims=True)


def hull_points(
    shares: Float[Array, "points vertices"], vertices: Float[Array, "vertices W"]
) -> Float[Array, "points W"]:
    """Points of the convex hull; weights are too alike for the short products of a card's default."""
    return jnp.matmul(shares, vertices, precision="highest")


def beside(
    key: Key, theta: Float[Array, " W"], points: Float[Array, "points W"]
) -> tuple[Float[Array, "points W"], ...]:
    """The points and their controls, as far from Θ: in the order of `PLACES`."""
    away = points - theta[None]
    direction = jax.random.normal(jax.random.fold_in(key, 1), points.shape, points.dtype)
    scale = jnp.linalg.norm(away, axis=1, keepdims=True) / jnp.linalg.norm(direction, axis=1, keepdims=True)
    return points, theta[None] + scale * direction, theta[None] - away


# --- what is kept -----------------------------------------------------------------------------------------------------


def kinds(settings: Settings) -> list[str]:
    """What the points are called."""
    words = {1: "one θᵢ", settings.adapted: f"between all {settings.adapted} θᵢ"}
    return [words.get(mixed, f"between {mixed} θᵢ") for mixed in settings.mixed]


def rows(settings: Settings, method: str, found: Found) -> list:
    """Errors from every kind of start, and task by task minus those from Θ and from the controls; `found` is of all seeds."""
    return [row for word in found.trained for row in _rows(settings, method, word, found)]


def _rows(settings: Settings, method: str, word: str, found: Found) -> list:
    counts = [step for step in (0, 1, 5, 10) if step <= settings.steps]
    trained, starts = np.asarray(found.trained[word]), np.asarray(found.starts[word])
    rows = [row(TRAINED, method, f"{word} after {step}", trained[..., step]) for step in counts]
    for kind, name in enumerate(kinds(settings)):
        errors = dict(zip(PLACES, np.swapaxes(starts[:, kind].mean(axis=2), 0, 1), strict=True))  # mean over points
        for place, mine in errors.items():
            rows += [row(f"{name}, {place}", method, f"{word} after {step}", mine[..., step]) for step in counts]
        inside = errors.pop(PLACES[0])
        for rival, theirs in ({"Θ": trained} | errors).items():  # task by task: the same tasks from both starts
            for step in (0, settings.steps):
                metric = f"{word} after {step} minus {rival}"
                rows.append(row(f"{name}, {PLACES[0]}", method, metric, inside[..., step] - theirs[..., step]))
    return rows


def row(setting: str, method: str, metric: str, values) -> dict:
    """Of scores [seeds, tasks]; a single one has no interval."""
    mean, ci95 = study.mean_and_ci(values)
    return study.row(
        setting=setting, method=method, metric=metric, mean=mean, ci95=ci95 if np.size(values) > 1 else None
    )


def curve(settings: Settings, found: Found, word: str) -> dict:
    """For the figure: means of an error by step, single points, and a flat picture of the first seed's weights."""
    trained = np.asarray(found.trained[word])
    by_point = np.asarray(found.starts[word]).mean(axis=4)  # [seeds, kinds, places, points, steps], over tasks
    ratios = by_point / trained.mean(axis=1)[:, None, None, None]  # to the Θ of the same seed
    length = lambda array: np.linalg.norm(array, axis=-1).mean()
    places = lambda kind: {
        name: {
            "mean": rounded(by_point[:, kind, place].mean(axis=(0, 1))),
            "single": rounded(by_point[0, kind, place, : settings.single]),
            "before": rounded(ratios[:, kind, place, :, 0].ravel(), 3),
            "after": rounded(ratios[:, kind, place, :, -1].ravel(), 3),
        }
        for place, name in enumerate(PLACES)
    }
    return {
        "steps": list(range(settings.steps + 1)),
        "trained": rounded(trained.mean(axis=(0, 1))),
        "own tasks": rounded(np.mean(found.own[word], axis=(0, 1))),
        "length of Θ": np.mean(found.length),
        "distance of θᵢ": length(found.adapted),
        "kinds": {
            name: {
                "distance": length(found.where[:, kind]),
                "map": rounded(found.where[0, kind, :, :2], 4),
                "places": places(kind),
            }
            for kind, name in enumerate(kinds(settings))
        },
        "θᵢ": rounded(found.adapted[0, :, :2], 4),
        "shares": rounded(spectrum(found.adapted[0])[:2], 4),
    }


def spectrum(seen: Float[Array, "adapted axes"]) -> Float[np.ndarray, " axes"]:
    """What share of the squared distances from Θ each axis has."""
    along = np.square(np.asarray(seen, float)).sum(axis=0)
    return along / along.sum()


def rounded(array, digits: int = 5) -> np.ndarray:
    """In double precision: float32 would print all its digits."""
    return np.round(np.asarray(array, float), digits)


STUDY, run = study.declare(
    __name__,
    title="A*: starting between the adapted weights (Appendix C.3)",
    paper="The trained Θ is best after adaptation; random points of A* are good too: less error before it, a little more after.",
    full=Settings(),
    smoke=SMOKE,
    report=a_star_report,
)
