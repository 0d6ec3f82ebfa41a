"""`metaprior train`: from task set and method to a run folder that holds a learned prior."""

import dataclasses
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from jax.sharding import Mesh

from metaprior import checkpoints, estimates, parallel, processes, runs, training
from metaprior.cli import console, exhausted, job, summary
from metaprior.cli.arguments import parse
from metaprior.cli.estimate import estimated
from metaprior.cli.unused import require_tasks, require_used
from metaprior.meta import State
from metaprior.predict import Calibration
from metaprior.rl import progress
from metaprior.rl.named import ENVIRONMENTS
from metaprior.settings import TASK_SETS, WATCH_EVERY, Settings, Setup, as_dict, assemble, from_dict, usual
from metaprior.tasks import IMAGE_SETS
from metaprior.tasks.image_sets import EVAL_QUERIES

HELP = """Learn a prior from many small tasks, into a run folder.

examples:
  metaprior train sinusoid --method gem-bml+ --out runs/sine
  metaprior train omniglot --method gem-bml+last-layer --shots 5 --data-dir data --out runs/characters
  metaprior train images --data-dir my-folder --out runs/mine
  metaprior train --resume --out runs/sine --iterations 80000
  metaprior train omniglot --method maml --meta-batch 32 --estimate

my-folder has a sub-folder of pictures for each of many classes; to label pictures of a few, adapt a prior that was learned from
others (metaprior adapt --help).

Ctrl-C saves and stops; --resume goes on, and ends with the same prior as if nothing had happened. Task sets that begin with rl-
have flags of their own: metaprior train rl-navigation --help."""

OF_AGENTS = f"""Learn a prior over policies from many goals, into a run folder.

examples:
  metaprior train rl-navigation --method gem-bml+ --out runs/walk
  metaprior train rl-navigation --method maml-trpo --rollouts 20 --queries 20 --meta-batch 20 --rate 0.1
  metaprior train rl-cheetah-velocity --method gem-bml+ --meta-batch 40 --estimate
  metaprior train --resume --out runs/walk --iterations 600

An agent meets a goal that it does not see, collects --rollouts trajectories and takes an inner step from them, --steps times;
then --queries more for the second stage, or for the score. Methods are those of `metaprior methods --rl`. Flags for points,
images and classes are refused: --shots, --ways, --network, …

Progress shows mean returns before and after one update, of {progress.ROLLOUTS} rollouts in each of {progress.TASKS} validation
tasks, the same at every look. They say how training goes; how well the prior does, says metaprior evaluate. Half-cheetahs need
pip install 'metaprior[rl]'."""


@dataclass(frozen=True)
class Choices(Settings):
    """What decides the outcome. `auto` is the method's own value: see `metaprior methods`."""

    tasks: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(help=f"Which tasks to learn from: {', '.join(TASK_SETS)}.")
    ] = Settings.tasks
    hidden: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = Settings.hidden
    """Widths of the hidden layers."""

    def __post_init__(self):
        """Settings that cannot be are refused by `checked`, in our words instead of the parser's."""

    def checked(self) -> Settings:
        """The settings, if they can be."""
        return Settings(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Settings)})


@dataclass(frozen=True)
class Train:
    """The flags of `metaprior train`."""

    settings: Choices
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: runs/TASKS-METHOD-SEED)")] = None
    """Folder of the run: new or empty, unless resuming."""
    resume: bool = False
    """Go on with the run in --out, with its settings; only --iterations may be given anew, and raised."""
    chunk: Annotated[int, tyro.conf.arg(help_behavior_hint="(default: 500; of images 25, of agents 10)")] = 500
    """Iterations per compiled call, and per row of the metrics: progress is shown, and Ctrl-C heeded, after each."""
    checkpoint_every: Annotated[
        int, tyro.conf.arg(help_behavior_hint="(default: 2000; of images 500, of agents 50)")
    ] = 2000
    """Iterations between checkpoints."""
    quiet: bool = False
    """Show warnings and errors only."""
    estimate: bool = False
    """Print the memory and the time that the run will take, from a trial of a few iterations, and do not begin it."""
    devices: str | None = None
    """On how many devices tasks are spread: a number, or all; one if not given. Results stay what they are."""
    by_layer: bool = False
    """On several devices: each keeps the prior and the meta-optimiser's state of its own layers alone. Results stay the same."""
    coordinator: str | None = None
    """Of several processes: HOST:PORT of the first. All are given the same command; only the first reads and writes --out."""
    processes: int | None = None
    """Of several processes: how many there are."""
    process_id: int | None = None
    """Of several processes: which this is, 0 to N − 1."""


