"""What nobody reads is not lived through: environment steps of a meta-iteration, counted as they are taken."""

import jax
import numpy as np
import pytest

from metaprior.meta import trainer
from metaprior.rl import rows
from metaprior.rl.navigation import navigation
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.setup import rl_setup

HORIZON, ROLLOUTS, QUERIES, TASKS, TRAININGS, ITERATIONS = 3, 2, 3, 2, 2, 2
POLICY = gaussian_policy(2, 2, hidden=())

# Rollouts of the support and of the query that the stages of a row need, and its meta-gradient.
NEEDED = {
    "gem-bml+": (1, 1), "gem-bml": (1, 1), "reptile": (3, 0), "maml": (1, 1), "maml-trpo": (1, 1), "fomaml": (1, 1),
    "pretrain": (1, 1),  # of both at once
    "gem-bml+natural": (1, 1), "gem-bml+rates": (1, 1), "gem-bml+trpo": (1, 1), "pretrain-trpo": (1, 1),
    "gem-bml+two": (1, 2), "gem-bml+late": (2, 1), "maml-two": (2, 1),
}  # fmt: skip


def counting():
    """Navigation, and how often it is stepped: calls without side effects, which a compiler leaves out where none needs them."""
    plain, taken = navigation(horizon=HORIZON), []

    def call(position):
        taken.append(int(np.prod(np.shape(position)[:-1])))
        return np.zeros(np.shape(position)[:-1], position.dtype)

    def step(state, action, task):
        after, seen, reward, done = plain.step(state, action, task)
        like = jax.ShapeDtypeStruct((), after.dtype)
        return after, seen, reward + jax.pure_callback(call, like, after, vmap_method="broadcast_all"), done

    return plain._replace(step=step), taken


def trained(name, **options):
    """(what trainings side by side report, environment steps of one iteration of each, and how many its setup says they are)."""
    environment, taken = counting()
    row = rows.get(name, meta_batch=TASKS)
    setup = rl_setup(environment, row, policy=POLICY, rollouts=ROLLOUTS, queries=QUERIES, check=False, **options)
    states = jax.vmap(setup.init)(jax.random.split(jax.random.key(0), TRAININGS))
    train = trainer(setup.learner, setup.tasks.sample, TASKS)
    _, infos = jax.block_until_ready(jax.jit(jax.vmap(lambda state: train(state, ITERATIONS)))(states))
    return infos, sum(taken) / (TRAININGS * ITERATIONS), setup.steps_per_iteration


def by_hand(name):
    support, query = NEEDED[name]
    return TASKS * HORIZON * (support * ROLLOUTS + query * QUERIES)


OFTEN = ("gem-bml+", "gem-bml+natural", "maml", "pretrain")  # one of each kind; the others take as long again


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in NEEDED])
def test_rollouts_of_trainings_side_by_side_are_those_of_their_stages(name):
    infos, steps, promised = trained(name)
    assert steps == promised == by_hand(name)
    assert infos.finite.all() and (infos.left_out == 0).all()
    if name != "maml-trpo":  # whose query has been lived through
        assert np.isnan(infos.query_nll).all() and np.isnan(infos.elbo).all()


def test_every_row_is_counted():
    assert set(NEEDED) == set(rows.ROWS)


def test_looks_in_some_iterations_cost_rollouts_in_all_of_them():
    """Why there is a None: side by side a condition is computed both ways."""
    infos, steps, promised = trained("gem-bml+", watch_every=1000)
    assert steps > promised
    assert np.isfinite(infos.query_nll[:, 0]).all() and np.isnan(infos.query_nll[:, 1:]).all()
