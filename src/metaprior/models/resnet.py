"""ResNet-12, the deeper backbone of the few-shot image literature."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model, batch_normalised, choose
from metaprior.models.classifier import classifier
from metaprior.models.conv import require_poolings
from metaprior.models.convolution import require_product
from metaprior.models.layers import INITIALISERS, BatchNorm, Conv, max_pool
from metaprior.types import Key

DEPTH = 3  # convolutions of a block
SLOPE = 0.1  # of the leaky ReLU below zero


class Block(eqx.Module):
    """Three convolutions beside one of a single pixel, their sum, and the largest of each 2×2 window."""

    convs: tuple[Conv, ...]
    norms: tuple[BatchNorm, ...]
    shortcut: Conv
    shortcut_norm: BatchNorm

    def __call__(self, x: Float[Array, "N H W C"], *, reference: int | None = None) -> Float[Array, "N H2 W2 F"]:
        total = self.shortcut_norm(self.shortcut(x), reference=reference)
        for i, (layer, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(layer(x if i == 0 else jax.nn.leaky_relu(x, SLOPE)), reference=reference)
        return max_pool(jax.nn.leaky_relu(x + total, SLOPE))


class ResNet(eqx.Module):
    """Blocks, and the mean over positions."""

    blocks: tuple[Block, ...]

    def __call__(self, x: Float[Array, "N H W C"], *, reference: int | None = None) -> Float[Array, "N F"]:
        for block in self.blocks:
            x = block(x, reference=reference)
        return x.mean((1, 2))


def resnet12(
    inputs: tuple[int, int, int] = (84, 84, 3),
    classes: int = 5,
    *,
    widths: tuple[int, ...] = (64, 128, 256, 512),
    init: str = "he-out",
    head_init: str = "glorot",
    how: str | None = None,
    precision: str | None = None,
) -> Model:
    """Four residual blocks of three 3×3 convolutions, each halving the image, the mean over positions and a dense head.

    Convolutions have no bias (normalisation follows all of them), the activation is a leaky ReLU, and nothing is dropped.

    Args:
        inputs: height, width, channels of an image; `x` is [N, height, width, channels].
        classes: number of outputs.
        widths: channels of each block; (64, 160, 320, 640) is the wide form.
        init: as in `mlp`, or "he-out" (std √(2 / fan_out)); offsets start at zero, scales at one.
        head_init: first weights of the head, as in `classifier`.
        how: of the convolutions, as in `convolve`.
        precision: likewise.
    """
    features, width = resnet12_features(inputs, widths=widths, init=init, how=how, precision=precision)
    return classifier(features, width, classes, head_init=head_init)


def resnet12_features(
    inputs: tuple[int, int, int] = (84, 84, 3),
    *,
    widths: tuple[int, ...] = (64, 128, 256, 512),
    init: str = "he-out",
    how: str | None = None,
    precision: str | None = None,
) -> tuple[Model, int]:
    """`resnet12` without its head, and how many features it gives."""
    height, width, channels = inputs
    if len(widths) != 4 or min(widths) < 1:
        raise ValueError(f"resnet12 has four blocks of at least one channel, got widths={widths}")
    require_poolings(inputs, len(widths), "enlarge them or use conv4 with stride=2")
    require_product(how, precision)
    draw = choose("init", init, INITIALISERS)

    def convolution(key: Key, size: int, channels: int, filters: int) -> Conv:
        return Conv(draw(key, (size, size, channels, filters)), None, how=how, precision=precision)

    def block(key: Key, channels: int, filters: int) -> Block:
        *keys, last = jax.random.split(key, DEPTH + 1)
        convs = tuple(convolution(k, 3, channels if i == 0 else filters, filters) for i, k in enumerate(keys))
        norms = tuple(BatchNorm(jnp.zeros(filters), jnp.ones(filters)) for _ in range(DEPTH + 1))
        return Block(convs, norms[:DEPTH], convolution(last, 1, channels, filters), norms[DEPTH])

    def begin(key: Key) -> ResNet:
        keys = jax.random.split(key, len(widths))
        return ResNet(tuple(map(block, keys, (channels, *widths[:-1]), widths)))

    return batch_normalised(begin, f"resnet12-{height}x{width}x{channels}"), widths[-1]
