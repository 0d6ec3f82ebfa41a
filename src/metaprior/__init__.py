"""metaprior: learn a prior over a model's weights from many small tasks, with Gradient-EM Bayesian meta-learning.

Names are imported when they are first used, so that `metaprior --help` does not wait for JAX.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaprior.calibration import calibrate
    from metaprior.estimators import (
        AdaptedClassifier,
        AdaptedRegressor,
        Exported,
        MetaClassifier,
        MetaRegressor,
        TablePrior,
        exported,
    )
    from metaprior.labelled import Labelled, Labeller
    from metaprior.learned import Adapted, Learned, load
    from metaprior.likelihoods import categorical, gaussian, gaussian_learned_noise
    from metaprior.meta import MetaLearner, State, meta_learner, trainer
    from metaprior.methods import METHODS, Method
    from metaprior.methods import get as get_method
    from metaprior.models import Model, foreign, mlp
    from metaprior.optimizers import meta_optimizer, scale_by_fisher
    from metaprior.policies import AdaptedPolicy, LearnedPolicy, load_policy
    from metaprior.predict import Calibration, Predictive
    from metaprior.settings import Settings, assemble
    from metaprior.tasks import Tasks
    from metaprior.tasks import get as get_tasks
    from metaprior.types import Data, Episode, Family, Inference, Likelihood, Prior

_PLACES = {
    "calibration": ("calibrate",),
    "estimators": (
        "AdaptedClassifier",
        "AdaptedRegressor",
        "Exported",
        "MetaClassifier",
        "MetaRegressor",
        "TablePrior",
        "exported",
    ),
    "labelled": ("Labelled", "Labeller"),
    "learned": ("Adapted", "Learned", "load"),
    "likelihoods": ("categorical", "gaussian", "gaussian_learned_noise"),
    "meta": ("MetaLearner", "State", "meta_learner", "trainer"),
    "methods": ("METHODS", "Method", "get_method"),
    "models": ("Model", "foreign", "mlp"),
    "optimizers": ("meta_optimizer", "scale_by_fisher"),
    "policies": ("AdaptedPolicy", "LearnedPolicy", "load_policy"),
    "predict": ("Calibration", "Predictive"),
    "settings": ("Settings", "assemble"),
    "tasks": ("Tasks", "get_tasks"),
    "types": ("Data", "Episode", "Family", "Inference", "Likelihood", "Prior"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

try:
    __version__ = version("metaprior")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

__all__ = [
    "METHODS", "Adapted", "AdaptedClassifier", "AdaptedPolicy", "AdaptedRegressor", "Calibration", "Data", "Episode",
    "Exported", "Family", "Inference", "Labelled", "Labeller", "Learned", "LearnedPolicy", "Likelihood",
    "MetaClassifier", "MetaLearner", "MetaRegressor", "Method", "Model", "Predictive", "Prior", "Settings", "State",
    "TablePrior", "Tasks", "__version__", "assemble", "calibrate", "categorical", "exported", "foreign", "gaussian",
    "gaussian_learned_noise", "get_method", "get_tasks", "load", "load_policy", "meta_learner", "meta_optimizer", "mlp",
    "scale_by_fisher", "trainer",
]  # fmt: skip


def __getattr__(name: str):
    """Import a public name, or a module of the package, when it is first asked for."""
    if name in _MODULE_OF:
        attribute = "get" if name in ("get_method", "get_tasks") else name
        value = getattr(import_module(f"metaprior.{_MODULE_OF[name]}"), attribute)
    elif name in _PLACES:
        value = import_module(f"metaprior.{name}")
    else:
        raise AttributeError(f"module 'metaprior' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What completion offers."""
    return sorted(__all__)
