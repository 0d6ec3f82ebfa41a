"""The arithmetic of matrix products in a compiled program, loops counted as often as they run."""

import re
from math import prod

_BODY = re.compile(r"^(?:ENTRY )?%([\w.-]+) [^\n]*\{\n.*?^\}", re.M | re.S)
_SHAPE = r"\w+\[([\d,]*)\]"
_DOT = re.compile(rf"= {_SHAPE}\S* dot\(%([\w.-]+).*?lhs_contracting_dims=\{{([\d,]*)\}}")


def products(program: str, *, branches: bool = False) -> float:
    """Multiplications and additions; with `branches`, every branch of a condition counts as well."""
    bodies = {found[1]: found[0] for found in _BODY.finditer(program)}
    entry = next(name for name, text in bodies.items() if text.startswith("ENTRY"))
    return _of(bodies, entry, branches)


def _of(bodies: dict[str, str], name: str, branches: bool) -> float:
    total, text = 0.0, bodies[name]
    shapes = dict(re.findall(rf"%([\w.-]+) = {_SHAPE}", text)) | dict(re.findall(rf"([\w.-]+): {_SHAPE}", text))
    for line in text.splitlines()[1:]:
        if found := _DOT.search(line):
            out, left, contracted = found.groups()
            sizes = _numbers(shapes[left])
            total += 2 * prod(_numbers(out)) * prod(sizes[axis] for axis in _numbers(contracted))
        count = int(found[1]) if (found := re.search(r'known_trip_count":\{"n":"(\d+)"', line)) else 1
        for called in re.findall(r"(?:calls|to_apply|body)=%?([\w.-]+)", line):
            total += count * _of(bodies, called, branches)
        if branches and (found := re.search(r"branch_computations=\{([^}]*)\}", line)):
            total += sum(_of(bodies, called.strip(" %"), branches) for called in found[1].split(","))
    return total


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]
