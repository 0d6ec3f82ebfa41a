"""All that is wrong with a data set, said at once: nobody should have to mend and call again image by image."""

from collections.abc import Iterable, Sequence

SHOWN = 10  # problems, in one message


class DataError(ValueError):
    """A data set that cannot be used; `problems` are all that were found, the message holds the first of them."""

    def __init__(self, what: str, problems: Iterable[str]):
        self.problems = tuple(problems)
        super().__init__(f"{what} cannot be used: {first_few(self.problems, SHOWN, separator='; ')}")


def first_few(items: Sequence[str], number: int, *, separator: str = ", ") -> str:
    """The first items in words, and how many more there are.

    >>> first_few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(items) - number} more" if len(items) > number else ""
    return separator.join(items[:number]) + more
