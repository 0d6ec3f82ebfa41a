"""What protection costs: the test error of a prior learned from clipped and noisy replies, by noise and number of clients.

Sinusoids, a new task for every client and round. A reply is the client's meta-gradient, scaled down to length C, plus noise of
standard deviation z·C in every entry; the server takes the mean of N of them, whose noise is z·C/√N. The rate of the server's
optimiser is chosen on validation tasks, for each noise anew, with the first seed. Clients are simulated: the sum of their noises
is drawn as one.

metaprior reproduce protection --scale full
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from experiments import study
from metaprior import methods
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED
from metaprior.federated import accountant
from metaprior.federated.privacy import Privacy
from metaprior.federated.steps import Held, client_step
from metaprior.figures import BLUE, ORANGE
from metaprior.likelihoods import SQUARED_ERROR, gaussian
from metaprior.meta import MetaLearner, State, Statistics, meta_learner, numbered_keys, task_keys
from metaprior.models import mlp
from metaprior.optimizers import meta_optimizer
from metaprior.scalars import Scalar
from metaprior.tasks import get as get_tasks

STEPS = 10  # of adaptation, after which tasks are judged
MSE, SERVER, OTHERS = f"MSE after {STEPS}", "ε towards the server", "ε towards others"
COLOURS = (ORANGE, BLUE, "#009E73", "#CC79A7")


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the first weights, of every draw and of noise."""
    method: str = "gem-bml+"
    """Whose statistics are sent."""
    hidden: tuple[int, ...] = (40, 40)
    """Of the network."""
    clients: tuple[int, ...] = (10, 100, 300)
    """N, all of which are asked in every round."""
    noises: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0)
    """z; zero is no protection: replies are not clipped either."""
    clip: float = 3.0
    """C: about the length of a task's meta-gradient before training, of tasks that are no client's."""
    rounds: int = 200
    """Of each run."""
    rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Of the server's optimiser, to choose from."""
    delta: float = 1e-5
    """Beside ε."""
    test_tasks: int = 300
    """That a prior is judged by, and as many to choose by."""


SMOKE = Settings(seeds=(0,), hidden=(6,), clients=(3,), noises=(0.0,), rounds=2, rates=(0.01,), test_tasks=3)
TASKS = get_tasks("sinusoid")


def learner_of(settings: Settings, rate: Scalar) -> MetaLearner:
    """The row of the table, with a step size that may be an argument of a compiled program."""
    model, method = mlp((1, *settings.hidden, 1), init="glorot"), methods.get(settings.method)
    likelihood = gaussian(model.apply, noise_std=SQUARED_ERROR, temperature=method.temperature)
    return meta_learner(
        method, likelihood, model=model, optimizer=meta_optimizer(rate, iterations=settings.rounds, warm_up=10)
    )


def summed(
    found: Statistics, normal: Float[Array, " W"], *, clip: Float[Array, ""] | float, noise: Scalar
) -> Statistics:
    """What protected replies add up to, from the statistics of all clients, stacked: see `federated.privacy.private`."""
    mean = found.gradient / jnp.maximum(found.kept, 1)[:, None]
    length = jnp.sqrt(jnp.square(mean).sum(axis=1, keepdims=True))
    clients = found.kept.shape[0]
    # A sum of independent noises has the root of their number for its standard deviation.
    spread = jnp.where(noise > 0, noise * clip * math.sqrt(clients), 0.0)
    total = jnp.where(length > clip, mean * (clip / length), mean).sum(axis=0) + spread * normal
    number, none = jnp.asarray(clients, total.dtype), jnp.zeros((), total.dtype)
    return Statistics(total, (), none, none, number, none)


def trainer(settings: Settings, clients: int) -> Callable[..., State]:
    """(seed, noise, clip, rate) -> the state after all rounds; compiled once for a number of clients."""

    @jax.jit
    def train(seed, noise, clip, rate):
        learner, numbers = learner_of(settings, rate), jnp.arange(clients)

        def one_round(state, _):
            key_draw, key_infer, key_noise = jax.random.split(jax.random.fold_in(state.key, state.iteration), 3)
            episodes = jax.vmap(TASKS.sample)(numbered_keys(key_draw, numbers))
            held = jax.tree.map(lambda leaf: leaf[:, None], Held(numbers, episodes))  # one task for each
            found = jax.vmap(lambda tasks: client_step(learner, state.prior, tasks, key_infer))(held)
            normal = jax.random.normal(key_noise, found.gradient.shape[1:])
            assert learner.update is not None
            return learner.update(state, summed(found, normal, clip=clip, noise=noise))[0], None

        return jax.lax.scan(one_round, begun(settings, learner, seed), None, length=settings.rounds)[0]

    return train


def begun(settings: Settings, learner: MetaLearner, seed: Any) -> State:
    """Before the first round."""
    key_model, key_learner = jax.random.split(jax.random.key(seed))
    return learner.init(key_learner, mlp((1, *settings.hidden, 1), init="glorot").init(key_model))


