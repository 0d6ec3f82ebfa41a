"""Controls of reinforcement learning; rows that cannot learn from rollouts; which weights act; faults named in training."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaprior import families, methods
from metaprior.families import Delta, MeanField
from metaprior.inference import INFERENCES
from metaprior.inference.base import mean_loss
from metaprior.meta import meta_learner, task_keys, trainer
from metaprior.optimizers import part_labels
from metaprior.rl import rows
from metaprior.rl.checks import require_fits
from metaprior.rl.controls import Curve, scratch_returns, steps_to_reach
from metaprior.rl.evaluation import adapted_returns, task_return
from metaprior.rl.likelihood import policy_likelihood, practice
from metaprior.rl.navigation import navigation
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.replay import iteration_fault
from metaprior.rl.rollouts import rollouts, total_rewards
from metaprior.rl.setup import rl_setup
from metaprior.rl.tasks import rl_tasks
from metaprior.types import Likelihood, Prior

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(5)
HORIZON, COUNT = 4, 3
ENVIRONMENT = navigation(horizon=HORIZON)
POLICY = gaussian_policy(2, 2, hidden=())
START = POLICY.init(KEY)
map_ = jax.tree.map


def setup_of(name, environment=ENVIRONMENT, **options):
    sizes: dict[str, Any] = dict(policy=POLICY, rollouts=COUNT, queries=COUNT, check=False)
    return rl_setup(environment, rows.get(name), **sizes | options)


def assert_same(found, reference, rtol=1e-9):
    map_(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12), found, reference)


# Every row


@pytest.mark.parametrize("name", rows.ROWS)
def test_rows_can_be_set_up(name):
    """Each is valid, says what it is, and its meta-step is one of those known; what it learns is tested elsewhere."""
    setup = setup_of(name)
    assert setup.method.summary and setup.method.meta_update in rows.META_UPDATES
    state = setup.init(KEY, START)
    assert_same(state.prior.dist.mean, START)
    assert setup.learner.check(state, setup.tasks.sample(KEY).support) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", rows.ROWS)
def test_rows_train(name):
    setup = setup_of(name)
    state, infos = jax.jit(trainer(setup.learner, setup.tasks.sample, 2), static_argnums=1)(setup.init(KEY), 2)
    assert infos.finite.all() and (infos.left_out == 0).all() and (infos.step_norm > 0).any()
    judge = lambda state: adapted_returns(KEY, setup.learner, ENVIRONMENT, POLICY, state, steps=1, num_tasks=2, count=2)
    assert np.isfinite(jax.jit(judge)(state)).all()


@pytest.mark.slow
def test_natural_steps_are_averaged_as_they_are():
    """GEM-BML+ with trust-region steps: μ moves by the mean of the second stages' changes, at a meta-rate of one."""
    setup = setup_of("gem-bml+trpo")
    assert setup.method.meta_update == "sgd"
    state, keys = setup.init(KEY, START), task_keys(KEY, 2)
    episodes = jax.vmap(setup.tasks.sample)(keys)
    after, _ = jax.jit(setup.learner.step)(state, keys, episodes)
    gradient = lambda key, episode: setup.learner.gradient(key, state.prior, (), episode)[0].dist.mean
    changes = jax.jit(jax.vmap(gradient))(keys, episodes)
    assert_same(after.prior.dist.mean, map_(lambda mu, change: mu + change.mean(axis=0), START, changes), 1e-7)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(changes)) > 1e-3


@pytest.mark.parametrize(
    ("name", "changes", "trajectories"),
    [
        ("gem-bml+", {}, 3 + 5),
        ("gem-bml+", {"second_stage": "joint-from-q1", "steps": (2, 1)}, 2 * 3 + (3 + 5)),
        ("reptile", {}, 3 * 3),
        ("maml", {"steps": (2, 0)}, 2 * 3 + 5),
        ("pretrain", {}, 3 + 5),
        ("elbo-difference", {"steps": (1, 1)}, 3 + (3 + 5) + (3 + 5) + 3),
    ],
)
def test_environment_steps_of_an_iteration(name, changes, trajectories):
    """Counted by hand: inner steps on the support, those of the second stage, and what is scored with a gradient."""
    setup = rl_setup(
        ENVIRONMENT, rows.get(name, **changes, meta_batch=2), policy=POLICY, rollouts=3, queries=5, check=False
    )
    assert setup.steps_per_iteration == 2 * trajectories * HORIZON


