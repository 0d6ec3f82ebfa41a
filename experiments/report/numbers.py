"""How numbers are written, once for every table: three significant digits, and a spread with the digits of its number."""

from math import floor, log10

NOTHING = "–"
SMALL, LARGE = 1e-3, 1e7  # from here on, powers of ten


def number(mean: float | None, ci95: float | None = None) -> str:
    """A mean with the half-width of its interval: `0.0178 ± 0.0032`.

    The larger of the two has three significant digits, or as many more as show a small spread.
    """
    if mean is None:
        return NOTHING
    size = max(abs(mean), ci95 or 0.0)
    if size == 0.0:
        return "0" if ci95 is None else "0 ± 0"
    if size < SMALL or size >= LARGE:
        power = floor(log10(size))
        return _with_spread(mean / 10**power, None if ci95 is None else ci95 / 10**power, f"e{power}")
    return _with_spread(mean, ci95, "")


def _with_spread(mean: float, ci95: float | None, power: str) -> str:
    size = max(abs(mean), ci95 or 0.0)
    digits = max(0, 2 - floor(log10(size)))
    write = lambda value, digits: _typeset(f"{value:,.{digits}f}{power}")
    if ci95 is None:
        return write(mean, digits)
    if ci95 == 0.0:
        return f"{write(mean, digits)} ± 0"
    shown = next((more for more in range(digits, digits + 3) if round(ci95, more) > 0), None)
    if shown is None:  # never ± 0.00 for what is not nothing
        return f"{write(mean, digits)} ± <{write(10.0**-digits, digits)}"
    return f"{write(mean, shown)} ± {write(ci95, shown)}"


def printed(value: float | None) -> str:
    """A number that the paper prints, with the digits it has there."""
    return NOTHING if value is None else _typeset(f"{value:,.6g}")


def duration(seconds: float) -> str:
    """In the largest units that matter: `3 h 20 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _typeset(text: str) -> str:
    """With a minus as long as a plus, and no minus before nothing."""
    return text.removeprefix("-") if not any(digit in text for digit in "123456789") else text.replace("-", "−")
