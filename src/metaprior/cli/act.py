"""`metaprior adapt` for a prior over policies: an agent meets a goal, and adapts to it by acting."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from metaprior import figures, runs
from metaprior.cli import console, exhausted, outputs, paths, returns
from metaprior.cli.arguments import parse
from metaprior.policies import ROLLOUTS, UPDATES, AdaptedPolicy, LearnedPolicy, interval, load_policy, require_policy
from metaprior.rl.named import ENVIRONMENTS, Asked, goal_called

HELP = """Let an agent adapt to a goal of your choice, by acting: returns before and after each update.

examples:
  metaprior adapt runs/walk --goal 0.3 -0.2
  metaprior adapt runs/walk --goal 0.3 -0.2 --updates 5 --rollouts 20 --out walked
  metaprior adapt runs/speed --goal 1.5
  metaprior adapt runs/direction --goal backward

Each update collects --rollouts trajectories and takes one inner step. Written are returns.csv, policy.safetensors (the adapted
weights) and paths.png: where the agent went before and after it adapted, or how fast."""

TABLE, WEIGHTS, PICTURE = "returns.csv", "policy.safetensors", "paths.png"


@dataclass(frozen=True)
class Act:
    """The flags of `metaprior adapt`, for agents."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    goal: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORD ...")] = ()
    """What the agent is to reach: two coordinates, a speed, or a direction."""
    updates: int = UPDATES
    """Inner steps, each from rollouts of its own."""
    rollouts: int = ROLLOUTS
    """Trajectories of each update, and of each mean return."""
    seed: int = 0
    """Of all that is random."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: RUN/adapted)")] = None
    """Folder for the table, the weights and the picture; files of these names are replaced."""


def names_goal(argv: list[str]) -> bool:
    """Whether --goal is among the words."""
    return any(word.split("=")[0] == "--goal" for word in argv)


def run_among(argv: list[str]) -> str | None:
    """The first word that is the folder of a run."""
    return next((word for word in argv if (Path(word) / "settings.json").is_file()), None)


def run(argv: list[str]) -> int:
    """The command."""
    if not names_goal(argv) and not {"-h", "--help"} & set(argv) and (folder := run_among(argv)):
        tasks = runs.open_run(folder).settings["tasks"]
        raise ValueError(f"{folder} is a prior over policies, which meets a goal: {ENVIRONMENTS[tasks].usage}")
    asked = parse(Act, argv, prog="metaprior adapt", help=HELP)
    require_policy(asked.run)
    for name, least in (("updates", 0), ("rollouts", 1)):
        if getattr(asked, name) < least:
            raise ValueError(f"--{name} must be at least {least}, got {getattr(asked, name)}")
    with exhausted.explained(lambda: f"lower --rollouts ({asked.rollouts}) or --updates ({asked.updates})"):
        _act(asked)
    return 0


def _act(asked: Act) -> None:
    prior = load_policy(asked.run)
    goal = goal_called(prior.setup.settings.tasks, asked.goal)
    for line in (*prior.notes, *([goal.note] if goal.note else [])):
        console.note(line)
    with console.waiting(f"adapting to {goal.words}"):
        adapted = prior.adapt(goal.task, updates=asked.updates, rollouts=asked.rollouts, seed=asked.seed)
    _write(asked, prior, goal, adapted)


def _write(asked: Act, prior: LearnedPolicy, goal: Asked, adapted: AdaptedPolicy) -> None:
    settings, out = prior.setup.settings, asked.out or asked.run / "adapted"
    found = [interval(row) for row in np.asarray(adapted.returns, float)]
    means, halves = [mean for mean, _ in found], [half for _, half in found]
    title = f"{settings.method} on {settings.tasks}: {goal.words}"
    rows = [[str(update), *("" if value is None else value for value in pair)] for update, pair in enumerate(found)]
    about = {"tasks": settings.tasks, "method": settings.method, "goal": list(asked.goal), "updates": asked.updates}
    try:
        out.mkdir(parents=True, exist_ok=True)
        outputs.write_atomically(out / TABLE, outputs.as_csv(["updates", "return", "return_ci95"], rows))
        adapted.save(out / WEIGHTS, {**about, "iteration": int(prior.state.iteration)})
        picture = paths.picture(adapted, goal, environment=settings.tasks, title=title)
        figures.save(picture, out / PICTURE)
    except OSError as error:
        raise ValueError(f"{out} is not writable ({error.strerror}): choose another --out") from error
    caption = f"means of {asked.rollouts} rollouts; ± is the 95 % interval over rollouts"
    console.output().print(returns.returns_table(title, caption, range(asked.updates + 1), means, halves))
    print("\n".join(str(out / name) for name in (TABLE, WEIGHTS, PICTURE)))
