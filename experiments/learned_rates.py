"""Do learned rates pay? GEM-BML+ with rates learned and frozen, everything else equal, on both sinusoid settings.

python -m experiments.learned_rates            # 40,000 iterations, one seed: a few minutes on two cores
python -m experiments.learned_rates --iterations 200 --out /tmp/try.json
"""

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

import metaprior
from metaprior.evaluation import calibrate_steps, evaluate
from metaprior.meta import trainer
from metaprior.settings import assemble
from metaprior.training import initial_state, require_stable

SHOWN = (0, 1, 5, 10)  # steps in the table


@dataclass(frozen=True)
class LearnedRates:
    """What is run."""

    iterations: int = 40_000
    """Meta-iterations of each run."""
    seed: int = 0
    """Of weights and draws."""
    tasks: tuple[str, ...] = ("sinusoid", "sinusoid-challenging")
    """Task sets."""
    test_tasks: int = 600
    """Unseen tasks, the same for every run."""
    out: Path = Path("results/learned-rates.json")
    """Where the results go."""


def run(settings: LearnedRates) -> dict[str, Any]:
    """Every task set, learned and frozen."""
    rows = [
        train_and_evaluate(settings, tasks, widths) for tasks in settings.tasks for widths in ("debiased", "frozen")
    ]
    return {
        "experiment": "learned-rates",
        "command": "python -m experiments.learned_rates",
        "settings": asdict(settings) | {"out": str(settings.out)},
        "hardware": f"{platform.machine()}, {jax.devices()[0].device_kind}",
        "versions": {"jax": jax.__version__, "metaprior": metaprior.__version__},
        "rows": rows,
    }


def train_and_evaluate(settings: LearnedRates, tasks: str, widths: str) -> dict[str, Any]:
    """One run from scratch; rates are tied to the widths, so frozen widths are frozen rates."""
    setup = assemble(metaprior.Settings(tasks=tasks, widths=widths, iterations=settings.iterations, seed=settings.seed))
    state = initial_state(setup)
    require_stable(setup, state)
    train = jax.jit(trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch), static_argnums=1)
    compiled = train.lower(state, settings.iterations).compile()
    start = time.perf_counter()
    state, infos = jax.block_until_ready(compiled(state))
    seconds = time.perf_counter() - start
    log_rate = 2 * (ravel(state.prior.dist.log_std) - np.log(setup.learner.method.std))
    return {
        "tasks": tasks,
        "rates": "learned" if widths == "debiased" else "frozen",
        "finite": bool(infos.finite.all()),
        "left_out": int(infos.left_out.sum()),
        "seconds": seconds,
        "log_rate_percentiles": {p: float(np.percentile(log_rate, p)) for p in (0, 5, 50, 95, 100)},
        "test": evaluate(setup, state, calibrate_steps(setup, state), num_tasks=settings.test_tasks),
    }


def ravel(tree) -> np.ndarray:
    """All entries of a tree as one vector."""
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    head = (
        "| tasks | rates | "
        + " | ".join(f"MSE after {k}" for k in SHOWN)
        + " | NLL after 10 | 90 % intervals cover, near / far |"
    )
    lines = [head, "|---|---|" + "---|" * (len(SHOWN) + 2)]
    for row in results["rows"]:
        test = row["test"]
        mse = " | ".join(f"{test['mse'][k]:.3f} ± {test['mse_ci95'][k]:.3f}" for k in SHOWN)
        cover = f"{test['coverage90_near'][10]:.2f} / {test['coverage90_far'][10]:.2f}"
        lines.append(f"| {row['tasks']} | {row['rates']} | {mse} | {test['nll'][10]:.2f} | {cover} |")
    return "\n".join(lines)


def main() -> None:
    """Run, save, show."""
    settings = tyro.cli(LearnedRates, description=__doc__)
    results = run(settings)
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    settings.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
