"""What a server asks a client, and how a client answers: named arrays and a few words, as any messenger can carry them."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from metaprior import codec
from metaprior.federated import privacy as privacies
from metaprior.federated.holders import Holder
from metaprior.federated.privacy import Normal, Privacy, private, secret_normal
from metaprior.federated.replies import named
from metaprior.federated.steps import Held, client_step, client_steps
from metaprior.meta import State, Statistics
from metaprior.settings import Setup, as_dict, from_dict
from metaprior.training import initial_state


class Work(NamedTuple):
    """What clients do in a round."""

    steps: int = 1  # meta-steps of a client's own; one sends plain statistics
    rate: float = 1e-3  # of these steps


ONCE = Work()


class Request(NamedTuple):
    """What a client is sent: the prior, what inference shares between tasks, and the key of the round."""

    round: int
    arrays: Mapping[str, np.ndarray]
    words: str  # JSON: settings, what to do, and how replies are to be protected


def request(setup: Setup, state: State, number: int, work: Work = ONCE, privacy: Privacy | None = None) -> Request:
    """What round `number` asks of every client. Where the server keeps its data is not told."""
    key = jax.random.fold_in(state.key, state.iteration)  # the one that training on one machine draws from
    settings = as_dict(setup.settings) | {"data_dir": None}
    protected = {} if privacy is None else {"privacy": privacies.words(privacy)}
    words = json.dumps({"settings": settings, "work": work._asdict(), **protected})
    return Request(number, codec.flatten({"prior": state.prior, "memory": state.memory, "key": key}), words)


def settings_in(asked: Request, data_dir: Any = None):
    """The settings that a request names, with the client's own place of data."""
    return from_dict(json.loads(asked.words)["settings"] | {"data_dir": data_dir})


def program(setup: Setup, held: Callable[..., Held]) -> Callable[..., Statistics]:
    """(work, prior, memory, key, data of a holder) -> statistics, compiled once for clients with data of equal shapes."""

    def found(work, prior, memory, key, data):
        key_draw, key_infer = jax.random.split(key)
        tasks = held(key_draw, *data)
        if work.steps == 1:
            return client_step(setup.learner, prior, tasks, key_infer, memory)
        return client_steps(setup.learner, prior, tasks, key_infer, memory, steps=work.steps, rate=work.rate)

    return jax.jit(found, static_argnums=0)


def answerer(
    setup: Setup,
    holder: Holder,
    *,
    compiled: Callable[..., Statistics] | None = None,
    normal: Normal = secret_normal,
    least_noise: float = 0.0,
) -> Callable[[Request], dict[str, np.ndarray]]:
    """The client's part of a round, compiled at its first call.

    Args:
        setup: as the server has it.
        holder: of the client's tasks.
        compiled: by `program`, for clients that share it.
        normal: where noise comes from, if replies are to be protected. Not from the request: the server knows that.
        least_noise: below which the client does not reply; see `privacy`.
    """
    start = initial_state(setup)
    like = {"prior": start.prior, "memory": start.memory, "key": start.key}

    run = program(setup, holder.held) if compiled is None else compiled

    def answer(asked: Request) -> dict[str, np.ndarray]:
        tree, words = codec.unflatten(like, asked.arrays), json.loads(asked.words)
        privacy = privacies.agreed(words.get("privacy"), least_noise)
        statistics = run(Work(**words["work"]), tree["prior"], tree["memory"], tree["key"], holder.data)
        if privacy is not None:
            statistics = private(statistics, privacy, normal(asked.round, statistics.gradient.size))
        return named(start, statistics)

    return answer
