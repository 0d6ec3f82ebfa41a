"""What a training says when it is over."""

import math
import shlex

from rich.table import Table

from metaprior import runs
from metaprior.cli import console
from metaprior.predict import Calibration
from metaprior.rl import progress
from metaprior.settings import Setup


def sureness(setup: Setup, calibration: Calibration) -> dict[str, str]:
    """What calibration has found."""
    if setup.tasks.shape is not None:
        return {"calibrated": "probabilities, on classes kept for validation"}
    noise = [math.exp(float(value)) for value in calibration.log_noise]
    return {"noise": f"{noise[0]:.3g} before adaptation, {noise[-1]:.3g} after {len(noise) - 1} steps (calibrated)"}


def of_agents(setup: Setup, folder_run: runs.Run) -> dict[str, str]:
    """What agents have lived through, and how they do."""
    assert setup.rl is not None
    steps = setup.settings.iterations * setup.rl.steps_per_iteration
    rows = {"environment": f"{steps:,} steps at most, {setup.rl.steps_per_iteration:,} an iteration"}
    if metrics := runs.read_metrics(folder_run):
        looked = f"{progress.ROLLOUTS} rollouts in each of {progress.TASKS} validation tasks"
        rows["returns"] = f"{console.in_returns(metrics[-1]['returns'])} ({looked})"
    return rows


def table(setup: Setup, folder_run: runs.Run, found: dict[str, str], seconds: float) -> Table:
    """All of it, and what to do next."""
    grid = Table.grid(padding=(0, 2))
    rows = {
        "run": str(folder_run.folder),
        "iterations": f"{folder_run.settings['iterations']:,} ({seconds:.0f} s)",
        **found,
    }
    known = [row["query_nll"] for row in runs.read_metrics(folder_run) if row.get("query_nll") is not None]
    if known:  # of images not every iteration is looked at
        of_targets = setup.tasks.shape is not None and setup.learner.cell.family.name == "last-layer"
        what = ", of the exact head's targets: not the NLL of its probabilities" if of_targets else ""
        rows["query NLL"] = f"{known[-1]:.3f} after adaptation in training{what}"
    folder = shlex.quote(str(folder_run.folder))
    for word, value in {**rows, "next": f"metaprior evaluate {folder}"}.items():
        grid.add_row(word, value)
    if setup.tasks.shape is not None:
        grid.add_row("", f"metaprior adapt {folder} EXAMPLES --at NEW --out labelled, see docs/photos.md")
    return grid
