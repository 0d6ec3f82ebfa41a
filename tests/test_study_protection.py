"""The study of what protection costs adds up what clients send, and tells its numbers from the results."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import protection, study
from metaprior.federated.privacy import Privacy, private
from metaprior.meta import Statistics


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_what_is_summed_is_what_protected_clients_send(noise):
    """Client by client, with the very noises; one of them is shorter than the limit, and one kept no task."""
    draw = np.random.default_rng(0)
    gradients, kept = draw.normal(size=(4, 6)) * np.array([[0.1], [2.0], [5.0], [0.0]]), np.array([2.0, 1.0, 3.0, 0.0])
    normals, none = draw.normal(size=(4, 6)), jnp.zeros(())
    each = [
        private(Statistics(jnp.asarray(g), (), none, none, jnp.asarray(k), none), Privacy(1.5, noise or 1.0), n * bool(noise))
        for g, k, n in zip(gradients, kept, normals, strict=True)
    ]  # fmt: skip
    stacked = Statistics(jnp.asarray(gradients), (), jnp.zeros(4), jnp.zeros(4), jnp.asarray(kept), jnp.zeros(4))
    found = protection.summed(stacked, jnp.asarray(normals.sum(axis=0) / 2), clip=1.5, noise=noise)
    np.testing.assert_allclose(found.gradient, sum(one.gradient for one in each), rtol=1e-12)
    assert found.kept == 4


@pytest.mark.slow
def test_without_protection_a_round_is_that_of_one_machine():
    settings = protection.Settings(hidden=(5,), rounds=3)
    state = protection.trainer(settings, 4)(0, 0.0, math.inf, 0.01)
    learner = protection.learner_of(settings, 0.01)
    ours = protection.begun(settings, learner, 0)
    for _ in range(3):
        key_draw, key_infer, _ = jax.random.split(jax.random.fold_in(ours.key, ours.iteration), 3)
        keys = [protection.numbered_keys(key, jnp.arange(4)) for key in (key_draw, key_infer)]
        ours, _ = learner.step(ours, keys[1], jax.vmap(protection.TASKS.sample)(keys[0]))
    for a, b in zip(jax.tree.leaves(state.prior), jax.tree.leaves(ours.prior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_remarks_and_figure_are_made_from_rows():
    values = {
        ("10 clients", "no protection"): (0.4, None),
        ("10 clients", "noise 1"): (3.0, 40.0),
        ("1,000 clients", "no protection"): (0.3, None),
        ("1,000 clients", "noise 1"): (0.5, 4.0),
    }
    rows = []
    for (setting, method), (error, epsilon) in values.items():
        named: dict[str, Any] = {"setting": setting, "method": method}
        rows.append(study.row(**named, metric=protection.MSE, mean=error, ci95=0.1))
        if epsilon is not None:
            rows.append(study.row(**named, metric=protection.SERVER, mean=900.0))
            rows.append(study.row(**named, metric=protection.OTHERS, mean=epsilon))
    results = json.loads(json.dumps({"rows": rows, "curves": {}, "settings": {}}))
    said = protection.remarks(results)
    assert said[0].endswith("below twice that with none of these noises.")
    assert said[1].endswith("below twice that with noise 1, ε = 4 towards others.")
    protection.figure(results).canvas.draw()


def test_noise_costs_and_many_clients_make_up_for_it():
    """From the results: at every number of clients the largest noise is worse than none, and the same noise harms many less."""
    rows = study.load("protection")["rows"]
    error = {(row["setting"], row["method"]): row["mean"] for row in rows if row["metric"] == protection.MSE}
    for setting in {setting for setting, _ in error}:
        assert error[setting, "noise 3"] > error[setting, "no protection"]
    assert error["300 clients", "noise 0.3"] < error["10 clients", "noise 0.3"]
