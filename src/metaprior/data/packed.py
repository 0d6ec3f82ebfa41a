"""Arrays from an npz file, never through a pickle."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metaprior.data.problems import DataError


def read_npz(path: Path, keys: Sequence[str], *, mend: str) -> dict[str, np.ndarray]:
    """The arrays of these names; a file that lacks one or is broken is a `DataError` that names it, and how to `mend` it."""
    if not path.is_file():
        raise DataError(str(path.parent), [f"{path.name} is missing: {mend}"])
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {key: file[key] for key in keys}
    except Exception as error:  # a broken file fails in zipfile, zlib, NumPy's header parser, or in what they call
        problem = f"{path.name} cannot be read as an npz file with {', '.join(keys)} ({error}): {mend}"
        raise DataError(str(path.parent), [problem]) from None
