"""THE TABLE: every method is a row, a choice of orthogonal pieces.

Adding a method is adding a row; being listed is what gets it tested.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from metaprior import families
from metaprior.inference import INFERENCES
from metaprior.last_layer import last_layer
from metaprior.matrix import COLUMNS, ROWS, SECOND_STAGES
from metaprior.models.noise import ESTIMATORS
from metaprior.names import require_known
from metaprior.rules import RATE_RULES, WIDTH_RULES
from metaprior.scalars import Scalar, require_positive
from metaprior.types import Family


class Method(NamedTuple):
    """One row: families × inference × row × column × second stage, with the defaults that make it work on sinusoids."""

    name: str
    summary: str
    prior: str  # family of p(θ; Θ)
    posterior: str  # family of q(θ)
    inference: str
    row: str
    column: str
    second_stage: str
    steps: tuple[int, int]  # inner steps on the support, and of the second stage
    widths: str = "frozen"
    rates: str = "none"
    temperature: float = 1.0
    std: Scalar = 0.05  # σ of the prior before training
    num_samples: int = 1  # weight draws per step
    num_particles: int = 1
    scores: str = "all"
    optimizer: str = "sgd"  # of gradient inference: sgd, adam (fresh for each task), shared-adam (Reptile's)
    estimator: str = "weights"  # how a gradient step samples: weights, local, flipout
    # Further arguments of the inference; {"second": {"inference": "trpo", "rate": 0.01}} is another one for the second stage.
    options: Mapping[str, Any] = {}
    rate: Scalar = 0.01  # inner step size
    draw_steps: bool = False  # each task draws its steps on the support uniformly from 1..steps[0]
    clip: float | None = None  # largest norm of one task's gradient in the weights
    meta_rate: Scalar = 4e-3
    meta_batch: int = 5

    @property
    def held(self) -> bool:
        """Whether posteriors are held fixed in the meta-gradient: Gradient-EM, unless q2 is conditional on q1."""
        return self.row == "gem" and self.column != "conditional"


OPTIMIZERS = ("sgd", "adam", "shared-adam")
FAMILIES = ("delta", "mean-field", "full", "particles", "last-layer")
CONJUGATE_NOISE = 0.3  # observation noise that the exact head assumes

# σ₀² = α: a tied step is αᵢ = σᵢ², and Gradient-EM's (m2 − m1)/σ² is minus the sum of the second stage's gradients. Drawing
# the number of steps keeps the prior a good place to start from; with the joint second stage learned rates pay.
_GEM: dict[str, Any] = dict(prior="mean-field", posterior="delta", inference="preconditioned", widths="debiased", rates="tied",
            std=0.1, rate=0.01, draw_steps=True, clip=10.0)  # fmt: skip
_VI: dict[str, Any] = dict(
    prior="mean-field", posterior="mean-field", inference="gradient", temperature=0.01, std=0.0183
)
_POINT: dict[str, Any] = dict(prior="delta", posterior="delta", inference="gradient")
_FREE = {"pull": False}  # no KL: early stopping is the only regulariser

METHODS: tuple[Method, ...] = (
    Method("gem-bml", "Gradient-EM on the joint evidence L[1]; no backprop through adaptation",
           row="gem", column="joint", second_stage="joint-from-q1", steps=(5, 5), **_GEM),
    Method("gem-bml+", "Gradient-EM on the predictive evidence L[2] as a difference; no backprop through adaptation",
           row="gem", column="difference", second_stage="joint-from-q1", steps=(5, 5), **_GEM),
    Method("gem-bml+last-layer", "GEM-BML+ with an exact Gaussian posterior on the last layer",
           prior="last-layer", posterior="last-layer", inference="conjugate", row="gem", column="difference",
           second_stage="sequential", steps=(1, 1), widths="exact", std=1.0, options={"noise_std": CONJUGATE_NOISE}),
    Method("kl-chaser", "Gradient-EM on L[2] with the adapted posterior as prior",
           row="gem", column="conditional", second_stage="sequential", steps=(5, 5), **_VI),
    Method("amortized-bml", "ELBO of all data under q1, backprop through adaptation (Ravi & Beatson 2019)",
           row="elbo", column="joint", second_stage="none", steps=(5, 0), widths="exact", **_VI),
    Method("amortized-bml-query", "Amortized BML scoring the query alone",
           row="elbo", column="joint", second_stage="none", steps=(5, 0), widths="exact", scores="query", **_VI),
    Method("elbo-conditional", "ELBO of the query with q1 as prior, backprop through both stages",
           row="elbo", column="conditional", second_stage="sequential", steps=(5, 5), widths="exact", **_VI),
    Method("elbo-difference", "difference of two ELBOs, backprop through both: unexplored in the paper",
           row="elbo", column="difference", second_stage="joint-from-prior", steps=(5, 5), widths="exact", **_VI),
    Method("pmaml", "PLATIPUS: a query posterior, learned rates, adapted draws (Finn et al. 2018)",
           prior="mean-field", posterior="particles", inference="platipus", row="elbo", column="conditional",
           second_stage="sequential", steps=(5, 1), widths="exact", temperature=0.01, std=0.0183, num_particles=10),
    Method("maml", "query loss after adaptation, backprop through it (Finn et al. 2017)",
           row="elbo", column="conditional", second_stage="none", steps=(5, 0), options=_FREE, **_POINT),
    Method("fomaml", "MAML with inner gradients held fixed",
           row="elbo", column="conditional", second_stage="none", steps=(5, 0), options=_FREE | {"first_order": True},
           **_POINT),
    Method("imaml", "MAML with an implicit derivative (Rajeswaran et al. 2019)",
           prior="mean-field", posterior="delta", inference="implicit", row="elbo", column="conditional",
           second_stage="none", steps=(10, 0), temperature=0.01, std=0.022,
           meta_rate=2e-3, options={"damping": 1e3}),
    Method("reptile", "move the prior to where adaptation ends (Nichol et al. 2018)",
           row="gem", column="joint", second_stage="sequential", steps=(5, 5), options=_FREE, **_POINT),
    Method("bmaml", "SVGD particles chase a leader that has seen the query (Yoon et al. 2018)",
           prior="particles", posterior="particles", inference="svgd", row="gem", column="conditional",
           second_stage="joint-from-q1", steps=(5, 5), num_particles=5, std=0.02),
    Method("bmaml-evidence", "SVGD particles scored by their log-mean query likelihood",
           prior="particles", posterior="particles", inference="svgd", row="evidence", column="conditional",
           second_stage="none", steps=(5, 0), num_particles=5, std=0.02),
    Method("llama", "Laplace evidence of the query at the adapted point (Grant et al. 2018)",
           row="evidence", column="conditional", second_stage="none", steps=(5, 0),
           prior="mean-field", posterior="delta", inference="gradient", options=_FREE, std=0.0183),
    Method("pretrain", "one set of weights for all tasks: no adaptation in training",
           row="elbo", column="joint", second_stage="none", steps=(0, 0), options=_FREE, **_POINT),
)  # fmt: skip


def get(name: str, **changes: Any) -> Method:
    """The row of that name, with fields changed; the result is checked."""
    names = [method.name for method in METHODS]
    require_known("method", name, names)
    method = METHODS[names.index(name)]
    unknown = sorted(set(changes) - set(Method._fields))
    if unknown:
        raise ValueError(f"a method has no field {', '.join(unknown)}: its fields are {', '.join(Method._fields)}")
    method = method._replace(**changes)
    validate(method)
    return method


def family(name: str, method: Method) -> Family:
    """The family of that name, with the row's particles."""
    makers = {
        "delta": families.delta,
        "mean-field": families.mean_field,
        "full": families.full,
        "particles": lambda: families.particles(method.num_particles),
        "last-layer": last_layer,
    }
    return makers[name]()


