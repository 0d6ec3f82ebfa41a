"""From a row of the table to a cell of the matrix: the pieces that the row names, put together."""

import jax
import jax.numpy as jnp

from metaprior.inference import INFERENCES
from metaprior.matrix import Cell
from metaprior.methods import Method, family
from metaprior.models import Model
from metaprior.models.noise import noisy_params, require_noisy
from metaprior.optimizers import inner_optimizer
from metaprior.types import Likelihood


def make_cell(method: Method, likelihood: Likelihood, model: Model | None = None) -> Cell:
    """The pieces a row names, put together."""
    posterior = family(method.posterior, method)
    options = {name: value for name, value in method.options.items() if name != "second"}
    second = dict(method.options.get("second", {}))
    if method.inference in ("gradient", "implicit"):
        options = inner_optimizer(method) | options
    elif method.inference != "conjugate":
        options.setdefault("rate", method.rate)
    if method.inference == "gradient" and method.estimator != "weights":
        options.setdefault("draw", _noisy_draw(method, model))
    if method.inference in ("gradient", "natural_vi"):
        options.setdefault("num_samples", method.num_samples)
    if method.inference == "preconditioned" and method.rates == "tied":
        options.setdefault("tied_to", method.std)
    if method.inference == "platipus":
        options |= {"steps": method.steps[0], "num_particles": method.num_particles}
    return Cell(
        likelihood=likelihood,
        family=posterior,
        inference=INFERENCES[method.inference].make(likelihood, posterior, **options),
        row=method.row,
        column=method.column,
        second_stage=method.second_stage,
        steps=method.steps,
        draw_steps=method.draw_steps,
        scores=method.scores,
        num_samples=method.num_samples,
        second=INFERENCES[second.pop("inference")].make(likelihood, posterior, **second) if second else None,
    )


def _noisy_draw(method: Method, model: Model | None):
    if model is None:
        raise ValueError(f"the {method.estimator} estimator needs the layers of a network: pass model= to meta_learner")
    require_noisy(model, method.estimator)
    if method.posterior != "mean-field":
        raise ValueError(
            f"the {method.estimator} estimator samples mean-field weights, not a {method.posterior} posterior"
        )

    def draw(key, q):
        return noisy_params(key, q.mean, jax.tree.map(jnp.exp, q.log_std), method.estimator)

    return draw
