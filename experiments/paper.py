"""What the paper prints: the numbers of its tables, as they stand there. What it says in words stands with each study."""

from math import hypot
from typing import NamedTuple


class Printed(NamedTuple):
    """A number as it is printed, and what it means; not every one has an interval."""

    text: str
    mean: float
    ci95: float | None = None


def read(text: str) -> Printed:
    """From the paper's own writing.

    >>> read("99.50 ± 0.26")
    Printed(text='99.50 ± 0.26', mean=99.5, ci95=0.26)
    """
    mean, _, spread = text.partition(" ± ")
    return Printed(text, float(mean), float(spread) if spread else None)


def distance(printed: Printed, mean: float, ci95: float | None) -> tuple[float, float]:
    """A number of ours minus the paper's, and how far apart the two may lie: the root of the sum of their squared intervals.

    >>> distance(read("98.5 ± 0.4"), 99.0, 0.3)
    (0.5, 0.5)
    """
    return mean - printed.mean, hypot(ci95 or 0.0, printed.ci95 or 0.0)


# Tables 2 and 3: accuracy in per cent. Rows of others are copied there from their own papers.
OMNIGLOT_SETTINGS = ("5w1s", "5w5s", "20w1s", "20w5s")
_ACCURACY = {
    "omniglot": {
        "maml": ("98.7 ± 0.4", "99.9 ± 0.1", "95.8 ± 0.3", "98.9 ± 0.2"),
        "fomaml": ("98.3 ± 0.5", "99.2 ± 0.2", "89.4 ± 0.5", "97.9 ± 0.1"),
        "reptile": ("97.68 ± 0.04", "99.48 ± 0.06", "89.43 ± 0.14", "97.12 ± 0.32"),
        "imaml": ("99.50 ± 0.26", "99.74 ± 0.11", "96.18 ± 0.36", "99.14 ± 0.1"),
        "gem-bml+": ("99.23 ± 0.42", "99.64 ± 0.08", "96.24 ± 0.35", "98.94 ± 0.25"),
    },
    "miniimagenet": {
        "maml": ("48.70 ± 1.84",),
        "fomaml": ("48.07 ± 1.75",),
        "reptile": ("49.97 ± 0.32",),
        "imaml": ("49.30 ± 1.88",),
        "amortized-bml": ("45.0 ± 0.60",),
        "gem-bml+": ("50.03 ± 1.63",),
    },
}
# Task set -> method -> setting -> number.
ACCURACY: dict[str, dict[str, dict[str, Printed]]] = {
    tasks: {method: dict(zip(OMNIGLOT_SETTINGS, map(read, numbers), strict=False)) for method, numbers in table.items()}
    for tasks, table in _ACCURACY.items()
}
# Table 3: expected and largest calibration error, without intervals.
CALIBRATION: dict[str, dict[str, Printed]] = {
    "maml": {"ECE": read("0.0471"), "MCE": read("0.1104")},
    "amortized-bml": {"ECE": read("0.0124"), "MCE": read("0.0257")},
    "gem-bml+": {"ECE": read("0.0102"), "MCE": read("0.0197")},
}

# Tables 4, 5 and 6: hyper-parameters, column by column. The second column of Table 5 is headed 5-class, as is the first;
# by its numbers, which are those of MAML's authors, it is that of 20 classes.
RATES = ("meta-update rate", "inner-update rate", "inner steps in meta-training", "inner steps in meta-testing")
SIZES = ("meta-batch", "inner batch")
SINUSOIDS: dict[str, str] = dict(zip((*RATES, SIZES[0]), ("0.001", "0.001", "1", "10", "5"), strict=True))
IMAGES = {
    ("omniglot", "5w1s"): dict(zip((*RATES, SIZES[0]), ("0.001", "0.01", "1", "10", "32"), strict=True)),
    ("omniglot", "20w1s"): dict(zip((*RATES, SIZES[0]), ("0.001", "0.01", "5", "10", "16"), strict=True)),
    ("miniimagenet", "5w1s"): dict(zip((*RATES, SIZES[0]), ("0.001", "0.001", "5", "10", "4"), strict=True)),
}


def of_images(tasks: str, setting: str) -> dict[str, str]:
    """The column of Table 5 for a setting: columns are by classes, and do not distinguish shots.

    >>> of_images("omniglot", "20w5s")["meta-batch"]
    '16'
    """
    return IMAGES[tasks, f"{setting.partition('w')[0]}w1s"]


AGENTS = {
    "rl-navigation": dict(zip((*RATES, *SIZES), ("0.001", "0.1", "1", "3", "20", "20"), strict=True)),
    "rl-cheetah-velocity": dict(zip((*RATES, *SIZES), ("0.001", "0.1", "1", "3", "40", "20"), strict=True)),
    "rl-cheetah-direction": dict(zip((*RATES, *SIZES), ("0.001", "0.1", "1", "3", "40", "20"), strict=True)),
}

SINUSOID_ITERATIONS = 40_000  # of Figure 2a; of the other trainings the paper does not say how long they are
# What authors publish of their trainings, whose numbers the paper copies: iterations, and tasks of each.
_TRAINING = {
    "maml": {
        ("omniglot", "5w1s"): (60_000, 32),
        ("omniglot", "5w5s"): (60_000, 32),
        ("omniglot", "20w1s"): (60_000, 16),
        ("omniglot", "20w5s"): (60_000, 16),
        ("miniimagenet", "5w1s"): (60_000, 4),
    },
    "reptile": {
        ("omniglot", "5w1s"): (100_000, 5),
        ("omniglot", "5w5s"): (100_000, 5),
        ("omniglot", "20w1s"): (200_000, 5),
        ("omniglot", "20w5s"): (200_000, 5),
        ("miniimagenet", "5w1s"): (100_000, 5),
    },
}


class Length(NamedTuple):
    """Of a training, and whose."""

    whose: str
    iterations: int
    tasks: int  # of each


def length(tasks: str, setting: str, method: str | None) -> Length:
    """How long its authors train a method; where they are not known to say, how long MAML's train theirs.

    >>> length("omniglot", "20w1s", "reptile")
    Length(whose='Reptile’s', iterations=200000, tasks=5)
    >>> length("omniglot", "20w1s", "gem-bml+").whose
    'MAML’s'
    """
    known = method if method in _TRAINING else "maml"
    return Length({"maml": "MAML’s", "reptile": "Reptile’s"}[known], *_TRAINING[known][tasks, setting])
