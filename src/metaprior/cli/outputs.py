"""What `metaprior adapt` leaves behind: a table and a picture, in a folder of one's choice."""

import csv
import io
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from metaprior import figures
from metaprior.checkpoints import write_atomically
from metaprior.cli import console

TABLE, PICTURE = "predictions.csv", "prediction.png"


def write(out: Path, table: bytes, figure: Figure) -> None:
    """Both files; those of the same names are replaced."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / TABLE, table)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            figures.save(figure, out / PICTURE)
    except OSError as error:
        raise ValueError(f"{out} is not writable ({error.strerror}): choose another --out") from error
    boxes = [one for one in raised if "missing from font" in str(one.message)]
    if boxes:
        console.note(f"names in letters that the font lacks are boxes in {PICTURE}; {TABLE} has them whole")
    for one in raised:
        if one not in boxes:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def as_csv(header: Sequence[str], rows: Iterable[Sequence[str | float]]) -> bytes:
    r"""Text as it is, numbers with nine digits.

    >>> as_csv(["file", "a, b"], [["1.png", 0.25]])
    b'file,"a, b"\n1.png,0.25\n'
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[cell if isinstance(cell, str) else f"{cell:.9g}" for cell in row] for row in rows])
    return file.getvalue().encode()
