"""Half-cheetah, asked for a direction.

metaprior reproduce rl-cheetah-direction             # on a GPU
metaprior reproduce rl-cheetah-direction --scale smoke
"""

from dataclasses import replace

from experiments import rl, rl_cheetah_velocity, rl_report, study

# There are two tasks only, and 40 of them are enough.
FULL = replace(rl_cheetah_velocity.FULL, environment="rl-cheetah-direction", test=(40, 40))
SMOKE = replace(rl_cheetah_velocity.SMOKE, environment="rl-cheetah-direction")
STUDY, run = study.declare(
    rl.__name__,
    report=rl_report,
    name="rl-cheetah-direction",
    title="Reinforcement learning: half-cheetah, forward or backward",
    paper="GEM-BML+ outperforms MAML after up to three updates, GEM-BML and Reptile stay behind; TRPO inner steps do not help.",
    full=FULL,
    smoke=SMOKE,
)
