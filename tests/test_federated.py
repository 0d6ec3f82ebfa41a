"""Clients that send sums alone make the step of one machine that has all tasks, and no reply can damage the prior."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaprior import likelihoods, methods
from metaprior.federated.replies import Limits, Refused, believed, expected, named
from metaprior.federated.rounds import Reply, judged, sampled, server_round
from metaprior.federated.steps import Held, client_step, client_steps, server_step
from metaprior.meta import meta_learner, numbered_keys
from metaprior.models import mlp
from metaprior.rl import rows
from metaprior.rl.navigation import navigation
from metaprior.rl.setup import rl_setup
from metaprior.tasks import get as get_tasks

MODEL = mlp((1, 6, 1), init="glorot")
TASKS = get_tasks("sinusoid", shots=4, queries=3)
SPLIT = {"anna": slice(0, 1), "ben": slice(1, 5), "cleo": slice(5, 7)}  # seven tasks, unequally
KEY = jax.random.key(5)
SHARED = dict(optimizer="shared-adam")


def made(name="gem-bml+", **changes):
    method = methods.get(name, **changes)
    likelihood = likelihoods.gaussian(MODEL.apply, temperature=method.temperature)
    learner = meta_learner(method, likelihood, model=MODEL)
    return learner, learner.init(jax.random.key(0), MODEL.init(jax.random.key(1)))


@functools.cache
def usual():
    """GEM-BML+, with a compiled client."""
    learner, state = made()
    return learner, state, jax.jit(lambda tasks: client_step(learner, state.prior, tasks, KEY))


def held(rows, *, poison=()):
    numbers = jnp.arange(7)
    episodes = jax.vmap(TASKS.sample)(jax.random.split(jax.random.key(2), 7))
    bad = jnp.isin(numbers, jnp.array([*poison], int))[:, None, None]
    episodes = episodes._replace(query=episodes.query._replace(y=jnp.where(bad, jnp.nan, episodes.query.y)))
    return jax.tree.map(lambda leaf: leaf[rows], Held(numbers, episodes))


def assert_close(ours, theirs, tolerance=1e-12):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# --- numerics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("gem-bml", {}, marks=pytest.mark.slow),
        ("gem-bml+", {}),
        ("maml", {}),
        ("reptile", SHARED),
        pytest.param("bmaml", {}, marks=pytest.mark.slow),
    ],
)
def test_three_clients_are_one_machine_with_all_tasks(name, changes):
    """Over several rounds, with a task that has no finite answer, and through the messages as they are sent."""
    learner, start = made(name, **changes)
    client = jax.jit(lambda state, tasks, key: client_step(learner, state.prior, tasks, key, state.memory))
    whole, together = held(slice(None), poison=[3]), [held(rows, poison=[3]) for rows in SPLIT.values()]
    central = federated = start
    central_step = jax.jit(lambda state, key: learner.step(state, numbered_keys(key, whole.numbers), whole.episodes))
    for number in range(4):
        key = jax.random.fold_in(KEY, number)
        central, info = central_step(central, key)
        replies = [believed(federated, named(federated, client(federated, tasks, key))) for tasks in together]
        federated, told = server_step(learner, federated, *replies)
        assert int(told.left_out) == int(info.left_out) == 1
    assert_close(federated._replace(key=()), central._replace(key=()))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), federated.prior.dist, start.prior.dist)
    assert max(jax.tree.leaves(moved)) > 1e-5


def test_the_server_is_not_told_how_well_the_tasks_do():
    _, state, client = usual()
    names = set(named(state, client(held(slice(None)))))
    parts = {f"gradient.dist.{part}.layers.{layer}.{what}" for part in ("mean", "log_std")
             for layer in (0, 1) for what in ("weight", "bias")}  # fmt: skip
    assert names == parts | {"kept", "left_out"}


def test_a_message_is_as_large_as_the_prior_whatever_the_data():
    _, state, client = usual()
    size = lambda tasks: sum(array.nbytes for array in named(state, client(tasks)).values())
    prior = sum(leaf.nbytes for leaf in jax.tree.leaves(state.prior))
    assert size(held(slice(0, 1))) == size(held(slice(None))) == prior + 2 * 8


def test_one_step_of_a_clients_own_is_its_statistics():
    learner, state, client = usual()
    several = jax.jit(lambda tasks: client_steps(learner, state.prior, tasks, KEY, steps=1, rate=1e-3))
    told = lambda found: found._replace(query_nll=(), elbo=())
    assert_close(told(several(held(slice(None)))), told(client(held(slice(None)))), tolerance=1e-9)


def test_several_steps_lead_where_gradient_ascent_does():
    """Against a loop of meta-steps by the learner's own update, with plain gradient ascent as its optimiser."""
    rate, steps, tasks = 1e-3, 5, held(slice(None))
    method = methods.get("gem-bml+")
    likelihood = likelihoods.gaussian(MODEL.apply, temperature=method.temperature)
    learner = meta_learner(method, likelihood, model=MODEL, optimizer=optax.sgd(rate))
    state = start = learner.init(jax.random.key(0), MODEL.init(jax.random.key(1)))
    meta_step = jax.jit(lambda state, key: learner.step(state, numbered_keys(key, tasks.numbers), tasks.episodes)[0])
    for step in range(steps):
        state = meta_step(state, jax.random.fold_in(KEY, step))
    found = jax.jit(lambda: client_steps(learner, start.prior, tasks, KEY, steps=steps, rate=rate))()
    step = server_step(learner, start, found)[0].prior  # which is gradient ascent here as well
    assert_close(step, state.prior, tolerance=1e-10)


