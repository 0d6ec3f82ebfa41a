"""Messages by Flower: a Strategy, a ServerApp and a ClientApp that carry requests and replies, and decide nothing themselves.

Flower is imported when it is needed: `pip install 'metaprior[federated]'`.
"""

import contextlib
import functools
import importlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaprior import runs
from metaprior.checkpoints import write_atomically
from metaprior.federated import holders, server, tables
from metaprior.federated.privacy import Privacy
from metaprior.federated.requests import Request, Work, answerer, settings_in
from metaprior.federated.rounds import Record, Reply
from metaprior.federated.server import Federation, Rules
from metaprior.settings import assemble, from_dict

POLL = 0.3  # seconds between looks for nodes and replies
RULES = "federation.json"  # in the run folder: the rules, beside the settings


class MissingFlower(ModuleNotFoundError, ValueError):
    """Flower was asked for and is not installed."""


def flwr(module: str) -> Any:
    """A module of Flower, or in words how to get it."""
    try:
        return importlib.import_module(f"flwr.{module}")
    except ImportError as error:
        raise MissingFlower(
            f"federated learning with real clients needs Flower: pip install 'metaprior[federated]' ({error})"
        ) from None


# --- records -------------------------------------------------------------------------------------------------------------


def packed(arrays: Mapping[str, np.ndarray], number: int, words: str = "{}") -> Any:
    """Arrays, the number of a round and words as Flower's records."""
    app = flwr("app")
    named = app.ArrayRecord({name: app.Array(array) for name, array in arrays.items()})
    return app.RecordDict({"arrays": named, "about": app.ConfigRecord({"round": number, "words": words})})


def unpacked(content: Any) -> Request:
    """The inverse. What is missing or cannot be read raises."""
    about, arrays = content["about"], content["arrays"]
    return Request(int(about["round"]), {name: array.numpy() for name, array in arrays.items()}, str(about["words"]))


def reply_of(client: str, message: Any) -> Reply:
    """What a client sent back, looked at by nobody yet; or why there is nothing to look at."""
    if message.has_error():
        return Reply(client, 0, {}, f"the client failed: {message.error.reason or message.error.code}")
    try:
        told = unpacked(message.content)
    except Exception as error:  # bytes of a stranger may fail in any way
        return Reply(client, 0, {}, f"the reply cannot be read: {error}")
    return Reply(client, told.round, told.arrays)


# --- server --------------------------------------------------------------------------------------------------------------


def strategy(federation: Federation, report: Callable[[Record], None] = lambda record: None) -> Any:
    """A Flower Strategy that makes the rounds of a federation; `start(grid)` goes on until it is finished."""
    base = flwr("serverapp.strategy")

    class Rounds(base.Strategy):
        def __init__(self):
            self.federation, self.asked, self.clients = federation, [], {}

        def configure_train(self, server_round, arrays, config, grid) -> list:
            rules = self.federation.rules
            nodes = {str(node): node for node in present(grid, rules.wanted, rules.deadline)}
            self.asked, sent = server.ask(self.federation, nodes)
            return [_message(sent, nodes[name], ttl=2 * rules.deadline) for name in self.asked]

        def aggregate_train(self, server_round, replies):
            heard = [reply_of(self.sender(message), message) for message in replies]
            self.federation, record = server.hear(self.federation, self.asked, heard)
            report(record)
            return None, None

        def sender(self, message) -> str:
            """The one who was sent what this answers: whatever a reply says about itself."""
            answered = message.metadata.reply_to_message_id
            return self.clients.get(answered, str(message.metadata.src_node_id))

        def configure_evaluate(self, server_round, arrays, config, grid) -> list:
            return []

        def aggregate_evaluate(self, server_round, replies) -> None:
            return None

        def summary(self) -> None:
            pass

        def start(self, grid, *unused, **also_unused):
            """Rounds until all steps are made: one that came to nothing is not counted, as Flower's own loop would."""
            while not self.federation.finished:
                messages = self.configure_train(self.federation.number, None, None, grid)
                replies = self.exchanged(grid, messages, self.federation.rules.deadline)
                self.aggregate_train(self.federation.number, replies)
            return base.Result()

        def exchanged(self, grid, messages, deadline) -> list:
            sent = list(grid.push_messages(messages)) if messages else []
            self.clients = {number: name for number, name in zip(sent, self.asked, strict=False) if number is not None}
            return replies_to(grid, set(self.clients), deadline)

    return Rounds()


def present(grid: Any, wanted: int, deadline: float) -> list[int]:
    """The nodes that are there, as soon as there are enough, or when the time is over."""
    until = time.monotonic() + deadline
    while len(nodes := list(grid.get_node_ids())) < wanted and time.monotonic() < until:
        time.sleep(POLL)
    return nodes


