"""Whether images can be read out of what a client sends: `leakage`, with drawings of Omniglot in the place of points.

A task has as many drawings to learn from as to be judged by, of different classes, seen at 14×14; the network is a perceptron
with one smooth hidden layer. The server knows the prior, the method, the labels and the statistics, and looks for drawings that
would have left the same: by Gauss and Newton's method, damped, from a guess that the first layer gives away and from random ones.

metaprior reproduce leakage-images --scale full --data-dir FOLDER
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments import leakage_images_report as told
from experiments import study
from experiments.inversion import matched, message, sent
from metaprior import likelihoods, methods, trees
from metaprior.families import MeanField
from metaprior.federated.privacy import Privacy, private
from metaprior.meta import MetaLearner, State, meta_learner
from metaprior.models import mlp
from metaprior.tasks import get as get_tasks
from metaprior.types import Data, Episode

SIDE, CLASSES = 14, 5
RECOVERED = 0.2  # an error below is called a recovery: see the pictures
CLIP = 1.0  # of protected replies
SHOWN = 3  # clients whose drawings are kept, for the figure
Drawings = Float[Array, "2 tasks images pixels"]  # of support and query


class Message(NamedTuple):
    """What is in one."""

    steps: int = 1  # inner steps
    tasks: int = 1
    images: int = 1  # of the support and of the query of each task
    noise: float | None = None  # of protected replies


MESSAGES: dict[str, Message] = {
    "1 + 1 drawings": Message(),
    "5 inner steps": Message(steps=5),
    "3 + 3 drawings": Message(images=3),
    "2 tasks": Message(tasks=2),
    "noise 0.01": Message(noise=0.01),
    "noise 0.1": Message(noise=0.1),
}


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of priors and of clients."""
    methods: tuple[str, ...] = ("maml", "gem-bml+", "gem-bml")
    """Whose statistics are sent."""
    messages: tuple[str, ...] = tuple(MESSAGES)
    """What is in them."""
    clients: int = 3
    """Attacked, for each seed; each has a prior of its own."""
    hidden: int = 16
    """Width of the hidden layer."""
    rate: float = 0.3
    """Of inner steps; the prior's variance is the same."""
    starts: int = 2
    """Places that an attack begins from."""
    iterations: int = 25
    """Of an attack from each."""
    inner: int = 20
    """Of the conjugate gradients in each."""


SMOKE = Settings(
    seeds=(0,), methods=("gem-bml+",), messages=("1 + 1 drawings",), clients=1, hidden=3, starts=2, iterations=2, inner=2
)  # fmt: skip


def model_of(settings: Settings):
    """The network."""
    return mlp((SIDE * SIDE, settings.hidden, CLASSES), init="glorot", activation=jnp.tanh)


def learner_of(settings: Settings, name: str, steps: int) -> MetaLearner:
    """A row of the table with so many inner steps in each stage that it has."""
    row, model = methods.get(name), model_of(settings)
    method = row._replace(
        steps=(steps, steps if row.steps[1] else 0), draw_steps=False, rate=settings.rate, std=settings.rate**0.5
    )
    return meta_learner(method, likelihoods.categorical(model.apply, temperature=method.temperature), model=model)


# --- the attack -------------------------------------------------------------------------------------------------------


def episodes(drawings: Drawings, labels: Array) -> Episode:
    """Tasks of these drawings; labels are known."""
    return Episode(*(Data(x, labels) for x in drawings))


def given_away(state: State, observed: Float[Array, " W"], like: Drawings) -> Drawings:
    """A first guess: where one image alone was learned from, the gradient of the first layer is that image, times a number.

    The part of the means is a sum over what the second stage saw. Divided by it, that of the widths is twice the step on the
    support.
    """
    parts = trees.like(state.prior, observed).dist
    means = parts.mean.layers[0]
    everywhere = jnp.ones_like(means.weight, bool)
    query = _image(means.weight, means.bias, everywhere)
    if not isinstance(parts, MeanField):
        return jnp.broadcast_to(jnp.clip(query, 0, 1), like.shape)
    widths = parts.log_std.layers[0]
    large = lambda leaf: jnp.abs(leaf) > 1e-3 * jnp.abs(leaf).max()  # what is divided by less is rounding
    over = lambda a, b: jnp.where(large(b), a / jnp.where(b == 0, 1.0, b), 0.0)
    support = _image(over(widths.weight, means.weight), over(widths.bias, means.bias), large(means.weight))
    both = jnp.stack([support, query])
    return jnp.broadcast_to(jnp.clip(both, 0, 1)[:, None, None], like.shape)


