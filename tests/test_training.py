"""The loop around training: exact resume, refusal, divergence, and what a run folder can be used for afterwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import metaprior
from metaprior import checkpoints, runs, training
from metaprior.evaluation import calibrate_steps, evaluate
from metaprior.settings import Settings, as_dict, assemble, from_dict

pytestmark = pytest.mark.usefixtures("few_validation_tasks")

SMALL = Settings(iterations=40, hidden=(8, 8))


def leaves(tree):
    numbers = lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return [np.asarray(numbers(leaf)) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def setup():
    return assemble(SMALL)


@pytest.fixture(scope="module")
def trained(setup, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "whole"
    run = training.create_run(setup, folder, resume=False)
    state = training.train(setup, run, chunk=10, checkpoint_every=20)
    training.finish(setup, run, state)
    runs.release(run)
    return folder, state


class Stop(Exception):
    pass


def test_resume_is_exact(setup, trained, tmp_path):
    """Stopped after each chunk and begun anew, the run ends with the very same bits and the very same metrics."""

    def stop(progress):
        raise Stop

    run = training.create_run(setup, tmp_path / "cut", resume=False)
    for _ in range(20):
        try:
            state = training.train(setup, run, chunk=10, checkpoint_every=10, report=stop)
            break
        except Stop:
            continue
    for ours, theirs in zip(leaves(state), leaves(trained[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert runs.read_metrics(run) == runs.read_metrics(runs.open_run(trained[0]))


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(setup, trained, tmp_path):
    run = training.create_run(setup, tmp_path / "run", resume=False)
    training.train(setup, run, chunk=10, checkpoint_every=10)
    newest = max(checkpoints.available(run.checkpoints).items())[1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    notes = []
    state = training.train(setup, run, chunk=10, checkpoint_every=10, report=lambda p: notes.extend(p.warnings))
    assert any(newest.name in note for note in notes)
    for ours, theirs in zip(leaves(state), leaves(trained[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_unstable_setting_is_refused_before_training(tmp_path):
    setup = assemble(
        Settings(iterations=10, hidden=(8, 8), method="amortized-bml", temperature=1.0, rate=0.1, std=0.001)
    )
    with pytest.raises(training.Unstable, match="must stay below 2"):
        training.create_run(setup, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_divergence_names_the_iteration_and_keeps_the_last_good_state(setup, tmp_path):
    poisoned = setup._replace(tasks=setup.tasks._replace(sample=poison_from(setup, 17)))
    run = training.create_run(setup, tmp_path / "run", resume=False)
    with pytest.raises(training.Diverged, match="iteration 18"):
        training.train(poisoned, run, chunk=5, checkpoint_every=10)
    assert max(checkpoints.available(run.checkpoints)) == 15
    restored, _ = training.restored_state(setup, run)
    assert all(np.isfinite(leaf).all() for leaf in leaves(restored.prior))


def poison_from(setup, iteration):
    """Episodes that turn to NaN from one iteration on, recognised by the very keys that training will draw."""
    base = training.initial_state(setup).key
    keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(base, i))[0])(jnp.arange(iteration, 40))
    bad = jax.vmap(lambda key: metaprior.meta.task_keys(key, setup.learner.method.meta_batch))(keys)
    bad = jax.random.key_data(bad).reshape(-1, 2)

    def sample(key):
        hit = (jax.random.key_data(key)[None] == bad).all(axis=1).any()
        return jax.tree.map(lambda leaf: jnp.where(hit, jnp.nan, leaf), setup.tasks.sample(key))

    return sample


def test_settings_survive_json():
    settings = Settings(hidden=(3, 4), rate=0.5)
    assert from_dict(as_dict(settings)) == settings
    with pytest.raises(ValueError, match="does not know: colour"):
        from_dict({"colour": "blue"})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"iteration": 7}', '{"iteration": 7, "log_width": [0], "log_noise": "x"}']
)
def test_a_damaged_calibration_is_none(tmp_path, text):
    (tmp_path / training.CALIBRATION_FILE).write_text(text)
    assert training.load_calibration(runs.Run(tmp_path, {}), 7) is None


def test_loaded_run_adapts_as_the_learner_does(setup, trained):
    folder, state = trained
    x, y = np.linspace(-4, 4, 10), np.sin(np.linspace(-4, 4, 10))
    prior = metaprior.load(folder)
    task = prior.adapt(x, y, steps=3)
    support = metaprior.Data(jnp.asarray(x)[:, None], jnp.asarray(y)[:, None])
    by_hand = setup.learner.adapt(jax.random.key(0), state, support, 3)
    mean = jax.tree.map(lambda leaf: leaf[3], by_hand).mean
    np.testing.assert_allclose(task.predict(x).moments()[0], setup.model.apply(mean, support.x), atol=1e-10)
    low, high = task.predict(x).interval(0.9)
    assert (low < high).all()


def test_empty_support_is_the_prior_predictive(trained):
    prior = metaprior.load(trained[0])
    nothing = prior.adapt([], [], steps=4)
    before = prior.adapt([1.0], [2.0], steps=4).predict([0.5], steps=0)
    np.testing.assert_allclose(nothing.predict([0.5], steps=0).moments()[1], before.moments()[1])


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([1.0, float("nan")], [0.0, 0.0], "not finite at point 1"),
        ([1.0, 2.0], [0.0], "must be pairs"),
        ([[1.0, 2.0]], [0.0], r"x must have shape \[N\] or \[N, 1\]"),
    ],
)
def test_bad_support_is_refused_in_words(trained, x, y, words):
    with pytest.raises(ValueError, match=words):
        metaprior.load(trained[0]).adapt(x, y)


def test_negative_steps_are_refused(trained):
    with pytest.raises(ValueError, match="zero steps or more"):
        metaprior.load(trained[0]).adapt([1.0], [1.0], steps=-1)


def test_evaluation_is_the_average_over_tasks(setup, trained):
    """Squared errors against a plain loop over the very same tasks."""
    from metaprior.evaluation import TEST_SEED
    from metaprior.meta import task_keys

    state = trained[1]
    results = evaluate(setup, state, calibrate_steps(setup, state, steps=2, num_tasks=4), steps=2, num_tasks=3)
    errors = []
    for key in task_keys(jax.random.key(TEST_SEED), 3):
        key_task, key_adapt, _ = jax.random.split(key, 3)
        episode = setup.tasks.evaluation(key_task)
        q = setup.learner.adapt(key_adapt, state, episode.support, 2)
        last = jax.tree.map(lambda leaf: leaf[2], q).mean
        errors.append(jnp.square(setup.model.apply(last, episode.query.x) - episode.query.y).mean())
    assert results["steps"] == [0, 1, 2]
    assert results["mse"][2] == pytest.approx(float(np.mean(errors)), rel=1e-9)


def test_tasks_without_support_can_be_trained_and_judged():
    """Zero shots: adaptation changes nothing, so every number of steps predicts the same."""
    setup = assemble(Settings(iterations=4, hidden=(4,), shots=0))
    state = training.initial_state(setup)
    state, infos = jax.jit(metaprior.trainer(setup.learner, setup.tasks.sample, 2), static_argnums=1)(state, 4)
    assert infos.finite.all()
    results = evaluate(setup, state, calibrate_steps(setup, state, steps=2, num_tasks=3), steps=2, num_tasks=3)
    assert results["mse"][0] == results["mse"][2]
    assert results["coverage90_near"] == [None, None, None]  # nothing is near a support that is empty


def test_a_row_and_a_likelihood_of_other_temperature_are_refused():
    model = metaprior.mlp((1, 4, 1))
    with pytest.raises(ValueError, match=r"temperature 0.01 and the likelihood to 1: pass gaussian"):
        metaprior.meta_learner(metaprior.get_method("kl-chaser"), metaprior.gaussian(model.apply))