def validate(method: Method) -> None:
    """Refuse combinations that have no meaning, in words."""
    require_known("row", method.row, ROWS)
    require_known("column", method.column, COLUMNS)
    require_known("second stage", method.second_stage, SECOND_STAGES)
    require_known("inference", method.inference, INFERENCES)
    require_known("prior family", method.prior, FAMILIES)
    require_known("posterior family", method.posterior, FAMILIES)
    require_known("width rule", method.widths, WIDTH_RULES)
    require_known("rate rule", method.rates, RATE_RULES)
    require_known("scores", method.scores, ("all", "query"))
    require_known("inner optimiser", method.optimizer, OPTIMIZERS)
    require_known("estimator", method.estimator, tuple(ESTIMATORS))
    families.require_width(method.std)
    if not (isinstance(method.steps, tuple) and len(method.steps) == 2):
        raise ValueError(f"steps is a pair, on the support and of the second stage, got {method.steps}: pass (5, 5)")
    if min(method.steps) < 0:
        raise ValueError(f"inner steps cannot be negative, got {method.steps}")
    for name in ("temperature", "rate", "meta_rate", "meta_batch", "num_samples", "num_particles"):
        require_positive(name.replace("_", " "), getattr(method, name))
    supported = INFERENCES[method.inference].families
    if method.posterior not in supported:
        raise ValueError(
            f"{method.inference} cannot infer a {method.posterior} posterior: "
            f"choose a posterior of {' or '.join(supported)}, or inference {' or '.join(_able(method.posterior))}"
        )
    if method.clip is not None and not method.clip > 0:
        raise ValueError(f"the clip of a task's gradient must be above zero or None, got {method.clip}")
    if method.prior not in _priors(method):
        raise ValueError(
            f"{method.inference} of a {method.posterior} posterior cannot start from a {method.prior} prior: "
            f"choose a prior of {' or '.join(_priors(method))}"
        )
    if method.row == "evidence" and method.posterior not in ("delta", "particles"):
        raise ValueError(
            "the row 'evidence' scores a point or particles: set posterior='delta' or posterior='particles'"
        )
    _validate_steps(method)
    _validate_second(method)
    _validate_rules(method)