def run(argv: list[str]) -> int:
    """The command."""
    if not argv:
        raise ValueError(
            f"say which tasks to learn from: metaprior train sinusoid learns for {Settings.iterations:,} iterations, which takes "
            "minutes; metaprior train --help says what else there is"
        )
    asked = _parsed(argv)
    require_tasks(asked.settings.tasks)
    for name in ("chunk", "checkpoint_every"):
        if getattr(asked, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(asked, name)}")
    place = job.place_of(asked.coordinator, asked.processes, asked.process_id)
    with job.joined(place):
        return _run(asked, argv, many=place is not None)


def _run(asked: Train, argv: list[str], *, many: bool) -> int:
    folder = asked.out or default_folder(asked.settings)
    if asked.resume and asked.out is None and not folder.exists():
        raise ValueError(
            f"which run is to go on? name its folder with --out; without it that would be {folder}, which is not there"
        )
    if asked.resume and processes.first():
        asked = _with_settings_of(folder, argv)
    if many:
        asked = _as_the_first(asked)
    if asked.settings.data_dir is not None:  # the run is evaluated from other folders, too
        asked = replace(asked, settings=replace(asked.settings, data_dir=asked.settings.data_dir.absolute()))
    mesh = _mesh(asked.devices, many=many)
    if asked.by_layer and mesh is None:
        raise ValueError("--by-layer divides layers among devices: say which, --devices all")
    if not asked.resume:
        require_used(asked.settings.checked())
    setup = assemble(asked.settings.checked())
    if setup.tasks.elsewhere:
        setup.tasks.pool("train")  # says so, before there is a folder
    if setup.tasks.shape is not None:
        with console.waiting("reading images"):
            for split in ("train", "validation", "test"):  # too few to be judged by is said now, not after hours
                setup.tasks.pool(split)
        _tell_fewer_queries(setup)
    if asked.estimate:
        if mesh is not None:
            raise ValueError("--estimate is for one device: leave out --devices and --coordinator")
        console.output().print(estimated(setup, done=_done(folder) if asked.resume else 0))
        return 0
    flags: dict[str, Any] = dict(
        mesh=mesh, by_layer=asked.by_layer, chunk=asked.chunk, checkpoint_every=asked.checkpoint_every
    )
    if not processes.first():
        with estimates.explained(setup):
            training.train(setup, None, **flags)
        return 0
    if mesh is not None and (idle := parallel.idle(setup.learner.method.meta_batch, mesh)):
        console.note(f"{setup.learner.method.meta_batch} tasks over {mesh.size} devices leave {idle} places idle")
    with estimates.explained(setup), opened(setup, folder, resume=asked.resume) as folder_run:
        train_into(setup, folder_run, quiet=asked.quiet, **flags)
    return 0


def _tell_fewer_queries(setup: Setup) -> None:
    """Where a folder of one's own has not as many pictures as are usually asked."""
    if (queries := setup.tasks.eval_queries) is not None and queries < EVAL_QUERIES and processes.first():
        console.note(
            f"a class kept for validation or testing has {queries + setup.tasks.shots} pictures: probabilities are calibrated "
            f"on {queries} images of each class instead of {EVAL_QUERIES}, and judged so by metaprior evaluate"
        )


def _mesh(devices: str | None, *, many: bool) -> Mesh | None:
    if devices is None and not many:
        return None
    if devices is not None and devices != "all" and not devices.isdigit():
        raise ValueError(f"--devices is a number or all, got {devices!r}")
    return parallel.task_mesh(None if devices in (None, "all") else int(devices))


SAME = ("chunk", "checkpoint_every", "devices", "by_layer", "estimate")


def _as_the_first(asked: Train) -> Train:
    """The flags of the first process, for all, so that all run one program. Where images lie may differ from host to host."""
    mine = {"settings": as_dict(asked.settings), "versions": [jax.__version__, str(jax.numpy.zeros(()).dtype)]}
    mine["settings"]["data_dir"] = None
    mine |= {name: getattr(asked, name) for name in SAME}
    theirs = processes.words_of_first(mine)
    if theirs["versions"] != mine["versions"]:
        raise ValueError(f"the first process runs JAX {theirs['versions']}, this one {mine['versions']}: use the same")
    settings = from_dict(theirs["settings"] | {"data_dir": asked.settings.data_dir})
    same = {name: theirs[name] for name in SAME}
    return replace(asked, settings=Choices(**vars(settings)), **same)


