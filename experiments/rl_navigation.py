"""A point that is to reach a goal it does not see.

metaprior reproduce rl-navigation                  # on a GPU; it takes hours on two cores
metaprior reproduce rl-navigation --scale smoke
"""

from experiments import rl, rl_report, study
from experiments.rl_settings import Settings

FULL = Settings("rl-navigation", factors=(1.0, 3.0, 10.0), bounds=(0.01, 0.03, 0.1))
SMOKE = Settings(
    "rl-navigation", seeds=(0,), methods=("gem-bml+", "pretrain", "scratch"), iterations=2, looks=2, meta_batch=2,
    rollouts=3, horizon=8, factors=(1.0, 3.0), bounds=(0.01, 0.03), validation=(2, 2), updates=2, test=(4, 3), drawn=2,
    scratch=(0, 1, 2), scratch_rates=(0.01, 0.03),
)  # fmt: skip
STUDY, run = study.declare(
    rl.__name__,
    report=rl_report,
    name="rl-navigation",
    title="Reinforcement learning: 2D navigation",
    paper="GEM-BML+ outperforms MAML after up to three updates, GEM-BML and Reptile stay behind; TRPO inner steps are better.",
    full=FULL,
    smoke=SMOKE,
)