def _validate_second(method: Method) -> None:
    second = method.options.get("second")
    if second is None:
        return
    require_known("inference of the second stage", second.get("inference", ""), INFERENCES)
    if method.posterior not in INFERENCES[second["inference"]].families:
        raise ValueError(f"{second['inference']} cannot infer a {method.posterior} posterior in the second stage")
    if method.second_stage == "none" or not method.held:
        raise ValueError(
            "another inference in the second stage needs one whose posteriors are held fixed: choose row 'gem' with column "
            "'joint' or 'difference', and a second stage"
        )


def _validate_steps(method: Method) -> None:
    """What an inference would not look at is refused, not passed over."""
    if method.optimizer == "shared-adam" and method.inference != "gradient":
        raise ValueError(f"{method.inference} inference has no optimiser to share: use gradient inference")
    if method.optimizer != "sgd" and method.inference not in ("gradient", "implicit"):
        raise ValueError(
            f"{method.inference} inference takes steps of its own, not those of {method.optimizer}: "
            "leave the inner optimiser at 'sgd', or use gradient inference"
        )
    if method.inference == "trpo" and not method.held and method.steps[0] and not method.options.get("first_order"):
        raise ValueError(
            "steps of trpo are not differentiated: use gradient inference, set options={'first_order': True} to hold them fixed, "
            "or choose row 'gem' with column 'joint' or 'difference'"
        )
    if method.estimator != "weights" and method.inference != "gradient":
        raise ValueError(
            f"{method.inference} inference does not sample by {method.estimator}: "
            "leave the estimator at 'weights', or use gradient inference"
        )


def _validate_rules(method: Method) -> None:
    if method.rates in ("tied", "debiased", "exact") and method.inference != "preconditioned":
        raise ValueError(f"{method.inference} has no rates to learn: use inference preconditioned, or rates='none'")
    if method.rates == "exact" and method.row == "gem" and method.column != "conditional":
        raise ValueError("posteriors held fixed give rates no gradient: set rates='debiased', or row='elbo'")
    if method.rates == "tied" and method.prior != "mean-field":
        raise ValueError("rates tied to widths need a mean-field prior: set prior='mean-field' or rates='debiased'")
    if "debiased" in (method.widths, method.rates) and method.second_stage == "none":
        raise ValueError("the debiased rule compares two posteriors: it needs a second stage, for example 'sequential'")
    if method.widths == "debiased" and (method.prior in ("full", "last-layer") or method.inference == "platipus"):
        raise ValueError(
            "the debiased rule is for the widths of a mean-field prior: set widths='exact' or widths='frozen'"
        )


def _priors(method: Method) -> tuple[str, ...]:
    """The families of prior that inference can start from: its posterior's own, unless it asks for a mean alone."""
    if method.inference == "platipus":
        return ("mean-field",)
    if method.posterior == "delta" or method.inference == "laplace":
        return ("delta", "mean-field", "full")
    return (method.posterior,)


def _able(posterior: str) -> list[str]:
    return [name for name, maker in INFERENCES.items() if posterior in maker.families]
