"""`metaprior quickstart`: train, evaluate, draw. What `make run` shows."""

import dataclasses
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from metaprior import checkpoints, evaluation, figures, learned, runs, training
from metaprior.cli import console, evaluate
from metaprior.cli.arguments import parse
from metaprior.cli.train import opened, train_into
from metaprior.meta import task_keys
from metaprior.settings import Settings, assemble

HELP = """Learn a prior over sinusoids, judge it on unseen ones, and draw what it thinks of three of them.

examples:
  metaprior quickstart
  metaprior quickstart --iterations 2000 --out runs/short"""

ITERATIONS = 8_000
SETTINGS = Settings(tasks="sinusoid", method="gem-bml+", iterations=ITERATIONS)
CHUNK = 200  # so that the bar moves
EVALUATION_TASKS = 600
SHOWN = (0, 1, 10)  # steps
NUM_TASKS = 3  # in the figure
MARK, FIGURE = "quickstart.json", "quickstart.png"
# All that a quickstart leaves behind: a folder that holds anything else is not replaced.
RUN_FILES = {"settings.json", "versions.json", "metrics.jsonl", "checkpoints", "run.lock"}
OWN_FILES = {MARK, FIGURE, evaluate.FILE, training.CALIBRATION_FILE}


@dataclass(frozen=True)
class Quickstart:
    """The flags of `metaprior quickstart`."""

    out: Path = Path("runs/quickstart")
    """Folder of the run; that of an earlier quickstart is replaced."""
    iterations: int = ITERATIONS
    """Meta-iterations."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Quickstart, argv, prog="metaprior quickstart", help=HELP)
    setup = assemble(dataclasses.replace(SETTINGS, iterations=asked.iterations))
    clear(asked.out)
    print(f"learning from {setup.tasks.name} tasks: {setup.tasks.describe}")
    with opened(setup, asked.out, resume=False) as folder_run:
        checkpoints.write_atomically(asked.out / MARK, json.dumps({"steps": SHOWN}).encode())
        train_into(setup, folder_run, chunk=CHUNK)
    with console.waiting(f"evaluating on {EVALUATION_TASKS} unseen tasks"):
        prior = learned.load_run(asked.out)
        result = evaluate.scores(prior.trained, steps=max(SHOWN), tasks_count=EVALUATION_TASKS)
        figures.save(figure(prior, runs.read_metrics(folder_run)), asked.out / FIGURE)
    evaluate.save(result, asked.out / evaluate.FILE, required=True)
    console.output().print(evaluate.table(result, SHOWN))
    print(f"figure: {asked.out / FIGURE}")
    print(f"next: metaprior adapt {shlex.quote(str(asked.out))} points.csv --out adapted, or metaprior train --help")
    return 0


def clear(folder: Path) -> None:
    """Make room for a new quickstart: delete what an earlier one left, and only that."""
    found = set(os.listdir(folder)) if folder.is_dir() else set()
    if not found - {"run.lock"}:
        return
    if MARK not in found:
        raise runs.RunError(f"{folder} is not empty and holds no earlier quickstart: choose another --out")
    if strangers := sorted(
        name for name in found - RUN_FILES - OWN_FILES if not name.startswith(checkpoints.TEMPORARY)
    ):
        raise runs.RunError(
            f"{folder} holds {strangers[0]}, which no quickstart made: move it, or choose another --out"
        )
    if "settings.json" in found:
        # Resumed for its lock: nothing is deleted under a quickstart that is still training.
        runs.release(runs.create(folder, runs.open_run(folder).settings, resume=True))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for name in found & (RUN_FILES | OWN_FILES) - {"checkpoints", "run.lock", MARK}:
        (folder / name).unlink()
    (folder / MARK).unlink()  # last: a deletion that was cut short can be taken up again


def figure(prior: learned.Learned, metrics: Sequence[Mapping[str, Any]]) -> Figure:
    """The first unseen tasks, before adaptation and after."""
    tasks = prior.trained.setup.tasks
    rows = []
    for key in task_keys(jax.random.key(evaluation.TEST_SEED), NUM_TASKS):
        support, query = tasks.evaluation(key)
        adapted = prior.adapt(support.x, support.y, steps=max(SHOWN))
        x, truth = (np.asarray(column, float)[:, 0] for column in query)
        predict = lambda steps, adapted=adapted, query=query: adapted.predict(query.x, steps=steps, num_functions=0)
        rows.append([figures.panel(x, predict(steps), support, truth=truth) for steps in SHOWN])
    history = figures.History(*(np.asarray([row[name] for row in metrics], float) for name in figures.History._fields))
    title = f"{prior.trained.setup.settings.method}: a learned prior meets unseen sinusoids"
    return figures.quickstart_figure(rows, steps=SHOWN, title=title, history=history)
