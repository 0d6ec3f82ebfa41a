"""Half-cheetah, asked for a speed.

metaprior reproduce rl-cheetah-velocity             # on a GPU
metaprior reproduce rl-cheetah-velocity --scale smoke
"""

from dataclasses import replace

from experiments import rl, rl_navigation, rl_report, study
from experiments.rl_settings import Settings

# Speeds that are asked for differ more than seeds do: many tasks make intervals narrow.
FULL = Settings(
    "rl-cheetah-velocity", meta_batch=40, beyond=0, test=(200, 40), drawn=2, scratch=(0, 1, 2, 3, 5, 10, 20, 30, 50)
)  # fmt: skip
SMOKE = replace(rl_navigation.SMOKE, environment="rl-cheetah-velocity", methods=("gem-bml+", "scratch"))
STUDY, run = study.declare(
    rl.__name__,
    report=rl_report,
    name="rl-cheetah-velocity",
    title="Reinforcement learning: half-cheetah, goal velocity",
    paper="GEM-BML+ outperforms MAML after up to three updates, GEM-BML and Reptile stay behind; TRPO inner steps do not help.",
    full=FULL,
    smoke=SMOKE,
)
