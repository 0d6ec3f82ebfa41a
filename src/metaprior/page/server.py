"""Where the page is served: on this machine alone, unless somebody says otherwise twice."""

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterator, Sequence

import uvicorn

from metaprior.page.guard import App

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
KEEP_ALIVE, LARGEST_HEAD = 30, 32 * 1024  # seconds, bytes


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens nowhere yet, but has its place; before anything is compiled."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is a number from 0 (any that is free) to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol by name: asyncio sends at once only on sockets that say TCP, and others wait 40 ms for company.
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((host, port))
    except OSError as error:
        place.close()
        raise ValueError(
            f"{host}, port {port} cannot be used ({error.strerror}): choose another with --port, or 0 for any that is free"
        ) from None
    return place


def names(host: str, more: Sequence[str]) -> tuple[str, ...]:
    """The names under which browsers may ask for the page."""
    bracketed = f"[{host}]" if ":" in host else host
    machine = () if is_loopback(host) else (socket.gethostname(),)
    return tuple(dict.fromkeys((*LOOPBACK, bracketed, *machine, *more)))


def address(place: socket.socket) -> str:
    """What to type into a browser on this machine."""
    host, port = place.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(app: App, place: socket.socket) -> None:
    """Until Ctrl-C. Errors are told on the terminal, requests are not."""
    uvicorn.Server(_config(app)).run(sockets=[place])


@contextlib.contextmanager
def in_background(app: App) -> Iterator[int]:
    """The page in a thread of this process, at a port of its own, until the end of the block."""
    place = bound("127.0.0.1", 0)
    place.listen()  # whoever is quicker than the thread waits in line
    runner = uvicorn.Server(_config(app))
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    try:
        yield place.getsockname()[1]
    finally:
        runner.should_exit = True
        thread.join()
        place.close()


def _config(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
