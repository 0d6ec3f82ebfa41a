"""`metaprior adapt`: a learned prior meets the points of a CSV file, or a folder of pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Float

from metaprior import estimates, figures, learned, runs
from metaprior.cli import act, console, exhausted, label, outputs
from metaprior.cli.arguments import parse
from metaprior.cli.points import read_columns
from metaprior.data import folders
from metaprior.labelled import BATCH as TOGETHER
from metaprior.policies import is_policy
from metaprior.settings import Setup, assemble, from_dict
from metaprior.tasks import IMAGE_SETS
from metaprior.training import TEST_STEPS
from metaprior.types import Data

HELP = """Adapt a learned prior to a few examples, and predict: curves with bands, pictures with probabilities.

a prior of curves meets the points of a CSV file:
  metaprior adapt runs/sine points.csv --at -5:5:201 --out adapted
  metaprior adapt runs/sine lab.csv --x-column time --y-column volts --at times.csv --out adapted

points.csv has a header and two columns, x and y. Written are predictions.csv and prediction.png. A file with a header
and no points asks for the prior predictive.

a prior of images meets a folder with a sub-folder of pictures for each class, and labels others:
  metaprior adapt runs/photos examples --at new --out labelled
  metaprior adapt runs/characters scans --at new/page1.png --invert --out labelled

