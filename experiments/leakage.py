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

from experiments import leakage_report, study
from experiments.inversion import attack, error, message, sent
from metaprior import likelihoods, methods
from metaprior.federated.privacy import Privacy, private
from metaprior.meta import MetaLearner, State, Statistics, meta_learner
from metaprior.models import mlp
from metaprior.tasks import Tasks
from metaprior.tasks import get as get_tasks
from metaprior.types import Episode

RECOVERED = 0.05  # an error below is called a recovery
CLIP = 1.0  # of protected replies


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of priors and of clients."""
    methods: tuple[str, ...] = ("maml", "gem-bml+", "gem-bml")
    """Whose statistics are sent."""
    clients: int = 8
    """Attacked, for each seed; each has a prior of its own."""
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


def start_of(settings: Settings, learner: MetaLearner, seed: Any) -> State:
    """Before training, when a prior knows least and tasks move it most."""
    model = mlp((1, *settings.hidden, 1), init="glorot", activation=jnp.tanh)
    key_prior, key_model = jax.random.split(jax.random.key(seed))
    return learner.init(key_prior, model.init(key_model))


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

    def guess(state, seen, start):
        told = _as_told(message(learner, state), noise)
        return attack(told, state, seen, start, settings.iterations, noisy=noise is not None)

    guess = jax.jit(jax.vmap(jax.vmap(guess, in_axes=(None, None, 0))))
    find = jax.jit(jax.vmap(lambda state, episodes: sent(learner, state, episodes)))
    begin = jax.jit(jax.vmap(lambda number: start_of(settings, learner, number)))
    for seed in settings.seeds:
        state = begin(1000 * seed + jnp.arange(settings.clients))
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
    mean, ci95 = study.mean_and_ci(errors.ravel())  # clients of equal standing, each with data and a prior of its own
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
