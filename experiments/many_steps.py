"""Tasks of a thousand points and five hundred mini-batched inner steps: what they cost, and whether training with them pays.

The paper's case for Gradient-EM is that its memory does not grow with inner steps (Section 3.2). Here is what a meta-step needs,
in bytes and seconds, for methods with and without back-propagation through adaptation; and what five hundred steps at test
make of priors that were trained with as many steps, or with five, for as long a time or for as many meta-iterations.

metaprior reproduce many-steps --scale full
"""

import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments import many_steps_report, regression, search, study
from experiments.regression import VARIANTS, Variant
from metaprior import methods
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED
from metaprior.meta import State, task_keys, trainer
from metaprior.settings import Setup
from metaprior.training import initial_state

TASKS = "sinusoid-challenging"
UNTRAINED = "untrained"
LONG, SAME_TIME, SAME_ITERATIONS = ARMS = ("many steps", "few steps, same time", "few steps, same iterations")
AT = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # test steps looked at


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    shots: int = 1000
    """Support points of a task, and as many query points."""
    batch_size: int = 20
    """Points of an inner step."""
    steps: int = 500
    """Inner steps at test, and of training with many."""
    few: int = 5
    """Inner steps of training with few."""
    costed: tuple[str, ...] = ("gem-bml+", "maml", "fomaml", "reptile", "amortized-bml")
    """Whose meta-steps are measured in bytes and seconds."""
    whole: tuple[str, ...] = ("gem-bml+", "maml")
    """Whose bytes are also given without mini-batches."""
    counts: tuple[int, ...] = (1, 10, 50, 100, 500)
    """Inner steps at which costs are measured."""
    repeats: int = 20
    """Of which the fastest counts; zero measures bytes alone."""
    trained: tuple[str, ...] = ("gem-bml+", "maml", "reptile")
    arms: tuple[str, ...] = ARMS
    iterations: tuple[tuple[int, int], ...] = ((350, 6000), (200, 7700), (380, 7600))
    """Of each trained method: with many steps, and with few in about the same time on one core."""
    rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    meta_rates: tuple[float, ...] = (4e-3, 1.2e-2)
    """Every pair is tried on validation tasks, each in a training of a quarter of the length."""
    validation: int = 50
    test_tasks: int = 100
    baseline: bool = True
    """Whether weights that were never trained are looked at too."""


SMOKE = Settings(
    seeds=(0,), shots=30, batch_size=5, steps=6, few=2, costed=("gem-bml+",), whole=("maml",), counts=(10, 100), repeats=0,
    trained=("reptile",), arms=(LONG,), iterations=((5, 10),), rates=(0.01,), meta_rates=(4e-3,), validation=3, test_tasks=4,
    baseline=False,
)  # fmt: skip
SEARCH_SEED, SEARCH_SHARE = 100, 4


def cells(settings: Settings) -> list[study.Cell]:
    """Costs by method; trainings by method and arm; and weights that were never trained."""
    costs = [("cost", name) for name in settings.costed] + [("whole", name) for name in settings.whole]
    trainings = [("train", name, arm) for name, arm in product(settings.trained, settings.arms)]
    return [*costs, *trainings, *([(UNTRAINED,)] if settings.baseline else [])]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """One cell."""
    kinds = {"cost": _cost, "whole": _whole, "train": _train, UNTRAINED: _untrained}
    return kinds[cell[0]](settings, *cell[1:])


def variant_of(settings: Settings, name: str, steps: int, batch_size: int | None) -> Variant:
    """A method with so many steps in each of its stages."""
    row = methods.get(VARIANTS[name].method)
    options = {**row.options, "batch_size": batch_size}
    second = 0 if row.second_stage == "none" else steps
    return search.changed(VARIANTS[name], {"steps": (steps, second), "options": options})


def set_up(settings: Settings, variant: Variant, iterations: int = 0) -> Setup:
    """On tasks of many points."""
    points = {"shots": settings.shots, "queries": settings.shots}
    return regression.set_up(variant, tasks=TASKS, iterations=iterations, **points)


# --- what a meta-step costs -------------------------------------------------------------------------------------------


