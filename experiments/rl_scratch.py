"""The control without a prior: fresh policies, trained on each test task alone."""

import jax
import numpy as np

from experiments import study
from experiments.rl_settings import RETURNS, SCRATCH, Settings, put, rounded
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED
from metaprior.rl.controls import Curve, scratch_returns


def from_scratch(settings: Settings) -> study.Results:
    """Fresh policies: the first updates are those of the methods, then as long as it takes, with Adam."""
    num_tasks, count = settings.test
    plain, steps = put(settings, "maml"), tuple(range(settings.updates + 1))
    known = lambda setup: (setup.learner, setup.environment, setup.policy)
    test = jax.random.key(TEST_SEED)
    few = scratch_returns(test, *known(plain), updates=steps, num_tasks=num_tasks, count=count)
    made = []
    for step in steps:
        mean, ci95 = study.mean_and_ci(np.asarray(few.returns)[:, step])
        made.append(study.row(setting=RETURNS, method=SCRATCH, metric=f"return after {step}", mean=mean, ci95=ci95))
    trials = [_long(settings, rate, trial=True) for rate in settings.scratch_rates]
    scores = [float(np.asarray(trial.returns)[:, -1].mean()) for trial in trials]
    rate = settings.scratch_rates[int(np.argmax(scores))]
    curve = _long(settings, rate, trial=False)
    return {
        "rows": made,
        "curves": {
            SCRATCH: {
                "updates": list(curve.updates),
                "steps": list(curve.steps),
                "returns": rounded(np.asarray(curve.returns).mean(axis=0), 3),
                "few": rounded(few.returns, 3),
                "number": rate,
                "tried": [{"number": r, "validation": s} for r, s in zip(settings.scratch_rates, scores, strict=True)],
            }
        },
    }


def _long(settings: Settings, rate: float, *, trial: bool) -> Curve:
    """As usual in a single task; a trial is shorter, and in validation tasks."""
    setup = put(settings, "maml", optimizer="adam", rate=rate)
    marks = (settings.scratch[-1] // 2,) if trial else settings.scratch
    num_tasks, count = settings.validation if trial else settings.test
    key = jax.random.key(VALIDATION_SEED if trial else TEST_SEED)
    return scratch_returns(
        key, setup.learner, setup.environment, setup.policy, updates=marks, num_tasks=num_tasks, count=count
    )
