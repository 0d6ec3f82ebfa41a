"""Flower's messages around the rounds: in this process, by a grid of our own. Nothing a client sends damages the prior."""

import sys

import jax
import numpy as np
import pytest

from metaprior import runs, training
from metaprior.federated import flower, server
from metaprior.federated.server import Abandoned, Rules
from metaprior.settings import Settings, assemble

SETTINGS = Settings(hidden=(6,), shots=4, queries=3, meta_batch=5, iterations=3, rate=1e-3)
MEAN = "gradient.dist.mean.layers.0.weight"


def test_without_flower_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(ValueError, match=r"pip install 'metaprior\[federated\]'"):
        flower.packed({}, 1)


@pytest.fixture(scope="module")
def app():
    found = pytest.importorskip("flwr.app", reason="needs Flower: pip install 'metaprior[federated]'")
    from flwr.supercore.task_identity import TaskIdentity

    with pytest.MonkeyPatch.context() as patch:  # which Flower sets in the processes that it starts
        for name in ("_run_id", "_node_id", "_task_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield found


@pytest.fixture(scope="module")
def setup():
    return assemble(SETTINGS)


class Grid:
    """What a strategy sees of Flower, with clients that are functions from message to message, or None for silence."""

    def __init__(self, clients):
        self.clients, self.waiting, self.sent = clients, {}, 0

    def get_node_ids(self):
        return list(self.clients)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = f"message-{self.sent}"
            self.waiting[f"message-{self.sent}"] = self.clients[message.metadata.dst_node_id](message)
            numbers.append(f"message-{self.sent}")
        return numbers

    def pull_messages(self, numbers):
        return [reply for number in numbers if (reply := self.waiting.pop(number, None)) is not None]


@pytest.fixture(scope="module")
def honest(app):
    """Two clients that share the tasks."""
    client = flower.client_app()

    def of(number):
        config = {"client": number, "clients": 2}
        context = app.Context(run_id=1, node_id=number, node_config=config, state=app.RecordDict(), run_config={})
        return lambda message: client(message, context)

    return {11: of(0), 12: of(1)}


def rounds(setup, folder, clients, rules=None, grid=Grid):
    run = training.create_run(setup, folder, resume=False)
    federation, _ = server.taken_up(setup, run, rules or Rules(quorum=1, deadline=0.5))
    try:
        strategy = flower.strategy(federation)
        strategy.start(grid(clients))
        return strategy.federation.state, runs.read_metrics(run)
    finally:
        runs.release(run)


def key_apart(state):
    return jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))


@pytest.fixture(scope="module")
def alone(setup, honest, tmp_path_factory):
    """What the first client alone leads to."""
    return rounds(setup, tmp_path_factory.mktemp("flower") / "alone", {11: honest[11]})[0]


def test_rounds_by_flower_are_those_without_it(app, setup, honest, tmp_path):
    state, records = rounds(setup, tmp_path / "run", honest, Rules(quorum=2))
    central = training.train(setup, None)
    for ours, theirs in zip(key_apart(state), key_apart(central), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    assert [row["replied"] for row in records] == [["11", "12"]] * 3


def changed(change):
    """A client that answers as it should and then changes its answer."""

    def client(app, honest):
        def answer(message):
            told = flower.unpacked(honest[12](message).content)
            arrays, number = change(dict(told.arrays), told.round)
            return app.Message(flower.packed(arrays, number), reply_to=message)

        return answer

    return client


def failing(app, honest):
    return lambda message: app.Message(app.Error(code=0, reason="it ran out of memory"), reply_to=message)


def garbled(app, honest):
    array = app.Array(dtype="float64", shape=(2,), stype="numpy.ndarray", data=b"no array at all")
    record = app.RecordDict(
        {"arrays": app.ArrayRecord({MEAN: array}), "about": app.ConfigRecord({"round": 1, "words": ""})}
    )
    return lambda message: app.Message(record, reply_to=message)


BAD = {
    "fails": (failing, "the client failed: it ran out of memory"),
    "empty": (lambda app, honest: lambda message: app.Message(app.RecordDict(), reply_to=message), "cannot be read"),
    "garbled": (garbled, "cannot be read"),
    "nan": (changed(lambda arrays, number: (arrays | {MEAN: arrays[MEAN] * np.nan}, number)), "not finite"),
    "shape": (changed(lambda arrays, number: (arrays | {MEAN: arrays[MEAN][:, :1]}, number)), "has shape"),
    "type": (changed(lambda arrays, number: (arrays | {MEAN: arrays[MEAN].astype(np.float32)}, number)), "has type"),
    "names": (
        changed(lambda arrays, number: ({f"x.{name}": array for name, array in arrays.items()}, number)),
        "lacks",
    ),
    "huge": (changed(lambda arrays, number: (arrays | {MEAN: arrays[MEAN] + 1e9}, number)), "has norm"),
    "stale": (changed(lambda arrays, number: (arrays, number - 1)), "it answers round"),
}


@pytest.mark.parametrize("what", BAD)
def test_beside_a_bad_client_the_others_go_on_as_without_it(app, setup, honest, alone, tmp_path, what):
    make, words = BAD[what]
    state, records = rounds(setup, tmp_path / "run", {11: honest[11], 12: make(app, honest)})
    for ours, theirs in zip(key_apart(state), key_apart(alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(row["replied"] == ["11"] and words in row["refused"]["12"] for row in records) and len(records) == 3


def test_a_client_that_replies_twice_is_heard_once(app, setup, honest, tmp_path):
    """And the prior is that of a round in which everybody replied once."""

    class Echoing(Grid):
        def pull_messages(self, numbers):
            return [reply for reply in super().pull_messages(numbers) for _ in range(2)]

    once, _ = rounds(setup, tmp_path / "once", honest, Rules(quorum=2))
    twice, records = rounds(setup, tmp_path / "twice", honest, Rules(quorum=2), Echoing)
    for ours, theirs in zip(key_apart(twice), key_apart(once), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(row["replied"] == ["11", "12"] and row["tasks"] == 5 for row in records)
    assert all("twice" in reason for row in records for reason in row["refused"].values())
    assert all(set(row["refused"]) == {"11", "12"} for row in records)


def test_a_silent_client_is_missing_after_the_deadline(app, setup, honest, alone, tmp_path):
    state, records = rounds(setup, tmp_path / "run", {11: honest[11], 12: lambda message: None})
    for ours, theirs in zip(key_apart(state), key_apart(alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(row["missing"] == ["12"] and row["refused"] == {} for row in records)


def test_nobody_there_ends_the_run_in_words(app, setup, tmp_path):
    with pytest.raises(Abandoned, match="2 rounds in a row"):
        rounds(setup, tmp_path / "run", {}, Rules(deadline=0.1, patience=2))


def test_rules_survive_the_way_to_another_process(tmp_path):
    rules = Rules(quorum=2, clients=5, deadline=3.0, work=flower.Work(steps=4, rate=0.1))
    flower.save_rules(tmp_path, rules)
    assert flower.read_rules(tmp_path) == rules


def test_a_client_without_tasks_says_so(setup):
    with pytest.raises(ValueError, match="has no tasks"):
        flower.holder_of(setup, {"client": 0})
