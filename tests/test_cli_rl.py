"""Agents on the command line: the same command, folder and exact resume as for curves; returns, goals and refusals in words."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import metaprior
from metaprior import codec, estimates, policies, runs, training
from metaprior.checkpoints import available
from metaprior.cli import main
from metaprior.cli.train import OF_AGENTS
from metaprior.evaluation import TEST_SEED, VALIDATION_SEED
from metaprior.meta import task_keys
from metaprior.rl import progress, rows
from metaprior.rl.evaluation import adapted_returns
from metaprior.rl.likelihood import practice
from metaprior.rl.named import environment_called, goal_called
from metaprior.rl.navigation import Goal, navigation
from metaprior.rl.rollouts import rollouts, total_rewards
from metaprior.settings import Settings, as_dict, assemble, from_dict, usual

pytestmark = pytest.mark.usefixtures("quick_compile_here")

ROOT = Path(__file__).parents[1]
LOOK = f"{progress.ROLLOUTS} rollouts in each of {progress.TASKS} validation tasks"
TINY = ["rl-navigation", "--hidden", "4", "--horizon", "5", "--rollouts", "3", "--queries", "2", "--meta-batch", "2"]
WHOLE = [*TINY, "--iterations", "12", "--chunk", "3"]


@pytest.fixture(scope="module", autouse=True)
def small_looks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "TASKS", 2)
        patch.setattr(progress, "ROLLOUTS", 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, trained once and never interrupted; tests only read it."""
    path = tmp_path_factory.mktemp("rl") / "run"
    assert main(["train", *WHOLE, "--checkpoint-every", "6", "--out", str(path), "--quiet"]) == 0
    return path


def refused(capsys, argv, *words, code=2):
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("metaprior: ") and err.count("\n") == 1
    for word in words:
        assert word in err
    return err


def newest(folder):
    return load_file(list(available(folder / "checkpoints").values())[-1])


def assert_same_end(folder, reference):
    found, expected = newest(folder), newest(reference)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    for name in ("metrics.jsonl", "settings.json"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes()


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_leaves_a_run_like_any_other(folder):
    assert list(available(folder / "checkpoints")) == [6, 12]
    settings = json.loads((folder / "settings.json").read_text())
    assert (settings["tasks"], settings["rollouts"], settings["decay"]) == ("rl-navigation", 3, True)
    found = runs.read_metrics(runs.open_run(folder))
    assert [row["iteration"] for row in found] == [3, 6, 9, 12]
    # One step on the support and one of the second stage: 2 tasks × (3 + 2) rollouts × 5 steps.
    assert [row["environment_steps"] for row in found] == [150, 300, 450, 600]
    assert "query_nll" not in found[0] and len(found[0]["returns"]) == 2


@pytest.mark.slow
def test_looks_are_returns_of_validation_tasks(folder):
    """By a plain loop: the last row of the metrics is what the last prior does, before and after one update."""
    setup, state, _ = training.open_state(folder)
    of = setup.rl
    assert of is not None

    @jax.jit
    def one(key):
        key_task, key_adapt, key_judge = jax.random.split(key, 3)
        task = of.environment.draw(key_task)
        q = of.learner.adapt(key_adapt, state, practice(task, 3), 1)
        act = lambda at: rollouts(key_judge, of.environment, of.policy, jax.tree.map(lambda x: x[at], q.mean), task, 3)
        return jnp.stack([total_rewards(act(at)).mean() for at in (0, 1)])

    expected = np.mean([one(key) for key in task_keys(jax.random.key(VALIDATION_SEED), 2)], axis=0)
    found = runs.read_metrics(runs.open_run(folder))[-1]["returns"]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[0] != found[1]


@pytest.mark.slow
def test_training_is_that_of_the_library(folder):
    """The folder's prior is the one that `trainer` gives, from the seed, in one call."""
    setup = assemble(from_dict(runs.open_run(folder).settings))
    start = training.initial_state(setup)
    train = jax.jit(metaprior.trainer(setup.learner, setup.tasks.sample, 2), static_argnums=1)
    expected = codec.flatten(train(start, 12)[0].prior)
    found = codec.flatten(training.open_state(folder)[1].prior)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)
        assert not np.array_equal(array, codec.flatten(start.prior)[name])


