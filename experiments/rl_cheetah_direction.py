"""Half-cheetah, asked for a direction.

metaprior reproduce rl-cheetah-direction             # on a GPU
metaprior reproduce rl-cheetah-direction --scale smoke
"""

from dataclasses import replace

from experiments import rl, rl_navigation, rl_report, study
from experiments.rl import Settings

FULL = Settings(
    "rl-cheetah-direction", iterations=150, shortened=(("maml-trpo", 45), ("gem-bml+trpo", 45)), meta_batch=40, drawn=2,
    search_looks=3, scratch=(0, 1, 2, 3, 5, 10, 20, 30, 50), scratch_rates=(0.003, 0.01, 0.03),
)  # fmt: skip
SMOKE = replace(rl_navigation.SMOKE, environment="rl-cheetah-direction", methods=("gem-bml+", "scratch"))
STUDY, run = study.declare(
    rl.__name__,
    report=rl_report,
    name="rl-cheetah-direction",
    title="Reinforcement learning: half-cheetah, forward or backward",
    paper="GEM-BML+ outperforms MAML after up to three updates, GEM-BML and Reptile stay behind; TRPO inner steps do not help.",
    full=FULL,
    smoke=SMOKE,
)