def _cost(settings: Settings, name: str) -> study.Results:
    found = [
        cost(set_up(settings, variant_of(settings, name, n, settings.batch_size)), settings.repeats)
        for n in settings.counts
    ]
    return _costs(settings, name, "mini-batches", found)


def _whole(settings: Settings, name: str) -> study.Results:
    found = [cost(set_up(settings, variant_of(settings, name, n, None)), 0) for n in settings.counts]
    return _costs(settings, name, "all points", found)


def cost(setup: Setup, repeats: int) -> tuple[int, float | None]:
    """Temporary bytes of one compiled meta-step, beside its arguments and results; and the seconds of the fastest run, if any."""
    arguments = jax.eval_shape(lambda: _arguments(setup))
    # Bytes are settled before machine code is optimised, which takes half of the time.
    options: dict[str, str | bool] = {} if repeats else {"xla_backend_optimization_level": "0"}
    compiled = jax.jit(setup.learner.step).lower(*arguments).compile(compiler_options=options)
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise ValueError(f"{jax.default_backend()} does not say how much memory a program needs: set JAX_PLATFORMS=cpu")
    return analysis.temp_size_in_bytes, _fastest(compiled, _arguments(setup), repeats) if repeats else None


def _arguments(setup: Setup):
    keys = task_keys(jax.random.key(0), setup.learner.method.meta_batch)
    return initial_state(setup), keys, jax.vmap(setup.tasks.sample)(keys)


def _fastest(compiled, arguments, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _costs(settings: Settings, name: str, points: str, found: list[tuple[int, float | None]]) -> study.Results:
    rows = []
    for count, (size, seconds) in zip(settings.counts, found, strict=True):
        setting = f"{count} steps, {points}"
        rows.append(study.row(setting=setting, method=name, metric="bytes of a meta-step", mean=size))
        if seconds is not None:
            rows.append(study.row(setting=setting, method=name, metric="seconds of a meta-step", mean=seconds))
    sizes, times = zip(*found, strict=True)
    setup = set_up(settings, variant_of(settings, name, 1, None))
    prior = jax.eval_shape(lambda: initial_state(setup).prior.dist.mean)
    weights = setup.learner.method.meta_batch * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(prior))
    curve = {"steps": settings.counts, "bytes": sizes, "seconds": times, "bytes of the weights of all tasks": weights}
    return {"rows": rows, "curves": {f"cost/{name}, {points}": curve}}


# --- what comes out ---------------------------------------------------------------------------------------------------


def _train(settings: Settings, name: str, arm: str) -> study.Results:
    """Choose the rates, train every seed, and adapt to test tasks by many steps."""
    many, few = settings.iterations[settings.trained.index(name)]
    iterations = few if arm == SAME_TIME else many
    variant = variant_of(settings, name, settings.steps if arm == LONG else settings.few, settings.batch_size)
    return _judged(settings, name, arm, variant, iterations)


def _words(settings: Settings, arm: str) -> str:
    """What the table calls an arm."""
    words = {
        LONG: f"trained with {settings.steps} steps",
        SAME_TIME: f"trained with {settings.few} steps, same time",
        SAME_ITERATIONS: f"trained with {settings.few} steps, same iterations",
    }
    return words.get(arm, "no training")


def _untrained(settings: Settings) -> study.Results:
    """Plain gradient descent from where networks begin."""
    return _judged(settings, UNTRAINED, "", variant_of(settings, "maml", 1, settings.batch_size), 0)


def _judged(settings: Settings, name: str, arm: str, variant: Variant, iterations: int) -> study.Results:
    tried = _tried(settings, variant, iterations)
    chosen = min(tried, key=lambda one: one["mse"]) if len(tried) > 1 else tried[0]
    changes = {key: chosen[key] for key in ("rate", "meta_rate")}
    setup = set_up(settings, search.changed(variant, changes), iterations)
    run = jax.jit(jax.vmap(lambda seed: _learn(setup, seed, iterations)))
    seeds = jnp.asarray(settings.seeds)
    compiled = run.lower(seeds).compile()
    start = time.perf_counter()
    states = jax.block_until_ready(compiled(seeds))
    seconds = (time.perf_counter() - start) / len(settings.seeds)
    test = lambda state: errors(setup, state, settings, settings.test_tasks, TEST_SEED)
    found = np.asarray(jax.jit(lambda states: jax.lax.map(test, states))(states))
    return _scored(settings, name, arm, found, tried, {"iterations": iterations, "seconds": seconds, "chosen": changes})


