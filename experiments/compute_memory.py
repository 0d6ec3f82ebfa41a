"""The paper's Figure 2b by measurement: memory and time of one meta-step against the number of inner steps.

Memory is what the compiled program needs: arguments, results and temporaries. Time is that of running it, tasks drawn before.
Random bytes stand in for images, which decide neither.

metaprior reproduce compute-memory --scale full
"""

import statistics
import time
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments import images, study
from experiments.figure_2a import STYLES
from experiments.turns import turn
from metaprior import methods
from metaprior.benchmarks.images_problem import random_pool
from metaprior.benchmarks.sinusoid import interval_of_median
from metaprior.meta import task_keys
from metaprior.settings import Settings as RunSettings
from metaprior.settings import Setup, assemble
from metaprior.training import initial_state

FLAT = ("gem-bml", "gem-bml+", "fomaml", "reptile", "imaml")  # in memory, as the paper says
GROWS = ("maml", "amortized-bml", "bmaml")
ALLOWED = 1.03  # from two steps on, of a method that is said to be flat
BYTES, SECONDS = "bytes of a meta-step", "seconds of a meta-step"


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Weights and tasks that time is measured on; memory does not see them."""
    tasks: str = "omniglot"
    ways: int = 5
    shots: int = 1
    queries: int = 5
    """Of each class."""
    meta_batch: int = 32
    filters: int = 64
    methods: tuple[str, ...] = (*FLAT, *GROWS)
    steps: tuple[int, ...] = (2, 10, 25, 50)
    """Inner steps on the support; as many again in the second stage, where a method has two."""
    repeats: int = 9
    """On every seed, of which the median counts; zero measures bytes alone."""


SMOKE = Settings(
    seeds=(0,), queries=1, meta_batch=1, filters=2, methods=("fomaml", "reptile"), steps=(1, 2), repeats=2
)  # fmt: skip


def cells(settings: Settings) -> list[study.Cell]:
    """A method with a number of steps."""
    return [(name, str(steps)) for name, steps in product(settings.methods, settings.steps)]


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The recipe of the method, and all other settings; but not how far a step goes, which costs nothing."""
    found = images.identity(set_up(settings, cell[0], int(cell[1])))
    return {**found, "method": {**found["method"], "rate": None, "meta_rate": None}}


def decides(settings: Settings) -> Settings:
    """Which methods and steps are measured decides nothing for one of them."""
    return replace(settings, methods=(), steps=())


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """One compiled meta-step."""
    name, steps = cell[0], int(cell[1])
    memory, seconds = cost(settings, name, steps)
    numbers: dict[str, tuple[float, float | None]] = {BYTES: (memory["total"], None)}
    if seconds:
        numbers[SECONDS] = statistics.median(seconds), interval_of_median(seconds)
    rows = [
        study.row(setting=f"{steps} steps", method=name, metric=metric, mean=mean, ci95=ci95)
        for metric, (mean, ci95) in numbers.items()
    ]
    return {"rows": rows, "curves": {"/".join(cell): {"memory": memory, "seconds": seconds}}}


def cost(settings: Settings, name: str, steps: int) -> tuple[dict[str, int], list[float]]:
    """Bytes of a compiled meta-step by kind, and its seconds in every repeat."""
    setup = set_up(settings, name, steps)
    arguments = lambda seed: _arguments(setup, seed)
    compiled = jax.jit(setup.learner.step).lower(*jax.eval_shape(lambda: arguments(0))).compile()
    found = compiled.memory_analysis()
    if found is None:
        raise ValueError(f"{jax.default_backend()} does not say how much memory a program needs: set JAX_PLATFORMS=cpu")
    memory = {
        "arguments": found.argument_size_in_bytes,
        "results": found.output_size_in_bytes,
        "temporaries": found.temp_size_in_bytes,
    }
    given = [arguments(seed) for seed in settings.seeds] if settings.repeats else []
    with turn(alone=True):
        seconds = [second for one in given for second in _seconds(compiled, one, settings.repeats)]
    return {"total": sum(memory.values()), **memory}, seconds


def set_up(settings: Settings, name: str, steps: int) -> Setup:
    """A method with so many steps in each of its stages, all else as its row and recipe have it."""
    second = steps if methods.get(name).second_stage != "none" else 0
    chosen: dict[str, Any] = {
        field: getattr(settings, field) for field in ("tasks", "ways", "shots", "queries", "meta_batch", "filters")
    }
    return assemble(RunSettings(method=name, steps=steps, query_steps=second, **chosen))


def _arguments(setup: Setup, seed: int):
    # Not iteration 0: that is one of those which are reported on, and pay for it.
    state = initial_state(setup, seed)._replace(iteration=jnp.ones((), jnp.int32))
    keys = task_keys(jax.random.key(seed), setup.learner.method.meta_batch)
    images = random_pool(
        setup.settings.tasks, classes=setup.tasks.outputs, count=setup.tasks.shots + setup.tasks.queries
    )
    return state, keys, jax.vmap(lambda key: setup.tasks.sample(key, *images))(keys)


def _seconds(compiled, arguments, repeats: int) -> list[float]:
    jax.block_until_ready(compiled(*arguments))  # the first call is slower
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        found.append(time.perf_counter() - began)
    return found


# --- what is shown ----------------------------------------------------------------------------------------------------


