"""Training and judging a method on regression tasks, all seeds in one program: what the studies of curves share."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments import study
from metaprior import methods
from metaprior.evaluation import TEST_SEED, TaskScores, calibrate_steps, pool, scores
from metaprior.likelihoods import SQUARED_ERROR
from metaprior.meta import State, trainer
from metaprior.settings import Settings, Setup, assemble
from metaprior.training import initial_state

CURVE_POINTS = 100  # of a curve of training
AT = (0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)  # numbers of test steps that are looked at


class Variant(NamedTuple):
    """A method as an experiment runs it: a row of the table, and what is changed in it."""

    method: str
    changes: Mapping[str, Any] = {}
    decay: bool = True


# What the figure shows, by the name it shows it under.
VARIANTS: dict[str, Variant] = {
    "gem-bml+": Variant("gem-bml+"),
    "gem-bml": Variant("gem-bml"),
    "gem-bml+last-layer": Variant("gem-bml+last-layer"),
    "maml": Variant("maml", {"clip": 10.0}),
    "maml, rates learned": Variant(
        "maml", {"clip": 10.0, "inference": "preconditioned", "rates": "exact", "options": {}}
    ),
    "fomaml": Variant("fomaml", {"clip": 10.0}),
    "imaml": Variant("imaml", {"clip": 10.0}),
    "reptile": Variant("reptile", {"clip": 10.0}),
    "bmaml": Variant("bmaml", {"clip": 10.0}),
    "amortized-bml": Variant("amortized-bml", {"clip": 10.0}),
}
FIGURE_2A = ("gem-bml+", "gem-bml", "maml", "reptile", "bmaml", "amortized-bml")  # those of the paper

# The paper's Table of hyper-parameters, literally: one step of .001 on the mean squared error with the KL at weight one, which
# for ten points is T = 10; widths learned by the exact gradient; Adam at .001 without decay. It leaves σ₀ open: .05 here.
_PAPER = {"rate": 1e-3, "meta_rate": 1e-3, "meta_batch": 5}
_PAPER_VI = {"temperature": 10.0, "std": 0.05, "widths": "exact", "rates": "none"}
_PAPER_GEM = {
    "posterior": "mean-field", "inference": "gradient", "second_stage": "sequential", "steps": (1, 1),
    "draw_steps": False, "clip": None, **_PAPER_VI,
}  # fmt: skip


def as_in_the_paper(name: str) -> Variant:
    """The method at the paper's settings."""
    row = methods.get(VARIANTS[name].method)
    if name in ("gem-bml", "gem-bml+"):
        changes = _PAPER_GEM
    elif name == "amortized-bml":
        changes = {"steps": (1, 0), **_PAPER_VI}
    else:
        changes = {"steps": (1, 0 if row.second_stage == "none" else 1)}
    return Variant(VARIANTS[name].method, {**_PAPER, **changes}, decay=False)


class Outcome(NamedTuple):
    """Of one variant on one task set."""

    scores: TaskScores  # arrays [seeds, tasks, len(at)]
    training: Float[np.ndarray, "seeds points"]  # mean squared error on the query at the method's own training steps
    finite: list[bool]


def set_up(variant: Variant, *, tasks: str, iterations: int, **settings: Any) -> Setup:
    """The pieces of a variant on a task set."""
    return assemble(
        Settings(tasks=tasks, method=variant.method, iterations=iterations, decay=variant.decay, **settings),
        method=methods.get(variant.method, **variant.changes),
    )


def train(setup: Setup, seeds: Sequence[int]) -> tuple[State, Float[Array, "seeds iterations"], Any]:
    """One training per seed, side by side: (states, squared error on the query by iteration, whether each stayed finite)."""
    learn = trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch)

    @jax.jit
    @jax.vmap
    def all_seeds(seed):
        state, infos = learn(initial_state(setup, seed), setup.settings.iterations)
        return state, training_error(setup, infos.query_nll), infos.finite.all()

    return all_seeds(jnp.asarray(seeds))


