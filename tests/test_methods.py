"""Every row of the table has a meta-gradient to be held against: PyTorch's, an exact evidence's, or one written out by hand.

The hand-written ones are loops in plain Python over `jax.grad`, without families, inferences, cells or rules. Random draws are
replaced by fixed ones where inference takes a `draw`; the last expectation averages over `family.samples`.
"""

import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import multivariate_normal

from metaprior import methods
from metaprior.families import Delta, MeanField, Particles, mean_field
from metaprior.inference.platipus import PlatipusExtra
from metaprior.last_layer import HeadParams, LastLayer
from metaprior.likelihoods import gaussian
from metaprior.meta import meta_learner
from metaprior.methods import METHODS
from metaprior.types import Data, Episode, Prior

pytestmark = pytest.mark.usefixtures("quick_compile")

TORCH = Path(__file__).parent / "reference" / "torch_gradients.npz"
KEY = jax.random.key(11)
TEMPERATURE = 0.4
RATE = 0.03
map_ = jax.tree.map
close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)


def net(params, x):
    return jnp.tanh(x @ params["w0"] + params["b0"][None]) @ params["w1"] + params["b1"][None]


def squared_error(apply=net, temperature=1.0):
    """A likelihood whose mean loss is the mean squared error, up to a constant."""
    return gaussian(apply, temperature=temperature)


