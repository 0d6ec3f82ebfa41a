"""Priors over tables as published folders, and back."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaprior import methods, published
from metaprior.estimators.columns import as_json, from_json
from metaprior.estimators.computing import small_and_precise
from metaprior.estimators.networks import as_model
from metaprior.estimators.pieces import KINDS, NETWORKS, Spec, assemble
from metaprior.estimators.prior import TablePrior, Target
from metaprior.names import require_known
from metaprior.predict import Calibration
from metaprior.published import Published, PublishedError

ESTIMATORS = {"regression": "MetaRegressor", "classification": "MetaClassifier"}


def publish(prior: TablePrior, folder: str | Path, params: dict[str, Any], group: str | None) -> Path:
    """Into a new folder. A network that was given is named, not stored: `load` asks for it."""
    about = {
        "spec": dataclasses.asdict(prior.spec),
        "columns": as_json(prior.columns),
        "target": prior.target._asdict(),
        "named": prior.named,
        "group": group,
        "params": params,
        "network": None if prior.network is None else type(prior.network).__name__,
        "facts": dict(prior.facts),
    }
    return published.write(folder, prior.spec.kind, _tree(prior), about, _card(prior, Path(folder).name))


def read_back(found: Published, folder: str | Path, model: Any = None) -> tuple[TablePrior, dict[str, Any], str | None]:
    """The prior, what its estimator was made with, and the column of groups."""
    about = found.about
    try:
        spec = _spec(about["spec"])
        columns, target = from_json(about["columns"]), _target(about["target"])
        params, group, facts = dict(about["params"]), about["group"], dict(about["facts"])
        wanted = about["network"]
    except (KeyError, TypeError, ValueError) as error:
        raise PublishedError(f"{folder} does not describe a prior over tables ({error!r}): take a whole copy") from None
    if (wanted is None) != (model is None):
        words = (
            f"needs the network that it was learned with, a {wanted}: pass model="
            if wanted
            else "brings its own network: leave model out"
        )
        raise PublishedError(f"the prior in {folder} {words}")
    if columns.width != spec.inputs or (target.classes is not None and len(target.classes) != spec.outputs):
        raise PublishedError(
            f"{folder} contradicts itself: its columns are not those of its network. Take a whole copy"
        )
    tree = published.rebuild(found, _like(spec, model), folder)
    named = bool(about.get("named"))
    return TablePrior(spec, columns, target, **tree, network=model, named=named, facts=facts), params, group


def _tree(prior: TablePrior):
    return {"prior": prior.prior, "memory": prior.memory, "calibration": prior.calibration}


def _like(spec: Spec, model: Any):
    """The structure of such a prior, from its description alone."""
    with small_and_precise():
        given = None if model is None else as_model(model, spec.inputs)
        if given is not None and given[1] != spec.features:
            raise PublishedError(
                f"the network answers with {given[1]} numbers, the prior was learned with {spec.features}"
            )
        pieces = assemble(spec, None if given is None else given[0])
        begin = lambda key: pieces.learner.init(key, pieces.model.init(key))
        state = jax.eval_shape(begin, jax.random.key(0))
        host = lambda leaf: np.zeros(leaf.shape, leaf.dtype)
        five: Any = [np.zeros(())] * 5
        tree = {"prior": state.prior, "memory": state.memory}
        return jax.tree.map(host, tree) | {"calibration": Calibration(*five)}


def _spec(values: dict[str, Any]) -> Spec:
    known = {field.name for field in dataclasses.fields(Spec)}
    if unknown := sorted(set(values) - known):
        raise ValueError(f"it holds names this version does not know: {', '.join(unknown)}")
    changes = tuple(
        (str(name), tuple(value) if isinstance(value, list) else value) for name, value in values["changes"]
    )
    spec = Spec(**{**values, "changes": changes, "hidden": tuple(values["hidden"])})
    require_known("kind", spec.kind, KINDS)
    require_known("network", spec.network, NETWORKS)
    methods.get(spec.method, **dict(changes))
    return spec


def _target(values: dict[str, Any]) -> Target:
    classes = values["classes"]
    return Target(
        str(values["name"]), float(values["mean"]), float(values["std"]), None if classes is None else tuple(classes)
    )


def _card(prior: TablePrior, name: str) -> str:
    spec, target = prior.spec, prior.target
    what = f"numbers ({target.name})" if target.classes is None else f"classes ({', '.join(map(str, target.classes))})"
    facts = {
        "predicts": what,
        "columns": ", ".join(column.name for column in prior.columns.columns),
        "method": spec.method,
        "network": " × ".join(map(str, spec.hidden)) or "linear"
        if prior.network is None
        else type(prior.network).__name__,
        **prior.facts,
    }
    summary = (
        "A prior over the weights of a small network, learned from many groups of rows of a table. It is adapted to a new group "
        "from a few of its rows, and its predictions come with intervals calibrated on groups held out."
    )
    use = (
        f'import metaprior\n\nprior = metaprior.load("{name}")\ngroup = prior.adapt(X, y)  # a few rows of one group\n'
    )
    use += "group.predict(X_new)" if target.classes is not None else "group.predict_interval(X_new)"
    return published.card(f"{ESTIMATORS[spec.kind]}: {target.name}", summary, facts, use)
