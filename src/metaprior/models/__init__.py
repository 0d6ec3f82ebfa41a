"""Models: built-in networks, anyone else's, and noise in their weights."""

from metaprior.models.base import Model, foreign
from metaprior.models.conv import conv4
from metaprior.models.layers import BatchNorm, Conv, Dense, NoisyWeight
from metaprior.models.mlp import mlp
from metaprior.models.noise import noisy_params, require_noisy, variance_ratio

__all__ = [
    "BatchNorm",
    "Conv",
    "Dense",
    "Model",
    "NoisyWeight",
    "conv4",
    "foreign",
    "mlp",
    "noisy_params",
    "require_noisy",
    "variance_ratio",
]
