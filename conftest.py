"""Strict mode for tests and doctests: CPU, float64, no broadcasting between ranks, the same examples in every run."""

import gc
import os
from functools import partial
from importlib.metadata import version
from pathlib import Path

# Before JAX and matplotlib are imported, which read these once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

# Nearly all of the time goes into compiling programs that run once. Compiling them well costs more than it brings, and of
# XLA's two code generators the older one is the quicker. `make test-all` sets both variables to what users have.
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    if version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the process
        quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        os.environ.setdefault("XLA_FLAGS", quick)

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
    """Quickly even where the other tests are compiled as for users: for programs that run once and are large."""
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


@pytest.fixture(scope="module")
def few_validation_tasks():
    """Runs calibrated on a handful of tasks: for files that ask what is done with a calibration, not how good it is."""
    from metaprior import evaluation, training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "calibrate_steps", partial(evaluation.calibrate_steps, num_tasks=5))
        yield
