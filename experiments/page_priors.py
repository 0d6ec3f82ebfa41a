"""The priors that come with `metaprior demo`: trained, calibrated and judged by one command.

    python -m experiments.page_priors sinusoid sinusoid-challenging
    python -m experiments.page_priors omniglot --data-dir data
    python -m experiments.page_priors sinusoid sinusoid-challenging --calibrate

Run folders are kept in .cache/page-priors: what was cut off goes on, and what is done is not done again. Files go to
src/metaprior/page/priors, a card of JSON beside each: settings, calibration on validation tasks, scores on test tasks, origin.
The last line trains nothing: priors are taken as they lie there, calibrated and judged again, and their cards are written anew.
"""

import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments import page_characters, page_curves
from metaprior import checkpoints, runs, training
from metaprior.benchmarks import origin
from metaprior.cli import console
from metaprior.cli.arguments import parse
from metaprior.cli.bench import progress
from metaprior.cli.train import opened
from metaprior.meta import State
from metaprior.names import require_known
from metaprior.page import priors
from metaprior.settings import Settings, Setup, assemble, method_of

# Small and robust rather than best: a third of the usual filters, tasks of ten classes, drawings bent a little.
OMNIGLOT = Settings("omniglot", "gem-bml+last-layer", iterations=4_000, ways=5, train_ways=10, shots=1, queries=2, filters=32,
                    meta_batch=8, augmented=True)  # fmt: skip
# As the studies train MAML: on curves of any frequency it does not learn without. What is adapted later does not depend on it.
CLIPPED: dict[str, Any] = {"clip": 10.0}
KEPT = Path(".cache/page-priors")


@dataclass(frozen=True)
class Asked:
    """The flags."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional] = (*priors.CURVES, priors.CHARACTERS)
    """Task sets."""
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = priors.METHODS
    """Of curves: these only."""
    data_dir: Path | None = None
    """Where Omniglot is, if not where METAPRIOR_DATA says."""
    runs: Path = KEPT
    """Folder for the runs."""
    out: Path = priors.FOLDER
    """Folder for the priors."""
    calibrate: bool = False
    """Train nothing: calibrate and judge the priors in that folder again."""


def main() -> None:
    """The command."""
    asked = parse(Asked, sys.argv[1:], prog="python -m experiments.page_priors", help=__doc__ or "")
    do = again if asked.calibrate else make
    for tasks in asked.what:
        require_known("task set", tasks, (*priors.CURVES, priors.CHARACTERS))
        if tasks == priors.CHARACTERS:
            do(dataclasses.replace(OMNIGLOT, data_dir=asked.data_dir), tasks, asked)
            continue
        for method in asked.methods:
            require_known("method", method, priors.METHODS)
            do(Settings(tasks, method), priors.curve_name(tasks, method), asked)


def make(settings: Settings, name: str, asked: Asked) -> None:
    """Train one prior, or go on with it, judge it and write its files."""
    changes = CLIPPED if settings.method == "maml" else {}
    setup, folder = assemble(settings, method=method_of(settings)._replace(**changes)), asked.runs / name
    began = time.perf_counter()
    with opened(setup, folder, resume=(folder / "settings.json").exists()) as run:
        done = max(checkpoints.available(run.checkpoints), default=0)
        with console.progress(settings.iterations, start=done) as report:
            state = training.train(setup, run, chunk=50 if setup.tasks.shape else 500, report=report)
    seconds = time.perf_counter() - began
    card = {**judged(setup, state), "origin": {**origin_of(run, None if done else seconds), **changes}}
    priors.save(asked.out, name, setup, state.prior, card)


def again(settings: Settings, name: str, asked: Asked) -> None:
    """Calibrate and judge a prior that is there; how it was trained stays on its card."""
    small, setup = priors.load(name, asked.out), assemble(settings)
    if small.setup.settings != dataclasses.replace(settings, data_dir=None):
        raise SystemExit(f"{name} was trained with other settings than today's: train it again, without --calibrate")
    began = time.perf_counter()
    found = judged(setup, small.state)
    calibrated = {
        "command": f"python -m experiments.page_priors {settings.tasks} --calibrate",
        "seconds": round(time.perf_counter() - began),
        "hardware": origin.hardware(),
        "commit": origin.commit(),
    }
    priors.save_card(asked.out, name, {**small.card, **found, "calibrated": calibrated})


def judged(setup: Setup, state: State) -> dict[str, Any]:
    """Calibration on validation tasks, scores on test tasks."""
    if setup.tasks.shape:
        with console.waiting(f"judging {setup.settings.tasks} on unseen tasks"):
            return page_characters.judged(setup, state)
    with progress() as report:
        found = page_curves.judged(setup.settings.tasks, setup.settings.method, state.prior, report)
    shares = zip(found["scores"]["points"], found["scores"]["coverage90"], strict=True)
    words = ", ".join(f"{count}: {100 * share:.1f} %" for count, share in shares)
    print(f"{setup.settings.tasks}, {setup.settings.method}: coverage of 90 % bands by points {words}", flush=True)
    return found


def origin_of(run: runs.Run, seconds: float | None) -> dict[str, Any]:
    """Where a prior comes from; seconds where it was trained in one go."""
    return {
        "command": "python -m experiments.page_priors",
        "iterations": run.settings["iterations"],
        "seed": run.settings["seed"],
        "seconds": None if seconds is None else round(seconds),
        "hardware": origin.hardware(),
        "commit": origin.commit(),
    }


if __name__ == "__main__":
    main()
