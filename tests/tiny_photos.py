"""Pictures that are easy to tell apart, a task set made of them, and runs on it that need no data set at hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from metaprior import checkpoints, runs, training
from metaprior.predict import Calibration
from metaprior.settings import Settings, Setup, as_dict, assemble

SIDE = 28
PER_CLASS = 20  # enough for five support images and fifteen to be judged by


def drawings(kind: int, count: int, seed: int = 0) -> UInt8[np.ndarray, "N 28 28 1"]:
    """Light waves on a dark ground whose direction and width are those of the class; each drawing has a phase of its own."""
    rng = np.random.default_rng([kind, seed])
    angle, period = np.pi * (kind * 0.618 % 1), 4 + kind * 7 % 9
    rows, columns = np.mgrid[:SIDE, :SIDE]
    along = rows * np.sin(angle) + columns * np.cos(angle)
    waves = np.sin(2 * np.pi * (along[None] / period + rng.random((count, 1, 1)))) + rng.normal(
        0, 0.1, (count, SIDE, SIDE)
    )
    return np.clip(127 + 127 * waves, 0, 255).astype(np.uint8)[..., None]


def pool(split: str):
    """Twelve classes to learn from, and six and six others."""
    kinds = {"train": range(12), "validation": range(12, 18), "test": range(18, 24)}[split]
    pixels = np.concatenate([drawings(kind, PER_CLASS) for kind in kinds])
    return pixels, np.arange(len(pixels), dtype=np.int32).reshape(len(kinds), PER_CLASS)


def setup(**settings) -> Setup:
    """As for Omniglot, made of drawings."""
    made = assemble(Settings(**{"tasks": "omniglot", "filters": 8, "iterations": 10, "meta_batch": 2, **settings}))
    return made._replace(tasks=made.tasks._replace(pool=pool))


def calibration(noise: float) -> Calibration:
    """One that tells the number of steps."""
    steps = jnp.arange(training.TEST_STEPS + 1.0)
    return Calibration(0.01 * steps, jnp.log(noise) + 0.02 * steps, 0 * steps, 0 * steps, 0 * steps + 1)


def untrained(folder, *, inductive: bool = True, **settings):
    """A run whose prior is where it began, with calibrations that were made up."""
    made = setup(**settings)
    run = runs.create(folder, as_dict(made.settings))
    checkpoints.save(run.checkpoints, 0, training.initial_state(made))
    training.save_calibration(run, calibration(0.7), 0)
    if inductive:
        training.save_calibration(run, calibration(0.9), 0, name=training.INDUCTIVE_FILE)
    runs.release(run)
    return folder


def trained(folder, **settings):
    """A run of a few iterations, calibrated."""
    made = setup(**settings)
    run = training.create_run(made, folder, resume=False)
    training.finish(made, run, jax.block_until_ready(training.train(made, run, chunk=5)))
    runs.release(run)
    return folder
