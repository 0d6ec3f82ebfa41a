r"""Records logits and gradients of image networks computed by PyTorch, for comparison with ours.

Recorded with torch 2.13.0 (CPU, float64) and numpy 2.4.6, seed 20261. The tests do not need PyTorch; to record anew:

    python3 -m venv /tmp/torchenv
    /tmp/torchenv/bin/pip install torch==2.13.0 numpy==2.4.6
    /tmp/torchenv/bin/python tests/reference/record_torch_images.py

Everything goes to `torch_images.npz` beside this file, for three networks with few channels: `strided` (conv4 of 3 filters on
9×10×2 images, mean before the head), `pooled` (conv4 of 3 filters on 17×16×2 images, max-pooled, flattened) and `resnet`
(ResNet-12 of widths 2, 3, 2, 3 on 16×17×2 images). `<w>` is the path of a weight in our tree of weights. Images are
[N, height, width, channels] and kernels [height, width, channels, filters], as ours; PyTorch gets them transposed.

| name | shape | what |
|---|---|---|
| `<net>/weights/<w>` | | fixed weights |
| `<net>/support`, `<net>/query` | [6, ...], [4, ...] | images |
| `<net>/labels` | [6] | classes of the support |
| `<net>/logits` | [6, 3] | of the support, normalised by its own statistics |
| `<net>/gradient/<w>` | as `<w>` | of the mean cross entropy of the support |
| `<net>/inductive` | [4, 3] | logits of the query, normalised by the statistics of the support |
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SEED = 20261
SUPPORT, QUERY, CLASSES, EPSILON = 6, 4, 3, 1e-3
SHAPES = {"strided": (9, 10, 2), "pooled": (17, 16, 2), "resnet": (16, 17, 2)}
FILTERS, WIDTHS = 3, (2, 3, 2, 3)

Weights = dict[str, Tensor]
Statistics = list[tuple[Tensor, Tensor]]


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """What keeps ⌈size / stride⌉ outputs: evenly before and after, the odd one after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def conv(weights: Weights, name: str, x: Tensor, stride: int) -> Tensor:
    """A convolution that keeps sizes, on channels first."""
    kernel = weights[f"{name}.weight"].permute(3, 2, 0, 1)
    pads = [pad for size in (x.shape[3], x.shape[2]) for pad in same_padding(size, kernel.shape[2], stride)]
    return F.conv2d(F.pad(x, pads), kernel, weights.get(f"{name}.bias"), stride=stride)


def norm(weights: Weights, name: str, x: Tensor, seen: Statistics, given: Statistics | None) -> Tensor:
    """Batch normalisation by its own statistics, which are noted in `seen`, or by those given."""
    mean, variance = x.mean((0, 2, 3)).detach(), x.var((0, 2, 3), unbiased=False).detach()
    seen.append((mean, variance))
    scale, offset = weights[f"{name}.scale"], weights[f"{name}.offset"]
    if given is None:
        return F.batch_norm(x, None, None, scale, offset, training=True, eps=EPSILON)
    return F.batch_norm(x, *given[len(seen) - 1], scale, offset, training=False, eps=EPSILON)


def conv4(weights: Weights, x: Tensor, stride: int, seen: Statistics, given: Statistics | None) -> Tensor:
    """Features of the four-block network."""
    for i in range(4):
        x = F.relu(norm(weights, f"features.norms.{i}", conv(weights, f"features.convs.{i}", x, stride), seen, given))
        x = F.max_pool2d(x, 2) if stride == 1 else x
    return x.permute(0, 2, 3, 1).flatten(1) if stride == 1 else x.mean((2, 3))


