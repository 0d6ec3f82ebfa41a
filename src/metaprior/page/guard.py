"""What is between the network and the page: whose requests are heard, how large they may be, and what browsers are told.

A page of somebody else's could send requests to a server on this machine through the visitor's browser. They would bear the other
page's name in `Host` (a name that was made to point here) or in `Origin`; neither is answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
App = Callable[..., Awaitable[None]]

LARGEST_BODY = 256 * 1024  # bytes
PATIENCE = 10.0  # seconds until a body must have arrived
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def guarded(app: App, *, hosts: Iterable[str]) -> App:
    """The application, for requests to one of these hosts by name, without regard to the port."""
    names = {host.lower() for host in hosts}

    async def answer(scope: Scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        if scope["type"] != "http":  # no socket of another kind is spoken here
            return await send({"type": "websocket.close", "code": 1008})
        send = _with_headers(send)
        if (problem := misdirected(scope, names)) is not None:
            return await refuse(send, 421, problem)
        try:
            body = await asyncio.wait_for(_body(receive), PATIENCE)
        except TimeoutError:
            return await refuse(send, 408, f"the request did not arrive within {PATIENCE:g} seconds")
        if body is None:
            return await refuse(send, 413, f"the request is larger than {LARGEST_BODY // 1024} KiB")
        await app(scope, _replayed(body, receive), send)

    return answer


def misdirected(scope: Scope, names: set[str]) -> str | None:
    """Why a request is not for us, or None."""
    headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or host_name(hosts[0]) not in names:
        return f"this server answers to {', '.join(sorted(names))} only: open it under one of these names"
    origins = [value for name, value in headers if name == b"origin"]
    if any(value.partition("://")[2].lower() != hosts[0].lower() for value in origins):
        return "requests from other pages are not answered"
    return None


def host_name(header: str) -> str:
    """The host without its port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    name, colon, port = header.strip().lower().rpartition(":")
    return (
        name
        if colon and port.isdigit() and (not name.startswith("[") or name.endswith("]"))
        else header.strip().lower()
    )


async def refuse(send, status: int, message: str) -> None:
    """In plain words; the connection ends, as what was not read of the request would be taken for the next."""
    head = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": f"{message}\n".encode()})


async def _body(receive) -> bytes | None:
    """All of it, or None as soon as it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive):
    sent = False

    async def again() -> Any:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send):
    async def with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", ())}
            ours = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
            message = {**message, "headers": [*message.get("headers", ()), *ours]}
        await send(message)

    return with_headers
