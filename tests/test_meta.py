"""Meta-learning as a program: batches, chunks, seeds, poisoned tasks, memory, and an optimiser of parts."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaprior import methods
from metaprior.families import MeanField, mean_field
from metaprior.last_layer import HeadParams
from metaprior.likelihoods import gaussian
from metaprior.meta import State, meta_learner, task_keys, trainer
from metaprior.methods import METHODS
from metaprior.optimizers import meta_optimizer, part_labels, scale_by_fisher
from metaprior.types import Data, Episode, Prior

KEY = jax.random.key(1)
map_ = jax.tree.map
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
every_row = pytest.mark.parametrize("name", [method.name for method in METHODS])


def net(params, x):
    """Layers without biases: few leaves compile fast."""
    for weight in params[:-1]:
        x = jnp.tanh(x @ weight)
    return x @ params[-1]


def head_net(params, x):
    return jnp.tanh(x @ params.features["w"]) @ params.head


def weights(*sizes):
    rng = np.random.default_rng(0)
    shapes = zip((1, *sizes), (*sizes, 1), strict=True)
    return tuple(jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0])) for shape in shapes)


def model(name):
    """What a row is to be trained on: a network, or features with a linear head."""
    if methods.get(name).posterior != "last-layer":
        return net, weights(8)
    rng = np.random.default_rng(0)
    return head_net, HeadParams({"w": jnp.asarray(rng.normal(size=(1, 4)))}, jnp.asarray(rng.normal(size=(4, 1))))


def sinusoids(num_tasks):
    """Four points to adapt to, three to judge by, of a sinusoid with its own amplitude and phase per task."""
    rng = np.random.default_rng(6)
    x = rng.uniform(-3, 3, size=(num_tasks, 7, 1))
    y = rng.uniform(0.5, 2, size=(num_tasks, 1, 1)) * np.sin(x + rng.uniform(0, 3, size=(num_tasks, 1, 1)))
    return Episode(*(Data(jnp.asarray(x[:, part]), jnp.asarray(y[:, part])) for part in (slice(0, 4), slice(4, 7))))


def draw(key):
    """One of twenty tasks: a single random number compiles fast."""
    chosen = jax.random.randint(key, (), 0, 20)
    return map_(lambda leaf: leaf[chosen], sinusoids(20))


def small(name, **changes):
    """A row with few steps and a moderate rate, whatever its defaults are tuned to."""
    steps = tuple(min(count, 2) for count in methods.get(name).steps)
    plain = {"steps": steps, "rate": 0.02, "num_particles": 3, "clip": None, "draw_steps": False, "temperature": 1.0}
    return methods.get(name, **(plain | changes))


@cache
def learner_of(name, **changes):
    """With plain gradient ascent, so that a step is 0.01 × the gradient."""
    return meta_learner(small(name, **changes), gaussian(model(name)[0]), optimizer=optax.sgd(0.01))


@cache
def compiled(part, name, **changes):
    """The jitted `step` or `gradient` of a learner, one for all tests."""
    return jax.jit(getattr(learner_of(name, **changes), part))


def begin(learner):
    return learner.init(KEY, model(learner.method.name)[1])


def assert_same(ours, reference):
    compare(close, ours, reference)


def identical(ours, reference):
    compare(np.testing.assert_array_equal, ours, reference)


def compare(same, ours, reference):
    assert jax.tree.structure(ours) == jax.tree.structure(reference)
    map_(lambda a, b: same(plain(a), plain(b)), ours, reference)


def plain(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


# -- every row is a program ------------------------------------------------------------------------


@every_row
def test_a_step_returns_what_it_was_given(name):
    """Same shapes, dtypes (single precision stays single) and no weak types: nothing is traced a second time."""
    learner = learner_of(name)
    params = map_(lambda leaf: leaf.astype(jnp.float32), model(name)[1])
    data = map_(lambda leaf: leaf.astype(jnp.float32), sinusoids(3))
    state = learner.init(KEY, params)
    after, info = jax.eval_shape(learner.step, state, jax.random.split(KEY, 3), data)
    describe = lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type)
    assert map_(describe, jax.eval_shape(lambda: state)) == map_(describe, after)
    assert info.query_nll.shape == info.elbo.shape == info.step_norm.shape == ()
    assert info.log_std.shape == info.log_rate.shape == (3,)


WITH_WIDTHS = ("mean-field", "full", "last-layer")


@every_row
def test_parts_are_labelled(name):
    """Means, widths and rates of every row's prior; each leaf under exactly the names that say so."""
    state = begin(learner_of(name))
    labels = part_labels(state.prior)
    widths = {field: getattr(labels.dist, field) for field in ("log_std", "tril") if hasattr(labels.dist, field)}
    rest = labels.dist._replace(**dict.fromkeys(widths))
    assert set(jax.tree.leaves(rest)) == {"mean"}
    assert set(jax.tree.leaves(widths)) == ({"width"} if methods.get(name).prior in WITH_WIDTHS else set())
    if methods.get(name).inference == "platipus":
        assert set(jax.tree.leaves(labels.extra.query_log_std)) == {"width"}
        assert labels.extra.log_rate_support == labels.extra.log_rate_query == "rate"


