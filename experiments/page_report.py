"""Tables of what the page's priors reach, made of the cards that lie beside them."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from metaprior.page import priors


def characters() -> str:
    """How often answers are right, and how often they are called sure."""
    head = (
        "characters",
        "accuracy",
        "ECE",
        "sure from",
        "answers that are sure",
        "right where sure",
        "strangers called sure",
    )
    lines = []
    for number, known in _card(priors.CHARACTERS)["classes"].items():
        test = known["test"]
        accuracy = f"{100 * test['accuracy']:.1f} ± {100 * test['accuracy_ci95']:.1f} %"
        shares = [_percent(test[name]) for name in ("share_sure", "accuracy_where_sure", "strangers_called_sure")]
        lines.append((number, accuracy, _percent(test["ece"]), f"{100 * known['sure_from']:.0f} %", *shares))
    return _table(head, lines, words=1)


def curves() -> str:
    """Coverage, NLL and squared error by the number of points, and where a method diverges."""
    shown = (
        ("coverage of 90 % band", "coverage90", _percent),
        ("NLL", "nll", _number),
        ("MSE", "mse", _number),
    )
    diverged = _by_points("tasks that diverge", "ran_away", _percent, kept=any)
    return "\n\n".join([*(_by_points(*one) for one in shown), diverged])


def _by_points(title: str, name: str, written: Any, kept: Callable[[Sequence[Any]], bool] = bool) -> str:
    """A line for each prior whose scores are to be kept."""
    cards = {
        (tasks, method): _card(priors.curve_name(tasks, method))["scores"]
        for tasks in priors.CURVES
        for method in priors.METHODS
    }
    (points,) = {tuple(scores["points"]) for scores in cards.values()}
    lines = [(*where, *map(written, scores[name])) for where, scores in cards.items() if kept(scores[name])]
    head = (f"{title}: curves", "prior", f"{points[0]} point", *(str(count) for count in points[1:]))
    return _table(head, lines, words=2)


def _number(value: float | None) -> str:
    """Means over tasks on which a method diverged are beyond all bounds, and how far says nothing."""
    if value is None or value > 1000:
        return "> 1000"
    return f"{value:.1g}" if 0 < value < 0.01 else f"{value:.2f}".replace("-", "−")


def _card(name: str) -> dict[str, Any]:
    return json.loads((priors.FOLDER / f"{name}.json").read_bytes())


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], *, words: int) -> str:
    """With numbers to the right, after so many columns of words."""
    rows = [head, ["---"] * words + ["--:"] * (len(head) - words), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
