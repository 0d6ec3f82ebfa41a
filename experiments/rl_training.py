"""Meta-training on rollouts, looked at on validation tasks on the way; what is cut off goes on from where it was kept."""

import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from experiments import study
from experiments.turns import by_turns
from metaprior import checkpoints
from metaprior.evaluation import VALIDATION_SEED
from metaprior.meta import State, trainer
from metaprior.rl.evaluation import adapted_returns
from metaprior.rl.setup import RLSetup

STATES = study.ROOT / ".cache" / "reproduce" / "states"
SAVE_SECONDS = 20.0  # between two savings


class Plan(NamedTuple):
    """How a method is trained: `put` of a number and of the training's length, which may be traced, are the pieces."""

    put: Callable[..., RLSetup]  # the number is what a search tries
    every: int  # iterations between two looks
    updates: int
    tasks: int  # of a look
    count: int  # trajectories of each update there, and of each mean


class Kept(NamedTuple):
    """What training keeps on the way, on whatever machine: P trainings, K looks at the returns after 0..U updates."""

    states: State
    looks: Float[Array, "P K U"]  # NaN where they are yet to come
    finite: Bool[Array, " P"]
    left_out: Int[Array, " P"]  # tasks whose numbers were not finite
    seconds: Float[Array, ""]


def programs(plan: Plan) -> Callable[[Any, Any, State], tuple[State, Any, float]]:
    """(numbers, length, states) of P trainings -> `plan.every` iterations on, (returns, finite, tasks left out), seconds.

    Side by side on accelerators. A CPU is no faster with several at once, so there they take turns. Looks are programs of their
    own that see the prior alone: methods that adapt in the same way can share what a compiler keeps.
    """

    def learn(number, length, state):
        setup = plan.put(number, length)
        state, infos = trainer(setup.learner, setup.tasks.sample, setup.method.method.meta_batch)(state, plan.every)
        return state, infos.finite.all(), infos.left_out.sum().astype(jnp.int32)

    train_all = _of_many(learn)
    look_at_all = _of_many(lambda number, length, state: look(plan, plan.put(number), state))

    def advance(numbers, length, states):
        (states, finite, left_out), seconds = train_all(numbers, length, states)
        returns, looking = look_at_all(numbers, length, bare(states))
        return states, (returns, finite, left_out), seconds + looking

    return advance


def bare(state: State) -> State:
    """What adaptation needs of a state, which is the same for all meta-optimisers."""
    return state._replace(opt_state=())


def _of_many(one: Callable[[Any, Any, State], Any]) -> Callable[[Any, Any, State], tuple[Any, float]]:
    if jax.default_backend() != "cpu":
        return by_turns(jax.jit(jax.vmap(one, in_axes=(0, None, 0))))
    alone = by_turns(jax.jit(one))

    def in_turn(numbers, length, states):
        each = [jax.tree.map(lambda leaf, p=p: leaf[p], states) for p in range(len(numbers))]
        found = [alone(number, length, state) for number, state in zip(numbers, each, strict=True)]
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(outcome for outcome, _ in found))
        return together, sum(seconds for _, seconds in found)

    return in_turn


def look(plan: Plan, setup: RLSetup, state: State) -> Float[Array, " U"]:
    """Mean returns on validation tasks, the same at every look and for every method."""
    key = jax.random.key(VALIDATION_SEED)
    known = (setup.learner, setup.environment, setup.policy, state)
    return adapted_returns(key, *known, steps=plan.updates, num_tasks=plan.tasks, count=plan.count).mean(axis=0)


def train(
    plan: Plan,
    advance: Callable[[Any, Any, State], tuple[State, Any, float]],
    numbers: Sequence[float],
    seeds: Sequence[int],
    iterations: int,
    folder: Path | None = None,
) -> Kept:
    """P trainings, each with its number and its seed. Methods start alike: a policy follows from its seed.

    Args:
        plan: of the method.
        advance: `programs(plan)`, made once for all trainings.
        numbers: what `plan.put` is given.
        seeds: as many.
        iterations: of each.
        folder: where they are kept on the way.
    """
    if iterations % plan.every:
        raise ValueError(
            f"{iterations} iterations are no multiple of those between two looks: make them one of {plan.every}"
        )
    kept, done = _begun(plan, numbers, seeds, iterations, folder)
    saved = time.monotonic()
    given = jnp.asarray(numbers, float), jnp.asarray(iterations, float)
    while done < iterations:
        states, (returns, fine, left_out), seconds = advance(*given, kept.states)
        place = done // plan.every
        kept = Kept(
            states,
            kept.looks.at[:, place].set(returns),
            kept.finite & fine,
            kept.left_out + left_out,
            kept.seconds + seconds,
        )
        done += plan.every
        if folder is not None and (time.monotonic() - saved > SAVE_SECONDS or done == iterations):
            checkpoints.save(folder, done, kept)
            saved = time.monotonic()
    return kept


