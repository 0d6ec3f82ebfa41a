"""`metaprior federate`: learn one prior from tasks that stay where they are, simulated or with real processes."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from metaprior import checkpoints, runs
from metaprior.cli import console
from metaprior.cli.arguments import parse
from metaprior.cli.federate_flags import ROUNDS, Client, Serve, Simulate
from metaprior.cli.train import Choices, default_folder, opened
from metaprior.federated import flower, holders, launch, server, tables
from metaprior.federated.attendance import attended
from metaprior.federated.privacy import rehearsed_normal
from metaprior.federated.requests import answerer, program
from metaprior.federated.rounds import Record
from metaprior.names import require_known
from metaprior.settings import Settings, assemble, from_dict

HELP = """usage: metaprior federate simulate|server|client …

Learn one prior from tasks of many clients. Their data stay where they are; sums over tasks travel.

examples:
  metaprior federate simulate sinusoid --clients 4 --iterations 500 --out runs/together
  metaprior federate server sinusoid --iterations 20 --quorum 2 --insecure --out runs/together
  metaprior federate client --server 127.0.0.1:8000 --client 0 --clients 2 --insecure
  metaprior federate server tables --inputs age dose --outputs pulse --shots 5 --queries 5 --insecure --out runs/patients
  metaprior federate client --server example.org:8000 --table mine.csv --group-column patient --x-column age dose \\
      --y-column pulse --ca ca.crt --client-key clinic --certificate local.crt --key local.key

All but simulate need pip install 'metaprior[federated]'. metaprior federate server --help has all flags."""

LOGS = "logs"


def run(argv: list[str]) -> int:
    """The command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP)
        return 0
    require_known("part of a federation", argv[0], PARTS)
    return PARTS[argv[0]](argv[1:])


