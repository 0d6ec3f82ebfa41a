r"""What rounds have told about any one client, as (ε, δ): differential privacy, counted by the library `dp-accounting`.

The unit is a client: all of its tasks are exchanged for any others. Two onlookers are kept apart.

* **The server** sees every reply, and knows whom it asked. A reply is a Gaussian mechanism whose answer moves by 2C under noise
  z·C, so its noise multiplier is z/2, once for every time that a client was asked.
* **Others**, the other clients and whoever gets the prior, see what n replies added up to: their noise adds up as well, and the
  multiplier is z√n/2, with the quorum for n. Where a round asks some of those who are there, drawn by chance that nobody else
  knows, that counts for them.

What was asked is counted, answered or not, and as soon as it is asked: a server that was killed may have heard the answer.
"""

import importlib
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaprior.federated.privacy import Privacy

LEDGER = "privacy.jsonl"  # in the run folder: a line for every round that was asked, never taken back


class MissingAccountant(ModuleNotFoundError, ValueError):
    """An account was asked for and the library that keeps it is not installed."""


class Asked(NamedTuple):
    """A line of the ledger."""

    clients: tuple[str, ...]  # that were asked
    present: int  # among how many


class Spent(NamedTuple):
    """ε, for the δ of the rules."""

    server: float
    others: float


def library(module: str = "dp_accounting") -> Any:
    """The library, or in words how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingAccountant(
            f"an account of privacy needs dp-accounting: pip install 'metaprior[federated]' ({error})"
        ) from None


def spent(privacy: Privacy, asked: Sequence[Asked], quorum: int) -> Spent:
    """What all these rounds have told about the client that was asked most often.

    Args:
        privacy: of the replies.
        asked: every round.
        quorum: replies that a step needs, so that at least so many noises are in it.
    """
    if not asked:
        return Spent(0.0, 0.0)
    most = max(Counter(name for round in asked for name in round.clients).values(), default=0)
    alone, together = privacy.noise / 2, privacy.noise * math.sqrt(quorum) / 2
    # Two true statements about others: given who was asked, and given that they do not know who was. The better one counts.
    sizes = Counter((round.present, len(round.clients)) for round in asked if round.clients)
    others = min(_epsilon(privacy, {(1, 1): most}, together), _epsilon(privacy, sizes, together))
    return Spent(_epsilon(privacy, {(1, 1): most}, alone), others)


def _epsilon(privacy: Privacy, rounds: dict[tuple[int, int], int] | Counter, multiplier: float) -> float:
    """Of so many rounds for each (clients there, clients asked)."""
    dp, rdp = library(), library("dp_accounting.rdp")
    account = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for (present, asked), count in rounds.items():
        event = dp.GaussianDpEvent(multiplier)
        if asked < present:
            event = dp.SampledWithoutReplacementDpEvent(present, asked, event)
        if count:
            account.compose(event, count)
    return float(account.get_epsilon(privacy.delta))


# --- ledger --------------------------------------------------------------------------------------------------------------


def enter(folder: Path, asked: Asked) -> None:
    """Write down that a round is being asked, before it is: for good."""
    with open(folder / LEDGER, "ab", buffering=0) as file:
        file.write(b"\n" + json.dumps(asked._asdict()).encode() + b"\n")  # also after a line that a kill cut off
        os.fsync(file.fileno())


def read(folder: Path) -> list[Asked]:
    """All rounds that were asked. A line that a kill cut off was not asked yet."""
    path = folder / LEDGER
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [Asked(tuple(row["clients"]), int(row["present"])) for row in rows]