def replies_to(grid: Any, waiting: set[str], deadline: float) -> list:
    """Replies to these messages, until all have come or the time is over."""
    until, found = time.monotonic() + deadline, []
    while waiting and time.monotonic() < until:
        new = list(grid.pull_messages(waiting))
        found += new
        waiting = waiting - {message.metadata.reply_to_message_id for message in new}
        if waiting:
            time.sleep(POLL)
    return found


def server_app() -> Any:
    """Flower's ServerApp: takes up the run folder that its configuration names, and makes the rounds that are left."""
    app = flwr("serverapp").ServerApp()

    @app.main()
    def main(grid, context) -> None:
        folder = Path(str(context.run_config["folder"]))
        settings = runs.open_run(folder).settings
        run = runs.create(folder, settings, resume=True)
        try:
            setup = assemble(from_dict(dict(settings)))
            federation, notes = server.taken_up(setup, run, read_rules(folder))
            for line in notes:
                print(f"note: {line}", flush=True)
            strategy(federation, lambda record: print(in_words(record), flush=True)).start(grid)
        finally:
            runs.release(run)

    return app


def save_rules(folder: Path, rules: Rules) -> None:
    """Beside the settings, for the process that Flower starts."""
    values = {name: value for name, value in rules._asdict().items() if name not in ("work", "limits", "privacy")}
    protected = None if rules.privacy is None else rules.privacy._asdict()
    text = json.dumps({**values, "work": rules.work._asdict(), "privacy": protected}, indent=2) + "\n"
    write_atomically(folder / RULES, text.encode())


def read_rules(folder: Path) -> Rules:
    """The rules that `save_rules` wrote."""
    values = json.loads((folder / RULES).read_text())
    protected = values.get("privacy")
    privacy = None if protected is None else Privacy(**protected)
    return Rules(**{**values, "work": Work(**values["work"]), "privacy": privacy})


def in_words(record: Record) -> str:
    """A line about a round.

    >>> in_words(Record(3, ("a", "b"), {"c": "it is not finite"}, (), 8, True))
    'round 3: 2 replied, 8 tasks; refused: c (it is not finite)'
    """
    words = [f"round {record.round}: {len(record.replied)} replied, {record.tasks} tasks"]
    refused = ", ".join(f"{name} ({reason})" for name, reason in record.refused.items())
    words += [f"refused: {refused}"] if refused else []
    words += [f"missing: {', '.join(record.missing)}"] if record.missing else []
    spent = ", ".join(f"{value:.3g} ({who})" for who, value in record.epsilon.items())
    words += [f"ε {spent}"] if spent else []
    return "; ".join([*words, *([] if record.stepped else ["the prior stays as it is"])])


def _message(sent: Request, node: int, *, ttl: float) -> Any:
    app = flwr("app")
    content = packed(sent.arrays, sent.round, sent.words)
    return app.Message(content, node, app.MessageType.TRAIN, ttl=ttl, group_id=str(sent.round))


# --- client --------------------------------------------------------------------------------------------------------------


def client_app() -> Any:
    """Flower's ClientApp: answers a request from the tasks that the node's configuration names."""
    app = flwr("clientapp").ClientApp()

    @app.train()
    def train(message, context):
        asked = unpacked(message.content)
        arrays = _client(_settings_alone(asked.words), json.dumps(dict(context.node_config), sort_keys=True))(asked)
        return flwr("app").Message(packed(arrays, asked.round), reply_to=message)

    return app


def _settings_alone(words: str) -> str:
    return json.dumps(json.loads(words)["settings"], sort_keys=True)


@functools.lru_cache(maxsize=32)
def _client(settings: str, node: str) -> Callable[[Request], dict[str, np.ndarray]]:
    """Compiled once for each client, where several messages reach one process."""
    config = json.loads(node)
    words = json.dumps({"settings": json.loads(settings)})
    setup = assemble(settings_in(Request(0, {}, words), config.get("data-dir") or None))
    return answerer(setup, holder_of(setup, config), least_noise=float(config.get("least-noise", 0.0)))


def _columns(config: Mapping[str, Any], axis: str) -> list[str]:
    """Names of columns, with an entry of the configuration for each, from `x-column-0` on."""
    return [str(config[name]) for i in range(len(config)) if (name := f"{axis}-column-{i}") in config] or [axis]


def holder_of(setup: Any, config: Mapping[str, Any]) -> holders.Holder:
    """The tasks that a node's configuration names: a `table`, a folder or a file; `images`; or number `client` of `clients`."""
    if table := config.get("table"):
        columns = {
            "group": config.get("group-column"),
            "x": _columns(config, "x"),
            "y": _columns(config, "y"),
        }
        groups = tables.read_groups(Path(str(table)), **columns)
        return tables.grouped(setup, groups, name=str(config.get("name", "")))
    if images := config.get("images"):
        return holders.own_images(setup, Path(str(images)), tasks=config.get("tasks"), name=str(config.get("name", "")))
    with contextlib.suppress(KeyError):
        return holders.share(setup, int(config["client"]), int(config["clients"]))
    raise ValueError("this client has no tasks: give it a table, images, or its number and the number of clients")
