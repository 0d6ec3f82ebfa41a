"""The words every other module speaks: weights, distributions, episodes, and the shapes of the pieces.

Behaviour is a NamedTuple of functions, state a NamedTuple of arrays; both are values that can be passed, stored and compared.
Letters used in shapes: `T` tasks, `N` points of a task, `S` samples, `P` particles, `W` weights when flattened to one vector.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Float, PyTree

Key = Array  # a typed key, `jax.random.key(seed)`; consumed by the function it is given to
Params = PyTree[Float[Array, "..."]]  # θ: one set of weights
Dist = Any  # the parameters of a distribution over θ: one of the NamedTuples in `families`
Source = Any  # what a task is known by: its data, or an environment to collect data from
Batch = Any  # what a likelihood scores: data, or rollouts


class Data(NamedTuple):
    """Labelled points of one task; `x` and `y` share their first axis. No points at all is legal."""

    x: Float[Array, "N ..."]
    y: Array


class Episode(NamedTuple):
    """One task, split in two: `support` (D_tr) is adapted to, `query` (D_val) judges the result."""

    support: Source
    query: Source


class Prior(NamedTuple):
    """Θ: everything that tasks share and meta-training learns.

    Width and rate are two things. `dist` is p(θ; Θ), a distribution over weights. `log_rate` scales the inner step of each
    weight relative to the inference's own step size; it is `None` where a method has no rates of its own. `extra` holds what
    single methods add (see `methods`).
    """

    dist: Dist
    log_rate: Params | None = None
    extra: Any = ()


class Posteriors(NamedTuple):
    """What inference leaves of one task: q1 after the support set, q2 after the second stage."""

    q1: Dist
    q2: Dist


class Region(NamedTuple):
    """What a trust region is made of, point by point: what a change of outputs gains, and how far it goes."""

    gain: Callable[[Array, Array, Batch], Float[Array, " N"]]  # (outputs, those before, batch)
    kl: Callable[[Array, Array, Batch], Float[Array, " N"]]  # KL(before ‖ after) of (those before, outputs, batch)


ACTING = ("sample", "mean")


class Likelihood(NamedTuple):
    """p(D | θ), tempered: the log-likelihood of n points counts as N_eff = n / T points.

    Every objective in the package is built from `log_prob` and `temperature` through `effective_size`, so that inference on
    one set after another agrees with inference on their union.
    """

    observe: Callable[[Key, Params, Source], Batch]
    outputs: Callable[[Params, Batch], Float[Array, "N O"]]
    log_density: Callable[[Float[Array, "N O"], Batch], Float[Array, " N"]]
    size: Callable[[Source], Any]  # a whole number; traced where points carry weights
    join: Callable[[Source, Source], Source]
    temperature: float = 1.0
    least_loss: Callable[[Batch], float] = lambda batch: -math.inf  # per point, of a perfect answer, where there is one
    # Batch normalisation forgets the scale of weights: a step that is too long lengthens them and so shortens those that follow.
    # The curvature at the first weights then says nothing about which rates work (MAML's own is five times "too large").
    normalised: bool = False
    given: bool = True  # whether there are data before any weights act; rollouts have no curvature to check rates by
    region: Region | None = None  # None: no trust region can be put around a step
    # Where weights collect their own data and the posterior has a width: each draw its own, or the mean for all draws.
    acting: str = "sample"

    def log_prob(self, params: PyTree, batch: Batch) -> Float[Array, ""]:
        """Σᵢ log p(yᵢ | xᵢ, θ): untempered, summed over points; zero for no points."""
        return self.log_density(self.outputs(params, batch), batch).sum()

    def observed_log_prob(self, key: Key, params: PyTree, source: Source) -> Float[Array, ""]:
        """Log p of what these very weights get to see: given data, or rollouts of their own."""
        return self.log_prob(params, self.observe(key, params, source))

    def actor(self, mean: PyTree, draw: PyTree) -> PyTree:
        """The weights whose data a draw is scored on."""
        return draw if self.acting == "sample" else mean

    def effective_size(self, source: Source) -> float | Float[Array, ""]:
        """N_eff = |D| / T; points that carry weights count as these say."""
        return self.size(source) / self.temperature


class Family(NamedTuple):
    """A kind of distribution over weights, as a prior, as a posterior, or both."""

    name: str
    init: Callable[..., Dist]  # (key, params, std) -> a prior centred at params
    start: Callable[[Dist], Dist]  # prior -> the posterior before any data
    mean: Callable[[Dist], Params]
    samples: Callable[[Key, Dist, int], Params]  # S draws, stacked on a new first axis
    kl: Callable[[Dist, Dist], Float[Array, ""]]  # KL(q ‖ p) for q of this family
    as_prior: Callable[[Dist, Dist], Dist]  # (q, prior) -> the prior that q is for the data that follow
    # (key, likelihood, q, source, num_samples) -> E_q log p(what θ observes | θ)
    expected_log_prob: Callable[..., Float[Array, ""]]


class Inference(NamedTuple):
    """infer(prior, source) = q, one step at a time.

    `memory` is what an inference shares between tasks and carries from one meta-step to the next (the second moment of an
    inner Adam); it is `()` for most.
    """

    name: str
    init: Callable[..., Any]  # (key, prior, start, source, memory) -> state
    step: Callable[..., Any]  # (key, state, prior, source) -> state
    posterior: Callable[..., Dist]  # (state, prior, source) -> q
    check: Callable[..., str | None]  # (prior, source) -> what is unstable and how to mend it, or None
    memory: Callable[[Dist], Any] = lambda start: ()
    recall: Callable[[Any], Any] = lambda state: ()  # state -> what this task adds to the memory
    # whether `check` binds the first weights only: trained networks live at the edge of stability
    soft_limit: bool = False
    score: Callable[..., Any] | None = None  # (key, prior, episode) -> (score, posteriors): an objective of its own
