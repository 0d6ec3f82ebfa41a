"""Flower's processes: a SuperLink at the server, a SuperNode at each client, and the app that both run.

What they say goes to log files; how a run went is read from its run folder. All that is started here ends with the block that
started it.
"""

import contextlib
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaprior.federated.flower import flwr

READY, GENTLE = 60.0, 5.0  # seconds until a SuperLink must answer, and that a process has to end by itself
NAME = "federation"  # of the connection in Flower's configuration
# Starts a program that is told to end when whoever started it ends, however that was; where the system can (Linux).
TIED = """
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 15)
except AttributeError:
    pass
os.execv(sys.argv[1], sys.argv[1:])
"""
PROJECT = """[project]
name = "metaprior-federation"
version = "1.0.0"
description = "Rounds of metaprior."
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "metaprior"

[tool.flwr.app.components]
serverapp = "metaprior_federation.server:app"
clientapp = "metaprior_federation.client:app"

[tool.flwr.app.config]
folder = ""
"""


class Security(NamedTuple):
    """How the two sides know each other: TLS and keys, or, on one machine and only if asked for, not at all."""

    insecure: bool = False
    ca: Path | None = None  # certificate of the authority that vouches for the server
    certificate: Path | None = None  # of the server; of a client, for its own local processes
    key: Path | None = None  # of that certificate
    client_key: Path | None = None  # private key that a client is known by


class Failed(OSError):
    """A process of Flower did not do what it was started for."""


def loopback(host: str) -> bool:
    """Whether nobody but this machine can reach it.

    >>> [loopback(host) for host in ("127.0.0.1", "localhost", "0.0.0.0", "example.org")]
    [True, True, False, False]
    """
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def require_safe(host: str, security: Security, needed: Mapping[str, Path | None]) -> None:
    """Refuse to go without TLS and keys, unless that is said and stays on one machine; and files that are not there."""
    if security.insecure:
        if not loopback(host):
            raise ValueError(f"--insecure is for one machine, 127.0.0.1, and {host} can be reached by others: use TLS")
        return
    if missing := [flag for flag, path in needed.items() if path is None]:
        raise ValueError(
            f"a federation needs TLS and client keys: give {', '.join(missing)}, or, to try it on one machine, --insecure"
        )
    for flag, path in needed.items():
        if not Path(str(path)).exists():
            raise ValueError(f"{flag}: there is no {path}")


@contextlib.contextmanager
def home() -> Iterator[dict[str, str]]:
    """The environment of Flower's processes: a folder of their own, nothing sent to anybody, programs compiled once."""
    flwr("app")  # else say in words that it is missing
    with tempfile.TemporaryDirectory(prefix="metaprior-federation-", ignore_cleanup_errors=True) as folder:
        yield {
            "JAX_COMPILATION_CACHE_DIR": str(Path(folder) / "compiled"),  # every message is a new process
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FLWR_HOME": folder,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
        }


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> Iterator[subprocess.Popen]:
    """A process and all that it starts, which end with the block."""
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise Failed(f"{command[0]} is not installed beside Flower: pip install 'metaprior[federated]' again")
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(open(log, "ab")) if log else None
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", TIED, program, *command[1:]],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a group of its own: what it starts is found again
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    for word in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, word)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GENTLE)
    process.wait()


def superlink(host: str, port: int, security: Security) -> list[str]:
    """The command of the server's process."""
    command = ["flower-superlink", "--host", host, "--port", str(port), "--disable-runtime-dependency-installation"]
    if security.insecure:
        return [*command, "--insecure"]
    tls = {"--ssl-ca-certfile": security.ca, "--ssl-certfile": security.certificate, "--ssl-keyfile": security.key}
    return [*command, *_flags(tls), "--enable-supernode-auth"]


def supernode(server: str, config: Mapping[str, Any], security: Security, *, retries: int | None) -> list[str]:
    """The command of a client's process."""
    words = " ".join(f"{name}={_toml(value)}" for name, value in config.items())
    command = ["flower-supernode", "--superlink", server, "--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--node-config", words, *([] if retries is None else ["--max-retries", str(retries)])]
    if security.insecure:
        return [*command, "--insecure"]
    tls = {"--root-certificates": security.ca, "--auth-supernode-private-key": security.client_key}
    local = {"--ssl-ca-certfile": security.ca, "--ssl-certfile": security.certificate, "--ssl-keyfile": security.key}
    return [*command, *_flags(tls), *_flags(local)]


def write_app(folder: Path) -> Path:
    """The app that Flower takes to every client: a few lines, since all of us is installed there."""
    package = folder / "app" / "metaprior_federation"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text("")
    for side in ("server", "client"):
        (package / f"{side}.py").write_text(
            f"from metaprior.federated.flower import {side}_app\n"
            "from metaprior.federated.launch import end_with_parent\n\n"
            f"end_with_parent()\napp = {side}_app()\n"
        )
    return package.parent


def end_with_parent() -> None:
    """End this process when the one that started it is gone: Flower leaves its apps behind when it is killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent != 1:  # 1: it was gone before we looked
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def write_connection(environment: Mapping[str, str], address: str, security: Security) -> None:
    """Tell `flwr` where the SuperLink is."""
    how = "insecure = true" if security.insecure else f"root-certificates = {_toml(str(security.ca))}"
    path = Path(environment["FLWR_HOME"]) / "config.toml"
    path.write_text(f"[superlink]\ndefault = {_toml(NAME)}\n\n[superlink.{NAME}]\naddress = {_toml(address)}\n{how}\n")


def wait_until_ready(process: subprocess.Popen, host: str, port: int) -> None:
    """Until somebody listens there."""
    until = time.monotonic() + READY
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    raise Failed(f"the SuperLink does not answer at {host}:{port}: is the port taken? See its log")


def called(command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Run a command to its end, which must be a good one."""
    with started(command, environment, log) as process:
        if process.wait(READY) != 0:
            raise Failed(f"{' '.join(command[:3])} failed: see {log}")


def free_port() -> int:
    """One that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _flags(paths: Mapping[str, Path | None]) -> list[str]:
    return [word for flag, path in paths.items() if path is not None for word in (flag, str(path))]


def _toml(value: Any) -> str:
    """A number, or text in quotes."""
    if isinstance(value, int | float):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
