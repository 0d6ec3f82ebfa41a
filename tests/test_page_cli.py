"""`metaprior demo` and `metaprior bench page`: what they refuse, and what they write."""

import importlib.util
import json
import random
import socket

import pytest

from metaprior import benchmarks
from metaprior.benchmarks import page as benchmark
from metaprior.cli import main
from metaprior.page import asked, server


@pytest.fixture
def refused(capsys, monkeypatch):
    """The command ends with one line that holds these words, and nothing has been compiled."""
    monkeypatch.setattr("metaprior.page.app.engine", lambda: pytest.fail("nothing should be compiled for this"))

    def check(argv, *words):
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and all(word in err for word in words)

    return check


def test_other_machines_are_let_in_only_if_asked_for_twice(refused):
    refused(["demo", "--host", "0.0.0.0"], "other machines could reach the page", "--open-to-network")
    refused(["demo", "--host", "192.168.1.7"], "--open-to-network")


def test_a_port_that_is_taken_is_named(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused(["demo", "--port", str(taken.getsockname()[1])], "cannot be used", "choose another with --port")
    refused(["demo", "--port", "70000"], "--port is a number from 0")


def test_a_missing_extra_is_named(refused, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "starlette" else find(name))
    refused(["demo"], "the page needs starlette: pip install starlette")
    refused(["bench", "page"], "pip install starlette")


def test_names_of_the_machine():
    assert server.names("127.0.0.1", ()) == ("localhost", "127.0.0.1", "[::1]")
    assert {"box.local", "[fe80::1]", "localhost"} <= set(server.names("fe80::1", ("box.local",)))
    with server.bound("127.0.0.1", 0) as place:
        assert server.address(place) == f"http://127.0.0.1:{place.getsockname()[1]}/"


def test_times_are_told_and_kept(tmp_path, monkeypatch, capsys):
    found = {"curve, maml": benchmark.timed([float(i) for i in range(101)]), "drawing": benchmark.timed([300.0, 300.0])}
    monkeypatch.setattr(benchmark, "measure", lambda requests, report: (found, 12.5))
    out = tmp_path / "results" / "bench-page.json"
    assert main(["bench", "page", "--out", str(out)]) == 1
    text = capsys.readouterr()
    assert "slower than 100 ms" in text.err and "drawing" in text.err and "curve, maml" not in text.err
    rows = {(row["method"], row["metric"]): row["mean"] for row in json.loads(out.read_text())["rows"]}
    assert rows["curve, maml", "p50, ms"] == 50 and rows["curve, maml", "p95, ms"] == 95
    assert rows["drawing", "longest, ms"] == 300


def test_the_benchmark_asks_what_a_visitor_would():
    """Every question is one that the page understands, and no two of a kind are alike."""
    for name, question in benchmark.questions(random.Random(0)).items():
        bodies = {json.dumps(question()[1]) for _ in range(5)}
        read = asked.curve if name.startswith("curve") else asked.drawing
        assert len(bodies) == 5 and all(read(body.encode()) for body in bodies)


def test_memory_of_a_step_is_kept_with_its_growth(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "memory", lambda names, steps, tasks: {"maml": {"2": 2048, "100": 20480}})
    out = tmp_path / "bench-memory.json"
    assert main(["bench", "memory", "--out", str(out)]) == 0
    rows = {row["metric"]: row["mean"] for row in json.loads(out.read_text())["rows"]}
    assert rows == {"KiB, 2 steps": 2, "KiB, 100 steps": 20, "growth": 10}
