"""Models: built-in networks, anyone else's, and noise in their weights."""

from metaprior.models.base import Model, foreign
from metaprior.models.conv import conv4, conv4_features
from metaprior.models.layers import BatchNorm, Conv, Dense, NoisyWeight
from metaprior.models.mlp import mlp
from metaprior.models.noise import noisy_params, require_noisy, variance_ratio
from metaprior.models.resnet import resnet12, resnet12_features
from metaprior.models.views import seen

__all__ = [
    "BatchNorm",
    "Conv",
    "Dense",
    "Model",
    "NoisyWeight",
    "conv4",
    "conv4_features",
    "foreign",
    "mlp",
    "noisy_params",
    "require_noisy",
    "resnet12",
    "resnet12_features",
    "seen",
    "variance_ratio",
]
