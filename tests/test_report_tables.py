"""How results are written: numbers with the digits that mean something, and every number in some table."""

import pytest

from experiments import study
from experiments.report.layout import Table, tables
from experiments.report.numbers import duration, number, printed
from experiments.report.section import origin, seconds


def row(setting="s", method="m", metric="x", mean=1.0, **changes):
    plain = {
        "experiment": "tiny",
        "seeds": 3,
        "command": "metaprior reproduce tiny",
        "hardware": "an abacus",
        "seconds": 1.0,
    }
    return plain | {"commit": "abc"} | study.row(setting=setting, method=method, metric=metric, mean=mean) | changes


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "ci95", "shown"),
    [
        (1.23456, None, "1.23"),
        (0.017849, 0.0032, "0.0178 ± 0.0032"),
        (-0.8412, 0.05, "−0.841 ± 0.050"),
        (3.8, 0.27, "3.80 ± 0.27"),
        (1.2345, 0.00123, "1.234 ± 0.001"),  # one digit more, to show the spread
        (0.5, 1e-9, "0.500 ± <0.001"),
        (0.0012, 0.5, "0.001 ± 0.500"),  # digits where they mean something
        (-0.0001, 0.5, "0.000 ± 0.500"),
        (0.000181, 0.000012, "1.81e−4 ± 0.12e−4"),
        (123456.7, 89.0, "123,457 ± 89"),
        (2.5e9, None, "2.50e9"),
        (1.0, 0.0, "1.00 ± 0"),
        (0.0, 0.0, "0 ± 0"),
        (0.0, None, "0"),
        (None, None, "–"),
        (None, 0.1, "–"),
    ],
)
def test_numbers_have_three_digits_and_a_matching_spread(mean, ci95, shown):
    assert number(mean, ci95) == shown


def test_the_papers_numbers_are_as_it_prints_them():
    assert [printed(value) for value in (None, 0.52, 48.7, -1.0, 12000)] == ["–", "0.52", "48.7", "−1", "12,000"]


@pytest.mark.parametrize(
    ("took", "shown"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (99, "99 s"), (100, "2 min"), (3599, "1 h 0 min"), (12000, "3 h 20 min")],
)
def test_durations(took, shown):
    assert duration(took) == shown


# --- tables -----------------------------------------------------------------------------------------------------------


def test_metrics_stand_side_by_side():
    rows = [
        row(method="a", metric="MSE", mean=1.0, ci95=0.1, paper=0.5),
        row(method="a", metric="NLL", mean=2.0),
        row(method="b", metric="NLL", mean=4.0),  # in another order
        row(method="b", metric="MSE", mean=3.0),
        row(setting="t", method="b", metric="MSE", mean=5.0, seeds=1),
        row(setting="t", method="b", metric="NLL", mean=float("nan"), seeds=1),
        row(setting="t", method="c", metric="NLL", mean=6.0),  # only one of them
    ]
    lines = (
        ("s", "a", "0.5", "1.00 ± 0.10", "2.00", "3"),
        ("s", "b", "–", "3.00", "4.00", "3"),
        ("t", "b", "–", "5.00", "–", "1"),
        ("t", "c", "", "", "6.00", "3"),
    )
    assert tables(rows) == [Table(("setting", "method", "MSE, paper", "MSE", "NLL", "seeds"), lines)]


def test_methods_with_other_metrics_have_a_table_of_their_own():
    rows = [row(metric="y"), row(method="n", metric="x"), row(method="n", metric="y"), row(method="o", metric="z")]
    first, second = tables(rows)
    assert first.head == ("setting", "method", "x", "y", "seeds")
    assert first.lines == (("s", "m", "", "1.00", "3"), ("s", "n", "1.00", "1.00", "3"))
    assert second == Table(("setting", "method", "z", "seeds"), (("s", "o", "1.00", "3"),))


IRREGULAR = {
    "a metric twice": [row(metric="x"), row(metric="y"), row(metric="x", mean=2.0)],
    "too many metrics": [row(metric=f"x{place}") for place in range(13)],
    "too many tables": [row(method=f"m{place}", metric=f"x{place}") for place in range(6)],
}


@pytest.mark.parametrize("rows", IRREGULAR.values(), ids=IRREGULAR)
def test_other_rows_are_lines_of_their_own(rows):
    (shown,) = tables(rows)
    assert shown.head == ("setting", "method", "metric", "paper", "ours", "seeds")
    assert [line[:3] for line in shown.lines] == [(one["setting"], one["method"], one["metric"]) for one in rows]
    assert shown.lines[0][3:] == ("–", "1.00", "3")


def test_every_number_is_in_some_table():
    rows = [row(f"s{n % 3}", f"m{n % 4}", f"x{n % 5}", mean=100.0 + n) for n in range(60)]
    shown = [cell for one in tables(rows) for line in one.lines for cell in line]
    assert sorted(cell for cell in shown if len(cell) == 3 and cell.isdigit()) == [str(100 + n) for n in range(60)]


def test_no_rows_no_table():
    assert tables([]) == []


def test_time_is_that_of_cells_and_not_of_rows():
    rows = [row(seconds=10.5), row(method="n", seconds=10.5), row(seconds=3.0), row(seconds=10.5)]
    assert seconds(rows) == 24.0
    assert origin(rows)["time"] == ("24 s, all cells together",)
