r"""The paper's matrix: two posteriors, three formulas, two ways to take their gradient.

With q1 = infer(prior, support) and q2 from the second stage, every method maximises one of

| column | formula |
|---|---|
| joint | $\mathrm{ELBO}(q_2; \Theta, D_{tr} \cup D_{val})$ |
| conditional | $E_{q_2} \log p(D_{val}) - \mathrm{KL}(q_2 \,\|\, q_1)$ |
| difference | $\mathrm{ELBO}(q_2; \Theta, D_{tr} \cup D_{val}) - \mathrm{ELBO}(q_1; \Theta, D_{tr})$ |

where $\mathrm{ELBO}(q; \Theta, D) = E_q \log p(D) - \mathrm{KL}(q \,\|\, p_\Theta)$. Row `elbo` differentiates through inference;
row `gem` holds the posteriors fixed, so that of the first and third formula only $-\mathrm{KL}(q_2\|p_\Theta)$ and
$+\mathrm{KL}(q_1\|p_\Theta)$ have a gradient: E_q ∇ log p(θ; Θ), which at the exact posterior is the gradient of the evidence
(Theorem 1). In the second, Θ is reached through q1 alone, which is not held: memory grows with its steps.

A third row, `evidence`, scores the query under q1 directly: the log-mean likelihood of particles, or Laplace's approximation at
a point.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metaprior.families import log_probs
from metaprior.inference.base import infer
from metaprior.inference.laplace import log_evidence_correction
from metaprior.last_layer import LastLayer
from metaprior.types import Dist, Episode, Family, Inference, Key, Likelihood, Posteriors, Prior, Source

ROWS = ("elbo", "gem", "evidence")
COLUMNS = ("joint", "conditional", "difference")


class Stage(NamedTuple):
    """What one run of inference begins with."""

    prior: Prior
    start: Dist
    source: Source


class Cell(NamedTuple):
    """One cell of the matrix with its pieces, ready to score an episode."""

    likelihood: Likelihood
    family: Family
    inference: Inference
    row: str
    column: str
    second_stage: str
    steps: tuple[int, int]
    draw_steps: bool = False  # each task draws its steps on the support uniformly from 1..steps[0]
    scores: str = "all"  # the joint column may score "all" data or the "query" alone
    num_samples: int = 1  # draws for E_q log p
    second: Inference | None = None  # of the second stage, where it is another


def _sequential(cell: Cell, prior: Prior, q1: Dist, episode: Episode) -> Stage:
    """Today's posterior is tomorrow's prior: the paper's second stage."""
    return Stage(prior._replace(dist=cell.family.as_prior(q1, prior.dist)), q1, episode.query)


def _joint_from_prior(cell: Cell, prior: Prior, q1: Dist, episode: Episode) -> Stage:
    """All data at once, from the beginning."""
    return Stage(prior, cell.family.start(prior.dist), cell.likelihood.join(*episode))


def _joint_from_q1(cell: Cell, prior: Prior, q1: Dist, episode: Episode) -> Stage:
    """All data at once, going on from q1: BMAML's leader."""
    return Stage(prior, q1, cell.likelihood.join(*episode))


SECOND_STAGES: dict[str, Callable[[Cell, Prior, Dist, Episode], Stage] | None] = {
    "none": None,
    "sequential": _sequential,
    "joint-from-prior": _joint_from_prior,
    "joint-from-q1": _joint_from_q1,
}


def score(cell: Cell, key: Key, prior: Prior, episode: Episode, memory=()):
    """The formula of the cell in nats, to be maximised in `prior`; with the posteriors and the memory inference leaves."""
    key_infer, key_score = jax.random.split(key)
    if cell.inference.score is not None:
        value, posteriors = cell.inference.score(key_score, prior, episode)
        return value, (posteriors, memory)
    posteriors, memory = two_posteriors(cell, key_infer, prior, episode, memory)
    posteriors = Posteriors(*(_on_features_of(prior.dist, q) for q in posteriors))
    return _formula(cell)(cell, key_score, prior, posteriors, episode), (posteriors, memory)


def value(cell: Cell, key: Key, prior: Prior, posteriors: Posteriors, episode: Episode) -> Float[Array, ""]:
    """The formula at posteriors that are already there, under the key they were found with."""
    if cell.inference.score is not None:
        return cell.inference.score(jax.random.split(key)[1], prior, episode)[0]
    return _formula(cell)(cell, jax.random.split(key)[1], prior, posteriors, episode)