def test_the_width_of_a_policy_is_learned_as_its_other_weights_are():
    """Its log std is a weight, in means, widths and rates alike: only the part of Θ that a leaf is in decides its meta-rate."""
    labels = part_labels(Prior(MeanField(START, START), START))
    parts = (labels.dist.mean, labels.dist.log_std, labels.log_rate)
    assert [set(jax.tree.leaves(part)) for part in parts] == [{"mean"}, {"width"}, {"rate"}]


# Controls


def test_pretraining_climbs_the_return_of_the_policy_itself():
    """The gradient is that of log π·A at the prior's mean, over its own rollouts, as many as both stages would have."""
    one_key = lambda likelihood: likelihood._replace(observe=lambda key, *rest: likelihood.observe(KEY, *rest))
    likelihood = one_key(policy_likelihood(ENVIRONMENT, POLICY))
    learner = meta_learner(rows.get("pretrain").method, likelihood)
    tasks = rl_tasks(ENVIRONMENT, rollouts=COUNT, queries=COUNT)
    episode = tasks.sample(KEY)

    @jax.jit
    def both(start):
        batch = likelihood.observe(KEY, start, practice(episode.support.task, 2 * COUNT))
        reference = jax.grad(lambda p: -2 * COUNT * HORIZON * mean_loss(likelihood, p, batch))(start)
        return learner.gradient(KEY, Prior(Delta(start)), (), episode)[0].dist.mean, reference

    assert_same(*both(START))


def test_training_from_scratch_is_a_plain_loop_of_updates():
    """Fresh weights for each task, REINFORCE by hand, judged before, between and after."""
    learner = setup_of("maml").learner
    curve = scratch_returns(KEY, learner, ENVIRONMENT, POLICY, updates=(0, 2, 3), num_tasks=2, count=COUNT)
    assert curve.updates == (0, 2, 3) and curve.steps == (0, 2 * COUNT * HORIZON, 3 * COUNT * HORIZON)
    likelihood, rate = learner.cell.likelihood, learner.method.rate

    @jax.jit
    def by_hand(key):
        key_task, key_adapt, key_judge = jax.random.split(key, 3)
        task, params = ENVIRONMENT.draw(key_task), POLICY.init(jax.random.fold_in(key_task, 1))
        judge = lambda params: total_rewards(rollouts(key_judge, ENVIRONMENT, POLICY, params, task, COUNT)).mean()
        returns = [judge(params)]
        for number in range(3):
            key_observe = jax.random.split(jax.random.fold_in(key_adapt, number), 3)[2]
            batch = likelihood.observe(key_observe, params, practice(task, COUNT))
            slope = jax.grad(lambda p, batch=batch: mean_loss(likelihood, p, batch))(params)
            params = map_(lambda p, g: p - rate * g, params, slope)
            returns.append(judge(params))
        return jnp.stack([returns[at] for at in curve.updates])

    np.testing.assert_allclose(curve.returns, np.stack([by_hand(key) for key in task_keys(KEY, 2)]), rtol=1e-9)
    assert len(np.unique(np.asarray(curve.returns))) == 6  # no two tasks begin alike


def test_steps_to_reach_a_return():
    curve = Curve((0, 1, 2), (0, 10, 20), jnp.array([[-9.0, -4.0, -1.0], [-9.0, -2.0, -1.0]]))
    assert [steps_to_reach(curve, level) for level in (-10.0, -3.0, -2.9, 0.0)] == [0, 10, 20, None]
    for updates in ((), (2, 1), (-1, 0)):
        with pytest.raises(ValueError, match="updates must be whole numbers that grow"):
            scratch_returns(KEY, setup_of("maml").learner, ENVIRONMENT, POLICY, updates=updates)


# Rows that need given data


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("imaml", {}, "implicit derivative is that of a minimum on given data"),
        ("pmaml", {}, "PLATIPUS draws weights from the query's data"),
        ("llama", {}, "Laplace takes the curvature of given data"),
        ("gem-bml+last-layer", {}, "the exact last layer needs answers y"),
        ("gem-bml+", {"inference": "laplace", "posterior": "mean-field", "prior": "mean-field", "options": {}}, "Laplace takes"),
        ("gem-bml+", {"inference": "natural_vi", "posterior": "mean-field", "prior": "mean-field", "options": {}}, "below zero"),
        ("amortized-bml", {"estimator": "flipout"}, "set estimator='weights'"),
        ("maml", {"options": {"pull": False, "batch_size": 4}}, "leave out batch_size"),
    ],
)  # fmt: skip
def test_rows_that_need_given_data_are_refused_in_words(name, changes, words):
    with pytest.raises(ValueError, match=rf"{name.replace('+', '[+]')} cannot .*{words}"):
        rows.get(name, **changes)


