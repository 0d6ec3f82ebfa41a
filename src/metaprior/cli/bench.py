"""`metaprior bench`: measurements of the program itself."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from metaprior.cli import console
from metaprior.cli.arguments import parse
from metaprior.cli.bench_page import page
from metaprior.cli.bench_scaling import scaling
from metaprior.names import require_known

HELP = """usage: metaprior bench WHAT …

Measure the program itself: what a meta-step costs, whatever it learns.

what:
  memory     temporary memory of one meta-step, by method and number of inner steps
  sinusoid   meta-iterations per second beside PyTorch, TorchOpt, higher and a bare JAX loop, on one problem
  images     milliseconds of a meta-iteration on images beside the passes it cannot do without; MAML beside torch.func
  rl         environment steps a second of rollouts and of whole meta-iterations
  scaling    seconds of a meta-step of several processes on one host, with as many times the tasks
  page       milliseconds until the page of metaprior demo answers, step by step

examples:
  metaprior bench memory
  metaprior bench sinusoid
  metaprior bench images
  metaprior bench rl
  metaprior bench scaling

options:
  -h, --help   this text; of a measurement: metaprior bench sinusoid --help
"""

MEMORY_HELP = """Measure the memory that one meta-step needs besides its inputs and outputs, as compiled.

examples:
  metaprior bench memory
  metaprior bench memory --methods gem-bml+ maml imaml --steps 1 10 100
  metaprior bench memory --json

Methods that go through inference by back-propagation keep every inner step; GEM-BML and GEM-BML+ keep none."""

SINUSOID_HELP = """Time our MAML and GEM-BML+ beside the libraries people would use instead.

examples:
  metaprior bench sinusoid
  metaprior bench sinusoid --only 'metaprior maml' 'bare JAX' --rounds 21
  metaprior bench sinusoid --out results/bench-sinusoid.json

All train on 10-shot sinusoids (MLP 1-40-40-1, 5 tasks, one inner step, Adam) from the same weights on the same batches, and
every implementation of MAML must have the same loss after 200 iterations. They are timed in turns, round after round: on a
busy machine look at the ratios, not at the speeds. PyTorch and its libraries come with pip install 'metaprior[bench]';
what is missing is named and left out.

gem-bml+ has a point as prior and posterior and takes one step of MAML's kind on the support and one on the query; its
default recipe also learns a width for every weight. Of torch.func the meta-gradient is compiled and PyTorch's Adam follows,
or the whole iteration is compiled, Adam written out. Losses are those of unseen tasks after one step."""

IMAGES_HELP = """Time a whole meta-iteration on images beside the forward and backward passes that it cannot do without.

examples:
  metaprior bench images
  metaprior bench images --setting omniglot-5w1s --precision tf32 --rounds 21
  metaprior bench images --out results/bench-images.json

GEM-BML+ takes 5 steps on the support and one on the query, each with weights of its own for every task. The floor is as many
passes over as many images with one set of weights for all tasks, the faster of a convolution and patches times a matrix: no
steps, no drawing of tasks, no reports. Both are timed in turns in one process; look at the ratios.

Then second-order MAML, ours and by torch.func, from the same weights on the same episodes, whose first losses must agree.
PyTorch comes with pip install 'metaprior[bench]'; where it is missing, that is said and left out. Random bytes stand in for
images where METAPRIOR_DATA does not say where they are."""


RL_HELP = """Time rollouts and whole meta-iterations of agents, in environment steps a second.

examples:
  metaprior bench rl
  metaprior bench rl --only 'navigation rollouts' --trajectories 65540
  metaprior bench rl --only 'half-cheetah rollouts' --engine mjx
  metaprior bench rl --only 'half-cheetah gap' --engine plane
  metaprior bench rl --out results/bench-rl.json

Half-cheetah runs on MuJoCo's own engine where JAX computes on a CPU, and by equations of its own, which agree with it, where
there is an accelerator; it needs pip install 'metaprior[rl]'. The first call, which compiles, is not timed. 'half-cheetah gap'
is how far an engine is from MuJoCo's own after single steps."""


@dataclass(frozen=True)
class Memory:
    """The flags of `metaprior bench memory`."""

    steps: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = (2, 100)
    """Inner steps, of each stage."""
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("gem-bml+", "maml")
    """Methods to compare; see `metaprior methods`."""
    tasks: str = "sinusoid"
    """Which tasks the meta-batch is drawn from."""
    json: bool = False
    """Print one JSON object on stdout: method -> steps -> bytes."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write."""


