"""The run folder: what was asked for, what it ran on, how it went, and the checkpoints.

    settings.json    what was asked for; a folder that has it is a run
    versions.json    Python, libraries and device
    metrics.jsonl    one JSON object per line, each with its iteration
    checkpoints/     see `checkpoints`
    run.lock         locked by the process that trains

A run that was killed and resumed leaves the same settings, metrics and checkpoints as one that was not: after
`checkpoints.restore`, call `rewind` with the restored iteration.
"""

import contextlib
import fcntl
import importlib.metadata
import io
import json
import math
import os
import platform
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaprior.checkpoints import TEMPORARY, write_atomically

_SETTINGS, _VERSIONS, _METRICS, _LOCK = "settings.json", "versions.json", "metrics.jsonl", "run.lock"
_PACKAGES = ("jax", "jaxlib", "optax", "numpy", "metaprior")
_held: set[io.FileIO] = set()  # keeps locks from being collected with the Run that took them


class RunError(ValueError):
    """A folder that cannot be used as asked, or a row or setting that cannot be kept."""


class Run(NamedTuple):
    """A run folder; `lock` is the lock file held open by a run one may write to, `None` for one that is only read."""

    folder: Path
    settings: dict[str, Any]
    lock: io.FileIO | None = None
    notes: tuple[str, ...] = ()  # what a person should know about it, in sentences

    @property
    def checkpoints(self) -> Path:
        """The folder for `checkpoints.save` and `checkpoints.restore`."""
        return self.folder / "checkpoints"


def create(
    folder: str | Path,
    settings: Mapping[str, Any],
    *,
    resume: bool = False,
    may_change: Collection[str] = ("iterations", "out", "resume"),
) -> Run:
    """Start a run in a new or empty folder, or with `resume` go on with the one that is there.

    The folder stays locked until this process ends, however it ends, or calls `release`.

    Args:
        folder: made if it does not exist, unless resuming.
        settings: nested dicts, lists, text, finite numbers, paths.
        resume: accept a folder that holds a run, provided the settings agree.
        may_change: dotted names of settings that may differ on resuming; those given as a `Path` always may.
    """
    folder, wanted = Path(folder), _plain(settings, finite=True)
    _prepare(folder, resume=resume)
    lock = _take_lock(folder)
    try:
        if _occupants(folder):
            _refuse_occupied(folder, resume=resume)  # again, now that nobody else can be writing
            _check_settings(_read_settings(folder), settings, wanted, may_change)
        write_atomically(folder / _SETTINGS, _json(wanted))
        return Run(folder, wanted, lock, _record_versions(folder))
    except BaseException as error:
        release(Run(folder, wanted, lock))
        if isinstance(error, OSError):
            raise RunError(f"{folder} is not writable ({error.strerror}): choose another --out") from error
        raise


def open_run(folder: str | Path) -> Run:
    """A run to read from, finished or not; it needs no lock and can be read while it trains."""
    return Run(Path(folder), _read_settings(Path(folder)))


def release(run: Run) -> None:
    """Give up the lock before the process ends; from then on the run can only be read."""
    if run.lock is not None:
        _held.discard(run.lock)
        run.lock.close()


