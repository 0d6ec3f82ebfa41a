"""metaprior: learn a prior over a model's weights from many small tasks, with Gradient-EM Bayesian meta-learning."""

from importlib.metadata import PackageNotFoundError, version

from metaprior.learned import Adapted, Learned, load
from metaprior.likelihoods import categorical, gaussian, gaussian_learned_noise
from metaprior.meta import MetaLearner, State, meta_learner, trainer
from metaprior.methods import METHODS, Method
from metaprior.methods import get as get_method
from metaprior.models import Model, foreign, mlp
from metaprior.optimizers import meta_optimizer, scale_by_fisher
from metaprior.predict import Calibration, Predictive, calibrate
from metaprior.settings import Settings, assemble
from metaprior.tasks import Tasks
from metaprior.tasks import get as get_tasks
from metaprior.types import Data, Episode, Family, Inference, Likelihood, Prior

try:
    __version__ = version("metaprior")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

__all__ = [
    "METHODS", "Adapted", "Calibration", "Data", "Episode", "Family", "Inference", "Learned", "Likelihood",
    "MetaLearner", "Method", "Model", "Predictive", "Prior", "Settings", "State", "Tasks", "__version__", "assemble",
    "calibrate", "categorical", "foreign", "gaussian", "gaussian_learned_noise", "get_method", "get_tasks", "load",
    "meta_learner", "meta_optimizer", "mlp", "scale_by_fisher", "trainer",
]  # fmt: skip