def _simulate(argv: list[str]) -> int:
    asked, folder = _rounds(Simulate, argv, "simulate")
    setup = assemble(asked.settings.checked())
    held = (holders.apart if asked.apart else holders.shares)(setup, asked.clients)
    compiled = program(setup, held[0].held)
    clients = {
        f"client-{number:04d}": answerer(
            setup, holder, compiled=compiled, normal=rehearsed_normal(setup.settings.seed, number)
        )
        for number, holder in enumerate(held)
    }
    rules = asked.rules()
    rules = rules._replace(privacy=rules.privacy and rules.privacy._replace(secret=False))
    server.require_sound(rules)
    with opened(setup, folder, resume=asked.resume) as folder_run:
        federation, notes = server.taken_up(setup, folder_run, rules, checkpoint_every=asked.checkpoint_every)
        for line in notes:
            console.note(line)
        server.simulated(federation, clients, report=_reporter(quiet=asked.quiet, every=ROUNDS // 10))
    _next(folder, quiet=asked.quiet)
    return 0


def _serve(argv: list[str]) -> int:
    asked, folder = _rounds(Serve, argv, "server")
    security = launch.Security(asked.insecure, asked.ca, asked.certificate, asked.key)
    needed = {"--ca": asked.ca, "--certificate": asked.certificate, "--key": asked.key}
    launch.require_safe(asked.host, security, {**needed, "--client-keys": asked.client_keys})
    rules, setup = asked.rules(deadline=asked.deadline), assemble(asked.settings.checked())
    server.require_sound(rules)
    signal.signal(signal.SIGTERM, _as_interrupt)
    with launch.home() as environment:
        with opened(setup, folder, resume=asked.resume):  # and free again, for the process that Flower starts
            flower.save_rules(folder, rules)
        keys = [] if security.insecure else sorted(Path(str(asked.client_keys)).glob("*.pub"))
        _serve_rounds(folder.resolve(), asked, security, keys, environment)
    _next(folder, quiet=asked.quiet)
    return 0


def _serve_rounds(
    folder: Path, asked: Serve, security: launch.Security, keys: list[Path], environment: dict[str, str]
) -> None:
    logs = folder / LOGS
    logs.mkdir(exist_ok=True)
    launch.write_connection(environment, f"{asked.host}:{asked.port}", security)
    app = launch.write_app(Path(environment["FLWR_HOME"]))
    link = launch.superlink(asked.host, asked.port, security)
    submit = ["flwr", "run", str(app), launch.NAME, "--run-config", f'folder="{folder}"', "--stream"]
    with launch.started(link, environment, logs / "superlink.log") as process:
        launch.wait_until_ready(process, asked.host, asked.port)
        for key in keys:
            launch.called(["flwr", "supernode", "register", str(key), launch.NAME], environment, logs / "register.log")
        console.note(f"listening at {asked.host}:{asked.port}; logs are in {logs}")
        with launch.started(submit, environment, logs / "rounds.log") as stream:
            _follow(folder, stream, process, quiet=asked.quiet)
    # Flower ends in peace whatever became of its app: what counts is what is in the folder.
    if max(checkpoints.available(folder / "checkpoints"), default=0) < asked.settings.iterations:
        raise launch.Failed(f"the rounds ended too early, see {logs}; go on: metaprior federate server --resume …")


def _follow(folder: Path, stream: subprocess.Popen, link: subprocess.Popen, *, quiet: bool) -> None:
    """Show rounds as they are recorded, until they end."""
    open_run, report = runs.open_run(folder), _reporter(quiet=quiet, every=1)
    shown = len(runs.read_metrics(open_run))
    while True:
        ended = stream.poll() is not None or link.poll() is not None
        rows = runs.read_metrics(open_run)
        for row in rows[shown:]:
            report(Record(**{name: row[name] for name in Record._fields if name in row}))
        shown = len(rows)
        if ended:
            return
        time.sleep(flower.POLL)


def _client(argv: list[str]) -> int:
    asked = parse(Client, argv, prog="metaprior federate client", help=HELP)
    host, _, port = asked.server.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"--server is HOST:PORT, got {asked.server!r}")
    security = launch.Security(asked.insecure, asked.ca, asked.certificate, asked.key, asked.client_key)
    needed = {"--ca": asked.ca, "--client-key": asked.client_key}
    launch.require_safe(host, security, {**needed, "--certificate": asked.certificate, "--key": asked.key})
    signal.signal(signal.SIGTERM, _as_interrupt)
    with launch.home() as environment:
        node = _node(asked)
        command = lambda: launch.supernode(asked.server, node, security, retries=asked.retries)
        start = lambda: launch.started(command(), environment, None)
        return attended(start, host, int(port), retries=asked.retries, tell=console.note)


def _node(asked: Client) -> dict[str, Any]:
    """The client's configuration, if its tasks can be found: what is wrong with a table is said here, before any round."""
    if asked.table is not None:
        columns = {"x": asked.x_column, "y": asked.y_column}
        groups = tables.read_groups(asked.table, group=asked.group_column, **columns)
        console.note(f"{len(groups)} tasks in {asked.table}")
        given = {"table": asked.table.resolve(), "group-column": asked.group_column, "name": asked.name}
        for axis, names in columns.items():
            given |= {f"{axis}-column-{i}": name for i, name in enumerate(names)}
    elif asked.images is not None:
        if not asked.images.is_dir():
            raise ValueError(f"--images: there is no folder {asked.images}")
        given = {"images": asked.images.resolve(), "tasks": asked.tasks, "name": asked.name}
    elif asked.client is not None and asked.clients is not None:
        given = {"client": asked.client, "clients": asked.clients, "data-dir": asked.data_dir}
    else:
        raise ValueError(
            "a client needs tasks: --table FILE --group-column NAME, --images FOLDER, or --client NUMBER --clients NUMBER"
        )
    given |= {"least-noise": asked.least_noise or None}
    return {name: value for name, value in given.items() if value is not None and value != ""}


def _rounds(command: type, argv: list[str], name: str) -> tuple[Any, Path]:
    """The flags, those of a run that is resumed as they were, and the run folder."""
    options: dict[str, Any] = dict(prog=f"metaprior federate {name}", help=HELP)
    asked = parse(command, argv, **options)
    folder = asked.out or default_folder(asked.settings).with_name(f"{default_folder(asked.settings).name}-federated")
    if asked.resume:
        kept: Settings = from_dict(dict(runs.open_run(folder).settings))
        asked = parse(command, argv, default=command(settings=Choices(**vars(kept))), **options)
    return asked, folder


def _reporter(*, quiet: bool, every: int):
    """Prints rounds: those that came to nothing or had trouble, and of the others every so many."""

    def report(record: Record) -> None:
        trouble = not record.stepped or record.refused or record.missing
        if not quiet and (trouble or record.round % every == 0):
            print(flower.in_words(record), flush=True)

    return report


def _next(folder: Path, *, quiet: bool) -> None:
    if not quiet:
        print(f"next: metaprior evaluate {folder}")


def _as_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt("stopped; what was saved stays")


PARTS = {"simulate": _simulate, "server": _serve, "client": _client}
