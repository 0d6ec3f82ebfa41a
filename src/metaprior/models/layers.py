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

from metaprior.types import Key

Product = Callable[[Array, Array], Array]  # (x, weight) -> pre-activations, linear in both

INITIALISERS = {
    "he": initializers.variance_scaling(2.0, "fan_in", "normal"),  # std √(2 / fan_in): keeps the scale of ReLU layers
    "glorot": initializers.glorot_uniform(),
    "truncated": initializers.truncated_normal(0.01),  # cut at two of them, as for MAML's sinusoids
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


def affine(product: Product, weight: Weight, bias: Weight, x: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
    """⟨x, W⟩ + b, or one draw of it where W and b are distributions."""
    if isinstance(weight, NoisyWeight):
        return weight.estimator(product, weight, bias, x)
    assert not isinstance(bias, NoisyWeight)  # noise comes to both or to neither
    h = product(x, weight)
    return h + over_points(bias, h)


def dense(weight: Weight, bias: Weight, x: Float[Array, "N inputs"]) -> Float[Array, "N outputs"]:
    """The product x W + b."""
    return affine(jnp.matmul, weight, bias, x)


def conv(
    weight: Weight, bias: Weight, x: Float[Array, "N H W C"], *, stride: int = 1, padding: str = "SAME"
) -> Float[Array, "N H2 W2 F"]:
    """The convolution x * W + b over two spatial axes; weights are [height, width, channels, filters]."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    product = partial(
        jax.lax.conv_general_dilated, window_strides=(stride, stride), padding=padding, dimension_numbers=dimensions
    )
    return affine(product, weight, bias, x)


class Dense(eqx.Module):
    """A fully connected layer."""

    weight: Float[Array, "inputs outputs"] | NoisyWeight
    bias: Float[Array, " outputs"] | NoisyWeight

    def __call__(self, x: Float[Array, "N inputs"]) -> Float[Array, "N outputs"]:
        return dense(self.weight, self.bias, x)


class Conv(eqx.Module):
    """A two-dimensional convolution."""

    weight: Float[Array, "h w channels filters"] | NoisyWeight
    bias: Float[Array, " filters"] | NoisyWeight
    stride: int = eqx.field(static=True, default=1)
    padding: str = eqx.field(static=True, default="SAME")

    def __call__(self, x: Float[Array, "N H W C"]) -> Float[Array, "N H2 W2 F"]:
        return conv(self.weight, self.bias, x, stride=self.stride, padding=self.padding)


class BatchNorm(eqx.Module):
    r"""Normalisation by the statistics of the current batch, always; there are no running averages.

    $$\text{scale}\cdot\frac{x - \bar x}{\sqrt{\operatorname{var}(x) + \epsilon}} + \text{offset}$$

    per channel, over points and positions. The answer for one point so depends on the points it comes with: accuracies
    obtained this way are transductive, as are those of the literature on few-shot images.
    """

    offset: Float[Array, " C"]
    scale: Float[Array, " C"]
    epsilon: float = eqx.field(static=True, default=1e-3)

    def __call__(self, x: Float[Array, "N ... C"]) -> Float[Array, "N ... C"]:
        axes = tuple(range(x.ndim - 1))
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        standardised = (x - mean) * jax.lax.rsqrt(variance + self.epsilon)
        return standardised * over_points(self.scale, x) + over_points(self.offset, x)