def random_tree(seed, scale=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    shapes = {"w0": (1, 3), "b0": (3,), "w1": (3, 1), "b1": (1,)}
    return {name: jnp.asarray(shift + scale * rng.normal(size=shape)) for name, shape in shapes.items()}


def task():
    rng = np.random.default_rng(5)
    x = rng.uniform(-3, 3, size=(9, 1))
    y = 1.5 * np.sin(x + 0.7)
    return Episode(*(Data(jnp.asarray(x[part]), jnp.asarray(y[part])) for part in (slice(0, 5), slice(5, 9))))


def joined(episode):
    return map_(lambda a, b: jnp.concatenate([a, b]), *episode)


def diagonal_prior():
    return Prior(MeanField(random_tree(1, 0.5), random_tree(2, 0.3, shift=-1.0)))


def mean_squared_error(params, data):
    return jnp.square(net(params, data.x) - data.y).mean()


def nats(params, data, temperature=TEMPERATURE):
    """The tempered log-likelihood, log p(data | θ) / T, up to a constant."""
    return -jnp.square(net(params, data.x) - data.y).sum() / temperature


def descend(params, data, steps, rate: float | jax.Array = RATE):
    for _ in range(steps):
        params = map_(lambda p, g: p - rate * g, params, jax.grad(mean_squared_error)(params, data))
    return params


def normal_kl(q, p):
    """KL of two factorised normals, all weights in one row."""
    m, s, mu, sigma = (ravel_pytree(tree)[0] for tree in (*q, *p))
    return (sigma - s + (jnp.exp(2 * s) + (m - mu) ** 2) / (2 * jnp.exp(2 * sigma)) - 0.5).sum()


def ours(method, prior, episode=None, likelihood=None):
    """The meta-gradient of one task, by the package."""
    likelihood = likelihood or squared_error(temperature=TEMPERATURE)
    learner = meta_learner(method._replace(temperature=likelihood.temperature), likelihood)
    return jax.jit(lambda prior: learner.gradient(KEY, prior, (), episode or task())[0])(prior)


def by_hand(objective, prior):
    return jax.jit(jax.grad(objective))(prior)


def assert_same(ours, reference, **tolerance):
    map_(partial(close, **tolerance), ours, reference)


# -- PyTorch ---------------------------------------------------------------------------------------


def relu_net(params, x):
    for i in range(3):
        x = x @ params[f"w{i}"] + params[f"b{i}"][None]
        x = jnp.maximum(x, 0) if i < 2 else x
    return x


def against_torch(name, scale):
    """Per task and in the mean, for one and three steps; `scale` turns a gradient of a mean loss into ours."""
    recorded = np.load(TORCH)
    weights = {key: jnp.asarray(recorded[key]) for key in ("w0", "b0", "w1", "b1", "w2", "b2")}
    data = [Data(*(jnp.asarray(recorded[f"{part}_{axis}"]) for axis in "xy")) for part in ("support", "query")]
    for steps in (1, 3):
        second = steps if name == "reptile" else 0
        method = methods.get(name, steps=(steps, second), rate=float(recorded["lr"]))
        learner = meta_learner(method, squared_error(relu_net))
        per_task = jax.jit(jax.vmap(learner.gradient, in_axes=(None, None, None, 0)))
        grads = per_task(KEY, Prior(Delta(weights)), (), Episode(*data))[0].dist.mean
        for key in weights:
            close(grads[key], scale * recorded[f"task_{name}_k{steps}_{key}"])
            close(grads[key].mean(axis=0), scale * recorded[f"{name}_k{steps}_{key}"])


NUM_QUERY = 5  # points: our score is in nats, theirs a mean loss


# -- exact evidence --------------------------------------------------------------------------------


def last_layer_row():
    """gem-bml+last-layer: ∇ log p(D_val | D_tr) in features, head mean and head covariance; two outputs."""
    noise, rng = 0.3, np.random.default_rng(8)
    weights = {"w": jnp.asarray(rng.normal(size=(1, 3))), "b": jnp.asarray(rng.normal(size=3))}
    features = lambda weights, x: jnp.tanh(x @ weights["w"] + weights["b"][None])
    y = lambda data: jnp.concatenate([data.y, data.y**2 - 1], axis=1)
    episode = Episode(*(data._replace(y=y(data)) for data in task()))
    tril = jnp.asarray(np.tril(0.3 * rng.normal(size=(3, 3))))
    prior = Prior(LastLayer(weights, jnp.asarray(rng.normal(size=(3, 2))), tril))

    def log_evidence(prior, data):
        dist = prior.dist
        phi = features(dist.features, data.x)
        root = jnp.tril(dist.tril, -1) + jnp.diag(jnp.exp(jnp.diag(dist.tril)))
        spread = phi @ root @ root.T @ phi.T + TEMPERATURE * noise**2 * jnp.eye(phi.shape[0])
        per_output = [multivariate_normal.logpdf(data.y[:, o], phi @ dist.mean[:, o], spread) for o in range(2)]
        return jnp.stack(per_output).sum()

    likelihood = gaussian(
        lambda params, x: features(params.features, x) @ params.head, noise_std=noise, temperature=TEMPERATURE
    )
    method = methods.get("gem-bml+last-layer", options={"noise_std": noise})
    reference = by_hand(lambda p: log_evidence(p, joined(episode)) - log_evidence(p, episode.support), prior)
    assert_same(ours(method, prior, episode, likelihood), reference)


# -- by hand ---------------------------------------------------------------------------------------


def gem_row(name):
    """Two stages of per-weight steps tied to the widths; (m − μ)/σ², and the cross term for the widths."""
    prior, std, (k1, k2) = diagonal_prior(), 0.5, (3, 2)
    method = methods.get(name, steps=(k1, k2), draw_steps=False, rate=RATE, std=std)
    second_data = task().query if method.second_stage == "sequential" else joined(task())
    mu, sigma = prior.dist.mean, map_(jnp.exp, prior.dist.log_std)

    @jax.jit
    def reference():
        rates = map_(lambda s: RATE * (s / std) ** 2, sigma)
        m1 = mu
        for _ in range(k1):
            m1 = map_(lambda m, a, g: m - a * g, m1, rates, jax.grad(mean_squared_error)(m1, task().support))
        m2 = mu if method.second_stage == "joint-from-prior" else m1
        for _ in range(k2):
            m2 = map_(lambda m, a, g: m - a * g, m2, rates, jax.grad(mean_squared_error)(m2, second_data))
        start = m1 if name == "gem-bml+" else mu
        means = map_(lambda b, a, s: (b - a) / s**2, m2, start, sigma)
        return means, map_(lambda b, a, mu, s: 2 * (b - a) * (a - mu) / s**2, m2, m1, mu, sigma)

    assert_same(ours(method, prior).dist, MeanField(*reference()))


FIXED_NOISE = random_tree(3)


def fixed_draw(key, q):
    del key
    return map_(lambda m, s, noise: m + jnp.exp(s) * noise, q.mean, q.log_std, FIXED_NOISE)


def variational(q, prior, data, steps):
    """`steps` of gradient descent on mean loss + (T/n)·KL with one fixed reparameterised draw."""
    weight = TEMPERATURE / data.x.shape[0]
    objective = lambda q: mean_squared_error(fixed_draw(None, q), data) + weight * normal_kl(q, prior)
    for _ in range(steps):
        q = map_(lambda leaf, g: leaf - RATE * g, q, jax.grad(objective)(q))
    return q


def expected_nats(key, q, data, num_samples):
    draws = mean_field().samples(key, q, num_samples)
    return jax.vmap(lambda params: nats(params, data))(draws).mean()


def vi_row(name, objective, steps):
    """A row with a mean-field posterior: `objective(prior, episode, key of the score)` written out."""
    options = {"draw": fixed_draw, "num_samples": 1}
    method = methods.get(name, steps=steps, rate=RATE, num_samples=2, widths="exact", options=options)
    reference = by_hand(lambda prior: objective(prior.dist, task(), jax.random.split(KEY)[1]), diagonal_prior())
    assert_same(ours(method, diagonal_prior()), reference)


def kl_chaser(prior, episode, key):
    q1 = variational(prior, prior, episode.support, 2)
    q2 = jax.lax.stop_gradient(variational(q1, q1, episode.query, 3))
    return -normal_kl(q2, q1)


def amortized(prior, episode, key, scored):
    q1 = variational(prior, prior, episode.support, 2)
    return expected_nats(key, q1, scored(episode), 2) - normal_kl(q1, prior)


def elbo_conditional(prior, episode, key):
    q1 = variational(prior, prior, episode.support, 2)
    q2 = variational(q1, q1, episode.query, 3)
    return expected_nats(key, q2, episode.query, 2) - normal_kl(q2, q1)


def elbo_difference(prior, episode, key):
    key1, key2 = jax.random.split(key)
    q1 = variational(prior, prior, episode.support, 2)
    q2 = variational(prior, prior, joined(episode), 3)
    whole = expected_nats(key2, q2, joined(episode), 2) - normal_kl(q2, prior)
    return whole - expected_nats(key1, q1, episode.support, 2) + normal_kl(q1, prior)


def pmaml_row():
    """Finn et al. (2018), Algorithm 1: a draw around μ − γ_q ∇L_val, adapted to the support, scored on the query."""
    extra = PlatipusExtra(random_tree(4, 0.2, shift=-1.5), jnp.array(-3.0), jnp.array(-2.5))
    prior, steps = diagonal_prior()._replace(extra=extra), 3

    def objective(prior):
        dist, extra = prior.dist, prior.extra
        shifted = lambda data, log_rate: descend(dist.mean, data, 1, jnp.exp(log_rate))
        p = MeanField(shifted(task().support, extra.log_rate_support), dist.log_std)
        q = MeanField(shifted(task().query, extra.log_rate_query), extra.query_log_std)
        draw = map_(lambda leaf: leaf[0], mean_field().samples(jax.random.split(KEY)[1], q, 1))
        return nats(descend(draw, task().support, steps), task().query) - normal_kl(q, p)

    method = methods.get("pmaml", steps=(steps, 0), rate=RATE, widths="exact")
    assert_same(ours(method, prior), by_hand(objective, prior))


def imaml_row():
    """Λ (Λ + H)⁻¹ ∇ log p(query), by a dense solve at the same point."""
    prior, steps = diagonal_prior(), 4
    method = methods.get("imaml", steps=(steps, 0), rate=RATE, widths="exact", options={"solver_steps": 60})
    found = ours(method, prior).dist

    @jax.jit
    def reference():
        mu, unravel = ravel_pytree(prior.dist.mean)
        precision = jnp.exp(-2 * ravel_pytree(prior.dist.log_std)[0])
        num_points = task().support.x.shape[0]
        objective = lambda m: -nats(unravel(m), task().support) + 0.5 * (precision * (m - mu) ** 2).sum()
        theta = mu
        for _ in range(steps):
            theta = theta - RATE * TEMPERATURE / num_points * jax.grad(objective)(theta)
        gradient = jax.grad(lambda m: nats(unravel(m), task().query))(theta)
        solution = jnp.linalg.solve(jax.hessian(objective)(theta), gradient)
        # In log σ the right-hand side of the implicit equation is Λ(θ − μ)·(−2).
        return unravel(precision * solution), unravel(2 * precision * (theta - mu) * solution)

    assert_same(found, MeanField(*reference()), rtol=1e-7)


def stein_step(particles, data, rate=RATE):
    """SVGD written as a double sum over particles, the bandwidth held fixed."""
    num = particles.shape[0]
    unravel = ravel_pytree(random_tree(0))[1]
    num_eff = data.x.shape[0] / TEMPERATURE
    score = jax.grad(lambda flat: nats(unravel(flat), data))
    squared = jnp.stack([jnp.stack([((a - b) ** 2).sum() for a in particles]) for b in particles])
    bandwidth = jax.lax.stop_gradient(jnp.median(squared) / math.log(num))
    kernel = lambda a, b: jnp.exp(-((a - b) ** 2).sum() / bandwidth)
    moved = []
    for theta in particles:
        pairs = [kernel(other, theta) * score(other) + jax.grad(kernel)(other, theta) for other in particles]
        moved.append(theta + rate / num_eff * sum(pairs) / num)
    return jnp.stack(moved)


def particle_prior(num):
    return Prior(Particles(map_(lambda *leaves: jnp.stack(leaves), *(random_tree(seed, 0.5) for seed in range(num)))))


def particle_row(name, objective, steps, num=3):
    """Rows with particles, on a matrix of them."""
    prior = particle_prior(num)
    method = methods.get(name, steps=steps, rate=RATE, num_particles=num)
    flat = jax.vmap(lambda params: ravel_pytree(params)[0])
    reference = by_hand(objective, flat(prior.dist.params))
    assert_same(flat(ours(method, prior).dist.params), reference, atol=1e-9)


def chaser(particles):
    follower = particles
    for _ in range(2):
        follower = stein_step(follower, task().support)
    leader = follower
    for _ in range(2):
        leader = stein_step(leader, joined(task()))
    return -0.5 * ((jax.lax.stop_gradient(leader) - follower) ** 2).sum()


def log_mean_likelihood(particles):
    for _ in range(2):
        particles = stein_step(particles, task().support)
    unravel = ravel_pytree(random_tree(0))[1]
    likelihoods = jnp.stack([jnp.exp(nats(unravel(theta), task().query)) for theta in particles])
    return jnp.log(likelihoods.mean())


def one_particle_is_maml():
    weights = random_tree(6, 0.5)
    single = methods.get("bmaml-evidence", steps=(3, 0), rate=RATE, num_particles=1)
    maml = ours(methods.get("maml", steps=(3, 0), rate=RATE), Prior(Delta(weights))).dist.mean
    found = ours(single, Prior(Particles(map_(lambda leaf: leaf[None], weights)))).dist.params
    map_(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), map_(lambda leaf: leaf[0], found), maml)


