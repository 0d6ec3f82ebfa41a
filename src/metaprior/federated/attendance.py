"""A client that stays: its SuperNode is started anew when the server comes back, or when it was sent away.

A SuperNode that was connected to a server which is gone waits for ever, and is unknown to the one that takes its place. So the
client itself looks from time to time whether somebody listens, and begins again when nobody did.
"""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from metaprior.federated.launch import Failed

LOOK, PAUSE = 1.0, 3.0  # seconds between looks at the server, and before a SuperNode that ended is started again
UNSURE = 3  # looks in a row without an answer after which a server is gone; one that refuses is gone at once


def attended(
    start: Callable[[], AbstractContextManager[subprocess.Popen]],
    host: str,
    port: int,
    *,
    retries: int | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> int:
    """Keep a SuperNode running as long as there is a server; returns its exit code when it is time to give up.

    Args:
        start: makes a SuperNode, which ends with its block.
        host: of the server.
        port: of the server.
        retries: how often in a row to try in vain; None: for ever.
        tell: is called with what a person should know.
    """
    tried, told = 0, False
    while True:
        if retries is not None and tried > retries:
            raise Failed(
                f"no server answers at {host}:{port}, or it does not know this client: gave up after {tried} tries"
            )
        if not _present(host, port):
            if not told:
                tell(f"nobody listens at {host}:{port} yet: waiting")
            tried, told = tried + 1, True
            time.sleep(LOOK)
            continue
        with start() as process:
            code = _until_gone(process, host, port)
        if code == 0:
            return 0
        tried, told = (0, False) if code is None else (tried + 1, told)
        if code is not None:
            tell(f"the SuperNode ended (exit code {code}), trying again: has the server been given this client's key?")
            time.sleep(PAUSE)


def _until_gone(process: subprocess.Popen, host: str, port: int) -> int | None:
    """The exit code of the process; None as soon as the server is gone."""
    silent = 0
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK)
        try:
            silent = 0 if _answers(host, port) else silent + 1
        except ConnectionRefusedError:
            return process.poll()
        if silent >= UNSURE:
            return process.poll()
    return process.poll()


def _present(host: str, port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        return _answers(host, port)
    return False


def _answers(host: str, port: int) -> bool:
    """Whether somebody listens there. That nobody does is known only where it is said."""
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except ConnectionRefusedError:
        raise
    except OSError:
        return False
