"""What clients that keep their data learn, beside one machine that has them all, on the same schedule.

Sinusoids with real processes (a server, clients, Flower between them), with the very draws of one machine, for the first seed;
Omniglot in simulation, where whole alphabets belong to one client each, so that no client ever sees a task like those of another.
Both see as many tasks in as many steps by the same schedule. What seconds a round took is kept, and is that of a machine that
others use too.

metaprior reproduce federated --scale full
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import study
from metaprior import runs, settings, training
from metaprior.evaluation import calibrate_steps, scores
from metaprior.federated import flower, holders, launch, server
from metaprior.federated.requests import answerer, program
from metaprior.figures import BLUE, ORANGE
from metaprior.meta import State
from metaprior.settings import Setup

STEPS = 10  # of adaptation, after which test tasks are judged
ONE, REAL, SIMULATED, APART = (
    "one machine",
    "clients, real processes",
    "clients, simulated",
    "clients with alphabets of their own",
)
MSE, ACCURACY = f"MSE after {STEPS}", f"accuracy after {STEPS}"


@dataclass(frozen=True)
class Settings:
    """The scale of the study."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the first weights and of every draw. Real processes take the first alone: they are slow, and equal one machine."""
    task_sets: tuple[str, ...] = ("sinusoid", "omniglot")
    """What is learned."""
    method: str = "gem-bml+last-layer"
    """A row of the table that learns in few rounds."""
    hidden: tuple[int, ...] = (40, 40)
    """Of the network of sinusoids."""
    meta_batch: int = 100
    """Sinusoids a round, of all clients together: messages are dear, tasks are not."""
    meta_rate: float = 0.01
    """Of the server's optimiser."""
    rounds: int = 80
    """With sinusoids."""
    processes: bool = True
    """Whether clients of sinusoids are real processes."""
    clients: int = 2
    """Of sinusoids."""
    image_rounds: int = 1000
    """With images."""
    image_clients: int = 4
    """Who share the alphabets."""
    filters: int = 16
    """Of the network of images."""
    test_tasks: int = 600
    """That a prior is judged by."""


SMOKE = Settings(
    seeds=(0,), task_sets=("sinusoid",), hidden=(6,), meta_batch=4, rounds=2, processes=False, test_tasks=4
)


def cells(settings: Settings) -> list[study.Cell]:
    """Each task set on one machine, and with clients."""
    return [(tasks, who) for tasks in settings.task_sets for who in (ONE, _clients(settings, tasks))]