def curve(results: study.Results, name: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Steps that were measured, bytes, and seconds (NaN where time was not measured) of a method."""
    steps = [count for count in results["settings"]["steps"] if f"{name}/{count}" in results["curves"]]
    found = [results["curves"][f"{name}/{count}"] for count in steps]
    seconds = [statistics.median(one["seconds"]) if one["seconds"] else np.nan for one in found]
    return steps, np.array([one["memory"]["total"] for one in found], float), np.array(seconds, float)


def compared(results: study.Results) -> list[str]:
    """Methods with at least two numbers of steps: one alone says nothing of growth."""
    return [name for name in results["settings"]["methods"] if len(curve(results, name)[0]) > 1]


def growth(results: study.Results, name: str) -> tuple[int, int, float]:
    """From two steps (or the fewest) to the most: how many times the memory."""
    steps, memory, _ = curve(results, name)
    first = next((place for place, count in enumerate(steps) if count >= 2), 0)
    first = first if first < len(steps) - 1 else 0
    return steps[first], steps[-1], memory[-1] / memory[first]


def per_step(results: study.Results, name: str) -> tuple[float, float]:
    """Bytes of a further step, by least squares, and the largest distance from that line as a share of the largest value."""
    steps, memory, _ = curve(results, name)
    slope, start = np.polyfit(steps, memory, 1)
    return float(slope), float(np.abs(start + slope * np.array(steps) - memory).max() / memory.max())


def shown(results: study.Results) -> list[dict[str, Any]]:
    """The fewest and the most steps."""
    ends = [f"{results['settings']['steps'][place]} steps" for place in (0, -1)]
    return [row for row in results["rows"] if row["setting"] in ends]


def figure(results: study.Results) -> Figure:
    """Memory on the left, time on the right."""
    drawn = Figure(figsize=(11.5, 5.2), layout="constrained")
    memory, seconds = drawn.subplots(1, 2)
    for name in results["settings"]["methods"]:
        color, line = STYLES[name]
        steps, sizes, times = curve(results, name)
        if not steps:
            continue
        style: dict[str, Any] = {"color": color, "linestyle": line, "marker": "o", "markersize": 4, "label": name}
        memory.plot(steps, sizes / 1e6, **style)
        if np.isfinite(times).all():
            seconds.plot(steps, 1e3 * times, **style)
    memory.set(title="memory of a meta-step", ylabel="megabytes")
    seconds.set(title="time of a meta-step", ylabel="milliseconds on this machine")
    for axes in (memory, seconds):
        axes.set(xscale="log", yscale="log", xlabel="inner steps of a stage")
        axes.set_xticks(results["settings"]["steps"], [str(count) for count in results["settings"]["steps"]])
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    drawn.legend(*memory.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    drawn.suptitle(_headline(results))
    return drawn


def _headline(results: study.Results) -> str:
    verdicts = {name: growth(results, name) for name in compared(results)}
    if not verdicts:
        return "Memory and time of a meta-step"
    # Where cells are missing, ends differ: the widest are told, and those methods alone that have them.
    first, last, _ = max(verdicts.values(), key=lambda found: found[1] / found[0])
    verdicts = {name: found for name, found in verdicts.items() if found[:2] == (first, last)}
    flat = [name for name, (_, _, times) in verdicts.items() if times <= ALLOWED]
    grown = [f"{name} ×{times:.2g}" for name, (_, _, times) in verdicts.items() if times > ALLOWED]
    said = f"Memory from {first} to {last} inner steps: the same for {', '.join(flat) or 'none'}"
    return said + (f";\ngrows for {', '.join(grown)}" if grown else "")


def remarks(results: study.Results) -> list[str]:
    """What holds of the paper's claim, method by method."""
    said = []
    for name in compared(results):
        first, last, times = growth(results, name)
        share = f"{100 * (times - 1):+.1f} % from {first} to {last} steps"
        if name in FLAT:
            holds = (
                "as the paper says" if times <= ALLOWED else "which is more than the 3 % that rounding could explain"
            )
            said.append(f"{name}: memory changes by {share}, {holds}.")
        else:
            slope, apart = per_step(results, name)
            said.append(
                f"{name}: memory changes by {share}, {slope / 1e6:.3g} MB a step; no point is further from that line than "
                f"{100 * apart:.2g} % of the largest."
            )
    return said + _on_time(results) + [_on_images(results)]


def _on_time(results: study.Results) -> list[str]:
    asked, parts = results["settings"]["steps"], []
    for name in results["settings"]["methods"]:
        steps, _, times = curve(results, name)
        if {asked[0], asked[-1]} <= set(steps) and np.isfinite(times).all():
            parts.append(f"{name} {1e3 * times[0]:.3g} to {1e3 * times[-1]:.3g}")
    if not parts:
        return []
    ends = f"{asked[0]} and {asked[-1]}"
    return [f"Milliseconds of a meta-step with {ends} steps in each stage: {', '.join(parts)}."]


def _on_images(results: study.Results) -> str:
    told = results["settings"]
    return (
        f"{told['meta_batch']} tasks of {told['tasks']}, {told['ways']}-way {told['shots']}-shot, {told['queries']} queries a "
        f"class, conv4 with {told['filters']} filters; random bytes in the place of images."
    )


STUDY, run = study.declare(
    __name__,
    title="Memory and time against inner steps (Figure 2b)",
    paper="MAML and Amortized BML need memory for every inner step; GEM-BML, GEM-BML+, FOMAML, Reptile and iMAML do not.",
    full=Settings(),
    smoke=SMOKE,
)
