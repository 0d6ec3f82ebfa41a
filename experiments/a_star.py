r"""Whether any point between the adapted weights of tasks is a good place to start from: A* (Section 2.3, Appendix C.3).

A prior is trained and adapted to many tasks; random convex combinations of the adapted weights θᵢ then replace its mean Θ, and
new tasks are adapted to from there. Two controls lie just as far from Θ but not between the θᵢ: in a random direction, and
mirrored at Θ. If those did as well, being inside would not be what counts.

metaprior reproduce a-star --scale full
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from experiments import a_star_report, regression, search, study
from metaprior.evaluation import TEST_SEED
from metaprior.meta import State, task_keys
from metaprior.settings import Setup
from metaprior.types import Key

TASKS = "sinusoid"
HULL_SEED = 7_000_003  # of the tasks whose θᵢ span A*: neither trained nor tested on
TRAINED = "trained Θ"
PLACES = ("inside", "random direction", "mirrored")  # the point, and its two controls


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


class Found(NamedTuple):
    """Of one seed."""

    trained: Float[Array, "tasks steps"]  # squared error of a start on the test tasks, from 0 steps on
    starts: Float[Array, "kinds places points tasks steps"]
    own: Float[Array, "adapted steps"]  # of Θ on the tasks that give the θᵢ
    theta: Float[Array, " W"]
    adapted: Float[Array, "adapted W"]
    where: Float[Array, "kinds places points W"]


def cells(settings: Settings) -> list[study.Cell]:
    """A method."""
    return [(name,) for name in settings.methods]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train on every seed, then start from everywhere."""
    setup = regression.set_up(search.best(cell[0], TASKS), tasks=TASKS, iterations=settings.iterations)
    states, _, _ = regression.train(setup, settings.seeds)
    found = jax.jit(lambda states: jax.lax.map(lambda state: explore(settings, setup, state), states))(states)
    found = jax.tree.map(np.asarray, found)
    return {"rows": _rows(settings, cell[0], found), "curves": {cell[0]: _curve(settings, found)}}


def explore(settings: Settings, setup: Setup, state: State) -> Found:
    """Adapt to the tasks that span A*, draw points there and beside it, and adapt to test tasks from all of them."""
    theta, unravel = ravel_pytree(state.prior.dist.mean)
    key_hull, key_points = jax.random.split(jax.random.key(HULL_SEED))
    errors = lambda start, key, count: adapt(setup, with_mean(state, unravel(start)), key, count, settings.steps)
    own, adapted = errors(theta, key_hull, settings.adapted)
    where = jnp.stack([
        jnp.stack(beside(key, theta, hull_points(key, adapted, settings.points, mixed)))
        for key, mixed in zip(jax.random.split(key_points, len(settings.mixed)), settings.mixed, strict=True)
    ])  # fmt: skip
    test = lambda start: errors(start, jax.random.key(TEST_SEED), settings.test_tasks)[0]
    starts = jax.lax.map(test, where.reshape(-1, theta.size))
    return Found(test(theta), starts.reshape(*where.shape[:3], *starts.shape[1:]), own, theta, adapted, where)


def with_mean(state: State, mean) -> State:
    """The prior moved elsewhere; its widths and rates stay."""
    return state._replace(prior=state.prior._replace(dist=state.prior.dist._replace(mean=mean)))


def adapt(
    setup: Setup, state: State, key: Key, num_tasks: int, steps: int
) -> tuple[Float[Array, "tasks steps"], Float[Array, "tasks W"]]:
    """Squared errors after 0..steps steps, and the weights that adaptation ends with; tasks as in `metaprior.evaluation`."""

    def one_task(key):
        key_task, key_adapt, _ = jax.random.split(key, 3)
        episode = setup.tasks.evaluation(key_task)
        means = setup.learner.cell.family.mean(setup.learner.adapt(key_adapt, state, episode.support, steps))
        outputs = jax.vmap(lambda params: setup.model.apply(params, episode.query.x))(means)
        errors = jnp.square(outputs - episode.query.y[None]).mean(axis=(1, 2))
        return errors, ravel_pytree(jax.tree.map(lambda leaf: leaf[-1], means))[0]

    return jax.vmap(one_task)(task_keys(key, num_tasks))


