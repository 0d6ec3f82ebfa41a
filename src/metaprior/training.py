"""The loop around the compiled one: chunks of iterations, checkpoints, metrics, and the two ways a run can end early."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from metaprior import checkpoints, processes, runs
from metaprior.classes import class_predictor
from metaprior.evaluation import VALIDATION_SEED, calibrate_steps
from metaprior.interrupts import deferred_interrupt
from metaprior.meta import Info, State
from metaprior.predict import Calibration
from metaprior.programs import program
from metaprior.rl.progress import looker
from metaprior.rl.replay import iteration_fault
from metaprior.settings import Setup, as_dict, assemble, from_dict
from metaprior.types import Episode

TEST_STEPS = 10
CALIBRATION_FILE = "calibration.json"
UNFITTED = (
    "bands mean nothing yet: fit noise and widths on groups of rows of yours, metaprior.load(folder).calibrated(groups)"
)
UNFITTED_CLASSES = "probabilities are not calibrated: clients have the images, and there are none here to fit them on"
INDUCTIVE_FILE = "calibration-inductive.json"  # of images: for each answered by itself


class Unstable(ValueError):
    """A setting that cannot work, found before training."""


class Diverged(RuntimeError):
    """Training left the finite numbers; the last good checkpoint is kept."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the state was saved, and the run can go on with --resume."""


class Progress(NamedTuple):
    """What the loop reports after each chunk."""

    iteration: int
    info: Info  # averaged over the chunk
    warnings: list[str]
    returns: tuple[float, ...] = ()  # of agents: before and after one update, see `rl.progress`


def initial_state(setup: Setup, seed: int | Int[Array, ""] | None = None) -> State:
    """Before the first iteration: everything random follows from the seed, of the settings if None is given."""
    key_model, key_learner = jax.random.split(jax.random.key(setup.settings.seed if seed is None else seed))
    return setup.learner.init(key_learner, setup.model.init(key_model))


def require_stable(setup: Setup, state: State) -> None:
    """Refuse settings whose inner steps would diverge, before any time is spent on them."""
    episode = trial_episode(setup)
    for source in (episode.support, episode.query):
        if problem := setup.learner.check(state, source):
            raise Unstable(problem)


def trial_episode(setup: Setup) -> Episode:
    """A first task, to try settings on."""
    return setup.tasks.sample(jax.random.key(setup.settings.seed), *setup.tasks.pool("train"))


def train(
    setup: Setup,
    run: runs.Run | None,
    *,
    mesh: Mesh | None = None,
    by_layer: bool = False,
    chunk: int = 500,
    checkpoint_every: int = 2000,
    report: Callable[[Progress], None] = lambda progress: None,
) -> State:
    """Train into a run folder, going on from its newest whole checkpoint if it has one.

    Args:
        setup: the pieces.
        run: from `create_run`; None in a process that computes for the first one, which alone reads and writes the folder.
        mesh: the devices to train on, of all processes; None for one device. See `parallel`.
        by_layer: whether each device keeps the prior and the meta-optimiser's state of its own layers alone; see `layers`.
        chunk: iterations per compiled call; metrics are averaged over a chunk.
        checkpoint_every: iterations between checkpoints, rounded up to whole chunks.
        report: called after each chunk.
    """
    state, notes = (initial_state(setup), []) if run is None else restored_state(setup, run)
    if run is not None:
        runs.rewind(run, int(state.iteration))
    if processes.several():
        state = processes.of_first(state)
    compiled, trial = program(setup, state, mesh, by_layer=by_layer), trial_episode(setup).support
    look = looker(setup.rl, VALIDATION_SEED) if setup.rl is not None and run is not None else lambda state: np.zeros(0)
    last_saved, rows, explained = int(state.iteration), [], False
    with deferred_interrupt() as interrupted:
        while (done := int(state.iteration)) < setup.settings.iterations:
            # Chunks end on multiples of `chunk`, so that a resumed run repeats the very same calls.
            length = min(chunk - done % chunk, setup.settings.iterations - done)
            next_state, infos = compiled(state, length)
            infos = jax.tree.map(np.asarray, infos)
            if not infos.finite.all():
                _save(run, state, rows)
                _raise_diverged(run, done, infos, _fault(setup, compiled, state, ~infos.finite))
            if infos.left_out.any() and not explained:  # once: to live through an iteration again takes its time
                fault, explained = _fault(setup, compiled, state, infos.left_out > 0), True
                notes = notes + ([f"{fault}; this task was left out"] if fault else [])
            state, done = next_state, done + length
            returns = tuple(look(state).tolist())
            rows.append(_row(setup, done, infos, returns))
            # Asked once: an interrupt that arrives between saving and raising must wait for the next chunk.
            finished, stop = done >= setup.settings.iterations, interrupted()
            stop = processes.anybody(stop) if processes.several() else stop
            if done - last_saved >= checkpoint_every or finished or stop:
                notes = notes + _watch(setup, state, trial)
                _save(run, state, rows)
                last_saved, rows = done, []
            report(Progress(done, _chunk_mean(infos), notes, returns))
            notes = []
            if stop and not finished:
                where = f"saved in {run.folder}; go on with --resume" if run else "the first process has saved it"
                raise Interrupted(f"stopped at iteration {done}; {where}")
    if run is not None and not checkpoints.available(run.checkpoints):  # zero iterations leave a prior too
        _save(run, state, rows)
    return state


