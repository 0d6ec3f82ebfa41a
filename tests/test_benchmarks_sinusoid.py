"""Speed beside others: what is timed computes the same, in numbers, and what cannot be timed is named."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.benchmarks import bare_jax, ours, sinusoid
from metaprior.benchmarks.problem import COMPARED_AT, INNER_RATE, META_RATE, NUM_TASKS, QUERIES, SHOTS, first, problem
from metaprior.cli import main

JAX_ONLY = [name for name, one in sinusoid.IMPLEMENTATIONS.items() if not one.needs]
PEERS = [name for name, one in sinusoid.IMPLEMENTATIONS.items() if one.needs]
MAML = [name for name, one in sinusoid.IMPLEMENTATIONS.items() if one.maml and not one.own_tasks]
COLUMNS = "experiment setting method metric paper mean ci95 seeds command hardware seconds commit".split()


@pytest.fixture(scope="module")
def given():
    return problem(COMPARED_AT)


@pytest.fixture(scope="module")
def reference(given):
    """The bare loop over the first twenty batches."""
    return trained("bare JAX", given, 20)


def trained(name, given, iterations):
    runner = sinusoid.IMPLEMENTATIONS[name].make()
    state, losses = runner.train(runner.begin(given.weights), runner.load(first(given.batches, iterations)))
    return np.asarray(losses), runner.weights(state)


def assert_same(found, wanted, rtol):
    np.testing.assert_allclose(found[0], wanted[0], rtol=rtol)
    for ours_, theirs in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(ours_, theirs, rtol=rtol, atol=rtol)


# --- the problem ------------------------------------------------------------------------------------------------------


def test_the_problem_is_the_one_that_is_stated(given):
    assert [w.shape for w in given.weights] == [(1, 40), (40,), (40, 40), (40,), (40, 1), (1,)]
    assert given.batches.support_x.shape == (COMPARED_AT, NUM_TASKS, SHOTS, 1) == (200, 5, 10, 1)
    assert given.batches.query_y.shape == (COMPARED_AT, NUM_TASKS, QUERIES, 1) == (200, 5, 10, 1)
    x = np.concatenate([given.batches.support_x, given.batches.query_x], axis=2)[..., 0]
    y = np.concatenate([given.batches.support_y, given.batches.query_y], axis=2)[..., 0]
    for points, values in zip(x.reshape(-1, 20)[::50], y.reshape(-1, 20)[::50], strict=True):
        basis = np.stack([np.sin(points), np.cos(points)], axis=1)  # A sin(x + b) lies in their span
        amplitudes, *_ = np.linalg.lstsq(basis, values)
        np.testing.assert_allclose(basis @ amplitudes, values, atol=1e-9)
        assert 0.1 <= np.hypot(*amplitudes) <= 5.0


def test_the_first_loss_is_second_order_maml_by_hand(given, reference):
    """The first meta-gradient by finite differences of the adapted query loss, and Adam's first step, which is its sign."""

    def query_loss(weights):
        total = 0.0
        for task in zip(*(array[0] for array in given.batches), strict=True):
            support_x, support_y, query_x, query_y = task
            error = lambda w, x, y: jnp.mean((bare_jax.forward(w, x) - y) ** 2)
            grads = jax.grad(error)(weights, support_x, support_y)
            total += (
                error([w - INNER_RATE * g for w, g in zip(weights, grads, strict=True)], query_x, query_y) / NUM_TASKS
            )
        return float(total)

    weights = [np.array(w) for w in given.weights]
    np.testing.assert_allclose(reference[0][0], query_loss(weights), rtol=1e-10)
    _, after = trained("bare JAX", given, 1)
    for layer, index in ((0, (0, 3)), (2, (5, 7)), (4, (11, 0)), (5, (0,))):
        moved = [np.array(w) for w in weights]
        moved[layer][index] += 1e-5
        slope = (query_loss(moved) - query_loss(weights)) / 1e-5
        np.testing.assert_allclose((after[layer] - weights[layer])[index], -META_RATE * np.sign(slope), rtol=1e-4)


