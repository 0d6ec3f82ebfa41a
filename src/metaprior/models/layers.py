r"""The layers of built-in networks: Equinox modules whose only leaves are arrays, so that a module *is* its weights.

Dense and convolutional layers are one thing, an affine map $h = \langle x, W\rangle + b$ with a product that is linear
in input and weight. What noise in the weights does (see `noise`) is said once, in terms of that product. In `x` the
points come first and the channels last.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from metaprior.models.convolution import convolve
from metaprior.types import Key

Product = Callable[[Array, Array], Array]  # (x, weight) -> pre-activations, linear in both

INITIALISERS = {
    "he": initializers.variance_scaling(2.0, "fan_in", "normal"),  # std √(2 / fan_in): keeps the scale of ReLU layers
    "glorot": initializers.glorot_uniform(),
    "truncated": initializers.truncated_normal(0.01),  # cut at two of them, as for MAML's sinusoids
    "he-out": initializers.variance_scaling(2.0, "fan_out", "normal"),  # std √(2 / fan_out): as usual for residual nets
}


class NoisyWeight(eqx.Module):
    """N(mean, std²) in the place of a weight, and how a layer is to draw from it."""

    mean: Float[Array, "*shape"]
    std: Float[Array, "*shape"]
    noise: Float[Array, "*shape"]  # standard normal: what the points of a batch share of a draw
    key: Key  # for what each point draws by itself
    # (product, weight, bias, x) -> one draw of the pre-activations
    estimator: Callable[[Product, Any, Any, Array], Array] = eqx.field(static=True)


Weight = Float[Array, "..."] | NoisyWeight


def over_points(vector: Float[Array, " C"], like: Float[Array, "N ... C"]) -> Float[Array, "... C"]:
    """A value per channel, given the leading axes of 1 that let it meet `like`."""
    return jnp.expand_dims(vector, tuple(range(like.ndim - 1)))


def affine(product: Product, weight: Weight, bias: Weight | None, x: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
    """⟨x, W⟩ + b, or one draw of it where W and b are distributions; b may be left out."""
    if isinstance(weight, NoisyWeight):
        return weight.estimator(product, weight, bias, x)
    assert not isinstance(bias, NoisyWeight)  # noise comes to both or to neither
    h = product(x, weight)
    return h if bias is None else h + over_points(bias, h)


def dense(weight: Weight, bias: Weight, x: Float[Array, "N inputs"]) -> Float[Array, "N outputs"]:
    """The product x W + b."""
    return affine(jnp.matmul, weight, bias, x)


def conv(weight: Weight, bias: Weight | None, x: Float[Array, "N H W C"], **options: Any) -> Float[Array, "N H2 W2 F"]:
    """The convolution x * W + b over two spatial axes; weights and options as in `convolve`."""
    return affine(partial(convolve, **options), weight, bias, x)


def max_pool(x: Float[Array, "N H W C"]) -> Float[Array, "N H2 W2 C"]:
    """The largest of each 2×2 window; an odd last row or column is left out.

    Written as choices between two. The derivative of `max` looks for the entries that equal it, and finds none where a compiler
    computes the same entry twice and rounds it differently; of two that are compared one always has the derivative.
    """
    n, h, w, c = x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
    x = x[:, : 2 * h, : 2 * w].reshape(n, h, 2, w, 2, c)
    larger = lambda a, b: jnp.where(a >= b, a, b)
    rows = larger(x[:, :, 0], x[:, :, 1])
    return larger(rows[:, :, :, 0], rows[:, :, :, 1])


class Dense(eqx.Module):
    """A fully connected layer."""

    weight: Float[Array, "inputs outputs"] | NoisyWeight
    bias: Float[Array, " outputs"] | NoisyWeight

    def __call__(self, x: Float[Array, "N inputs"]) -> Float[Array, "N outputs"]:
        return dense(self.weight, self.bias, x)


class Conv(eqx.Module):
    """A two-dimensional convolution; the options are those of `convolve`. A normalisation after it makes `bias` idle."""

    weight: Float[Array, "h w channels filters"] | NoisyWeight
    bias: Float[Array, " filters"] | NoisyWeight | None
    stride: int = eqx.field(static=True, default=1)
    padding: str = eqx.field(static=True, default="SAME")
    how: str | None = eqx.field(static=True, default=None)
    precision: str | None = eqx.field(static=True, default=None)

    def __call__(self, x: Float[Array, "N H W C"]) -> Float[Array, "N H2 W2 F"]:
        options = {"stride": self.stride, "padding": self.padding, "how": self.how, "precision": self.precision}
        return conv(self.weight, self.bias, x, **options)


class BatchNorm(eqx.Module):
    r"""Normalisation by the statistics of the current batch, always; there are no running averages.

    $$\text{scale}\cdot\frac{x - \bar x}{\sqrt{\operatorname{var}(x) + \epsilon}} + \text{offset}$$

    per channel, over points and positions. The answer for one point so depends on the points it comes with: accuracies
    obtained this way are transductive, as are those of the literature on few-shot images. With `reference` the statistics
    are those of the first so many points alone, and the answers for the others inductive.
    """

    offset: Float[Array, " C"]
    scale: Float[Array, " C"]
    epsilon: float = eqx.field(static=True, default=1e-3)

    def __call__(self, x: Float[Array, "N ... C"], *, reference: int | None = None) -> Float[Array, "N ... C"]:
        mean, variance = _statistics(x, reference)
        slope = jax.lax.rsqrt(variance + self.epsilon) * over_points(self.scale, x)
        n = x.shape[0]
        return (x - to_points(mean, n)) * to_points(slope, n) + to_points(over_points(self.offset, x), n)


def _statistics(x: Float[Array, "N ... C"], reference: int | None) -> tuple[Array, Array]:
    """Mean and variance of each channel; where there is no point to refer to, each is its own reference."""
    rows = x if reference is None else x[:reference]
    if not rows.shape[0]:
        axes = tuple(range(1, x.ndim - 1))
        return x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return mean_over(rows), _variance(rows)


@jax.custom_jvp
def _variance(x: Float[Array, "N ... C"]) -> Float[Array, "1 ... C"]:
    """In two passes: the mean of squares minus the square of the mean cancels where a channel is nearly constant."""
    return mean_over(jnp.square(x - to_points(mean_over(x), x.shape[0])))


@_variance.defjvp
def _(primals, tangents):
    # d var = 2 E[(x - mean) dx] is exact, the part through the mean being zero; to compute that zero would cost a pass.
    (x,), (change,) = primals, tangents
    centred = x - to_points(mean_over(x), x.shape[0])
    return mean_over(jnp.square(centred)), 2 * mean_over(centred * change)


# A card sums the rows of a task with few of its cores, and tasks are few: so first over the positions of each point, then over
# points. The barrier keeps the compiler from making one sum of the two; `to_points` is its transpose, for derivatives.


def mean_over(x: Float[Array, "N ... C"]) -> Float[Array, "1 ... C"]:
    """Of each channel, over points and positions."""
    of_points = jax.lax.optimization_barrier(x.mean(tuple(range(1, x.ndim - 1)), keepdims=True))
    return of_points.mean(0, keepdims=True)


def to_points(row: Float[Array, "M ... C"], n: int) -> Float[Array, "N ... C"]:
    """One row of channels for every point, positions still to come."""
    return jax.lax.optimization_barrier(jnp.broadcast_to(row, (n, *row.shape[1:])))
