"""Half-cheetah as one program of a GPU: an action is one launch, in which every thread has a cheetah.

Otherwise each of the five engine steps of an action would be many small programs, and starting those takes the time, however
few cheetahs there are. The physics are `cheetah_numbers`; Pallas makes a program of them.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from metaprior.rl import cheetah
from metaprior.rl.cheetah import CheetahState
from metaprior.rl.cheetah_body import read_body
from metaprior.rl.cheetah_numbers import substep
from metaprior.rl.cheetah_tree import JOINTS, Number, Tree, tree_of
from metaprior.rl.environment import Environment

BLOCK = 32  # cheetahs that one program has side by side: the threads of a warp
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
    """One program for every `BLOCK` rows."""
    kind = rows[0].dtype

    def program(*refs):
        *state, action = map(read, refs[:4])
        once = lambda _, now: tuple(map(tuple, substep(tree, now[0], now[1], now[2], action, iterations)))
        after = jax.lax.fori_loop(0, cheetah.FRAME_SKIP, once, tuple(map(tuple, state)))
        for ref, numbers in zip(refs[4:], after, strict=True):
            write(ref, numbers)

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


def read(ref: Any) -> list[Number]:
    """The columns of what a program is given.

    In a loop, for each array that a program reads or writes Triton follows all that is made of it, through the whole program:
    with a line for every column, nearly all of the time of compiling would go there.
    """

    def one(place, numbers):
        column = ref[:, place]
        return [jnp.where(place == each, column, number) for each, number in enumerate(numbers)]

    return jax.lax.fori_loop(0, ref.shape[1], one, [jnp.zeros(ref.shape[0], ref.dtype)] * ref.shape[1])


def write(ref: Any, numbers: Sequence[Number]) -> None:
    """The columns of what it gives back: in a loop as well."""

    def one(place, nothing):
        column = numbers[0]
        for each, number in enumerate(numbers):
            column = jnp.where(place == each, number, column)
        ref[:, place] = column
        return nothing

    jax.lax.fori_loop(0, ref.shape[1], one, ())


def _compiler(interpret: bool) -> dict[str, Any]:
    if interpret:
        return {}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=1, num_stages=1)}
