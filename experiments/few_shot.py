"""Few-shot classification, every method on the same tasks, network and evaluation: Omniglot and miniImageNet (Tables 2 and 3).

The studies `omniglot` and `miniimagenet` are this one on two sets of images.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np

from experiments import authors, images, paper, study, trainings
from experiments.images import PROTOCOLS, Variant
from metaprior import methods
from metaprior.settings import Setup
from metaprior.types import Dist

# By the name under which it is shown.
VARIANTS: dict[str, Variant] = {
    "gem-bml+": Variant("gem-bml+"),
    "gem-bml+last-layer": Variant("gem-bml+last-layer"),
    "gem-bml": Variant("gem-bml"),
    "maml": Variant("maml"),
    "fomaml": Variant("fomaml"),
    "reptile": Variant("reptile"),
    "imaml": Variant("imaml"),
    "amortized-bml": Variant("amortized-bml"),
    "kl-chaser": Variant("kl-chaser"),
    "bmaml": Variant("bmaml"),
}
TABULATED = ("gem-bml+", "gem-bml+last-layer", "maml", "fomaml", "reptile", "imaml")  # rows of the paper's tables
REPEATED = ("gem-bml+", "gem-bml+last-layer", "maml")  # with every seed; the others with the first

# What the paper prints: accuracy in per cent. Rows of others are copied there from their own papers.
PAPER: dict[str, dict[str, dict[str, float]]] = {
    tasks: {method: {setting: printed.mean for setting, printed in each.items()} for method, each in table.items()}
    for tasks, table in paper.ACCURACY.items()
}


@dataclass(frozen=True)
class Settings:
    """One set of images."""

    tasks: str
    settings: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    iterations: int = 10_000
    methods: tuple[str, ...] = TABULATED
    others: tuple[str, ...] = tuple(name for name in VARIANTS if name not in TABULATED)
    """Methods that are run in the first setting alone."""
    literal: tuple[str, ...] = ("gem-bml+",)
    """Methods that are run at the paper's own settings, too."""
    aside: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """With one thing changed (`ASIDE`): which methods, in the first setting, or in that which is named (`20w1s/maml`)."""
    shortened: tuple[tuple[str, int], ...] = ()
    """Iterations of the cells whose name fits a pattern (`20w*/best/maml`); the first that fits counts, else `iterations`."""
    around: tuple[tuple[str, Any], ...] = ()
    """Fields of the settings that differ from the defaults, for all."""
    validation: int = 200
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    tasks_share: float = 1.0
    """Of the protocols' test tasks."""


LONGER = "longer"  # begins the names of those that differ in the number of iterations
AUTHORS = "authors"  # a baseline as those run it who proposed it
AUTHORS_SHORT = f"{AUTHORS} for a while"  # the same, to see what length does
AS_AUTHORS = (AUTHORS, AUTHORS_SHORT)
ONE_PRIOR = "one prior"  # for all settings: learned from 20 classes of one image each, as long as `LONGER` ones
ASKED = 20  # inner steps, where they are not as many as in the paper: what the study `adaptation-steps` takes
MORE_STEPS = f"{ONE_PRIOR} at {ASKED} steps"
SOLVED = "at 40 steps"  # iMAML's posterior is where steps end; it trains with 16, and ten leave a task half done
LONGER_SOLVED = f"{LONGER} {SOLVED}"
PRINTED_ONCE = "paper at one step"  # as many as the printed settings of 5-way tasks train with
STEPS = {MORE_STEPS: ASKED, SOLVED: 40, LONGER_SOLVED: 40, PRINTED_ONCE: 1}
DEEP = "resnet12"
DEEP_NETWORK = {"network": DEEP, "queries": 5}  # a third of the usual: its memory grows with them
ONE_IMAGE = "learned from one image"  # of each class, where it is asked with more
ONE_STEP = "one step"
OWN_HEAD = f"{ONE_STEP} with own head"
# What may be changed in the best settings to see what it does, by the word for it.
ASIDE: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "bf16": {"precision": "bf16"},
    "augmented": {"augmented": True},
    "plain": {"augmented": False},
    DEEP: DEEP_NETWORK,
    ONE_IMAGE: {"train_shots": 1},
    "trained 20-way": {"train_ways": 20},
    LONGER: {},
    f"{LONGER} 20-way": {"train_ways": 20},
    ONE_PRIOR: {"train_ways": 20, "train_shots": 1},
    MORE_STEPS: {"train_ways": 20, "train_shots": 1},
    SOLVED: {},
    LONGER_SOLVED: {},
    PRINTED_ONCE: {},
    ONE_STEP: {},
    OWN_HEAD: {"head": "own"},
}
REPEATED_KINDS = ("best", "trained 20-way", LONGER, f"{LONGER} 20-way", ONE_PRIOR, MORE_STEPS, AUTHORS, ONE_IMAGE)
BESIDE = ("best", "paper", LONGER, ONE_PRIOR, *STEPS, AUTHORS)  # kinds that stand beside the paper's number
WORDS = {
    "paper": "the paper’s settings",
    AUTHORS: "its authors’ settings",
    AUTHORS_SHORT: "for a while at its authors’ settings",
}