def restored_state(setup: Setup, run: runs.Run) -> tuple[State, list[str]]:
    """The newest whole checkpoint of a run, or the initial state; with a note for each damaged one."""
    start = initial_state(setup)
    if not checkpoints.available(run.checkpoints):
        return start, []
    try:
        restored = checkpoints.restore(run.checkpoints, start)
    except checkpoints.CheckpointError:
        raise
    except ValueError as error:
        if setup.rl is None:
            raise
        raise ValueError(f"{setup.rl.misfit(run.folder)} ({error})") from None
    return restored.tree, list(restored.notes)


def save_calibration(run: runs.Run, calibration: Calibration, iteration: int, *, name: str = CALIBRATION_FILE) -> None:
    """Beside the checkpoints, in a file people can read."""
    values = {
        "iteration": iteration,
        **{name: value.tolist() for name, value in calibration._asdict().items()},
    }
    checkpoints.write_atomically(Path(run.folder) / name, json.dumps(values, indent=2).encode())


def load_calibration(run: runs.Run, iteration: int, *, name: str = CALIBRATION_FILE) -> Calibration | None:
    """The calibration of that iteration, if there is one; a damaged file counts as none, since it can be fitted again."""
    try:
        values = json.loads((Path(run.folder) / name).read_bytes())
        if values["iteration"] != iteration:
            return None
        return Calibration(*(jnp.asarray(values[name], float) for name in Calibration._fields))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


class Trained(NamedTuple):
    """A run, opened: what was built from its settings, where training stands, and how sure predictions are."""

    setup: Setup
    state: State
    calibration: Calibration
    notes: list[str]
    inductive: Calibration | None = None  # of images: for each answered by itself, if that was fitted
    kept: bool = True  # whether its calibration was found with the run


def open_state(folder: str | Path, *, data_dir: Path | None = None) -> tuple[Setup, State, list[str]]:
    """Of a run folder: what is built from its settings, where training stands, and a note for each damaged checkpoint.

    `data_dir` is where its images lie now, if not where they lay in training.
    """
    run = runs.open_run(folder)
    settings = from_dict(dict(run.settings))
    setup = assemble(settings if data_dir is None else replace(settings, data_dir=data_dir))
    if not checkpoints.available(run.checkpoints):
        raise runs.RunError(f"{folder} has no checkpoint yet: train it first, {go_on(folder)}")
    return setup, *restored_state(setup, run)


def open_trained(folder: str | Path, *, steps: int = TEST_STEPS, data_dir: Path | None = None) -> Trained:
    """Open a run folder for adaptation; calibrates on validation tasks if that has not been done for so many steps."""
    setup, state, notes = open_state(folder, data_dir=data_dir)
    run = runs.open_run(folder)
    calibration = load_calibration(run, int(state.iteration))
    if setup.tasks.elsewhere and calibration is None:
        said = UNFITTED if setup.tasks.shape is None else UNFITTED_CLASSES
        return Trained(setup, state, _unfitted(steps), [*notes, said])
    kept = calibration is not None
    if not kept:
        words = f"the run has no calibration of iteration {int(state.iteration)} yet, so one is fitted anew each time"
        notes = [*notes, f"{words}: {go_on(folder)} ends the training, and keeps one"]
    if calibration is None or calibration.log_noise.shape[0] <= steps:
        try:
            calibration = calibrate_steps(setup, state, steps=max(steps, TEST_STEPS))
        except ValueError as error:  # most likely images that are not at hand
            raise ValueError(
                f"{folder} is not calibrated for {steps} steps yet, which takes its own tasks: {error}"
            ) from None
    inductive = load_calibration(run, int(state.iteration), name=INDUCTIVE_FILE)
    return Trained(setup, state, calibration, notes, inductive, kept)


