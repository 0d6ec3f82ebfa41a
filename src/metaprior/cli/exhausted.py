"""Out of memory in plain words: what to turn down in the command that ran into it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OF_TRAINING = (
    "lower --meta-batch, --queries, --shots, --ways, --hidden, --filters or --steps, or on a card take --precision bf16"
)
# The first words of a command -> its flags that memory depends on. Commands that know more say more themselves.
KNOBS = {
    "train": OF_TRAINING,
    "plan": OF_TRAINING,
    "federate simulate": OF_TRAINING,
    "federate server": OF_TRAINING,
    "federate client": "lower --tasks",
    "bench memory": "lower --steps",
    "bench images": "lower --meta-batch, --queries or --filters",
    "bench rl": "lower --trajectories, --meta-batch, --rollouts or --horizon",
    "bench scaling": "lower --processes, --tasks or --filters",
}
NO_KNOB = "end other programs that hold memory"


def of_command(argv: list[str]) -> str:
    """What to do where nothing is known but the words of the command.

    >>> of_command(["bench", "memory", "--steps", "1000"])
    'lower --steps'
    """
    return KNOBS.get(argv[0]) or KNOBS.get(" ".join(argv[:2]), NO_KNOB)


@contextmanager
def explained(advice: Callable[[], str], needed: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turns XLA's word for exhausted memory into ours, with bytes and what to turn down; other errors are left alone.

    Args:
        advice: says what to turn down.
        needed: says in brackets what was needed (`estimates.told`). Where it says nothing, what XLA asked for at last is told.
    """
    try:
        yield
    except Exception as error:
        if "jax" not in sys.modules:  # it takes long to load, and nothing can have come from it
            raise
        from metaprior.estimates import OutOfMemory, asked_for, exhausted

        # What went wrong in a process that measured for this one is the cause of what is said here.
        if isinstance(error, OutOfMemory) or not (exhausted(error) or exhausted(error.__cause__)):
            raise
        raise OutOfMemory(f"out of memory{needed() or asked_for(error)}: {advice()}, or {elsewhere()}") from error


def elsewhere() -> str:
    """Where there may be more memory."""
    import jax

    return "use a machine with more" if jax.default_backend() == "cpu" else "use that of the host: JAX_PLATFORMS=cpu"
