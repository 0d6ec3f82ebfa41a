"""Few-shot classification of photographs (Table 3).

metaprior reproduce miniimagenet --data-dir FOLDER                    # all settings, on a GPU
metaprior reproduce miniimagenet --setting 5w1s --data-dir FOLDER
"""

from experiments import few_shot, few_shot_report, study
from experiments.few_shot import Settings

FULL = Settings(
    "miniimagenet", ("5w1s", "5w5s"), iterations=5_000,
    aside=(
        ("trained 20-way", ("gem-bml+last-layer",)), ("plain", ("gem-bml+last-layer",)),
        (few_shot.DEEP, ("gem-bml+last-layer", "maml")), ("authors", ("fomaml", "reptile")),
        (few_shot.AUTHORS_SHORT, ("reptile",)), (few_shot.SOLVED, ("5w5s/imaml",)),
        (few_shot.ONE_IMAGE, ("5w5s/gem-bml+last-layer", "5w5s/maml")),
    ),
    shortened=(
        ("*/authors/fomaml", 10_000), ("*/authors/reptile", 20_000), (f"*/{few_shot.AUTHORS_SHORT}/*", 600),
        ("*/paper/*", 3_000), ("*/trained*/*", 3_000),
        (f"*/{few_shot.DEEP}/maml", 600), (f"*/{few_shot.DEEP}/*", 4_000),
        ("*/bmaml", 500), ("*/gem-bml", 2_000), ("*/kl-chaser", 2_000),
        ("5w5s/best/gem-bml+last-layer", 6_000), ("*/gem-bml+last-layer", 12_000), (f"*/{few_shot.ONE_IMAGE}/*", 5_000),
        ("5w5s/*/maml", 1_000), ("5w5s/*/imaml", 500), ("*/imaml", 2_000), ("5w5s/*", 2_000),
    ),
    around=(("augmented", True),),
)  # fmt: skip
SMOKE = Settings(
    "miniimagenet", ("5w1s",), seeds=(0,), iterations=10, methods=("gem-bml+last-layer",), others=(), literal=(),
    around=(("filters", 8), ("queries", 2)), validation=4, protocols=("paper",), tasks_share=0.02,
)  # fmt: skip
STUDY, run = study.declare(
    few_shot.__name__,
    report=few_shot_report,
    name="miniimagenet",
    title="Few-shot miniImageNet (Table 3)",
    paper="GEM-BML+ reaches 50.03 % on 5-way 1-shot tasks, ahead of the methods it is compared with.",
    full=FULL,
    smoke=SMOKE,
)
