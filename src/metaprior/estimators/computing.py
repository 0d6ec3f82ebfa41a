"""How tables are computed: with 64 bits, whatever JAX is set to, and on one thread of BLAS.

Matrices that are inverted want precision, and are so small that threads which wait for each other over them cost twentyfold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import jax
from threadpoolctl import ThreadpoolController


@contextmanager
def small_and_precise() -> Iterator[None]:
    """Inside, as said above."""
    with jax.enable_x64(True), _controller().limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through every library that is loaded, which takes its time