def test_free_rates_are_labelled():
    state = begin(learner_of("gem-bml", rates="debiased", widths="frozen"))
    assert set(jax.tree.leaves(part_labels(state.prior).log_rate)) == {"rate"}


# -- batches ---------------------------------------------------------------------------------------


def by_one(gradient, state, keys, batch):
    """Gradients task by task, without a batch axis."""
    each = [
        gradient(keys[i], state.prior, state.memory, map_(lambda leaf, i=i: leaf[i], batch)) for i in range(len(keys))
    ]
    return map_(lambda *leaves: jnp.stack(leaves), *each)


@pytest.mark.parametrize("random", [False, True])
def test_a_batch_is_the_mean_of_its_tasks(random):
    """Without and with random numbers, which belong to each task's key: here, how many steps it takes."""
    learner = learner_of("gem-bml+", draw_steps=random)
    state, keys, batch = begin(learner), jax.random.split(KEY, 4), sinusoids(4)
    grads, _, (query_nll, formula) = by_one(compiled("gradient", "gem-bml+", draw_steps=random), state, keys, batch)
    after, info = compiled("step", "gem-bml+", draw_steps=random)(state, keys, batch)
    assert_same(after.prior, map_(lambda p, g: p + 0.01 * g.mean(axis=0), state.prior, grads))
    close(info.query_nll, query_nll.mean())
    close(info.elbo, formula.mean())
    close(info.step_norm, optax.tree.norm(map_(jnp.subtract, after.prior, state.prior)))
    assert (int(info.left_out), bool(info.finite), int(after.iteration)) == (0, True, 1)


def test_the_order_of_tasks_is_immaterial():
    state, keys, batch = begin(learner_of("gem-bml+")), jax.random.split(KEY, 4), sinusoids(4)
    step, order = compiled("step", "gem-bml+", draw_steps=False), jnp.array([3, 0, 1, 2])
    assert_same(step(state, keys, batch), step(state, keys[order], map_(lambda leaf: leaf[order], batch)))


def test_each_task_is_clipped_before_the_mean():
    """A task whose gradient in the means is too long counts with its direction alone."""
    state, keys, batch = begin(learner_of("gem-bml+")), jax.random.split(KEY, 4), sinusoids(4)
    grads = by_one(compiled("gradient", "gem-bml+", draw_steps=False), state, keys, batch)[0]
    norms = np.asarray(jax.vmap(lambda g: optax.tree.norm(g.dist.mean))(grads))
    limit = float(np.median(norms))
    scale = np.minimum(1.0, limit / norms)
    expected = map_(lambda p, g: p + 0.01 * np.tensordot(scale, g, 1) / 4, state.prior, grads)
    after, _ = compiled("step", "gem-bml+", clip=limit)(state, keys, batch)
    assert_same(after.prior, expected)


# -- poisoned tasks --------------------------------------------------------------------------------


def poisoned(batch, which, where, value):
    """The batch with one number of one task replaced."""
    part = getattr(batch, where)
    return batch._replace(**{where: part._replace(y=part.y.at[which, 0, 0].set(value))})


@pytest.mark.parametrize("name", ["gem-bml+", "maml", "bmaml", "gem-bml+last-layer"])
def test_a_poisoned_task_is_left_out(name):
    """NaN or Inf, in the support or the query: the step is that of the other tasks alone."""
    state, keys, batch = begin(learner_of(name)), jax.random.split(KEY, 4), sinusoids(4)
    step, good = compiled("step", name), jnp.array([0, 2, 3])
    clean, clean_info = step(state, keys[good], map_(lambda leaf: leaf[good], batch))
    for where, value in (("support", jnp.nan), ("query", jnp.inf), ("query", jnp.nan), ("support", jnp.inf)):
        after, info = step(state, keys, poisoned(batch, 1, where, value))
        assert_same(after, clean)
        assert_same(info, clean_info._replace(left_out=jnp.array(1, jnp.int32)))


