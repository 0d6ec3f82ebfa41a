"""Reports in some iterations only: what is learned must not depend on how often anybody looks."""

import re

import jax
import numpy as np
import pytest

from metaprior import likelihoods, methods
from metaprior.meta import meta_learner, trainer
from metaprior.models import mlp
from metaprior.tasks import get as get_tasks

MODEL = mlp((1, 8, 1), init="glorot")
TASKS = get_tasks("sinusoid", shots=4, queries=3)


def trained(name, watch_every):
    method = methods.get(name)
    likelihood = likelihoods.gaussian(MODEL.apply, temperature=method.temperature)
    learner = meta_learner(method, likelihood, model=MODEL, watch_every=watch_every)
    state = learner.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
    return jax.jit(trainer(learner, TASKS.sample, 3), static_argnums=1)(state, 7)


@pytest.mark.parametrize(
    "name", ["gem-bml+", *(pytest.param(name, marks=pytest.mark.slow) for name in ("maml", "pmaml"))]
)
def test_watching_less_often_learns_the_same_and_says_the_same(name):
    (always, all_infos), (seldom, some_infos) = trained(name, 1), trained(name, 3)
    for a, b in zip(jax.tree.leaves(always.prior), jax.tree.leaves(seldom.prior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    watched = np.arange(7) % 3 == 0
    for field in ("query_nll", "elbo"):
        mine, reference = np.asarray(getattr(some_infos, field)), np.asarray(getattr(all_infos, field))
        np.testing.assert_allclose(mine[watched], reference[watched], rtol=1e-9)
        assert np.isnan(mine[~watched]).all()
    np.testing.assert_array_equal(some_infos.finite, all_infos.finite)


def test_never_watching_learns_the_same_and_says_nothing_of_the_query():
    (always, all_infos), (never, no_infos) = trained("gem-bml+", 1), trained("gem-bml+", None)
    for a, b in zip(jax.tree.leaves(always.prior), jax.tree.leaves(never.prior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert np.isnan(no_infos.query_nll).all() and np.isnan(no_infos.elbo).all()
    np.testing.assert_array_equal(no_infos.left_out, all_infos.left_out)
    np.testing.assert_allclose(no_infos.step_norm, all_infos.step_norm, rtol=1e-9)


def products_of_every_iteration(program: str) -> int:
    """Matrix products in a compiled program, those left out that only one branch of a condition reaches."""
    bodies = {
        found[1]: found[0] for found in re.finditer(r"^(?:ENTRY )?%([\w.-]+) [^\n]*\{\n.*?^\}", program, re.M | re.S)
    }
    entry = next(name for name, text in bodies.items() if text.startswith("ENTRY"))
    reached, waiting = set(), [entry]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        waiting += re.findall(r"(?:calls|to_apply|body|condition)=%?([\w.-]+)", bodies[name])
    return sum(bodies[name].count(" dot(") for name in reached)


def test_forward_passes_that_nobody_asks_for_are_not_made():
    products = {}
    for watch_every in (1, 1000):
        method = methods.get("gem-bml+", draw_steps=False)
        learner = meta_learner(method, likelihoods.gaussian(MODEL.apply), model=MODEL, watch_every=watch_every)
        state = learner.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
        keys = jax.random.split(jax.random.key(2), 3)
        program = jax.jit(learner.step).lower(state, keys, jax.vmap(TASKS.sample)(keys)).compile().as_text()
        products[watch_every] = products_of_every_iteration(str(program))
    # A pass has one product (the first layer, of one input, is no product): q1 on the query, q2 on all data, q1 on the support.
    assert products[1] - products[1000] == 3
