"""Being asked to stop, without being stopped in the middle of something."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C, or a request to end, waits for the end of a chunk, so that a checkpoint can be written; a second does not."""
    asked: list[int] = []

    def handler(signum, frame):
        if asked:
            raise KeyboardInterrupt
        asked.append(signum)

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