def _begun(
    plan: Plan, numbers: Sequence[float], seeds: Sequence[int], iterations: int, folder: Path | None
) -> tuple[Kept, int]:
    """Where training stands, and after how many iterations."""
    first = jax.vmap(lambda number, seed: plan.put(number, iterations).init(jax.random.key(seed)))
    states = jax.jit(first)(jnp.asarray(numbers, float), jnp.asarray(seeds))
    unseen = jnp.full((len(seeds), iterations // plan.every, plan.updates + 1), jnp.nan)
    none = jnp.zeros(len(seeds), jnp.int32)
    fresh = Kept(states, unseen, jnp.ones(len(seeds), bool), none, jnp.zeros(()))
    if folder is None or not checkpoints.available(folder):
        return fresh, 0
    kept = checkpoints.restore(folder, fresh).tree
    return kept, int(kept.states.iteration[0])


def identity(setup: RLSetup, region: Any = None) -> dict[str, Any]:
    """All that decides a training besides its seed and length. Engines do not count: they play the same game."""
    sizes = {"environment": setup.environment.name, "horizon": setup.environment.horizon}
    sizes |= {"rollouts": setup.tasks.shots, "queries": setup.tasks.queries}
    method = {"row": setup.method.method._asdict(), "meta_update": setup.method.meta_update, "region": region}
    return study.plain({**sizes, **method})


def state_folder(who: Any, name: str, numbers: Sequence[float], seeds: Sequence[int], iterations: int) -> Path:
    """Where trainings are kept: another method, number, seed or length, another folder."""
    what = json.dumps([who, list(numbers), list(seeds), iterations], sort_keys=True)
    return STATES / f"{name}-{sha256(what.encode()).hexdigest()[:16]}"


# --- the search -------------------------------------------------------------------------------------------------------


class Searched(NamedTuple):
    """What a search came to."""

    tried: list[dict[str, Any]]  # every number with its validation return, smallest first
    number: float  # the best
    kept: Kept  # its trainings, one of each seed
    side_by_side: int  # trainings of the first program: all numbers that are tried first, all seeds
    seconds: float  # that it took


def crossed(numbers: Sequence[float], seeds: Sequence[int]) -> tuple[list[float], list[int]]:
    """Every number with every seed: number and seed of each training, number after number."""
    return [number for number in numbers for _ in seeds], [seed for _ in numbers for seed in seeds]


def search(trial: Callable[[Sequence[float]], Kept], numbers: Sequence[float], beyond: int) -> Searched:
    """The number whose trainings are the best on average.

    Args:
        trial: trains every seed with every one of some numbers, `crossed`.
        numbers: those that are tried first, all at once.
        beyond: how many more may be tried, one at a time, while the best is the first or the last of all.
    """
    first = trial(numbers)
    found = by_number(numbers, first)
    for _ in range(beyond):
        if (number := further(sorted(found), best_of(scored(found)))) is None:
            break
        found |= by_number([number], trial([number]))
    tried = scored(found)
    best = best_of(tried)
    return Searched(tried, best, found[best], len(first.finite), float(first.seconds))


def by_number(numbers: Sequence[float], kept: Kept) -> dict[float, Kept]:
    """The trainings of each number, one for each seed."""
    count = len(kept.finite) // len(numbers)

    def mine(place):
        cut = lambda leaf: (
            leaf[place * count : (place + 1) * count] if leaf.ndim else leaf
        )  # time is one number for all
        return jax.tree.map(cut, kept)

    return {float(number): mine(place) for place, number in enumerate(numbers)}


def scored(found: dict[float, Kept]) -> list[dict[str, Any]]:
    """The last look of every number, averaged over seeds and over updates from the first on.

    None where any of its trainings left the finite numbers.
    """
    scores = {
        number: float(np.asarray(kept.looks, float)[:, -1, 1:].mean()) if np.all(kept.finite) else None
        for number, kept in sorted(found.items())
    }
    return [{"number": number, "validation": study.finite(score)} for number, score in scores.items()]


def best_of(tried: Sequence[dict[str, Any]]) -> float:
    """The number that came out best."""
    sound = [each for each in tried if each["validation"] is not None]
    if not sound:
        raise ValueError(
            f"of no number did all trainings stay finite: tried {', '.join(str(each['number']) for each in tried)}"
        )
    return max(sound, key=lambda each: each["validation"])["number"]


def further(known: Sequence[float], best: float) -> float | None:
    """The next number beyond the best, as far again as its neighbour is; None where it lies between others."""
    if len(known) < 2 or best not in (known[0], known[-1]):
        return None
    return float(f"{best * best / (known[1] if best == known[0] else known[-2]):.3g}")
