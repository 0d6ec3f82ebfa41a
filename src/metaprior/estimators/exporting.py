"""Predictions for one group as a file: StableHLO and the scales around it, run without the classes that made them.

One checksummed safetensors file holds the compiled-for-anywhere program (`jax.export`) as bytes, and in its metadata how columns
and targets are read. Its number of rows is free.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from metaprior import codec
from metaprior.checkpoints import write_atomically
from metaprior.classes import ClassPredictive
from metaprior.estimators import answers
from metaprior.estimators.columns import Columns, as_json, encode, from_json
from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.prior import Fitted, TablePrior, Target, compiled, filled
from metaprior.predict import Predictive

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


class Exported(NamedTuple):
    """An adapted model read from its file."""

    call: Any
    columns: Columns
    target: Target

    def predict(self, X, *, return_std: bool = False):
        """As `AdaptedRegressor.predict`, or `AdaptedClassifier.predict`."""
        if self.target.classes is not None:
            return np.asarray(self.target.classes)[self.predict_proba(X).argmax(axis=1)]
        mean, std = answers.moments(self.target, *self._predictive(X))
        return (mean, std) if return_std else mean

    def predict_interval(self, X, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """As `AdaptedRegressor.predict_interval`."""
        if self.target.classes is not None:
            raise ValueError("classes have probabilities, not intervals: use predict_proba")
        return answers.interval(self.target, *self._predictive(X), level)

    def predict_proba(self, X) -> Float[np.ndarray, "N C"]:
        """As `AdaptedClassifier.predict_proba`."""
        if self.target.classes is None:
            raise ValueError("numbers have intervals, not probabilities: use predict_interval")
        (probabilities,), count = self._run(X)
        return np.asarray(probabilities)[:count]

    def _predictive(self, X) -> tuple[Predictive, int]:
        (mean, std), count = self._run(X)
        return Predictive(mean, std, mean[:0]), count

    def _run(self, X) -> tuple[tuple[Any, ...], int]:
        rows = encode(self.columns, _as_table(X, self.columns))
        with small_and_precise():
            return self.call(filled(rows)), len(rows)


def export(prior: TablePrior, fitted: Fitted, path: str | Path) -> Path:
    """Write the file; it replaces one of that name wholly or not at all."""
    predict = compiled(prior).predict
    given = (prior.prior, fitted.q, fitted.support)

    def answer(x):
        found = predict(jax.random.key(0), *given, x, prior.calibration)
        return tuple(found) if isinstance(found, ClassPredictive) else (found.mean, found.std)

    with small_and_precise():
        rows = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("rows"), prior.spec.inputs), jnp.float64)
        program = jax.export.export(jax.jit(answer), platforms=PLATFORMS)(rows).serialize()
    about = {"columns": as_json(prior.columns), "target": prior.target._asdict()}
    data = codec.encode({"program": np.frombuffer(program, np.uint8)}, {"exported": 1, **about})
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


def exported(path: str | Path) -> Exported:
    """An adapted model from the file that `export` wrote, ready to predict."""
    try:
        contents = codec.unpack(Path(path).read_bytes())
        if contents.metadata.get("exported") != 1 or "program" not in contents.arrays:
            raise ValueError("it holds no exported model")
        columns = from_json(contents.metadata["columns"])
        about = contents.metadata["target"]
        classes = None if about["classes"] is None else tuple(about["classes"])
        target = Target(str(about["name"]), float(about["mean"]), float(about["std"]), classes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be run: {error}") from None
    with small_and_precise():
        program = jax.export.deserialize(bytearray(contents.arrays["program"].tobytes()))
    return Exported(jax.jit(program.call), columns, target)


def _as_table(X: Any, columns: Columns) -> np.ndarray:
    names = [column.name for column in columns.columns]
    if hasattr(X, "columns") and all(name in X.columns for name in names):
        X = X[names]
    table = np.asarray(X)
    if table.ndim != 2 or table.shape[1] != len(names):
        raise ValueError(f"X must have {len(names)} columns ({', '.join(names)}), got shape {list(table.shape)}")
    return table