def _image(weight: Array, bias: Array, known: Array) -> Array:
    """The one whose products with the units' slopes, which are in the bias, come nearest to the known entries of the weights."""
    return (known * weight) @ bias / jnp.maximum(known @ jnp.square(bias), 1e-12)


def attack(
    settings: Settings,
    statistics: Callable[[Drawings], Array],
    state: State,
    observed: Float[Array, " W"],
    start: Drawings,
    *,
    noisy: bool,
) -> tuple[Drawings, Float[Array, ""]]:
    """Drawings near `start` that would have left what was observed, and how badly they fit; see `inversion.attack`."""
    arrays = trees.like(state.prior, observed)
    lengths = trees.vector(jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.linalg.norm(leaf.ravel())), arrays))
    weights = 1 / jnp.maximum(lengths, 1e-12) / len(jax.tree.leaves(arrays)) ** 0.5
    if noisy:
        weights = jnp.full_like(observed, 1 / jnp.linalg.norm(observed))

    def misfit(guess):
        return (statistics(guess) - observed) * weights

    def step(carry, _):
        guess, damping, value = carry
        residual, forward = jax.linearize(misfit, guess)
        back = jax.linear_transpose(forward, guess)
        damped = lambda change: back(forward(change))[0] + damping * change
        change, _ = jax.scipy.sparse.linalg.cg(damped, back(residual)[0], maxiter=settings.inner)
        new = jnp.clip(guess - change, 0, 1)
        other = jnp.square(misfit(new)).sum()
        better = other < value  # never, where it is not a number
        damping = jnp.clip(jnp.where(better, damping / 3, damping * 4), 1e-10, 1e4)
        return (jnp.where(better, new, guess), damping, jnp.where(better, other, value)), None

    begin = (start, jnp.full((), 1e-2), jnp.square(misfit(start)).sum())
    (guess, _, value), _ = jax.lax.scan(step, begin, None, length=settings.iterations)
    return guess, jnp.where(jnp.isfinite(value), value, jnp.inf)


def error(guess: np.ndarray, truth: np.ndarray, scale: float) -> float:
    """Root mean square over pixels, in standard deviations of all pixels; tasks, and images of a label, may be in any order."""
    costs = [
        [np.square(guess[:, i] - truth[:, j]).mean() for j in range(truth.shape[1])] for i in range(truth.shape[1])
    ]
    return float(np.sqrt(matched(np.array(costs)))) / scale


# --- the study --------------------------------------------------------------------------------------------------------


