"""What a run is: the one dataclass that configures the code, the command line and the run folder."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from metaprior import methods
from metaprior.classes import class_predictor
from metaprior.heads import shared_columns
from metaprior.last_layer import last_layer
from metaprior.likelihoods import SQUARED_ERROR, categorical, gaussian
from metaprior.meta import MetaLearner, meta_learner
from metaprior.models import Model, conv4, conv4_features, mlp, resnet12, resnet12_features
from metaprior.models.convolution import quickest
from metaprior.models.head import with_head
from metaprior.models.views import MIRRORED, SHIFTED, View, seen
from metaprior.names import require_known
from metaprior.optimizers import meta_optimizer
from metaprior.predict import Predictor, default_predictor
from metaprior.recipes import recipe
from metaprior.rl import rows
from metaprior.rl.environment import Environment
from metaprior.rl.named import ENVIRONMENTS, environment_called
from metaprior.rl.policy import gaussian_policy
from metaprior.rl.setup import RLSetup, rl_setup
from metaprior.tasks import IMAGE_SETS, OWN_ROWS, TASKS, Tasks
from metaprior.tasks import get as get_tasks
from metaprior.tasks.images import with_targets
from metaprior.types import Likelihood

IMAGES_ONLY = (
    "ways", "train_ways", "train_shots", "data_dir", "network", "filters", "pooling", "precision", "head", "augmented",
)  # fmt: skip
ROLLOUTS_ONLY = ("rollouts", "acting", "horizon", "width_rate", "max_kl")
ROWS_ONLY = ("inputs", "outputs")
TASK_SETS = (*TASKS, *ENVIRONMENTS)


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
    shots: int | None = None
    """Support points of a task; of each class, where there are classes."""
    queries: int | None = None
    """Query points of a task in training; of each class, where there are classes; rollouts, where an agent acts."""
    hidden: tuple[int, ...] = (40, 40)
    """Widths of the hidden layers, where inputs are numbers."""
    ways: int | None = None
    """Classes of a task, where there are classes."""
    train_ways: int | None = None
    """Classes of a task in training, where they are to be more or fewer than --ways; needs a shared head."""
    train_shots: int | None = None
    """Support images of each class in training, where they are to be more or fewer than --shots."""
    data_dir: Path | None = None
    """Where the images are, if not where METAPRIOR_DATA says."""
    network: str | None = None
    """Of images: conv4 or resnet12."""
    filters: int | None = None
    """Channels of every block of conv4, or of the first of resnet12."""
    pooling: str | None = None
    """What conv4 does with positions before its head: mean or flatten; an exact head takes the mean."""
    precision: str | None = None
    """Of convolutions: float32, tf32 or bf16."""
    head: str | None = None
    """Of classes: shared (all classes have one prior, any number of them) or own (a prior for each class number)."""
    augmented: bool = False
    """Vary images in training: photographs are mirrored and shifted, characters bent a little and their classes mirrored."""
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
    rollouts: int | None = None
    """Of an agent: trajectories that each inner step collects in a task, in training."""
    acting: str | None = None
    """Of an agent: which weights act, the posterior's mean, or one sample of it, held for a batch of rollouts."""
    horizon: int | None = None
    """Of an agent: steps of a trajectory."""
    width_rate: float | None = None
    """Of an agent: how many times as long meta-steps are for the log std of its actions as for other weights."""
    max_kl: float | None = None
    """Of an agent whose meta-steps are TRPO's (maml-trpo): their bound."""
    inputs: tuple[str, ...] | None = None
    """Of tables: the columns that are inputs."""
    outputs: tuple[str, ...] | None = None
    """Of tables: the columns that are to be predicted."""

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
        if self.filters is not None and self.filters < 1:
            raise ValueError(
                f"a network needs filters of at least 1, got {self.filters}: pass for example --filters 32"
            )
        if given := self._given(IMAGES_ONLY, unless=IMAGE_SETS):
            raise ValueError(f"{self.tasks} tasks have no classes or images: leave out {given}")
        if given := self._given(ROLLOUTS_ONLY, unless=ENVIRONMENTS):
            raise ValueError(
                f"nobody acts in {self.tasks} tasks: leave out {given}, or choose tasks that begin with rl-"
            )
        if given := self._given(ROWS_ONLY, unless=(OWN_ROWS,)):
            raise ValueError(f"{self.tasks} tasks have no columns with names: leave out {given}")
        if given := self._given(("shots",), unless=TASKS):
            raise ValueError(f"{self.tasks} tasks have no support points: say how many --rollouts, instead of {given}")

    def _given(self, names: tuple[str, ...], *, unless: Collection[str]) -> str | None:
        """The first flag among these that was given though the task set is none of those that it is for."""
        if self.tasks in unless or self.tasks not in TASK_SETS:
            return None
        given = [name for name in names if getattr(self, name) is not None and getattr(self, name) is not False]
        return f"--{given[0].replace('_', '-')}" if given else None


