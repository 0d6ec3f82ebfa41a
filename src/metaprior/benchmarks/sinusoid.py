"""Meta-iterations per second, ours beside the libraries people would use instead, on one and the same problem.

Every implementation is warmed up by the first 200 iterations, after which those of MAML must have learned the same. Then
they are timed in turns, round after round, so that what else the machine is doing meets all of them alike; of the rounds
the median counts.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from math import comb, isfinite
from typing import Any, NamedTuple

import jax

from metaprior.benchmarks import bare_jax, ours, torch_peers
from metaprior.benchmarks.origin import commit, hardware, versions
from metaprior.benchmarks.problem import COMPARED_AT, Batches, Problem, Runner, Weights, first, problem
from metaprior.names import require_known

FIX = "pip install 'metaprior[bench]'"
SLICE = 0.2  # seconds that an implementation is timed for in a round, at least
TOLERANCE = 1e-3  # relative: of two programs in float32 that compute the same
SETTING = "10-shot sinusoids, MLP 1-40-40-1, 5 tasks, 1 inner step"

Report = Callable[[int, int, str], None]  # (pieces of work done, of how many, what comes next)


class Implementation(NamedTuple):
    """One row of the comparison."""

    make: Callable[[], Runner]
    needs: tuple[str, ...] = ()  # packages of the extra
    maml: bool = True  # whether it computes the same as the others
    own_tasks: bool = False


FLOOR, PEER = "bare JAX", "TorchOpt"
IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "metaprior maml": Implementation(lambda: ours.runner("maml", ours.MAML)),
    "metaprior gem-bml+": Implementation(lambda: ours.runner("gem-bml+", ours.POINT), maml=False),
    "metaprior maml (draws its own tasks)": Implementation(
        lambda: ours.drawing_runner("maml", ours.MAML), own_tasks=True
    ),
    "metaprior gem-bml+ (default recipe)": Implementation(lambda: ours.runner("gem-bml+", ours.RECIPE), maml=False),
    FLOOR: Implementation(bare_jax.runner),
    "torch.func": Implementation(torch_peers.eager, needs=("torch",)),
    "torch.func compiled": Implementation(torch_peers.compiled, needs=("torch",)),
    "torch.func compiled whole": Implementation(torch_peers.compiled_whole, needs=("torch",)),
    PEER: Implementation(torch_peers.torchopt, needs=("torch", "torchopt")),
    "higher": Implementation(torch_peers.higher, needs=("torch", "higher")),
}


class Ready(NamedTuple):
    """An implementation that has been warmed up, and what it had learned by then."""

    runner: Runner
    state: Any
    batches: Any
    loss: float
    seconds: float


def measure(
    *,
    only: Sequence[str] = (),
    rounds: int = 9,
    iterations: int = COMPARED_AT,
    threads: int = 1,
    report: Report = lambda done, total, what: None,
) -> dict[str, Any]:
    """Iterations per second and the loss after 200 of them, by implementation.

    Args:
        only: names from `IMPLEMENTATIONS`; none takes all. Those whose packages are missing are left out with the reason.
        rounds: how often each is timed.
        iterations: meta-iterations between two looks at the clock; for JAX this is one dispatch.
        threads: of PyTorch; one is the fastest on networks this small.
        report: called before each piece of work.
    """
    for name in only:
        require_known("implementation", name, IMPLEMENTATIONS)
    for word, value in (("rounds", rounds), ("iterations", iterations), ("threads", threads)):
        if value < 1:
            raise ValueError(f"{word} must be at least 1, got {value}")
    began, given = time.perf_counter(), problem(max(COMPARED_AT, iterations))
    chosen = [name for name in IMPLEMENTATIONS if not only or name in only]
    left_out = {name: reason for name in chosen if (reason := missing(name))}
    names = [name for name in chosen if name not in left_out]
    total, ready = len(names) * (rounds + 1), {}
    for index, name in enumerate(names):
        report(index, total, f"{name}: warming up")
        found = _warmed_up(name, given, iterations, threads)
        if isinstance(found, Ready):
            ready[name] = found
        else:
            left_out[name] = found
    speeds = _timed_in_turns(ready, rounds, iterations, lambda done, what: report(len(names) + done, total, what))
    return _summary(ready, speeds, left_out, iterations, threads, time.perf_counter() - began)


def missing(name: str) -> str | None:
    """What an implementation needs and does not find, and the remedy."""
    absent = [package for package in IMPLEMENTATIONS[name].needs if find_spec(package) is None]
    return f"needs {' and '.join(absent)}: {FIX}" if absent else None


def disagreements(losses: Mapping[str, float]) -> list[str]:
    """Sentences on implementations of MAML, trained on the same batches, that did not learn the same, and on lost ones."""
    lost = [
        f"{name} has no finite loss after {COMPARED_AT} iterations" for name in losses if not isfinite(losses[name])
    ]
    same = [name for name in losses if IMPLEMENTATIONS[name].maml and not IMPLEMENTATIONS[name].own_tasks]
    if lost or not same:
        return lost
    reference = FLOOR if FLOOR in same else same[0]
    wanted = losses[reference]
    return [
        f"{name} has a loss of {losses[name]:.6g} after {COMPARED_AT} iterations where {reference} has {wanted:.6g}"
        for name in same
        if abs(losses[name] - wanted) > TOLERANCE * abs(wanted)
    ]


def held_out_loss(weights: Weights, tasks: Batches) -> float:
    """Query loss on unseen tasks after one plain step from these weights: what all have been training for."""
    batch = Batches(*(array[0] for array in tasks))
    return float(jax.jit(bare_jax.meta_loss)(weights, batch))


def record(results: Mapping[str, Any], command: str) -> dict[str, Any]:
    """As results files hold it: a row per number, and every round."""
    before = {"experiment": "bench-sinusoid", "setting": SETTING}
    after = {"seeds": 1, "command": command, "hardware": results["hardware"], "seconds": round(results["seconds"], 1)}
    rows = []
    for name, speeds in results["rounds"].items():
        for metric, mean, ci95 in (
            ("iterations/s", results["implementations"][name], interval_of_median(speeds)),
            (f"loss after {COMPARED_AT}", results["loss_after_200"][name], None),
        ):
            number = {"method": name, "metric": metric, "paper": None, "mean": mean, "ci95": ci95}
            rows.append(before | number | after | {"commit": commit()})
    told = ("iterations", "threads_of_pytorch", "warm_up_seconds", "left_out", "versions")
    settings = {name: results[name] for name in told}
    return {"settings": settings, "rows": rows, "curves": {"iterations/s by round": results["rounds"]}}


def interval_of_median(values: Sequence[float]) -> float | None:
    """Half-width of the 95 % interval of a median, by order statistics; fewer than six values have none.

    >>> interval_of_median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    2.5
    """
    ordered, count = sorted(values), len(values)
    below = [sum(comb(count, k) for k in range(index + 1)) / 2**count for index in range(count // 2)]
    outside = [index for index, share in enumerate(below) if 2 * share <= 0.05]
    return (ordered[count - 1 - outside[-1]] - ordered[outside[-1]]) / 2 if outside else None


def _warmed_up(name: str, given: Problem, iterations: int, threads: int) -> Ready | str:
    """Compiled and trained for the first iterations; a peer that cannot run here is a reason, one of ours an error."""
    implementation, began = IMPLEMENTATIONS[name], time.perf_counter()
    try:
        if implementation.needs:
            torch_peers.set_threads(threads)
        runner = implementation.make()
        state, _ = runner.train(runner.begin(given.weights), runner.load(first(given.batches, COMPARED_AT)))
        loss = held_out_loss(runner.weights(state), given.held_out)
        batches = runner.load(first(given.batches, iterations))
        state, _ = runner.train(state, batches)
    except Exception as error:  # whatever somebody else's library may raise
        if not implementation.needs:
            raise
        return f"failed here: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return Ready(runner, state, batches, loss, time.perf_counter() - began)


def _timed_in_turns(ready: dict[str, Ready], rounds: int, iterations: int, report) -> dict[str, list[float]]:
    """Iterations per second of every round, by implementation."""
    speeds: dict[str, list[float]] = {name: [] for name in ready}
    states = {name: one.state for name, one in ready.items()}
    for count in range(rounds):
        for index, (name, one) in enumerate(ready.items()):
            report(count * len(ready) + index, f"round {count + 1} of {rounds}: {name}")
            states[name], speed = _timed(one, states[name], iterations)
            speeds[name].append(speed)
    return speeds


def _timed(one: Ready, state: Any, iterations: int) -> tuple[Any, float]:
    """Iterations per second over at least a slice of time; training goes on from where it stood."""
    done, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < SLICE or not done:
        state, _ = one.runner.train(state, one.batches)
        done += iterations
    return state, done / passed


def _summary(ready, speeds, left_out, iterations, threads, seconds) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return {
        "implementations": medians,
        "loss_after_200": {name: one.loss for name, one in ready.items()},
        "ratios": {
            reference: {name: value / medians[reference] for name, value in medians.items()}
            for reference in (PEER, FLOOR)
            if reference in medians
        },
        "rounds": speeds,
        "warm_up_seconds": {name: one.seconds for name, one in ready.items()},
        "left_out": left_out,
        "iterations": iterations,
        "threads_of_pytorch": threads,
        "seconds": seconds,
        "hardware": hardware(),
        "versions": versions(("metaprior", "jax", "jaxlib", "optax", "torch", "torchopt", "higher")),
    }
