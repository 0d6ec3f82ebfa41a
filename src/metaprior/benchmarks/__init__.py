"""Measurements of the program itself: what a meta-step costs, whatever it learns."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from metaprior import methods
from metaprior.benchmarks.origin import commit, hardware
from metaprior.meta import task_keys
from metaprior.settings import Settings, assemble
from metaprior.training import initial_state


def memory(names: Sequence[str], steps: Sequence[int], *, tasks: str = "sinusoid") -> dict[str, dict[str, int]]:
    """Bytes by method and inner steps (as text, for JSON); see `step_memory`."""
    for name in names:
        methods.get(name)  # a wrong name is refused before the right ones are compiled
    return {name: {str(count): step_memory(name, count, tasks=tasks) for count in steps} for name in names}


def memory_record(found: Mapping[str, Mapping[str, int]], tasks: str, command: str, seconds: float) -> dict[str, Any]:
    """As results are kept: a row for each method and number of steps, and how much memory grows between the ends."""
    same = {"experiment": "bench-memory", "setting": f"{tasks}, one meta-step", "paper": None, "ci95": None, "seeds": 1}
    where = {"command": command, "hardware": hardware(), "seconds": round(seconds, 1), "commit": commit()}
    rows = []
    for name, sizes in found.items():
        values = {f"KiB, {steps} steps": size / 1024 for steps, size in sizes.items()}
        values["growth"] = list(sizes.values())[-1] / max(next(iter(sizes.values())), 1)
        rows += [{**same, "method": name, "metric": metric, "mean": value, **where} for metric, value in values.items()]
    return {"settings": {"tasks": tasks}, "rows": rows, "curves": []}


def step_memory(name: str, steps: int, *, tasks: str = "sinusoid") -> int:
    """Temporary memory in bytes of one compiled meta-step: all that it needs besides its arguments and results.

    Nothing is run. Both stages get so many steps, where the method has two.

    Args:
        name: a row of the table.
        steps: inner steps of each stage.
        tasks: which tasks the meta-batch is drawn from.
    """
    second = steps if methods.get(name).second_stage != "none" else None
    setup = assemble(Settings(tasks=tasks, method=name, steps=steps, query_steps=second))
    keys = task_keys(jax.random.key(0), setup.learner.method.meta_batch)
    state = jax.eval_shape(lambda: initial_state(setup))
    pool = setup.tasks.pool("train")
    episodes = jax.eval_shape(jax.vmap(lambda key: setup.tasks.sample(key, *pool)), keys)
    compiled = jax.jit(setup.learner.step).lower(state, keys, episodes).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise ValueError(f"{jax.default_backend()} does not say how much memory a program needs: set JAX_PLATFORMS=cpu")
    return analysis.temp_size_in_bytes
