"""What the simulated robots need and the rest of the package does not."""

import contextlib
import importlib
import io
from types import ModuleType

CALLED = {"mujoco": "MuJoCo", "mujoco.batch": "MuJoCo 4", "mujoco.mjx": "MuJoCo's MJX", "gymnasium": "Gymnasium"}


class MissingExtra(ModuleNotFoundError, ValueError):
    """Something was asked for that needs a package which is not installed."""


def imported(module: str, *, by: str) -> ModuleType:
    """The module, or in words what is missing and how to get it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # MJX prints which of its own extras are missing
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{by} needs {CALLED[module]}: pip install 'metaprior[rl]' ({error})") from None
