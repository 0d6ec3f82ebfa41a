"""What becomes of a round: who replied, who was refused, who was missing; and the step, if enough replied.

The result depends on which replies came, and not on the order in which they did.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaprior.federated.replies import USUAL, Limits, Refused, believed
from metaprior.federated.steps import server_step
from metaprior.meta import MetaLearner, State, Statistics
from metaprior.types import Key


class Reply(NamedTuple):
    """What a client sent."""

    client: str
    round: int  # that it answers
    arrays: Mapping[str, Any]
    fault: str | None = None  # why there is nothing to look at: the client failed, or what came cannot be read


class Record(NamedTuple):
    """What happened in a round, for people and for JSON."""

    round: int
    replied: tuple[str, ...]
    refused: dict[str, str]  # client -> reason
    missing: tuple[str, ...]
    tasks: int  # that counted
    stepped: bool  # whether the prior was changed
    epsilon: Mapping[
        str, float
    ] = {}  # spent so far, where replies are protected: towards the server, and towards others


def sampled(key: Key, clients: Iterable[str], count: int) -> list[str]:
    """The clients that a round asks: `count` of them, or all if there are fewer. The same key and clients give the same."""
    known = sorted(set(clients))
    order = jax.random.permutation(key, len(known)).tolist() if known else []
    return sorted(known[index] for index in order[:count])


def judged(
    state: State, number: int, asked: Sequence[str], replies: Iterable[Reply], limits: Limits = USUAL
) -> tuple[dict[str, Statistics], dict[str, str]]:
    """The statistics of the clients whose reply is sound, and for each of the others that replied, why it is not.

    A client that replies twice is heard once: the first reply that is sound counts. Replies of others than those asked do not.
    """
    accepted: dict[str, Statistics] = {}
    refused: dict[str, str] = {}
    for reply in replies:
        try:
            _require_due(reply, number, asked, accepted)
            accepted[reply.client] = believed(state, reply.arrays, limits)
        except Refused as reason:
            refused[reply.client] = str(reason)
    return dict(sorted(accepted.items())), refused


def server_round(
    learner: MetaLearner,
    state: State,
    number: int,
    asked: Sequence[str],
    replies: Iterable[Reply],
    *,
    quorum: int = 1,
    limits: Limits = USUAL,
) -> tuple[State, Record]:
    """One round: replies are looked at, and if at least `quorum` are sound the server steps; else the prior stays as it is.

    Args:
        learner: the server's.
        state: before the round.
        number: of the round.
        asked: the clients that were.
        replies: those that came in time.
        quorum: how many sound replies a step needs.
        limits: beyond which a reply is refused.
    """
    if quorum < 1:
        raise ValueError(f"a round needs at least one reply, got quorum {quorum}")
    accepted, refused = judged(state, number, asked, replies, limits)
    missing = tuple(sorted(set(asked) - set(accepted) - set(refused)))
    stepped = len(accepted) >= quorum
    if stepped:
        after, info = server_step(learner, state, *accepted.values())
        stepped = bool(info.finite)
        state = after if stepped else state
    tasks = int(sum((found.kept for found in accepted.values()), start=jnp.zeros(())))
    return state, Record(number, tuple(accepted), refused, missing, tasks if stepped else 0, stepped)


def _require_due(reply: Reply, number: int, asked: Sequence[str], accepted: Mapping[str, Any]) -> None:
    if reply.client not in asked:
        raise Refused(f"{reply.client} was not asked in round {number}")
    if reply.fault is not None:
        raise Refused(reply.fault)
    if reply.round != number:
        raise Refused(f"it answers round {reply.round}, and this is round {number}")
    if reply.client in accepted:
        raise Refused("it replied twice: the first reply counts")