def append_metrics(run: Run, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to the metrics, all or none; each has an integer `iteration`. NaN and infinities are written as null."""
    _refuse_reader(run)
    plain = [_plain(row) for row in rows]
    for row in plain:
        if type(row.get("iteration")) is not int:
            raise RunError(f"a row of metrics needs an integer iteration, got {row}")
    data = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in plain)
    with open(run.folder / _METRICS, "a+b", buffering=0) as file:
        end = _drop_half_line(file)
        try:
            if file.write(data) != len(data):
                raise OSError(None, "the disk is full")
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(end)
            raise OSError(error.errno, f"could not write metrics to {run.folder} ({error.strerror})") from error


def read_metrics(run: Run) -> list[dict[str, Any]]:
    """All whole rows, in the order written; a half-written last line is left out."""
    return [row for _, row in _metrics_lines(run)]


def rewind(run: Run, iteration: int) -> None:
    """Forget the metrics of later iterations, so that a run resumed at `iteration` does not record them twice."""
    _refuse_reader(run)
    lines = _metrics_lines(run)
    kept = [line + b"\n" for line, row in lines if row["iteration"] <= iteration]
    if len(kept) < len(lines):
        write_atomically(run.folder / _METRICS, b"".join(kept))


def versions() -> dict[str, Any]:
    """What a run's numbers depend on besides its settings."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in _PACKAGES:
        found[package] = None  # run from a checkout, the package itself may not be installed
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return {
        **found,
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        "float": jnp.zeros(()).dtype.name,
    }


def _prepare(folder: Path, *, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, a run needs a folder: choose another --out")
    if resume and not folder.exists():
        raise RunError(f"there is no run at {folder} to resume: check --out, or leave out --resume")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _occupants(folder) and not (folder / _LOCK).exists():
            _refuse_occupied(folder, resume=resume)  # before locking, to leave nothing in a folder that is not ours
    except OSError as error:
        raise RunError(f"{folder} cannot be used ({error.strerror}): choose another --out") from error


def _occupants(folder: Path) -> list[str]:
    """What makes a folder not empty: not the lock and the temporary files of a run that was killed as it began."""
    return [name for name in sorted(os.listdir(folder)) if name != _LOCK and not name.startswith(TEMPORARY)]


def _refuse_occupied(folder: Path, *, resume: bool) -> None:
    if not resume:
        holds = _occupants(folder)[0]
        raise RunError(f"{folder} is not empty (it holds {holds}): choose another --out, or go on with --resume")
    _read_settings(folder)


def _take_lock(folder: Path) -> io.FileIO:
    try:
        lock = io.FileIO(folder / _LOCK, "a+")
    except OSError as error:
        raise RunError(f"{folder} is not writable ({error.strerror}): choose another --out") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it with the process, even on kill -9
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().decode(errors="replace") or "another process"
        lock.close()
        raise RunError(f"{holder} is training into {folder}: wait until it ends, or choose another --out") from None
    except OSError as error:
        lock.close()
        raise RunError(f"{folder} cannot be locked ({error.strerror}): choose an --out on another disk") from error
    _held.add(lock)
    return lock


def _read_settings(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise RunError(f"{folder} is {'a file' if folder.exists() else 'missing'}, a run is a folder: check the path")
    try:
        settings = json.loads((folder / _SETTINGS).read_bytes())
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run: {_SETTINGS} is missing; check the path") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / _SETTINGS} cannot be read ({error}): restore it from a copy") from None
    if not isinstance(settings, dict):
        raise RunError(f"{folder / _SETTINGS} does not hold settings: restore it from a copy")
    return settings


def _check_settings(before: Any, given: Any, wanted: Any, may_change: Collection[str]) -> None:
    old, new = dict(_entries(before)), dict(_entries(wanted))
    free = {*may_change, *(name for name, value in _entries(given) if isinstance(value, Path))}
    words = [
        f"{name} was {json.dumps(old[name]) if name in old else 'not set'}, "
        f"now {json.dumps(new[name]) if name in new else 'not set'}"
        for name in dict.fromkeys([*old, *new])
        if _differ(old, new, name) and not any(name == allowed or name.startswith(f"{allowed}.") for allowed in free)
    ]
    if words:
        raise RunError(f"the run began with other settings ({'; '.join(words)}): use those, or choose another --out")


def _differ(old: dict[str, Any], new: dict[str, Any], name: str) -> bool:
    if name in old and name in new:
        return old[name] != new[name]
    # A choice that one of two versions does not have: where the other has it null or off, it was not made.
    return (old | new)[name] not in (None, False)


def _record_versions(folder: Path) -> tuple[str, ...]:
    """Write versions.json, keeping what earlier parts of a resumed run ran on; says what has changed since."""
    now, path = versions(), folder / _VERSIONS
    before: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        before = dict(json.loads(path.read_bytes()))
    earlier = before.pop("earlier", [])
    changed = [name for name in now if before and before.get(name) != now[name]]
    if changed:
        earlier = [*earlier, before]
    write_atomically(path, _json({**now, "earlier": earlier} if earlier else now))
    return tuple(f"{name} was {before.get(name)} and is now {now[name]}: numbers may differ." for name in changed)


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of everything nested in `value`."""
    if isinstance(value, Mapping | list | tuple) and value:
        for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _entries(child, f"{name}.{key}".lstrip("."))
    else:
        yield name, value


def _plain(value: Any, name: str = "", *, finite: bool = False) -> Any:
    """The value as JSON holds it; numbers that JSON lacks become null, or are refused where they must be `finite`."""
    if isinstance(value, Mapping):
        return {str(key): _plain(child, f"{name}.{key}".lstrip("."), finite=finite) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child, f"{name}.{index}", finite=finite) for index, child in enumerate(value)]
    if hasattr(value, "tolist"):  # NumPy and JAX
        return _plain(value.tolist(), name, finite=finite)
    if isinstance(value, float) and not math.isfinite(value):
        if finite:
            raise RunError(f"{name} is {value}, which JSON cannot hold: use None for no limit")
        return None
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise RunError(f"{name} is a {type(value).__name__}, which JSON cannot hold: use text, numbers, lists or dicts")


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def _refuse_reader(run: Run) -> None:
    if run.lock is None or run.lock.closed:
        raise RunError(f"{run.folder} is open for reading only: to write to it, use create(..., resume=True)")


def _drop_half_line(file: Any) -> int:
    """Cut off what a kill may have left after the last whole line; returns the length that remains."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 1, 0))
    if file.read(1) in (b"", b"\n"):
        return end
    file.seek(0)
    return file.truncate(_end_of_last_line(file.read()))


def _end_of_last_line(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _metrics_lines(run: Run) -> list[tuple[bytes, dict[str, Any]]]:
    try:
        data = (run.folder / _METRICS).read_bytes()
    except FileNotFoundError:
        return []
    lines = data[: _end_of_last_line(data)].split(b"\n")[:-1]
    try:
        return [(line, json.loads(line)) for line in lines]
    except ValueError as error:
        raise RunError(f"{run.folder / _METRICS} holds a line that is not JSON ({error}): delete that line") from None
