"""Real images: Omniglot and miniImageNet in their usual layouts, and anyone's folder of pictures.

`load("omniglot", folder)` and `load_folder(folder)` give images sorted by class; what is missing or broken is named, all of
it at once. Nothing here imports JAX, writes to the folder it reads, or loads a pickle.
"""

from metaprior.data.check import Report, check
from metaprior.data.folders import load_folder
from metaprior.data.images import Images, ImageSet
from metaprior.data.own import load_own
from metaprior.data.pictures import read_image
from metaprior.data.problems import DataError
from metaprior.data.sets import load

__all__ = ["DataError", "ImageSet", "Images", "Report", "check", "load", "load_folder", "load_own", "read_image"]
