r"""How much better an action was than usual: every definition between rewards and the weights of log-densities.

$$R_t = \sum_{s \ge t} \gamma^{s-t} r_s, \qquad \delta_t = r_t + \gamma V(o_{t+1}) - V(o_t), \qquad
A_t = \sum_{s \ge t} (\gamma\lambda)^{s-t} \delta_s$$

V is linear in features of the observation and of the time, fitted to the returns of the rollouts it is then used on, and zero
behind the last step of a trajectory. With λ = 1, A = R − V. Advantages of a task are centred and scaled to std one.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.one_by_one import one_by_one
from metaprior.rl.rollouts import Rollouts

DISCOUNT = 0.99  # γ
TRACE = 1.0  # λ of generalised advantages
RIDGE = 1e-5
LARGEST = 10.0  # observations beyond it look the same to the baseline
TIME_SCALE = 100.0


def advantages(
    lived: Rollouts, *, discount: float = DISCOUNT, trace: float = TRACE, ridge: float = RIDGE
) -> Float[Array, "N H"]:
    """Of every step of one task's rollouts, mean zero and std one over those that count; zero elsewhere."""
    phi = features(lived.observations)
    targets = discounted(lived.rewards, discount)
    values = jnp.einsum("nhf,f->nh", phi, fit(phi, targets, lived.mask, ridge), precision="highest") * lived.mask
    following = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], axis=1)
    surprise = (lived.rewards + discount * following - values) * lived.mask
    return standardised(discounted(surprise, discount * trace) * lived.mask, lived.mask)


def discounted(rewards: Float[Array, "N H"], discount: float) -> Float[Array, "N H"]:
    """Σ_{s ≥ t} γ^{s−t} r_s for every t; as one product, because a loop over time is slow on accelerators."""
    time = jnp.arange(rewards.shape[1])
    ahead = time[:, None] - time[None, :]  # s − t
    weights = jnp.where(ahead >= 0, discount ** jnp.maximum(ahead, 0).astype(rewards.dtype), 0)
    return jnp.matmul(rewards, weights, precision="highest")


def features(observations: Float[Array, "N H O"]) -> Float[Array, "N H F"]:
    """[o, o², τ, τ², τ³, 1] with τ = t/100 and o cut off at ±10."""
    clipped = jnp.clip(observations, -LARGEST, LARGEST)
    tau = jnp.arange(observations.shape[1], dtype=observations.dtype) / TIME_SCALE
    powers = jnp.stack([tau, tau**2, tau**3, jnp.ones_like(tau)], axis=1)
    times = jnp.broadcast_to(powers, (observations.shape[0], *powers.shape))
    return jnp.concatenate([clipped, jnp.square(clipped), times], axis=2)


def fit(
    phi: Float[Array, "N H F"], targets: Float[Array, "N H"], mask: Float[Array, "N H"], ridge: float = RIDGE
) -> Float[Array, " F"]:
    """The weights of the baseline: least squares over the steps that count, with a ridge."""
    masked = phi * mask[..., None]
    gram = jnp.einsum("nhf,nhg->fg", masked, phi, precision="highest")
    moment = jnp.einsum("nhf,nh->f", masked, targets, precision="highest")
    # Features differ in scale and nearly depend on one another: scaled to a unit diagonal, with a floor where rounding begins,
    # the matrix stays positive in single precision as well.
    size = jnp.diagonal(gram) + ridge
    scale = jax.lax.rsqrt(jnp.where(size > 0, size, 1))
    scaled = gram * scale[:, None] * scale[None, :] + jnp.diag(ridge * scale**2)
    floor = phi.shape[2] * jnp.finfo(phi.dtype).eps

    def solved(floor):
        lifted = scaled + floor * jnp.eye(*scaled.shape, dtype=scaled.dtype)
        return scale * _solution(lifted, scale * moment)

    # Where they wholly depend, as position and time of policies that run straight away, sums over all steps are rounded more.
    found = solved(floor)
    return jnp.where(jnp.isfinite(found).all(), found, solved(floor * math.sqrt(mask.size)))


@one_by_one
def _solution(matrix: Float[Array, "F F"], vector: Float[Array, " F"]) -> Float[Array, " F"]:
    return jax.scipy.linalg.solve(matrix, vector, assume_a="pos")


def standardised(values: Float[Array, "N H"], mask: Float[Array, "N H"]) -> Float[Array, "N H"]:
    """Mean zero and std one over the steps that count; zero elsewhere, and everywhere if all are equal."""
    count = jnp.maximum(mask.sum(), 1)
    centred = (values - (values * mask).sum() / count) * mask
    return centred / (jnp.sqrt(jnp.square(centred).sum() / count) + 1e-8)
