"""What a browser may ask for: JSON, read with limits. All that is wrong is said in words and costs nothing to find."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from metaprior.page import characters, curves, priors
from metaprior.page.curves import Truth
from metaprior.page.strokes import Stroke

DEEPEST = 8  # brackets within brackets
HIGHEST = 20.0  # of a point
MOST_STROKES, MOST_STROKE_POINTS = 50, 3000  # of one drawing
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
TRUTH_RANGES = {"amplitude": (0.0, 10.0), "frequency": (0.0, 5.0), "phase": (-7.0, 7.0)}


class Refused(ValueError):
    """A request that cannot be answered; the message says why, to a person."""


class CurveAsked(NamedTuple):
    """What do these methods think of these points?"""

    tasks: str
    methods: tuple[str, ...]
    points: list[tuple[float, float]]
    steps: int
    truth: Truth


class DrawingAsked(NamedTuple):
    """Which of these characters is the new one?"""

    examples: Sequence[Sequence[Stroke]]
    new: Sequence[Stroke]


def parsed(body: bytes) -> Mapping[str, Any]:
    """An object of JSON, not deeper than need be, without NaN and infinities."""
    if _depth(body) > DEEPEST:
        raise Refused(f"the request is nested more than {DEEPEST} deep: no question needs that")
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):  # bytes that are no text are a ValueError too
        raise Refused("the body of the request must be JSON, with finite numbers") from None
    if not isinstance(value, dict):
        raise Refused("the body of the request must be a JSON object, {…}")
    return value


def curve(body: bytes) -> CurveAsked:
    """A question about a curve."""
    given = _fields(parsed(body), ("tasks", "methods", "points", "steps", "truth"))
    tasks = _one_of(given["tasks"], "tasks", priors.CURVES)
    listed = _list(given["methods"], "methods", most=len(priors.METHODS), fewest=1)
    methods = tuple(_one_of(name, "methods", priors.METHODS) for name in listed)
    if len(set(methods)) < len(methods):
        raise Refused("methods: name each method once")
    points = [_point(point, f"points[{i}]") for i, point in enumerate(_points(given["points"]))]
    steps = given["steps"]
    if type(steps) is not int or not 0 <= steps <= curves.STEPS:
        raise Refused(f"steps: a whole number from 0 to {curves.STEPS}")
    truth = _fields(given["truth"], tuple(TRUTH_RANGES), what="truth")
    return CurveAsked(tasks, methods, points, steps, Truth(**{
        name: _number(truth[name], f"truth.{name}", *ends) for name, ends in TRUTH_RANGES.items()
    }))  # fmt: skip


def drawing(body: bytes) -> DrawingAsked:
    """A question about a character."""
    given = _fields(parsed(body), ("examples", "new"))
    examples = _list(given["examples"], "examples", fewest=characters.FEWEST, most=characters.MOST)
    return DrawingAsked(
        [_strokes(one, f"examples[{place}]") for place, one in enumerate(examples)], _strokes(given["new"], "new")
    )


def _depth(body: bytes) -> int:
    """Of brackets, counted before any parser goes that deep; those in text count too, as no question has any there."""
    deepest = depth = 0
    for bracket in body.translate(None, NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _fields(value: Any, names: tuple[str, ...], *, what: str = "the request") -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{what}: a JSON object with {', '.join(names)}")
    missing, unknown = [name for name in names if name not in value], [name for name in value if name not in names]
    if missing:
        raise Refused(f"{what} lacks {', '.join(missing)}")
    if unknown:
        raise Refused(f"{what} has {_short(unknown[0])}, which is unknown: it has {', '.join(names)}")
    return value


def _one_of(value: Any, name: str, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise Refused(f"{name}: choose from {', '.join(known)}")
    return value


def _list(value: Any, name: str, *, most: int, fewest: int = 0) -> list[Any]:
    if not isinstance(value, list) or not fewest <= len(value) <= most:
        raise Refused(f"{name}: a list of {fewest} to {most}")
    return value


def _points(value: Any) -> list[Any]:
    if isinstance(value, list) and len(value) > curves.MOST_POINTS:
        raise Refused(f"points: at most {curves.MOST_POINTS}; remove one before you add another")
    return _list(value, "points", most=curves.MOST_POINTS)


def _point(value: Any, name: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise Refused(f"{name}: a pair of numbers, [x, y]")
    return _number(value[0], f"{name}, x", curves.LEFT, curves.RIGHT), _number(
        value[1], f"{name}, y", -HIGHEST, HIGHEST
    )


def _strokes(value: Any, name: str) -> list[Stroke]:
    strokes = [_list(one, f"a stroke of {name}", most=MOST_STROKE_POINTS, fewest=1)
               for one in _list(value, f"strokes of {name}", most=MOST_STROKES)]  # fmt: skip
    if not strokes:
        raise Refused(f"{name} is empty: draw something")
    if sum(map(len, strokes)) > MOST_STROKE_POINTS:
        raise Refused(f"{name}: at most {MOST_STROKE_POINTS} points in all strokes together")
    return [[_place(point, name) for point in stroke] for stroke in strokes]


def _place(value: Any, name: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise Refused(f"a point of {name}: a pair of numbers between 0 and 1")
    return _number(value[0], f"a point of {name}", 0.0, 1.0), _number(value[1], f"a point of {name}", 0.0, 1.0)


def _number(value: Any, name: str, low: float, high: float) -> float:
    """Compared before it is converted: a whole number may be too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or math.isnan(value):
        raise Refused(f"{name}: a number from {low:g} to {high:g}")
    return float(value)


def _short(name: str) -> str:
    return repr(name if len(name) <= 30 else name[:30] + "…")
