"""The four-block convolutional network of the few-shot image literature."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.models.base import Model, batch_normalised, choose
from metaprior.models.classifier import classifier
from metaprior.models.convolution import require_product
from metaprior.models.layers import INITIALISERS, BatchNorm, Conv, max_pool
from metaprior.names import require_known
from metaprior.types import Key

BLOCKS = 4
POOLS = ("mean", "flatten")


class Conv4(eqx.Module):
    """Four blocks of convolution, batch normalisation and ReLU, each halving the image; then one vector an image."""

    convs: tuple[Conv, ...]
    norms: tuple[BatchNorm, ...]
    max_pooled: bool = eqx.field(static=True)
    pool: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, "N H W C"], *, reference: int | None = None) -> Float[Array, "N F"]:
        for layer, norm in zip(self.convs, self.norms, strict=True):
            x = jax.nn.relu(norm(layer(x), reference=reference))
            x = max_pool(x) if self.max_pooled else x
        # Not reshape(N, -1): no points at all leave the length open.
        return x.mean((1, 2)) if self.pool == "mean" else x.reshape(x.shape[0], math.prod(x.shape[1:]))


def conv4(
    inputs: tuple[int, int, int] = (28, 28, 1),
    classes: int = 5,
    *,
    filters: int = 64,
    stride: int = 2,
    init: str = "glorot",
    pool: str | None = None,
    head_init: str | None = None,
    how: str | None = None,
    precision: str | None = None,
) -> Model:
    """Four blocks [3×3 convolution, batch normalisation, ReLU], each halving the image, and a dense head.

    Convolutions have no bias: normalisation would take it away again, and its gradient would cost a pass.

    `stride=2` halves by striding (Omniglot). `stride=1` halves by 2×2 max-pooling (miniImageNet:
    `conv4((84, 84, 3), filters=32, stride=1)`).

    Args:
        inputs: height, width, channels of an image; `x` is [N, height, width, channels].
        classes: number of outputs.
        filters: channels of every block.
        stride: 2 or 1, see above.
        init: as in `mlp`; biases and offsets start at zero, scales at one.
        pool: what the head sees, the "mean" over positions or all of them ("flatten"); `None`: mean at stride 2, else all.
        head_init: first weights of the head, as in `classifier`; `None`: as `init`.
        how: of the convolutions, as in `convolve`.
        precision: likewise.

    >>> model = conv4((28, 28, 1), 5, filters=8)
    >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((3, 28, 28, 1))).shape
    (3, 5)
    """
    features, width = conv4_features(
        inputs, filters=filters, stride=stride, init=init, pool=pool, how=how, precision=precision
    )
    return classifier(features, width, classes, head_init=init if head_init is None else head_init)


def conv4_features(
    inputs: tuple[int, int, int] = (28, 28, 1),
    *,
    filters: int = 64,
    stride: int = 2,
    init: str = "glorot",
    pool: str | None = None,
    how: str | None = None,
    precision: str | None = None,
) -> tuple[Model, int]:
    """`conv4` without its head, and how many features it gives."""
    height, width, channels = inputs
    if stride not in (1, 2):
        raise ValueError(f"conv4 halves images by stride=2 or by pooling at stride=1, got stride={stride}")
    if stride == 1:
        require_poolings(inputs, BLOCKS, "use stride=2 instead")
    pool = ("flatten" if stride == 1 else "mean") if pool is None else pool
    require_known("pool", pool, POOLS)
    require_product(how, precision)
    draw = choose("init", init, INITIALISERS)

    def begin(key: Key) -> Conv4:
        keys = jax.random.split(key, BLOCKS)
        shapes = [(3, 3, channels if block == 0 else filters, filters) for block in range(BLOCKS)]
        convs = tuple(
            Conv(draw(k, s), None, stride, how=how, precision=precision) for k, s in zip(keys, shapes, strict=True)
        )
        norms = tuple(BatchNorm(jnp.zeros(filters), jnp.ones(filters)) for _ in range(BLOCKS))
        return Conv4(convs, norms, max_pooled=stride == 1, pool=pool)

    halved = math.floor if stride == 1 else math.ceil
    positions = 1 if pool == "mean" else halved(height / 2**BLOCKS) * halved(width / 2**BLOCKS)
    return batch_normalised(begin, f"conv4-{height}x{width}x{channels}"), filters * positions


def require_poolings(inputs: tuple[int, int, int], number: int, otherwise: str) -> None:
    """Refuses images of which so many halvings leave nothing."""
    if min(inputs[:2]) < 2**number:
        least, found = f"{2**number}x{2**number}", f"{inputs[0]}x{inputs[1]}"
        raise ValueError(f"four poolings need images of at least {least}, got {found}: {otherwise}")
