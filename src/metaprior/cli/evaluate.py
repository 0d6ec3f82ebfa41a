"""`metaprior evaluate`: how good a learned prior is on tasks it has never seen."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Group
from rich.table import Table

from metaprior import estimates, evaluation, learned, policies, runs, training
from metaprior.checkpoints import write_atomically
from metaprior.cli import console, exhausted, returns
from metaprior.cli.arguments import parse
from metaprior.settings import Settings, Setup, assemble
from metaprior.tasks import IMAGE_SETS, Tasks
from metaprior.training import Trained

HELP = """Judge a learned prior on unseen tasks: adapt to each of them, predict, compare with the truth.

examples:
  metaprior evaluate runs/sine
  metaprior evaluate runs/sine --tasks-count 2000 --steps 20
  metaprior evaluate runs/sine --json | jq .mse[-1]
  metaprior evaluate runs/characters --queries 1 --views
  metaprior evaluate runs/characters --ways 20 --shots 5 --inductive

Of agents: returns after 0, 1, … updates in unseen tasks; usually 40 tasks, 3 steps (updates) of 40 rollouts each."""

FILE = "evaluation.json"
SHOWN = (0, 1, 2, 5, 10)


@dataclass(frozen=True)
class Evaluate:
    """The flags of `metaprior evaluate`."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    json: bool = False
    """Print one JSON object, and nothing else, on stdout."""
    tasks_count: int = 600
    """Unseen tasks to average over; always the first of one fixed series."""
    steps: int = training.TEST_STEPS
    """Adapt for 0 up to this many steps."""
    queries: int | None = None
    """Query points of a task; of each class, where there are classes."""
    ways: int | None = None
    """Classes of a task, where there are classes; any number, if the prior was trained with --head shared."""
    shots: int | None = None
    """Support points of a task; of each class, where there are classes."""
    inductive: bool = False
    """Classify images one by one: batch statistics come from the support alone."""
    views: bool = False
    """Average answers over views: characters turned by 90° and shifted by up to a pixel (36), photographs mirrored (two)."""
    data_dir: Path | None = None
    """Where the images lie now, if not where they lay in training."""
    rollouts: int | None = None
    """Of agents: trajectories of each update, and of each mean return."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint=f"(default: RUN/{FILE})")] = None
    """File for the JSON."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Evaluate, argv, prog="metaprior evaluate", help=HELP)
    if asked.steps < 0:
        raise ValueError(f"--steps cannot be negative, got {asked.steps}")
    for name in ("tasks_count", "queries", "ways", "shots"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    learned.require_run(asked.run)
    if policies.is_policy(asked.run):
        usual = Evaluate(asked.run, tasks_count=policies.TASKS, steps=policies.UPDATES, rollouts=policies.ROLLOUTS)
        return _of_policy(parse(Evaluate, argv, prog="metaprior evaluate", help=HELP, default=usual))
    if asked.rollouts is not None:
        raise ValueError(f"--rollouts is for priors over policies, and {asked.run} is none: leave it out")
    images = runs.open_run(asked.run).settings.get("tasks") in IMAGE_SETS
    fewer = lambda: less(asked, images=images)
    with console.waiting(f"evaluating on {asked.tasks_count} unseen tasks"), exhausted.explained(fewer):
        trained = opened(asked)
        with explained(asked, trained.setup, steps=asked.steps, tasks_count=asked.tasks_count):
            result = scores(trained, steps=asked.steps, tasks_count=asked.tasks_count)
    if trained.setup.tasks.shape is not None:
        result |= {"queries": trained.setup.tasks.eval_queries, "inductive": asked.inductive, "views": asked.views}
    _tell(asked, result, table(result, SHOWN), trained.notes)
    return 0


def explained(asked: Evaluate, setup: Setup, *, steps: int, tasks_count: int) -> AbstractContextManager[None]:
    """Of what is assembled: bytes too, where memory is short."""
    find = lambda: estimates.of_evaluation(setup, steps=steps, num_tasks=tasks_count)
    fewer = lambda: less(asked, images=setup.tasks.shape is not None)
    return exhausted.explained(fewer, lambda: estimates.told("the program that judges tasks", find))


def less(asked: Evaluate, *, images: bool) -> str:
    """What to turn down where memory is short."""
    given = {"--queries": asked.queries, "--shots": asked.shots} | ({"--ways": asked.ways} if images else {})
    sizes = (flag if value is None else f"{flag} ({value})" for flag, value in given.items())
    tasks = f"--tasks-count ({asked.tasks_count}, of which up to {evaluation.TOGETHER} are judged at a time)"
    views = "leave out --views, " if asked.views else ""
    return f"{views}lower {', '.join(sizes)}, --steps ({asked.steps}) or {tasks}"


def _of_policy(asked: Evaluate) -> int:
    for name in ("queries", "ways", "shots", "inductive", "views", "data_dir"):
        if getattr(asked, name):
            raise ValueError(
                f"--{name.replace('_', '-')} is not for agents, and {asked.run} is a prior over policies: leave it out"
            )
    rollouts = policies.ROLLOUTS if asked.rollouts is None else asked.rollouts
    fewer = f"lower --tasks-count ({asked.tasks_count}) or --rollouts ({rollouts})"
    with console.waiting(f"acting in {asked.tasks_count} unseen tasks"), exhausted.explained(lambda: fewer):
        prior = policies.load_policy(asked.run)
        result = returns.scores(prior, updates=asked.steps, num_tasks=asked.tasks_count, rollouts=rollouts)
    _tell(asked, result, returns.table(result), prior.notes)
    return 0


def _tell(asked: Evaluate, result: dict[str, Any], shown: Table | Group, notes: Sequence[str]) -> None:
    for line in notes:
        console.note(line)
    if asked.json:
        print(json.dumps(result, allow_nan=False))
    else:
        console.output().print(shown)
    save(result, asked.out or asked.run / FILE, required=asked.out is not None)


def opened(asked: Evaluate) -> Trained:
    """The run; another way to ask its tasks gets a calibration of its own."""
    usually = asked.queries is None and asked.ways is None and asked.shots is None
    if usually and not asked.inductive and not asked.views:
        return training.open_trained(asked.run, steps=asked.steps, data_dir=asked.data_dir)
    usual, state, notes = training.open_state(asked.run, data_dir=asked.data_dir)
    settings = _asked_with(usual.settings, usual.tasks, ways=asked.ways, shots=asked.shots)
    setup = assemble(settings, eval_queries=asked.queries, inductive=asked.inductive, views=asked.views)
    if asked.inductive and setup.model.inductive is None:
        raise ValueError("--inductive is for networks with batch statistics: this run has none, leave it out")
    steps = max(asked.steps, training.TEST_STEPS)
    with explained(asked, setup, steps=steps, tasks_count=evaluation.TOGETHER):
        calibration = evaluation.calibrate_steps(setup, state, steps=steps)
    return Trained(setup, state, calibration, notes)


def _asked_with(settings: Settings, tasks: Tasks, *, ways: int | None, shots: int | None) -> Settings:
    """Tasks of another size than those of training, which stay what they were."""
    changes: dict[str, Any] = {}
    if ways is not None:
        changes |= {"ways": ways, "train_ways": tasks.outputs_in_training}
    if shots is not None:
        changes |= {"shots": shots}
    if shots is not None and tasks.shape is not None:
        changes |= {"train_shots": settings.train_shots or tasks.shots}
    return replace(settings, **changes)


def scores(trained: Trained, *, steps: int, tasks_count: int) -> dict[str, Any]:
    """What is printed and saved: the scores, and what was scored."""
    settings, calibration = trained.setup.settings, trained.calibration
    result = evaluation.evaluate(trained.setup, trained.state, calibration, steps=steps, num_tasks=tasks_count)
    about = {
        "task_set": settings.tasks,
        "method": settings.method,
        "seed": settings.seed,
        "shots": trained.setup.tasks.shots,
    }
    tasks = trained.setup.tasks
    about |= {} if tasks.shape is None else {"ways": tasks.outputs}
    return {**result, **about, "iteration": int(trained.state.iteration)}


def save(result: dict[str, Any], path: Path, *, required: bool) -> None:
    """Write the JSON; a run folder that is only to be read is no reason to lose the table."""
    try:
        write_atomically(path, (json.dumps(result, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror}): choose another --out"
        if required:
            raise ValueError(problem) from error
        console.note(problem)


def table(result: dict[str, Any], shown: Sequence[int]) -> Table:
    """Scores after the steps that are `shown`, and after the last one."""
    title = (
        f"{result['method']} on {result['task_set']}: {result['tasks']} unseen tasks, {result['shots']} support points"
        + (f" of each of {result['ways']} classes" if "ways" in result else "")
        + ("".join(_ways_asked(result)) if "queries" in result else "")
    )
    grid = Table(box=box.SIMPLE_HEAD, title=title, title_style="bold", title_justify="left", caption_justify="left")
    classes = "accuracy" in result
    grid.caption = CLASSES if classes else CURVES
    for name in CLASS_COLUMNS if classes else CURVE_COLUMNS:
        grid.add_column(name, justify="right")
    for step in result["steps"]:
        if step in shown or step == result["steps"][-1]:
            values = {name: values[step] for name, values in result.items() if isinstance(values, list)}
            grid.add_row(*(_class_row(values) if classes else _curve_row(values)))
    return grid


def _ways_asked(result: dict[str, Any]) -> Iterator[str]:
    """How images were asked, which decides accuracy as much as the prior does."""
    count, how = result["queries"], "one by one" if result["inductive"] else "together"
    yield f", {count} {'query' if count == 1 else 'queries'} of each, classified {how}"
    if result["views"]:
        yield ", averaged over views"


CURVES = f"± is the 95 % interval of the mean; near and far: within {evaluation.NEAR:g} of a support point, or not"
CURVE_COLUMNS = ("steps", "MSE", "NLL", "CRPS", "90 % coverage", "near", "far", "rank corr.")
CLASSES = f"± is the 95 % interval of the mean; ECE and MCE in 15 bins, MCE over those of {evaluation.RARE} predictions or more"
CLASS_COLUMNS = ("steps", "accuracy", "NLL", "ECE", "MCE")


def _class_row(at_step: dict[str, Any]) -> list[str]:
    return [
        str(at_step["steps"]),
        f"{_percent(at_step['accuracy'], 2)} ± {_percent(at_step['accuracy_ci95'], 2)}",
        *(_number(at_step[name], 4) for name in ("nll", "ece", "mce")),
    ]


def _curve_row(at_step: dict[str, Any]) -> list[str]:
    return [
        str(at_step["steps"]),
        f"{_number(at_step['mse'], 4)} ± {_number(at_step['mse_ci95'], 4)}",
        _number(at_step["nll"], 3),
        _number(at_step["crps"], 3),
        *(_percent(at_step[name]) for name in ("coverage90", "coverage90_near", "coverage90_far")),
        _number(at_step["rank_correlation"], 2),
    ]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"