class Setup(NamedTuple):
    """The pieces that settings name, put together."""

    settings: Settings
    tasks: Tasks
    model: Model
    likelihood: Likelihood
    learner: MetaLearner
    predictor: Predictor
    rl: RLSetup | None = None  # where an agent acts: its environment, and what its meta-step is
    turned: bool = False  # whether a task is judged by all four ways to turn its images


def usual(tasks: str) -> Settings:
    """What a task set is learned with if nobody says otherwise. Iterations of agents are long, and there are few of them."""
    of_agents: dict[str, Any] = {"iterations": 300, "hidden": (100, 100)}
    return Settings(tasks, **(of_agents if tasks in ENVIRONMENTS else {}))


def method_of(settings: Settings) -> methods.Method:
    """The row, with what the settings change."""
    fields = recipe(settings.tasks, settings.method, settings.network)
    if settings.tasks in ENVIRONMENTS:
        return _changed(rows.get(settings.method, **fields).method, settings)
    return _changed(methods.get(settings.method, **fields), settings)


def _changed(row: methods.Method, settings: Settings) -> methods.Method:
    names = ("rate", "std", "temperature", "widths", "rates", "second_stage", "num_samples", "estimator", "optimizer",
             "num_particles", "meta_batch", "meta_rate")  # fmt: skip
    changes: dict[str, Any] = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    steps = tuple(
        row.steps[i] if given is None else given for i, given in enumerate((settings.steps, settings.query_steps))
    )
    changed = row._replace(steps=steps, **changes)
    methods.validate(changed)
    return changed


def assemble(
    settings: Settings,
    *,
    method: methods.Method | None = None,
    eval_queries: int | None = None,
    inductive: bool = False,
    views: bool = False,
    environment: Environment | None = None,
) -> Setup:
    """From settings to a learner that can be trained: the only place where the pieces meet.

    Args:
        settings: what is asked for.
        method: one of your own, `get_method("maml", clip=10.0)`, in place of the row that the settings name.
        eval_queries: query points of a task in evaluation (of each class, where there are classes); None: as many as usual.
        inductive: whether images are classified one by one instead of together.
        views: average answers over views of an image: characters shifted by up to a pixel, photographs mirrored. A prior is
            learned without.
        environment: where an agent acts, in place of the one that the settings name.
    """
    require_known("task set", settings.tasks, TASK_SETS)
    method = method_of(settings) if method is None else method
    if settings.tasks in ENVIRONMENTS:
        return _acting(settings, method, environment)
    tasks = tasks_of(settings, eval_queries)
    exact_head = method.posterior == last_layer().name
    model = network(settings, tasks, exact_head=exact_head, once=differentiated_once(method))
    if views:
        model = seen(model, _views(tasks))
    if tasks.shape is not None and exact_head:
        tasks = with_targets(tasks)
    if exact_head or tasks.shape is None:
        noise_std = method.options["noise_std"] if exact_head else SQUARED_ERROR
        likelihood = gaussian(model.apply, noise_std=noise_std, temperature=method.temperature)
    else:
        likelihood = categorical(model.apply, temperature=method.temperature)
    likelihood = likelihood._replace(normalised=model.inductive is not None)
    horizon = settings.iterations if settings.decay and settings.iterations else None
    optimizer = meta_optimizer(method.meta_rate, iterations=horizon)
    options: dict[str, Any] = {} if tasks.shape is None else {"watch_every": WATCH_EVERY}
    if tasks.shape is not None and settings.head != "own":
        options["tie"] = shared_columns(model)
    elif tasks.outputs_in_training != tasks.outputs:
        raise ValueError(
            f"a prior with a head of its own for each of {tasks.outputs_in_training} class numbers cannot be judged with "
            f"{tasks.outputs}: leave out --train-ways, or take --head shared"
        )
    learner = meta_learner(method, likelihood, model=model, optimizer=optimizer, **options)
    if tasks.shape is not None:
        predictor = class_predictor(model, learner.cell.family, inductive=inductive)
    else:
        predictor = default_predictor(model.apply, learner.cell.family, method.inference, num_functions=0)
    return Setup(settings, tasks, model, likelihood, learner, predictor, turned=views and tasks.turns)