def test_a_step_that_is_no_sum_over_tasks_is_refused():
    setup = rl_setup(navigation(horizon=3), rows.get("maml-trpo"), check=False)
    with pytest.raises(ValueError, match="no sum over tasks"):
        client_step(setup.learner, made()[1].prior, held(slice(None)), KEY)


# --- replies ------------------------------------------------------------------------------------------------------------

MEAN = "gradient.dist.mean.layers.0.weight"


@pytest.fixture(scope="module")
def server():
    learner, state, client = usual()
    sent = {name: named(state, client(held(rows))) for name, rows in SPLIT.items()}
    return learner, state, sent


def changed(arrays, name, change):
    value = change(arrays[name])
    return {**arrays, name: np.asarray(value) if isinstance(value, np.generic) else value}


def nan(array):
    array = array.copy()
    array.flat[-1] = np.nan
    return array


BAD = {
    "lacks": (lambda arrays: {name: array for name, array in arrays.items() if name != MEAN}, f"lacks {MEAN}"),
    "unknown": (lambda arrays: {**arrays, "more": np.zeros(2)}, "has an unknown more"),
    "renamed": (lambda arrays: {name.upper(): array for name, array in arrays.items()}, "lacks gradient"),
    "empty": (lambda arrays: {}, "lacks gradient"),
    "shape": (lambda arrays: changed(arrays, MEAN, lambda a: a[:, :1]), r"has shape \(1, 1\), not \(1, 6\)"),
    "scalar": (lambda arrays: changed(arrays, MEAN, lambda a: a.sum()[None]), "has shape"),
    "type": (lambda arrays: changed(arrays, MEAN, lambda a: a.astype(np.float32)), "type float32, not float64"),
    "object": (lambda arrays: changed(arrays, MEAN, lambda a: a.astype(object)), "type object"),
    "list": (lambda arrays: changed(arrays, MEAN, lambda a: a.tolist()), "is a list"),
    "nan": (lambda arrays: changed(arrays, MEAN, nan), "is not finite"),
    "infinite": (lambda arrays: changed(arrays, MEAN, lambda a: a + np.inf), "is not finite"),
    "huge": (lambda arrays: changed(arrays, MEAN, lambda a: a + 1e9), "mean gradient has norm"),
    "overflow": (lambda arrays: changed(arrays, MEAN, lambda a: a + 1e300), "mean gradient has norm inf"),
    "none": (lambda arrays: changed(arrays, "kept", np.zeros_like), "no task was kept"),
    "negative": (lambda arrays: changed(arrays, "kept", lambda a: -a), "not a number of tasks"),
    "half": (lambda arrays: changed(arrays, "kept", lambda a: a + 0.5), "not a number of tasks"),
    "left out": (lambda arrays: changed(arrays, "left_out", lambda a: a - 1), "not a number of tasks"),
    "outvoting": (lambda arrays: changed(arrays, "kept", lambda a: a + 1e6), "tasks are more than"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_reply_is_refused_with_its_reason(server, what):
    _, state, sent = server
    damage, words = BAD[what]
    with pytest.raises(Refused, match=words):
        believed(state, damage(sent["ben"]))


@pytest.mark.parametrize("what", BAD)
def test_beside_a_bad_reply_the_round_goes_on_as_without_it(server, what):
    learner, state, sent = server
    damage, _ = BAD[what]
    good = [Reply(name, 3, sent[name]) for name in ("anna", "cleo")]
    after, record = server_round(learner, state, 3, list(SPLIT), [Reply("ben", 3, damage(sent["ben"])), *good])
    without, _ = server_round(learner, state, 3, ["anna", "cleo"], good)
    assert_close(after._replace(key=()), without._replace(key=()), tolerance=0)
    assert record.replied == ("anna", "cleo") and list(record.refused) == ["ben"] and record.missing == ()
    assert record.tasks == 3 and record.stepped


def test_what_is_expected_is_what_is_sent(server):
    _, state, sent = server
    like = expected(state)
    assert {name: (array.shape, array.dtype) for name, array in sent["ben"].items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in like.items()
    }


def test_limits_are_of_the_mean_over_tasks(server):
    """A client with many tasks may send a longer sum."""
    _, state, sent = server
    entries = np.concatenate([sent["ben"][name].ravel() for name in expected(state) if name.startswith("gradient")])
    norm = float(np.linalg.norm(entries)) / 4
    believed(state, sent["ben"], Limits(max_norm=norm * 1.001))
    with pytest.raises(Refused, match="norm"):
        believed(state, sent["ben"], Limits(max_norm=norm * 0.999))


# --- rounds -------------------------------------------------------------------------------------------------------------


def test_the_order_of_replies_does_not_matter(server):
    learner, state, sent = server
    replies = [Reply(name, 0, arrays) for name, arrays in sent.items()]
    forth, _ = server_round(learner, state, 0, list(SPLIT), replies)
    back, _ = server_round(learner, state, 0, list(SPLIT)[::-1], replies[::-1])
    assert_close(forth._replace(key=()), back._replace(key=()), tolerance=0)


def test_stale_double_and_uninvited_replies_do_not_count(server):
    learner, state, sent = server
    asked = ["anna", "ben"]
    replies = [Reply("anna", 2, sent["anna"]), Reply("ben", 3, sent["ben"]), Reply("ben", 3, sent["ben"]),
               Reply("cleo", 3, sent["cleo"])]  # fmt: skip
    accepted, refused = judged(state, 3, asked, replies)
    assert list(accepted) == ["ben"]
    assert "round 2" in refused["anna"] and "twice" in refused["ben"] and "not asked" in refused["cleo"]
    after, record = server_round(learner, state, 3, asked, replies)
    alone, _ = server_round(learner, state, 3, ["ben"], [Reply("ben", 3, sent["ben"])])
    assert_close(after._replace(key=()), alone._replace(key=()), tolerance=0)
    assert record.replied == ("ben",) and record.tasks == 4


def test_below_quorum_nothing_changes(server):
    learner, state, sent = server
    after, record = server_round(learner, state, 0, list(SPLIT), [Reply("anna", 0, sent["anna"])], quorum=2)
    assert after is state
    assert not record.stepped and record.tasks == 0 and record.missing == ("ben", "cleo")


def test_clients_are_sampled_by_the_key_and_not_by_how_they_are_listed():
    clients = [f"client-{number}" for number in range(20)]
    chosen = sampled(KEY, clients, 5)
    assert len(set(chosen)) == 5 and set(chosen) <= set(clients)
    assert sampled(KEY, reversed(clients), 5) == chosen != sampled(jax.random.key(6), clients, 5)
    assert sampled(KEY, clients[:3], 5) == sorted(clients[:3]) and sampled(KEY, [], 5) == []
