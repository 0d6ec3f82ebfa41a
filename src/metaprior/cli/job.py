"""One command in several processes: `--coordinator HOST:PORT --processes N --process-id I`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from metaprior import processes
from metaprior.processes import Place


def place_of(coordinator: str | None, count: int | None, number: int | None) -> Place | None:
    """Where this process stands, or None where it is the only one. The three flags come together."""
    given = [value is not None for value in (coordinator, count, number)]
    if not any(given):
        return None
    if coordinator is None or count is None or number is None:
        raise ValueError("several processes need all of --coordinator HOST:PORT, --processes N and --process-id I")
    place = Place(coordinator, count, number)
    place.require_sound()
    return place


@contextmanager
def joined(place: Place | None) -> Iterator[None]:
    """Inside, this is one process of a job. If it fails, it ends at once: at a normal exit it would wait for the others."""
    if place is None:
        yield
        return
    processes.join(place)
    try:
        with processes.watched():
            yield
    except BaseException as error:
        _end(error)
    processes.leave()


def _end(error: BaseException) -> None:
    from metaprior.cli import FAILED, INTERRUPTED, exit_code  # here, because that imports commands

    interrupted = isinstance(error, KeyboardInterrupt)
    code = INTERRUPTED if interrupted else exit_code(error) if isinstance(error, Exception) else FAILED
    if code is None or "--debug" in sys.argv:
        import traceback

        traceback.print_exception(error)
    print(f"metaprior: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED if code is None else code)
