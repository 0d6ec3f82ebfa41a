"""Where the experiments are: in the source, not in the installed package."""

import sys
from pathlib import Path

import metaprior
from metaprior.cli import console

MISSING = (
    "experiments come with the source, not with the installed package: clone the repository, or unpack what "
    "`pip download --no-deps --no-binary metaprior metaprior` brings, and call this command from there"
)


def find() -> Path | None:
    """The checkout one stands in, or else the one that an editable install points to."""
    here, installed = Path.cwd(), Path(metaprior.__file__).parents[2]
    return next((folder for folder in (here, *here.parents, installed) if _is_checkout(folder)), None)


def enter() -> None:
    """Make `import experiments` find the experiments of the checkout, in processes started from this one too."""
    root = find()
    if root is None:
        raise ValueError(MISSING)
    library = Path(metaprior.__file__).parent
    if library != root / "src" / "metaprior":
        console.note(f"the experiments of {root} run with the metaprior of {library}")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _is_checkout(folder: Path) -> bool:
    """By two names: many a project has a folder of experiments."""
    return (folder / "experiments" / "study.py").is_file() and (folder / "src" / "metaprior").is_dir()
