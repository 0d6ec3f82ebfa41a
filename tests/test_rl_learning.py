"""Meta-learning from rollouts: the same matrix, with identities between methods that hold for every batch of rollouts.

Where two methods are compared, `observe` is given one key for all: they then see the same rollouts of the same weights.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaprior import families, methods
from metaprior.families import Delta
from metaprior.inference.base import mean_loss
from metaprior.inference.trpo import policy_step
from metaprior.meta import meta_learner, task_keys, trainer
from metaprior.rl.evaluation import adapted_returns
from metaprior.rl.likelihood import Practice, policy_likelihood
from metaprior.rl.navigation import navigation
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.rollouts import rollouts
from metaprior.rl.tasks import rl_tasks
from metaprior.types import Likelihood, Prior

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(1)
HORIZON, COUNT, RATE = 6, 4, 0.1
ENVIRONMENT = navigation(horizon=HORIZON)
POLICY = gaussian_policy(2, 2, hidden=(4,))
TASKS = rl_tasks(ENVIRONMENT, rollouts=COUNT, queries=COUNT)
LIKELIHOOD = policy_likelihood(ENVIRONMENT, POLICY)
POINT: dict[str, Any] = dict(
    prior="delta", posterior="delta", inference="gradient", options={"pull": False}, steps=(1, 1), rate=RATE,
    widths="frozen", rates="none", draw_steps=False, clip=None, second_stage="sequential",
)  # fmt: skip
START, EPISODE = POLICY.init(KEY), TASKS.sample(KEY)
map_ = jax.tree.map
assert_same = partial(map_, partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12))


def with_one_key(likelihood):
    return likelihood._replace(observe=lambda key, params, source: likelihood.observe(KEY, params, source))


def gradient(name, **changes):
    learner = meta_learner(methods.get(name, **changes), with_one_key(LIKELIHOOD))
    one = lambda prior, episode: learner.gradient(KEY, prior, (), episode)[0]
    return jax.jit(one)(Prior(Delta(START)), EPISODE).dist.mean


def recorded(params, source):
    return LIKELIHOOD.observe(KEY, params, source)


def loss_gradient(params, batch):
    return jax.grad(lambda p: mean_loss(LIKELIHOOD, p, batch))(params)


def adapted(start, batch):
    return map_(lambda p, g: p - RATE * g, start, loss_gradient(start, batch))


@cache
def by_hand():
    """From recorded rollouts, held fixed: the changes of both stages, with the query alone and with all, and MAML's gradient."""

    @jax.jit
    def program(start, episode):
        first = recorded(start, episode.support)
        point = adapted(start, first)
        second, both = recorded(point, episode.query), recorded(point, LIKELIHOOD.join(*episode))
        change = partial(map_, jnp.subtract)
        maml = jax.grad(lambda p: -COUNT * HORIZON * mean_loss(LIKELIHOOD, adapted(p, first), second))(start)
        return change(point, start), change(adapted(point, second), point), change(adapted(point, both), point), maml

    return program(START, EPISODE)


def test_one_step_of_gem_plus_is_fomaml():
    """m2 − m1 = −α ∇loss at m1 on rollouts of m1; FOMAML's gradient, in nats, is n/α times that."""
    _, reference, _, _ = by_hand()
    assert_same(gradient("gem-bml+", **POINT), reference)
    fomaml = gradient("fomaml", steps=(1, 0), rate=RATE)
    assert_same(map_(lambda g: g * RATE / (COUNT * HORIZON), fomaml), reference)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(reference)) > 1e-4


def test_maml_takes_the_score_function_form():
    """Second order: rollouts of both stages are held, and the inner gradient is differentiated as one of recorded rollouts."""
    *_, reference = by_hand()
    assert_same(gradient("maml", steps=(1, 0), rate=RATE), reference)


def test_gem_with_points_is_reptile_of_two_steps():
    first, second, _, _ = by_hand()
    assert_same(gradient("gem-bml", **POINT), map_(jnp.add, first, second))


def in_second(**second):
    return POINT | {"options": {"pull": False, "second": second}}


def test_a_second_stage_can_have_an_inference_of_its_own():
    """That of the first by name changes nothing; a trust-region step is the one that starts where the first stage ended."""
    first, second, _, _ = by_hand()
    assert_same(gradient("gem-bml+", **in_second(inference="gradient", optimizer=RATE, pull=False)), second)
    reached = map_(jnp.add, START, first)
    options = {"solver_steps": 3}  # more of them make rounding errors large, where a direction changes nothing
    step = policy_step(LIKELIHOOD, reached, recorded(reached, EPISODE.query), max_kl=0.02, **options)
    assert step.accepted
    expected = map_(jnp.subtract, step.params, reached)
    found = gradient("gem-bml+", **in_second(inference="trpo", rate=0.02, **options))
    map_(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-9), found, expected)


def test_another_inference_needs_a_second_stage_that_is_held():
    second = {"inference": "trpo", "rate": 0.02}
    for name, changes in (("reptile", {"second_stage": "none"}), ("elbo-conditional", {}), ("kl-chaser", {})):
        with pytest.raises(
            ValueError, match="second stage needs one whose posteriors are held fixed: choose row 'gem'"
        ):
            methods.get(name, options={"second": second}, **{"prior": "delta", "posterior": "delta", **changes})
    with pytest.raises(ValueError, match="svgd cannot infer a delta posterior in the second stage"):
        methods.get("gem-bml+", **in_second(inference="svgd"))
    with pytest.raises(ValueError, match="inference of the second stage"):
        methods.get("gem-bml+", **in_second(inference="newton"))


