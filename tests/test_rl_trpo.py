"""Trust-region steps: Fisher products, conjugate gradients and directions against brute force and closed forms.

References are written in NumPy, for policies that are linear in their weights where a closed form is needed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import norm

from metaprior import families, likelihoods, methods
from metaprior.inference import INFERENCES
from metaprior.inference.trpo import TrpoState, policy_step
from metaprior.inference.trust_region import conjugate_gradients, fisher_product, trust_region_step
from metaprior.rl.likelihood import Steps, policy_likelihood, practice
from metaprior.rl.navigation import navigation
from metaprior.rl.policy import gaussian_policy, moments
from metaprior.types import Data, Prior

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(0)
ENVIRONMENT = navigation(horizon=5)
SMALL = gaussian_policy(2, 2, hidden=(3,))
LINEAR = gaussian_policy(2, 1, hidden=())


def likelihood_of(policy):
    return policy_likelihood(ENVIRONMENT, policy)


def steps_of(seed, policy, *, count=12, scale=1.0, actions=1) -> tuple[Steps, object]:
    """Random points, a third of which do not count, and random weights; actions are near what the policy would do."""
    rng = np.random.default_rng(seed)
    flat, unravel = ravel_pytree(policy.init(KEY))
    params = unravel(jnp.asarray(flat + 0.3 * rng.normal(size=flat.shape)))
    observations = rng.normal(size=(count, 2))
    mean, log_std = (np.asarray(x) for x in moments(policy.apply(params, jnp.asarray(observations))))
    acted = mean + np.exp(log_std) * rng.normal(size=(count, actions))
    counted = np.where(np.arange(count) % 3 == 2, 0.0, 1.5)
    weights = scale * rng.normal(size=count) * counted
    batch = Steps(*(jnp.asarray(x) for x in (observations, acted, weights, counted, np.zeros(count))))
    return batch, params


def mean_kl(policy, before, after, batch):
    """KL of normals in NumPy, over the points that count."""
    rows = [np.asarray(policy.apply(params, batch.observations)) for params in (before, after)]
    (m, s), (n, t) = ((row[:, : row.shape[1] // 2], row[:, row.shape[1] // 2 :]) for row in rows)
    each = (t - s + (np.exp(2 * s) + (m - n) ** 2) / (2 * np.exp(2 * t)) - 0.5).sum(axis=1)
    return each[np.asarray(batch.counted) > 0].mean()


def surrogate(policy, before, after, batch):
    """The mean of ratio × advantage over the points that count."""

    def logs(params):
        mean, log_std = (np.asarray(x) for x in moments(policy.apply(params, batch.observations)))
        return norm.logpdf(np.asarray(batch.actions), mean, np.exp(log_std)).sum(axis=1)

    ratio = np.exp(logs(after) - logs(before))
    return (ratio * np.asarray(batch.weights) / 1.5)[np.asarray(batch.counted) > 0].mean()


# The pieces


def test_fisher_products_are_those_of_the_whole_matrix():
    """F = E_o E_a ∇log π ∇log πᵀ by quadrature over actions (exact: the score is quadratic in them), over points that count."""
    batch, params = steps_of(0, SMALL, count=6, actions=2)
    flat, unravel = ravel_pytree(params)
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    noise = np.stack([x.ravel() for x in np.meshgrid(nodes, nodes)], axis=1)
    probability = np.outer(weights, weights).ravel()

    def log_pi(vector, observation, action):
        mean, log_std = moments(SMALL.apply(unravel(vector), observation[None]))
        return -(0.5 * jnp.square((action - mean[0]) / jnp.exp(log_std[0])) + log_std[0]).sum()

    mean, log_std = moments(SMALL.apply(params, batch.observations))
    actions = mean[:, None] + jnp.exp(log_std)[:, None] * noise[None]
    scores = jax.vmap(lambda o, many: jax.vmap(lambda a: jax.grad(log_pi)(flat, o, a))(many))(
        batch.observations, actions
    )
    share = np.asarray(batch.counted) / len(batch.counted)
    matrix = np.einsum("n,q,nqv,nqw->vw", share, probability, scores, scores)

    region = likelihood_of(SMALL).region
    assert region is not None
    product = jax.jit(
        lambda v: fisher_product(
            lambda p: SMALL.apply(p, batch.observations), lambda a, b: region.kl(a, b, batch).mean(), params, unravel(v)
        )
    )
    for direction in np.random.default_rng(1).normal(size=(3, flat.size)):
        np.testing.assert_allclose(ravel_pytree(product(direction))[0], matrix @ direction, rtol=1e-9, atol=1e-12)


def test_conjugate_gradients_solve():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(9, 9))
    matrix, target = root @ root.T + 0.5 * np.eye(9), rng.normal(size=9)
    solve = jax.jit(
        lambda target, steps: conjugate_gradients(lambda v: jnp.asarray(matrix) @ v, target, steps), static_argnums=1
    )
    reference = np.linalg.solve(matrix, target)
    np.testing.assert_allclose(solve(target, 30), reference, rtol=1e-7, atol=1e-9)
    errors = [x @ matrix @ x for x in (np.asarray(solve(target, steps)) - reference for steps in (1, 3, 6))]
    assert errors[0] > errors[1] > errors[2]  # in the norm of the matrix every step helps
    np.testing.assert_array_equal(solve(np.zeros(9), 30), 0.0)


def natural_direction(batch, params):
    """F⁻¹g of a policy N(w·o + b, σ²), whose Fisher matrix is blocks: E φφᵀ/σ², and 2 for log σ."""
    flat = np.asarray(ravel_pytree(params)[0])  # w, b, log σ
    phi = np.concatenate([np.asarray(batch.observations), np.ones((len(batch.counted), 1))], axis=1)
    residual, sigma = np.asarray(batch.actions)[:, 0] - phi @ flat[:3], np.exp(flat[3])
    counted, advantage = np.asarray(batch.counted), np.asarray(batch.weights)
    slope = np.append(-(phi.T @ (residual * advantage)) / sigma**2, -((residual**2 / sigma**2 - 1) * advantage).sum())
    fisher = np.zeros((4, 4))
    fisher[:3, :3], fisher[3, 3] = (phi.T * counted) @ phi / sigma**2, 2 * counted.sum()
    natural = np.linalg.solve(fisher, slope)
    return natural, natural @ slope / len(counted)


def test_the_direction_and_length_are_those_of_the_closed_form():
    """The step is c·√(2δ/gᵀF⁻¹g)·F⁻¹g, with c one of the powers of .8."""
    batch, params = steps_of(3, LINEAR, count=30)
    likelihood, bound = likelihood_of(LINEAR), 1e-3
    found = jax.jit(lambda p: policy_step(likelihood, p, batch, max_kl=bound, damping=0.0))(params)
    natural, decrease = natural_direction(batch, params)
    moved = np.asarray(ravel_pytree(params)[0] - ravel_pytree(found.params)[0])
    cut = moved / (np.sqrt(2 * bound / decrease) * natural)
    np.testing.assert_allclose(cut, cut[0], rtol=1e-6)
    tries = np.log(cut[0]) / np.log(0.8)
    assert abs(tries - round(tries)) < 1e-5 and 0 <= round(tries) < 15 and found.accepted


# What every step promises


def test_accepted_steps_gain_and_keep_their_bound_and_others_do_not_move():
    """Of 3 × 40 problems, from bounds that hardly matter to ones that only a cut-back step keeps."""
    likelihood, problems = likelihood_of(SMALL), [steps_of(seed, SMALL, actions=2, scale=3.0) for seed in range(40)]
    batches, starts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    step = lambda bound: jax.jit(jax.vmap(lambda b, p: policy_step(likelihood, p, b, max_kl=bound, max_tries=4)))
    shares, cut = [], False
    for bound in (1e-4, 0.05, 20.0):
        found = step(bound)(batches, starts)
        shares.append(float(found.accepted.mean()))
        for i, (batch, start) in enumerate(problems):
            one = jax.tree.map(lambda leaf, i=i: leaf[i], found)
            if not one.accepted:
                jax.tree.map(np.testing.assert_array_equal, one.params, start)
                assert one.gain == one.kl == 0
                continue
            gain = surrogate(SMALL, start, one.params, batch) - surrogate(SMALL, start, start, batch)
            far = mean_kl(SMALL, start, one.params, batch)
            assert gain > 0 and far <= bound * (1 + 1e-9)
            np.testing.assert_allclose([one.gain, one.kl], [gain, far], rtol=1e-6, atol=1e-12)
            cut = cut or far < 0.7 * bound
    assert shares[0] > 0.9 and shares[1] > 0.5 and cut and min(shares) < 1  # both ends occur


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [
        (lambda p: p, lambda before, o: 0.0 * o.sum()),  # nothing to gain
        (
            lambda p: p,
            lambda before, o: o.sum() + 1e12 * jnp.square(o - before).sum(),
        ),  # downhill only for a hair's breadth
        (lambda p: jnp.where(p == 0.25, p, jnp.nan), lambda before, o: o.sum()),  # not a number elsewhere
        (lambda p: p, lambda before, o: o.sum() * jnp.nan),
    ],
    ids=["flat", "sharp", "outputs-nan", "loss-nan"],
)
def test_a_step_that_finds_nothing_stays(outputs, loss):
    start = jnp.full(3, 0.25)
    far = lambda before, o: 0.5 * jnp.square(o - before).sum()
    found = jax.jit(lambda p: trust_region_step(p, outputs, loss, far))(start)
    np.testing.assert_array_equal(found.params, start)
    assert not found.accepted and found.gain == 0 and found.kl == 0


# As an inference


def test_inference_takes_the_step_of_the_rollouts_it_collects():
    likelihood, params = likelihood_of(SMALL), SMALL.init(KEY)
    inference = INFERENCES["trpo"].make(likelihood, families.delta(), rate=0.02)
    source = practice(ENVIRONMENT.draw(KEY), 6)

    @jax.jit
    def both(params):
        state = inference.step(KEY, TrpoState(params), Prior(families.Delta(params)), source)
        batch = likelihood.observe(jax.random.split(KEY, 3)[2], params, source)
        return state.mean, policy_step(likelihood, params, batch, max_kl=0.02), batch

    moved, found, batch = both(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), moved, found.params)
    assert found.accepted and 0.001 < mean_kl(SMALL, params, moved, batch) <= 0.02


def test_steps_are_held_fixed_in_a_meta_gradient():
    """θ ↦ θ + step has the derivative of θ; and given data may be stepped on too."""
    likelihood = likelihoods.gaussian(lambda w, x: x @ w, noise_std=1.0)
    rng = np.random.default_rng(0)
    data = Data(jnp.asarray(rng.normal(size=(5, 2))), jnp.asarray(rng.normal(size=(5, 1))))
    inference = INFERENCES["trpo"].make(likelihood, families.delta(), rate=0.5)
    once = lambda w: inference.step(KEY, TrpoState(w), Prior(families.Delta(w)), data).mean
    start = jnp.zeros((2, 1))
    np.testing.assert_allclose(jax.jit(jax.jacrev(once))(start).reshape(2, 2), np.eye(2))
    least_squares = np.linalg.lstsq(np.asarray(data.x), np.asarray(data.y), rcond=None)[0]
    ratio = np.asarray(once(start)) / least_squares  # natural steps of a linear model go straight to the least squares
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
    assert 0 < ratio[0, 0]


def test_what_cannot_be_is_refused_in_words():
    delta, known = families.delta(), likelihood_of(SMALL)
    for options, words in (
        ({"rate": 0.0}, "KL bound of a step must be above zero"),
        ({"solver_steps": 0}, "at least one solver step and one try, got solver_steps=0"),
        ({"shrink": 1.0}, "between 0 and 1, got shrink=1.0"),
        ({"damping": -1.0}, "damping cannot be negative"),
    ):
        with pytest.raises(ValueError, match=words):
            INFERENCES["trpo"].make(known, delta, **options)
    with pytest.raises(ValueError, match="no trust region: use gradient or preconditioned"):
        INFERENCES["trpo"].make(known._replace(region=None), delta)
    with pytest.raises(ValueError, match="steps of trpo are not differentiated: use gradient inference"):
        methods.get("maml", inference="trpo", options={})
    methods.get("fomaml", inference="trpo", options={"first_order": True})
    methods.get("pretrain", inference="trpo", options={})