def resnet(weights: Weights, x: Tensor, seen: Statistics, given: Statistics | None) -> Tensor:
    """Features of ResNet-12."""
    for block in (f"features.blocks.{i}" for i in range(4)):
        h = x
        for i in range(3):
            h = norm(weights, f"{block}.norms.{i}", conv(weights, f"{block}.convs.{i}", h, 1), seen, given)
            h = F.leaky_relu(h, 0.1) if i < 2 else h
        h = h + norm(weights, f"{block}.shortcut_norm", conv(weights, f"{block}.shortcut", x, 1), seen, given)
        x = F.max_pool2d(F.leaky_relu(h, 0.1), 2)
    return x.mean((2, 3))


def logits(kind: str, weights: Weights, x: Tensor, given: Statistics | None = None) -> tuple[Tensor, Statistics]:
    """Outputs [N, classes] for images with channels last, and the statistics of every normalisation."""
    x, seen = x.permute(0, 3, 1, 2), []
    if kind == "resnet":
        features = resnet(weights, x, seen, given)
    else:
        features = conv4(weights, x, 2 if kind == "strided" else 1, seen, given)
    return features @ weights["head.weight"] + weights["head.bias"], seen


def layer(prefix: str, kernel: tuple[int, int, int, int], *, bias: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of a convolution."""
    return {f"{prefix}.weight": kernel} | ({f"{prefix}.bias": kernel[-1:]} if bias else {})


def normalisation(prefix: str, channels: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a batch normalisation."""
    return {f"{prefix}.offset": (channels,), f"{prefix}.scale": (channels,)}


def shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights, by path."""
    height, width, channels = SHAPES[kind]
    found: dict[str, tuple[int, ...]] = {}
    if kind == "resnet":
        for b, filters in enumerate(WIDTHS):
            for i in range(3):
                kernel = (3, 3, channels if i == 0 else filters, filters)
                found |= layer(f"features.blocks.{b}.convs.{i}", kernel, bias=False)
                found |= normalisation(f"features.blocks.{b}.norms.{i}", filters)
            found |= layer(f"features.blocks.{b}.shortcut", (1, 1, channels, filters), bias=False)
            found |= normalisation(f"features.blocks.{b}.shortcut_norm", filters)
            channels = filters
        features = WIDTHS[-1]
    else:
        for b in range(4):
            found |= layer(f"features.convs.{b}", (3, 3, channels if b == 0 else FILTERS, FILTERS), bias=True)
            found |= normalisation(f"features.norms.{b}", FILTERS)
        features = FILTERS * (1 if kind == "strided" else (height // 16) * (width // 16))
    return found | {"head.weight": (features, CLASSES), "head.bias": (CLASSES,)}


def record(rng: np.random.Generator, kind: str) -> dict[str, Tensor]:
    """Everything of one network, by the names in the table above."""
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    weights = {name: (0.5 * draw(*shape)).requires_grad_() for name, shape in shapes(kind).items()}
    # Pixels in quarters: they take little room.
    support, query = (draw(number, *SHAPES[kind]).mul(4).round() / 4 for number in (SUPPORT, QUERY))
    labels = torch.arange(SUPPORT) % CLASSES
    outputs, statistics = logits(kind, weights, support)
    gradient = torch.autograd.grad(F.cross_entropy(outputs, labels), list(weights.values()))
    inductive, _ = logits(kind, weights, query, statistics)
    arrays = {"support": support, "query": query, "labels": labels, "logits": outputs, "inductive": inductive}
    arrays |= {f"weights/{name}": value for name, value in weights.items()}
    arrays |= {f"gradient/{name}": value for name, value in zip(weights, gradient, strict=True)}
    return {f"{kind}/{name}": value.detach() for name, value in arrays.items()}


def main() -> None:
    """Record all networks and save them."""
    rng, arrays = np.random.default_rng(SEED), {}
    for kind in SHAPES:
        arrays |= record(rng, kind)
    path = Path(__file__).with_name("torch_images.npz")
    np.savez_compressed(path, allow_pickle=False, **{name: array.numpy() for name, array in arrays.items()})
    print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes, torch {torch.__version__}, seed {SEED}")


if __name__ == "__main__":
    main()
