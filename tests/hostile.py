"""Requests that nobody should send: random and malicious bodies for the page, the same in every run."""

import json
import random
from collections.abc import Iterator
from typing import Any

CURVE = {
    "tasks": "sinusoid", "methods": ["gem-bml+"], "points": [[0.0, 1.0], [2.0, -1.5]], "steps": 3,
    "truth": {"amplitude": 2.0, "frequency": 1.0, "phase": 0.3},
}  # fmt: skip
LINE, CORNER = [[[0.2, 0.5], [0.8, 0.5]]], [[[0.2, 0.2], [0.2, 0.8], [0.8, 0.8]]]
DRAWING = {"examples": [LINE, CORNER], "new": CORNER}
QUESTIONS = {"/api/curve": CURVE, "/api/drawing": DRAWING}

STRANGE: list[Any] = [
    None, True, False, -1, 11, 1e308, -1e308, 10**400, -(10**400), 0.5, "", "x", "NaN", "gem-bml+", "\x00", "🦆" * 50, "a" * 5000,
    [], [[]], [None], [[1, 2, 3]], [["0", "1"]], {}, {"x": 1}, [0] * 5000, [[0.1, 0.1]] * 17, [[0.1, 0.1]] * 4000,
    [[[0.5, 0.5]]] * 60, ["gem-bml+", "gem-bml+"], ["maml", "no such method"], [[5.1, 0]], [[0, 21]], [[[2, 2]]], [[[-0.1, 0]]],
]  # fmt: skip
BODIES = [
    b"", b"{", b"null", b"[]", b"3", b'"text"', b"{}", b"\xff\xfe\x00", b"NaN", b'{"steps": NaN}', b'{"points": [[Infinity, 0]]}',
    b"[" * 100_000, b'{"a":' * 50_000, b"[" * 100_000 + b"]" * 100_000, b'{"steps": ' + b"9" * 10_000 + b"}",
    b'{"tasks": "\\ud800"}',
    b"a=1&b=2", b"<xml/>", b"\x00" * 1000,
]  # fmt: skip
HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example:8421",
    "",
    "[::1",
    "localhost:80:80",
    "192.168.0.1",
    "a" * 3000,
]
PATHS = [
    "/nothing",
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/",
    "/api",
    "/api/curve/x",
    "//",
    "/%00",
    "/static/%2e%2e/priors.py",
]


def changed(random_: random.Random, value: Any) -> Any:
    """The same question with one thing in it replaced, removed or added."""
    if isinstance(value, dict) and value and random_.random() < 0.85:
        key = random_.choice(list(value))
        if random_.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(random_, value[key])}
    if isinstance(value, list) and value and random_.random() < 0.6:
        place = random_.randrange(len(value))
        return [*value[:place], changed(random_, value[place]), *value[place + 1 :]]
    return random_.choice(STRANGE)


def requests(
    count: int, seed: int = 0, large: int = 300_000
) -> Iterator[tuple[str, str, list[tuple[str, str]], bytes]]:
    """(method, path, headers, body): none of them a question that the page would ask."""
    random_ = random.Random(seed)
    good = [("host", "localhost:8421"), ("content-type", "application/json")]
    for _ in range(count):
        path = random_.choice(list(QUESTIONS))
        kind = random_.random()
        if kind < 0.6:
            body = json.dumps(changed(random_, QUESTIONS[path])).encode()
            if body == json.dumps(QUESTIONS[path]).encode():
                continue
            yield "POST", path, good, body
        elif kind < 0.75:
            yield "POST", path, good, random_.choice(BODIES)
        elif kind < 0.8:
            yield "POST", path, good, random_.randbytes(random_.randrange(2000))
        elif kind < 0.82:
            yield "POST", path, good, b"[" + b"0," * (large // 2) + b"0]"
        elif kind < 0.88:
            body = json.dumps(QUESTIONS[path]).encode()
            yield "POST", path, [("host", random_.choice(HOSTS)), good[1]], body
        elif kind < 0.91:
            yield "POST", path, [*good, ("origin", "http://evil.example")], json.dumps(QUESTIONS[path]).encode()
        elif kind < 0.94:
            yield (
                "POST",
                path,
                [good[0], ("content-type", random_.choice(["text/plain", "", "application/xml"]))],
                b"{}",
            )
        elif kind < 0.97:
            yield random_.choice(["GET", "PUT", "DELETE", "PATCH"]), path, good, b""
        else:
            yield "GET", random_.choice(PATHS), good[:1], b""
