"""Tables that only clients have: any number of inputs and outputs, learned from where they are, calibrated on rows one has."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import metaprior
from metaprior import runs, training
from metaprior.cli import main
from metaprior.federated import server, tables
from metaprior.federated.requests import answerer
from metaprior.settings import Settings, as_dict, assemble, from_dict
from metaprior.tasks import get as get_tasks
from metaprior.tasks.tables import padded

NAMES = {"inputs": ("age", "dose"), "outputs": ("pulse",)}
SETTINGS = Settings("tables", "gem-bml+last-layer", shots=5, queries=5, hidden=(12,), meta_rate=0.03, **NAMES)


def patients(seed, count, noise=0.1):
    """Rows of y = a₁x₁ + a₂x₂ + b, with coefficients of each group's own."""
    draw = np.random.default_rng(seed)
    found = {}
    for number in range(count):
        x, (a1, a2, b) = draw.normal(size=(12, 2)), draw.normal(size=3)
        y = a1 * x[:, :1] + a2 * x[:, 1:] + b + noise * draw.normal(size=(12, 1))
        found[f"{seed}-{number}"] = np.concatenate([x, y], axis=1)
    return found


def test_a_task_is_a_group_and_its_rows_are_divided_by_chance():
    tasks = get_tasks("tables", shots=4, queries=3, **NAMES)
    groups = {"b": np.arange(27.0).reshape(9, 3), "a": 100 + np.arange(21.0).reshape(7, 3), "few": np.zeros((6, 3))}
    names, points, counts = padded(tasks, groups)
    assert names == ("a", "b") and counts.tolist() == [7, 9] and points.shape == (2, 9, 3)
    drawn = jax.vmap(lambda key: tasks.sample(key, points, counts))(jax.random.split(jax.random.key(0), 40))
    assert drawn.support.x.shape == (40, 4, 2) and drawn.query.y.shape == (40, 3, 1)
    rows = np.concatenate([np.concatenate([part.x, part.y], axis=-1) for part in drawn], axis=1)
    seen = set()
    for task in rows:
        name = "a" if task.min() >= 100 else "b"
        seen.add(name)
        assert len({tuple(row) for row in task}) == 7 and {tuple(row) for row in task} <= {
            tuple(r) for r in groups[name]
        }
    assert seen == {"a", "b"}


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.slow
def test_what_clients_have_is_learned_and_calibrated_on_rows_of_ones_own(tmp_path):
    """Linear functions of two inputs, from two clients' groups: a new one is known from five rows, and its bands cover."""
    setup = assemble(replace(SETTINGS, iterations=100))
    held = [tables.grouped(setup, patients(seed, 20), name=str(seed)) for seed in (1, 2)]
    clients = {f"client-{i}": answerer(setup, holder) for i, holder in enumerate(held)}
    run = training.create_run(setup, tmp_path / "run", resume=False)
    federation, _ = server.taken_up(setup, run, server.Rules(quorum=2), checkpoint_every=100)
    server.simulated(federation, clients)
    runs.release(run)
    prior = metaprior.load(tmp_path / "run")
    assert "bands mean nothing yet" in prior.trained.notes[0]
    prior = prior.calibrated(patients(3, 40))
    assert prior.trained.notes == []
    errors, inside = [], []
    for rows in patients(4, 8).values():
        predictive = prior.adapt(rows[:5, :2], rows[:5, 2:]).predict(rows[5:, :2])
        low, high = predictive.interval(0.9)
        errors.append(np.square(predictive.moments()[0] - rows[5:, 2:]).mean())
        inside.append(np.mean((low <= rows[5:, 2:]) & (rows[5:, 2:] <= high)))
    assert np.mean(errors) < 0.75  # a quarter of the variance, which is three
    assert 0.7 < np.mean(inside) < 1.0


def test_without_rows_nothing_is_begun(tmp_path, capsys):
    flags = ["--inputs", "age", "dose", "--outputs", "pulse", "--out", str(tmp_path / "run")]
    assert main(["train", "tables", *flags]) == 2
    assert "rows that clients have" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_names_of_columns_are_of_tables_alone_and_survive_json():
    with pytest.raises(ValueError, match="no columns with names: leave out --inputs"):
        Settings("sinusoid", inputs=("a",))
    with pytest.raises(ValueError, match="each column once"):
        assemble(replace(SETTINGS, outputs=("age",)))
    assert from_dict(as_dict(SETTINGS)) == SETTINGS and "inputs" not in as_dict(Settings())
    assert assemble(SETTINGS).tasks.describe.endswith("age, dose → pulse")


def test_only_tables_are_calibrated_by_groups(tmp_path):
    setup = assemble(Settings(hidden=(4,), iterations=0))
    state = training.initial_state(setup)
    trained = training.Trained(setup, state, training._unfitted(10), [])
    with pytest.raises(ValueError, match="groups are for tables"):
        metaprior.Learned(trained).calibrated({"a": jnp.zeros((20, 2))})