def hull_weights(key: Key, num_points: int, num_vertices: int, mixed: int) -> Float[Array, "points vertices"]:
    """Shares of a convex combination of `mixed` vertices picked at random, uniform on their simplex: Dirichlet(1, …, 1)."""
    key_pick, key_share = jax.random.split(key)
    rank = jnp.argsort(jnp.argsort(jax.random.uniform(key_pick, (num_points, num_vertices)), axis=1), axis=1)
    shares = jnp.where(rank < mixed, jax.random.exponential(key_share, (num_points, num_vertices)), 0.0)
    return shares / shares.sum(axis=1, keepdims=True)


def hull_points(
    key: Key, vertices: Float[Array, "vertices W"], num_points: int, mixed: int
) -> Float[Array, "points W"]:
    """Random points of the convex hull."""
    return hull_weights(key, num_points, vertices.shape[0], mixed) @ vertices


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


def _rows(settings: Settings, method: str, found: Found) -> list:
    counts = [step for step in (0, 1, 5, 10) if step <= settings.steps]
    rows = [_row(TRAINED, method, f"MSE after {step}", found.trained[..., step]) for step in counts]
    for kind, name in enumerate(kinds(settings)):
        errors = dict(
            zip(PLACES, np.swapaxes(np.asarray(found.starts)[:, kind].mean(axis=2), 0, 1), strict=True)
        )  # mean over points
        for place, mine in errors.items():
            rows += [_row(f"{name}, {place}", method, f"MSE after {step}", mine[..., step]) for step in counts]
        inside = errors.pop(PLACES[0])
        for rival, theirs in ({"Θ": found.trained} | errors).items():  # task by task: the same tasks from both starts
            for step in (0, settings.steps):
                metric = f"MSE after {step} minus {rival}"
                rows.append(_row(f"{name}, {PLACES[0]}", method, metric, inside[..., step] - theirs[..., step]))
    return rows


def _row(setting: str, method: str, metric: str, values) -> dict:
    mean, ci95 = study.mean_and_ci(values)
    return study.row(setting=setting, method=method, metric=metric, mean=mean, ci95=ci95)


def _curve(settings: Settings, found: Found) -> dict:
    """For the figure: means by step, single points, and a flat picture of the first seed's weights."""
    by_point = found.starts.mean(axis=4)  # [seeds, kinds, places, points, steps], over tasks
    ratios = by_point / found.trained.mean(axis=1)[:, None, None, None]  # to the Θ of the same seed
    rounded = lambda array, digits=5: np.round(np.asarray(array, float), digits)  # float32 would print all its digits
    length = lambda array: np.linalg.norm(array, axis=-1).mean()
    curve = {
        "steps": list(range(settings.steps + 1)),
        "trained": rounded(found.trained.mean(axis=(0, 1))),
        "own tasks": rounded(found.own.mean(axis=(0, 1))),
        "length of Θ": length(found.theta),
        "distance of θᵢ": length(found.adapted - found.theta[:, None]),
        "kinds": {},
    }
    coordinates, curve["shares"] = _flat(found)
    curve["θᵢ"], *spread = coordinates
    for kind, name in enumerate(kinds(settings)):
        curve["kinds"][name] = {
            "distance": length(found.where[:, kind, 0] - found.theta[:, None]),
            "map": spread[kind],
            "places": {
                word: {
                    "mean": rounded(by_point[:, kind, place].mean(axis=(0, 1))),
                    "single": rounded(by_point[0, kind, place, : settings.single]),
                    "before": rounded(ratios[:, kind, place, :, 0].ravel(), 3),
                    "after": rounded(ratios[:, kind, place, :, -1].ravel(), 3),
                }
                for place, word in enumerate(PLACES)
            },
        }
    return curve


def _flat(found: Found):
    """Θ in the middle, the two directions in which the θᵢ of the first seed lie furthest from it; and their shares of it all."""
    away = found.adapted[0] - found.theta[0][None]
    _, lengths, axes = np.linalg.svd(away, full_matrices=False)
    onto = lambda weights: np.round(np.asarray((weights - found.theta[0][None]) @ axes[:2].T, float), 4)
    points = [onto(found.where[0, kind, 0]) for kind in range(found.where.shape[1])]
    return [onto(found.adapted[0]), *points], np.round(np.asarray(lengths**2 / np.sum(lengths**2), float), 4)[:2]


STUDY, run = study.declare(
    __name__,
    title="A*: starting between the adapted weights (Appendix C.3)",
    paper="The trained Θ is best after adaptation; random points of A* are good too: less error before it, a little more after.",
    full=Settings(),
    smoke=SMOKE,
    report=a_star_report,
)