def test_joint_second_stages_collect_the_rollouts_of_both():
    _, _, reference, _ = by_hand()
    joint = LIKELIHOOD.join(*EPISODE)
    assert isinstance(joint, Practice)
    assert LIKELIHOOD.size(joint) == 2 * COUNT * HORIZON
    assert_same(gradient("gem-bml+", **POINT | {"second_stage": "joint-from-q1"}), reference)


def trained(name, iterations, *, watch_every=1, **changes):
    """(state after them, what they reported, going on for one more)."""
    method = methods.get(name, **changes)
    likelihood = LIKELIHOOD._replace(temperature=method.temperature)
    learner = meta_learner(method, likelihood, optimizer=optax.adam(1e-3), watch_every=watch_every)
    train = jax.jit(trainer(learner, TASKS.sample, 3), static_argnums=1)
    start = learner.init(KEY, START)
    assert learner.check(start, EPISODE.support) is None
    return *train(start, iterations), lambda state: train(state, 1)[0]


@pytest.mark.slow
def test_chunks_and_watching_do_not_matter():
    """Two iterations at once are one and one; what nobody looks at needs no rollouts, and changes nothing."""
    one, watched, go_on = trained("gem-bml+", 1, **POINT)
    two, seldom, _ = trained("gem-bml+", 2, watch_every=2, **POINT)
    assert_same(go_on(one).prior, two.prior)
    assert np.isnan(seldom.elbo[1])
    for name in ("elbo", "query_nll", "step_norm"):
        assert_same(getattr(seldom, name)[0], getattr(watched, name)[0])
    assert watched.finite.all() and watched.left_out == 0


@pytest.mark.parametrize(
    "name, changes",
    [
        pytest.param("amortized-bml", {"steps": (1, 0)}, marks=pytest.mark.slow),
        pytest.param("pretrain", {}, marks=pytest.mark.slow),
        pytest.param("maml", {"steps": (2, 0)}, marks=pytest.mark.slow),
        pytest.param("bmaml-evidence", {"steps": (1, 0), "num_particles": 2}, marks=pytest.mark.slow),
        pytest.param("gem-bml+", {"steps": (1, 1)}, marks=pytest.mark.slow),
    ],
)
def test_methods_train(name, changes):
    """Posteriors with widths, particles, learned rates: whatever weights there are act, and everything stays finite."""
    _, info, _ = trained(name, 1, **changes)
    assert info.finite.all() and np.isfinite(info.query_nll).all() and np.isfinite(info.elbo).all()
    assert (info.left_out == 0).all() and (info.step_norm > 0).all()


@pytest.mark.slow
def test_one_task_says_the_same_in_any_batch():
    """The gradients of four tasks, at once and two by two."""
    learner = meta_learner(methods.get("gem-bml+", **POINT), LIKELIHOOD)
    prior, keys = Prior(Delta(START)), task_keys(KEY, 4)
    one = jax.jit(jax.vmap(lambda key: learner.gradient(key, prior, (), TASKS.sample(key))[0]))
    halves = map_(lambda *parts: np.concatenate(parts), one(keys[:2]), one(keys[2:]))
    assert_same(one(keys), halves)


def test_adapted_returns_are_of_the_adapted_policies():
    """Before any update the same as rollouts of the prior's mean; an update changes them."""
    learner = meta_learner(methods.get("gem-bml+", **POINT), LIKELIHOOD)
    state = learner.init(KEY, START)
    judge = lambda state: adapted_returns(KEY, learner, ENVIRONMENT, POLICY, state, steps=1, num_tasks=2, count=5)

    @jax.jit
    def of_the_prior(start):
        def one(key):
            key_task, _, key_judge = jax.random.split(key, 3)
            return rollouts(key_judge, ENVIRONMENT, POLICY, start, ENVIRONMENT.draw(key_task), 5).rewards

        return jax.vmap(one)(task_keys(KEY, 2)).sum(axis=2).mean(axis=1)

    found = jax.jit(judge)(state)
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found[:, 0], of_the_prior(START), rtol=1e-9)
    assert (np.diff(found, axis=1) != 0).all()


@pytest.mark.parametrize("family", [families.delta(), families.mean_field(), families.full(), families.particles(3)])
def test_every_draw_is_scored_on_what_it_observes_itself(family):
    """A world that answers with the weights that act: only if each draw meets its own answer is nothing lost."""
    mirror = Likelihood(
        observe=lambda key, params, source: params,
        outputs=lambda params, batch: (params - batch)[None],
        log_density=lambda outputs, batch: -jnp.square(outputs).sum(axis=1),
        size=lambda source: 1,
        join=lambda first, second: first,
    )
    q = family.start(family.init(KEY, jnp.arange(3.0), 0.5))
    assert family.expected_log_prob(KEY, mirror, q, (), num_samples=3) == 0.0
    if family.name == "mean-field":  # the means of what is drawn would not do
        missed = family.expected_log_prob(KEY, mirror._replace(observe=lambda *_: q.mean), q, (), num_samples=3)
        assert missed < -0.01


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="rollouts must be a whole number"):
        rl_tasks(ENVIRONMENT, rollouts=0)
    with pytest.raises(ValueError, match=r"discount must lie in \[0, 1\]"):
        policy_likelihood(ENVIRONMENT, POLICY, discount=1.5)
