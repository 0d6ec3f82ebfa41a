"""Our MAML on images beside torch.func's: the same losses first, then how many iterations each does in a second."""

import statistics
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import jax

from metaprior.benchmarks import images_maml, images_torch
from metaprior.benchmarks.images_maml import COMPARED, TOLERANCES, Problem, Runner
from metaprior.benchmarks.images_problem import Pool, Setting

FIX = "pip install 'metaprior[bench]'"
OURS, PEER, PEER_COMPILED = "metaprior", "torch.func", "torch.func compiled"


def beside(
    setting: Setting,
    pool: Pool,
    *,
    steps: int,
    precision: str,
    rounds: int,
    iterations: int,
    compiled: bool = False,
    report: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Iterations per second of both on the same episodes, and their first losses.

    Args:
        setting: tasks and network.
        pool: the images.
        steps: inner steps.
        precision: "tf32" or "float32".
        rounds: how often each is timed.
        iterations: between two looks at the clock.
        compiled: whether torch.compile takes part, too.
        report: called before each piece of work.
    """
    given = images_maml.problem(setting, pool, max(iterations, COMPARED))
    report("compiling ours")
    losses = {OURS: _losses(images_maml.ours(setting, steps, precision=precision, watch_every=1), given)}
    runners, left_out = {OURS: images_maml.ours(setting, steps, precision=precision)}, {}
    for name in (PEER, PEER_COMPILED) if compiled else (PEER,):
        report(f"warming up {name}")
        try:
            runners[name] = _peer(given, steps, precision, compiled=name == PEER_COMPILED)
            losses[name] = _losses(runners[name], given)
        except Exception as error:  # whatever somebody else's library may raise
            runners.pop(name, None)
            left_out[name] = " ".join(str(error).split())[:300]
    report("timing")
    speeds = _speeds(runners, given._replace(episodes=_first(given.episodes, iterations)), rounds, iterations)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return {
        "iterations/s": medians,
        "ratio": {name: medians[OURS] / medians[name] for name in medians if name != OURS},
        "losses": losses,
        "largest difference": {name: difference(losses[OURS], losses[name]) for name in losses if name != OURS},
        "tolerance": TOLERANCES["float64" if jax.config.read("jax_enable_x64") else precision],
        "left out": left_out,
        "rounds": speeds,
    }


def difference(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The largest relative difference of two lists of losses; None where one is not finite.

    >>> difference([2.0, 4.0], [2.0, 5.0])
    0.25
    """
    found = [abs(a - b) / abs(a) for a, b in zip(first, second, strict=True)]
    return max(found) if all(value < float("inf") for value in found) else None


def _peer(given: Problem, steps: int, precision: str, *, compiled: bool) -> Runner:
    if find_spec("torch") is None:
        raise ImportError(f"needs torch: {FIX}")
    return images_torch.runner(given.weights, steps, precision=precision, compiled=compiled)


def _losses(runner: Runner, given: Problem) -> list[float]:
    _, losses = runner.train(runner.begin(given.weights), runner.load(_first(given.episodes, COMPARED)))
    return [float(loss) for loss in losses]


def _speeds(runners: dict[str, Runner], given: Problem, rounds: int, iterations: int) -> dict[str, list[float]]:
    """Iterations per second of every round, in turns; the first call of each is not on the clock."""
    batches = {name: runner.load(given.episodes) for name, runner in runners.items()}
    states = {name: runner.train(runner.begin(given.weights), batches[name])[0] for name, runner in runners.items()}
    speeds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            began = time.perf_counter()
            states[name], _ = runner.train(states[name], batches[name])
            speeds[name].append(iterations / (time.perf_counter() - began))
    return speeds


def _first(episodes, count: int):
    return jax.tree.map(lambda array: array[:count], episodes)
