"""What every inference shares: the loop, its trajectory, empty tasks, mini-batches; and an inference of one's own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import KEY, adapted, close, flat, network, predict, silent_data, weights, world

from metaprior import families, likelihoods, matrix
from metaprior.families import Delta, MeanField
from metaprior.inference import INFERENCES, infer, trajectory
from metaprior.inference.base import mean_loss, mini_batch
from metaprior.inference.platipus import platipus_extra
from metaprior.last_layer import HeadParams, last_layer
from metaprior.types import Data, Inference, Prior

FAMILIES = {
    "delta": families.delta(),
    "mean-field": families.mean_field(),
    "full": families.full(),
    "particles": families.particles(3),
}
PAIRS = [(name, kind) for name, maker in INFERENCES.items() for kind in maker.families if kind in FAMILIES]
every_inference = pytest.mark.parametrize(("name", "kind"), PAIRS)
KNOWN = world(shots=4)


def setting(name, kind, dtype=jnp.float64):
    """An inference of that name, its family, and a prior it accepts; few enough weights for all of them."""
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    prior_kind = "particles" if name == "svgd" else "full" if kind == "full" else "mean-field"
    dist = cast(FAMILIES[prior_kind].init(KEY, weights(KNOWN.mean), 0.5))
    extra = cast(platipus_extra(weights(KNOWN.mean), 0.5, 0.01)) if name == "platipus" else ()
    return INFERENCES[name].make(KNOWN.likelihood, FAMILIES[kind]), FAMILIES[kind], Prior(dist, extra=extra)


def start_of(name, family, prior):
    return prior.dist if name == "platipus" else family.start(prior.dist)  # platipus draws its own start


@every_inference
def test_trajectory_ends_where_inference_does(name, kind):
    """In single precision, which must stay single while double is allowed."""
    inference, family, prior = setting(name, kind, jnp.float32)
    source = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), KNOWN.episode.support)
    both = lambda *args: (
        trajectory(inference, *args, steps=2),
        [infer(inference, *args, steps=steps)[0] for steps in (0, 2)],
    )
    path, ends = jax.jit(both)(KEY, prior, start_of(name, family, prior), source)
    for step, end in zip((0, 2), ends, strict=True):
        close(jax.tree.map(lambda leaf, step=step: leaf[step], path), end, 1e-6)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(path)} == {3}
    assert {leaf.dtype for leaf in jax.tree.leaves((path, ends))} == {jnp.dtype(jnp.float32)}
    assert inference.check(prior, source) is None


@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if pair[0] != "platipus"])  # see its own tests
def test_no_data_leave_the_prior(name, kind):
    """A task without points says nothing, however many steps are asked for."""
    inference, family, prior = setting(name, kind)
    close(adapted(inference, family, prior, silent_data(0, 3), 5), family.start(prior.dist), 1e-12)


def test_single_precision_stays_single_in_the_last_layer():
    apply = lambda params, x: jnp.tanh(x @ params.features) @ params.head
    likelihood = likelihoods.gaussian(apply, noise_std=0.5)
    params = HeadParams(jnp.ones((3, 2), jnp.float32), jnp.ones((2, 1), jnp.float32))
    prior = Prior(last_layer().init(KEY, params, 1.0))
    source = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), KNOWN.episode.support)
    inference = INFERENCES["conjugate"].make(likelihood, last_layer(), noise_std=0.5)
    q = adapted(inference, last_layer(), prior, source, 1)
    assert {leaf.dtype for leaf in jax.tree.leaves(q)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("name", ["gradient", "natural_vi"])
def test_tasks_at_once_are_tasks_alone(name):
    """Mapped over tasks with a key each changes nothing."""
    inference, family, prior = setting(name, "mean-field")
    one = lambda key, source: infer(inference, key, prior, family.start(prior.dist), source, 2)[0]
    tasks = [world(seed, shots=4).episode.support for seed in (1, 2)]
    keys = jax.random.split(KEY, 2)
    together = jax.jit(jax.vmap(one))(keys, jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks))
    alone = jax.jit(one)
    for i in range(2):
        close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone(keys[i], tasks[i]), 1e-12)


# Mini-batches


def test_the_mean_over_all_mini_batches_is_the_whole():
    """Gradients of the mean loss on every one of the C(5, 2) batches average to the gradient on all five points."""
    net = network(shots=5)
    likelihood, data = likelihoods.gaussian(net.apply), net.episode.support
    slope = lambda rows: jax.grad(lambda p: mean_loss(likelihood, p, Data(data.x[rows], data.y[rows])))(net.params)
    subsets = jnp.asarray(list(itertools.combinations(range(5), 2)))
    every = jax.jit(jax.vmap(slope))(subsets)
    close(jax.tree.map(lambda leaf: leaf.mean(axis=0), every), jax.jit(slope)(jnp.arange(5)), 1e-12)


def test_mini_batches_are_uniform_without_replacement():
    data = Data(jnp.arange(5.0)[:, None], 10 * jnp.arange(5.0)[:, None])
    draws = jax.jit(jax.vmap(lambda key: mini_batch(key, data, 2)))(jax.random.split(KEY, 4000))
    rows = np.sort(np.asarray(draws.x)[:, :, 0].astype(int), axis=1)
    close(draws.y, 10 * draws.x, 0)  # inputs keep their targets
    assert (rows[:, 0] < rows[:, 1]).all()
    counts = np.bincount(rows[:, 0] * 5 + rows[:, 1], minlength=25)
    assert (counts > 0).sum() == 10
    assert (np.abs(counts[counts > 0] - 400) < 4 * np.sqrt(4000 * 0.1 * 0.9)).all()


@pytest.mark.parametrize("size", [None, 4, 9])
def test_batches_of_all_points_are_the_data(size):
    assert mini_batch(KEY, KNOWN.episode.support, size) is KNOWN.episode.support


@pytest.mark.parametrize("name", ["gradient", "preconditioned", "natural_vi", "svgd"])
@pytest.mark.parametrize("size", [0, -1])
def test_empty_batches_are_refused(name, size):
    family = FAMILIES[INFERENCES[name].families[-1]]
    with pytest.raises(ValueError, match=f"at least one point, got batch_size={size}: pass None for all points"):
        INFERENCES[name].make(KNOWN.likelihood, family, batch_size=size)


# An inference of one's own


def descent_until(tolerance):
    """Gradient descent on the per-point loss until the gradient is small: a loop that nothing can be propagated through."""
    likelihood = likelihoods.gaussian(predict)

    def step(key, state, prior, source):
        slope = jax.grad(lambda p: mean_loss(likelihood, p, source))
        far = lambda params: jnp.linalg.norm(flat(slope(params))) > tolerance
        once = lambda params: jax.tree.map(lambda p, g: p - 0.1 * g, params, slope(params))
        return jax.lax.while_loop(far, once, state)

    return Inference(
        name="descent",
        init=lambda key, prior, start, source, memory: start.mean,
        step=step,
        posterior=lambda state, prior, source: Delta(state),
        check=lambda prior, source: None,
    )


def test_an_inference_with_a_while_loop_works():
    """Without a pull it ends at least squares."""
    data, family = KNOWN.all_data, families.delta()
    q = adapted(descent_until(1e-12), family, KNOWN.mean_field_prior, data, 1)
    close(flat(q.mean), np.linalg.lstsq(data.x, data.y[:, 0], rcond=None)[0], 1e-9)


def test_gradient_em_needs_no_derivative_of_it():
    """GEM+ through the while loop is (m2 − m1)/σ²; the elbo row cannot be differentiated and says so."""
    family, prior = families.delta(), KNOWN.mean_field_prior
    episode = KNOWN.episode._replace(query=KNOWN.all_data)
    cell = matrix.Cell(KNOWN.likelihood, family, descent_until(1e-12), "gem", "difference", "sequential", (1, 1))
    slope = jax.jit(jax.grad(lambda prior: matrix.score(cell, KEY, prior, episode)[0]))(prior)
    fits = [np.linalg.lstsq(data.x, data.y[:, 0], rcond=None)[0] for data in episode]
    close(flat(slope.dist.mean), (fits[1] - fits[0]) / np.diag(KNOWN.covariance), 1e-8)
    with pytest.raises(ValueError, match="while_loop"):
        jax.grad(lambda prior: matrix.score(cell._replace(row="elbo"), KEY, prior, episode)[0])(prior)


def test_mean_field_posteriors_come_from_full_priors():
    """Prior and posterior may differ in family."""
    inference = INFERENCES["gradient"].make(KNOWN.likelihood, FAMILIES["mean-field"], optimizer=0.01)
    q = adapted(inference, FAMILIES["mean-field"], KNOWN.full_prior, KNOWN.episode.support, 2)
    assert isinstance(q, MeanField)
