r"""MAML with a trust region around what adaptation leads to (Finn et al. 2017).

$$\max_\Theta \frac1T \sum_\tau E\Big[\frac{\pi_{\theta_\tau(\Theta)}}{\pi_{\theta_\tau(\Theta_{\text{old}})}} A\Big]$$
$$\text{with} \quad \frac1T \sum_\tau \mathrm{KL}\big(\pi_{\theta_\tau(\Theta_{\text{old}})} \,\|\, \pi_{\theta_\tau(\Theta)}\big)
\le \delta$$

on query rollouts of the adapted policies. θ_τ(Θ) is adaptation to rollouts that were collected once, by Θ_old: other Θ are
tried on the same experience. At Θ_old the gradient is that of MAML.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaprior import trees
from metaprior.cells import make_cell
from metaprior.inference.base import mean_loss
from metaprior.inference.trust_region import TrustStep, require_region, trust_region_step
from metaprior.meta import Info, MetaLearner, State, meta_learner
from metaprior.methods import Method
from metaprior.scalars import Scalar
from metaprior.types import Batch, Episode, Key, Likelihood, Params, Prior


class Recorded(NamedTuple):
    """The experience of one task: a batch for each inner step, stacked, and that of the query."""

    support: Batch
    query: Batch


def maml_trpo(
    method: Method,
    likelihood: Likelihood,
    *,
    max_kl: Scalar = 0.01,
    solver_steps: int = 10,
    damping: float = 1e-5,
    shrink: float = 0.8,
    max_tries: int = 15,
) -> MetaLearner:
    """A learner like any other, whose meta-step is one trust-region step in the prior's means.

    Args:
        method: the row `maml`, or `fomaml` to hold inner gradients fixed.
        likelihood: `policy_likelihood`, or another with a trust region.
        max_kl: δ, the bound on the mean KL of adapted policies.
        solver_steps: of conjugate gradients.
        damping: of the Fisher matrix.
        shrink: from one try of the line search to the next.
        max_tries: of the line search.
    """
    region: dict[str, Any] = dict(solver_steps=solver_steps, damping=damping, shrink=shrink, max_tries=max_tries)
    require_region(max_kl=max_kl, **region)
    _require_maml(method, likelihood)
    base = meta_learner(method, likelihood, optimizer=optax.identity())

    def step(state: State, keys: Key, episodes: Episode, counted=None, total=lambda part: part) -> tuple[State, Info]:
        lived = jax.vmap(lambda key, episode: record(method, likelihood, key, state.prior, episode))(keys, episodes)
        kept = jax.vmap(trees.all_finite)(lived)
        counted = jnp.ones_like(kept) if counted is None else counted
        left_out, kept = total((counted & ~kept).sum(dtype=float)), kept & counted
        share = kept / jnp.maximum(total(kept.sum(dtype=float)), 1)  # of each task in the means over all of them
        # What is not finite would spread through sums even with a weight of zero.
        lived = jax.vmap(lambda kept, one: trees.where(kept, one, jax.tree.map(jnp.zeros_like, one)))(kept, lived)
        found = _meta_step(method, likelihood, state.prior, lived, share, max_kl, region | {"total": total})
        prior = state.prior._replace(dist=state.prior.dist._replace(mean=found.params))
        moved = _distance(found.params, state.prior.dist.mean)
        info = _info(method, likelihood, state.prior, lived, share, left_out, moved, total)
        return state._replace(prior=prior, iteration=state.iteration + 1), info

    return base._replace(step=step, learn=None, update=None)


def record(method: Method, likelihood: Likelihood, key: Key, prior: Prior, episode: Episode) -> Recorded:
    """What a task's policies live through, under the keys with which `matrix.score` would have them do it."""
    held = jax.lax.stop_gradient(prior)
    cell = make_cell(method, _replaying(likelihood))
    key_infer, key_query = jax.random.split(key)
    key_init, key_steps = jax.random.split(jax.random.split(key_infer, 3)[0])
    state = cell.inference.init(key_init, held, cell.family.start(held.dist), episode.support, ())

    def one(state, key):
        point = cell.inference.posterior(state, held, episode.support).mean
        batch = likelihood.observe(jax.random.split(key, 3)[2], point, episode.support)
        return cell.inference.step(key, state, held, batch), batch

    state, support = jax.lax.scan(one, state, jax.random.split(key_steps, method.steps[0]))
    point = cell.inference.posterior(state, held, episode.support).mean
    return jax.lax.stop_gradient(Recorded(support, likelihood.observe(key_query, point, episode.query)))


