"""Whether data can be read out of what a client sends: inversion in the manner of "Deep leakage from gradients".

The server knows the prior, the method, the sizes of the tasks and the client's statistics, and looks for tasks that would have
left the same statistics, from many places, by Levenberg and Marquardt's method; the place that fits best is its guess. Networks
are smooth (tanh), which is the easier case for it. Sums over tasks of MAML's gradients and of Gradient-EM's statistics, by the
number of inner steps and of tasks in a message, and by the noise of protected replies.

metaprior reproduce leakage --scale full
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import linear_sum_assignment

from experiments import leakage_report, study
from metaprior import likelihoods, methods, trees
from metaprior.families import MeanField
from metaprior.federated.privacy import Privacy, private
from metaprior.federated.steps import Held, client_step
from metaprior.inference import infer
from metaprior.matrix import SECOND_STAGES
from metaprior.meta import MetaLearner, State, Statistics, meta_learner
from metaprior.models import mlp
from metaprior.rules import clipped
from metaprior.tasks import Tasks
from metaprior.tasks import get as get_tasks
from metaprior.types import Episode

KEY = jax.random.key(7)  # of the round, which the server knows
LARGEST = 5.0  # of inputs and of sinusoids, which the server knows too
RECOVERED = 0.05  # an error below is called a recovery
CLIP = 1.0  # of protected replies


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of priors and of clients."""
    methods: tuple[str, ...] = ("maml", "gem-bml+", "gem-bml")
    """Whose statistics are sent."""
    clients: int = 2
    """Attacked, for each seed."""
    points: int = 2
    """Of the support and of the query of every task."""
    hidden: tuple[int, ...] = (20, 20)
    """Of the network."""
    steps: tuple[int, ...] = (1, 2, 5, 10)
    """Inner steps, with one task in a message."""
    tasks: tuple[int, ...] = (1, 2, 4)
    """In a message, after one inner step."""
    noises: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)
    """Of protected replies of one task after one step, over the length that they are clipped to."""
    starts: int = 10
    """Places that an attack begins from."""
    iterations: int = 80
    """Of an attack from each."""


SMOKE = Settings(
    seeds=(0,), methods=("gem-bml+",), clients=1, hidden=(6,), steps=(1,), tasks=(1,), noises=(1.0,), starts=2, iterations=5
)  # fmt: skip


# --- what is sent -----------------------------------------------------------------------------------------------------


def learner_of(settings: Settings, name: str, steps: int) -> MetaLearner:
    """A row of the table with so many inner steps in each stage that it has."""
    model = mlp((1, *settings.hidden, 1), init="glorot", activation=jnp.tanh)
    row = methods.get(name)
    method = row._replace(steps=(steps, steps if row.steps[1] else 0), draw_steps=False)
    return meta_learner(method, likelihoods.gaussian(model.apply, temperature=method.temperature), model=model)


def start_of(settings: Settings, learner: MetaLearner, seed: int) -> State:
    """Before training, when a prior knows least and tasks move it most."""
    model = mlp((1, *settings.hidden, 1), init="glorot", activation=jnp.tanh)
    key_prior, key_model = jax.random.split(jax.random.key(seed))
    return learner.init(key_prior, model.init(key_model))


def sent(learner: MetaLearner, state: State, episodes: Episode) -> Statistics:
    """What a client with these tasks sends."""
    return client_step(learner, state.prior, Held(jnp.arange(episodes.support.x.shape[0]), episodes), KEY)


def message(learner: MetaLearner, state: State) -> Callable[[Episode], jax.Array]:
    """The sum that is sent, as a function of tasks that can be differentiated in them.

    Gradient-EM holds its posteriors fixed, which an attacker does not: `learner` itself would hide most of what it tells.
    """
    if learner.cell.row != "gem":
        return lambda episodes: sent(learner, state, episodes).gradient
    cell, prior = learner.cell, state.prior

    def one(episode: Episode) -> jax.Array:
        q1, _ = infer(cell.inference, KEY, prior, cell.family.start(prior.dist), episode.support, cell.steps[0], ())
        second = SECOND_STAGES[cell.second_stage]
        assert second is not None
        stage = second(cell, prior, q1, episode)
        q2, _ = infer(cell.inference, KEY, stage.prior, stage.start, stage.source, cell.steps[1], ())
        mu, m1, m2 = prior.dist.mean, cell.family.mean(q1), cell.family.mean(q2)
        over_variance = jax.tree.map(lambda log_std: jnp.exp(-2 * log_std), prior.dist.log_std)
        from_where = m1 if cell.column == "difference" else mu
        mean = jax.tree.map(lambda a, b, v: (a - b) * v, m2, from_where, over_variance)
        log_std = jax.tree.map(lambda a, b, c, v: 2 * (a - b) * (b - c) * v, m2, m1, mu, over_variance)
        return trees.vector(clipped(prior._replace(dist=MeanField(mean, log_std)), learner.method.clip))

    return lambda episodes: jax.vmap(one)(episodes).sum(axis=0)


