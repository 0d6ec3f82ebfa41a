"""Few-shot classification, every method on the same tasks, network and evaluation: Omniglot and miniImageNet (Tables 2 and 3).

The studies `omniglot` and `miniimagenet` are this one on two sets of images.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments import images, study
from experiments.images import PROTOCOLS, Variant
from metaprior import figures
from metaprior.settings import Setup

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
REPEATED = ("gem-bml+", "gem-bml+last-layer", "maml")  # with every seed; the others with the first

# What the paper prints: accuracy in per cent. Rows of others are copied there from their own papers.
PAPER: dict[str, dict[str, dict[str, float]]] = {
    "omniglot": {
        "maml": {"5w1s": 98.7, "5w5s": 99.9, "20w1s": 95.8, "20w5s": 98.9},
        "fomaml": {"5w1s": 98.3, "5w5s": 99.2, "20w1s": 89.4, "20w5s": 97.9},
        "reptile": {"5w1s": 97.68, "5w5s": 99.48, "20w1s": 89.43, "20w5s": 97.12},
        "imaml": {"5w1s": 99.50, "5w5s": 99.74, "20w1s": 96.18, "20w5s": 99.14},
        "gem-bml+": {"5w1s": 99.23, "5w5s": 99.64, "20w1s": 96.24, "20w5s": 98.94},
    },
    "miniimagenet": {
        "maml": {"5w1s": 48.70},
        "fomaml": {"5w1s": 48.07},
        "reptile": {"5w1s": 49.97},
        "imaml": {"5w1s": 49.30},
        "amortized-bml": {"5w1s": 45.0},
        "gem-bml+": {"5w1s": 50.03},
    },
}


@dataclass(frozen=True)
class Settings:
    """One set of images."""

    tasks: str
    settings: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    iterations: int = 20_000
    methods: tuple[str, ...] = tuple(VARIANTS)
    literal: tuple[str, ...] = ("gem-bml+",)
    """Methods that are run at the paper's own settings, too."""
    around: tuple[tuple[str, Any], ...] = ()
    """Fields of the settings that differ from the defaults, for all."""
    validation: int = 200
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    tasks_share: float = 1.0
    """Of the protocols' test tasks."""


def cells(settings: Settings) -> list[study.Cell]:
    """A setting, whose hyper-parameters, a method."""
    return [
        (setting, kind, name)
        for setting in settings.settings
        for kind, names in (("best", settings.methods), ("paper", settings.literal))
        for name in names
    ]


def measure(settings: Settings, cell: study.Cell) -> study.Results:
    """Train once, ask under every protocol."""
    setting, kind, name = cell
    seeds = seeds_of(settings, cell)
    trained = images.train(put(settings, cell), seeds)
    found, single = [], {}
    for protocol in settings.protocols:
        asked = PROTOCOLS[protocol]
        count = max(2, round(settings.tasks_share * asked.tasks))
        result = images.judge(
            put(settings, cell, asked),
            trained.states,
            steps=images.TEST_STEPS,
            num_tasks=count,
            validation=settings.validation,
        )
        paper = PAPER.get(settings.tasks, {}).get(name, {}).get(setting) if protocol == "paper" else None
        words = f"{setting}, {'best' if kind == 'best' else 'the paper’s settings'}"
        found += images.rows(result, setting=words, method=name, protocol=protocol, paper=paper)
        single[protocol] = np.round(100 * result.accuracy.astype(float).mean(axis=0), 2)
    curve = {
        "seeds": list(seeds),
        "query_nll": np.round(trained.query_nll.astype(float), 4),
        "finite": trained.finite,
        "training_seconds": round(trained.seconds, 1),
        "task_accuracy": single,
    }
    return {"rows": found, "curves": {"/".join(cell): curve}}


def seeds_of(settings: Settings, cell: study.Cell) -> tuple[int, ...]:
    """All of them for the methods that are repeated, the first for the others."""
    return settings.seeds if cell[2] in REPEATED and cell[1] == "best" else settings.seeds[:1]


def put(settings: Settings, cell: study.Cell, protocol: images.Protocol | None = None) -> Setup:
    """The pieces of a cell."""
    variant = variant_of(settings, cell[1], cell[2])
    return images.set_up(
        variant, tasks=settings.tasks, setting=cell[0], iterations=settings.iterations, protocol=protocol
    )


