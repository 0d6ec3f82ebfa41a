"""Characters: examples of a few classes, one drawing each, and what the prior takes a further drawing for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from metaprior.classes import class_predictor
from metaprior.evaluation import for_classes
from metaprior.page import priors
from metaprior.predict import Calibration
from metaprior.settings import Setup
from metaprior.tasks import IMAGE_SETS
from metaprior.tasks.images import class_targets, seen
from metaprior.types import Data, Prior

FEWEST, MOST = 2, 5  # classes
STEPS = 1  # the head is inferred exactly


class Characters(NamedTuple):
    """A prior over characters for each number of classes: one prior, with as many columns of its head."""

    small: priors.Small
    by_classes: Mapping[int, tuple[Prior, Calibration, float]]  # the last: from which probability on an answer is sure
    program: Callable[..., Float[Array, " C"]]

    def answer(self, examples: Sequence[UInt8[np.ndarray, "28 28"]], new: UInt8[np.ndarray, "28 28"]) -> dict[str, Any]:
        """Probabilities of the classes, in the order of the examples, and whether the best of them is to be trusted."""
        prior, calibration, sure_from = self.by_classes[len(examples)]
        support, query = np.stack(examples)[..., None], new[None, ..., None]
        probabilities = np.asarray(self.program(prior, calibration, support, query), float)
        return {
            "probabilities": probabilities.round(5).tolist(),
            "best": int(probabilities.argmax()),
            "sure": bool(probabilities.max() >= sure_from),
            "sure_from": sure_from,
        }


def opened() -> Characters:
    """Read, and ready to be compiled."""
    small = priors.load(priors.CHARACTERS)
    by_classes = {}
    for classes in range(FEWEST, MOST + 1):
        known = small.card["classes"][str(classes)]
        prior = for_classes(small.setup, small.state, classes).prior
        by_classes[classes] = prior, priors.calibration_of(known["calibration"]), float(known["sure_from"])
    return Characters(small, by_classes, jax.jit(program(small.setup)))


def program(setup: Setup) -> Callable[..., Float[Array, " C"]]:
    """(prior, calibration, one example of each class, a new drawing) -> probabilities; compiled for each number of classes."""
    learner, look = setup.learner, IMAGE_SETS[setup.settings.tasks].look
    predictor = class_predictor(setup.model, learner.cell.family, inductive=True)

    def answer(
        prior: Prior, calibration: Calibration, examples: UInt8[Array, "C 28 28 1"], new: UInt8[Array, "1 28 28 1"]
    ) -> Float[Array, " C"]:
        classes = examples.shape[0]
        support = Data(seen(examples, look), class_targets(jnp.arange(classes), classes))
        state = priors.Small(setup, prior, {}).state
        posteriors = learner.adapt(jax.random.key(0), state, support, STEPS)
        q = jax.tree.map(lambda leaf: leaf[STEPS], posteriors)
        parts = predictor.prepare(jax.random.key(0), prior, q, support, seen(new, look))
        return predictor.finish(parts, calibration).probabilities[0]

    return answer