# --- attack -----------------------------------------------------------------------------------------------------------


def attack(
    told: Callable[[Episode], jax.Array], state: State, observed: jax.Array, start: Episode, iterations: int
) -> tuple[Episode, jax.Array]:
    """Tasks near `start` that would have left what was observed, and how badly they fit: squared errors over squared lengths.

    Every array of the message counts alike, whatever its scale.
    """
    first, unravel = ravel_pytree(start)
    lengths = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, jnp.linalg.norm(leaf.ravel())), trees.like(state.prior, observed)
    )
    weights = 1 / jnp.maximum(trees.vector(lengths), 1e-12) / len(jax.tree.leaves(state.prior)) ** 0.5

    def misfit(guess):
        return (told(unravel(guess)) - observed) * weights

    def step(carry, _):
        guess, damping, value = carry
        jacobian, residual = jax.jacfwd(misfit)(guess), misfit(guess)
        curvature = jacobian.T @ jacobian
        damped = curvature + damping * jnp.diag(jnp.diag(curvature) + 1e-9)
        change = -jnp.linalg.solve(damped, jacobian.T @ residual)
        change = change * jnp.minimum(1.0, 2.0 / jnp.maximum(jnp.abs(change).max(), 1e-9))
        other = jnp.square(misfit(guess + change)).sum()
        better = other < value  # never, where it is not a number
        damping = jnp.clip(jnp.where(better, damping / 3, damping * 4), 1e-9, 1e6)
        return (jnp.where(better, guess + change, guess), damping, jnp.where(better, other, value)), None

    begin = (first, jnp.full((), 0.1), jnp.square(misfit(first)).sum())
    (guess, _, value), _ = jax.lax.scan(step, begin, None, length=iterations)
    return unravel(jnp.clip(guess, -LARGEST, LARGEST)), jnp.where(jnp.isfinite(value), value, jnp.inf)


def error(guess: Episode, truth: Episode, tasks: Tasks) -> float:
    """Root mean square over points and coordinates, in standard deviations of the data; tasks and points may be in any order."""
    scale = _scale(tasks)
    parts = [np.concatenate([np.asarray(data.x), np.asarray(data.y)], axis=-1) for data in (*guess, *truth)]
    support, query, true_support, true_query = (part / scale for part in parts)
    pair = lambda a, b: _matched(np.square(a[:, None] - b[None]).mean(axis=-1))
    costs = [[(pair(support[i], true_support[j]) + pair(query[i], true_query[j])) / 2 for j in range(len(support))]
             for i in range(len(support))]  # fmt: skip
    return float(np.sqrt(_matched(np.array(costs))))


def _matched(costs: np.ndarray) -> float:
    return float(costs[linear_sum_assignment(costs)].mean())


def _scale(tasks: Tasks) -> np.ndarray:
    points = jax.vmap(tasks.sample)(jax.random.split(jax.random.key(0), 2000)).query
    return np.array([np.std(points.x), np.std(points.y)])


# --- the study --------------------------------------------------------------------------------------------------------


def cells(settings: Settings) -> list[study.Cell]:
    """By inner steps with one task, by tasks after one step, and by noise."""
    found = [("guess", "1"), *(("guess", str(count)) for count in settings.tasks if count != 1)]
    for name in settings.methods:
        found += [("steps", name, str(steps)) for steps in settings.steps]
        found += [("tasks", name, str(count)) for count in settings.tasks if count != 1]
    return found + [("noise", name, str(noise)) for name in settings.methods for noise in settings.noises]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """In float64, as an attacker would."""
    with jax.enable_x64(True):
        return _guesses(settings, int(cell[1])) if cell[0] == "guess" else _attacks(settings, *cell)


