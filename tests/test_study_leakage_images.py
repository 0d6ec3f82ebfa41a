"""The attack on drawings inverts what clients send; what the first layer gives away is exact where one image was learned from."""

import json
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import leakage_images as leakage
from experiments import leakage_images_report as report
from experiments import study
from experiments.inversion import message
from experiments.leakage_images import Message
from metaprior.likelihoods import categorical
from metaprior.meta import meta_learner

SMALL = replace(leakage.SMOKE, hidden=4)
POOL = np.random.default_rng(0).uniform(size=(20, 2, leakage.SIDE**2))
ONE = Message()


def client(name, what, number=3):
    learner = leakage.learner_of(SMALL, name, what.steps)
    state, truth = leakage._prior(SMALL, learner, number), leakage.drawn(POOL, what, number)
    return learner, state, truth, leakage.observed(learner, what, state, truth, number)


@pytest.mark.parametrize("name", [pytest.param("gem-bml+", marks=pytest.mark.slow), "gem-bml"])
def test_what_is_inverted_is_what_is_sent(name):
    what = Message(steps=2, tasks=2, images=3)
    learner, state, truth, seen = client(name, what)
    labels = jnp.broadcast_to(jnp.arange(3), (2, 3))
    found = message(learner, state)(leakage.episodes(jnp.asarray(truth), labels))
    np.testing.assert_allclose(found, seen, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_one_image_of_support_and_one_of_query_are_given_away_at_once():
    """After one step, where the second stage sees the query alone: both images, without any search."""
    model, method = leakage.model_of(SMALL), leakage.learner_of(SMALL, "gem-bml+", 1).method
    method = method._replace(second_stage="sequential")
    learner = meta_learner(method, categorical(model.apply, temperature=method.temperature), model=model)
    state, truth = leakage._prior(SMALL, learner, 3), leakage.drawn(POOL, ONE, 3)
    seen = leakage.observed(learner, ONE, state, truth, 3)
    found = leakage.given_away(state, jnp.asarray(seen), jnp.asarray(truth))
    np.testing.assert_allclose(found[1], truth[1], atol=1e-7)
    assert np.abs(found[0] - truth[0]).mean() < 0.01  # entries that would be divided by next to nothing are left out


def test_an_attack_that_begins_near_the_drawings_ends_at_them():
    learner, state, truth, seen = client("maml", ONE)
    told, labels = message(learner, state), jnp.zeros((1, 1), int)
    near = jnp.clip(jnp.asarray(truth) + 0.05, 0, 1)
    settings = replace(SMALL, iterations=40, inner=40)
    attack = lambda start: leakage.attack(
        settings, lambda x: told(leakage.episodes(x, labels)), state, jnp.asarray(seen), start, noisy=False
    )
    guess, misfit = jax.jit(attack)(near)
    assert leakage.error(np.asarray(near), truth, 1.0) > 0.03
    assert float(misfit) < 1e-9 and leakage.error(np.asarray(guess), truth, 1.0) < 1e-3


def test_the_error_does_not_mind_the_order_of_tasks():
    truth = leakage.drawn(POOL, Message(tasks=3, images=2), 1)
    assert leakage.error(truth[:, [2, 0, 1]], truth, 1.0) == 0
    assert leakage.error(truth + 0.5, truth, 0.25) == pytest.approx(2.0)


def test_drawings_are_read_out_of_messages_of_one_task():
    """From the results: after one step, for MAML and for Gradient-EM alike; and noise of a tenth hides them."""
    results = study.load("leakage-images")
    of = lambda name, kind: np.array(results["curves"][f"{name} {kind}"]["error"])
    unseen = np.mean(results["curves"][report.MEAN]["error"])
    for name in ("maml", "gem-bml+"):
        assert (of(name, "1 + 1 drawings") < leakage.RECOVERED).mean() > 0.5
        assert of(name, "noise 0.1").mean() > 0.6 * unseen


def test_what_is_told_is_made_from_results():
    curves = {"maml one": {"error": [0.1, 0.5], "drawings": np.zeros((2, 2, 2, leakage.SIDE**2)).tolist()}}
    curves |= {name: {"error": [0.9, 1.1]} for name in (report.MEAN, report.FRESH)}
    named: dict[str, Any] = {"setting": report.setting(Message(noise=0.01)), "method": "maml"}
    rows = [study.row(**named, metric="error", mean=0.3, ci95=0.2), study.row(**named, metric="recovered", mean=0.5)]
    settings = {"methods": ["maml"], "messages": ["one"], "seeds": [0], "clients": 2}
    results = json.loads(json.dumps({"rows": rows, "curves": curves, "settings": settings}))
    assert "one: maml 0.30 (50%)" in " ".join(report.remarks(results))
    assert "| 1 inner step, 1 task, 1 + 1 drawings, noise 0.01 | 0.30 ± 0.20 (50%) |" in report.compact(results)
    report.figure(results).canvas.draw()