def test_refusals_name_what_to_use_and_come_when_a_setup_is_made():
    known = rows.get("maml")._replace(method=methods.get("imaml"))
    with pytest.raises(ValueError, match=r"imaml cannot learn from rollouts: .*use gem-bml\+, gem-bml, reptile, maml"):
        rl_setup(ENVIRONMENT, known)
    with pytest.raises(ValueError, match="unknown method 'maml-trp': did you mean maml-trpo"):
        rows.get("maml-trp")
    with pytest.raises(ValueError, match="a meta-step of TRPO has no optimiser"):
        setup_of("maml-trpo", optimizer=optax.adam(1e-3))
    with pytest.raises(ValueError, match=r"bmaml infers particles, .* pass acting='sample'"):
        setup_of("bmaml")
    setup_of("bmaml", acting="sample")
    with pytest.raises(ValueError, match="maml-trpo takes no meta-steps of Adam"):
        setup_of("maml-trpo", width_rate=3.0)
    with pytest.raises(ValueError, match="no region: leave it out, or use maml-trpo"):
        setup_of("maml", region={"max_kl": 0.1})
    assert rows.get("amortized-bml").method == methods.get("amortized-bml")  # the others may be named too


# Which weights act


def mirror(acting) -> Likelihood:
    """A world that answers with the weights that acted; the loss of θ is its squared distance to them."""
    return Likelihood(
        observe=lambda key, params, source: jax.lax.stop_gradient(params),
        outputs=lambda params, batch: (params - batch)[None],
        log_density=lambda outputs, batch: -jnp.square(outputs).sum(axis=1),
        size=lambda source: 1,
        join=lambda first, second: first,
        acting=acting,
    )


@pytest.mark.parametrize("acting", ["sample", "mean"])
def test_one_sample_or_the_mean_acts(acting):
    """θ = m + s·ε scored on what θ did loses nothing; on what m did, (s·ε)²: a slope of 2sε in m and of 2(sε)² in log s."""
    family, q = families.mean_field(), MeanField(jnp.arange(3.0), jnp.full(3, np.log(0.5)))
    likelihood, prior = mirror(acting), Prior(q)
    key_draw = jax.random.split(KEY, 3)[0]
    shift = family.samples(key_draw, q, 1)[0] - q.mean
    slope, bend = (2 * shift, 2 * shift**2) if acting == "mean" else (0 * shift, 0 * shift)

    gradient = INFERENCES["gradient"].make(likelihood, family, optimizer=0.1, pull=False)
    found = gradient.step(KEY, gradient.init(KEY, prior, q, (), ()), prior, ()).q
    np.testing.assert_allclose(found.mean, q.mean - 0.1 * slope, rtol=1e-12)
    np.testing.assert_allclose(found.log_std, q.log_std - 0.1 * bend, rtol=1e-12)

    preconditioned = INFERENCES["preconditioned"].make(likelihood, family, rate=0.1)
    found = preconditioned.step(KEY, preconditioned.init(KEY, prior, q, (), ()), prior, ()).q
    np.testing.assert_allclose(found.mean, q.mean - 0.1 * slope, rtol=1e-12)

    draws = family.samples(KEY, q, 4) - q.mean[None]
    expected = -jnp.square(draws).sum(axis=1).mean() if acting == "mean" else 0.0
    np.testing.assert_allclose(family.expected_log_prob(KEY, likelihood, q, (), num_samples=4), expected, rtol=1e-12)


def test_one_sample_is_held_for_all_trajectories_when_judged():
    """Weights much wider than the noise of actions: all trajectories of a sample are one path, and not the mean's."""
    task = ENVIRONMENT.draw(KEY)
    sure = START.__class__(START.mean, jnp.full(2, -14.0))
    q = MeanField(sure, _widths(sure))

    def judged(acting):
        likelihood = policy_likelihood(ENVIRONMENT, POLICY, acting=acting, temperature=0.01)
        learner = meta_learner(rows.get("amortized-bml").method, likelihood)
        return jax.jit(lambda q: task_return(KEY, learner, ENVIRONMENT, POLICY, q, task, 8))(q)

    drawn = map_(lambda leaf: leaf[0], families.mean_field().samples(jax.random.fold_in(KEY, families.OBSERVE), q, 1))
    lived = jax.jit(lambda p: rollouts(KEY, ENVIRONMENT, POLICY, p, task, 8))
    one_path = total_rewards(lived(drawn))
    np.testing.assert_allclose(one_path, one_path[0], atol=1e-4)
    np.testing.assert_allclose(judged("sample"), one_path.mean(), rtol=1e-9)
    np.testing.assert_allclose(judged("mean"), total_rewards(lived(sure)).mean(), rtol=1e-9)
    assert abs(judged("sample") - judged("mean")) > 0.01