def _attacks(settings: Settings, what: str, name: str, size: str) -> study.Results:
    steps, count = (int(size) if what == word else 1 for word in ("steps", "tasks"))
    noise = float(size) if what == "noise" else None
    tasks, learner = _tasks(settings), learner_of(settings, name, steps)
    errors, misfits = [], []

    @jax.jit
    def guess(state, seen, starts):
        told = _as_told(message(learner, state), noise)
        one = lambda seen, start: attack(told, state, seen, start, settings.iterations)
        return jax.vmap(jax.vmap(one, in_axes=(None, 0)))(seen, starts)

    find = jax.jit(lambda state, truths: jax.vmap(lambda episodes: sent(learner, state, episodes))(truths))
    for seed in settings.seeds:
        state = start_of(settings, learner, seed)
        truths, starts = _drawn(settings, tasks, seed, count)
        found = find(state, truths)
        seen = jnp.stack([_seen(_at(found, i), noise, 100 * seed + i) for i in range(settings.clients)])
        guesses, values = guess(state, seen, starts)
        best = np.asarray(values).argmin(axis=1)
        errors.append([error(_at(guesses, i, best[i]), _at(truths, i), tasks) for i in range(settings.clients)])
        misfits.append(np.asarray(values).min(axis=1))
    return _rows(_setting(what, size), name, np.array(errors), {"misfit": np.array(misfits)}, f"{what} {name} {size}")


def _at(tree: Any, *place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


def _seen(found: Statistics, noise: float | None, number: int) -> jax.Array:
    if noise is None:
        return found.gradient
    normal = np.random.default_rng(number).standard_normal(found.gradient.size)
    return private(found, Privacy(CLIP, noise), normal).gradient


def _as_told(plain: Callable[[Episode], jax.Array], noise: float | None) -> Callable[[Episode], jax.Array]:
    """Of a protected reply the attacker knows how it is shortened, and not the noise."""
    if noise is None:
        return plain

    def shortened(episodes: Episode) -> jax.Array:
        vector = plain(episodes)
        return vector * jnp.minimum(1.0, CLIP / jnp.maximum(jnp.linalg.norm(vector), 1e-12))

    return shortened


def _guesses(settings: Settings, count: int) -> study.Results:
    """What somebody is off by who has seen no message: the mean of all data, or points drawn as the client's were."""
    tasks = _tasks(settings)
    middle, fresh = [], []
    for seed in settings.seeds:
        truths, starts = _drawn(settings, tasks, seed, count)
        for i in range(settings.clients):
            truth = _at(truths, i)
            middle.append(error(jax.tree.map(jnp.zeros_like, truth), truth, tasks))
            fresh.append(error(_at(starts, i, 0), truth, tasks))
    pieces = [_rows(_setting("tasks", str(count)), name, np.array(values).reshape(len(settings.seeds), -1), {}, f"{name} {count}")
              for name, values in ((leakage_report.MEAN, middle), (leakage_report.FRESH, fresh))]  # fmt: skip
    return {"rows": [row for piece in pieces for row in piece["rows"]],
            "curves": {key: value for piece in pieces for key, value in piece["curves"].items()}}  # fmt: skip


def _rows(setting: str, method: str, errors: np.ndarray, more: dict[str, Any], name: str) -> study.Results:
    mean, ci95 = study.mean_and_ci(errors)
    rows = [study.row(setting=setting, method=method, metric="error", mean=mean, ci95=ci95)]
    if more:
        rows.append(
            study.row(setting=setting, method=method, metric="recovered", mean=float((errors < RECOVERED).mean()))
        )
    return {"rows": rows, "curves": {name: {"error": errors.tolist(), **{k: v.tolist() for k, v in more.items()}}}}


def _setting(what: str, size: str) -> str:
    one = "1 inner step, 1 task"
    words = {
        "steps": f"{size} inner steps, 1 task",
        "tasks": f"1 inner step, {size} tasks",
        "noise": f"{one}, noise {size}",
    }
    return one if size == "1" and what != "noise" else words[what]


def _tasks(settings: Settings) -> Tasks:
    return get_tasks("sinusoid", shots=settings.points, queries=settings.points)


def _drawn(settings: Settings, tasks: Tasks, seed: int, count: int) -> tuple[Episode, Episode]:
    """The tasks of every client, and where attacks begin: tasks of the same kind, which the server can draw as well."""
    key_truth, key_start = jax.random.split(jax.random.key(1000 + seed))
    draw = jax.vmap(tasks.sample)
    some = lambda key, *shape: jax.tree.map(
        lambda leaf: leaf.reshape(*shape, count, *leaf.shape[1:]),
        draw(jax.random.split(key, int(np.prod(shape)) * count)),
    )
    return some(key_truth, settings.clients), some(key_start, settings.clients, settings.starts)


STUDY, run = study.declare(
    __name__,
    title="Reading data out of what clients send: inversion of MAML's gradients and of Gradient-EM's statistics",
    paper="The meta-update of Gradient-EM needs no data, which suits tasks that are to stay private. No attack is tried.",
    full=Settings(),
    smoke=SMOKE,
    report=leakage_report,
)