def cells(settings: Settings) -> list[study.Cell]:
    """A setting, whose hyper-parameters, a method."""
    first = settings.settings[0]
    everywhere = [
        (setting, kind, name)
        for setting in settings.settings
        for kind, names in (("best", settings.methods), ("paper", settings.literal))
        for name in names
        if kind != "paper" or _is_printed(settings, setting)
    ]
    others = [(first, "best", name) for name in settings.others]
    aside = [
        (name.rpartition("/")[0] or first, kind, name.rpartition("/")[2])
        for kind, names in settings.aside
        for name in names
    ]
    return [*everywhere, *others, *aside]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train once, ask under every protocol."""
    setting, kind, name = cell
    seeds = seeds_of(settings, cell)
    trained = trainings.train(put(settings, cell), seeds)
    found, single = [], {}
    for protocol in protocols_of(settings, cell):
        asked = PROTOCOLS[protocol]
        count = max(2, round(settings.tasks_share * asked.tasks))
        result = images.judge(
            put(settings, cell, asked),
            trained.states,
            steps=test_steps(settings, cell),
            num_tasks=count,
            validation=settings.validation,
        )
        printed = PAPER.get(settings.tasks, {}).get(name, {}).get(setting)
        beside = printed if protocol in ("paper", "views") and kind in BESIDE else None
        words = f"{setting}, {WORDS.get(kind, kind)}{_shorter(settings, cell)}"
        found += images.rows(result, setting=words, method=name, protocol=protocol, paper=beside)
        single[protocol] = np.round(100 * result.accuracy.astype(float).mean(axis=0), 2)
    curve = {
        "seeds": list(seeds),
        "iterations": iterations_of(settings, cell),
        "query_nll": np.round(trained.query_nll.astype(float), 4),
        "finite": trained.finite,
        "training_seconds": round(trained.seconds, 1),
        "task_accuracy": single,
        **_widths(put(settings, cell).learner.method.posterior, trained.states.prior.dist),
        **rests_on(settings, cell),
    }
    return {"rows": found, "curves": {"/".join(cell): curve}}


def _widths(posterior: str, prior: Dist) -> dict[str, Any]:
    """Of weights that are drawn: the median, and the share of weights that are smaller than their width."""
    if posterior != "mean-field":
        return {}
    dist = jax.tree.map(np.asarray, prior)
    mean, width = (
        np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(part)]) for part in (dist.mean, dist.log_std)
    )
    width = np.exp(width)
    return {"widths": {"median": float(np.median(width)), "above_weights": float((np.abs(mean) < width).mean())}}


def seeds_of(settings: Settings, cell: study.Cell) -> tuple[int, ...]:
    """All of them for the methods that are repeated, where the paper prints a number; the first for the others."""
    worth_it = _is_printed(settings, cell[0]) or cell[1] == ONE_IMAGE  # whose training another row has
    repeated = cell[2] in REPEATED and cell[1] in REPEATED_KINDS and worth_it
    return settings.seeds if repeated else settings.seeds[:1]


def _is_printed(settings: Settings, setting: str) -> bool:
    """Whether the paper has numbers of this size of tasks."""
    return any(setting in numbers for numbers in PAPER.get(settings.tasks, {}).values())


def protocols_of(settings: Settings, cell: study.Cell) -> tuple[str, ...]:
    """All; views only where it does not cost more than the training, and not of what is to be set beside published numbers."""
    setting, kind, _ = cell
    literal_photographs = kind == "paper" and settings.tasks == "miniimagenet"  # others cost more than their training
    explains = kind in (PRINTED_ONCE, AUTHORS_SHORT)  # another number, and is none of its own
    # Forward passes, or asking where there is nothing to train.
    dear = kind in (DEEP, ONE_IMAGE) or (kind == SOLVED and settings.tasks == "miniimagenet")
    if explains or literal_photographs or dear:
        return tuple(name for name in settings.protocols if name == "paper")
    if not _is_printed(settings, setting):  # nothing to be set beside it
        return tuple(name for name in settings.protocols if name in ("paper", "strict"))
    without = kind in (AUTHORS, *STEPS) or (setting == "20w5s" and kind in (LONGER, ONE_PRIOR))
    return tuple(name for name in settings.protocols if not (without and PROTOCOLS[name].views))


def test_steps(settings: Settings, cell: study.Cell) -> int:
    """Of adaptation when asked."""
    setting, kind, name = cell
    if kind in AS_AUTHORS:
        return authors.training(settings.tasks, setting, name).test_steps
    return STEPS.get(kind, images.TEST_STEPS)


def iterations_of(settings: Settings, cell: study.Cell) -> int:
    """Of a training: what costs more a step gets fewer of them."""
    fitting = (count for pattern, count in settings.shortened if fnmatchcase("/".join(cell), pattern))
    return next(fitting, settings.iterations)


def _shorter(settings: Settings, cell: study.Cell) -> str:
    """The mark of a training with fewer iterations than usual here, or with more on purpose."""
    count = iterations_of(settings, cell)
    marked = count < settings.iterations or cell[1].startswith((LONGER, ONE_PRIOR, AUTHORS))
    return f", {count:,} iterations" if marked else ""


def put(settings: Settings, cell: study.Cell, protocol: images.Protocol | None = None) -> Setup:
    """The pieces of a cell."""
    return images.set_up(
        variant_of(settings, cell),
        tasks=settings.tasks,
        setting=cell[0],
        iterations=iterations_of(settings, cell),
        protocol=protocol,
    )


def rests_on(settings: Settings, cell: study.Cell) -> dict[str, Any]:
    """The recipe of the method, and all other settings."""
    asked = {"test_steps": test_steps(settings, cell)} if cell[1] in (*AS_AUTHORS, *STEPS) else {}
    return {**images.identity(put(settings, cell)), **asked}


def decides(settings: Settings) -> Settings:
    """Which cells there are, and how long each trains, decides nothing for another."""
    return replace(settings, settings=(), iterations=0, methods=(), others=(), literal=(), aside=(), shortened=())


def forget(settings: Settings, cell: study.Cell) -> None:
    """Throw away the training that is kept."""
    trainings.forget(put(settings, cell), seeds_of(settings, cell))


def variant_of(settings: Settings, cell: study.Cell) -> Variant:
    """The method as it is run."""
    setting, kind, name = cell
    variant = literal(settings.tasks, setting, name) if kind in ("paper", PRINTED_ONCE) else VARIANTS[name]
    if kind in AS_AUTHORS:
        changes, around, _ = authors.training(settings.tasks, setting, name)
        variant = Variant(name, changes, around)
    return variant._replace(around={**dict(settings.around), **variant.around, **ASIDE.get(kind, {})})


def one_step(method: str) -> dict[str, Any]:
    """What changes in the row where each stage takes one step in training, as MAML's authors do on 5-way tasks."""
    return {"steps": (1, min(methods.get(method).steps[1], 1)), "rate": 1.0, "meta_rate": 3e-3}


def literal(tasks: str, setting: str, name: str) -> Variant:
    """GEM-BML+ as the paper prints it: Gaussian posteriors, an inner Adam, learned widths, nothing tied or drawn."""
    printed = paper.of_images(tasks, setting)
    meta_rate, rate, steps, _ = (printed[field] for field in paper.RATES)
    changes = {
        "posterior": "mean-field", "inference": "gradient", "second_stage": "sequential", "optimizer": "adam",
        "widths": "exact", "rates": "none", "draw_steps": False, "clip": None, "std": 0.05, "temperature": 1.0,
        "rate": float(rate), "steps": (int(steps), int(steps)), "meta_rate": float(meta_rate),
        "meta_batch": int(printed[paper.SIZES[0]]), "options": {},
    }  # fmt: skip
    return Variant(name, changes, {"decay": False, "head": "own", "queries": 1, "augmented": False})