def _clients(settings: Settings, tasks: str) -> str:
    return APART if tasks == "omniglot" else REAL if settings.processes else SIMULATED


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Learn and judge, seed by seed."""
    tasks, who = cell
    learn = {ONE: _central, REAL: _processes}.get(who, _simulated)
    found, seconds = [], []
    seeds = settings.seeds[:1] if who == REAL else settings.seeds
    for seed in seeds:
        setup, began = setup_of(settings, tasks, seed), time.perf_counter()
        state = learn(settings, setup)
        seconds.append(time.perf_counter() - began)
        calibration = calibrate_steps(setup, state, at=(STEPS,), num_tasks=20)
        told = scores(setup, state, calibration, at=(STEPS,), num_tasks=settings.test_tasks)
        found.append(np.asarray(told.accuracy if tasks == "omniglot" else told.mse)[:, 0])
    mean, ci95 = study.mean_and_ci(np.array(found))
    row = study.row(setting=tasks, method=who, metric=ACCURACY if tasks == "omniglot" else MSE, mean=mean, ci95=ci95)
    rounds = setup_of(settings, tasks, 0).settings.iterations
    kept = {"tasks": np.round(np.array(found, float), 5), "seconds a round": np.round(np.array(seconds) / rounds, 2)}
    return {"rows": [row | {"seeds": len(seeds)}], "curves": {f"{tasks} {who}": kept}}


def setup_of(chosen: Settings, tasks: str, seed: int) -> Setup:
    """The same for one machine and for clients."""
    if tasks == "omniglot":
        given: dict[str, Any] = {"iterations": chosen.image_rounds, "filters": chosen.filters, "ways": 5, "shots": 1}
    else:
        given = {"iterations": chosen.rounds, "hidden": chosen.hidden, "meta_batch": chosen.meta_batch}
        given |= {"meta_rate": chosen.meta_rate}
    return settings.assemble(settings.Settings(tasks, chosen.method, seed=seed, **given))


def _central(chosen: Settings, setup: Setup) -> State:
    return training.train(setup, None, chunk=20 if setup.tasks.shape is None else 100)


def _simulated(chosen: Settings, setup: Setup) -> State:
    images = setup.tasks.shape is not None
    held = holders.apart(setup, chosen.image_clients) if images else holders.shares(setup, chosen.clients)
    compiled = program(setup, held[0].held)
    clients = {f"client-{i}": answerer(setup, holder, compiled=compiled) for i, holder in enumerate(held)}
    with tempfile.TemporaryDirectory() as folder:
        run = training.create_run(setup, Path(folder) / "run", resume=False)
        try:
            rules = server.Rules(quorum=len(clients))
            federation, _ = server.taken_up(setup, run, rules, checkpoint_every=setup.settings.iterations)
            return server.simulated(federation, clients).state
        finally:
            runs.release(run)


def _processes(chosen: Settings, setup: Setup) -> State:
    """A server and its clients as commands, on loopback."""
    flower.flwr("app")  # else say in words that it is missing
    own, port = setup.settings, str(launch.free_port())
    words = [
        own.tasks,
        "--method",
        own.method,
        "--seed",
        own.seed,
        "--meta-batch",
        own.meta_batch,
        "--meta-rate",
        own.meta_rate,
    ]
    words += ["--iterations", own.iterations, "--hidden", *own.hidden]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        flags = ["--quorum", chosen.clients, "--port", port, "--out", place, "--insecure", "--quiet"]
        who = [
            ["--server", f"127.0.0.1:{port}", "--client", i, "--clients", chosen.clients, "--insecure"]
            for i in range(chosen.clients)
        ]
        with _command("server", *words, *flags) as first, _command("client", *who[0]):
            with contextmanager(_all)([["client", *flags] for flags in who[1:]]):
                if first.wait() != 0:
                    raise launch.Failed(f"the server ended with exit code {first.returncode}")
        return training.open_state(place)[1]


def _all(commands: list[list[Any]]) -> Iterator[None]:
    if not commands:
        yield
        return
    with _command(*commands[0]):
        yield from _all(commands[1:])


@contextmanager
def _command(*words: Any) -> Iterator[subprocess.Popen]:
    """`metaprior federate …`, which ends with the block."""
    paths = os.pathsep.join([str(study.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "metaprior", "federate", *map(str, words)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


# --- what is told -----------------------------------------------------------------------------------------------------


def _value(results: study.Results, tasks: str, who: str, metric: str) -> tuple[float, float]:
    rows = results["rows"]
    (row,) = [row for row in rows if (row["setting"], row["method"], row["metric"]) == (tasks, who, metric)]
    return float(row["mean"]), float(row["ci95"] or 0.0)


def gap(results: study.Results, tasks: str) -> tuple[float, float]:
    """By how much clients are above one machine, seed by seed and task by task: mean and half-width of its 95 % interval."""
    one, other, _ = _compared(results)[tasks]
    central, clients = (np.array(results["curves"][f"{tasks} {who}"]["tasks"], float) for who in (one, other))
    return study.mean_and_ci(clients - central[: len(clients)])


def _compared(results: study.Results) -> dict[str, tuple[str, str, str]]:
    """Task set -> (one machine, clients, metric)."""
    others = {tasks: next(name for name in found if name != ONE) for tasks, found in _methods(results).items()}
    return {tasks: (ONE, other, ACCURACY if tasks == "omniglot" else MSE) for tasks, other in others.items()}


def _methods(results: study.Results) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in results["rows"]:
        found.setdefault(row["setting"], []).append(row["method"])
    return {tasks: methods for tasks, methods in found.items() if set(methods) - {ONE} and ONE in methods}


def figure(results: study.Results) -> Figure:
    """One machine and clients, side by side."""
    compared = _compared(results)
    canvas = Figure(figsize=(5 * len(compared), 3.6), layout="constrained")
    for place, (tasks, (one, other, metric)) in zip(
        np.atleast_1d(canvas.subplots(1, len(compared))), compared.items(), strict=True
    ):
        for x, (who, colour) in enumerate(((one, BLUE), (other, ORANGE))):
            mean, half = _value(results, tasks, who, metric)
            place.errorbar([x], [mean], [half], fmt="o", color=colour, capsize=6, markersize=9)
            place.annotate(f"{mean:.3f}", (x, mean), xytext=(12, 0), textcoords="offset points", va="center")
        place.set_xticks([0, 1], [one, other.replace(" with", "\nwith").replace(", ", ",\n")])
        place.set(title=tasks, ylabel=f"{metric} steps", xlim=(-0.6, 1.8))
        place.grid(color="0.92", axis="y")
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
    return canvas


def remarks(results: study.Results) -> list[str]:
    """By how much clients and one machine differ, and how long a round took."""
    said = []
    for tasks, (one, other, metric) in _compared(results).items():
        (central, _), (federated, _) = (_value(results, tasks, who, metric) for who in (one, other))
        if tasks == "omniglot":
            above, half = gap(results, tasks)
            said.append(
                f"{tasks}: {federated:.2%} with {other}, {central:.2%} on {one}; {100 * above:+.2f} ± {100 * half:.2f} points, "
                f"seed by seed and task by task ({_seed_by_seed(results, tasks)})."
            )
        else:
            seconds = float(np.mean(results["curves"][f"{tasks} {other}"]["seconds a round"]))
            first = float(np.mean(results["curves"][f"{tasks} {one}"]["tasks"][0]))  # of the seed that both have
            said.append(f"{tasks}: test {metric} steps {federated:.4f} with {other}, {first:.4f} on {one} with the same seed "
                        f"({federated / first - 1:+.2%}); {seconds:.1f} s a round, on a machine that was not idle.")  # fmt: skip
    return said


def _seed_by_seed(results: study.Results, tasks: str) -> str:
    one, other, _ = _compared(results)[tasks]
    means = [np.mean(results["curves"][f"{tasks} {who}"]["tasks"], axis=1) for who in (other, one)]
    return ", ".join(f"{100 * value:+.2f}" for value in means[0] - means[1])


STUDY, run = study.declare(
    __name__,
    title="Clients that keep their data, beside one machine that has them all",
    paper="Posteriors are inferred where data are, and the meta-update needs them alone: distributed learning follows.",
    full=Settings(),
    smoke=SMOKE,
)
