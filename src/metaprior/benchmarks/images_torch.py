"""MAML on images by torch.func: `functional_call` for the network, `grad` inside, `vmap` over tasks, `grad` outside.

Batch normalisation is written out. PyTorch's own has a wrong second derivative under `vmap` where it has a scale (seen in 2.13):
even the biases of the convolutions before it, on which nothing depends, get a gradient.

PyTorch is imported when a runner is made, never with this module.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from metaprior.benchmarks.images_maml import INNER_RATE, META_RATE, Runner, Weights
from metaprior.types import Episode


def runner(weights: Weights, steps: int, *, precision: str = "float32", compiled: bool = False) -> Runner:
    """For the network that `weights` are of.

    Args:
        weights: as our four-block network has them.
        steps: inner steps.
        precision: "tf32" or "float32".
        compiled: whether torch.compile compiles the meta-gradient.
    """
    import torch

    place = device()
    gradient: Callable[..., Any] = torch.func.grad_and_value(_meta_loss(_network(weights), steps))
    if compiled:
        gradient = torch.compile(gradient, fullgraph=True, dynamic=False)

    def load(episodes: Episode) -> list[tuple[Any, ...]]:
        arrays = [(_channels_first(data.x), data.y.astype(np.int64)) for data in episodes]
        tensors = [torch.tensor(array).to(place) for pair in arrays for array in pair]
        return list(zip(*tensors, strict=True))

    def begin(weights: Weights):
        named = {name: torch.tensor(array).to(place) for name, array in named_arrays(weights).items()}
        return named, torch.optim.Adam(named.values(), lr=META_RATE, fused=place == "cuda")

    def train(state, batches):
        (named, optimizer), losses = state, []
        with rounding(precision):
            for batch in batches:
                grads, loss = gradient(named, *batch)
                for name, tensor in named.items():
                    tensor.grad = grads[name]
                optimizer.step()
                losses.append(loss.detach())
            found = torch.stack(losses).cpu()  # waits for the card
        return state, found.numpy()

    return Runner(load, begin, train, lambda state: {name: tensor.cpu().numpy() for name, tensor in state[0].items()})


def device() -> str:
    """The one that JAX computes on."""
    import torch

    wanted = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("this PyTorch sees no GPU, and JAX computes on one: install PyTorch with CUDA")
    return wanted


@contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Products and convolutions of PyTorch in tf32 or not, as JAX is told."""
    import torch

    allowed = precision == "tf32"
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def named_arrays(weights: Weights) -> dict[str, np.ndarray]:
    """Weights of the four-block network under the names that a module of PyTorch has for them, and in its shapes."""
    found = {}
    for index, (conv, norm) in enumerate(zip(weights.features.convs, weights.features.norms, strict=True)):
        found[f"convs.{index}.weight"] = np.asarray(conv.weight).transpose(3, 2, 0, 1)
        if conv.bias is not None:
            found[f"convs.{index}.bias"] = np.asarray(conv.bias)
        found[f"norms.{index}.weight"], found[f"norms.{index}.bias"] = np.asarray(norm.scale), np.asarray(norm.offset)
    head = {"head.weight": np.asarray(weights.head.weight).T, "head.bias": np.asarray(weights.head.bias)}
    return {name: np.ascontiguousarray(array) for name, array in (found | head).items()}


def _network(weights: Weights):
    """Strided convolutions, normalisation by the statistics of the batch, ReLU; the mean over positions; a dense head."""
    import torch

    class Norm(torch.nn.Module):
        def __init__(self, channels: int, epsilon: float):
            super().__init__()
            self.weight, self.bias = (torch.nn.Parameter(torch.zeros(channels)) for _ in range(2))
            self.epsilon = epsilon

        def forward(self, x):
            x = x - x.mean((0, 2, 3), keepdim=True)
            scale = self.weight[:, None, None] * torch.rsqrt(x.square().mean((0, 2, 3), keepdim=True) + self.epsilon)
            return x * scale + self.bias[:, None, None]

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            convs, norms = weights.features.convs, weights.features.norms
            layers = [(*np.shape(conv.weight), conv.bias is not None) for conv in convs]
            self.convs = torch.nn.ModuleList(
                torch.nn.Conv2d(channels, filters, (height, width), stride=2, bias=bias)
                for height, width, channels, filters, bias in layers
            )
            self.norms = torch.nn.ModuleList(Norm(np.size(norm.scale), norm.epsilon) for norm in norms)
            self.head = torch.nn.Linear(*np.shape(weights.head.weight))

        def forward(self, x):
            for conv, norm in zip(self.convs, self.norms, strict=True):
                margins = (*_margins(x.shape[-1]), *_margins(x.shape[-2]))
                x = norm(conv(torch.nn.functional.pad(x, margins))).relu()
            return self.head(x.mean((2, 3)))

    return Network().to(device())


def _margins(size: int) -> tuple[int, int]:
    """What a window of three at stride two needs so that half of the positions remain, rounded up: the odd one comes after."""
    total = max((-(-size // 2) - 1) * 2 + 3 - size, 0)
    return total // 2, total - total // 2


def _meta_loss(network, steps: int):
    import torch

    def loss(named, x, y):
        return torch.nn.functional.cross_entropy(torch.func.functional_call(network, named, (x,)), y)

    def task_loss(named, support_x, support_y, query_x, query_y):
        for _ in range(steps):
            grads = torch.func.grad(loss)(named, support_x, support_y)
            named = {name: tensor - INNER_RATE * grads[name] for name, tensor in named.items()}
        return loss(named, query_x, query_y)

    return lambda named, *batch: torch.func.vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(named, *batch).mean()


def _channels_first(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, -1, -3))
