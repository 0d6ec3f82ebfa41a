r"""Records the meta-gradients of MAML, FOMAML and Reptile with plain PyTorch autograd, for comparison with ours.

Recorded with torch 2.13.0 (CPU, float64) and numpy 2.4.6, seed 20260. The tests do not need PyTorch; to record anew:

    python3 -m venv /tmp/torchenv
    /tmp/torchenv/bin/pip install torch==2.13.0 numpy==2.4.6
    /tmp/torchenv/bin/python tests/reference/record_torch.py

Everything goes to `torch_gradients.npz` beside this file. Every array is float64, except for the integer labels
`c_support_y` and `c_query_y`. Weights are `[in, out]`, so that a layer is $x W + b$; ReLU follows all but the last.
There are `T` = 3 tasks; `<w>` is the name of a weight, `<k>` the number of inner steps, plain SGD of step size `lr`.

Regression: network 1-8-8-1 with weights `w0, b0, w1, b1, w2, b2`, loss = squared error, mean over the points of a set,
k in (1, 3), `lr` = 0.05:

| name | shape | what |
|---|---|---|
| `<w>` | | $\theta_0$, the starting weights |
| `support_x, support_y` | [T, 6, 1] | points of a sinusoid with its own amplitude and phase per task |
| `query_x, query_y` | [T, 5, 1] | other points of the same sinusoid |
| `maml_k<k>_<w>` | as `<w>` | mean over tasks of $\nabla_{\theta_0} L_{query}(\theta_k)$, through the inner steps |
| `fomaml_k<k>_<w>` | as `<w>` | the same with inner gradients detached: the mean of $\nabla L_{query}$ at $\theta_k$ |
| `reptile_k<k>_<w>` | as `<w>` | mean over tasks of $\theta_{2k} - \theta_0$: k steps on the support, k on the query |
| `task_maml_k<k>_<w>`, `task_fomaml_...`, `task_reptile_...` | [T, ...] | the same per task, before the mean |
| `query_loss_k<k>` | [T] | $L_{query}(\theta_k)$ per task |
| `adapted_k<k>_<w>` | [T, ...] | $\theta_k$ per task, after the steps on the support |

Classification: network 4-8-3 with weights `c_w0, c_b0, c_w1, c_b1`, loss = cross entropy, mean over points, k = 2,
`c_lr` = 0.1, labels `c_support_y` [T, 6] and `c_query_y` [T, 5]. Names as above behind the prefix `c_`, MAML only:
`c_maml_k2_<w>`, `c_task_maml_k2_<w>`, `c_query_loss_k2`, `c_adapted_k2_<w>` for `<w>` in `w0, b0, w1, b1`.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SEED = 20260
TASKS, SUPPORT, QUERY = 3, 6, 5
LR, CLASS_LR = 0.05, 0.1

Weights = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


class Task(NamedTuple):
    """One task: `x` [N, in] and `y` [N, out] (or labels [N]) of its two sets."""

    support_x: Tensor
    support_y: Tensor
    query_x: Tensor
    query_y: Tensor


def network(weights: Weights, x: Tensor) -> Tensor:
    """A ReLU network on weights of shape [in, out]; no activation after the last layer."""
    layers = len(weights) // 2
    for i in range(layers):
        x = x @ weights[f"w{i}"] + weights[f"b{i}"]
        x = torch.relu(x) if i < layers - 1 else x
    return x


def descend(weights: Weights, x: Tensor, y: Tensor, *, loss: Loss, lr: float, steps: int, detach: bool) -> Weights:
    """`steps` of plain SGD; unless detached, the result also depends on the starting weights through the gradients."""
    for _ in range(steps):
        value = loss(network(weights, x), y)
        gradients = torch.autograd.grad(value, list(weights.values()), create_graph=not detach)
        weights = {name: w - lr * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    return weights


def query_gradient(start: Weights, task: Task, *, loss: Loss, lr: float, steps: int, detach: bool):
    """The gradient of the query's loss after adaptation with respect to the starting weights, the loss, and the end."""
    start = {name: w.clone().requires_grad_() for name, w in start.items()}
    end = descend(start, task.support_x, task.support_y, loss=loss, lr=lr, steps=steps, detach=detach)
    value = loss(network(end, task.query_x), task.query_y)
    gradients = torch.autograd.grad(value, list(start.values()))
    return dict(zip(start, gradients, strict=True)), value.detach(), {name: w.detach() for name, w in end.items()}