@dataclass(frozen=True)
class Sinusoid:
    """The flags of `metaprior bench sinusoid`."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """Implementations to time, by the names of the table."""
    rounds: int = 9
    """How often each is timed; the median counts."""
    iterations: int = 200
    """Meta-iterations between two looks at the clock; for JAX this is one dispatch."""
    threads: int = 1
    """Threads of PyTorch. One is the fastest on networks this small."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write."""
    json: bool = False
    """Print one JSON object on stdout, with the speeds as `implementations` and the losses as `loss_after_200`."""


@dataclass(frozen=True)
class Images:
    """The flags of `metaprior bench images`."""

    setting: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """omniglot-5w1s, omniglot-20w1s, miniimagenet-5w1s, or 'miniimagenet-5w1s, 16 tasks'."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """Programs to time, by the names of the table; torch is the comparison with PyTorch."""
    precision: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("tf32", "float32")
    """Of products: tf32, float32 or bf16. A CPU knows no tf32."""
    queries: int | None = None
    """Query images of each class; auto: 5 of Omniglot, 15 of miniImageNet."""
    meta_batch: int | None = None
    """Tasks of a meta-iteration; auto: 32 (5-way), 16 (20-way), 4 (miniImageNet)."""
    filters: int | None = None
    """Channels of every block of the network; auto: 64 and 32."""
    rounds: int = 9
    """How often each is timed; the median counts."""
    iterations: int = 50
    """Meta-iterations of one dispatch."""
    compiled: bool = False
    """Let torch.compile take part, which takes minutes."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write, again after each setting."""
    json: bool = False
    """Print one JSON object on stdout."""


@dataclass(frozen=True)
class RL:
    """The flags of `metaprior bench rl`."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """navigation or half-cheetah, and rollouts or meta-iteration: 'navigation rollouts'; or 'half-cheetah gap'."""
    trajectories: int = 800
    """Of rollouts; a multiple of their 20 tasks."""
    meta_batch: int | None = None
    """Tasks of a meta-iteration; auto: 20 of navigation, 40 of half-cheetah."""
    rollouts: int = 20
    """Trajectories of each inner step in a meta-iteration, and of the query."""
    horizon: int | None = None
    """Steps of a trajectory; auto: the environment's own."""
    repeats: int = 5
    """How often each is timed; the median counts."""
    engine: str | None = None
    """Of half-cheetah: c (MuJoCo), kernel, plane or mjx; auto: that for the machine at hand."""
    out: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: none)")] = None
    """Results file to write; what it has of other things or batches stays."""
    json: bool = False
    """Print one JSON object on stdout: name -> environment steps a second, or the largest difference."""