def forget(settings: Settings) -> None:
    """Throw away the trainings that are kept."""
    for cell in cells(settings):
        shutil.rmtree(images.state_folder(put(settings, cell), seeds_of(settings, cell)), ignore_errors=True)


def variant_of(settings: Settings, kind: str, name: str) -> Variant:
    """The method as it is run."""
    variant = VARIANTS[name] if kind == "best" else literal(settings.tasks, name)
    return variant._replace(around={**variant.around, **dict(settings.around)})


def literal(tasks: str, name: str) -> Variant:
    """GEM-BML+ as the paper prints it: Gaussian posteriors, an inner Adam, learned widths, nothing tied or drawn."""
    photos = tasks != "omniglot"
    changes = {
        "posterior": "mean-field", "inference": "gradient", "second_stage": "sequential", "optimizer": "adam",
        "widths": "exact", "rates": "none", "draw_steps": False, "clip": None, "std": 0.05, "temperature": 1.0,
        "rate": 0.001 if photos else 0.01, "steps": (5, 5) if photos else (1, 1), "meta_rate": 1e-3,
        "meta_batch": 4 if photos else 32, "options": {},
    }  # fmt: skip
    return Variant(name, changes, {"decay": False, "head": "own", "queries": 1})


# --- what is shown ----------------------------------------------------------------------------------------------------


def shown(results: study.Results) -> list[dict[str, Any]]:
    """Accuracies."""
    return [row for row in results["rows"] if row["metric"].startswith("accuracy")]


def figure(results: study.Results) -> Figure:
    """Accuracy with its interval, one panel a setting; the paper's number as a tick."""
    settings = [
        s for s in results["settings"]["settings"] if any(r["setting"].startswith(f"{s},") for r in results["rows"])
    ]
    drawn = Figure(figsize=(3.0 + 3.6 * len(settings), 4.8), layout="constrained")
    panels = drawn.subplots(1, len(settings), squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        _draw(axes, results, setting)
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    drawn.suptitle(f"{results['settings']['tasks']}: accuracy after {images.TEST_STEPS} steps, 95 % intervals")
    return drawn


MARKS = {"paper": ("o", figures.BLUE), "strict": ("s", figures.ORANGE), "inductive": ("^", figures.GREY)}


def _draw(axes, results: study.Results, setting: str) -> None:
    mine = [row for row in shown(results) if row["setting"].startswith(f"{setting},")]
    names = list(dict.fromkeys(_label(row) for row in mine))
    for row in mine:
        place = names.index(_label(row))
        protocol = row["metric"].removeprefix("accuracy, ")
        mark, color = MARKS[protocol]
        if row["mean"] is not None:
            offset = 0.22 * (list(MARKS).index(protocol) - 1)
            axes.errorbar(
                row["mean"], place + offset, xerr=row["ci95"], fmt=mark, color=color, markersize=5, capsize=2,
                label=PROTOCOLS[protocol].words if place == 0 else None,
            )  # fmt: skip
        if row["paper"] is not None:
            axes.plot([row["paper"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(title=setting, xlabel="accuracy, %; bar: printed in the paper")
    axes.grid(axis="x", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)


def _label(row: Mapping[str, Any]) -> str:
    return row["method"] if row["setting"].endswith("best") else f"{row['method']}, as printed"


def remarks(results: study.Results) -> list[str]:
    """Against the paper's numbers, and how seeds and time were spent."""
    sentences = []
    for row in shown(results):
        if row["paper"] is not None and row["mean"] is not None:
            gap = row["mean"] - row["paper"]
            verdict = "within its interval of" if abs(gap) <= (row["ci95"] or 0) else "above" if gap > 0 else "below"
            sentences.append(
                f"{row['setting'].split(',')[0]}, {_label(row)}: {row['mean']:.2f} ± {row['ci95'] or 0:.2f}, {verdict} the "
                f"{row['paper']:g} that the paper prints ({gap:+.2f})."
            )
    failed = [name for name, curve in results["curves"].items() if not all(curve["finite"])]
    sentences.append(f"Trainings that left the finite numbers: {', '.join(failed) or 'none'}.")
    sentences.append(
        f"{', '.join(REPEATED)} have {len(results['settings']['seeds'])} seeds, the other methods one; "
        f"all have {results['settings']['iterations']:,} iterations."
    )
    return sentences
