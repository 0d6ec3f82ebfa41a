r"""The predictive of a classifier: probabilities of classes, and how sure they may be.

A network gives logits f. What it says is $\mathrm{softmax}(f / \text{noise})$, averaged over weights drawn from q where q is no
point: the noise is that of the largest of f + noise·Gumbel. The exact last layer knows the variance v of each answer and divides
by $\text{noise}\sqrt{1 + c^2 v}$ instead, so that an image unlike all others is answered with doubt. Noise and c are fitted on
validation tasks, as the bands of regression are (`calibration.calibrate`); no probability of a test class is looked at.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from metaprior import metrics
from metaprior.families import Full, cholesky
from metaprior.last_layer import HeadParams
from metaprior.models import Model
from metaprior.predict import Predictor
from metaprior.types import Family


class ClassPredictive(NamedTuple):
    """Probabilities of classes for each point."""

    probabilities: Float[Array, "N C"]

    def log_density(self, y: Array) -> Float[Array, " N"]:
        """Log probability of the right class; `y` are class numbers [N], or one row of targets a point [N, C]."""
        chosen = jnp.take_along_axis(self.probabilities, labels_of(y)[:, None], axis=1)[:, 0]
        return jnp.log(jnp.maximum(chosen, jnp.finfo(chosen.dtype).tiny))


class ClassScores(NamedTuple):
    """Of one task after each number of steps; the last two prediction by prediction, for reliability."""

    accuracy: Float[Array, "..."]
    nll: Float[Array, "..."]
    confidence: Float[Array, "... N"]
    correct: Float[Array, "... N"]


def class_predictor(model: Model, family: Family, *, inductive: bool = False, num_samples: int = 10) -> Predictor:
    """Probabilities by the network's answers.

    Args:
        model: its `inductive` form, if it has one, takes batch statistics from the support alone.
        family: of the posterior.
        inductive: answer each image by itself; otherwise all images of a task are normalised together, as in the literature.
        num_samples: weights drawn from a posterior that has a width.
    """

    def answers(params, support, x):
        if inductive and model.inductive is not None and support.x.shape[0]:
            return model.inductive(params, support.x, x)
        return model.apply(params, x)

    def exact(q, support, x):
        logits = answers(HeadParams(q.features, q.mean), support, x)
        unit = HeadParams(q.features, jnp.eye(q.mean.shape[0], dtype=q.mean.dtype))
        roots = answers(unit, support, x) @ cholesky(Full(q.mean, q.tril))
        return logits[None], jnp.square(roots).sum(axis=1)[None]

    def prepare(key, prior, q, support, x):
        del prior
        if family.name == "last-layer":
            return exact(q, support, x)
        draws = family.samples(key, q, 1 if family.name == "delta" else num_samples)
        logits = jax.vmap(lambda params: answers(params, support, x))(draws)
        return logits, jnp.zeros(logits.shape[:2], logits.dtype)

    def finish(parts, calibration):
        logits, variance = parts
        noise = jnp.exp(calibration.log_noise) * jnp.sqrt(1 + jnp.exp(2 * calibration.log_width) * variance)
        return ClassPredictive(jax.nn.softmax(logits / noise[:, :, None]).mean(axis=0))

    return Predictor("classes", prepare, finish)


def together(parts: tuple[Array, Array]) -> tuple[Array, Array]:
    """What several askings of the same questions gave (leading axis), as one: probabilities are averaged over all of them.

    >>> logits, variance = together((jnp.zeros((4, 10, 3, 2)), jnp.zeros((4, 10, 3))))
    >>> logits.shape, variance.shape
    ((40, 3, 2), (40, 3))
    """
    logits, variance = parts  # [askings, …, samples, N, C], [askings, …, samples, N]

    def as_samples(leaf, axis):
        moved = jnp.moveaxis(leaf, 0, axis - 1)
        return moved.reshape(*moved.shape[: axis - 1], -1, *moved.shape[axis + 1 :])

    return as_samples(logits, -3), as_samples(variance, -2)


def class_scores(predictive: ClassPredictive, y: Array) -> ClassScores:
    """Of one task at one number of steps."""
    labels = labels_of(y)
    correct = (predictive.probabilities.argmax(axis=1) == labels).astype(predictive.probabilities.dtype)
    return ClassScores(
        accuracy=correct.mean(),
        nll=-predictive.log_density(labels).mean(),
        confidence=predictive.probabilities.max(axis=1),
        correct=correct,
    )


def labels_of(y: Array) -> Int[Array, " N"]:
    """Class numbers, from themselves or from rows of targets."""
    return y if y.ndim == 1 else y.argmax(axis=1)


def calibration_error(scores: ClassScores, *, num_bins: int = 15) -> metrics.Reliability:
    """The reliability of all predictions of all tasks together."""
    confidence, correct = (jnp.asarray(part).reshape(-1) for part in (scores.confidence, scores.correct))
    return metrics.reliability_of(confidence, correct, num_bins=num_bins)
