"""Few-shot classification of handwritten characters (Table 2).

metaprior reproduce omniglot --data-dir FOLDER                        # all settings, on a GPU
metaprior reproduce omniglot --setting 5w1s --scale smoke --data-dir FOLDER
"""

from experiments import study
from experiments.few_shot import Settings, make

FULL = Settings("omniglot", ("5w1s", "5w5s", "20w1s", "20w5s"))
# Learns well above 80 % in two minutes on two cores.
SMOKE = Settings(
    "omniglot", ("5w1s",), seeds=(0,), iterations=250, methods=("gem-bml+last-layer",), literal=(),
    around=(("filters", 32),), validation=20, protocols=("paper",), tasks_share=0.25,
)  # fmt: skip
STUDY = make(
    "omniglot",
    "Few-shot Omniglot (Table 2)",
    "GEM-BML+ is on a par with the best: 99.23, 99.64, 96.24 and 98.94 % on 5-way 1- and 5-shot, 20-way 1- and 5-shot tasks.",
    FULL,
    SMOKE,
)


def run(settings: Settings) -> study.Results:
    """The whole study."""
    return study.run(STUDY, settings)
