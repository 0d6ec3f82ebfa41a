"""Few-shot classification of handwritten characters (Table 2).

metaprior reproduce omniglot --data-dir FOLDER                        # all settings, on a GPU
metaprior reproduce omniglot --setting 5w1s --scale smoke --data-dir FOLDER
"""

from experiments import few_shot, few_shot_report, study
from experiments.few_shot import Settings

ONE_PRIORS = (few_shot.ONE_PRIOR, few_shot.MORE_STEPS)
FULL = Settings(
    "omniglot", ("5w1s", "5w5s", "20w1s", "20w5s"), iterations=5_000,
    shortened=(
        ("5w1s/longer*/imaml", 10_000), ("5w5s/longer*/imaml", 5_000),
        ("20w5s/longer/*", 6_000), ("*/longer/*", 20_000), ("*/one prior*/*", 20_000), ("*/longer 20-way/*", 10_000),
        ("20w1s/authors/*", 10_000), ("5w5s/authors/reptile", 50_000), ("*/authors/reptile", 100_000),
        ("*/authors/fomaml", 60_000), ("*/authors/imaml", 4_000), ("*/authors/*", 20_000),
        ("20w5s/*/gem-bml+last-layer", 6_000), ("*/trained*/*", 4_000), ("*/gem-bml+last-layer", 10_000),
        ("20w1s/*/imaml", 5_000), ("20w5s/*/imaml", 1_000), ("5w5s/*/imaml", 1_000), ("*/imaml", 3_000),
        ("*/bmaml", 2_000), ("20w5s/*", 2_000), ("20w1s/*/gem-bml+", 6_000), ("20w1s/*", 4_000), ("5w5s/*", 4_000),
    ),
    aside=(
        (few_shot.PRINTED_ONCE, ("gem-bml+", "5w5s/gem-bml+")),
        ("trained 20-way", ("gem-bml+last-layer",)), ("longer 20-way", ("gem-bml+last-layer",)),
        ("float32", ("gem-bml+last-layer", "20w1s/gem-bml+last-layer")), ("bf16", ("gem-bml+last-layer",)),
        ("augmented", ("gem-bml+last-layer", "20w1s/gem-bml+last-layer")),
        ("longer", ("20w1s/gem-bml+", "20w5s/gem-bml+", "imaml", "5w5s/imaml")),
        (few_shot.LONGER_SOLVED, ("imaml", "5w5s/imaml")), (few_shot.SOLVED, ("20w1s/imaml", "20w5s/imaml")),
        *((kind, tuple(f"{setting}/gem-bml+" for setting in ("5w1s", "5w5s", "20w1s", "20w5s"))) for kind in ONE_PRIORS),
        ("authors", ("maml", "fomaml", "reptile", "imaml", "5w5s/maml", "5w5s/reptile", "20w1s/reptile")),
    ),
)  # fmt: skip
# Learns well above 80 % in two minutes on two cores.
SMOKE = Settings(
    "omniglot", ("5w1s",), seeds=(0,), iterations=300, methods=("gem-bml+last-layer",), others=(), literal=(),
    around=(("filters", 32),), validation=20, protocols=("paper",), tasks_share=0.25,
)  # fmt: skip
STUDY, run = study.declare(
    few_shot.__name__,
    report=few_shot_report,
    name="omniglot",
    title="Few-shot Omniglot (Table 2)",
    paper="GEM-BML+ is on a par with the best: 99.23, 99.64 (5-way) and 96.24, 98.94 % (20-way) on 1- and 5-shot tasks.",
    full=FULL,
    smoke=SMOKE,
)
