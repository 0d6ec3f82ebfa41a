"""A learned prior in the hand: load a run, adapt to a few points or pictures, predict. Three lines."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from metaprior import labelled, published
from metaprior.evaluation import calibrate_steps
from metaprior.policies import is_policy
from metaprior.predict import Calibration, Predictive, default_predictor, predict
from metaprior.runs import versions
from metaprior.settings import as_dict, assemble, from_dict
from metaprior.tasks.tables import NAME as OWN_ROWS
from metaprior.tasks.tables import padded
from metaprior.training import TEST_STEPS, Trained, initial_state, open_trained
from metaprior.types import Data, Dist

RUN = "run"  # the kind of a published run


class Adapted:
    """A task that has been adapted to: its posterior, ready to predict."""

    def __init__(self, trained: Trained, support: Data, posteriors: Dist, steps: int):
        """Made by `Learned.adapt`."""
        self.support, self.steps = support, steps
        self.posterior = jax.tree.map(lambda leaf: leaf[steps], posteriors)
        self._trained, self._posteriors = trained, posteriors

    def predict(self, x: ArrayLike, *, steps: int | None = None, num_functions: int = 20, seed: int = 0) -> Predictive:
        """The predictive at inputs `x` ([N] or [N, inputs]), after all steps or the first few of them."""
        steps = self.steps if steps is None else steps
        if not 0 <= steps <= self.steps:
            raise ValueError(f"adapted for {self.steps} steps, asked for {steps}: adapt with steps={steps}")
        steps = steps if self.support.x.shape[0] else 0  # without points nothing is learned: the prior predictive
        setup, state = self._trained.setup, self._trained.state
        inputs = _as_points(x, setup.tasks.inputs, "x")
        predictor = default_predictor(
            setup.model.apply, setup.learner.cell.family, setup.learner.method.inference, num_functions=num_functions
        )
        q = jax.tree.map(lambda leaf: leaf[steps], self._posteriors)
        support = self.support if steps else Data(self.support.x[:0], self.support.y[:0])
        calibration = jax.tree.map(lambda leaf: leaf[steps], self._trained.calibration)
        return predict(predictor, jax.random.key(seed), state.prior, q, support, inputs, calibration)

    def predict_interval(self, x: ArrayLike, level: float = 0.9) -> tuple[Any, Any]:
        """Lower and upper ends of the interval that holds a share `level` of what may be observed at inputs `x`."""
        return self.predict(x, num_functions=0).interval(level)


class Learned(NamedTuple):
    """A prior that has been learned, from a run folder."""

    trained: Trained

    @property
    def calibration(self) -> Calibration:
        """Width and noise after each number of steps."""
        return self.trained.calibration

    def adapt(self, x: ArrayLike, y: ArrayLike | Sequence[Hashable], *, steps: int = TEST_STEPS, seed: int = 0) -> Any:
        """Adapt to a support; what comes back has `predict`.

        After more steps than the prior was calibrated for (`calibration`), bands are as wide as after the last of those.

        Points: `x` and `y` are [N] or [N, …], and an `Adapted` comes back. No points at all is legal: the prior predictive.
        Images: `x` is uint8 [N, H, W, C], `y` the number or name of each image's class, any number of classes from two on,
        and a `labelled.Labeller` comes back.
        """
        if self.trained.setup.tasks.shape is not None:
            return labelled.adapt(self.trained, x, y, steps=steps, seed=seed)
        return self._adapt_points(x, y, steps=steps, seed=seed)

    def adapt_folder(
        self, folder: str | Path, *, steps: int = TEST_STEPS, seed: int = 0, invert: bool = False
    ) -> labelled.Labeller:
        """Adapt to a folder of pictures with a sub-folder for each class; `invert` takes their negatives."""
        return labelled.adapt_folder(self.trained, folder, steps=steps, seed=seed, invert=invert)

    def beyond(self, steps: int) -> str | None:
        """What to know of an adaptation for more steps than the prior was calibrated for; None where it was."""
        known = self.calibration.log_noise.shape[0] - 1
        if steps <= known:
            return None
        return (
            f"calibrated for up to {known} steps: after {steps} steps, how sure answers are is taken from step {known}"
        )

    def calibrated(
        self, groups: Mapping[str, ArrayLike], *, steps: int = TEST_STEPS, num_tasks: int = 100
    ) -> "Learned":
        """The same prior, with noise and widths fitted on groups of rows that it has not learned from.

        Args:
            groups: rows of each, as inputs and then outputs; those with fewer than a support and a query need are left out.
            steps: of adaptation, up to which predictions are asked for.
            num_tasks: that are drawn from the groups.
        """
        trained = self.trained
        if trained.setup.tasks.name != OWN_ROWS:
            raise ValueError(f"{trained.setup.tasks.name} tasks are calibrated by themselves: groups are for tables")
        _, *pool = padded(trained.setup.tasks, {name: np.asarray(rows, float) for name, rows in groups.items()})
        fitted = calibrate_steps(trained.setup, trained.state, steps=steps, num_tasks=num_tasks, pool=tuple(pool))
        return Learned(trained._replace(calibration=fitted, notes=[]))

    def save(self, folder: str | Path) -> Path:
        """Publish: safetensors, JSON and a model card in a new folder, which `metaprior.load` reads back."""
        trained = self.trained
        inductive = trained.inductive
        tree = {"prior": trained.state.prior, "memory": trained.state.memory}
        tree["calibrations"] = (trained.calibration,) if inductive is None else (trained.calibration, inductive)
        settings = as_dict(trained.setup.settings)
        settings = {**settings, "data_dir": None}  # where data lie on one machine is nobody else's business
        about = {"settings": settings, "steps": trained.calibration.log_noise.shape[0] - 1}
        about |= {"inductive": inductive is not None, "iteration": int(trained.state.iteration), "versions": versions()}
        return published.write(folder, RUN, tree, about, _card(trained, Path(folder).name))

    def _adapt_points(self, x: ArrayLike, y: Any, *, steps: int, seed: int) -> Adapted:
        if steps < 0:
            raise ValueError(f"adaptation needs zero steps or more, got {steps}")
        setup = self.trained.setup
        support = Data(_as_points(x, setup.tasks.inputs, "x"), _as_points(y, setup.tasks.outputs, "y"))
        if support.x.shape[0] != support.y.shape[0]:
            raise ValueError(f"x has {support.x.shape[0]} points and y has {support.y.shape[0]}: they must be pairs")
        trained = self.trained
        if trained.calibration.log_noise.shape[0] <= steps:
            trained = _extend(trained, steps)
        posteriors = jax.jit(setup.learner.adapt, static_argnums=3)(jax.random.key(seed), trained.state, support, steps)
        return Adapted(trained, support, posteriors, steps)


def load(folder: str | Path, *, model: Any = None) -> Any:
    """A run folder or a published prior, ready to adapt: `load("run").adapt(x, y).predict(x_new)`. Nothing in it is run.

    Runs, and what `Learned.save` published, come back as a `Learned`; what an estimator published as that estimator, fitted.

    Args:
        folder: as `metaprior train` or `save` left it.
        model: the network of your own that an estimator was made with; a folder names it and does not hold it.
    """
    if published.is_published(folder):
        found = published.read(folder)
        if found.kind != RUN:
            return _of_tables(found, folder, model)
    elif not Path(folder).is_dir():
        what = "is a file" if Path(folder).exists() else "is missing"
        raise ValueError(
            f"{folder} {what}: name the folder of a run (metaprior train) or of a published prior (prior.save)"
        )
    if model is not None:
        raise ValueError(f"{folder} is a run, which brings its own network: leave model out")
    return load_run(folder)


def require_run(folder: str | Path) -> None:
    """Refuse what the command line cannot open, and say where it can be used."""
    if published.is_published(folder):
        kind = published.read(folder).kind
        use = "prior.adapt(x, y)" if kind == RUN else "prior.adapt(X, y), see docs/tables.md"
        what = "a published run" if kind == RUN else "a prior over tables"
        raise ValueError(f'{folder} is {what}: use it in Python, prior = metaprior.load("{folder}") and {use}')


def load_run(folder: str | Path) -> Learned:
    """A run, from its own folder or published; priors over tables are not meant here."""
    if published.is_published(folder):
        found = published.read(folder)
        if found.kind == RUN:
            return _of_run(found, folder)
        raise ValueError(f"{folder} is a prior over tables: use metaprior.load in Python, and its adapt(X, y)")
    if is_policy(folder):
        raise ValueError(f"{folder} is a prior over policies, which act and do not predict: use metaprior.load_policy")
    return Learned(open_trained(folder))


def _of_run(found: published.Published, folder: str | Path) -> Learned:
    try:
        setup = assemble(from_dict(dict(found.about["settings"])))
        steps, inductive = int(found.about["steps"]), bool(found.about["inductive"])
    except (KeyError, TypeError, ValueError) as error:
        raise published.PublishedError(f"{folder} does not describe a run that can be built here: {error}") from None
    start = initial_state(setup)
    tables = (Calibration(*[jnp.zeros(steps + 1)] * 5),) * (1 + inductive)
    like = {"prior": start.prior, "memory": start.memory, "calibrations": tables}
    tree = published.rebuild(found, like, folder)
    state = start._replace(prior=tree["prior"], memory=tree["memory"])
    return Learned(Trained(setup, state, tree["calibrations"][0], [], tree["calibrations"][1] if inductive else None))


def _of_tables(found: published.Published, folder: str | Path, model: Any) -> Any:
    from metaprior.estimators.meta import load as of_tables  # an extra: whoever has only runs needs no scikit-learn

    return of_tables(found, folder, model)


def _card(trained: Trained, name: str) -> str:
    settings, tasks = trained.setup.settings, trained.setup.tasks
    facts = {
        "tasks": f"{settings.tasks}: {tasks.describe}",
        "method": settings.method,
        "network": trained.setup.model.name,
        "iterations": int(trained.state.iteration),
        "seed": settings.seed,
        "versions": versions(),
    }
    use = f'import metaprior\n\nprior = metaprior.load("{name}")\ntask = prior.adapt(x, y)\ntask.predict(x_new)'
    summary = "A prior over the weights of a network, learned from many small tasks; adapted to a new one from a few examples."
    return published.card(f"A prior for {settings.tasks}", summary, facts, use)


def _extend(trained: Trained, steps: int) -> Trained:
    """Beyond the calibrated steps, the last calibration goes on."""
    have = trained.calibration.log_noise.shape[0]
    longer = lambda leaf: jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1], (steps + 1 - have,))])
    return trained._replace(calibration=jax.tree.map(longer, trained.calibration))


def _as_points(values: ArrayLike, width: int, name: str) -> Float[jax.Array, "N D"]:
    with np.errstate(over="ignore"):  # too large for the device's numbers is not finite either
        array = np.asarray(values, dtype=float).astype(jnp.result_type(float))
    if array.ndim == 1 and (width == 1 or array.size == 0):
        array = array.reshape(-1, width)
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(f"{name} must have shape [N] or [N, {width}], got {list(array.shape)}")
    if not np.isfinite(array).all():
        bad = int(np.argmax(~np.isfinite(array).all(axis=1)))
        raise ValueError(f"{name} holds a value that is not finite at point {bad}: remove or mend it")
    return jnp.asarray(array)