def displacement(start: Weights, task: Task, *, loss: Loss, lr: float, steps: int) -> Weights:
    """θ_final − θ_0 of `steps` on the support followed by as many on the query."""
    options = {"loss": loss, "lr": lr, "steps": steps, "detach": True}
    leaves = {name: w.clone().requires_grad_() for name, w in start.items()}
    middle = descend(leaves, task.support_x, task.support_y, **options)
    end = descend(middle, task.query_x, task.query_y, **options)
    return {name: (end[name] - start[name]).detach() for name in start}


def stacked(trees: list[Weights]) -> Weights:
    """Per-task weights on a new first axis [T, ...]."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def record(start: Weights, tasks: list[Task], *, loss: Loss, lr: float, steps: int, kinds: tuple[str, ...]) -> dict:
    """Means and per-task values of every kind of meta-gradient asked for, by the names in the table above."""
    options = {"loss": loss, "lr": lr, "steps": steps}
    second_order = [query_gradient(start, task, detach=False, **options) for task in tasks]
    found = {
        "maml": lambda: [gradient for gradient, _, _ in second_order],
        "fomaml": lambda: [query_gradient(start, task, detach=True, **options)[0] for task in tasks],
        "reptile": lambda: [displacement(start, task, **options) for task in tasks],
    }
    arrays = {f"query_loss_k{steps}": torch.stack([value for _, value, _ in second_order])}
    for name, w in stacked([end for _, _, end in second_order]).items():
        arrays[f"adapted_k{steps}_{name}"] = w
    for kind in kinds:
        for name, per_task in stacked(found[kind]()).items():
            arrays[f"task_{kind}_k{steps}_{name}"] = per_task
            arrays[f"{kind}_k{steps}_{name}"] = per_task.mean(0)
    return arrays


def random_weights(rng: np.random.Generator, sizes: tuple[int, ...]) -> Weights:
    """Weights small enough for the steps to descend, and biases that are not zero, so that mistakes in them show."""
    weights = {}
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        weights[f"w{i}"] = torch.from_numpy(rng.normal(size=(fan_in, fan_out)) * np.sqrt(0.5 / fan_in))
        weights[f"b{i}"] = torch.from_numpy(rng.normal(size=fan_out) * 0.1)
    return weights


def sinusoids(rng: np.random.Generator) -> list[Task]:
    """Sinusoids y = a sin(x + φ), a in [0.5, 2], φ in [0, π], x in [-3, 3]."""

    def draw():
        amplitude, phase = rng.uniform(0.5, 2.0), rng.uniform(0, np.pi)
        x = rng.uniform(-3, 3, size=(SUPPORT + QUERY, 1))
        x, y = torch.from_numpy(x), torch.from_numpy(amplitude * np.sin(x + phase))
        return Task(x[:SUPPORT], y[:SUPPORT], x[SUPPORT:], y[SUPPORT:])

    return [draw() for _ in range(TASKS)]


def classes(rng: np.random.Generator) -> list[Task]:
    """Three Gaussian clouds in four dimensions, with centres of their own per task; the labels take turns."""

    def draw():
        centres, label = rng.normal(size=(3, 4)), np.arange(SUPPORT + QUERY) % 3
        x, y = torch.from_numpy(centres[label] + 0.5 * rng.normal(size=(label.size, 4))), torch.from_numpy(label)
        return Task(x[:SUPPORT], y[:SUPPORT], x[SUPPORT:], y[SUPPORT:])

    return [draw() for _ in range(TASKS)]


def inputs(weights: Weights, tasks: list[Task]) -> dict:
    """The weights and the data, stacked over tasks."""
    return weights | {field: torch.stack([getattr(task, field) for task in tasks]) for field in Task._fields}


def main() -> None:
    """Record both worlds and save them."""
    rng = np.random.default_rng(SEED)

    weights, tasks = random_weights(rng, (1, 8, 8, 1)), sinusoids(rng)
    arrays = inputs(weights, tasks) | {"lr": torch.tensor(LR, dtype=torch.float64)}
    for steps in (1, 3):
        kinds = ("maml", "fomaml", "reptile")
        arrays |= record(weights, tasks, loss=torch.nn.functional.mse_loss, lr=LR, steps=steps, kinds=kinds)

    weights, tasks = random_weights(rng, (4, 8, 3)), classes(rng)
    found = inputs(weights, tasks) | {"lr": torch.tensor(CLASS_LR, dtype=torch.float64)}
    loss = torch.nn.functional.cross_entropy
    found |= record(weights, tasks, loss=loss, lr=CLASS_LR, steps=2, kinds=("maml",))
    arrays |= {f"c_{name}": array for name, array in found.items()}

    path = Path(__file__).with_name("torch_gradients.npz")
    np.savez_compressed(path, allow_pickle=False, **{name: array.numpy() for name, array in arrays.items()})
    print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes, torch {torch.__version__}, seed {SEED}")


if __name__ == "__main__":
    main()
