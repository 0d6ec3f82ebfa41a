"""Decompositions of matrices, one matrix at a time on CPUs: those of batches can wait for each other for ever.

jaxlib 0.10 shares a batch of matrices out over the threads that programs run on, and the thread that asks waits for the others.
XLA runs pieces of a program at once: where as many of them wait as there are threads, one for each processor, nobody is left
to do the work. A matrix alone is decomposed by the thread that asks.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; where it is mapped, a loop on CPUs, and a batch on accelerators, which have their own libraries.

    It must not use arrays that it is not given, and no gradient can be taken backwards through it.
    """
    looped = jax.custom_batching.sequential_vmap(function)

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        return (looped if jax.default_backend() == "cpu" else function)(*arguments)

    return called
