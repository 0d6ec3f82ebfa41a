"""What people would use instead, in PyTorch: torch.func (eager and compiled), TorchOpt, higher.

TorchOpt and higher are written as their documentation teaches, a loop over tasks; torch.func eagerly in the fastest of the
ways we tried, compiled as it is mostly done, and compiled as a whole. PyTorch is imported when a peer is made, never with
this module.
"""

import importlib
from itertools import pairwise

from metaprior.benchmarks.problem import INNER_RATE, META_RATE, SIZES, Batches, Runner, Weights


def eager() -> Runner:
    """torch.func: `grad` inside, `vmap` over tasks, PyTorch's own autograd and Adam outside."""
    import torch

    def begin(weights: Weights):
        parameters = [torch.tensor(w, requires_grad=True) for w in weights]
        return parameters, torch.optim.Adam(parameters, lr=META_RATE, fused=True)

    def train(state, batches):
        parameters, optimizer = state
        losses = []
        for batch in batches:
            loss = _meta_loss(tuple(parameters), *batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return state, torch.stack(losses)

    return Runner(_load, begin, train, lambda state: tuple(w.detach().numpy().copy() for w in state[0]))


def compiled() -> Runner:
    """torch.func as it is mostly compiled: `torch.compile` on the meta-gradient, then a step of PyTorch's Adam."""
    import torch

    gradient = torch.compile(torch.func.grad_and_value(_meta_loss), fullgraph=True, dynamic=False)

    def begin(weights: Weights):
        parameters = [torch.tensor(w, requires_grad=True) for w in weights]
        return parameters, torch.optim.Adam(parameters, lr=META_RATE)

    def train(state, batches):
        parameters, optimizer = state
        losses = []
        for batch in batches:
            grads, loss = gradient(tuple(w.detach() for w in parameters), *batch)
            for w, grad in zip(parameters, grads, strict=True):
                w.grad = grad
            optimizer.step()
            losses.append(loss)
        return state, torch.stack(losses)

    return Runner(_load, begin, train, lambda state: tuple(w.detach().numpy().copy() for w in state[0]))


def compiled_whole() -> Runner:
    """The whole meta-iteration, an Adam of its own included, as one graph: the fastest PyTorch that we know of."""
    import torch

    step = torch.compile(_iteration, fullgraph=True, dynamic=False)

    def begin(weights: Weights):
        weights = tuple(torch.tensor(w) for w in weights)
        zeros = tuple(torch.zeros_like(w) for w in weights)
        return weights, zeros, zeros, torch.zeros((), dtype=weights[0].dtype)

    @torch.no_grad()
    def train(state, batches):
        losses = []
        for batch in batches:
            *state, loss = step(*state, *batch)
            losses.append(loss)
        return tuple(state), torch.stack(losses)

    return Runner(_load, begin, train, lambda state: tuple(w.numpy().copy() for w in state[0]))


def torchopt() -> Runner:
    """TorchOpt: its differentiable SGD on a module, task after task, the module put back in between."""
    import torch

    library = importlib.import_module("torchopt")

    def begin(weights: Weights):
        module = _module(weights)
        inner = library.MetaSGD(module, lr=INNER_RATE)
        return module, inner, torch.optim.Adam(module.parameters(), lr=META_RATE)

    def train(state, batches):
        module, inner, outer = state
        losses = []
        for batch in batches:
            before = [library.extract_state_dict(part, by="reference") for part in (module, inner)]
            query_losses = []
            for support_x, support_y, query_x, query_y in zip(*batch, strict=True):
                inner.step(torch.nn.functional.mse_loss(module(support_x), support_y))
                query_losses.append(torch.nn.functional.mse_loss(module(query_x), query_y))
                for part, kept in zip((module, inner), before, strict=True):
                    library.recover_state_dict(part, kept)
            losses.append(_outer_step(outer, query_losses))
        return state, torch.stack(losses)

    return Runner(_load, begin, train, _weights_of_module)


def higher() -> Runner:
    """higher: a functional copy of a module for each task, with a differentiable SGD."""
    import torch

    library = importlib.import_module("higher")

    def begin(weights: Weights):
        module = _module(weights)
        inner = torch.optim.SGD(module.parameters(), lr=INNER_RATE)
        return module, inner, torch.optim.Adam(module.parameters(), lr=META_RATE)

    def train(state, batches):
        module, inner, outer = state
        losses = []
        for batch in batches:
            query_losses = []
            for support_x, support_y, query_x, query_y in zip(*batch, strict=True):
                with library.innerloop_ctx(module, inner, copy_initial_weights=False) as (copy, steps):
                    steps.step(torch.nn.functional.mse_loss(copy(support_x), support_y))
                    query_losses.append(torch.nn.functional.mse_loss(copy(query_x), query_y))
            losses.append(_outer_step(outer, query_losses))
        return state, torch.stack(losses)

    return Runner(_load, begin, train, _weights_of_module)


def set_threads(count: int) -> None:
    """Of PyTorch, in this process."""
    import torch

    torch.set_num_threads(count)


# --- torch.func -------------------------------------------------------------------------------------------------------


def _mean_squared_error(weights, x, y):
    w0, b0, w1, b1, w2, b2 = weights
    hidden = ((x @ w0 + b0).relu() @ w1 + b1).relu()
    return (hidden @ w2 + b2 - y).square().mean()


def _task_loss(weights, support_x, support_y, query_x, query_y):
    import torch

    grads = torch.func.grad(_mean_squared_error)(weights, support_x, support_y)
    adapted = tuple(w - INNER_RATE * g for w, g in zip(weights, grads, strict=True))
    return _mean_squared_error(adapted, query_x, query_y)


def _meta_loss(weights, *batch):
    import torch

    return torch.func.vmap(_task_loss, in_dims=(None, 0, 0, 0, 0))(weights, *batch).mean()


def _iteration(weights, m, v, count, *batch):
    import torch

    grads, loss = torch.func.grad_and_value(_meta_loss)(weights, *batch)
    count = count + 1
    m = tuple(0.9 * a + 0.1 * g for a, g in zip(m, grads, strict=True))
    v = tuple(0.999 * a + 0.001 * g * g for a, g in zip(v, grads, strict=True))
    first, second = 1 - 0.9**count, 1 - 0.999**count
    steps = (META_RATE * (a / first) / ((b / second).sqrt() + 1e-8) for a, b in zip(m, v, strict=True))
    return tuple(w - step for w, step in zip(weights, steps, strict=True)), m, v, count, loss


# --- what they share --------------------------------------------------------------------------------------------------


def _load(batches: Batches):
    import torch

    return list(zip(*(torch.tensor(array) for array in batches), strict=True))


def _module(weights: Weights):
    import torch

    layers = [torch.nn.Linear(inputs, outputs) for inputs, outputs in pairwise(SIZES)]
    for layer, w, b in zip(layers, weights[::2], weights[1::2], strict=True):
        layer.weight = torch.nn.Parameter(torch.tensor(w).T.contiguous())  # PyTorch keeps [outputs, inputs]
        layer.bias = torch.nn.Parameter(torch.tensor(b))
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])


def _weights_of_module(state) -> Weights:
    parameters = [parameter.detach().numpy().copy() for parameter in state[0].parameters()]
    return tuple(p.T if p.ndim == 2 else p for p in parameters)


def _outer_step(optimizer, query_losses):
    import torch

    loss = torch.stack(query_losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