def training_error(setup: Setup, query_nll: Float[Array, "..."]) -> Float[Array, "..."]:
    """From −log p per point back to squared errors: −log p = least + error²/(2·noise²)."""
    noise = setup.learner.method.options.get("noise_std", SQUARED_ERROR)
    least = 0.5 * jnp.log(2 * jnp.pi * noise**2)
    return (query_nll - least) * 2 * noise**2


def judge(
    setup: Setup,
    states: State,
    *,
    at: Sequence[int] = AT,
    num_tasks: int = 600,
    validation: int = 100,
    seed: int = TEST_SEED,
) -> TaskScores:
    """Calibrate each seed's prior on validation tasks and score it on test tasks, the same for everyone."""

    def one_seed(state):
        calibration = calibrate_steps(setup, state, at=at, num_tasks=validation)
        return scores(setup, state, calibration, at=at, num_tasks=num_tasks, seed=seed)

    return jax.tree.map(np.asarray, jax.jit(lambda states: jax.lax.map(one_seed, states))(states))


def train_and_judge(
    variant: Variant,
    *,
    tasks: str,
    iterations: int,
    seeds: Sequence[int],
    at: Sequence[int] = AT,
    num_tasks: int = 600,
    validation: int = 100,
) -> Outcome:
    """A variant from scratch, on every seed."""
    setup = set_up(variant, tasks=tasks, iterations=iterations)
    states, errors, finite = train(setup, seeds)
    points = min(CURVE_POINTS, iterations)
    errors = np.asarray(errors)[:, iterations % points :].reshape(len(seeds), points, -1).mean(axis=2)
    found = judge(setup, states, at=at, num_tasks=num_tasks, validation=validation)
    return Outcome(found, errors, [bool(f) for f in finite])


METRICS = {"mse": "MSE", "nll": "NLL", "crps": "CRPS"}
COVERAGES = {"coverage90_near": "coverage near", "coverage90_far": "coverage far"}


def rows(
    outcome: TaskScores, *, setting: str, method: str, at: Sequence[int] = AT, shown: Sequence[int] = (0, 1, 5, 10, 50)
) -> list[dict[str, Any]]:
    """Means with intervals over tasks and seeds, after each number of steps in `shown`."""
    found = []
    for step in (step for step in shown if step in at):
        place = at.index(step)
        for field, word in METRICS.items():
            mean, ci95 = study.mean_and_ci(getattr(outcome, field)[..., place])
            found.append(study.row(setting=setting, method=method, metric=f"{word} after {step}", mean=mean, ci95=ci95))
        by_seed = jax.tree.map(lambda leaf, place=place: leaf[..., place].mean(axis=1), outcome)
        pooled = pool(by_seed)
        for field, word in COVERAGES.items():
            mean, ci95 = study.mean_and_ci(np.asarray(getattr(pooled, field))[:, None])
            found.append(study.row(setting=setting, method=method, metric=f"{word} after {step}", mean=mean, ci95=ci95))
    return found


def curves(outcome: Outcome, *, at: Sequence[int] = AT, keep: int = 10) -> dict[str, Any]:
    """For figures: medians would hide failures, so means by step and seed; and the scores of single tasks at `keep` steps."""
    # In doubles: rounded single precision is long again in JSON.
    exact = jax.tree.map(lambda leaf: leaf.astype(float), outcome.scores)
    by_seed = jax.tree.map(lambda leaf: np.round(leaf.mean(axis=1), 6), exact)
    place = at.index(keep) if keep in at else len(at) - 1
    single = lambda field: np.round(getattr(exact, field)[..., place].mean(axis=0), 4)
    return {
        "steps": list(at),
        "mse": by_seed.mse,
        "nll": by_seed.nll,
        "crps": by_seed.crps,
        "training_mse": np.round(outcome.training.astype(float), 4),
        "task_mse": single("mse"),
        "task_nll": single("nll"),
        "task_crps": single("crps"),
        "finite": outcome.finite,
    }