def llama_row():
    """Laplace: log p(D_val | θ_K) − ½ log det(Λ + GGN) + ½ log det Λ, dense, by central differences in μ and log σ."""
    prior, steps = diagonal_prior(), 2
    flat, unravel = ravel_pytree(prior)

    @jax.jit
    def objective(flat):
        dist = unravel(flat).dist
        theta, restore = ravel_pytree(descend(dist.mean, task().support, steps))
        jacobian = jax.jacfwd(lambda t: net(restore(t), task().query.x)[:, 0])(theta)
        precision = jnp.diag(jnp.exp(-2 * ravel_pytree(dist.log_std)[0]))
        curvature = 2 / TEMPERATURE * jacobian.T @ jacobian
        occam = 0.5 * (jnp.linalg.slogdet(precision)[1] - jnp.linalg.slogdet(precision + curvature)[1])
        return nats(restore(theta), task().query) + occam

    width = 1e-4
    directions = width * jnp.eye(flat.size)
    f = jax.jit(jax.vmap(objective))
    one, two = (f(flat[None] + n * directions) - f(flat[None] - n * directions) for n in (1, 2))
    reference = (8 * one - two) / (12 * width)
    method = methods.get("llama", steps=(steps, 0), rate=RATE, widths="exact")
    found = ravel_pytree(ours(method, prior))[0]
    np.testing.assert_allclose(found, reference, rtol=1e-7, atol=1e-8)


