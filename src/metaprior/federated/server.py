"""The server's side of a federation: whom a round asks, what becomes of it, and a run folder from which it goes on exactly.

A round that comes to nothing is recorded like any other, and the next one asks the same again, perhaps of others. How messages
travel is not known here.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from metaprior import checkpoints, runs
from metaprior.federated import accountant, privacy
from metaprior.federated.privacy import Privacy
from metaprior.federated.replies import USUAL, Limits
from metaprior.federated.requests import ONCE, Request, Work, request
from metaprior.federated.rounds import Record, Reply, sampled, server_round
from metaprior.meta import State
from metaprior.settings import Setup
from metaprior.training import restored_state

SAMPLING = 2**31 - 1  # no iteration has this number: what is drawn here is drawn nowhere else


class Rules(NamedTuple):
    """Of rounds."""

    quorum: int = 1  # sound replies that a step needs
    clients: int | None = None  # asked in a round; None: all
    deadline: float = 600.0  # seconds that a round waits for enough clients to be there, and then for their replies
    patience: int = 3  # rounds in a row without a step, after which the run ends
    work: Work = ONCE
    limits: Limits = USUAL
    privacy: Privacy | None = None  # how replies are protected, if they are

    @property
    def wanted(self) -> int:
        """How many clients a round waits for."""
        return max(self.quorum, self.clients or 0)


class Federation(NamedTuple):
    """Where a federation stands. What lasts of it is in the run folder."""

    setup: Setup
    run: runs.Run
    rules: Rules
    state: State
    number: int = 1  # of the next round
    idle: int = 0  # rounds since the last step
    rows: tuple[dict[str, Any], ...] = ()  # records not yet written
    checkpoint_every: int = 1

    @property
    def finished(self) -> bool:
        """Whether all steps have been made."""
        return int(self.state.iteration) >= self.setup.settings.iterations


class Abandoned(OSError):
    """Too many rounds in a row came to nothing."""


def taken_up(setup: Setup, run: runs.Run, rules: Rules, *, checkpoint_every: int = 1) -> tuple[Federation, list[str]]:
    """The federation as the newest whole checkpoint of its run left it, with a note for each damaged one."""
    require_sound(rules)
    if rules.privacy is not None:
        accountant.library("dp_accounting.rdp")  # before any round, if it is missing
    if setup.learner.update is not None:
        setup = setup._replace(learner=setup.learner._replace(update=jax.jit(setup.learner.update)))
    state, notes = restored_state(setup, run)
    runs.rewind(run, int(state.iteration))
    records = runs.read_metrics(run)
    number = records[-1]["round"] + 1 if records else 1
    return Federation(setup, run, rules, state, number, _idle(records), (), checkpoint_every), notes


def ask(federation: Federation, clients: Iterable[str]) -> tuple[list[str], Request]:
    """Whom the next round asks among those who are there, and what. Follows from the seed, the round and who is there.

    Where replies are protected it is drawn anew, and written down before anybody is asked.
    """
    state, number, rules = federation.state, federation.number, federation.rules
    present = sorted(set(clients))
    count = min(rules.clients or len(present), len(present))
    if rules.privacy is not None and rules.privacy.secret:
        asked = sorted(secrets.SystemRandom().sample(present, count))  # clients know the seed
    else:
        key = jax.random.fold_in(jax.random.fold_in(state.key, SAMPLING), number)
        asked = sampled(key, present, count)
    if rules.privacy is not None:
        accountant.enter(federation.run.folder, accountant.Asked(tuple(asked), len(present)))
    return asked, request(federation.setup, state, number, rules.work, rules.privacy)


def hear(federation: Federation, asked: Sequence[str], replies: Iterable[Reply]) -> tuple[Federation, Record]:
    """End a round with the replies that came in time: step or stay, record, save."""
    setup, _, rules, state, number, *_ = federation
    limits = privacy.limits(rules.limits, rules.privacy, sum(leaf.size for leaf in jax.tree.leaves(state.prior)))
    state, record = server_round(setup.learner, state, number, asked, replies, quorum=rules.quorum, limits=limits)
    if rules.privacy is not None:
        spent = accountant.spent(rules.privacy, accountant.read(federation.run.folder), rules.quorum)
        record = record._replace(epsilon=spent._asdict())
    row = {"iteration": int(state.iteration), **record._asdict()}
    idle = 0 if record.stepped else federation.idle + 1
    federation = federation._replace(state=state, number=number + 1, idle=idle, rows=(*federation.rows, row))
    # A round without a step is written down at once: people will want to know.
    if federation.finished or not record.stepped or row["iteration"] % federation.checkpoint_every == 0:
        federation = _saved(federation)
    if idle >= rules.patience:
        raise Abandoned(f"{idle} rounds in a row had fewer than {rules.quorum} sound replies: {_why(record)}")
    return federation, record


def simulated(
    federation: Federation,
    clients: Mapping[str, Callable[[Request], Any]],
    *,
    report: Callable[[Record], None] = lambda record: None,
) -> Federation:
    """All rounds in this process: each client is a function from a request to arrays. One that raises has failed."""
    while not federation.finished:
        asked, sent = ask(federation, clients)
        federation, record = hear(federation, asked, [_replied(name, clients[name], sent) for name in asked])
        report(record)
    return federation


def require_sound(rules: Rules) -> None:
    """Refuse rules under which no round could succeed."""
    for name, value in {**rules._asdict(), "steps": rules.work.steps, "rate": rules.work.rate}.items():
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"{name} of rounds must be positive, got {value}")
    if rules.privacy is not None:
        privacy.require_sound(rules.privacy)
    if rules.clients is not None and rules.clients < rules.quorum:
        raise ValueError(f"{rules.clients} clients a round can never be a quorum of {rules.quorum}: ask more of them")


def _saved(federation: Federation) -> Federation:
    # Records first: after a kill between the two, those beyond the checkpoint are dropped and made again.
    runs.append_metrics(federation.run, federation.rows)
    checkpoints.save(federation.run.checkpoints, int(federation.state.iteration), federation.state)
    return federation._replace(rows=())


def _replied(name: str, client: Callable[[Request], Any], sent: Request) -> Reply:
    try:
        return Reply(name, sent.round, client(sent))
    except Exception as error:  # whatever it is, it is the client's, and the others go on
        return Reply(name, sent.round, {}, f"the client failed: {error}")


def _idle(records: Sequence[Mapping[str, Any]]) -> int:
    """Rounds at the end that came to nothing."""
    stepped = [bool(record["stepped"]) for record in records]
    return stepped[::-1].index(True) if any(stepped) else len(stepped)


def _why(record: Record) -> str:
    words = [f"{name} was refused ({reason})" for name, reason in list(record.refused.items())[:3]]
    words += [f"{len(record.missing)} did not reply"] if record.missing else []
    return "; ".join(words) or f"{len(record.replied)} replied"