def test_where_every_task_is_poisoned_nothing_moves():
    """Not even by the momentum of an optimiser."""
    learner = meta_learner(small("pretrain"), gaussian(net), optimizer=meta_optimizer(0.1, warm_up=0))
    step, keys, batch = jax.jit(learner.step), jax.random.split(KEY, 4), sinusoids(4)
    state, info = step(begin(learner), keys, batch)
    assert info.step_norm > 0
    after, info = step(state, keys, map_(lambda leaf: leaf * jnp.nan, batch))
    identical(after._replace(iteration=state.iteration), state)
    assert int(after.iteration) == int(state.iteration) + 1
    assert (bool(info.finite), int(info.left_out), float(info.step_norm)) == (False, 4, 0.0)


def test_what_tasks_share_is_averaged_over_those_kept():
    """Reptile's Adam: every task starts from one second moment; a poisoned task leaves no trace in it."""
    options = {"pull": False, "optimizer": optax.adam(0.01, b1=0.0), "share_state": True}
    learner = meta_learner(
        methods.get("reptile", steps=(2, 1), options=options), gaussian(net), optimizer=optax.sgd(0.1)
    )
    state, keys, batch = begin(learner), jax.random.split(KEY, 3), sinusoids(3)
    step = jax.jit(learner.step)
    state, _ = step(state, keys, batch)
    memories = by_one(jax.jit(learner.gradient), state, keys, batch)[1]
    after, _ = step(state, keys, poisoned(batch, 2, "support", jnp.nan))
    kept = lambda leaf: leaf[0] if jnp.issubdtype(leaf.dtype, jnp.integer) else leaf[:2].mean(axis=0)
    assert_same(after.memory, map_(kept, memories))
    assert int(after.memory[0].count) == 6


# -- training --------------------------------------------------------------------------------------


@cache
def counted_training():
    """A trainer and the list of times its model was traced."""
    traces = []

    def counted(params, x):
        traces.append(x.shape)
        return net(params, x)

    learner = meta_learner(small("gem-bml+"), gaussian(counted), optimizer=meta_optimizer(0.01, warm_up=3))
    return learner, jax.jit(trainer(learner, draw, 3), static_argnums=1), traces


def test_a_second_call_does_not_trace_again():
    learner, train, traces = counted_training()
    num_compiled = getattr(train, "_cache_size")  # noqa: B009 - JAX counts its programs, but gives it no public name
    before = num_compiled()
    state, _ = train(begin(learner), 5)
    seen = len(traces)
    train(state, 5)
    assert seen > 0
    assert len(traces) == seen
    assert num_compiled() == before + 1


def test_chunks_are_immaterial():
    """5 + 5 iterations are 10, bit for bit, in state and in what is reported."""
    learner, train, _ = counted_training()
    whole, infos = train(begin(learner), 10)
    half, first = train(begin(learner), 5)
    both, second = train(half, 5)
    identical(both, whole)
    identical(map_(lambda a, b: jnp.concatenate([a, b]), first, second), infos)
    assert not np.array_equal(whole.prior.dist.mean[0], begin(learner).prior.dist.mean[0])


def test_seeds_are_one_more_axis():
    """Several runs at once equal the runs one by one, and differ from each other."""
    learner = learner_of("gem-bml+")
    train, keys = trainer(learner, draw, 2), jax.random.split(KEY, 3)
    run = lambda key: train(learner.init(key, weights(8)), 4)
    together, alone = jax.jit(jax.vmap(run))(keys), [jax.jit(run)(key) for key in keys]
    assert_same(together, map_(lambda *leaves: jnp.stack(leaves), *alone))
    assert not np.allclose(together[0].prior.dist.mean[0][0], together[0].prior.dist.mean[0][1])


def test_every_iteration_draws_anew():
    """With a prior that stands still, only the tasks drawn can change what is reported."""
    learner = meta_learner(small("pretrain"), gaussian(net), optimizer=optax.sgd(0.0))
    _, infos = jax.jit(trainer(learner, draw, 3), static_argnums=1)(begin(learner), 6)
    assert len(np.unique(infos.query_nll)) == 6


def test_tasks_have_keys_of_their_own():
    """A task's key depends on its number, not on how many tasks there are."""
    few, many = (jax.random.key_data(task_keys(KEY, count)) for count in (3, 5))
    np.testing.assert_array_equal(few, many[:3])
    assert len(np.unique(many, axis=0)) == 5


# -- memory ----------------------------------------------------------------------------------------


