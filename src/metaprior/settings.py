"""What a run is: the one dataclass that configures the code, the command line and the run folder."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

from metaprior import methods
from metaprior.last_layer import last_layer
from metaprior.likelihoods import SQUARED_ERROR, gaussian
from metaprior.meta import MetaLearner, meta_learner
from metaprior.models import Model, mlp
from metaprior.models.head import with_head
from metaprior.optimizers import meta_optimizer
from metaprior.predict import Predictor, default_predictor
from metaprior.tasks import Tasks
from metaprior.tasks import get as get_tasks
from metaprior.types import Likelihood


@dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome of a run. `None` takes the default of the method's row."""

    tasks: str = "sinusoid"
    """Which tasks to learn from."""
    method: str = "gem-bml+"
    """A row of the table; see `metaprior methods`."""
    iterations: int = 40_000
    """Meta-iterations."""
    seed: int = 0
    """Of the first weights and of every draw."""
    shots: int = 10
    """Support points of a task."""
    queries: int = 10
    """Query points of a task."""
    hidden: tuple[int, ...] = (40, 40)
    """Widths of the hidden layers."""
    steps: int | None = None
    """Inner steps on the support."""
    query_steps: int | None = None
    """Inner steps of the second stage."""
    rate: float | None = None
    """Inner step size, on the mean loss."""
    std: float | None = None
    """Width of the prior before training."""
    temperature: float | None = None
    """T: n points count as n/T."""
    widths: str | None = None
    """How widths are learned: exact, debiased, frozen."""
    rates: str | None = None
    """How rates are learned: tied to the widths, debiased, exact (by backprop), frozen, none."""
    second_stage: str | None = None
    """none, sequential, joint-from-prior or joint-from-q1."""
    num_samples: int | None = None
    """Weight draws per inner step."""
    estimator: str | None = None
    """How a gradient step samples: weights, local (reparameterisation), flipout."""
    optimizer: str | None = None
    """Inner optimiser of gradient inference: sgd, adam (fresh for each task), shared-adam."""
    num_particles: int | None = None
    """Particles of SVGD and PLATIPUS."""
    meta_batch: int | None = None
    """Tasks per meta-iteration."""
    meta_rate: float | None = None
    """Step size of the meta-optimiser (Adam)."""
    decay: bool = True
    """Whether the meta-rate decays to zero over the run, as a cosine; --no-decay keeps it."""

    def __post_init__(self):
        """Refuse numbers that cannot be, before anything is built."""
        if self.iterations < 0:
            raise ValueError(f"iterations cannot be negative, got {self.iterations}")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden layers need widths of at least 1, got {self.hidden}")
        for name in ("steps", "query_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name.replace('_', ' ')} cannot be negative, got {value}")


class Setup(NamedTuple):
    """The pieces that settings name, put together."""

    settings: Settings
    tasks: Tasks
    model: Model
    likelihood: Likelihood
    learner: MetaLearner
    predictor: Predictor


def method_of(settings: Settings) -> methods.Method:
    """The row, with what the settings change."""
    row = methods.get(settings.method)
    names = (
        "rate",
        "std",
        "temperature",
        "widths",
        "rates",
        "second_stage",
        "num_samples",
        "estimator",
        "optimizer",
        "num_particles",
        "meta_batch",
        "meta_rate",
    )
    changes: dict[str, Any] = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    steps = tuple(
        row.steps[i] if given is None else given for i, given in enumerate((settings.steps, settings.query_steps))
    )
    return methods.get(settings.method, steps=steps, **changes)


def assemble(settings: Settings, *, method: methods.Method | None = None) -> Setup:
    """From settings to a learner that can be trained: the only place where the pieces meet.

    A `method` of your own (`get_method("maml", clip=10.0)`) stands in for the row that the settings name.
    """
    method = method_of(settings) if method is None else method
    tasks = get_tasks(settings.tasks, shots=settings.shots, queries=settings.queries)
    exact_head = method.posterior == last_layer().name
    if exact_head:
        features = mlp((tasks.inputs, *settings.hidden), init="glorot")
        model = with_head(features, settings.hidden[-1], tasks.outputs)
    else:
        model = mlp((tasks.inputs, *settings.hidden, tasks.outputs), init="glorot")
    noise_std = method.options["noise_std"] if exact_head else SQUARED_ERROR
    likelihood = gaussian(model.apply, noise_std=noise_std, temperature=method.temperature)
    horizon = settings.iterations if settings.decay and settings.iterations else None
    learner = meta_learner(
        method, likelihood, model=model, optimizer=meta_optimizer(method.meta_rate, iterations=horizon)
    )
    predictor = default_predictor(model.apply, learner.cell.family, method.inference, num_functions=0)
    return Setup(settings, tasks, model, likelihood, learner, predictor)


def as_dict(settings: Settings) -> dict[str, Any]:
    """For JSON."""
    return dataclasses.asdict(settings)


def from_dict(values: dict[str, Any]) -> Settings:
    """From JSON; names that no longer exist are refused."""
    known = {field.name for field in dataclasses.fields(Settings)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"settings hold names this version does not know: {', '.join(unknown)}")
    return Settings(**{**values, "hidden": tuple(values.get("hidden", (40, 40)))})