KILLED = """
import os, signal, sys
from metaprior import checkpoints
from metaprior.cli import main
from metaprior.cli.train import OF_AGENTS
from metaprior.rl import progress, rows
progress.TASKS, progress.ROLLOUTS = 2, 3
save = checkpoints.save
def die_at_six(folder, iteration, tree):
    save(folder, iteration, tree)
    if iteration == 6:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.save = die_at_six
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_killed_and_resumed_a_run_ends_with_the_same_prior(folder, tmp_path):
    environment = os.environ | {
        "JAX_ENABLE_X64": "1",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    path = tmp_path / "run"
    argv = ["train", *WHOLE, "--checkpoint-every", "3", "--out", str(path), "--quiet"]
    done = subprocess.run([sys.executable, "-c", KILLED, *argv], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(available(path / "checkpoints")) == [3, 6]
    assert main(["train", "--resume", "--out", str(path), "--chunk", "3", "--quiet"]) == 0
    assert_same_end(path, folder)


def test_resuming_keeps_to_the_settings_and_goes_further(folder, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    refused(capsys, ["train", "--resume", "--out", str(path), "--rollouts", "5"], "rollouts was 3, now 5")
    refused(capsys, ["train", "rl-cheetah-velocity", "--resume", "--out", str(path)], 'tasks was "rl-navigation"')
    assert main(["train", "--resume", "--out", str(path), "--iterations", "15", "--chunk", "3", "--quiet"]) == 0
    assert max(available(path / "checkpoints")) == 15


def test_progress_and_summary_are_in_returns(tmp_path, capsys):
    argv = [*TINY, "--iterations", "6", "--chunk", "3"]
    assert main(["train", *argv, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"3/6  return −\d+\.\d, after an update −\d+\.\d", lines[0])
    summary = dict(line.split(maxsplit=1) for line in lines[2:])
    assert summary["environment"].strip() == "300 steps at most, 50 an iteration"
    assert "3 rollouts in each of 2 validation tasks" in summary["returns"]
    assert summary["next"] == f"metaprior evaluate {tmp_path / 'run'}"


def test_the_command_takes_what_is_usual_for_agents(tmp_path, monkeypatch, capsys):
    seen = {}
    monkeypatch.setattr("metaprior.cli.train.assemble", lambda settings: seen.update(settings=settings) or exit(0))
    main(["train", "rl-navigation", "--rate", "0.2"])
    assert seen["settings"] == Settings("rl-navigation", iterations=300, hidden=(100, 100), rate=0.2)
    assert usual("sinusoid") == Settings()


def test_help_of_agents_teaches(capsys):
    assert main(["train", "rl-navigation", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert (
        " ".join(OF_AGENTS.split()) in out and "metaprior train rl-navigation --method gem-bml+ --out runs/walk" in out
    )
    assert LOOK in out and "(default: 100 100)" in out and "metaprior[rl]" in out
    assert LOOK in (ROOT / "docs" / "rl.md").read_text()


def test_estimate_before_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimates, "TRIAL_ON_ROLLOUTS", 3)  # the program of the other tests
    assert main(["train", *TINY, "--estimate"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "for 300 iterations of" in out and "looks at returns not counted" in out and os.listdir(tmp_path) == []
    setup = assemble(Settings("rl-navigation", method="maml", rollouts=3, hidden=(4,)))
    assert estimates.knobs(setup)[:4] == ["--meta-batch (20)", "--rollouts (3)", "--queries (20)", "--hidden (4)"]


# --- what does not fit is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["rl-navigation", "--shots", "5"], ["no support points", "say how many --rollouts"]),
        (["rl-navigation", "--ways", "5"], ["no classes or images: leave out --ways"]),
        (["rl-navigation", "--filters", "5"], ["leave out --filters"]),
        (
            ["sinusoid", "--rollouts", "5"],
            ["nobody acts in sinusoid tasks: leave out --rollouts", "begin with rl-"],
        ),
        (["sinusoid", "--rollouts", "0"], ["leave out --rollouts"]),
        (["omniglot", "--acting", "mean"], ["nobody acts in omniglot tasks: leave out --acting"]),
        (["rl-navigation", "--acting", "meen"], ["unknown choice of which weights act 'meen'", "did you mean mean"]),
        (["rl-navigation", "--rollouts", "0"], ["rollouts must be a whole number of trajectories, at least 1"]),
        (["rl-navigation", "--horizon", "0"], ["horizon must be a whole number of at least 1"]),
        (["rl-navigation", "--method", "maml-tpro"], ["unknown method 'maml-tpro'", "did you mean maml-trpo"]),
        (["rl-navigation", "--method", "imaml"], ["cannot learn from rollouts"]),
        (["rl-navigation", "--method", "bmaml"], ["particles", "acting='sample'"]),
        (["rl-navigation", "--estimator", "flipout"], ["estimator"]),
        (["rl-navigaton"], ["unknown task set 'rl-navigaton': did you mean rl-navigation"]),
        (["sinusoid", "--method", "maml-trpo"], ["unknown method 'maml-trpo'"]),
        (["sinusoid", "--max-kl", "0.1"], ["nobody acts in sinusoid tasks: leave out --max-kl"]),
        (["rl-navigation", "--max-kl", "0.1"], ["--max-kl is for meta-steps of TRPO (maml-trpo), gem-bml+ takes none"]),
        (["rl-navigation", "--method", "maml-trpo", "--max-kl", "0"], ["must be above zero"]),
        (["rl-navigation", "--method", "maml-trpo", "--width-rate", "3"], ["--width-rate is for meta-steps of Adam"]),
        (["rl-navigation", "--width-rate", "-1"], ["width rate must be above zero"]),
    ],
)
def test_flags_that_make_no_sense_are_refused_and_nothing_is_written(tmp_path, capsys, argv, words):
    refused(capsys, ["train", *argv, "--out", str(tmp_path / "run")], *words)
    assert os.listdir(tmp_path) == []


def test_settings_of_others_do_not_speak_of_agents():
    """What is kept under the words of settings stays what it is."""
    assert not {"rollouts", "acting", "horizon", "width_rate", "max_kl"} & set(as_dict(Settings()))
    agent = Settings("rl-navigation", rollouts=3, acting="sample", horizon=7, width_rate=2.0)
    assert from_dict(as_dict(agent)) == agent


def test_a_missing_extra_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco.batch", None)  # as if it could not be found
    argv = ["train", "rl-cheetah-velocity", "--out", str(tmp_path / "run")]
    refused(capsys, argv, "half-cheetah needs MuJoCo 4: pip install 'metaprior[rl]'")
    assert os.listdir(tmp_path) == []


def broken(reward):
    """Navigation in which the third step brings no number, where the goal lies far to the right."""
    sound = navigation(horizon=5)

    def reset(key, task):
        state, seen = sound.reset(key, task)
        return (state, jnp.zeros((), int)), seen

    def step(state, action, task):
        after, seen, gain, done = sound.step(state[0], action, task)
        wrong = (state[1] == 2) & (task.position[0] > 0.2)
        return (after, state[1] + 1), seen, jnp.where(wrong, reward, gain), done

    return sound._replace(reset=reset, step=step)


@pytest.mark.slow
@pytest.mark.parametrize("all_goals", [False, True])
def test_numbers_that_are_not_finite_are_named_with_task_and_step(tmp_path, capsys, monkeypatch, all_goals):
    """Some tasks: they are left out with a note. All of them: training stops, and the last good state is kept."""
    world = broken(jnp.nan)
    if all_goals:
        world = world._replace(draw=lambda key: Goal(0.3 + jnp.abs(navigation().draw(key).position)))
    monkeypatch.setattr("metaprior.settings.environment_called", lambda name, **options: world)
    argv = ["train", *TINY[:-1], "4", "--iterations", "4", "--chunk", "2", "--quiet", "--out", str(tmp_path / "run")]
    assert main(argv) == (1 if all_goals else 0)
    err = capsys.readouterr().err
    assert re.search(r"iteration \d: rl-navigation, task \d, trajectory 0, step 3: the reward is nan", err)
    assert ("training diverged at iteration 1" in err) == all_goals
    assert ("this task was left out" in err) != all_goals
    assert max(available(tmp_path / "run" / "checkpoints")) == (0 if all_goals else 4)
    state = training.open_state(tmp_path / "run")[1]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.prior))


def test_a_run_of_another_policy_or_environment_is_refused(folder, tmp_path, capsys):
    """Settings that say something else than what was saved; and in Python, another environment."""
    path = tmp_path / "run"
    shutil.copytree(folder, path)
    settings = json.loads((path / "settings.json").read_text())
    (path / "settings.json").write_text(json.dumps(settings | {"hidden": [7]}))
    for command in (["evaluate", str(path)], ["adapt", str(path), "--goal", "0", "0"]):
        refused(capsys, command, "rl-navigation, every task, step 0", "observations are 2 numbers, actions 2")
    wide = navigation()._replace(name="wide", observation_size=3)
    with pytest.raises(ValueError, match=r"wide, every task, step 0: .* does not take the observations, which are 3"):
        policies.load_policy(folder, environment=wide)


# --- judging and adapting ---------------------------------------------------------------------------------------------


def test_evaluate_is_returns_on_unseen_tasks(folder, tmp_path, capsys):
    argv = ["evaluate", str(folder), "--tasks-count", "4", "--steps", "2", "--rollouts", "3"]
    assert main([*argv, "--json", "--out", str(tmp_path / "found.json")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "found.json").read_text()) == result
    setup, state, _ = training.open_state(folder)
    of = setup.rl
    assert of is not None
    judge = lambda state: adapted_returns(
        jax.random.key(TEST_SEED), of.learner, of.environment, of.policy, state, steps=2, num_tasks=4, count=3
    )
    expected = np.asarray(jax.jit(judge)(state))
    assert result["updates"] == [0, 1, 2] and (result["tasks"], result["rollouts"]) == (4, 3)
    np.testing.assert_allclose(result["return"], expected.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(result["return_ci95"], 1.96 * expected.std(axis=0, ddof=1) / 2, rtol=1e-9)
    assert (result["method"], result["iteration"]) == ("gem-bml+", 12)


def test_evaluate_prints_a_table_and_refuses_flags_of_data(folder, tmp_path, capsys):
    argv = [
        "evaluate",
        str(folder),
        "--tasks-count",
        "1",
        "--steps",
        "1",
        "--rollouts",
        "1",
        "--out",
        str(tmp_path / "f"),
    ]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "gem-bml+ on rl-navigation: 1 unseen tasks, 1 rollouts for each update" in out
    assert re.search(r"\n +1 +−\d+\.\d\d *\n", out)  # of one task no interval can be told
    refused(capsys, ["evaluate", str(folder), "--queries", "3"], "--queries is not for agents")
    refused(capsys, ["evaluate", str(folder), "--inductive"], "--inductive is not for agents")


def test_adapt_prints_returns_and_writes_weights_and_a_picture(folder, tmp_path, capsys):
    out = tmp_path / "adapted"
    argv = ["adapt", str(folder), "--goal", "0.3", "-0.2", "--updates", "2", "--rollouts", "4", "--out", str(out)]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert sorted(os.listdir(out)) == ["paths.png", "policy.safetensors", "returns.csv"]
    assert (out / "paths.png").read_bytes().startswith(b"\x89PNG")
    header, *rows = (out / "returns.csv").read_text().splitlines()
    table = np.array([row.split(",") for row in rows], float)
    prior = metaprior.load_policy(folder)
    adapted = prior.adapt((0.3, -0.2), updates=2, rollouts=4)
    assert header == "updates,return,return_ci95" and table[:, 0].tolist() == [0, 1, 2]
    np.testing.assert_allclose(table[:, 1], np.asarray(adapted.returns).mean(axis=1), rtol=1e-8)
    assert f"{table[2, 1]:.2f}".replace("-", "−") in printed and "the goal (0.3, -0.2)" in printed
    weights = codec.decode(prior.rl.policy.init(jax.random.key(0)), (out / "policy.safetensors").read_bytes())
    for saved, kept in zip(jax.tree.leaves(weights), jax.tree.leaves(adapted.weights), strict=True):
        np.testing.assert_array_equal(saved, kept)
    lived = jax.jit(lambda w: rollouts(jax.random.key(1), prior.rl.environment, prior.rl.policy, w, adapted.task, 2))(
        weights
    )
    assert np.isfinite(lived.rewards).all()


@pytest.mark.slow
def test_updates_are_those_of_the_learner_in_that_task(folder):
    prior, goal = metaprior.load_policy(folder), Goal(jnp.array([0.1, 0.4]))
    adapted = prior.adapt(goal, updates=2, rollouts=4, seed=5)
    key = jax.random.split(jax.random.key(5))[0]
    posteriors = jax.jit(lambda key, state: prior.rl.learner.adapt(key, state, practice(goal, 4), 2))(key, prior.state)
    for ours, theirs in zip(jax.tree.leaves(adapted.weights), jax.tree.leaves(posteriors.mean), strict=True):
        np.testing.assert_allclose(ours, theirs[2], rtol=1e-9)
        assert not np.allclose(ours, theirs[1], rtol=1e-6)


def test_actions_of_an_adapted_policy(folder):
    adapted = metaprior.load_policy(folder).adapt((0.1, 0.1), updates=0, rollouts=1)
    outputs = adapted.policy.apply(adapted.weights, jnp.array([[0.2, -0.1]]))
    np.testing.assert_allclose(adapted.act([0.2, -0.1]), outputs[0, :2])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["is a prior over policies, which meets a goal: name its two coordinates, as --goal 0.3 -0.2"]),
        (["points.csv", "--out", "x"], ["is a prior over policies, which meets a goal"]),
        (["--goal"], ["is no goal of rl-navigation: name its two coordinates"]),
        (["--goal", "0.3"], ["--goal 0.3 is no goal of rl-navigation: name its two coordinates"]),
        (["--goal", "0.3", "up"], ["is no goal of rl-navigation"]),
        (["--goal", "nan", "0"], ["is no goal of rl-navigation"]),
        (["--goal", "0", "0", "--updates", "-1"], ["--updates must be at least 0, got -1"]),
        (["--goal", "0", "0", "--rollouts", "0"], ["--rollouts must be at least 1, got 0"]),
    ],
)
def test_goals_that_cannot_be_are_refused(folder, capsys, argv, words):
    refused(capsys, ["adapt", str(folder), *argv], *words)


def test_goals_by_name():
    assert (
        goal_called("rl-navigation", ["0.7", "0"]).note == "goals of training lie in [-0.5, 0.5]²: this one is beyond"
    )
    assert float(goal_called("rl-cheetah-velocity", ["1.5"]).task) == 1.5
    assert "beyond" in (goal_called("rl-cheetah-velocity", ["-1"]).note or "")
    assert [float(goal_called("rl-cheetah-direction", [word]).task) for word in ("forward", "-1")] == [1, -1]
    with pytest.raises(ValueError, match="--goal sideways is no direction: say --goal forward or --goal backward"):
        goal_called("rl-cheetah-direction", ["sideways"])
    assert environment_called("rl-navigation", horizon=None).horizon == 100


def test_commands_of_data_know_agents_and_the_other_way(folder, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"act and do not predict: use metaprior\.load_policy"):
        metaprior.load(folder)
    curves = tmp_path / "curves"
    setup = assemble(Settings(hidden=(4,), iterations=0))
    run = training.create_run(setup, curves, resume=False)
    training.train(setup, run)
    runs.release(run)
    refused(capsys, ["adapt", str(curves), "--goal", "1", "2"], "is a prior of sinusoid, in which nobody acts")
    refused(capsys, ["evaluate", str(curves), "--rollouts", "3"], "--rollouts is for priors over policies")


def test_methods_of_agents(capsys):
    assert main(["methods", "--rl"]) == 0
    out = capsys.readouterr().out
    for name in rows.ROWS:
        assert any(line.split()[:1] == [name] for line in out.splitlines())
    assert "amortized-bml" in out and "imaml" not in out
    assert main(["methods", "--rl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found] == list(rows.ROWS) and found[4]["meta_update"] == "trpo"