def temporary_bytes(name, steps):
    method = methods.get(name, steps=(steps, steps) if methods.get(name).steps[1] else (steps, 0))
    learner = meta_learner(method, gaussian(net), optimizer=optax.sgd(0.01))
    state = learner.init(KEY, weights(48, 48))
    compiled = jax.jit(learner.step).lower(state, jax.random.split(KEY, 5), sinusoids(5)).compile()
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def test_memory_of_gradient_em_does_not_grow_with_inner_steps():
    assert temporary_bytes("gem-bml+", 100) <= 1.02 * temporary_bytes("gem-bml+", 2)


def test_memory_of_maml_grows_linearly():
    few, half, all_of_them = (temporary_bytes("maml", steps) for steps in (2, 50, 100))
    assert all_of_them > 5 * few
    np.testing.assert_allclose((all_of_them - half) / (half - few), 50 / 48, rtol=0.05)


# -- the meta-optimiser ----------------------------------------------------------------------------


def moved(optimizer, prior, grads, iterations=1):
    state, start = optimizer.init(prior), prior
    for _ in range(iterations):
        updates, state = optimizer.update(grads, state, prior)
        prior = optax.apply_updates(prior, updates)
    return map_(jnp.subtract, prior, start)


def full_prior():
    prior = begin(learner_of("gem-bml", rates="debiased", widths="debiased")).prior
    grads = map_(lambda leaf: jnp.full_like(leaf, -2.0), prior)
    return prior, grads


def fill(value, tree):
    return map_(lambda leaf: jnp.full_like(leaf, value), tree)


def test_means_widths_and_rates_have_their_own_step_sizes():
    prior, grads = full_prior()
    optimizer = meta_optimizer(0.1, warm_up=0, width_scale=0.25, rate_scale=3.0, make=optax.sgd)
    found = moved(optimizer, prior, grads)
    assert_same(found.dist, MeanField(fill(0.2, prior.dist.mean), fill(0.05, prior.dist.log_std)))
    assert_same(found.log_rate, fill(0.6, prior.log_rate))


def test_each_part_is_clipped_by_itself():
    """A huge gradient of the widths does not shorten the step of the means."""
    prior, grads = full_prior()
    huge = grads._replace(dist=grads.dist._replace(log_std=fill(-1e6, prior.dist.log_std)))
    norm = float(optax.tree.norm(grads.dist.mean))
    found = moved(meta_optimizer(0.1, warm_up=0, width_scale=1.0, clip=norm, make=optax.sgd), prior, huge)
    assert_same(found.dist.mean, fill(0.2, prior.dist.mean))
    close(optax.tree.norm(found.dist.log_std), 0.1 * norm)


def test_warm_up_and_decay():
    """The rate rises over the first iterations and falls to zero along a cosine."""
    prior, grads = full_prior()
    size = lambda optimizer, n: float(moved(optimizer, prior, grads, n).dist.mean[1][0, 0])
    steps = partial(meta_optimizer, 0.1, make=optax.sgd)
    close = partial(np.testing.assert_allclose, rtol=1e-6)  # schedules are in single precision
    close(size(steps(warm_up=4), 5), 0.2 * (0 + 0.25 + 0.5 + 0.75 + 1))
    # one tenth of 20 iterations is the longest warm-up: 0, ½, and a cosine over the other 18
    decay = 0.5 * (1 + np.cos(np.pi * np.arange(18) / 18))
    close(size(steps(iterations=20), 20), 0.2 * (0 + 0.5 + decay.sum()))
    assert size(steps(iterations=20), 25) == pytest.approx(size(steps(iterations=20), 20))


@pytest.mark.parametrize("name", ["gem-bml+", "pmaml"])
def test_frozen_widths_do_not_move(name):
    """Under Adam, where any gradient at all would move them by a whole step."""
    learner = meta_learner(small(name, widths="frozen"), gaussian(net), optimizer=meta_optimizer(0.1, warm_up=0))
    state = begin(learner)
    after, _ = jax.jit(learner.step)(state, jax.random.split(KEY, 4), sinusoids(4))
    labels = jax.tree.leaves(part_labels(state.prior))
    pairs = list(zip(labels, *(jax.tree.leaves(s.prior) for s in (state, after)), strict=True))
    assert {label for label, *_ in pairs} >= {"mean", "width"}
    for label, old, new in pairs:
        assert np.array_equal(old, new) == (label == "width")