# --- all compute the same ---------------------------------------------------------------------------------------------


def test_our_maml_is_the_bare_loop(given, reference):
    assert_same(trained("metaprior maml", given, 20), reference, rtol=1e-9)


def test_gem_with_a_point_posterior_follows_the_query_gradient_at_the_adapted_point(given):
    """One step of each stage: m2 − m1 = −α∇query loss(m1), so that Adam's first step is minus the sign of its mean."""
    _, after = trained("metaprior gem-bml+", given, 1)
    batch = jax.tree.map(lambda array: array[0], given.batches)

    def of_task(support_x, support_y, query_x, query_y):
        grads = jax.grad(bare_jax.mean_squared_error)(given.weights, support_x, support_y)
        adapted = jax.tree.map(lambda w, g: w - INNER_RATE * g, given.weights, grads)
        return jax.grad(bare_jax.mean_squared_error)(adapted, query_x, query_y)

    wanted = jax.tree.map(lambda g: g.mean(axis=0), jax.vmap(of_task)(*batch))
    for before, moved, gradient in zip(given.weights, after, wanted, strict=True):
        clear = np.abs(gradient) > 1e-4  # beside Adam's ε
        np.testing.assert_allclose((moved - before)[clear], -META_RATE * np.sign(gradient)[clear], rtol=1e-2)


def test_losses_are_those_of_unseen_tasks_after_one_step(given):
    tasks = type(given.held_out)(*(array[:, :20] for array in given.held_out))
    one_by_one = [
        bare_jax.task_loss(given.weights, type(tasks)(*task)) for task in zip(*(a[0] for a in tasks), strict=True)
    ]
    np.testing.assert_allclose(sinusoid.held_out_loss(given.weights, tasks), np.mean(one_by_one), rtol=1e-9)
    assert given.held_out.query_y.shape == (1, 500, QUERIES, 1)
    assert not np.isin(given.held_out.query_y, given.batches.query_y).any()


def test_drawing_tasks_inside_takes_as_many_iterations_from_the_same_weights(given):
    runner = ours.drawing_runner("maml", ours.MAML)
    state, losses = runner.train(runner.begin(given.weights), runner.load(first(given.batches, 20)))
    assert len(losses) == 20 == int(state.iteration)
    assert np.isfinite(losses).all() and not np.allclose(losses, trained("bare JAX", given, 20)[0])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "compiled" in name else []) for name in PEERS]
)
@pytest.mark.filterwarnings("ignore")  # of other people's libraries
def test_peers_are_the_bare_loop(name, given, reference):
    for package in sinusoid.IMPLEMENTATIONS[name].needs:
        pytest.importorskip(package, reason="comes with pip install 'metaprior[bench]'")
    assert_same(trained(name, given, 20), reference, rtol=1e-9)


def test_disagreement_is_told():
    losses = dict.fromkeys(MAML, 3.5) | {"metaprior gem-bml+": 4.0, "metaprior maml (draws its own tasks)": 3.0}
    assert sinusoid.disagreements(losses) == []
    assert sinusoid.disagreements(losses | {"higher": 3.5 * 1.0009}) == []
    (sentence,) = sinusoid.disagreements(losses | {"higher": 3.6})
    assert sentence == "higher has a loss of 3.6 after 200 iterations where bare JAX has 3.5"
    for name in ("TorchOpt", "metaprior gem-bml+"):
        lost = sinusoid.disagreements(losses | {name: float("nan")})
        assert lost == [f"{name} has no finite loss after 200 iterations"]
    assert sinusoid.disagreements({"metaprior gem-bml+": 4.0}) == []


# --- the measurement --------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Peers missing, and no waiting for the clock."""
    monkeypatch.setattr(sinusoid, "SLICE", 0.0)
    monkeypatch.setattr(sinusoid, "find_spec", lambda package: None)


