"""A published prior: a folder that anyone can read, and that nothing runs from.

    prior.safetensors    every number, with a checksum over all of it
    prior.json           what kind of prior it is: settings, shapes, scales, versions
    README.md            the model card, for people

`prior.json` is written last: a folder without it is no prior. The checksum of the numbers' file covers the digest of
`prior.json`, so that the two cannot be mixed up with those of another prior.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import PyTree

from metaprior import codec
from metaprior.checkpoints import write_atomically

FORMAT = 1
ARRAYS, ABOUT, CARD = "prior.safetensors", "prior.json", "README.md"


class PublishedError(ValueError):
    """A folder that holds no published prior, or one that does not fit."""


class Published(NamedTuple):
    """What a folder holds, before anything is built from it."""

    kind: str  # "run", "regression", "classification"
    about: dict[str, Any]
    contents: codec.Contents


def is_published(folder: str | Path) -> bool:
    """Whether a folder looks like a published prior."""
    return (Path(folder) / ABOUT).is_file()


def write(folder: str | Path, kind: str, tree: PyTree, about: Mapping[str, Any], card: str) -> Path:
    """Publish into a new or empty folder; what is there is never replaced."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PublishedError(f"{folder} is there already and is not empty: choose another folder, or remove it first")
    shapes = {name: list(array.shape) for name, array in codec.flatten(tree).items()}
    whole = {"format": FORMAT, "kind": kind, **about, "shapes": shapes}
    try:
        text = (json.dumps(whole, indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise PublishedError(
            f"this prior cannot be described in JSON ({error}): use plain numbers, words and lists"
        ) from None
    data = codec.encode(tree, {"about": hashlib.sha256(text).hexdigest()})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / ARRAYS, data)
    write_atomically(folder / CARD, card.encode())
    write_atomically(folder / ABOUT, text)
    return folder


def read(folder: str | Path) -> Published:
    """Read and verify a folder; nothing in it is run."""
    folder = Path(folder)
    about = _about(folder)
    try:
        contents = codec.unpack((folder / ARRAYS).read_bytes())
    except (OSError, ValueError) as error:
        raise PublishedError(f"{folder / ARRAYS} cannot be read: {error}") from None
    digest = hashlib.sha256((folder / ABOUT).read_bytes()).hexdigest()
    if contents.metadata.get("about") != digest:
        raise PublishedError(
            f"{folder / ABOUT} is not the one that {ARRAYS} was written with: take both from one place"
        )
    return Published(str(about["kind"]), about, contents)


def rebuild(published: Published, like: PyTree, folder: str | Path) -> PyTree:
    """The numbers in the structure of `like`, or in words what does not fit."""
    try:
        return codec.rebuild(like, published.contents)
    except ValueError as error:
        raise PublishedError(f"{folder} does not fit what its {ABOUT} describes: {error}") from None


def card(title: str, summary: str, facts: Mapping[str, Any], use: str) -> str:
    """A model card in Markdown.

    Args:
        title: what it is.
        summary: for what, in a paragraph.
        facts: a table.
        use: Python that loads and uses it.
    """
    lines = [f"| {name} | {_shown(value)} |" for name, value in facts.items()]
    table = "\n".join(["| | |", "| --- | --- |", *lines])
    return f"# {title}\n\n{summary}\n\n{table}\n\n```python\n{use}\n```\n\n{_FILES}\n"


_FILES = """Files: `prior.safetensors` (every number, with a checksum) and `prior.json` (what kind of prior it is). Loading
runs no code.

The card says what was measured when the prior was published. How it does on groups unlike those it was learned from, nobody has
measured."""


def _about(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise PublishedError(f"{folder} is {'a file' if folder.exists() else 'missing'}, a published prior is a folder")
    try:
        about = json.loads((folder / ABOUT).read_bytes())
    except FileNotFoundError:
        raise PublishedError(f"{folder} is no published prior: {ABOUT} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PublishedError(f"{folder / ABOUT} cannot be read ({error}): take a whole copy") from None
    if not isinstance(about, dict) or "kind" not in about:
        raise PublishedError(f"{folder / ABOUT} does not describe a prior: take a whole copy")
    if about.get("format") != FORMAT:
        raise PublishedError(
            f"{folder} has format {about.get('format')}, this metaprior reads {FORMAT}: use the version that wrote it"
        )
    return about


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    return str(value).replace("|", "\\|").replace("\n", " ")
