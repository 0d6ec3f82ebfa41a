"""Names people type: an unknown one is refused with those nearest to it."""

from collections.abc import Iterable
from difflib import get_close_matches


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among those known.

    >>> require_known("fruit", "aple", ["apple", "fig"])
    Traceback (most recent call last):
    ValueError: unknown fruit 'aple': did you mean apple? choose from apple, fig
    """
    known = list(known)
    if name not in known:
        near = get_close_matches(name.lower(), known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"unknown {what} {name!r}: {hint}choose from {', '.join(known)}")
