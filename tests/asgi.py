"""Requests to an application in this process, without sockets."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

HOST = ("host", "localhost:8421")
JSON = ("content-type", "application/json")


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


def call(
    app, method: str, path: str, *, body: bytes | Sequence[bytes] = b"", headers: Sequence[tuple[str, str]] = (HOST,)
) -> Reply:
    """One request; a body in several parts arrives in as many messages."""
    parts = [body] if isinstance(body, bytes) else list(body)
    messages = [{"type": "http.request", "body": part, "more_body": i < len(parts) - 1} for i, part in enumerate(parts)]

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return exchange(app, method, path, receive=receive, headers=headers)


def exchange(app, method: str, path: str, *, receive, headers: Sequence[tuple[str, str]]) -> Reply:
    """The same with a body that arrives as `receive` says."""
    sent: list[Any] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }  # fmt: skip

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = sent[0]
    given = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], given, b"".join(message.get("body", b"") for message in sent[1:]))


def post(app, path: str, value: Any) -> Reply:
    """A question in JSON, as the page asks it."""
    return call(app, "POST", path, body=json.dumps(value).encode(), headers=(HOST, JSON))