def _parsed(argv: list[str]) -> Train:
    """The flags; those that are not given are what is usual for the task set."""
    named = next((word for word in argv if word in ENVIRONMENTS), None)
    if named and {"-h", "--help"} & set(argv):
        return parse(Train, argv, prog="metaprior train", help=OF_AGENTS, default=_usual(usual(named)))
    asked = parse(Train, argv, prog="metaprior train", help=HELP)
    tasks = asked.settings.tasks
    if tasks not in ENVIRONMENTS and tasks not in IMAGE_SETS:
        return asked
    text = OF_AGENTS if tasks in ENVIRONMENTS else HELP
    return parse(Train, argv, prog="metaprior train", help=text, default=_usual(usual(tasks)))


def _usual(settings: Settings) -> Train:
    """Of images and agents an iteration takes long: more looks at it, a shorter wait after Ctrl-C, and more checkpoints."""
    usual_flags = Train(Choices(**vars(settings)))
    if settings.tasks in ENVIRONMENTS:
        return replace(usual_flags, chunk=10, checkpoint_every=50)
    return (
        replace(usual_flags, chunk=WATCH_EVERY, checkpoint_every=500) if settings.tasks in IMAGE_SETS else usual_flags
    )


def default_folder(settings: Settings) -> Path:
    """Where a run goes if nobody says so, under a name that needs no quotes in a shell.

    >>> default_folder(Settings(method="gem-bml+", seed=3)).as_posix()
    'runs/sinusoid-gem-bml-plus-3'
    """
    words = settings.tasks, settings.method.replace("+", "-plus-"), str(settings.seed)
    return Path("runs") / re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words))


@contextmanager
def opened(setup: Setup, folder: Path, *, resume: bool) -> Iterator[runs.Run]:
    """The run folder, locked until the end of the block."""
    with console.waiting("trying the settings on a first task"):
        folder_run = training.create_run(setup, folder, resume=resume)
    try:
        for line in folder_run.notes:
            console.note(line)
        yield folder_run
    finally:
        runs.release(folder_run)


def train_into(setup: Setup, folder_run: runs.Run, *, quiet: bool = False, **flags: Any) -> None:
    """Train, with the flags of `training.train`, and calibrate, with progress and a summary. Policies are not calibrated."""
    began, folder, total = time.perf_counter(), folder_run.folder, setup.settings.iterations
    start = max(checkpoints.available(folder_run.checkpoints), default=0)
    try:
        with (
            console.progress(total, start=start, quiet=quiet) as report,
            processes.watched(),
        ):
            state = training.train(setup, folder_run, report=report, **flags)
    except KeyboardInterrupt as stop:
        words = str(stop) or "stopped; go on from the last checkpoint"
        raise KeyboardInterrupt(f"{words}: {training.go_on(folder)}") from None
    except processes.Lost as lost:
        raise processes.Lost(
            f"{lost}; go on from the last checkpoint with as many as you like: {training.go_on(folder)}"
        ) from None
    if processes.several():
        processes.leave()
    found = (
        summary.of_agents(setup, folder_run)
        if setup.rl
        else summary.sureness(setup, _calibrated(setup, folder_run, state))
    )
    if not quiet:
        console.output().print(summary.table(setup, folder_run, found, time.perf_counter() - began))


def _done(folder: Path) -> int:
    """Iterations that a run has behind it."""
    return max(checkpoints.available(runs.open_run(folder).checkpoints), default=0)


def _with_settings_of(folder: Path, argv: list[str]) -> Train:
    """The flags again, with a run's own settings as defaults: those that were given and differ are found by `runs`."""
    kept = from_dict(dict(runs.open_run(folder).settings))
    asked = parse(Train, argv, prog="metaprior train", help=HELP, default=_usual(kept))
    if asked.settings.iterations < kept.iterations:
        raise ValueError(
            f"the run is to have {kept.iterations} iterations, --iterations {asked.settings.iterations} "
            "would cut it short: it can only be raised"
        )
    return asked


def _calibrated(setup: Setup, folder_run: runs.Run, state: State) -> Calibration:
    known = training.load_calibration(folder_run, int(state.iteration))
    if known is not None:
        return known
    later = f"the training is done and saved, and {training.go_on(folder_run.folder)} calibrates it: end other programs before"
    try:
        with console.waiting("calibrating on validation tasks"), exhausted.explained(lambda: later):
            return training.finish(setup, folder_run, state)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped while calibrating; the training is done and saved, and {training.go_on(folder_run.folder)} calibrates it"
        ) from None
