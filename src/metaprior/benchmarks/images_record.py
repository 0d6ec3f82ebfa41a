"""What was measured on images, as results files hold it and as people read it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metaprior.benchmarks.origin import commit
from metaprior.benchmarks.sinusoid import interval_of_median

BESIDE = "maml beside torch.func"
TARGETED = "gem-bml+"  # whose cost is to stay below the target
COST_HEAD = ("setting", "program", "ms", "floors", "asked", "calls", "memory")
SPEED_HEAD = ("setting", "program", "it/s", "metaprior is", "first loss")


def record(found: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Rows that say where they come from."""
    after = {
        "seeds": 1,
        "command": command,
        "hardware": found["hardware"],
        "seconds": round(found["seconds"], 1),
        "commit": commit(),
    }
    rows = [
        {"experiment": "bench-images", "setting": setting, "method": method, "metric": metric, "paper": None,
         "mean": mean, "ci95": ci95, **after}
        for setting, method, metric, mean, ci95 in (*_costs(found), *_beside(found))
    ]  # fmt: skip
    told = ("counted", "images", "iterations", "repeats", "versions")
    curves = {"settings": found["settings"], BESIDE: found[BESIDE]}
    return {"settings": {name: found[name] for name in told}, "rows": rows, "curves": curves}


def tables(found: Mapping[str, Any]) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """(title, head, lines) of what was measured."""
    shown = [
        (f"meta-iterations on images; {found['hardware']}", COST_HEAD, list(_cost_lines(found))),
        ("second-order MAML, omniglot-5w1s", SPEED_HEAD, list(_speed_lines(found))),
    ]
    return [table for table in shown if table[2]]


def notes(found: Mapping[str, Any]) -> list[str]:
    """What people should know beside the numbers."""
    said = [words for words in found["images"].values() if words.startswith("random")]
    for steps, parts in found[BESIDE].items():
        for precision, piece in parts.items():
            said += [f"{name}, {steps}, {precision}, is left out: {why}" for name, why in piece["left out"].items()]
    return said


def disagreements(found: Mapping[str, Any]) -> list[str]:
    """Sentences on programs that should compute the same and do not."""
    return [
        f"{name}, {steps}, {precision}: "
        + ("losses are not finite" if apart is None else f"losses differ by {apart:.2g} of themselves")
        + f", where {piece['tolerance']:g} is allowed"
        for steps, pieces in found[BESIDE].items()
        for precision, piece in pieces.items()
        for name, apart in piece["largest difference"].items()
        if apart is None or apart > piece["tolerance"]
    ]


def _pieces(found: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any], float | None]]:
    """(setting, precision, what was found, largest ratio that is asked for)."""
    for setting, parts in found["settings"].items():
        for precision, piece in parts.items():
            if isinstance(piece, Mapping):
                yield setting, precision, piece, parts["target"]


def _costs(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float, float | None]]:
    for setting, precision, piece, _ in _pieces(found):
        where = f"{setting}, {precision}"
        for method, value in piece["milliseconds"].items():
            yield where, method, "ms of an iteration", value, interval_of_median(piece["rounds"][method])
        for method, ratio in piece["ratio"].items():
            yield where, method, "in floors", ratio, None


def _beside(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float, float | None]]:
    for steps, parts in found[BESIDE].items():
        for precision, piece in parts.items():
            where = f"maml, {steps}, {precision}"
            for method, value in piece["iterations/s"].items():
                yield where, method, "iterations/s", value, interval_of_median(piece["rounds"][method])
                yield where, method, "loss of the first iteration", piece["losses"][method][0], None


def _cost_lines(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for setting, precision, piece, target in _pieces(found):
        for name, value in piece["milliseconds"].items():
            ratios = piece["ratio"].get(name), target if name == TARGETED else None
            size, calls = piece["bytes"][name], f"{piece['calls of an iteration'][name]:,.0f}"
            memory = "" if size is None else f"{size / 1e6:,.0f} MB"
            yield f"{setting}, {precision}", name, f"{value:.3g}", *map(_times, ratios), calls, memory


def _speed_lines(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for steps, parts in found[BESIDE].items():
        for precision, piece in parts.items():
            for name, value in piece["iterations/s"].items():
                first = f"{piece['losses'][name][0]:.6f}"
                yield f"{steps}, {precision}", name, f"{value:,.1f}", _times(piece["ratio"].get(name)), first


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"× {ratio:.3g}"
