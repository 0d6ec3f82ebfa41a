"""What a compiled program does, read from its text: how many calls, how much arithmetic in matrix products.

On a card, small programs are as slow as their calls are many. Loops count as often as they run; of conditions no branch is
counted, because those of a meta-iteration are taken now and then.
"""

import re
from collections.abc import Callable
from math import prod

_BODY = re.compile(r"^(?:ENTRY )?%([\w.-]+) [^\n]*\{\n.*?^\}", re.M | re.S)
_SHAPE = r"\w+\[([\d,]*)\]"
_DOT = re.compile(rf"= {_SHAPE}\S* dot\(%([\w.-]+).*?lhs_contracting_dims=\{{([\d,]*)\}}")
_CALL = re.compile(r"^\s+(?:ROOT )?%[\w.-]+ = .*? ([\w-]+)\(")
_RUNS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_LOOP = re.compile(r"(?:body|to_apply)=%?([\w.-]+)")
_ANY = re.compile(r"(?:body|to_apply|calls)=%?([\w.-]+)")
# What only gives names to what is there, or is counted by what it runs.
_NOTHING = (
    "get-tuple-element",
    "parameter",
    "constant",
    "bitcast",
    "tuple",
    "while",
    "conditional",
    "call",
    "after-all",
)


def calls(program: str) -> int:
    """Instructions that are run, one after the other: kernels, copies, calls of libraries."""

    def of_line(line: str, shapes: dict[str, str]) -> int:
        found = _CALL.match(line)
        return int(found is not None and found[1] not in _NOTHING)

    return int(_count(program, of_line, lambda line: _LOOP if " while(" in line or " call(" in line else None))


def products(program: str) -> float:
    """Multiplications and additions of matrix products; those that a backend has given to a library are not seen."""

    def of_line(line: str, shapes: dict[str, str]) -> float:
        if (found := _DOT.search(line)) is None:
            return 0.0
        out, left, contracted = found.groups()
        sizes = _numbers(shapes[left])
        return 2.0 * prod(_numbers(out)) * prod(sizes[axis] for axis in _numbers(contracted))

    return _count(program, of_line, lambda line: _ANY)


def _count(
    program: str, of_line: Callable[[str, dict[str, str]], float], inside: Callable[[str], re.Pattern[str] | None]
) -> float:
    """The sum of `of_line` over what is run; `inside` says by which words a line names what it runs in turn."""
    bodies = {found[1]: found[0] for found in _BODY.finditer(program)}

    def total(name: str) -> float:
        text, found = bodies[name], 0.0
        shapes = {
            **dict(re.findall(rf"%([\w.-]+) = {_SHAPE}", text)),
            **dict(re.findall(rf"([\w.-]+): {_SHAPE}", text)),
        }
        for line in text.splitlines()[1:]:
            found += of_line(line, shapes)
            if (words := inside(line)) is not None:
                runs = int(told[1]) if (told := _RUNS.search(line)) else 1
                found += runs * sum(total(called) for called in words.findall(line) if called in bodies)
        return found

    return total(next(name for name, text in bodies.items() if text.startswith("ENTRY")))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]