def _acting(settings: Settings, method: methods.Method, other: Environment | None) -> Setup:
    """The same pieces, where tasks are environments and the model is a policy."""
    environment = other or environment_called(settings.tasks, horizon=settings.horizon)
    given = {name: getattr(settings, name) for name in ("rollouts", "queries", "acting", "width_rate")}
    given["region"] = None if settings.max_kl is None else {"max_kl": settings.max_kl}
    made = rl_setup(
        environment,
        rows.get(settings.method)._replace(method=method),
        policy=gaussian_policy(environment.observation_size, environment.action_size, hidden=settings.hidden),
        iterations=settings.iterations if settings.decay and settings.iterations else None,
        check=other is not None,  # environments that have a name here are tested
        **{name: value for name, value in given.items() if value is not None},
    )

    def refuse(*given: Any) -> Any:
        raise ValueError(f"agents of {settings.tasks} act and do not predict: use metaprior.load_policy")

    predictor = Predictor("none", refuse, refuse)
    return Setup(settings, made.tasks, made.policy, made.likelihood, made.learner, predictor, made)


def tasks_of(settings: Settings, eval_queries: int | None = None) -> Tasks:
    """The task set, with the sizes that the settings give."""
    names = ("shots", "queries", "ways", "train_ways", "train_shots", "data_dir", "augmented", *ROWS_ONLY)
    given: dict[str, Any] = {} if eval_queries is None else {"eval_queries": eval_queries}
    given |= {name: value for name in names if (value := getattr(settings, name)) is not None and value is not False}
    return get_tasks(settings.tasks, **given)


NETWORKS = ("conv4", "resnet12")
WATCH_EVERY = 25  # iterations on images between looks at the query: its forward passes are a good part of the work


def _views(tasks: Tasks) -> Sequence[View]:
    if tasks.shape is None:
        raise ValueError(f"images can be seen in several views, and {tasks.name} has none: leave views out")
    return SHIFTED if _characters(tasks.shape) else MIRRORED


def _characters(shape: tuple[int, int, int]) -> bool:
    """Rather than photographs, which are larger."""
    return shape[0] < 64


def differentiated_once(method: methods.Method) -> bool:
    """Whether nothing takes second derivatives of the network: what Gradient-EM is for."""
    return method.held and method.inference in ("gradient", "preconditioned", "conjugate")


def network(settings: Settings, tasks: Tasks, *, exact_head: bool, once: bool = False) -> Model:
    """The network for such tasks; with its head kept apart where that is inferred exactly.

    Args:
        settings: what is asked for.
        tasks: what it is to see.
        exact_head: see above.
        once: whether nobody takes second derivatives of it.
    """
    if tasks.shape is None:
        sizes = (tasks.inputs, *settings.hidden)
        if exact_head:
            return with_head(mlp(sizes, init="glorot"), sizes[-1], tasks.outputs)
        return mlp((*sizes, tasks.outputs), init="glorot")
    require_known("network", settings.network or NETWORKS[0], NETWORKS)
    require_known("head", settings.head or "shared", ("shared", "own"))
    small = _characters(tasks.shape)  # strides; photographs: pooling
    options: dict[str, Any] = {"how": quickest(once=once)}
    options |= {} if settings.precision is None else {"precision": settings.precision}
    pools = settings.network != "resnet12"  # which does so in any case
    if not pools:
        if settings.filters is not None:
            options["widths"] = tuple(settings.filters * 2**i for i in range(4))
        whole, features = resnet12, resnet12_features
    else:
        filters = (64 if small else 32) if settings.filters is None else settings.filters
        options |= {"filters": filters, "stride": 2 if small else 1}
        require_known("pooling", settings.pooling or "mean", ("mean", "flatten"))
        options |= {} if settings.pooling is None else {"pool": settings.pooling}
        whole, features = conv4, conv4_features
    if exact_head:
        # Features are not adapted, so that all tasks share them; and what is inverted grows with their number.
        options |= {"pool": "mean"} if pools and settings.pooling is None else {}
        body, width = features(tasks.shape, **options)
        return with_head(body, width, tasks.outputs_in_training, activation=None, scale=True)
    return whole(tasks.shape, tasks.outputs_in_training, **options)


def as_dict(settings: Settings) -> dict[str, Any]:
    """For JSON. Later words are left out where there is none: what was kept before them stays what it is."""
    values = dataclasses.asdict(settings)
    later = ("train_shots", *ROLLOUTS_ONLY, *ROWS_ONLY)
    return {name: value for name, value in values.items() if name not in later or value is not None}


def from_dict(values: dict[str, Any]) -> Settings:
    """From JSON; names that no longer exist are refused."""
    known = {field.name for field in dataclasses.fields(Settings)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"settings hold names this version does not know: {', '.join(unknown)}")
    folder = values.get("data_dir")
    kept: dict[str, Any] = {
        "hidden": tuple(values.get("hidden", (40, 40))),
        "data_dir": None if folder is None else Path(folder),
    }
    kept |= {name: tuple(values[name]) for name in ROWS_ONLY if values.get(name) is not None}
    return Settings(**{**values, **kept})
