r"""The product of a convolution, ⟨x, W⟩, computed in more than one way.

Tasks with weights of their own turn one convolution into many: `vmap` over weights makes it a grouped convolution, which
libraries do slowly, and second derivatives more slowly still. As patches times a matrix it stays a batch of products,

$$h_{nij\cdot} = \mathrm{patch}_{nij}\,W, \qquad \mathrm{patch}_{nij} \in \mathbb R^{kkC},\quad W \in \mathbb R^{kkC \times F}$$

at the price of patches that hold every input k·k times.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from metaprior.names import require_known


def quickest(*, once: bool = False) -> str:
    """Which of `PRODUCTS` to use on this backend: as `metaprior bench images` finds them; elsewhere its own convolution.

    Args:
        once: whether nobody takes second derivatives.
    """
    if jax.default_backend() == "gpu":
        return "apart" if once else "patches"
    return {"cpu": "patches"}.get(jax.default_backend(), "direct")


def convolve(
    x: Float[Array, "N H W C"],
    weight: Float[Array, "h w C F"],
    *,
    stride: int = 1,
    padding: str = "SAME",
    how: str | None = None,
    precision: str | None = None,
) -> Float[Array, "N H2 W2 F"]:
    """The convolution of images with a kernel.

    Args:
        x: images, channels last.
        weight: kernel, [height, width, channels, filters].
        stride: step between windows, in both directions.
        padding: "SAME" or "VALID".
        how: one of `PRODUCTS`; `None`: the `quickest` here.
        precision: "float32" rounds nothing; "tf32" lets a card round the factors of single-precision products to 10 bits;
            "bf16" rounds factors and results to 7 bits and halves the memory of patches; `None`: as JAX is configured.
    """
    product = PRODUCTS[quickest() if how is None else how]
    options = stride, padding, None if precision is None else PRECISIONS[precision]
    if precision != "bf16":
        return product(x, weight, *options)
    # The result is rounded too: then the products of the backward pass have two short factors as well.
    return product(x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16), *options).astype(x.dtype)


def patches(
    x: Float[Array, "N H W C"], window: tuple[int, int], *, stride: int, padding: str
) -> Float[Array, "N H2 W2 P"]:
    """What each window sees: rows, columns and channels of the window in one axis, as in a reshaped kernel.

    Written as slices, whose derivatives of every order are pads and slices again; a gather would have a scatter.
    """
    (n, *size, channels), step = x.shape, (stride, stride)
    margins = lax.padtype_to_pads(size, window, step, padding)
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in margins), (0, 0, 0)])
    spans = [(x.shape[1 + axis] - window[axis]) // stride * stride + 1 for axis in (0, 1)]
    seen = [
        lax.slice(x, (0, i, j, 0), (n, i + spans[0], j + spans[1], channels), (1, *step, 1))
        for i in range(window[0])
        for j in range(window[1])
    ]
    return jnp.concatenate(seen, axis=-1)


def aligned(x: Float[Array, "N H W C"], weight: Float[Array, "h w C F"]) -> tuple[Array, Array]:
    """The same product over a number of channels that is a multiple of four, the new ones zero."""
    missing = -x.shape[-1] % 4
    return jnp.pad(x, [(0, 0)] * 3 + [(0, missing)]), jnp.pad(weight, [(0, 0)] * 2 + [(0, missing), (0, 0)])


def _by_patches(x, weight, stride, padding, precision):
    if x.shape[-1] == 3 and jax.default_backend() == "gpu":
        x, weight = aligned(x, weight)  # colours: cards move and multiply numbers by fours
    height, width = weight.shape[0], weight.shape[1]
    seen = patches(x, (height, width), stride=stride, padding=padding)
    *leading, size = seen.shape
    # Two axes each: with an axis of tasks in front this is a batched product without any transposition.
    h = jnp.matmul(seen.reshape(math.prod(leading), size), weight.reshape(size, -1), precision=precision)
    return h.reshape(*leading, weight.shape[-1])


def _directly(x, weight, stride, padding, precision):
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, weight, (stride, stride), padding, dimension_numbers=names, precision=precision)


# Above so many bytes of patches a task, cutting them out costs more than convolutions of few images at a time.
MANY = 1 << 25
UNROLLED = 8  # calls that are written out: quicker to run; more of them make a loop, which is quicker to compile


def _apart(x, weight, stride, padding, precision):
    size = math.prod(x.shape) // stride**2 * math.prod(weight.shape[:2]) * x.dtype.itemsize
    if size < MANY:
        return _by_patches(x, weight, stride, padding, precision)
    return _one_by_one(stride, padding, precision, x.shape[1:])(x, weight)


@cache
def _one_by_one(stride: int, padding: str, precision: lax.Precision | None, shape: tuple[int, ...]):
    """A convolution of images of that shape whose `vmap` is never a grouped one, forwards and backwards.

    Tasks with weights of their own, and weights that every task has a gradient in, make a loop over tasks; where the weights are
    shared the images of all tasks are one batch.
    """
    product = lambda x, weight: _directly(x, weight, stride, padding, precision)

    def back_to_images(given, weight):
        images = jax.ShapeDtypeStruct((given.shape[0], *shape), given.dtype)
        return jax.linear_transpose(lambda x: product(x, weight), images)(given)[0]

    def back_to_weights(given, x, like):
        return jax.linear_transpose(lambda weight: product(x, weight), like)(given)[0]

    forward, to_images = (_looped(function, shared=1) for function in (product, back_to_images))
    to_weights = _looped(back_to_weights)
    convolution = jax.custom_vjp(forward)
    convolution.defvjp(
        lambda x, weight: (forward(x, weight), (x, weight)),
        lambda kept, given: (to_images(given, kept[1]), to_weights(given, *kept)),
    )
    return convolution


def _looped(function: Callable[..., Any], *, shared: int | None = None):
    """The same, where `vmap` calls it once for each entry, or once for all of them if all share the argument of that number."""
    one = custom_vmap(function)

    @one.def_vmap
    def _(size, batched, *given):
        if shared is not None and not batched[shared]:
            found = one(given[0].reshape(-1, *given[0].shape[2:]), *given[1:])
            return found.reshape(size, -1, *found.shape[1:]), True
        pick = lambda i: one(*(x[i] if many else x for x, many in zip(given, batched, strict=True)))
        found = jnp.stack([pick(i) for i in range(size)]) if size <= UNROLLED else lax.map(pick, jnp.arange(size))
        return found, True

    return one


PRODUCTS = {
    "patches": _by_patches,
    # Patches are not kept for the backward pass but cut out again, for where memory is short; XLA for CPUs keeps them anyway.
    "recomputed": jax.checkpoint(_by_patches, static_argnums=(2, 3, 4)),
    "direct": _directly,
    # Patches while they are small, else the convolution of one task after another. Cannot be differentiated twice.
    "apart": _apart,
}
PRECISIONS = {"float32": lax.Precision.HIGHEST, "tf32": lax.Precision.HIGH, "bf16": lax.Precision.DEFAULT}


def require_product(how: str | None, precision: str | None) -> None:
    """Refuses what `convolve` does not know; better before a network is built than inside it."""
    if how is not None:
        require_known("how", how, PRODUCTS)
    if precision is not None:
        require_known("precision", precision, PRECISIONS)
