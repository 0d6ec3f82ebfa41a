"""Half-cheetah as one program of a GPU: an action is one launch, in which a warp has two cheetahs, 16 threads each.

Otherwise each of the five engine steps of an action would be many small programs, and starting those takes the time, however
few cheetahs there are. The physics are `cheetah_numbers`; Pallas makes a program of them.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from metaprior.rl import cheetah
from metaprior.rl.cheetah import CheetahState
from metaprior.rl.cheetah_body import read_body
from metaprior.rl.cheetah_numbers import substep
from metaprior.rl.cheetah_tips import Tips, tips_table
from metaprior.rl.cheetah_tree import JOINTS, Tree, tree_of
from metaprior.rl.environment import Environment

BLOCK = 2  # cheetahs that one program has side by side: a warp has a thread for each of their 16 tips
ITERATIONS = 20  # most, of Newton's method; one to three are enough but where a body falls on the ground


def available() -> bool:
    """Whether this version of JAX can make the program: the part of Pallas that does is to go in a later one."""
    return importlib.util.find_spec("jax.experimental.pallas.triton") is not None


def cheetah_kernel(
    goal: str = "velocity", *, horizon: int = cheetah.HORIZON, iterations: int = ITERATIONS, interpret: bool = False
) -> Environment:
    """Half-cheetah as pure functions, for GPUs.

    Args:
        goal: "velocity" or "direction".
        horizon: steps of a trajectory.
        iterations: most of Newton's method for contact forces; it ends when it is exact.
        interpret: without a GPU, slowly, for tests.
    """
    asked = cheetah.goal_called(goal)
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}: {ITERATIONS} reach the minimum")
    model = cheetah.load_model()
    move = moving_all(partial(launch, tree_of(read_body(model)), iterations, interpret))
    advance = lambda state, action: CheetahState(*move(*state, action.astype(state.qpos.dtype)))
    seconds = cheetah.seconds_per_step(model)
    return cheetah.pure_cheetah(asked, horizon=horizon, rest=model.qpos0.copy(), seconds=seconds, advance=advance)


def moving_all(launched: Callable) -> Callable:
    """(positions, velocities, accelerations, actions) -> the first three after an action, with any axes in front.

    Mapping it adds an axis in front, so that all cheetahs of all maps are in one launch.
    """

    @jax.custom_batching.custom_vmap
    def move(*state):
        shape = state[0].shape[:-1]
        rows = [part.reshape(-1, part.shape[-1]) for part in state]
        count = len(rows[0])
        padded = [jnp.pad(part, ((0, -count % BLOCK), (0, 0))) for part in rows]
        return tuple(part[:count].reshape(*shape, JOINTS) for part in launched(*padded))

    @move.def_vmap
    def rule(size, mapped, *state):
        whole = [
            part if has else jnp.broadcast_to(part, (size, *part.shape))
            for part, has in zip(state, mapped, strict=True)
        ]
        return move(*whole), (True,) * 3

    return move


def launch(tree: Tree, iterations: int, interpret: bool, *rows: Float[Array, "N _"]) -> Sequence[Float[Array, "N 9"]]:
    """One program for every `BLOCK` rows.

    It reads and writes single numbers. For each array that a program reads or writes Triton follows all that is made of it, once
    from each of its operations: with an array for every number, nearly all of the time of compiling would go there.
    """
    table, kind = tips_table(tree), rows[0].dtype

    def program(*refs):
        tips = Tips.of([along_tips(known, kind) for known in table])
        *state, action = ([read(ref, place) for place in range(ref.shape[1])] for ref in refs[:4])
        once = lambda _, now: tuple(map(tuple, substep(tree, tips, now[0], now[1], now[2], action, iterations)))
        after = jax.lax.fori_loop(0, cheetah.FRAME_SKIP, once, tuple(map(tuple, state)))
        for ref, numbers in zip(refs[4:], after, strict=True):
            for place, number in enumerate(numbers):
                write(ref, place, number)

    blocks = [pl.BlockSpec((BLOCK, part.shape[1]), lambda block: (block, 0)) for part in rows]
    return pl.pallas_call(
        program,
        grid=(len(rows[0]) // BLOCK,),
        in_specs=blocks,
        out_specs=blocks[:3],
        out_shape=[jax.ShapeDtypeStruct(part.shape, kind) for part in rows[:3]],
        input_output_aliases={1: 1, 2: 2},  # not positions: rewards ask where it was before
        interpret=interpret,
        **_compiler(interpret),
    )(*rows)


def read(ref: Any, place: int) -> Float[Array, "_"]:
    """A number of each cheetah, side by side."""
    which, found = jax.lax.broadcasted_iota(jnp.int32, (BLOCK,), 0), ref[0, place]
    for one in range(1, BLOCK):
        found = jnp.where(which == one, ref[one, place], found)
    return found


def write(ref: Any, place: int, numbers: Float[Array, "_"]) -> None:
    """A number of each cheetah, to its place."""
    which = jax.lax.broadcasted_iota(jnp.int32, (BLOCK,), 0)
    for one in range(BLOCK):
        ref[one, place] = jnp.where(which == one, numbers, 0).sum()


def along_tips(known: np.ndarray, kind: Any) -> Float[Array, "tips 1"]:
    """What is known of tips, without a table in memory: where it changes from one to the next."""
    tip = jax.lax.broadcasted_iota(jnp.int32, (len(known), 1), 0)
    found = jnp.full((len(known), 1), known[-1], kind)
    for last in reversed(np.flatnonzero(np.diff(known))):
        found = jnp.where(tip <= int(last), float(known[last]), found)
    return found


def _compiler(interpret: bool) -> dict[str, Any]:
    if interpret:
        return {}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=1, num_stages=1)}