def cells(settings: Settings) -> list[study.Cell]:
    """Every method with every message, and what is known without any."""
    return [("guess",), *((name, message) for message in settings.messages for name in settings.methods)]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Attacks on all clients of all seeds."""
    pool = drawings_of(settings)
    if len(cell) == 1:
        return _guesses(settings, pool)
    name, kind = cell
    what, errors, kept = MESSAGES[kind], [], []
    learner = learner_of(settings, name, what.steps)
    guess = jax.jit(lambda *given: _best(settings, learner, what, *given))
    for seed in settings.seeds:
        for client in range(settings.clients):
            number = 1000 * seed + client
            truth, state = drawn(pool, what, number), _prior(settings, learner, number)
            found = jnp.asarray(observed(learner, what, state, truth, number))
            best = np.asarray(guess(state, found, jax.random.key(number)))
            errors.append(error(best, truth, pool.std()))
            kept += [np.round(np.stack([truth[:, 0, 0], best[:, 0, 0]]), 2)] if client == 0 else []
    return _rows(told.setting(what), name, np.array(errors), {"drawings": kept[:SHOWN]}, f"{name} {kind}")


def _best(settings: Settings, learner: MetaLearner, what: Message, state: State, found: Array, key: Array) -> Drawings:
    plain, labels = message(learner, state), jnp.broadcast_to(jnp.arange(what.images), (what.tasks, what.images))

    def statistics(guess):
        vector = plain(episodes(guess, labels))
        if what.noise is None:
            return vector
        mean = vector / what.tasks
        return mean * jnp.minimum(1.0, CLIP / jnp.maximum(jnp.linalg.norm(mean), 1e-12))

    shape = (2, what.tasks, what.images, SIDE * SIDE)
    random = 0.2 * jax.random.uniform(key, (settings.starts, *shape))
    starts = random.at[0].set(jnp.clip(given_away(state, found, random[0]) + random[0] - 0.1, 0, 1))
    one = lambda start: attack(settings, statistics, state, found, start, noisy=what.noise is not None)
    guesses, misfits = jax.lax.map(one, starts)
    return guesses[misfits.argmin()]


def observed(learner: MetaLearner, what: Message, state: State, truth: np.ndarray, number: int) -> np.ndarray:
    """What the client sends."""
    labels = jnp.broadcast_to(jnp.arange(what.images), (what.tasks, what.images))
    found = sent(learner, state, episodes(jnp.asarray(truth), labels))
    if what.noise is None:
        return np.asarray(found.gradient)
    normal = np.random.default_rng(number).standard_normal(found.gradient.size)
    return np.asarray(private(found, Privacy(CLIP, what.noise), normal).gradient)


def _prior(settings: Settings, learner: MetaLearner, number: int) -> State:
    key_prior, key_model = jax.random.split(jax.random.key(number))
    return learner.init(key_prior, model_of(settings).init(key_model))


def drawings_of(settings: Settings) -> np.ndarray:
    """All training drawings [classes, drawings, pixels], 14×14, from 0 to 1."""
    if settings == SMOKE:  # which must run where there is no Omniglot
        return np.random.default_rng(0).uniform(size=(20, 2, SIDE * SIDE)).astype(np.float32)
    pixels, members = get_tasks("omniglot").pool("train")
    small = np.asarray(pixels, np.float32).reshape(-1, SIDE, 2, SIDE, 2).mean(axis=(2, 4)) / 255
    return small.reshape(len(small), -1)[members[:, :2]]


def drawn(pool: np.ndarray, what: Message, number: int) -> np.ndarray:
    """A client's drawings: classes of its own, one drawing of each for the support and another for the query."""
    classes = np.random.default_rng(number).choice(len(pool), (what.tasks, what.images), replace=False)
    return np.moveaxis(pool[classes], 2, 0)


def _guesses(settings: Settings, pool: np.ndarray) -> study.Results:
    """What somebody is off by who has seen no message: the mean of all drawings, or others drawn anew."""
    numbers = [1000 * seed + client for seed in settings.seeds for client in range(settings.clients)]
    truths = [drawn(pool, MESSAGES["1 + 1 drawings"], number) for number in numbers]
    middle = [error(np.broadcast_to(pool.mean(axis=(0, 1)), truth.shape), truth, pool.std()) for truth in truths]
    others = [drawn(pool, Message(), 7777 + number) for number in numbers]
    fresh = [error(other, truth, pool.std()) for other, truth in zip(others, truths, strict=True)]
    found = ((told.MEAN, middle), (told.FRESH, fresh))
    pieces = [_rows(told.NOTHING, name, np.array(values), {}, name) for name, values in found]
    return {"rows": [row for piece in pieces for row in piece["rows"]],
            "curves": {name: curve for piece in pieces for name, curve in piece["curves"].items()}}  # fmt: skip


def _rows(setting: str, method: str, errors: np.ndarray, more: dict[str, Any], name: str) -> study.Results:
    mean, ci95 = study.mean_and_ci(errors)  # clients of equal standing: each has drawings and a prior of its own
    rows = [study.row(setting=setting, method=method, metric="error", mean=mean, ci95=ci95)]
    if more:
        recovered = float((errors < RECOVERED).mean())
        rows.append(study.row(setting=setting, method=method, metric="recovered", mean=recovered))
    return {"rows": rows, "curves": {name: {"error": np.round(errors, 5), **more}}}


STUDY, run = study.declare(
    __name__,
    title="Reading drawings out of what clients send",
    paper="The meta-update of Gradient-EM needs no data, which suits tasks that are to stay private. No attack is tried.",
    full=Settings(),
    smoke=SMOKE,
    report=told,
)