def readapted(method: Method, likelihood: Likelihood, prior: Prior, support: Batch) -> Params:
    """Where other meta-weights would have gone with the same experience; differentiable, as MAML is."""
    cell = make_cell(method, _replaying(likelihood))
    unused = jax.random.key(0)  # nothing is drawn: what was lived through is given, and points are not sampled
    state = cell.inference.init(unused, prior, cell.family.start(prior.dist), support, ())
    state, _ = jax.lax.scan(
        lambda state, batch: (cell.inference.step(unused, state, prior, batch), None), state, support
    )
    return cell.inference.posterior(state, prior, support).mean


def _meta_step(method, likelihood, prior: Prior, lived: Recorded, share, max_kl, region: dict[str, Any]) -> TrustStep:
    def outputs(mean):
        moved = prior._replace(dist=prior.dist._replace(mean=mean))
        one = lambda lived: likelihood.outputs(readapted(method, likelihood, moved, lived.support), lived.query)
        return jax.vmap(one)(lived)

    def over_tasks(function, first, second):
        values = jax.vmap(lambda *arguments: function(*arguments).mean())(first, second, lived.query)
        return (share.astype(values.dtype) * values).sum()

    return trust_region_step(
        prior.dist.mean,
        outputs,
        lambda before, after: -over_tasks(likelihood.region.gain, after, before),
        lambda before, after: over_tasks(likelihood.region.kl, before, after),
        max_kl=max_kl,
        **region,
    )


def _info(method, likelihood, prior: Prior, lived: Recorded, share, left_out, step_norm, total) -> Info:
    def nll(one):
        return mean_loss(likelihood, readapted(method, likelihood, prior, one.support), one.query)

    values = jax.vmap(nll)(lived)
    query_nll = total((share.astype(values.dtype) * values).sum())
    unknown = jnp.full((3,), jnp.nan)
    finite = (total(share.sum()) > 0) & jnp.isfinite(step_norm)
    return Info(query_nll, -query_nll, left_out.astype(jnp.int32), finite, step_norm, unknown, unknown)


def _distance(first: Params, second: Params):
    return jnp.sqrt(jnp.square(trees.vector(first) - trees.vector(second)).sum())


def _replaying(likelihood: Likelihood) -> Likelihood:
    return likelihood._replace(observe=lambda key, params, batch: batch)


def _require_maml(method: Method, likelihood: Likelihood) -> None:
    if likelihood.region is None:
        raise ValueError("this likelihood has no trust region: use policy_likelihood, or the row maml with Adam")
    matrix_cell = (method.row, method.column, method.second_stage, method.posterior)
    if matrix_cell != ("elbo", "conditional", "none", "delta") or method.inference not in (
        "gradient",
        "preconditioned",
    ):
        raise ValueError(
            f"the trust region of the meta-step is around policies adapted by gradient steps, and {method.name} has none: "
            "use it with the rows maml and fomaml"
        )
    if method.rates in ("exact", "debiased", "tied") or method.widths != "frozen":
        raise ValueError("a meta-step of TRPO moves the means alone: set widths='frozen' and rates='none' or 'frozen'")
    if method.optimizer == "shared-adam" or method.draw_steps or method.clip is not None:
        raise ValueError(
            "a meta-step of TRPO shares no optimiser between tasks, draws no numbers of steps and clips nothing: "
            "set optimizer='sgd', draw_steps=False, clip=None"
        )