def pretrain_row():
    weights = random_tree(6, 0.5)
    loss = lambda params: mean_squared_error(params, joined(task()))
    scale = -joined(task()).x.shape[0] / TEMPERATURE
    reference = map_(lambda g: scale * g, by_hand(loss, weights))
    assert_same(ours(methods.get("pretrain"), Prior(Delta(weights))).dist.mean, reference)


REFERENCES = {
    "gem-bml": [partial(gem_row, "gem-bml")],
    "gem-bml+": [partial(gem_row, "gem-bml+")],
    "gem-bml+last-layer": [last_layer_row],
    "kl-chaser": [partial(vi_row, "kl-chaser", kl_chaser, (2, 3))],
    "amortized-bml": [partial(vi_row, "amortized-bml", partial(amortized, scored=joined), (2, 0))],
    "amortized-bml-query": [
        partial(vi_row, "amortized-bml-query", partial(amortized, scored=lambda e: e.query), (2, 0))
    ],
    "elbo-conditional": [partial(vi_row, "elbo-conditional", elbo_conditional, (2, 3))],
    "elbo-difference": [partial(vi_row, "elbo-difference", elbo_difference, (2, 3))],
    "pmaml": [pmaml_row],
    "maml": [partial(against_torch, "maml", -NUM_QUERY)],
    "fomaml": [partial(against_torch, "fomaml", -NUM_QUERY)],
    "imaml": [imaml_row],
    "reptile": [partial(against_torch, "reptile", 1.0)],
    "bmaml": [partial(particle_row, "bmaml", chaser, (2, 2))],
    "bmaml-evidence": [one_particle_is_maml, partial(particle_row, "bmaml-evidence", log_mean_likelihood, (2, 0))],
    "llama": [llama_row],
    "pretrain": [pretrain_row],
}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_meta_gradient_against_a_reference(method):
    assert method.name in REFERENCES, (
        f"the row {method.name!r} has no reference gradient: write one, by hand or from an exact evidence, "
        "and add it to REFERENCES"
    )
    for reference in REFERENCES[method.name]:
        reference()


