"""Estimators in scikit-learn's manner: a prior from many groups of a table, adapted to one group from a few rows.

They need the extra `sklearn`; the rest of the package does not know them.
"""

from metaprior.rl.extra import MissingExtra

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtra(f"estimators need scikit-learn: pip install 'metaprior[sklearn]' ({error})") from None

from metaprior.estimators.adapted import AdaptedClassifier, AdaptedRegressor
from metaprior.estimators.exporting import Exported, exported
from metaprior.estimators.meta import MetaClassifier, MetaRegressor
from metaprior.estimators.prior import TablePrior

__all__ = [
    "AdaptedClassifier",
    "AdaptedRegressor",
    "Exported",
    "MetaClassifier",
    "MetaRegressor",
    "TablePrior",
    "exported",
]