def _widths(params):
    """Wide means of actions, a sure width of them."""
    wide = map_(lambda leaf: jnp.full_like(leaf, 0.0), params)
    return wide.__class__(wide.mean, jnp.full(2, -20.0))


def test_an_unknown_actor_is_refused():
    with pytest.raises(ValueError, match="unknown choice of which weights act 'mode'"):
        policy_likelihood(ENVIRONMENT, POLICY, acting="mode")
    with pytest.raises(ValueError, match="unknown surrogate 'logs': did you mean log"):
        policy_likelihood(ENVIRONMENT, POLICY, surrogate="logs")


# Faults


def counted(wrong):
    """Navigation with a clock; `wrong(clock, goal)` -> (what is added to the reward, whether it ends)."""

    def step(state, action, task):
        position, seen, reward, done = ENVIRONMENT.step(state[0], action, task)
        extra, over = wrong(state[1] + 1, task.position)
        return (position, state[1] + 1), seen, reward + extra, done | over

    reset = lambda key, task: ((jnp.zeros(2), jnp.zeros((), int)), jnp.zeros(2))
    return ENVIRONMENT._replace(reset=reset, step=step)


def first_goals():
    """Of the tasks of the first iteration."""
    state = setup_of("pretrain").init(KEY, START)
    keys = task_keys(jax.random.split(jax.random.fold_in(state.key, 0))[0], 3)
    return np.asarray(jax.vmap(ENVIRONMENT.draw)(keys).position)


@pytest.mark.parametrize(
    ("wrong", "weights", "words"),
    [
        (lambda clock, goal, bad: (jnp.where((clock == 3) & (goal[0] == bad), jnp.nan, 0.0), False), START,
         "iteration 1: rl-navigation, task 1, trajectory 0, step 3: the reward is nan, .* mend the environment"),
        (lambda clock, goal, bad: (0.0, goal[0] == bad), START,
         "iteration 1: rl-navigation, task 1, step 1: all 6 trajectories ended with their first step"),
        (lambda clock, goal, bad: (0.0, False), map_(lambda leaf: leaf * jnp.nan, START),
         "iteration 1: rl-navigation, task 0, trajectory 0, step 1: the policy's action is .* its weights have diverged"),
        (lambda clock, goal, bad: (0.0, False), START, None),
    ],
    ids=["nan", "ends-at-once", "diverged", "sound"],
)  # fmt: skip
def test_a_fault_of_training_is_named_with_its_task_and_step(wrong, weights, words):
    bad = first_goals()[1, 0]
    environment = counted(lambda clock, goal: wrong(clock, goal, bad))
    setup = setup_of("pretrain", environment)
    state = setup.init(KEY, weights)
    found = iteration_fault(environment, POLICY, setup.learner, setup.tasks.sample, state, 3)
    if words is None:
        assert found is None
    else:
        assert found is not None and re.match(words, found), found


@pytest.mark.parametrize("watch_every", [1, None])
def test_nothing_is_lost_where_one_task_is_not_finite(watch_every):
    """It is left out, and the others move the prior as they would without it."""
    bad = first_goals()[1, 0]
    environment = counted(lambda clock, goal: (jnp.where(goal[0] == bad, jnp.nan, 0.0), False))
    setup = setup_of("pretrain", environment, watch_every=watch_every)
    state = setup.init(KEY, START)
    after, info = jax.jit(trainer(setup.learner, setup.tasks.sample, 3), static_argnums=1)(state, 1)
    assert info.left_out[0] == 1 and info.finite[0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.prior))


def test_a_prior_of_another_observation_size_is_refused():
    with pytest.raises(ValueError, match=r"every task, step 0: the policy .* which are 2 numbers: build it with"):
        rl_setup(ENVIRONMENT, rows.get("maml"), policy=gaussian_policy(3, 2), check=False)
    other = gaussian_policy(3, 2, hidden=())
    with pytest.raises(ValueError, match="load the prior that was trained there"):
        setup_of("maml").init(KEY, other.init(KEY))
    with pytest.raises(ValueError, match=r"every task, step 0: the observation of reset has shape \(2,\)"):
        rl_setup(ENVIRONMENT._replace(observation_size=3), rows.get("maml"))
    require_fits(ENVIRONMENT, POLICY, START)
