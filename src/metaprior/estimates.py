"""What a run will take, before it is begun: bytes and seconds, and what to turn down where they do not fit."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaprior import evaluation
from metaprior.meta import trainer
from metaprior.methods import Method
from metaprior.predict import Calibration
from metaprior.settings import Setup
from metaprior.training import initial_state
from metaprior.types import Data

TRIAL_ON_IMAGES, TRIAL_ON_ROLLOUTS, TRIAL = (
    3,
    3,
    200,
)  # iterations that are timed: a call costs as much as one that is over in no time
EXHAUSTED = "RESOURCE_EXHAUSTED"  # how XLA begins to say that memory was not enough
IN_ONE_PIECE = re.compile(r"[Oo]ut of memory (?:while trying to allocate|allocating) ([\d.]+) ?(bytes|[KMGT]iB)")
POWERS = {"bytes": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}  # of 1024
A_CHUNK = "a compiled chunk"
MEMBERSHIP = Path("/proc/self/cgroup")  # Linux: which control groups this process is in
GROUPS = Path("/sys/fs/cgroup")


class Memory(NamedTuple):
    """Bytes of one compiled chunk of iterations."""

    arguments: int  # the state of training, and the pool
    pool: int  # of which: the data that tasks are drawn from
    results: int
    temporaries: int
    device: int | None  # what the device has, where it tells

    @property
    def total(self) -> int:
        """All that is there at once."""
        return self.arguments + self.results + self.temporaries


class Estimate(NamedTuple):
    """What a run will take."""

    memory: Memory
    iterations: int
    seconds_of_iteration: float
    seconds_to_compile: float

    @property
    def seconds(self) -> float:
        """Of the whole run, compilation included."""
        return self.seconds_to_compile + self.iterations * self.seconds_of_iteration


class OutOfMemory(OSError):
    """The device could not hold a run: what it needs, and which settings make it less. As the system's own ENOMEM is one."""


def estimate(setup: Setup, *, iterations: int | None = None) -> Estimate:
    """Compile a short chunk of iterations, and time it from the second call on.

    A longer chunk needs the same memory and a few numbers more for each iteration's report. Reports that images get every few
    iterations alone fall outside of so short a trial.

    Args:
        setup: the pieces.
        iterations: how many are to come; None takes those of the settings.
    """
    length = TRIAL_ON_ROLLOUTS if setup.rl else TRIAL_ON_IMAGES if setup.tasks.shape is not None else TRIAL
    state, pool = initial_state(setup), jax.device_put(setup.tasks.pool("train"))
    began = time.perf_counter()
    compiled = _compiled(setup, length)
    to_compile = time.perf_counter() - began
    needed = _memory(compiled, pool)
    if needed.device is not None and needed.total > needed.device:  # a system would rather kill us than say so
        raise OutOfMemory(f"out of memory{_in_words(A_CHUNK, needed)}: {less(setup)}")
    state, _ = jax.block_until_ready(compiled(state, *pool))
    began = time.perf_counter()
    jax.block_until_ready(compiled(state, *pool))
    seconds = (time.perf_counter() - began) / length
    asked = setup.settings.iterations if iterations is None else iterations
    return Estimate(needed, asked, seconds, to_compile)


def memory(setup: Setup) -> Memory:
    """Bytes alone: nothing is run, and of the data only their size is looked at."""
    return _memory(_compiled(setup, 1), setup.tasks.pool("train"))


def of_evaluation(setup: Setup, *, steps: int, num_tasks: int) -> Memory:
    """Bytes of the program that judges unseen tasks after 0, 1, …, `steps` steps; calibration asks as many at a time."""
    pool = setup.tasks.pool("test")

    def judge(state, calibration, *pool):
        asked = {"at": range(steps + 1), "num_tasks": num_tasks}
        return evaluation.scores(setup, state, calibration, pool=pool, **asked)

    shapes = jax.eval_shape(lambda: (initial_state(setup), _calibration((steps + 1,))))
    return _memory(jax.jit(judge).lower(*shapes, *map(_shape, pool)).compile(), pool)


def of_adaptation(setup: Setup, support: Data, x: Any, *, steps: int, classes: int | None = None) -> Memory:
    """Bytes of a program that adapts to one support and predicts at `x`.

    Args:
        setup: the pieces.
        support: of which only shapes count, as of `x`.
        x: inputs that are predicted at a time.
        steps: of adaptation.
        classes: how many the support is of, where there are classes.
    """

    def answer(key, state, calibration, support, x):
        state = state if classes is None else evaluation.for_classes(setup, state, classes)
        q = jax.tree.map(lambda leaf: leaf[steps], setup.learner.adapt(key, state, support, steps))
        return setup.predictor.finish(setup.predictor.prepare(key, state.prior, q, support, x), calibration)

    shapes = jax.eval_shape(lambda: (jax.random.key(0), initial_state(setup), _calibration(())))
    return _memory(jax.jit(answer).lower(*shapes, support, x).compile(), ())


def exhausted(error: BaseException | None) -> bool:
    """Whether XLA says with it that memory was not enough."""
    return isinstance(error, jax.errors.JaxRuntimeError) and EXHAUSTED in str(error)


