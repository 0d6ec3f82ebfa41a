"""Environments on the host as pure functions: compiled programs call back for every step, for all trajectories at once.

What runs on the host has a state that no program can hold. A program carries a number instead, under which the host keeps it,
from the first step of a batch of trajectories to the last. The functions of a `HostEnvironment` must not call JAX for this: a
callback that waits for a computation may wait for ever where there is one processor. Keys come as NumPy words.
"""

import itertools
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from metaprior.rl.environment import Environment
from metaprior.rl.faults import Watch
from metaprior.rl.host import HostEnvironment

MOST = 64  # batches of trajectories that may be under way; those of programs that were stopped are forgotten


class Ticket(NamedTuple):
    """What a program carries of one trajectory on the host."""

    words: UInt32[Array, " W"]  # of its key
    number: Int[Array, ""]  # of its batch; 0 before the first step


def hosted(environment: HostEnvironment) -> Environment:
    """The same environment, to learn in: `rl_setup(hosted(from_gymnasium(…)), rows.get("gem-bml+"))`."""
    kept: dict[int, Any] = {}
    numbers, lock = itertools.count(1), threading.Lock()
    size = environment.observation_size

    def flat(tree: Any, lead: tuple[int, ...]) -> Any:
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *np.shape(leaf)[len(lead) :]), tree)

    def first(words: Any, task: Any) -> np.ndarray:
        """What is seen at the start. Pure: the step that follows begins anew, from the same words."""
        lead = np.shape(words)[:-1]
        with lock:
            _, rows = environment.reset(flat(words, lead), flat(task, lead))
        return _checked(0, rows).reshape(*lead, size).astype(float)

    def advance(ticket: Any, action: Any, task: Any) -> tuple[np.ndarray, ...]:
        lead = np.shape(ticket.number)
        ticket, action, task = flat(ticket, lead), flat(action, lead).astype(float), flat(task, lead)
        number, step = int(ticket.number[0]), 0
        with lock:
            if number == 0:
                number, (state, _) = next(numbers), environment.reset(ticket.words, task)
                while len(kept) >= MOST:
                    del kept[next(iter(kept))]
            else:  # counted here: what a program carries stands still where a trajectory has ended
                step, state = kept.pop(number)
            state, rows, rewards, ended = environment.step(state, action, task)
            if step + 1 < environment.horizon:
                kept[number] = step + 1, state
        seen = _checked(step + 1, rows).reshape(*lead, size)
        return np.full(lead, number, np.int32), seen, np.reshape(rewards, lead), np.reshape(ended, lead)

    def _checked(step: int, rows: Any) -> np.ndarray:
        """Numbers that are not finite are found when rollouts are looked at; sizes must be right at once."""
        watch = Watch(environment.name, size, 1, environment.horizon)
        return watch.observations(step, rows, np.zeros(len(rows), bool))

    def reset(key, task):
        words = jax.random.key_data(key)
        kind = jnp.result_type(float)
        call = lambda words, task: np.asarray(first(words, task), kind)
        seen = jax.pure_callback(call, jax.ShapeDtypeStruct((size,), kind), words, task, vmap_method="broadcast_all")
        return Ticket(words, jnp.zeros((), jnp.int32)), seen

    def step(state, action, task):
        kind = jnp.result_type(float)
        like = [((), jnp.int32), ((size,), kind), ((), kind), ((), bool)]

        def call(*given):
            return tuple(np.asarray(value, dtype) for value, (_, dtype) in zip(advance(*given), like, strict=True))

        shapes = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in like)
        number, seen, reward, done = jax.pure_callback(call, shapes, state, action, task, vmap_method="broadcast_all")
        return Ticket(state.words, number), seen, reward, done

    return Environment(*environment[:6], reset=reset, step=step)