def test_default_optimizer_is_the_methods_own():
    """None means `meta_optimizer(method.meta_rate)`."""
    method, keys = methods.get("pretrain", meta_rate=0.5), jax.random.split(KEY, 4)
    ends = []
    for optimizer in (None, meta_optimizer(0.5)):
        learner = meta_learner(method, gaussian(net), optimizer=optimizer)
        step, state = jax.jit(learner.step), begin(learner)
        for _ in range(3):
            state, _ = step(state, keys, sinusoids(4))
        ends.append(state)
    identical(*ends)
    assert not np.array_equal(ends[0].prior.dist.mean[0], weights(8)[0])


# -- what else a learner does ----------------------------------------------------------------------


def test_adapt_gives_every_step():
    learner = learner_of("gem-bml+")
    state, support = begin(learner), draw(KEY).support
    path = jax.jit(lambda state: learner.adapt(KEY, state, support, 3))(state)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(path)} == {4}
    identical(map_(lambda leaf: leaf[0], path.mean), state.prior.dist.mean)

    @jax.jit
    def descend(mean):
        ends = [mean]
        for _ in range(3):
            slope = jax.grad(lambda p: jnp.square(net(p, support.x) - support.y).mean())(ends[-1])
            ends.append(map_(lambda p, g: p - 0.02 * g, ends[-1], slope))
        return map_(lambda *leaves: jnp.stack(leaves), *ends)

    assert_same(path.mean, descend(state.prior.dist.mean))
    with pytest.raises(ValueError, match="zero steps or more"):
        learner.adapt(KEY, state, support, -1)


def test_adapt_without_steps_or_data_is_the_prior():
    learner = learner_of("gem-bml+")
    state, support = begin(learner), draw(KEY).support
    nothing = map_(lambda leaf: leaf[:0], support)
    for path in (learner.adapt(KEY, state, support, 0), learner.adapt(KEY, state, nothing, 2)):
        expected = map_(lambda leaf, mu: jnp.broadcast_to(mu, leaf.shape), path.mean, state.prior.dist.mean)
        identical(path.mean, expected)


def test_check_speaks_before_training():
    support = draw(KEY).support
    stable, unstable = (meta_learner(small("gem-bml+", rate=rate), gaussian(net)) for rate in (1e-4, 100.0))
    assert stable.check(begin(stable), support) is None
    assert "Lower the inner rate" in str(unstable.check(begin(unstable), support))


def test_info_describes_widths_and_rates():
    learner = learner_of("gem-bml+", rates="debiased", widths="frozen", std=0.3)
    after, info = jax.jit(learner.step)(begin(learner), jax.random.split(KEY, 4), sinusoids(4))
    close(info.log_std, np.full(3, np.log(0.3)))
    rates = np.concatenate([np.ravel(leaf) for leaf in after.prior.log_rate])
    assert rates.std() > 0
    close(info.log_rate, [rates.mean(), rates.min(), rates.max()])
    _, info = compiled("step", "maml")(begin(learner_of("maml")), jax.random.split(KEY, 4), sinusoids(4))
    assert np.isnan(info.log_std).all() and np.isnan(info.log_rate).all()


def test_state_is_a_tree_of_arrays():
    state = meta_learner(small("pmaml"), gaussian(net)).init(KEY, weights(8))
    assert isinstance(state, State)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))


def test_natural_meta_step_is_reptiles_interpolation():
    """Fisher-scaled with a rate of one, GEM-BML moves the mean to the average of the tasks' posterior means."""
    dist = MeanField({"w": jnp.array([0.3, -1.0])}, {"w": jnp.log(jnp.array([0.5, 2.0]))})
    reached, spread = jnp.array([[1.0, 0.0], [2.0, 4.0]]), jnp.array([[0.1, 0.2], [0.3, 0.4]])

    def score(prior, m, s):  # −KL(q ‖ prior): its gradient is GEM-BML's
        return -mean_field().kl(MeanField({"w": m}, {"w": jnp.log(s)}), prior.dist)

    gradient = jax.grad(lambda prior: jax.vmap(lambda m, s: score(prior, m, s))(reached, spread).mean())(Prior(dist))
    natural: Any = scale_by_fisher()  # Optax's own types know no NamedTuples
    step, _ = natural.update(gradient, natural.init(Prior(dist)), Prior(dist))
    np.testing.assert_allclose(dist.mean["w"] + step.dist.mean["w"], reached.mean(axis=0), atol=1e-12)
    second_moment = (jnp.square(reached - dist.mean["w"][None]) + spread**2).mean(axis=0)
    em = 0.5 * (second_moment / jnp.exp(2 * dist.log_std["w"]) - 1)  # the M-step of σ², to first order in log σ
    np.testing.assert_allclose(step.dist.log_std["w"], em, atol=1e-12)
