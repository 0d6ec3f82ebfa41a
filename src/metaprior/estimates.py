"""What a run will take, before it is begun: bytes and seconds, and what to turn down where they do not fit."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from metaprior.meta import trainer
from metaprior.methods import Method
from metaprior.settings import Setup
from metaprior.training import initial_state

TRIAL_ON_IMAGES, TRIAL_ON_ROLLOUTS, TRIAL = (
    3,
    3,
    200,
)  # iterations that are timed: a call costs as much as one that is over in no time
EXHAUSTED = "RESOURCE_EXHAUSTED"  # how XLA begins to say that memory was not enough


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
        raise OutOfMemory(_told(setup, needed))
    state, _ = jax.block_until_ready(compiled(state, *pool))
    began = time.perf_counter()
    jax.block_until_ready(compiled(state, *pool))
    seconds = (time.perf_counter() - began) / length
    asked = setup.settings.iterations if iterations is None else iterations
    return Estimate(needed, asked, seconds, to_compile)


def memory(setup: Setup) -> Memory:
    """Bytes alone: nothing is run, and of the data only their size is looked at."""
    return _memory(_compiled(setup, 1), setup.tasks.pool("train"))


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
        raise OutOfMemory(advice(setup)) from error


def advice(setup: Setup) -> str:
    """One line: bytes needed, bytes there, and the settings that decide, with the values that they have now."""
    try:
        found = memory(setup)
    except (
        Exception
    ):  # where memory is short, to compile again may fail as well: the settings can be named all the same
        found = None
    return _told(setup, found)


def _told(setup: Setup, found: Memory | None) -> str:
    needed = ""
    if found is not None:
        there = "" if found.device is None else f", the device has {size(found.device)}"
        needed = f" (a compiled chunk needs {size(found.total)}, {size(found.temporaries)} of it temporary{there})"
    return f"out of memory{needed}: lower {', '.join(knobs(setup))}"


def knobs(setup: Setup) -> list[str]:
    """The flags that memory depends on, and their values."""
    method, settings = setup.learner.method, setup.settings
    found = [f"--meta-batch ({method.meta_batch})", f"--queries ({setup.tasks.queries})"]
    if setup.rl is not None:
        found.insert(1, f"--rollouts ({setup.tasks.shots})")
    if setup.tasks.shape is None:
        found.append(f"--hidden ({' '.join(map(str, settings.hidden))})")
    else:
        found.append("--filters" if settings.filters is None else f"--filters ({settings.filters})")
        given = (("--train-ways", settings.train_ways), ("--train-shots", settings.train_shots))
        found += [f"{flag} ({value})" for flag, value in given if value is not None]
    if keeps_steps(method):
        found.append(f"--steps ({method.steps[0]}: {method.name} keeps every inner step)")
    return found


def keeps_steps(method: Method) -> bool:
    """Whether the meta-gradient goes back through inner steps, all of which then lie in memory."""
    held = method.row == "gem" and method.column != "conditional"
    short = method.inference in ("implicit", "conjugate") or bool(method.options.get("first_order"))
    return not held and not short and method.steps[0] > 0


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
    shapes = [jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype)) for array in pool]
    return train.lower(state, length, *shapes).compile()


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
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