def judge(settings: Settings, seed: int) -> Callable[[State], Float[Array, " T"]]:
    """Squared errors of the network at the mean of the posterior, task by task."""
    learner, apply = learner_of(settings, 0.01), mlp((1, *settings.hidden, 1), init="glorot").apply

    @jax.jit
    def errors(state):
        def one(key):
            episode = TASKS.evaluation(key)
            last = jax.tree.map(lambda leaf: leaf[-1], learner.adapt(key, state, episode.support, STEPS))
            return jnp.square(apply(learner.cell.family.mean(last), episode.query.x) - episode.query.y).mean()

        return jax.vmap(one)(task_keys(jax.random.key(seed), settings.test_tasks))

    return errors


def cells(settings: Settings) -> list[study.Cell]:
    """By the number of clients."""
    return [("clients", str(count)) for count in settings.clients]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """All noises with so many clients."""
    clients = int(cell[1])
    train, choose, test = (
        trainer(settings, clients),
        judge(settings, VALIDATION_SEED),
        judge(settings, TEST_SEED),
    )
    rows, curves = [], {}
    for noise in settings.noises:
        clip = settings.clip if noise else math.inf
        first, *others = settings.seeds
        states = {rate: train(first, noise, clip, rate) for rate in settings.rates}
        valid = {rate: study.average(choose(states[rate])) for rate in settings.rates}
        best = min(valid, key=lambda rate: (math.isnan(valid[rate]), valid[rate]))
        learned = [states[best], *(train(seed, noise, clip, best) for seed in others)]
        errors = np.array([test(state) for state in learned], float)
        values = {
            MSE: study.mean_and_ci(errors),
            **{name: (value, None) for name, value in told(settings, noise, clients).items()},
        }
        named: dict[str, Any] = {
            "setting": f"{clients:,} clients",
            "method": f"noise {noise:g}" if noise else "no protection",
        }
        rows += [study.row(**named, metric=name, mean=mean, ci95=half) for name, (mean, half) in values.items()]
        curves[f"{clients} {noise:g}"] = {"rate": best, "validation": valid, "error": np.round(errors.mean(axis=1), 5)}
    return {"rows": rows, "curves": curves}


def told(settings: Settings, noise: float, clients: int) -> dict[str, float]:
    """ε of all rounds, where there is any."""
    if not noise:
        return {}
    names = tuple(str(i) for i in range(clients))
    spent = accountant.spent(
        Privacy(settings.clip, noise, settings.delta), [accountant.Asked(names, clients)] * settings.rounds, clients
    )
    return {SERVER: spent.server, OTHERS: spent.others}


# --- what is told -----------------------------------------------------------------------------------------------------


def _values(results: study.Results) -> dict[tuple[str, str], dict[str, tuple[float | None, float | None]]]:
    found: dict[tuple[str, str], dict[str, tuple[float | None, float | None]]] = {}
    for row in results["rows"]:
        found.setdefault((row["setting"], row["method"]), {})[row["metric"]] = row["mean"], row["ci95"]
    return found


def figure(results: study.Results) -> Figure:
    """Error by ε, towards others and towards the server, a line for each number of clients."""
    canvas = Figure(figsize=(11, 4.2), layout="constrained")
    for place, name in zip(canvas.subplots(1, 2, sharey=True), (OTHERS, SERVER), strict=True):
        for colour, setting in zip(COLOURS, dict.fromkeys(row["setting"] for row in results["rows"]), strict=False):
            here = [metrics for (where, _), metrics in _values(results).items() if where == setting]
            points = [(metrics[name][0], *metrics[MSE]) for metrics in here if name in metrics]
            if points:
                x, mean, half = np.array(sorted(points), float).T
                place.errorbar(x, mean, half, fmt="o-", color=colour, capsize=4, label=setting)
            free = [metrics[MSE][0] for metrics in here if name not in metrics]
            place.axhline(np.array(free[:1], float).sum(), color=colour, linestyle=":", linewidth=1)
        place.set(xscale="log", xlabel=f"{name} (less is better protected)")
        place.grid(color="0.92", linewidth=0.8)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
    canvas.axes[0].set_ylabel(f"test {MSE} steps")
    if canvas.axes[0].get_legend_handles_labels()[0]:
        canvas.axes[0].legend(frameon=False, title="dotted: no protection")
    return canvas


def remarks(results: study.Results) -> list[str]:
    """The best protection at which the error is not twice that without."""
    said = []
    for setting in dict.fromkeys(row["setting"] for row in results["rows"]):
        here = {method: metrics for (where, method), metrics in _values(results).items() if where == setting}
        free = here["no protection"][MSE][0]
        good = [(metrics[OTHERS][0], method) for method, metrics in here.items()
                if OTHERS in metrics and (metrics[MSE][0] or math.inf) < 2 * (free or 0.0)]  # fmt: skip
        words = f"with {min(good)[1]}, ε = {min(good)[0]:.3g} towards others" if good else "with none of these noises"
        said.append(f"{setting}: {free:.3f} without protection; below twice that {words}.")
    return [*said, "ε towards the server does not shrink with the number of clients: it sees each reply by itself."]


STUDY, run = study.declare(
    __name__,
    title="What protected replies cost: test error by noise and number of clients",
    paper="Tasks that are to stay private are named as a use. Noise is not tried.",
    full=Settings(),
    smoke=SMOKE,
)