examples/cat/*.jpg and examples/dog/*.png are two classes; there may be any number from two on, a handful of pictures each.
Written are predictions.csv (file, label, probability, a column for each class) and prediction.png, a contact sheet.

a prior over policies meets a goal (metaprior adapt runs/walk --help says more):
  metaprior adapt runs/walk --goal 0.3 -0.2 --updates 3 --out walked"""

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
GRID = 200  # inputs, where none are asked for
BATCH = 500  # inputs predicted at a time: memory grows with inputs × weights


@dataclass(frozen=True)
class Adapt:
    """The flags of `metaprior adapt`."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    support: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="POINTS.csv|FOLDER")]
    """Support points, a CSV file with a header; or a folder with a sub-folder of pictures for each class."""
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
        tyro.conf.arg(
            metavar="START:STOP:COUNT|CSV|PICTURES",
            help_behavior_hint=f"(default of curves: {GRID} over the tasks' inputs)",
        ),
    ] = None
    """Where to predict: a range, or a CSV file of inputs; for images a folder of pictures, or one picture."""
    invert: bool = False
    """Take the negatives of pictures: for a prior of light ink on dark (Omniglot) and photographs of dark ink."""
    transductive: bool = False
    """Normalise new pictures together instead of answering each by itself."""


def run(argv: list[str]) -> int:
    """The command."""
    if _acts(argv):
        return act.run(argv)
    asked = parse(Adapt, _joined_at(argv), prog="metaprior adapt", help=HELP)
    if asked.steps < 0:
        raise ValueError(f"--steps cannot be negative, got {asked.steps}")
    learned.require_run(asked.run)
    images = runs.open_run(asked.run).settings.get("tasks") in IMAGE_SETS
    _refuse_foreign_flags(asked, images=images)
    find = lambda: of_pictures(asked) if images else of_points(asked)
    needed = lambda: estimates.told("adapting and predicting at the least", find)
    with exhausted.explained(lambda: less(asked, images=images), needed):
        if images:
            options = {"steps": asked.steps, "invert": asked.invert, "transductive": asked.transductive}
            label.run(asked.run, asked.support, asked.at, asked.out, **options)
        else:
            _run_curve(asked)
    return 0


def less(asked: Adapt, *, images: bool) -> str:
    """What to turn down where memory is short."""
    if not images:
        return f"give fewer points in {asked.support}, or fewer inputs with --at ({BATCH} are predicted at a time)"
    if asked.transductive:
        return f"leave out --transductive, give fewer pictures with --at, or fewer of each class in {asked.support}"
    return f"give fewer pictures of each class in {asked.support}, or with --at ({TOGETHER} are labelled at a time)"


def of_points(asked: Adapt) -> estimates.Memory:
    """Bytes of adapting to a file of points, and of predicting as many inputs as are predicted at a time.

    At the least: predictions of curves are not compiled as a whole.
    """
    count = read_columns(asked.support, (asked.x_column,))[0].size
    inputs = GRID if asked.at is None else min(BATCH, inputs_at(asked.at, asked.x_column).size)
    points = lambda: Data(jnp.zeros((count, 1)), jnp.zeros((count, 1)))
    support, x = jax.eval_shape(lambda: (points(), jnp.zeros((inputs, 1))))
    return estimates.of_adaptation(_setup(asked), support, x, steps=asked.steps)


def of_pictures(asked: Adapt) -> estimates.Memory:
    """Bytes of adapting to a folder of pictures, and of labelling as many as are labelled at a time."""
    setup, places = _setup(asked, inductive=not asked.transductive), folders.class_folders(asked.support)
    count, new = sum(len(folders.pictures(place)) for place in places), len(label.pictures(Path(asked.at or "")))
    together = new if asked.transductive else min(new, TOGETHER)
    exact = setup.learner.cell.family.name == "last-layer"  # whose targets are a row of numbers for each picture
    seen = lambda rows: jnp.zeros((rows, *(setup.tasks.shape or ())))
    classes = lambda: jnp.zeros((count, len(places))) if exact else jnp.zeros(count, int)
    support, x = jax.eval_shape(lambda: (Data(seen(count), classes()), seen(together)))
    return estimates.of_adaptation(setup, support, x, steps=asked.steps, classes=len(places))


def _setup(asked: Adapt, *, inductive: bool = False) -> Setup:
    return assemble(from_dict(dict(runs.open_run(asked.run).settings)), inductive=inductive)


def _acts(argv: list[str]) -> bool:
    """Whether an agent is to adapt: the run is one of a policy, or a goal is named. Flags and their meaning depend on it."""
    found = act.run_among(argv)
    return act.names_goal(argv) or (found is not None and is_policy(found))


def _refuse_foreign_flags(asked: Adapt, *, images: bool) -> None:
    """What would not be looked at is not passed over."""
    of_curves = {"x_column": "x", "y_column": "y"}
    of_images = {"invert": False, "transductive": False}
    for name, default in (of_curves if images else of_images).items():
        if getattr(asked, name) != default:
            kind, other = ("images", "curves") if images else ("curves", "images")
            raise ValueError(
                f"--{name.replace('_', '-')} is for priors of {other}, and {asked.run} is one of {kind}: leave it out"
            )


def _run_curve(asked: Adapt) -> None:
    if asked.support.is_dir():
        raise ValueError(f"{asked.run} is a prior of curves and {asked.support} is a folder: name a CSV file of points")
    x, y = read_columns(asked.support, (asked.x_column, asked.y_column))
    inputs = None if asked.at is None else inputs_at(asked.at, asked.x_column)
    prior = learned.load_run(asked.run)
    tasks = prior.trained.setup.tasks
    if (tasks.inputs, tasks.outputs) != (1, 1):
        raise ValueError(f"{tasks.name} tasks have {tasks.inputs} inputs: use metaprior.load(...).adapt in Python")
    inputs = np.linspace(*tasks.input_range, GRID) if inputs is None else inputs
    for line in prior.trained.notes:
        console.note(line)
    if x.size and (words := prior.beyond(asked.steps)):
        console.note(words)
    if not x.size:
        console.note(f"{asked.support} holds no points: this is the prior predictive")
    _write(asked, prior.adapt(x, y, steps=asked.steps if x.size else 0), inputs)
    points = f"{x.size} point{'s' if x.size != 1 else ''}"
    print(f"{asked.out / outputs.TABLE}: {inputs.size} predictions from {points}\n{asked.out / outputs.PICTURE}")


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
    outputs.write(
        asked.out, outputs.as_csv(["x", "mean", "std", *QUANTILES], table.tolist()), _figure(asked, adapted, inputs)
    )


def predictions(adapted: learned.Adapted, inputs: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N 8"]:
    """Rows of x, mean, std and the quantiles."""
    rows = []
    for start in range(0, inputs.size, BATCH):
        x = inputs[start : start + BATCH]
        predictive = adapted.predict(x, num_functions=0)
        columns = [*predictive.moments(), *(predictive.quantile(level) for level in QUANTILES.values())]
        rows.append(np.stack([x, *(np.asarray(column, float)[:, 0] for column in columns)], axis=1))
    return np.concatenate(rows)


def _figure(asked: Adapt, adapted: learned.Adapted, inputs: Float[np.ndarray, " N"]):
    everywhere = np.concatenate([inputs, np.asarray(adapted.support.x, float)[:, 0]])
    low, high = everywhere.min(), everywhere.max()
    margin = 0.0 if high > low else 1.0  # a single input still gets a picture
    grid = np.linspace(low - margin, high + margin, GRID)
    count = adapted.support.x.shape[0]
    title = f"{count} support point{'s' if count != 1 else ''}, {adapted.steps} steps" if count else "before any data"
    panel = figures.panel(grid, adapted.predict(grid), adapted.support)
    return figures.prediction_figure(panel, title=title, x_label=asked.x_column, y_label=asked.y_column)
