"""Half-cheetah as one program of a GPU: an action is one launch, in which a warp has two cheetahs, 16 threads each.

Otherwise each of the five engine steps of an action would be many small programs, and starting those takes the time, however
few cheetahs there are. The physics are `cheetah_numbers`; Pallas makes a program of them.
"""

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
from metaprior.rl.cheetah_tips import Tips, tips_table
from metaprior.rl.cheetah_tree import JOINTS, Tree, tree_of
from metaprior.rl.environment import Environment

BLOCK = 2  # cheetahs that one program has side by side: a warp has a thread for each of their 16 tips
ITERATIONS = 20  # most, of Newton's method; one to three are enough but where a body falls on the ground


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
        columns = [part.reshape(-1, part.shape[-1]).T for part in state]
        count = columns[0].shape[1]
        padded = [jnp.pad(part, ((0, 0), (0, -count % BLOCK))) for part in columns]
        return tuple(part[:, :count].T.reshape(*shape, JOINTS) for part in launched(*padded))

    @move.def_vmap
    def rule(size, mapped, *state):
        whole = [
            part if has else jnp.broadcast_to(part, (size, *part.shape))
            for part, has in zip(state, mapped, strict=True)
        ]
        return move(*whole), (True,) * 3

    return move


def launch(
    tree: Tree, iterations: int, interpret: bool, *columns: Float[Array, "_ N"]
) -> Sequence[Float[Array, "9 N"]]:
    """One program for every `BLOCK` columns."""
    table = jnp.asarray(tips_table(tree), columns[0].dtype)

    def program(known, *refs):
        tips = Tips.of([known[row, :][:, None] for row in range(known.shape[0])])
        *state, action = (tuple(ref[row, :] for row in range(ref.shape[0])) for ref in refs[:4])
        once = lambda _, now: tuple(map(tuple, substep(tree, tips, now[0], now[1], now[2], action, iterations)))
        after = jax.lax.fori_loop(0, cheetah.FRAME_SKIP, once, tuple(state))
        for ref, rows in zip(refs[4:], after, strict=True):
            for row, value in enumerate(rows):
                ref[row, :] = value

    blocks = [pl.BlockSpec((part.shape[0], BLOCK), lambda block: (0, block)) for part in columns]
    made = [jax.ShapeDtypeStruct(part.shape, part.dtype) for part in columns[:3]]
    grid = (columns[0].shape[1] // BLOCK,)
    return pl.pallas_call(
        program,
        grid=grid,
        in_specs=[pl.BlockSpec(table.shape, lambda block: (0, 0)), *blocks],
        out_specs=blocks[:3],
        out_shape=made,
        interpret=interpret,
        **_compiler(interpret),
    )(table, *columns)


def _compiler(interpret: bool) -> dict[str, Any]:
    if interpret:
        return {}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=1, num_stages=1)}