def go_on(folder: str | Path) -> str:
    """The command that goes on with a run, and calibrates it at its end."""
    return f"metaprior train --resume --out {shlex.quote(str(folder))}"


def _unfitted(steps: int) -> Calibration:
    """Widths as they were learned, and noise of one."""
    return Calibration(*(jnp.full(max(steps, TEST_STEPS) + 1, value) for value in (0.0, 0.0, 0.0, 0.0, 1.0)))


def finish(setup: Setup, run: runs.Run, state: State) -> Calibration:
    """After training: calibrate and keep the result with the run. Images are calibrated answered together, and one by one."""
    iteration = int(state.iteration)
    if setup.tasks.shape is not None:
        one_by_one = setup._replace(predictor=class_predictor(setup.model, setup.learner.cell.family, inductive=True))
        save_calibration(run, calibrate_steps(one_by_one, state, steps=TEST_STEPS), iteration, name=INDUCTIVE_FILE)
    calibration = calibrate_steps(setup, state, steps=TEST_STEPS)
    save_calibration(run, calibration, iteration)  # last: where it is found, all that is to be fitted has been
    return calibration


def create_run(setup: Setup, folder: str | Path, *, resume: bool) -> runs.Run:
    """The run folder for these settings. Those that would diverge are refused before there is a folder."""
    if not resume and not setup.tasks.elsewhere:
        require_stable(setup, initial_state(setup))
    return runs.create(folder, as_dict(setup.settings), resume=resume)


def _watch(setup: Setup, state: State, trial) -> list[str]:
    """Whether inner steps are still stable under the widths and rates learned so far."""
    if setup.learner.cell.inference.soft_limit:
        return []
    problem = setup.learner.check(state, trial)
    return [f"iteration {int(state.iteration)}: {problem}"] if problem else []


def _save(run: runs.Run | None, state: State, rows: list[dict[str, Any]]) -> None:
    if run is None:
        return
    # Metrics first: after a kill between the two, rows beyond the checkpoint are dropped and written again.
    runs.append_metrics(run, rows)
    checkpoints.save(run.checkpoints, int(state.iteration), state)


def _row(setup: Setup, iteration: int, infos: Info, returns: tuple[float, ...]) -> dict[str, Any]:
    mean = _chunk_mean(infos)
    if setup.rl is None:
        found = {"query_nll": float(mean.query_nll), "elbo": float(mean.elbo)}
    else:  # the likelihood of rollouts is a surrogate, and says nothing by itself
        found = {"returns": list(returns), "environment_steps": iteration * setup.rl.steps_per_iteration}
    return {
        "iteration": iteration,
        **found,
        "left_out": int(infos.left_out.sum()),
        "step_norm": float(mean.step_norm),
        "log_std": [float(v) for v in mean.log_std],
        "log_rate": [float(v) for v in mean.log_rate],
    }


def _chunk_mean(infos: Info) -> Info:
    averaged = jax.tree.map(lambda leaf: np.mean(leaf, axis=0), infos)
    averaged = averaged._replace(**{name: watched_mean(getattr(infos, name)) for name in ("query_nll", "elbo")})
    return averaged._replace(left_out=infos.left_out.sum(), log_std=infos.log_std[-1], log_rate=infos.log_rate[-1])


def watched_mean(values: Float[np.ndarray, "... iterations"]) -> Float[np.ndarray, "..."]:
    """The mean over the iterations that were watched; NaN where none was."""
    seen = np.isfinite(values)
    total = np.where(seen, values, 0).sum(axis=-1)
    return np.where(seen.any(axis=-1), total / np.maximum(seen.sum(axis=-1), 1), np.nan)


def _fault(
    setup: Setup, compiled: Callable[[State, int], Any], state: State, bad: Bool[np.ndarray, " iterations"]
) -> str | None:
    """Of agents: what went wrong in the first bad iteration of a chunk, in words that name the task and the step."""
    if setup.rl is None:
        return None
    before = int(np.argmax(bad))
    state = compiled(state, before)[0] if before else state
    of = setup.rl
    return iteration_fault(
        of.environment, of.policy, of.learner, of.tasks.sample, state, setup.learner.method.meta_batch
    )


def _raise_diverged(run: runs.Run | None, done: int, infos: Info, fault: str | None) -> None:
    first = done + int(np.argmin(infos.finite)) + 1
    why = "no task had a finite gradient, or the prior was no longer finite" if fault is None else f"in {fault}"
    where = run.folder if run else "the run folder of the first process"
    raise Diverged(
        f"training diverged at iteration {first}: {why}. The state at iteration {done} is kept in {where}. "
        "Lower the inner rate or the meta-rate, or freeze the widths"
    )
