"""`metaprior adapt`: a learned prior meets the points of a CSV file."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from jaxtyping import Float

from metaprior import figures, learned
from metaprior.checkpoints import write_atomically
from metaprior.cli import console
from metaprior.cli.arguments import parse
from metaprior.cli.points import read_columns
from metaprior.training import TEST_STEPS

HELP = """Adapt a learned prior to the points of a CSV file, and predict with bands.

examples:
  metaprior adapt runs/sine points.csv --out adapted
  metaprior adapt runs/sine points.csv --at -5:5:201 --steps 20 --out adapted
  metaprior adapt runs/sine lab.csv --x-column time --y-column volts --at times.csv --out adapted

points.csv has a header and two columns, x and y. Written are predictions.csv and prediction.png. A file with a header
and no points asks for the prior predictive."""

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
GRID = 200  # inputs, where none are asked for
BATCH = 500  # inputs predicted at a time: memory grows with inputs × weights


@dataclass(frozen=True)
class Adapt:
    """The flags of `metaprior adapt`."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    support: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SUPPORT.csv")]
    """Support points: a CSV file with a header."""
    out: Path
    """Folder for predictions.csv and prediction.png; files of these names are replaced."""
    x_column: str = "x"
    """Column of inputs, of --at too."""
    y_column: str = "y"
    """Column of outputs."""
    steps: int = TEST_STEPS
    """Adaptation steps."""
    at: Annotated[
        str | None,
        tyro.conf.arg(metavar="START:STOP:COUNT|CSV", help_behavior_hint=f"(default: {GRID} over the tasks' inputs)"),
    ] = None
    """Where to predict: a range, or a CSV file of inputs."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Adapt, _joined_at(argv), prog="metaprior adapt", help=HELP)
    if asked.steps < 0:
        raise ValueError(f"--steps cannot be negative, got {asked.steps}")
    x, y = read_columns(asked.support, (asked.x_column, asked.y_column))
    inputs = None if asked.at is None else inputs_at(asked.at, asked.x_column)
    prior = learned.load(asked.run)
    tasks = prior.trained.setup.tasks
    if (tasks.inputs, tasks.outputs) != (1, 1):
        raise ValueError(f"{tasks.name} tasks have {tasks.inputs} inputs: use metaprior.load(...).adapt in Python")
    inputs = np.linspace(*tasks.input_range, GRID) if inputs is None else inputs
    for line in prior.trained.notes:
        console.note(line)
    if not x.size:
        console.note(f"{asked.support} holds no points: this is the prior predictive")
    _write(asked, prior.adapt(x, y, steps=asked.steps if x.size else 0), inputs)
    points = f"{x.size} point{'s' if x.size != 1 else ''}"
    print(f"{asked.out / 'predictions.csv'}: {inputs.size} predictions from {points}\n{asked.out / 'prediction.png'}")
    return 0


def inputs_at(text: str, column: str) -> Float[np.ndarray, " N"]:
    """The inputs that `--at` names: START:STOP:COUNT, both ends included, or a column of a CSV file.

    >>> inputs_at("0:1:3", "x").tolist()
    [0.0, 0.5, 1.0]
    """
    parts = text.split(":")
    if len(parts) != 3 or Path(text).exists():
        inputs = read_columns(Path(text), (column,))[0]
        if not inputs.size:
            raise ValueError(f"{text} names no inputs to predict at: add rows below its header")
        return inputs
    try:
        start, stop, count = float(parts[0]), float(parts[1]), int(parts[2])
    except ValueError:
        raise ValueError(f"--at {text} is not START:STOP:COUNT: for example -5:5:201") from None
    if not (np.isfinite([start, stop]).all() and count >= 1):
        raise ValueError(f"--at {text} needs finite ends and a count of at least 1: for example -5:5:201")
    return np.linspace(start, stop, count)


def _joined_at(argv: list[str]) -> list[str]:
    """`--at -5:5:201` as `--at=-5:5:201`: a range that begins with a minus must not be taken for a flag."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] == "--at":
            joined[-1] = f"--at={word}"
        else:
            joined.append(word)
    return joined


def _write(asked: Adapt, adapted: learned.Adapted, inputs: Float[np.ndarray, " N"]) -> None:
    table = predictions(adapted, inputs)
    if not np.isfinite(table).all():
        raise ValueError(
            f"after {adapted.steps} steps predictions are no longer finite: the points are too far from what the prior "
            "knows; scale them as in training, or take fewer --steps"
        )
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        write_atomically(asked.out / "predictions.csv", as_csv(table))
        figures.save(_figure(asked, adapted, inputs), asked.out / "prediction.png")
    except OSError as error:
        raise ValueError(f"{asked.out} is not writable ({error.strerror}): choose another --out") from error


def predictions(adapted: learned.Adapted, inputs: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N 8"]:
    """Rows of x, mean, std and the quantiles."""
    rows = []
    for start in range(0, inputs.size, BATCH):
        x = inputs[start : start + BATCH]
        predictive = adapted.predict(x, num_functions=0)
        columns = [*predictive.moments(), *(predictive.quantile(level) for level in QUANTILES.values())]
        rows.append(np.stack([x, *(np.asarray(column, float)[:, 0] for column in columns)], axis=1))
    return np.concatenate(rows)


def as_csv(table: Float[np.ndarray, "N 8"]) -> bytes:
    """With a header."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["x", "mean", "std", *QUANTILES])
    writer.writerows([[f"{value:.9g}" for value in row] for row in table])
    return file.getvalue().encode()


def _figure(asked: Adapt, adapted: learned.Adapted, inputs: Float[np.ndarray, " N"]):
    everywhere = np.concatenate([inputs, np.asarray(adapted.support.x, float)[:, 0]])
    low, high = everywhere.min(), everywhere.max()
    margin = 0.0 if high > low else 1.0  # a single input still gets a picture
    grid = np.linspace(low - margin, high + margin, GRID)
    count = adapted.support.x.shape[0]
    title = f"{count} support point{'s' if count != 1 else ''}, {adapted.steps} steps" if count else "before any data"
    panel = figures.panel(grid, adapted.predict(grid), adapted.support)
    return figures.prediction_figure(panel, title=title, x_label=asked.x_column, y_label=asked.y_column)
