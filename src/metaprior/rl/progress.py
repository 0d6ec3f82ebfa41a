"""How training goes, in returns: a look at a few tasks that training does not see, the same at every look."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Float

from metaprior.meta import State
from metaprior.rl.evaluation import adapted_returns
from metaprior.rl.setup import RLSetup

TASKS, ROLLOUTS = 10, 20  # of a look: less work than one iteration at the usual settings, and once in a chunk of them


def looker(setup: RLSetup, seed: int) -> Callable[[State], Float[np.ndarray, "2"]]:
    """(state) -> mean returns before and after one update, over `TASKS` tasks drawn from the seed, `ROLLOUTS` rollouts each.

    They tell how training goes, and are too few to tell how well a prior does: that is for `metaprior evaluate`.
    """

    @jax.jit
    def look(state):
        found = adapted_returns(
            jax.random.key(seed),
            setup.learner,
            setup.environment,
            setup.policy,
            state,
            steps=1,
            num_tasks=TASKS,
            count=ROLLOUTS,
        )
        return found.mean(axis=0)

    return lambda state: np.asarray(look(state))