def run(argv: list[str]) -> int:
    """The command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    measurements = {
        "memory": memory, "sinusoid": sinusoid, "images": images, "rl": rl, "scaling": scaling, "page": page,
    }  # fmt: skip
    require_known("measurement", argv[0], measurements)
    return measurements[argv[0]](argv[1:])


def memory(argv: list[str]) -> int:
    """`metaprior bench memory`."""
    from metaprior import benchmarks

    asked = parse(Memory, argv, prog="metaprior bench memory", help=MEMORY_HELP)
    if not asked.steps or not asked.methods:
        raise ValueError("--steps and --methods need at least one value each")
    began = time.perf_counter()
    with console.waiting("compiling"):
        found = benchmarks.memory(asked.methods, asked.steps, tasks=asked.tasks)
    if asked.out is not None:
        command = shlex.join(["metaprior", "bench", "memory", *argv])
        write(asked.out, benchmarks.memory_record(found, asked.tasks, command, time.perf_counter() - began))
    if asked.json:
        print(json.dumps(found))
    else:
        console.output().print(memory_table(found))
    return 0


def sinusoid(argv: list[str]) -> int:
    """`metaprior bench sinusoid`."""
    from metaprior.benchmarks import sinusoid as benchmark

    asked = parse(Sinusoid, argv, prog="metaprior bench sinusoid", help=SINUSOID_HELP)
    with progress() as report:
        found = benchmark.measure(
            only=asked.only, rounds=asked.rounds, iterations=asked.iterations, threads=asked.threads, report=report
        )
    for name, reason in found["left_out"].items():
        console.note(f"{name} is left out: {reason}")
    if asked.out is not None:
        command = shlex.join(["metaprior", "bench", "sinusoid", *argv])
        write(asked.out, benchmark.record(found, command))
    if asked.json:
        print(json.dumps(found))
    else:
        console.output().print(speed_table(found))
    disagreements = benchmark.disagreements(found["loss_after_200"])
    for sentence in disagreements:
        console.note(f"speeds say nothing: {sentence}")
    return 1 if disagreements else 0


def images(argv: list[str]) -> int:
    """`metaprior bench images`."""
    from metaprior.benchmarks import images as benchmark

    asked = parse(Images, argv, prog="metaprior bench images", help=IMAGES_HELP)
    sizes = {
        name: value for name in ("queries", "meta_batch", "filters") if (value := getattr(asked, name)) is not None
    }
    command = shlex.join(["metaprior", "bench", "images", *argv])
    keep = lambda found: None if asked.out is None else benchmark.write(asked.out, found, command)
    with progress() as report:
        found = benchmark.measure(
            settings=asked.setting or tuple(benchmark.SETTINGS), only=asked.only, precisions=asked.precision,
            rounds=asked.rounds, iterations=asked.iterations, compiled=asked.compiled, sizes=sizes, report=report, keep=keep,
        )  # fmt: skip
    for line in benchmark.notes(found):
        console.note(line)
    if asked.json:
        print(json.dumps(found))
    else:
        for table in benchmark.tables(found):
            console.output().print(words_table(*table))
    disagreements = benchmark.disagreements(found)
    for sentence in disagreements:
        console.note(f"speeds say nothing: {sentence}")
    return 1 if disagreements else 0


def rl(argv: list[str]) -> int:
    """`metaprior bench rl`."""
    from metaprior.benchmarks import rl as benchmark

    asked = parse(RL, argv, prog="metaprior bench rl", help=RL_HELP)
    scale = benchmark.Scale(**{name: getattr(asked, name) for name in benchmark.Scale._fields})
    with console.waiting("timing"):
        found = benchmark.measure(scale, asked.only)
    if asked.out is not None:
        made = benchmark.record(found, shlex.join(["metaprior", "bench", "rl", *argv]))
        write(asked.out, benchmark.beside(made, json.loads(asked.out.read_text())) if asked.out.exists() else made)
    if asked.json:
        print(json.dumps({name: next(iter(measured.numbers.values())) for name, measured in found.items()}))
    else:
        lines = [(name, measured.batch, measured.words) for name, measured in found.items()]
        console.output().print(words_table("agents", ("measurement", "batch", "found"), lines))
    return 0


def memory_table(found: dict[str, dict[str, int]]) -> Table:
    """Memory by method and steps, and how much it grows from the first to the last."""
    steps = list(next(iter(found.values())))
    grid = Table(box=box.SIMPLE_HEAD, title="temporary memory of one meta-step", title_justify="left")
    grid.add_column("method")
    for step in steps:
        grid.add_column(f"{step} steps", justify="right")
    grid.add_column("growth", justify="right")
    for method, sizes in found.items():
        growth = sizes[steps[-1]] / max(sizes[steps[0]], 1)
        grid.add_row(method, *(f"{sizes[step] / 1024:,.0f} KiB" for step in steps), f"× {growth:.2f}")
    return grid


def speed_table(found: dict[str, Any]) -> Table:
    """Speed, how many times that of the references, and what was learned."""
    title = f"meta-iterations per second; {found['hardware']}"
    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    grid.add_column("implementation")
    for head in ("it/s", *(f"× {reference}" for reference in found["ratios"]), "loss after 200"):
        grid.add_column(head, justify="right")
    for name, speed in found["implementations"].items():
        ratios = [f"{ratios[name]:.3g}" for ratios in found["ratios"].values()]
        grid.add_row(name, f"{speed:,.0f}", *ratios, f"{found['loss_after_200'][name]:.4f}")
    return grid


def words_table(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """Words first, then numbers."""
    grid = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for place, word in enumerate(head):
        grid.add_column(word, justify="right" if place > 1 else "left")
    for line in lines:
        grid.add_row(*line)
    return grid


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr with what is being timed; nothing where there is no terminal."""
    terminal = Console(stderr=True)
    columns = (BarColumn(bar_width=16), TimeRemainingColumn(compact=True), TextColumn("{task.description}"))
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("drawing tasks", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def write(path: Path, results: dict[str, Any]) -> None:
    """A results file, in a folder that is made if it does not exist."""
    from metaprior.checkpoints import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=1) + "\n").encode())
