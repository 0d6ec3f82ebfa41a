"""GEM-BML+ on both sinusoid settings: rates learned or frozen, everything else equal, and an exact last layer.

python -m experiments.sinusoid_core                                 # one seed: about ten minutes on two cores
python -m experiments.sinusoid_core --iterations 200 --out try.json
"""

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

import metaprior
from metaprior.evaluation import calibrate_steps, evaluate
from metaprior.meta import trainer
from metaprior.settings import assemble
from metaprior.training import initial_state, require_stable

SHOWN = (0, 1, 5, 10)  # steps in the table
# Rates are tied to the widths, so frozen widths are frozen rates.
VARIANTS: dict[str, dict[str, Any]] = {
    "gem-bml+, rates learned": {"method": "gem-bml+"},
    "gem-bml+, rates frozen": {"method": "gem-bml+", "widths": "frozen"},
    "gem-bml+last-layer": {"method": "gem-bml+last-layer"},
}


@dataclass(frozen=True)
class SinusoidCore:
    """What is run."""

    iterations: int = 40_000
    """Meta-iterations of each run."""
    seed: int = 0
    """Of weights and draws."""
    tasks: tuple[str, ...] = ("sinusoid", "sinusoid-challenging")
    """Task sets."""
    test_tasks: int = 600
    """Unseen tasks, the same for every run."""
    out: Path = Path("results/sinusoid-core.json")
    """Where the results go."""


def run(settings: SinusoidCore) -> dict[str, Any]:
    """Every task set, learned and frozen."""
    rows = [train_and_evaluate(settings, tasks, name) for tasks in settings.tasks for name in VARIANTS]
    return {
        "experiment": "sinusoid-core",
        "command": "python -m experiments.sinusoid_core",
        "settings": asdict(settings) | {"out": str(settings.out)},
        "hardware": f"{platform.machine()}, {jax.devices()[0].device_kind}",
        "versions": {"jax": jax.__version__, "metaprior": metaprior.__version__},
        "rows": rows,
    }


def train_and_evaluate(settings: SinusoidCore, tasks: str, name: str) -> dict[str, Any]:
    """One run from scratch."""
    changes = VARIANTS[name] | {"tasks": tasks, "iterations": settings.iterations, "seed": settings.seed}
    setup = assemble(metaprior.Settings(**changes))
    state = initial_state(setup)
    require_stable(setup, state)
    train = jax.jit(trainer(setup.learner, setup.tasks.sample, setup.learner.method.meta_batch), static_argnums=1)
    compiled = train.lower(state, settings.iterations).compile()
    start = time.perf_counter()
    state, infos = jax.block_until_ready(compiled(state))
    seconds = time.perf_counter() - start
    return {
        "tasks": tasks,
        "method": name,
        "finite": bool(infos.finite.all()),
        "left_out": int(infos.left_out.sum()),
        "seconds": seconds,
        "log_std": [float(value) for value in infos.log_std[-1]],  # mean, least, largest
        "test": evaluate(setup, state, calibrate_steps(setup, state), num_tasks=settings.test_tasks),
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    head = (
        "| tasks | method | "
        + " | ".join(f"MSE after {k}" for k in SHOWN)
        + " | NLL after 10 | 90 % intervals cover, near / far |"
    )
    lines = [head, "|---|---|" + "---|" * (len(SHOWN) + 2)]
    for row in results["rows"]:
        test = row["test"]
        mse = " | ".join(f"{test['mse'][k]:.2g} ± {test['mse_ci95'][k]:.1g}" for k in SHOWN)
        cover = f"{test['coverage90_near'][10]:.2f} / {test['coverage90_far'][10]:.2f}"
        lines.append(f"| {row['tasks']} | {row['method']} | {mse} | {test['nll'][10]:.2f} | {cover} |")
    return "\n".join(lines)


def main() -> None:
    """Run, save, show."""
    import tyro  # here, so that `run` needs no command line

    settings = tyro.cli(SinusoidCore, description=__doc__)
    results = run(settings)
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    settings.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