def _learn(setup: Setup, seed, iterations: int) -> State:
    learn = trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch)
    return learn(initial_state(setup, seed), iterations)[0]


def _tried(settings: Settings, variant: Variant, iterations: int) -> list[dict[str, Any]]:
    """Error on validation tasks after short trainings at every pair of rates; where there is but one, nothing to try."""
    grid = list(product(settings.rates, settings.meta_rates if iterations else settings.meta_rates[:1]))
    if len(grid) == 1:
        return [{"rate": grid[0][0], "meta_rate": grid[0][1], "mse": None}]
    length = -(-iterations // SEARCH_SHARE)

    def one(pair):
        setup = set_up(settings, search.changed(variant, {"rate": pair[0], "meta_rate": pair[1]}), length)
        state = _learn(setup, jnp.asarray(SEARCH_SEED), length)
        return errors(setup, state, settings, settings.validation, VALIDATION_SEED)[:, -1].mean()

    found = np.nan_to_num(np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(grid))), nan=np.inf)
    return [{"rate": r, "meta_rate": m, "mse": float(mse)} for (r, m), mse in zip(grid, found, strict=True)]


def steps_at(settings: Settings) -> list[int]:
    """Test steps looked at."""
    return sorted({settings.steps, *(step for step in AT if step < settings.steps)})


def errors(setup: Setup, state: State, settings: Settings, num_tasks: int, seed: int) -> Float[Array, "tasks steps"]:
    """Squared errors along mini-batched adaptation; tasks as in `metaprior.evaluation`."""
    at = jnp.asarray(steps_at(settings))

    def one_task(key):
        key_task, key_adapt, _ = jax.random.split(key, 3)
        episode = setup.tasks.evaluation(key_task)
        posteriors = setup.learner.adapt(key_adapt, state, episode.support, settings.steps)
        means = jax.tree.map(lambda leaf: leaf[at], setup.learner.cell.family.mean(posteriors))
        outputs = jax.vmap(lambda params: setup.model.apply(params, episode.query.x))(means)
        return jnp.square(outputs - episode.query.y[None]).mean(axis=(1, 2))

    return jax.lax.map(one_task, task_keys(jax.random.key(seed), num_tasks), batch_size=min(num_tasks, 10))


def _scored(settings: Settings, name: str, arm: str, found, tried, more: dict[str, Any]) -> study.Results:
    """Plain gradient descent may diverge on a task: such tasks are counted, and left out of means."""
    at, setting, found = steps_at(settings), _words(settings, arm), np.asarray(found, float)
    diverged = ~np.isfinite(found).all(axis=2)  # [seeds, tasks]
    kept, rows = found[:, ~diverged.any(axis=0)], []
    for step in (step for step in (0, settings.few, 50, settings.steps) if step in at):
        mean, ci95 = study.mean_and_ci(kept[..., at.index(step)])
        rows.append(study.row(setting=setting, method=name, metric=f"MSE after {step}", mean=mean, ci95=ci95))
    counted = {"iterations of training": more["iterations"], "seconds of training": more["seconds"]}
    counted |= {"adaptations that diverged": diverged.sum()} if diverged.any() else {}
    rows += [study.row(setting=setting, method=name, metric=word, mean=value) for word, value in counted.items()]
    curve = {"steps": at, "mse": np.round(kept.mean(axis=1), 5), "task_mse": np.round(found[..., -1], 5)}
    return {
        "rows": rows,
        "curves": {f"train/{name}/{arm}": curve | {"diverged": diverged.sum(), "tried": tried} | more},
    }


STUDY, run = study.declare(
    __name__,
    title="A thousand points and five hundred inner steps",
    paper="Gradient-EM's memory does not grow with inner steps, so it can afford as many as tasks of much data need.",
    full=Settings(),
    smoke=SMOKE,
    report=many_steps_report,
)
