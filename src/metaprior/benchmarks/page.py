"""How long the page takes to answer: real requests to a real server on this machine, one after another, after warm-up."""

import http.client
import json
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from metaprior.benchmarks import origin
from metaprior.page import app, characters, curves, priors, server

LIMIT = 100.0  # ms that a step may take
METRICS = {"p50, ms": "p50", "p95, ms": "p95", "longest, ms": "longest", "processor, ms": "processor"}
Question = tuple[str, dict[str, Any]]


class Timed(NamedTuple):
    """Milliseconds of all requests of one kind."""

    p50: float
    p95: float
    longest: float
    requests: int
    processor: float = (
        0.0  # ms of all cores together that a request took, client included: what does not depend on others
    )


def questions(random_: random.Random) -> dict[str, Callable[[], Question]]:
    """What a visitor does, by name: every request has other numbers of points and steps, or another drawing."""

    def curve(methods: tuple[str, ...]) -> Question:
        points = [
            [random_.uniform(-5, 5), random_.uniform(-4, 4)] for _ in range(random_.randint(0, curves.MOST_POINTS))
        ]
        truth = {"amplitude": 2.0, "frequency": 1.0, "phase": random_.uniform(0, 3)}
        asked = {"tasks": random_.choice(priors.CURVES), "methods": methods, "points": points, "truth": truth}
        return "/api/curve", {**asked, "steps": random_.randint(0, curves.STEPS)}

    def drawing(classes: int) -> Question:
        sheets = [[_scribble(random_) for _ in range(3)] for _ in range(classes + 1)]
        return "/api/drawing", {"examples": sheets[:-1], "new": sheets[-1]}

    of_methods = {f"curve, {name}": (name,) for name in priors.METHODS} | {"curve, all methods": priors.METHODS}
    asked: dict[str, Callable[[], Question]] = {
        name: lambda methods=methods: curve(methods) for name, methods in of_methods.items()
    }
    for classes in range(characters.FEWEST, characters.MOST + 1):
        asked[f"drawing, {classes} characters"] = lambda classes=classes: drawing(classes)
    return asked


def _scribble(random_: random.Random, points: int = 60) -> list[list[float]]:
    x, y, stroke = random_.random(), random_.random(), []
    for _ in range(points):
        x, y = (min(1.0, max(0.0, value + random_.uniform(-0.05, 0.05))) for value in (x, y))
        stroke.append([round(x, 4), round(y, 4)])
    return stroke


def measure(requests: int = 200, *, seed: int = 0, report: Callable[[int, int, str], None] = lambda *_: None):
    """Name of the step -> times, and the seconds that reading and compiling took before the first of them."""
    began = time.perf_counter()
    page = app.application(app.engine(), hosts=server.LOOPBACK)
    ready, found = time.perf_counter() - began, {}
    asked = questions(random.Random(seed))
    with server.in_background(page) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for place, (name, question) in enumerate(asked.items()):
            report(place, len(asked), name)
            used = time.process_time()
            times = [_ask(connection, *question()) for _ in range(requests)]
            found[name] = timed(times)._replace(processor=1e3 * (time.process_time() - used) / requests)
        connection.close()
    return found, ready


def timed(milliseconds: list[float]) -> Timed:
    """Half of them, and 95 of 100, were at least as quick."""
    p50, p95 = np.percentile(milliseconds, [50, 95])
    return Timed(float(p50), float(p95), max(milliseconds), len(milliseconds))


def record(found: dict[str, Timed], ready: float, command: str, seconds: float, load: float) -> dict[str, Any]:
    """As results are kept."""
    same = {
        "experiment": "bench-page",
        "setting": "metaprior demo, after warm-up",
        "paper": None,
        "ci95": None,
        "seeds": 1,
    }
    where = {"command": command, "hardware": origin.hardware(), "seconds": round(seconds, 1), "commit": origin.commit()}
    rows = [
        {**same, "method": name, "metric": metric, "mean": getattr(times, field), **where}
        for name, times in found.items()
        for metric, field in METRICS.items()
    ]
    requests = {name: times.requests for name, times in found.items()}
    return {
        "settings": {"requests": requests, "ready_after_seconds": round(ready, 1), "load_before": load},
        "rows": rows,
        "curves": [],
    }


def _ask(connection: http.client.HTTPConnection, path: str, question: dict[str, Any]) -> float:
    body, began = json.dumps(question), time.perf_counter()
    connection.request("POST", path, body, {"content-type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise ValueError(f"the page answered {reply.status} to a question of this benchmark: {text.decode()[:200]}")
    return 1e3 * (time.perf_counter() - began)
