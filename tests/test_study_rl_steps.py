"""How far an update goes: the returns are those of the priors on validation tasks, and what is said is what they say."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import experiments
from experiments import rl, rl_step_sizes, rl_step_sizes_report, rl_training, study
from metaprior.evaluation import VALIDATION_SEED
from metaprior.rl.evaluation import adapted_returns


@pytest.fixture(autouse=True)
def kept_apart(monkeypatch, tmp_path, quick_compile):
    """Trainings are kept in a folder of the test."""
    monkeypatch.setattr(rl_training, "STATES", tmp_path / "states")


def test_plain_steps_are_those_of_the_method_and_regions_are_kept():
    """The same priors, tasks and noise as `adapted_returns` finds on validation tasks; a small bound moves less."""
    world = replace(rl_step_sizes.SMOKE.worlds[0], horizon=4)
    settings = replace(rl_step_sizes.SMOKE, worlds=(world,), rates=(0.1,), bounds=(0.01,))
    found = json.loads(json.dumps(study.run(experiments.get("rl-step-sizes"), settings, scale="smoke")))
    assert [row["method"] for row in found["rows"][::4]] == ["plain 0.1", "trust region 0.01"]
    setup = rl.put(world, "gem-bml+")
    state = jax.tree.map(lambda leaf: leaf[0], rl.searched(world, "gem-bml+").kept.states)
    known = (setup.learner, setup.environment, setup.policy, state)
    own = adapted_returns(jax.random.key(VALIDATION_SEED), *known, steps=2, num_tasks=3, count=3)
    plain, trust = (np.asarray(curve["returns"])[0] for curve in found["curves"].values())
    np.testing.assert_allclose(plain, own, atol=1e-3)
    np.testing.assert_allclose(trust[:, 0], own[:, 0], atol=1e-3)  # before any update
    far = [row["mean"] for row in found["rows"] if row["metric"] == "KL of the first step"]
    assert far[1] < 0.03  # the bound holds on the trajectories that it was searched on; these are others
    rl_step_sizes_report.figure(found).canvas.draw()


def written(plain, trust):
    """Results by hand: {size: (KL, return after the update)} of either kind, which tasks agree on up to a little noise."""
    noise = np.random.default_rng(0).normal(0, 0.01, (2, 5))
    rows, curves = [], {}
    for kind, sizes in (("plain", plain), ("trust region", trust)):
        for size, (far, value) in sizes.items():
            returns = np.stack([np.full((2, 5), -9.0), value + noise], axis=-1)
            curves[f"w/{kind}/{size:g}"] = {"kind": kind, "size": size, "returns": returns.tolist()}
            rows.append(study.row(setting="w", method=f"{kind} {size:g}", metric="KL of the first step", mean=far))
    return {"settings": {}, "rows": rows, "curves": curves}


def test_remarks_compare_the_best_and_what_goes_as_far():
    results = written({0.1: (0.2, -3.0), 1.0: (5.0, -7.0)}, {0.01: (0.01, -6.0), 1.0: (0.4, -2.0)})
    (world, rule) = rl_step_sizes_report.remarks(results)
    assert "after 1 update plain steps are best at rate 0.1 (-3.00 ± 0.01) and trust regions at KL 1 (-2.00" in world
    assert "the latter minus the former is +1.00 ± 0.00 (better)" in world
    assert "KL 0.01 (0.01) beside" not in world, "no plain step is as short"
    assert "KL 1 (0.4) beside rate 0.1 (0.2) +1.00 ± 0.00 (better)" in world
    assert "validation tasks" in rule
    assert not rl_step_sizes_report.remarks({"settings": {}, "rows": [], "curves": {}})


def test_what_left_the_finite_numbers_is_left_out():
    results = written({0.1: (0.2, -3.0), 1.0: (float("nan"), float("nan"))}, {1.0: (0.4, -2.0)})
    assert [step["size"] for step in rl_step_sizes_report.steps_of(results, "w")] == [0.1, 1.0]
    words = " ".join(rl_step_sizes_report.remarks(results))
    assert "nan" not in words and "1 of its steps left the finite numbers" in words
    rl_step_sizes_report.figure(results).canvas.draw()
