"""Checkpoints that survive a kill, a full disk and a flipped bit.

A file appears under its final name only when it is whole and on the disk: it is written beside it under a temporary
name, flushed, renamed, and the folder is flushed too. Reading takes the newest checkpoint whose checksum holds. One
process writes a folder at a time (`runs` sees to that with a lock).
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from jaxtyping import PyTree

from metaprior import codec

_NAME = re.compile(r"checkpoint-(\d{10,})\.safetensors")
TEMPORARY = ".saving-"


class CheckpointError(ValueError):
    """A folder holds no checkpoint that can be restored."""


class Restored(NamedTuple):
    """A state read back, and a sentence for each newer checkpoint that was damaged and passed over."""

    iteration: int
    tree: PyTree
    notes: list[str]


def save(
    folder: str | Path, iteration: int, tree: PyTree, metadata: Mapping[str, Any] | None = None, *, keep: int = 3
) -> Path:
    """Write the state after `iteration` steps, then delete all but the newest `keep` checkpoints up to it.

    Checkpoints of later iterations are left alone: after falling back past damaged ones, the one just written must not
    be the one that is deleted.

    Args:
        folder: made if it does not exist.
        iteration: also kept in the metadata, so that a renamed file is noticed.
        tree: arrays only, see `codec.flatten`.
        metadata: anything JSON can hold.
        keep: how many to keep, at least 1.
    """
    if iteration < 0 or keep < 1:
        raise ValueError(f"iteration must be at least 0 and keep at least 1, got {iteration} and {keep}")
    data = codec.encode(tree, {**(metadata or {}), "iteration": iteration})
    folder = Path(folder)
    path = folder / f"checkpoint-{iteration:010d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise OSError(
            error.errno,
            f"could not save {path} ({error.strerror}): earlier checkpoints are untouched; "
            "free some space, make the folder writable, or choose another with --out",
        ) from error
    for old in [old for number, old in available(folder).items() if number <= iteration][:-keep]:
        with contextlib.suppress(OSError):  # what matters is saved; an old file too many is no reason to stop a run
            old.unlink()
    return path


def restore(folder: str | Path, like: PyTree) -> Restored:
    """The newest checkpoint that verifies, in the structure of `like`; damaged ones are named in `notes` and skipped.

    A whole checkpoint that does not fit `like` is an error at once: older ones would not fit either.
    """
    notes = []
    for iteration, path in reversed(available(folder).items()):
        try:
            return Restored(iteration, _read(path, iteration, like), notes)
        except (codec.CorruptError, OSError) as error:
            notes.append(f"{path} was skipped: {error}.")
        except ValueError as error:
            raise ValueError(f"{path} cannot be restored: {error}") from None
    if notes:
        raise CheckpointError(f"no checkpoint in {folder} is whole, start anew with another --out. {' '.join(notes)}")
    raise CheckpointError(f"{folder} holds no checkpoint: check the path, or start anew")


def _read(path: Path, iteration: int, like: PyTree) -> PyTree:
    contents = codec.unpack(path.read_bytes())
    found = contents.metadata.get("iteration")
    if found != iteration:
        raise codec.CorruptError(f"it holds iteration {found}, its name says {iteration}")
    return codec.rebuild(like, contents)


def available(folder: str | Path) -> dict[int, Path]:
    """The checkpoints of a folder by iteration, oldest first, whole or not; none if there is no such folder."""
    folder = Path(folder)
    paths = folder.iterdir() if folder.is_dir() else ()
    found = {int(match[1]): path for path in paths if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data`, wholly or, on any failure or kill, not at all."""
    sweep(path.parent)
    temporary = path.parent / f"{TEMPORARY}{secrets.token_hex(4)}-{path.name}"
    try:
        with open(temporary, "xb") as file:
            _mark_as_written_to(file)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _fsync_folder(path.parent)


def _mark_as_written_to(file: BinaryIO) -> None:
    """Lock the file against `sweep`; the kernel lifts the lock when the process ends, however it ends."""
    with contextlib.suppress(OSError):  # where files cannot be locked, sweeping fails just the same and deletes nothing
        fcntl.flock(file, fcntl.LOCK_EX)


def sweep(folder: Path) -> None:
    """Delete temporary files whose writers are gone."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _fsync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such operation
            raise
    finally:
        os.close(descriptor)
