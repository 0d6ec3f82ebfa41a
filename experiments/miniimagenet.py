"""Few-shot classification of photographs (Table 3).

metaprior reproduce miniimagenet --data-dir FOLDER                    # all settings, on a GPU
metaprior reproduce miniimagenet --setting 5w1s --data-dir FOLDER
"""

from experiments import study
from experiments.few_shot import Settings, make

FULL = Settings("miniimagenet", ("5w1s", "5w5s"))
SMOKE = Settings(
    "miniimagenet", ("5w1s",), seeds=(0,), iterations=10, methods=("gem-bml+last-layer",), literal=(),
    around=(("filters", 8), ("queries", 2)), validation=4, protocols=("paper",), tasks_share=0.02,
)  # fmt: skip
STUDY = make(
    "miniimagenet",
    "Few-shot miniImageNet (Table 3)",
    "GEM-BML+ reaches 50.03 % on 5-way 1-shot tasks, ahead of the methods it is compared with.",
    FULL,
    SMOKE,
)


def run(settings: Settings) -> study.Results:
    """The whole study."""
    return study.run(STUDY, settings)
