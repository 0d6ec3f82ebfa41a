"""Plans past one machine: arithmetic by hand, against a slow twin, and on the command line."""

import json

import jax
import jax.numpy as jnp
import pytest

from experiments import study
from metaprior import plans
from metaprior.cli import main
from metaprior.cli.plan import measured
from metaprior.plans import Measured, Network, Phones
from metaprior.settings import Settings, assemble
from metaprior.training import initial_state

ONE = Measured(entries=996, itemsize=4, tasks=5, seconds=0.01, device="by hand")  # S = 1000 · 4 B
FREE = Network(per_host=8, inside=1e6, inside_latency=0.0, between=1e5, between_latency=0.0)


def ring_by_turns(size, members, bandwidth):
    """An all-reduce as it is done: m − 1 turns to sum parts of size/m, and m − 1 to pass sums on."""
    seconds = 0.0
    for _ in range(2 * (members - 1)):
        seconds += size / members / bandwidth
    return seconds


@pytest.mark.parametrize("devices", [1, 2, 8, 64, 512])
def test_an_all_reduce_takes_the_turns_of_its_rings(devices):
    inside, hosts = min(devices, 8), max(devices // 8, 1)
    expected = ring_by_turns(4000, inside, 1e6) + ring_by_turns(4000, hosts, 1e5)
    assert plans.all_reduce(4000.0, devices, FREE) == pytest.approx(expected, rel=1e-12)


def test_latency_counts_once_for_every_level_of_a_tree_up_and_down():
    slow = Network(per_host=8, inside=1e30, inside_latency=1.0, between=1e30, between_latency=100.0)
    assert plans.all_reduce(1.0, 64, slow) == pytest.approx(2 * 3 * 1.0 + 2 * 3 * 100.0)


def test_devices_learn_from_their_tasks_and_wait_for_the_sum():
    row = plans.on_devices(ONE, 8, FREE)
    assert ONE.summed == 4000 and row.tasks == 40
    assert row.sent == pytest.approx(2 * 7 / 8 * 4000) and row.in_all == pytest.approx(2 * 7 * 4000)
    assert row.seconds == pytest.approx(0.01 + 0.007) and row.tasks_per_second == pytest.approx(40 / 0.017)
    assert row.bound == "inference"
    assert plans.on_devices(ONE, 64, FREE).bound == "the all-reduce"


def test_one_device_sends_nothing():
    row = plans.on_devices(ONE, 1, Network())
    assert (row.sent, row.communication, row.seconds) == (0, 0, ONE.seconds)


def test_a_round_of_phones_is_bound_by_the_slower_of_phones_and_server():
    phones = Phones(tasks=3, slower=2.0, start=0.5, down=8000.0, up=4000.0, server=1e6)
    few = plans.on_phones(ONE, 10, phones)
    assert few.seconds == pytest.approx(0.5 + 0.5 + 3 * 2.0 * 0.01 / 5 + 1.0) and few.tasks == 30
    assert few.bound == "the phones' connections"
    many = plans.on_phones(ONE, 1000, phones)
    assert many.seconds == pytest.approx(1000 * 4000 / 1e6) and many.bound == "the server's connection"


@pytest.mark.parametrize(
    "changes", [dict(method="gem-bml+"), dict(method="maml"), dict(method="reptile", optimizer="shared-adam")]
)
def test_what_is_summed_is_counted_as_it_is_sent(changes):
    """The bytes of the plan are those of the statistics that a meta-step sums."""
    setup = assemble(Settings(hidden=(4,), **changes))
    state = initial_state(setup)
    keys = jax.random.split(jax.random.key(0), 2)
    assert setup.learner.learn is not None
    found = jax.eval_shape(setup.learner.learn, state, keys, jax.vmap(setup.tasks.sample)(keys))
    floating = [leaf for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    assert measured(setup, 1.0).summed == sum(leaf.size * leaf.dtype.itemsize for leaf in floating)


def test_the_command_shows_the_formulas_and_writes_rows(tmp_path, capsys):
    out = tmp_path / "results" / "bench-plan.json"
    argv = ["plan", "sinusoid", "--hidden", "4", "--seconds", "0.01", "--out", str(out)]
    assert main(argv) == 0
    told = capsys.readouterr().out
    for words in (
        "512 devices",
        "10,000 phones",
        "S = (26 entries of the prior + 4) × 8 B = 240 B",
        "all-reduce = 2 (g−1)/g",
    ):
        assert words in told
    rows = json.loads(out.read_text())["rows"]
    assert all(tuple(row) == study.COLUMNS for row in rows)
    speed = {row["method"]: row["mean"] for row in rows if row["metric"] == "tasks_per_second"}
    assert list(speed) == ["1 device", "8 devices", "64 devices", "512 devices", "10,000 phones"]
    assert speed["1 device"] == pytest.approx(5 / 0.01)


def test_what_was_measured_elsewhere_is_read_from_its_results(tmp_path, capsys):
    row = {"method": "gem-bml+", "metric": "ms of an iteration", "hardware": "a card"}
    other = row | {"method": "maml", "setting": "omniglot-5w1s, float32", "mean": 7.0}
    timed = {"omniglot-5w1s, float32": 2.0, "omniglot-20w1s, float32": 3.0}
    rows = [other, *(row | {"setting": setting, "mean": mean} for setting, mean in timed.items())]
    path = tmp_path / "bench-images.json"
    path.write_text(json.dumps({"rows": rows}))
    for flags, seconds, tasks in (([], 0.002, 32), (["--setting", "omniglot-20w1s, float32"], 0.003, 16)):
        assert main(["plan", "--measured", str(path), *flags, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["measured"]
        assert (found["seconds"], found["tasks"], found["device"]) == (pytest.approx(seconds), tasks, "a card")
    assert main(["plan", "--measured", str(path), "--setting", "omniglot-9w1s, float32"]) == 2
    path.write_text("{}")
    assert main(["plan", "--measured", str(path)]) == 2
    assert "cannot be read as results" in capsys.readouterr().err


def test_a_meta_step_is_timed_here_unless_it_is_given(capsys):
    assert main(["plan", "sinusoid", "--hidden", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["measured"]["seconds"] < 1 and found["measured"]["tasks"] == 5
    assert found["rows"][0]["seconds"] == found["measured"]["seconds"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["sinusoid", "--seconds", "0"], "--seconds must be above zero"),
        (["sinusoid", "--phone-up", "-1"], "--phone-up must be above zero"),
        (["rl-navigation", "--method", "maml-trpo", "--seconds", "1"], "sums over tasks many times"),
    ],
)
def test_what_cannot_be_planned_is_refused(argv, words, capsys):
    assert main(["plan", *argv]) == 2
    assert words in capsys.readouterr().err


def test_the_plan_of_the_docs_follows_from_what_was_measured():
    """Its rows, made again from the numbers that are saved beside them; and the measured one is that of the bench of images."""
    kept = study.load("bench-plan")
    chosen = kept["settings"]
    one, network, phones = Measured(**chosen["measured"]), Network(**chosen["network"]), Phones(**chosen["phones"])
    made = {row.who: row for row in plans.plan(one, network, phones)}
    assert set(made) == {"1 device", "8 devices", "64 devices", "512 devices", "10,000 phones"}
    for row in kept["rows"]:
        assert row["mean"] == pytest.approx(float(getattr(made[row["method"]], row["metric"])))
    times = [row["mean"] for row in study.load("bench-images")["rows"] if row["metric"] == "ms of an iteration"]
    assert any(one.seconds == pytest.approx(time / 1e3) for time in times)
