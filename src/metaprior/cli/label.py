"""`metaprior adapt` for a prior that was learned from images: a folder of a few pictures labels new ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from metaprior import learned
from metaprior.cli import console, outputs
from metaprior.cli.contact_sheet import LIMIT, New, Shown, contact_sheet, likely, percent
from metaprior.data import folders
from metaprior.data.folders import READ, UNREAD, folders_of_pictures
from metaprior.data.problems import first_few
from metaprior.labelled import Labelled, Labeller

ROWS = 20  # of the table that is printed


def run(
    folder: Path, support: Path, at: str | None, out: Path, *, steps: int, invert: bool, transductive: bool
) -> None:
    """Adapt the run in `folder` to the pictures of `support`, label those at `at`, and write a table and a contact sheet."""
    if support.exists() and not support.is_dir():
        raise ValueError(
            f"{folder} is a prior of images and {support} is a file: name a folder with a sub-folder of pictures for each class"
        )
    if at is None:
        raise ValueError("which pictures are to be labelled? name a folder of them, or one picture, with --at")
    files = pictures(Path(at))
    _require_apart(out, support, Path(at))
    below = left_out(Path(at), out)
    with console.waiting("reading pictures, compiling and adapting"):
        prior = learned.load_run(folder)
        labeller = prior.adapt_folder(support, steps=steps, invert=invert)
        pixels = labeller.read(files)
        found = labeller.predict(pixels, transductive=transductive)
    if not np.isfinite(found.probabilities).all():
        raise ValueError(f"after {steps} steps predictions are no longer finite: take fewer --steps")
    names = [file.name for file in files]
    outputs.write(out, as_csv(names, found), _sheet(labeller, names, pixels, found))
    beyond = prior.beyond(steps)
    for line in (*below, *([beyond] if beyond else []), *prior.trained.notes, *labeller.notes):
        console.note(line)
    if len(files) > LIMIT:
        console.note(f"{outputs.PICTURE} shows the first {LIMIT} of {len(files)} pictures, {outputs.TABLE} has all")
    console.output().print(table(names, found))
    print(f"{out / outputs.TABLE}: {len(files)} labelled from {len(labeller.images)} pictures\n{out / outputs.PICTURE}")


def pictures(path: Path) -> list[Path]:
    """The picture at that path, or those in that folder by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"there is no picture or folder {path}: check --at")
    if unread := [file.name for file in folders.pictures(path, UNREAD)]:
        raise ValueError(
            f"{first_few(unread, 3)} in {path} cannot be read: convert them to JPEG or PNG, or leave them out"
        )
    if files := folders.pictures(path):
        return files
    deeper = next(folders_of_pictures(path), None)
    hint = f"; folders in it do: name one of them, such as {deeper}" if deeper else ", check --at"
    raise ValueError(f"{path} holds no pictures to label ({', '.join(READ)}){hint}")


def left_out(path: Path, out: Path) -> list[str]:
    """Who names a folder may mean the folders in it, too: a sentence on those with pictures. `out` may be one of them."""
    below = folders_of_pictures(path) if path.is_dir() else []
    names = [str(folder) for folder in below if folder.resolve() != out.resolve()]
    how = "name one folder at a time with --at"
    return [f"pictures of {first_few(names, 3)} are not labelled: {how}"] if names else []


def _require_apart(out: Path, support: Path, at: Path) -> None:
    """What is written must not be read as a picture, or as a class, when the command is given again."""
    written, shown = out.resolve(), support.resolve()
    if written == at.resolve():
        raise ValueError(
            f"--out {out} is the folder of --at: {outputs.PICTURE} would be labelled next time; choose another --out"
        )
    if written == shown or shown in written.parents:
        raise ValueError(
            f"--out {out} lies in {support}: {outputs.PICTURE} would be an example next time; choose another --out"
        )


def as_csv(names: Sequence[str], found: Labelled) -> bytes:
    """A row for each picture: its file, its label and how probable that is, and the probability of every class."""
    own = ["file", "label", "probability"]
    header = [*own, *(f"class {name}" if name in own else name for name in map(str, found.classes))]
    rows = zip(names, found.labels, found.probabilities, strict=True)
    return outputs.as_csv(header, [[name, str(label), float(p.max()), *map(float, p)] for name, label, p in rows])


def table(names: Sequence[str], found: Labelled) -> Table:
    """The first pictures, each with its label and the next best."""
    grid = Table(box=box.SIMPLE_HEAD, caption_justify="left")
    for name in ("picture", "label", "probability", "next"):
        grid.add_column(name, justify="right" if name == "probability" else "left")
    classes = [str(name) for name in found.classes]
    for name, row in zip(names[:ROWS], found.probabilities, strict=False):
        (best, sure), (second, other) = likely(row, classes, len(classes))[:2]
        grid.add_row(name, best, percent(sure), f"{second} {percent(other)}")
    if len(names) > ROWS:
        grid.caption = f"and {len(names) - ROWS} more in {outputs.TABLE}"
    return grid


def _sheet(labeller: Labeller, names: Sequence[str], pixels, found: Labelled):
    """Pictures as the network sees them: stretched, small, and negative if so asked."""
    shown = [Shown(str(name), labeller.images[labeller.numbers == place]) for place, name in enumerate(found.classes)]
    new = [New(*one) for one in zip(names, pixels, found.probabilities, strict=True)]
    settings, steps = labeller.trained.setup.settings, labeller.steps
    exact = labeller.trained.setup.learner.method.inference == "conjugate"
    way = "exactly" if exact else f"in {steps} step{'s' if steps > 1 else ''}"
    title = f"{settings.method} learned on {settings.tasks}, adapted {way}"
    return contact_sheet(shown, new, title=title)