@contextmanager
def explained(setup: Setup) -> Iterator[None]:
    """Turns XLA's word for exhausted memory into ours: what was needed, and which settings to turn down."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not exhausted(error):
            raise
        raise OutOfMemory(advice(setup, error)) from error


def advice(setup: Setup, error: Exception) -> str:
    """One line: bytes needed, bytes there, and the settings that decide, with the values that they have now."""
    return f"out of memory{told(A_CHUNK, lambda: memory(setup)) or asked_for(error)}: {less(setup)}"


def told(what: str, find: Callable[[], Memory]) -> str:
    """In brackets: what a program needs, and what there is.

    Empty where that cannot be found out: where memory is short, to compile again may fail as well, and what to turn down can be
    said all the same.
    """
    try:
        return _in_words(what, find())
    except Exception:
        return ""


def _in_words(what: str, found: Memory) -> str:
    there = "" if found.device is None else f", the device has {size(found.device)}"
    return f" ({what} needs {size(found.total)}, {size(found.temporaries)} of it temporary{there})"


def asked_for(error: Exception) -> str:
    """In brackets: the piece of memory that was not to be had, where XLA says how large it was.

    >>> asked_for(RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 bytes."))
    ' (137 GB were asked for in one piece)'
    """
    found = IN_ONE_PIECE.search(f"{error} {error.__cause__}")
    if found is None:
        return ""
    return f" ({size(round(float(found[1]) * 1024 ** POWERS[found[2]]))} were asked for in one piece)"


def less(setup: Setup) -> str:
    """What to turn down where training does not fit."""
    # Processors multiply in single precision whatever they are given, and need as much for it.
    card = setup.tasks.shape is not None and jax.default_backend() != "cpu"
    short = ", or take --precision bf16" if card and setup.settings.precision != "bf16" else ""
    return f"lower {', '.join(knobs(setup))}{short}"


def knobs(setup: Setup) -> list[str]:
    """The flags that memory depends on, and their values."""
    method, settings, tasks = setup.learner.method, setup.settings, setup.tasks
    found = [f"--meta-batch ({method.meta_batch})", f"--queries ({tasks.queries})"]
    if setup.rl is not None:
        found.insert(1, f"--rollouts ({tasks.shots})")
    else:
        found += _sizes(setup)
    if tasks.shape is None:
        found.append(f"--hidden ({' '.join(map(str, settings.hidden))})")
    else:
        found.append("--filters" if settings.filters is None else f"--filters ({settings.filters})")
    if keeps_steps(method):
        found.append(f"--steps ({method.steps[0]}: {method.name} keeps every inner step)")
    return found


def _sizes(setup: Setup) -> Iterator[str]:
    """Support and classes of a task to learn from, by the flags that decide them."""
    settings, tasks = setup.settings, setup.tasks
    ways, shots = settings.train_ways, settings.train_shots
    if (count := tasks.shots if shots is None else shots) > 1:
        yield f"{'--shots' if shots is None else '--train-shots'} ({count})"
    if tasks.shape is not None:
        yield f"--ways ({tasks.outputs})" if ways is None else f"--train-ways ({ways})"


def keeps_steps(method: Method) -> bool:
    """Whether the meta-gradient goes back through inner steps, all of which then lie in memory."""
    short = method.inference in ("implicit", "conjugate") or bool(method.options.get("first_order"))
    return not method.held and not short and method.steps[0] > 0


def size(count: int) -> str:
    """Bytes for people.

    >>> [size(count) for count in (512, 20_480, 3_500_000, 150_000_000_000)]
    ['512 B', '20.5 kB', '3.5 MB', '150 GB']
    """
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if count >= 1000**power:
            return f"{count / 1000**power:.3g} {unit}"
    return f"{count} B"


def _compiled(setup: Setup, length: int) -> Any:
    """The program of training, for so many iterations; from shapes alone."""
    train = jax.jit(trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch), static_argnums=1)
    state, pool = jax.eval_shape(lambda: initial_state(setup)), setup.tasks.pool("train")
    return train.lower(state, length, *map(_shape, pool)).compile()


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


def _calibration(shape: tuple[int, ...]) -> Calibration:
    return Calibration(*[jnp.zeros(shape)] * len(Calibration._fields))


def _memory(compiled: Any, pool: Any) -> Memory:
    found = compiled.memory_analysis()
    if found is None:
        raise ValueError(f"{jax.default_backend()} does not say how much memory a program needs: set JAX_PLATFORMS=cpu")
    told = jax.local_devices()[0].memory_stats() or {}
    return Memory(
        arguments=found.argument_size_in_bytes,
        pool=sum(array.nbytes for array in pool),
        results=found.output_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        device=told.get("bytes_limit", _of_machine()),
    )


def _of_machine() -> int | None:
    """All memory of the machine, where the device is its processor: that of a card is told by the card alone."""
    if jax.default_backend() != "cpu" or not hasattr(os, "sysconf"):  # no such call on Windows
        return None
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits()])


def _limits() -> Iterator[int]:
    """What a container, or the job of a cluster, may take of it: who takes more is killed."""
    for line in MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.exists() else ():
        _, controllers, own = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder, name = (GROUPS / controllers, "memory.limit_in_bytes") if controllers else (GROUPS, "memory.max")
        # A group is bound by those above it too. Within a container only they are seen, the container's own as the root.
        for group in (PurePosixPath(own), *PurePosixPath(own).parents):
            limit = folder / group.relative_to("/") / name
            if limit.is_file() and (most := limit.read_text().strip()).isdigit():  # or "max"
                yield int(most)
