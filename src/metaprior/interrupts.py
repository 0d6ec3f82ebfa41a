"""Being asked to stop, without being stopped in the middle of something."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TOLD = b"\nstopping as soon as the iterations under way are saved; a second Ctrl-C stops at once, without saving\n"


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, or a request to end, waits for the end of a chunk, so that a checkpoint can be written; a second does not."""
    asked: list[int] = []

    def handler(signum, frame):
        if asked:
            raise KeyboardInterrupt
        asked.append(signum)
        os.write(2, TOLD)  # by the descriptor: a handler may have cut into a print

    try:
        previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are not ours to handle
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