def test_no_reference_without_a_row():
    assert set(REFERENCES) <= {method.name for method in METHODS}


# -- the table itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_row_is_valid_and_says_what_it_is(method):
    methods.validate(method)
    assert methods.get(method.name) == method
    assert method.summary
    for choice in (method.posterior, method.prior):
        assert methods.family(choice, method).name == choice


def test_names_are_unique():
    names = [method.name for method in METHODS]
    assert len(set(names)) == len(names)


def test_get_changes_fields_without_touching_the_table():
    changed = methods.get("maml", steps=(7, 0), rate=0.5)
    assert (changed.steps, changed.rate, changed.name) == ((7, 0), 0.5, "maml")
    assert methods.get("maml").steps != (7, 0)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("mamll", {}, "did you mean maml"),
        ("nonsense", {}, "choose from gem-bml"),
        ("maml", {"stpes": (1, 0)}, "no field stpes.*steps"),
        ("maml", {"row": "gme"}, "unknown row 'gme': did you mean gem"),
        ("maml", {"column": "x"}, "unknown column 'x'.*choose from joint"),
        ("maml", {"second_stage": "sequentiall"}, "did you mean sequential"),
        ("maml", {"inference": "gradients"}, "did you mean gradient"),
        ("maml", {"prior": "Delta"}, "unknown prior family 'Delta'"),
        ("maml", {"posterior": "deltas"}, "did you mean delta"),
        ("maml", {"widths": "debias"}, "did you mean debiased"),
        ("maml", {"rates": "ties"}, "did you mean tied"),
        ("maml", {"scores": "some"}, "choose from all, query"),
        ("maml", {"std": 0.0}, "width of a prior must be"),
        ("maml", {"steps": (-1, 0)}, "steps cannot be negative"),
        ("maml", {"temperature": 0.0}, "temperature must be above zero"),
        ("maml", {"meta_batch": 0}, "meta batch must be above zero"),
        ("maml", {"rate": math.nan}, "rate must be above zero"),
        ("maml", {"posterior": "particles"}, "gradient cannot infer a particles posterior.*svgd"),
        ("maml", {"rates": "tied"}, "gradient has no rates to learn"),
        ("gem-bml", {"prior": "delta"}, "mean-field prior"),
        ("gem-bml", {"second_stage": "none"}, "needs a second stage"),
        ("maml", {"posterior": "mean-field"}, "prior"),
        ("kl-chaser", {"prior": "full"}, "prior"),
        ("gem-bml+last-layer", {"prior": "mean-field"}, "prior"),
        ("bmaml", {"prior": "mean-field"}, "prior"),
        ("gem-bml", {"prior": "full", "rates": "none"}, "widths of a mean-field prior"),
        ("gem-bml+last-layer", {"widths": "debiased"}, "widths of a mean-field prior"),
        ("pmaml", {"widths": "debiased"}, "widths of a mean-field prior"),
        ("pmaml", {"prior": "particles"}, "choose a prior of mean-field"),
        ("maml", {"steps": 5}, "steps is a pair"),
        ("maml", {"clip": 0.0}, "clip.*above zero"),
        ("llama", {"posterior": "mean-field"}, "evidence"),
        ("gem-bml", {"rates": "exact"}, "held fixed"),
        ("maml", {"rate": math.inf}, "rate must be above zero and finite"),
        ("gem-bml+", {"optimizer": "adam"}, "preconditioned inference takes steps of its own"),
        ("imaml", {"optimizer": "shared-adam"}, "implicit inference has no optimiser to share"),
        ("gem-bml+", {"estimator": "flipout"}, "preconditioned inference does not sample by flipout"),
    ],
)
def test_what_has_no_meaning_is_refused_in_words(name, changes, words):
    with pytest.raises(ValueError, match=words):
        methods.get(name, **changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gem-bml", {"posterior": "full", "inference": "laplace", "widths": "exact", "rates": "none"}),
        (
            "gem-bml+",
            {"prior": "full", "posterior": "full", "inference": "laplace", "widths": "exact", "rates": "none"},
        ),
        ("gem-bml", {"posterior": "mean-field"}),
        ("gem-bml", {"rates": "debiased", "widths": "frozen"}),
        ("gem-bml", {"prior": "delta", "rates": "debiased"}),
        ("elbo-conditional", {"inference": "natural_vi"}),
        ("maml", {"prior": "mean-field", "options": {}}),
        ("maml", {"inference": "preconditioned", "rates": "exact", "options": {}}),
        ("imaml", {"prior": "delta"}),
    ],
)
def test_other_combinations_are_legal(name, changes):
    methods.get(name, **changes)


def test_head_params_name_the_posteriors_mean():
    """The last layer's θ is a pair of feature weights and a head, also where only the posterior's mean is asked for."""
    q = LastLayer({"w": jnp.ones(2)}, jnp.ones((3, 1)), jnp.zeros((3, 3)))
    mean = methods.family("last-layer", methods.get("gem-bml+last-layer")).mean(q)
    assert isinstance(mean, HeadParams) and mean.head is q.mean
