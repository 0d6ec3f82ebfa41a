"""The application: one page, a few files, two questions."""

import base64
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np
from jaxtyping import UInt8
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from metaprior import page
from metaprior.page import asked, characters, curves, priors, strokes
from metaprior.page.guard import App, guarded
from metaprior.tasks.sinusoid import SETTINGS

STATIC = Path(page.__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {path.name: path for path in sorted(STATIC.iterdir()) if path.suffix in TYPES}
MOST_WAITING = 32  # questions that wait for a processor; more are turned away at once
TRUTH = curves.Truth(3.0, 1.0, 0.5)  # of the questions before the first visitor


class Engine(NamedTuple):
    """What answers: programs that are compiled, and one door to them, since one question fills the processors."""

    curves: curves.Curves
    characters: characters.Characters
    door: threading.Lock

    def curve(self, question: asked.CurveAsked) -> dict[str, Any]:
        """What each method thinks."""
        of = lambda method: self.curves.answer(question.tasks, method, question.points, question.steps, question.truth)
        with self.door:
            return {"answers": {method: of(method) for method in question.methods}}

    def drawing(self, question: asked.DrawingAsked) -> dict[str, Any]:
        """Which character it is, and every drawing as the network sees it."""
        seen = [strokes.pixels(one) for one in (*question.examples, question.new)]
        with self.door:
            found = self.characters.answer(seen[:-1], seen[-1])
        return {**found, "seen": [as_text(pixels) for pixels in seen]}


def engine() -> Engine:
    """Everything read and compiled: each program has answered once."""
    made = Engine(curves.opened(), characters.opened(), threading.Lock())
    for tasks in priors.CURVES:
        made.curve(asked.CurveAsked(tasks, priors.METHODS, [(0.0, 1.0)], 1, TRUTH))
    line = [[(0.2, 0.5), (0.8, 0.5)]]
    for classes in range(characters.FEWEST, characters.MOST + 1):
        made.drawing(asked.DrawingAsked([line] * classes, line))
    return made


def application(engine: Engine, *, hosts: Iterable[str]) -> App:
    """The page and its answers, for requests to these hosts."""
    waiting = 0
    about = as_json(described(engine))

    async def answered(question: Any, answer: Any) -> Response:
        nonlocal waiting
        if waiting >= MOST_WAITING:
            return PlainTextResponse("too many questions at once: ask again in a moment\n", 429)
        waiting += 1
        try:  # in a thread: the next request is read meanwhile
            return as_json(await anyio.to_thread.run_sync(answer, question))
        finally:
            waiting -= 1

    async def curve(request: Request) -> Response:
        return await answered(asked.curve(await _json_body(request)), engine.curve)

    async def drawing(request: Request) -> Response:
        return await answered(asked.drawing(await _json_body(request)), engine.drawing)

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in FILES:  # only names that were there at the start: no path leads anywhere else
            raise HTTPException(404)
        return FileResponse(FILES[name], media_type=TYPES[FILES[name].suffix])

    async def known(request: Request) -> Response:
        del request
        return about

    routes = [
        Route("/", file),
        Route("/static/{name}", file),
        Route("/api/about", known),
        Route("/api/curve", curve, methods=["POST"]),
        Route("/api/drawing", drawing, methods=["POST"]),
    ]
    return guarded(Starlette(routes=routes, exception_handlers=HANDLERS), hosts=hosts)


def described(engine: Engine) -> dict[str, Any]:
    """What the page shows without asking: limits, methods, and how far the prior over characters is to be trusted."""
    of_curves = {
        tasks: {
            "ranges": {name: getattr(SETTINGS[tasks], name) for name in ("amplitude", "frequency", "phase")},
            "scores": {method: engine.curves.small[tasks, method].card["scores"] for method in priors.METHODS},
        }
        for tasks in priors.CURVES
    }
    return {
        "grid": curves.GRID.round(5).tolist(),
        "most_points": curves.MOST_POINTS,
        "most_steps": curves.STEPS,
        "methods": [{"name": name, "summary": _summary(engine, name)} for name in priors.METHODS],
        "curves": of_curves,
        "classes": {name: known["test"] | {"sure_from": known["sure_from"]}
                    for name, known in engine.characters.small.card["classes"].items()},
    }  # fmt: skip


def as_text(pixels: UInt8[np.ndarray, "28 28"]) -> str:
    """The bytes of a drawing, row by row."""
    return base64.b64encode(pixels.tobytes()).decode()


def as_json(value: Any) -> JSONResponse:
    """JSON; NaN would be a mistake of ours and is an error here."""
    return JSONResponse(value)


async def _json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a form of another page can send everything but this
        raise HTTPException(415, "send JSON, with the header content-type: application/json")
    return await request.body()


async def _refused(request: Request, error: Exception) -> Response:
    del request
    return PlainTextResponse(f"{error}\n", 422)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is nothing here: the page is at /", 405: f"{request.method} is not understood here"}
    return PlainTextResponse(f"{words.get(error.status_code, error.detail)}\n", error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    del request, error
    return PlainTextResponse("something went wrong here; what, says the terminal in which the page was started\n", 500)


HANDLERS: Any = {asked.Refused: _refused, HTTPException: _http, Exception: _unexpected}


def _summary(engine: Engine, method: str) -> str:
    return engine.curves.small[priors.CURVES[0], method].setup.learner.method.summary
