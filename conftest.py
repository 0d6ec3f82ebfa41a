"""Strict mode for tests and doctests: CPU, float64, no broadcasting between ranks, the same examples in every run."""

import gc
import os
from pathlib import Path

# Before JAX and matplotlib are imported, which read these once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiled programs outlive a run, so that the second run is faster; workers share them.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Tracing leaves millions of small objects that live on; looking through them again and again takes time.
gc.set_threshold(50_000, 20, 100)

hypothesis.settings.register_profile("metaprior", derandomize=True, deadline=None)
hypothesis.settings.load_profile("metaprior")

collect_ignore_glob = ["tests/reference/record_*.py"]  # programs that need PyTorch, not tests


@pytest.fixture
def quick_compile():
    """For programs that run once: compiling them well would cost more than it brings."""
    yield from _compiling_quickly()


@pytest.fixture(scope="module")
def quick_compile_here():
    """The same for a whole file, its fixtures included."""
    yield from _compiling_quickly()


def _compiling_quickly():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