@pytest.mark.slow
def test_json_contract_and_missing_peers(quick, capsys):
    assert main(["bench", "sinusoid", "--json", "--rounds", "2", "--iterations", "20"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert list(found["implementations"]) == list(found["loss_after_200"]) == JAX_ONLY
    assert all(speed > 0 for speed in found["implementations"].values())
    floor = found["implementations"]["bare JAX"]
    assert found["ratios"] == {"bare JAX": {name: speed / floor for name, speed in found["implementations"].items()}}
    np.testing.assert_allclose(
        found["loss_after_200"]["metaprior maml"], found["loss_after_200"]["bare JAX"], rtol=1e-9
    )
    assert list(found["left_out"]) == PEERS
    for line, name in zip(err.splitlines(), PEERS, strict=True):
        assert line.startswith(f"note: {name} is left out: needs torch") and "pip install 'metaprior[bench]'" in line


def test_speed_is_iterations_by_seconds(monkeypatch, given):
    """By a clock of our own, on which a pass of 50 iterations takes a quarter of a second, and the third ten of them."""
    now, passes = 0.0, 0

    def train(state, batches):
        nonlocal now, passes
        passes += 1
        now += 10.0 if passes == 3 else 0.25
        return state, np.zeros(batches)

    pretended = bare_jax.runner()._replace(load=lambda batches: len(batches.query_x), train=train)
    monkeypatch.setattr(sinusoid, "IMPLEMENTATIONS", {"bare JAX": sinusoid.Implementation(lambda: pretended)})
    monkeypatch.setattr(sinusoid.time, "perf_counter", lambda: now)
    reports = []
    found = sinusoid.measure(rounds=3, iterations=50, report=lambda *report: reports.append(report))
    assert found["rounds"] == {"bare JAX": [5.0, 200.0, 200.0]}
    assert found["implementations"] == {"bare JAX": 200.0}
    assert [report[:2] for report in reports] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert reports[1][2] == "round 1 of 3: bare JAX"


def test_a_peer_that_fails_is_left_out_and_one_of_ours_is_an_error(monkeypatch, given):
    def broken():
        raise RuntimeError("no working\n C++ compiler")

    monkeypatch.setattr(sinusoid.torch_peers, "set_threads", lambda count: None)
    table = {"torch.func compiled": sinusoid.Implementation(broken, needs=("json",))}
    monkeypatch.setattr(sinusoid, "IMPLEMENTATIONS", table)
    found = sinusoid.measure(rounds=1)
    assert found["left_out"] == {"torch.func compiled": "failed here: RuntimeError: no working C++ compiler"}
    assert found["implementations"] == {} == found["ratios"]
    monkeypatch.setattr(sinusoid, "IMPLEMENTATIONS", {"ours": sinusoid.Implementation(broken)})
    with pytest.raises(RuntimeError, match="compiler"):
        sinusoid.measure(rounds=1)


def test_interval_of_a_median_covers_it():
    """Of nine values the second and the eighth: the binomial says 96 %, and so do draws."""
    draws = np.random.default_rng(0).normal(size=(4000, 9))
    ordered = np.sort(draws, axis=1)
    covered = ((ordered[:, 1] < 0) & (ordered[:, 7] > 0)).mean()
    assert 0.95 < covered < 0.97
    assert sinusoid.interval_of_median(list(draws[0])) == (ordered[0, 7] - ordered[0, 1]) / 2
    assert sinusoid.interval_of_median([1.0, 2.0, 3.0, 4.0, 5.0]) is None


# --- the command ------------------------------------------------------------------------------------------------------

FOUND = {
    "implementations": {"metaprior maml": 12000.0, "bare JAX": 16000.0, "TorchOpt": 250.0},
    "loss_after_200": {"metaprior maml": 3.5, "bare JAX": 3.5, "TorchOpt": 3.5},
    "ratios": {
        "TorchOpt": {"metaprior maml": 48.0, "bare JAX": 64.0, "TorchOpt": 1.0},
        "bare JAX": {"metaprior maml": 0.75, "bare JAX": 1.0, "TorchOpt": 0.015625},
    },
    "rounds": {"metaprior maml": [12000.0] * 9, "bare JAX": [16000.0] * 9, "TorchOpt": [250.0] * 9},
    "left_out": {"higher": "needs higher: pip install 'metaprior[bench]'"},
    "warm_up_seconds": {},
    "iterations": 200,
    "threads_of_pytorch": 1,
    "seconds": 61.23,
    "hardware": "a machine",
    "versions": {"jax": "0.10"},
}


@pytest.fixture
def measured(monkeypatch):
    asked = {}
    monkeypatch.setattr(sinusoid, "measure", lambda **flags: asked.update(flags) or FOUND)
    return asked


def test_table_for_people(measured, capsys):
    assert main(["bench", "sinusoid", "--only", "metaprior maml", "TorchOpt", "--rounds", "3", "--threads", "2"]) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "implementation it/s × TorchOpt × bare JAX loss after 200" in lines
    assert "metaprior maml 12,000 48 0.75 3.5000" in lines
    assert "TorchOpt 250 1 0.0156 3.5000" in lines
    assert err == "note: higher is left out: needs higher: pip install 'metaprior[bench]'\n"
    measured.pop("report")
    assert measured == {"only": ("metaprior maml", "TorchOpt"), "rounds": 3, "iterations": 200, "threads": 2}


def test_results_file(measured, tmp_path, capsys):
    path = tmp_path / "results" / "bench-sinusoid.json"
    assert main(["bench", "sinusoid", "--out", str(path)]) == 0
    results = json.loads(path.read_text())
    assert all(list(row) == COLUMNS for row in results["rows"])
    speeds = {row["method"]: row["mean"] for row in results["rows"] if row["metric"] == "iterations/s"}
    assert speeds == FOUND["implementations"]
    losses = {row["method"]: row["mean"] for row in results["rows"] if row["metric"] == "loss after 200"}
    assert losses == FOUND["loss_after_200"]
    first_row = results["rows"][0]
    assert first_row["experiment"] == "bench-sinusoid" and first_row["paper"] is None and first_row["ci95"] == 0.0
    assert first_row["command"] == f"metaprior bench sinusoid --out {path}" and first_row["seconds"] == 61.2
    assert results["curves"] == {"iterations/s by round": FOUND["rounds"]}


def test_disagreement_ends_with_code_1(measured, monkeypatch, capsys):
    monkeypatch.setitem(FOUND["loss_after_200"], "TorchOpt", 3.6)
    assert main(["bench", "sinusoid", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["loss_after_200"]["TorchOpt"] == 3.6
    assert "note: speeds say nothing: TorchOpt has a loss of 3.6" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sinusoid", "--only", "torchoptt"], ["unknown implementation 'torchoptt'", "did you mean TorchOpt"]),
        (["sinusoid", "--rounds", "0"], ["rounds must be at least 1, got 0"]),
        (["sinusoid", "--iterations", "0"], ["iterations must be at least 1, got 0"]),
        (["sinusoids"], ["unknown measurement 'sinusoids'", "did you mean sinusoid"]),
    ],
)
def test_bad_input_is_one_line(argv, words, capsys):
    assert main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("metaprior: ") and err.count("\n") == 1
    assert all(word in err for word in words)


def test_help_teaches(capsys):
    assert main(["bench"]) == 0 == main(["bench", "--help"])
    assert "metaprior bench sinusoid" in capsys.readouterr().out
    for what in ("memory", "sinusoid"):
        assert main(["bench", what, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: metaprior bench {what}") and out.count(f"\n  metaprior bench {what}") == 3
    assert "pip install 'metaprior[bench]'" in " ".join(out.split())


def test_the_table_of_peers_loads_none_of_them():
    code = "import sys; from metaprior.benchmarks import sinusoid; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "torchopt", "higher"} & set(loaded)
