"""Priors as small files: the arrays as safetensors, all that is known about them as JSON beside. Loading runs no code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaprior import codec
from metaprior.checkpoints import write_atomically
from metaprior.meta import State
from metaprior.predict import Calibration
from metaprior.settings import Setup, as_dict, assemble, from_dict
from metaprior.types import Prior

FOLDER = Path(__file__).parent / "priors"
CURVES = ("sinusoid", "sinusoid-challenging")
METHODS = ("gem-bml+", "gem-bml+last-layer", "maml", "reptile")  # in the order in which they are shown
CHARACTERS = "omniglot"


class Small(NamedTuple):
    """A prior that was read: the pieces it belongs to, its arrays, and its card (settings, calibration, scores, origin)."""

    setup: Setup
    prior: Prior
    card: dict[str, Any]

    @property
    def state(self) -> State:
        """To adapt with, not to train on."""
        return State(self.prior, (), (), jax.random.key(0), jnp.zeros((), jnp.int32))


def curve_name(tasks: str, method: str) -> str:
    """The file of a prior over curves.

    >>> curve_name("sinusoid", "gem-bml+last-layer")
    'sinusoid-gem-bml-plus-last-layer'
    """
    return f"{tasks}-{method.replace('+', '-plus-')}".rstrip("-")


def save(folder: Path, name: str, setup: Setup, prior: Prior, card: Mapping[str, Any]) -> None:
    """Both files; single precision is more than bands on a screen show."""
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), prior)
    settings = as_dict(setup.settings) | {"data_dir": None}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.safetensors", codec.encode(single, {"name": name}))
    save_card(folder, name, {"settings": settings, **card})


def save_card(folder: Path, name: str, card: Mapping[str, Any]) -> None:
    """The card alone, settings included; the arrays beside it stay as they are."""
    text = json.dumps(card, indent=1, allow_nan=False)
    write_atomically(folder / f"{name}.json", f"{text}\n".encode())


def load(name: str, folder: Path = FOLDER) -> Small:
    """The prior of that name; what does not fit its settings is refused."""
    try:
        card = json.loads((folder / f"{name}.json").read_bytes())
        data = (folder / f"{name}.safetensors").read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"{Path(error.filename).name} is missing from {folder}: install metaprior again") from None
    setup = assemble(from_dict(card["settings"]))
    like = jax.eval_shape(lambda key: setup.learner.init(key, setup.model.init(key)).prior, jax.random.key(0))
    single = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), like)
    prior = jax.tree.map(lambda leaf, wanted: leaf.astype(wanted.dtype), codec.decode(single, data), like)
    return Small(setup, prior, card)


def calibration_of(values: Mapping[str, Any]) -> Calibration:
    """From the card."""
    return Calibration(*(jnp.asarray(values[name], jnp.result_type(float)) for name in Calibration._fields))


def calibration_values(calibration: Calibration) -> dict[str, Any]:
    """For the card."""
    return {name: np.asarray(value, float).tolist() for name, value in calibration._asdict().items()}
