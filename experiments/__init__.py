"""One file per experiment: settings as a frozen dataclass, `run(settings) -> results`, results as JSON under `results/`."""

from experiments.study import Study, find
from metaprior.names import require_known

# In the order in which the report tells them.
NAMES = (
    "sinusoid-default",
    "sinusoid-challenging",
    "inner-steps",
    "multi-modal",
    "matrix",
    "gradient-error",
    "estimator-variance",
    "leakage",
    "leakage-images",
    "protection",
    "a-star",
    "a-star-omniglot",
    "many-steps",
    "search",
    "image-search",
    "long-trials",
    "adaptation-steps",
    "omniglot",
    "miniimagenet",
    "calibration",
    "inner-optimisers",
    "rl-navigation",
    "rl-cheetah-velocity",
    "rl-cheetah-direction",
    "rl-step-sizes",
    "estimator-defaults",
    "fertility",
    "mixed-model",
    "federated",
    "compute-memory",
    "time-to-accuracy",
)


def get(name: str) -> Study:
    """The study of that name."""
    require_known("experiment", name, NAMES)
    return find(name)
