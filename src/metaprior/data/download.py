"""Files from the network: taken up where they broke off, and kept only if they are the published ones."""

import contextlib
import fcntl
import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple


class Published(NamedTuple):
    """A file as its authors published it."""

    name: str
    size: int  # bytes
    sha256: str


OMNIGLOT_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
OMNIGLOT = (
    Published("images_background.zip", 9_464_212, "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640"),
    Published("images_evaluation.zip", 6_462_886, "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee"),
)
PART = ".part"  # ends the name of a file that is not whole
CHUNK = 1 << 16
CONNECTIONS = 10  # for one file, as long as each brings something
TIMEOUT = 30.0  # seconds without a byte

OnProgress = Callable[[Published, int], None]  # the file, and how many bytes of it are there


class DownloadError(OSError):
    """A file that could not be had; the message says whether calling again helps."""


def get(
    folder: Path,
    files: Sequence[Published] = OMNIGLOT,
    *,
    url: str = OMNIGLOT_URL,
    on_progress: OnProgress = lambda file, done: None,
    connections: int = CONNECTIONS,
    timeout: float = TIMEOUT,
) -> list[Path]:
    """Download the files that are not yet there, whole and as published; returns those that were downloaded.

    Args:
        folder: made if it does not exist.
        files: what to download.
        url: of the folder they lie in.
        on_progress: called with a file and how many bytes of it there are, as often as some arrive.
        connections: how often to connect anew for one file when a connection breaks off.
        timeout: seconds without a byte after which it is broken off from here.

    Raises:
        DownloadError: if that failed; what has arrived is kept for the next call, unless it is the wrong file.
        ValueError: if it cannot succeed as asked.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is no web address: it must begin with https:// or http://")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be made ({error.strerror}): choose another --out") from None
    missing = [file for file in files if not (folder / file.name).exists()]
    for file in set(files) - set(missing):
        if not _is_whole(folder / file.name, file):
            raise ValueError(f"{folder / file.name} is not the published file: move it away, or choose another --out")
    for file in missing:
        with _locked(folder / (file.name + PART)) as part:
            address = f"{url.rstrip('/')}/{file.name}"
            _complete(address, file, part, on_progress, connections, timeout)
            _keep(address, file, part, folder / file.name)
    return [folder / file.name for file in missing]


def _is_whole(path: Path, file: Published) -> bool:
    return path.stat().st_size == file.size and _sha256(path) == file.sha256


def _sha256(path: Path) -> str:
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """The unfinished file, for this process alone: two that write to it would spoil it for both."""
    try:
        file = open(path, "ab")
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}): choose another --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadError(f"another process is downloading {path}: wait for it to end") from None
        except OSError:
            pass  # a file system without locks
        yield file


def _complete(
    address: str, file: Published, part: BinaryIO, on_progress: OnProgress, connections: int, timeout: float
) -> None:
    """Receive what is missing, over as many connections as it takes."""
    why = "no connection was allowed"
    for _ in range(connections):
        before = _size(part)
        if before >= file.size:
            return
        try:
            if _receive(address, file, part, on_progress, timeout):
                return
            why = "the connection was closed"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and before:
                part.truncate(0)  # the server has less than lies here: not a part of its file
                continue
            raise DownloadError(f"{address} answers {error.code} {error.reason}: check --from, or try later") from None
        except (OSError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", None) or error) or type(error).__name__
        if _size(part) == before:
            break  # a server that sends nothing would be asked in vain
    raise DownloadError(_broken_off(address, file, part, why))


def _broken_off(address: str, file: Published, part: BinaryIO, why: str) -> str:
    if done := _size(part):
        return f"{address} broke off after {done:,} of {file.size:,} bytes ({why}): call again, it goes on from there"
    return (
        f"{address} cannot be reached ({why}): check the network, or fetch {file.name} on another machine "
        f"and put it into {Path(part.name).parent}"
    )


def _receive(address: str, file: Published, part: BinaryIO, on_progress: OnProgress, timeout: float) -> bool:
    """One connection; whether the server has sent all that it wanted to send."""
    done = _size(part)
    headers = {"User-Agent": "metaprior"} | ({"Range": f"bytes={done}-"} if done else {})
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        if done and response.status != http.HTTPStatus.PARTIAL_CONTENT:
            part.truncate(0)  # a server that sends files from their beginning only
            done = 0
        promised = int(response.headers.get("Content-Length") or file.size - done)
        end = done + promised
        on_progress(file, done)
        # One byte too many is enough to know that it is another file.
        while chunk := response.read(min(CHUNK, file.size + 1 - done)):
            part.write(chunk)
            done += len(chunk)
            on_progress(file, done)
    part.flush()
    return done >= min(end, file.size + 1)


def _size(part: BinaryIO) -> int:
    part.flush()
    return os.fstat(part.fileno()).st_size


def _keep(address: str, file: Published, part: BinaryIO, path: Path) -> None:
    """Under its own name, if it is the published file; otherwise nothing remains of it."""
    part.flush()
    os.fsync(part.fileno())
    found = _sha256(Path(part.name))
    if found != file.sha256:
        os.unlink(part.name)
        raise DownloadError(
            f"{address} is not the published file (SHA-256 {found[:12]}… instead of {file.sha256[:12]}…), "
            "so nothing of it was kept: call again, or choose another --from"
        )
    os.replace(part.name, path)
