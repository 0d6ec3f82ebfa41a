"""Who computes when: of several processes that share a card, a few compute while the others compile.

Programs that run side by side wait for each other at every launch, and many of them may get less done than few; to compile takes
a processor alone. Where nobody asks for turns (`METAPRIOR_AT_ONCE` is not set) all run at once.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import jax

from experiments import study

VARIABLE = "METAPRIOR_AT_ONCE"
PAUSE = 0.005  # seconds between two looks at who has ended


def folder() -> Path:
    """Where turns are taken: the same for all processes of a checkout."""
    return study.ROOT / ".cache" / "reproduce" / "turns"


@contextmanager
def turn(*, alone: bool = False) -> Iterator[None]:
    """Compute now: beside few enough others, or beside none, where time is measured.

    Locks are the kernel's, so that a process that is killed holds nobody up. All pass one gate, first come, first served: who
    waits for all the others to end is not overtaken by those that come after it.
    """
    if (at_once := int(os.environ.get(VARIABLE, "0"))) < 1:
        yield
        return
    folder().mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with ExitStack() as waiting:
            _take(waiting, "gate", wait=True)
            lanes = [f"lane-{lane}" for lane in range(at_once)]
            if alone:
                for lane in lanes:
                    _take(held, lane, wait=True)
            else:
                while not any(_take(held, lane) for lane in lanes):
                    time.sleep(PAUSE)
        yield


def _take(held: ExitStack, name: str, *, wait: bool = False) -> bool:
    """Lock a file until the end of `held`; whether it was free."""
    file: IO[str] = (folder() / name).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    held.enter_context(file)
    return True


def by_turns(function: Any) -> Callable[..., tuple[Any, float]]:
    """Of what `jax.jit` gives: arguments -> what it finds, when that is done, and the seconds of it alone.

    A call waits for its turn. Compiling does not wait, is done once for arguments of one kind, and does not count.
    """
    made: dict[Any, Any] = {}

    def call(*given: Any) -> tuple[Any, float]:
        leaves, structure = jax.tree.flatten(given)
        kind = structure, *map(jax.typeof, leaves)
        if kind not in made:
            made[kind] = function.lower(*given).compile()
        with turn():
            began = time.perf_counter()
            found = jax.block_until_ready(made[kind](*given))
            return found, time.perf_counter() - began

    return call