def _formula(cell: Cell):
    return FORMULAS["evidence" if cell.row == "evidence" else cell.column]


def two_posteriors(cell: Cell, key: Key, prior: Prior, episode: Episode, memory=()):
    """q1 and q2, held fixed where the row asks for it."""
    key1, key2, key_steps = jax.random.split(key, 3)
    gem = cell.row == "gem"
    active = jax.random.randint(key_steps, (), 1, cell.steps[0] + 1) if cell.draw_steps and cell.steps[0] else None
    held = jax.lax.stop_gradient(prior) if gem else prior
    # In the conditional column q1 plays the prior's part, so Θ is reached through it.
    first = prior if cell.column == "conditional" else held
    start = cell.family.start(first.dist)
    q1, memory = infer(cell.inference, key1, first, start, episode.support, cell.steps[0], memory, active)
    second_stage = SECOND_STAGES[cell.second_stage]
    if second_stage is None:
        return Posteriors(q1, q1), memory
    reached = jax.lax.stop_gradient(q1) if gem else q1
    stage = second_stage(cell, held, reached, episode)
    if cell.second is None:
        q2, memory = infer(cell.inference, key2, stage.prior, stage.start, stage.source, cell.steps[1], memory)
    else:
        q2, _ = infer(cell.second, key2, stage.prior, stage.start, stage.source, cell.steps[1])
    return Posteriors(q1, jax.lax.stop_gradient(q2) if gem else q2), memory


def _on_features_of(prior: Dist, q: Dist) -> Dist:
    """Feature weights belong to Θ and not to the posterior: where q is held fixed they keep their gradient."""
    return q._replace(features=prior.features) if isinstance(q, LastLayer) else q


def tempered_fit(cell: Cell, key: Key, q: Dist, source: Source) -> Float[Array, ""]:
    """E_q log p(D | θ) / T, with D what each draw observes."""
    fit = cell.family.expected_log_prob(key, cell.likelihood, q, source, num_samples=cell.num_samples)
    return fit / cell.likelihood.temperature


def elbo(cell: Cell, key: Key, q: Dist, prior: Dist, source: Source) -> Float[Array, ""]:
    """E_q log p(D | θ) / T − KL(q ‖ prior)."""
    return tempered_fit(cell, key, q, source) - cell.family.kl(q, prior)


def _of_all(cell: Cell, key: Key, q: Dist, prior: Dist, episode: Episode) -> Float[Array, ""]:
    """ELBO(q; Θ, D_tr ∪ D_val)."""
    if not cell.likelihood.normalised:
        return elbo(cell, key, q, prior, cell.likelihood.join(*episode))
    # In one batch the support would be normalised by other statistics than when q1 was inferred from it: it would be another
    # support, and what the query adds to it no predictive density. So each set counts as it is seen, under the same draws.
    return elbo(cell, key, q, prior, episode.support) + tempered_fit(cell, key, q, episode.query)


def _joint(cell, key, prior, posteriors, episode):
    if cell.scores == "query":
        return elbo(cell, key, posteriors.q2, prior.dist, episode.query)
    return _of_all(cell, key, posteriors.q2, prior.dist, episode)


def _conditional(cell, key, prior, posteriors, episode):
    fit = tempered_fit(cell, key, posteriors.q2, episode.query)
    if cell.second_stage == "none":  # q2 = q1
        return fit
    return fit - cell.family.kl(posteriors.q2, cell.family.as_prior(posteriors.q1, prior.dist))


def _difference(cell, key, prior, posteriors, episode):
    key1, key2 = jax.random.split(key)
    whole = _of_all(cell, key2, posteriors.q2, prior.dist, episode)
    return whole - elbo(cell, key1, posteriors.q1, prior.dist, episode.support)


def _evidence(cell, key, prior, posteriors, episode):
    q1, temperature = posteriors.q1, cell.likelihood.temperature
    if cell.family.name == "particles":
        likelihoods = log_probs(key, cell.likelihood, q1, episode.query) / temperature
        return jax.nn.logsumexp(likelihoods) - jnp.log(likelihoods.shape[0])
    batch = cell.likelihood.observe(key, q1.mean, episode.query)
    fit = cell.likelihood.log_prob(q1.mean, batch) / temperature
    return fit + log_evidence_correction(cell.likelihood, q1.mean, prior.dist, batch)


FORMULAS = {"joint": _joint, "conditional": _conditional, "difference": _difference, "evidence": _evidence}
