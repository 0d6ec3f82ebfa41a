"""The four-block convolutional network of the few-shot image literature."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model, built_in, choose
from metaprior.models.layers import INITIALISERS, BatchNorm, Conv, Dense
from metaprior.types import Key

BLOCKS = 4


def max_pool(x: Float[Array, "N H W C"]) -> Float[Array, "N H2 W2 C"]:
    """The largest of each 2×2 window; an odd last row or column is left out.

    Written as a reshape because its derivatives of every order are then those of `max`.
    """
    n, h, w, c = x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
    return x[:, : 2 * h, : 2 * w].reshape(n, h, 2, w, 2, c).max((2, 4))


class Conv4(eqx.Module):
    """Four blocks of convolution, batch normalisation and ReLU, then a dense head."""

    convs: tuple[Conv, ...]
    norms: tuple[BatchNorm, ...]
    head: Dense
    pooled: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "N H W C"]) -> Float[Array, "N O"]:
        for layer, norm in zip(self.convs, self.norms, strict=True):
            x = jax.nn.relu(norm(layer(x)))
            x = max_pool(x) if self.pooled else x
        # Not reshape(N, -1): no points at all leave the length open.
        return self.head(x.reshape(x.shape[0], math.prod(x.shape[1:])) if self.pooled else x.mean((1, 2)))


def conv4(
    inputs: tuple[int, int, int] = (28, 28, 1),
    classes: int = 5,
    *,
    filters: int = 64,
    stride: int = 2,
    init: str = "glorot",
) -> Model:
    """Four blocks [3×3 convolution, batch normalisation, ReLU], each halving the image, and a dense head.

    `stride=2` halves by striding and averages over positions before the head (Omniglot). `stride=1` halves by 2×2
    max-pooling and flattens (miniImageNet: `conv4((84, 84, 3), filters=32, stride=1)`).

    Args:
        inputs: height, width, channels of an image; `x` is [N, height, width, channels].
        classes: number of outputs.
        filters: channels of every block.
        stride: 2 or 1, see above.
        init: as in `mlp`; biases and offsets start at zero, scales at one.
    """
    height, width, channels = inputs
    if stride not in (1, 2):
        raise ValueError(f"conv4 halves images by stride=2 or by pooling at stride=1, got stride={stride}")
    if stride == 1 and min(height, width) < 2**BLOCKS:
        raise ValueError(f"four poolings need images of at least 16x16, got {height}x{width}: use stride=2 instead")
    draw = choose("init", init, INITIALISERS)
    features = filters * (height // 2**BLOCKS) * (width // 2**BLOCKS) if stride == 1 else filters

    def begin(key: Key) -> Conv4:
        *keys, head_key = jax.random.split(key, BLOCKS + 1)
        shapes = [(3, 3, channels if block == 0 else filters, filters) for block in range(BLOCKS)]
        convs = tuple(Conv(draw(k, s), jnp.zeros(filters), stride) for k, s in zip(keys, shapes, strict=True))
        norms = tuple(BatchNorm(jnp.zeros(filters), jnp.ones(filters)) for _ in range(BLOCKS))
        return Conv4(convs, norms, Dense(draw(head_key, (features, classes)), jnp.zeros(classes)), pooled=stride == 1)

    return built_in(begin, f"conv4-{height}x{width}x{channels}-{classes}")
