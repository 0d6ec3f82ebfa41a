"""Several processes, on one host or on many, that train one prior together: joining, agreeing, and noticing who is gone.

They run the same program; the first writes and shows, the others compute. JAX's own runtime connects them.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from metaprior.parallel import on_numbers

START_UP = 60  # seconds in which all processes must have come
HEARTBEAT = 10  # seconds without a sign of life after which a process counts as lost
FAREWELL = 10  # seconds that those who are done wait for the others
_STATUS = re.compile(r"[A-Z_]+:")  # how the runtime begins to say what happened


class Lost(OSError):
    """Another process of the job is gone; what was saved is whole, and the run can be resumed."""


class Place(NamedTuple):
    """Where a process stands among those of a job."""

    coordinator: str  # HOST:PORT of the first
    processes: int
    process_id: int

    def require_sound(self) -> None:
        """Refuse what cannot be, before anybody waits for it."""
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"--coordinator is HOST:PORT of the first process, got {self.coordinator!r}")
        if self.processes < 1 or not 0 <= self.process_id < self.processes:
            raise ValueError(
                f"--processes N counts them and --process-id is 0 to N − 1, got {self.processes} and {self.process_id}"
            )


def join(place: Place) -> None:
    """Become one of the processes of a job: before anything is computed. Who does not come in time ends it."""
    place.require_sound()
    jax.distributed.initialize(
        place.coordinator,
        place.processes,
        place.process_id,
        initialization_timeout=START_UP,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=FAREWELL,
    )


def leave() -> None:
    """What follows concerns this process alone."""
    jax.distributed.shutdown()


def several() -> bool:
    """Whether there are others."""
    return jax.process_count() > 1


def first() -> bool:
    """Whether this process writes and shows."""
    return jax.process_index() == 0


def of_first(tree: PyTree) -> PyTree:
    """What the first process has, for all; the others give arrays of the same shapes."""
    return on_numbers(lambda array: jax.numpy.asarray(multihost_utils.broadcast_one_to_all(array)), tree)


def words_of_first(values: dict[str, Any]) -> dict[str, Any]:
    """What the first process has to say, for all: anything JSON can hold."""
    data = np.frombuffer(json.dumps(values).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    padded = np.zeros(length, np.uint8)
    padded[: min(length, data.size)] = data[:length]
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes())


def anybody(flag: bool) -> bool:
    """Whether it holds in any process; all must ask."""
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


@contextmanager
def watched() -> Iterator[None]:
    """Turns the runtime's words for a connection that broke into ours."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # which of the two, depends on where it was noticed
        status = _STATUS.match(str(error))
        if not several() or status is None or status[0] == "RESOURCE_EXHAUSTED:":
            raise
        reason = str(error).strip().splitlines()[0]
        raise Lost(f"another process of the job is gone ({reason})") from error
