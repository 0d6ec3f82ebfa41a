"""A federation's run folder and its clients' tasks: it learns what one machine does, and goes on exactly after a kill."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from metaprior import checkpoints, runs, training
from metaprior.federated import flower, holders, server, tables
from metaprior.federated.requests import Request, Work, answerer, program, settings_in
from metaprior.federated.rounds import Reply
from metaprior.federated.server import Abandoned, Rules
from metaprior.meta import trainer
from metaprior.settings import Settings, assemble

SETTINGS = Settings(hidden=(6,), shots=4, queries=3, meta_batch=5, iterations=6, rate=1e-3)


@pytest.fixture(scope="module")
def setup():
    return assemble(SETTINGS)


@pytest.fixture(scope="module")
def clients(setup):
    return {f"client-{i}": answerer(setup, holders.share(setup, i, 2)) for i in range(2)}


def begun(setup, folder, rules=None, *, resume=False, **options):
    run = training.create_run(setup, folder, resume=resume)
    return server.taken_up(setup, run, rules or Rules(quorum=2), **options)[0]


def assert_same(ours, theirs, tolerance=0.0):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def kept(state):
    return state._replace(key=jax.random.key_data(state.key))


@pytest.fixture(scope="module")
def whole(setup, clients, tmp_path_factory):
    federation = begun(setup, tmp_path_factory.mktemp("federation") / "whole")
    federation = server.simulated(federation, clients)
    runs.release(federation.run)
    return federation


def test_clients_that_share_a_task_set_learn_what_one_machine_does(setup, whole):
    """The very draws of `metaprior train`: what differs is the order of one summation."""
    central, _ = jax.jit(trainer(setup.learner, setup.tasks.sample, 5), static_argnums=1)(
        training.initial_state(setup), SETTINGS.iterations
    )
    assert_same(kept(whole.state), kept(central), 1e-12)
    records = runs.read_metrics(runs.open_run(whole.run.folder))
    assert [row["round"] for row in records] == [1, 2, 3, 4, 5, 6]
    assert all(row["tasks"] == 5 and row["replied"] == ["client-0", "client-1"] for row in records)


def test_a_run_folder_of_a_federation_is_one_of_training(whole):
    assert training.open_state(whole.run.folder)[1].iteration == SETTINGS.iterations


@pytest.mark.parametrize("every", [1, 4])
def test_after_a_kill_it_goes_on_to_the_very_same_prior(setup, clients, whole, tmp_path, monkeypatch, every):
    """Killed between records and checkpoint, which is the worst moment, in a run with a round that came to nothing."""
    saves, save = [], checkpoints.save

    def killed(*arguments, **options):
        if len(saves) == 5 // every:
            raise SystemExit("killed")
        saves.append(save(*arguments, **options))

    federation = begun(setup, tmp_path / "run", checkpoint_every=every)
    asked, _ = server.ask(federation, clients)
    federation, record = server.hear(federation, asked, [])
    assert not record.stepped and record.missing == ("client-0", "client-1")
    monkeypatch.setattr(checkpoints, "save", killed)
    with pytest.raises(SystemExit):
        server.simulated(federation, clients)
    runs.release(federation.run)
    monkeypatch.undo()
    federation = server.simulated(begun(setup, tmp_path / "run", resume=True, checkpoint_every=every), clients)
    assert_same(kept(federation.state), kept(whole.state))
    records = runs.read_metrics(federation.run)
    assert [row["round"] for row in records] == list(range(1, 8))
    assert [row["iteration"] for row in records] == list(range(7))
    runs.release(federation.run)


def test_a_client_that_fails_is_refused_and_the_round_goes_on(setup, clients, tmp_path):
    def broken(asked):
        raise RuntimeError("out of memory")

    federation = begun(setup, tmp_path / "run", Rules(quorum=1))
    federation = server.simulated(federation, {"client-0": clients["client-0"], "client-1": broken})
    records = runs.read_metrics(federation.run)
    assert all(row["refused"] == {"client-1": "the client failed: out of memory"} for row in records)
    assert all(row["tasks"] == 3 and row["stepped"] for row in records)


def test_a_run_that_comes_to_nothing_ends_and_leaves_the_prior_as_it_was(setup, clients, tmp_path):
    federation = begun(setup, tmp_path / "run", Rules(quorum=2, patience=3))
    with pytest.raises(Abandoned, match="3 rounds in a row had fewer than 2"):
        server.simulated(federation, {"client-0": clients["client-0"]})
    runs.release(federation.run)
    _, state, _ = training.open_state(federation.run.folder)
    assert_same(kept(state), kept(training.initial_state(setup)))
    assert [row["stepped"] for row in runs.read_metrics(federation.run)] == [False] * 3


def test_a_reply_of_an_earlier_round_is_refused(setup, clients, tmp_path):
    federation = begun(setup, tmp_path / "run", Rules(quorum=1))
    asked, sent = server.ask(federation, clients)
    late = Reply("client-0", sent.round, clients["client-0"](sent))
    federation, _ = server.hear(federation, asked, [])
    _, record = server.hear(federation, asked, [late])
    assert record.refused == {"client-0": "it answers round 1, and this is round 2"} and not record.stepped


def test_clients_are_sampled_by_seed_and_round(setup, tmp_path):
    federation = begun(setup, tmp_path / "run", Rules(clients=3))
    names = [f"client-{i}" for i in range(12)]
    chosen = [server.ask(federation._replace(number=number), names)[0] for number in range(1, 5)]
    again = [server.ask(federation._replace(number=number), names[::-1])[0] for number in range(1, 5)]
    assert chosen == again and len({tuple(some) for some in chosen}) > 1 and {len(some) for some in chosen} == {3}


@pytest.mark.parametrize(
    ("rules", "words"),
    [(Rules(quorum=0), "quorum"), (Rules(deadline=0.0), "deadline"), (Rules(patience=0), "patience"),
     (Rules(quorum=3, clients=2), "never be a quorum"), (Rules(work=Work(steps=0)), "steps")],
)  # fmt: skip
def test_rules_that_cannot_work_are_refused(rules, words):
    with pytest.raises(ValueError, match=words):
        server.require_sound(rules)


def test_a_request_does_not_tell_where_the_server_keeps_its_data(setup, tmp_path):
    federation = begun(setup, tmp_path / "run")
    _, sent = server.ask(federation, ["a"])
    assert settings_in(sent) == SETTINGS and str(tmp_path) not in sent.words
    assert set(json.loads(sent.words)) == {"settings", "work"}


def test_several_steps_of_a_clients_own_are_asked_for_in_the_request(setup, clients, tmp_path):
    federation = begun(setup, tmp_path / "run", Rules(work=Work(steps=3, rate=1e-3)))
    _, sent = server.ask(federation, clients)
    once = server.ask(federation._replace(rules=Rules()), clients)[1]
    several, single = clients["client-0"](sent), clients["client-0"](once)
    name = "gradient.dist.mean.layers.0.weight"
    assert several["kept"] == single["kept"] == 3 and several[name].shape == single[name].shape
    assert np.abs(several[name]).sum() > 1.5 * np.abs(single[name]).sum()


def test_a_request_for_another_network_is_refused(setup, clients):
    with pytest.raises(ValueError, match="do not fit"):
        clients["client-0"](Request(1, {"prior": np.zeros(3)}, "{}"))


# --- tasks of clients ----------------------------------------------------------------------------------------------------


def points(seed, count):
    return np.random.default_rng(seed).normal(size=(count, 2))


def test_groups_become_tasks_divided_anew_in_every_round(setup):
    groups = {"b": points(0, 7), "a": points(1, 12), "few": points(2, 6)}
    holder = tables.grouped(setup, groups, name="clinic")
    assert holder.left_out == ("few",) and "2 groups" in holder.describe
    first, second = (jax.jit(holder.draw)(jax.random.key(seed)) for seed in (0, 1))
    assert first.episodes.support.x.shape == (2, 4, 1) and first.episodes.query.y.shape == (2, 3, 1)
    assert_same(first.numbers, second.numbers)
    assert not np.array_equal(first.episodes.support.x, second.episodes.support.x)
    for row, name in enumerate(("a", "b")):  # in the order of their names
        parts = [first.episodes.support, first.episodes.query]
        drawn = {tuple(pair) for part in parts for pair in np.column_stack([part.x[row], part.y[row]]).tolist()}
        assert len(drawn) == 7 and drawn <= {tuple(pair) for pair in groups[name].tolist()}


def test_groups_of_two_clients_have_numbers_of_their_own(setup):
    numbers = [tables.grouped(setup, {"a": points(0, 9)}, name=name).draw(jax.random.key(0)).numbers for name in "xy"]
    assert int(numbers[0][0]) != int(numbers[1][0])


def test_clients_with_as_many_tasks_share_a_compiled_program(setup, tmp_path):
    """Five tasks for four clients: 2, 1, 1 and 1."""
    traced, all_held = [], holders.shares(setup, 4)

    def counted(key, numbers):
        traced.append(numbers.shape)
        return all_held[0].held(key, numbers)

    compiled = program(setup, counted)
    clients = {f"client-{i}": answerer(setup, holder, compiled=compiled) for i, holder in enumerate(all_held)}
    federation = server.simulated(begun(setup, tmp_path / "run", Rules(quorum=4)), clients)
    assert sorted(traced) == [(1,), (2,)]
    assert [row["tasks"] for row in runs.read_metrics(federation.run)] == [5] * 6


def test_clients_apart_have_alphabets_of_their_own(tmp_path):
    """Every image that a client can draw is of its own classes, and together they have all."""
    shades = np.arange(12)  # each class is of one shade; three alphabets of 5, 4 and 3 characters
    names = tuple(f"{name}/character{i:02d}" for name, count in (("a", 5), ("b", 4), ("c", 3)) for i in range(count))
    pixels = np.repeat(shades.astype(np.uint8), 3)[:, None, None, None] * np.ones((1, 28, 28, 1), np.uint8)
    members = np.arange(36, dtype=np.int32).reshape(12, 3)
    setup = assemble(Settings("omniglot", "gem-bml+last-layer", ways=2, queries=1, filters=2, meta_batch=6))
    tasks = setup.tasks._replace(classes=lambda split: names, pool=lambda split: (pixels, members))
    first, second = holders.apart(setup._replace(tasks=tasks), 2)
    own = [{int(shade) for shade in np.unique(holder.data[1])} for holder in (first, second)]
    assert own == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9, 10, 11}]
    drawn = first.draw(jax.random.key(0))
    assert {round(float(v) * 255) for v in np.unique(drawn.episodes.query.x)} <= own[0]
    np.testing.assert_array_equal(drawn.numbers, [0, 2, 4])
    with pytest.raises(ValueError, match="not made of classes"):
        holders.apart(assemble(SETTINGS), 2)


def test_too_few_points_are_refused_with_the_number_that_is_needed(setup):
    with pytest.raises(ValueError, match="no group has the 7 points"):
        tables.grouped(setup, {"a": points(0, 6)})


def test_a_share_needs_a_number_that_there_is(setup):
    with pytest.raises(ValueError, match="no number 2"):
        holders.share(setup, 2, 2)
    with pytest.raises(ValueError, match="cannot be shared by 6"):
        holders.share(setup, 0, 6)


def test_tables_and_folders_of_tables_are_read_alike(tmp_path):
    rows = {name: points(seed, 3) for seed, name in enumerate(("anna", "ben"))}
    table, folder = tmp_path / "all.csv", tmp_path / "each"
    folder.mkdir()
    lines = [f"{name},{x!r},{y!r}" for name, some in rows.items() for x, y in some.tolist()]
    table.write_text("patient,time,dose\n" + "\n".join(lines) + "\n")
    for name, some in rows.items():
        (folder / f"{name}.csv").write_text("time,dose\n" + "\n".join(f"{x!r},{y!r}" for x, y in some.tolist()) + "\n")
    columns = {"x": ["time"], "y": ["dose"]}
    for found in (tables.read_groups(table, group="patient", **columns),
                  tables.read_groups(folder, group=None, **columns)):  # fmt: skip
        assert list(found) == ["anna", "ben"]
        assert_same(found, rows)


def test_tables_may_have_several_inputs_and_outputs(tmp_path):
    """For tasks that have as many: here, two inputs and two outputs in the place of a sinusoid's one."""
    setup = assemble(SETTINGS)
    setup = setup._replace(tasks=setup.tasks._replace(inputs=2, outputs=2))
    rows = np.random.default_rng(0).normal(size=(9, 4))
    text = "\n".join(",".join(map(repr, row)) + ",anna" for row in rows.tolist())
    (tmp_path / "t.csv").write_text(f"time,dose,pulse,heat,who\n{text}\n")
    groups = tables.read_groups(tmp_path / "t.csv", group="who", x=["dose", "time"], y=["heat", "pulse"])
    np.testing.assert_array_equal(groups["anna"], rows[:, [1, 0, 3, 2]])
    support = tables.grouped(setup, groups).draw(jax.random.key(0)).episodes.support
    assert support.x.shape == support.y.shape == (1, 4, 2)
    drawn = np.concatenate([support.x[0], support.y[0]], axis=1)
    assert {tuple(row) for row in drawn.tolist()} <= {tuple(row) for row in groups["anna"].tolist()}
    with pytest.raises(ValueError, match="have 1 inputs and 1 outputs, and these rows 4 numbers"):
        tables.grouped(assemble(SETTINGS), groups)


def test_a_folder_of_pictures_is_a_clients_tasks(tmp_path):
    for shade in range(4):
        (tmp_path / f"class-{shade}").mkdir()
        for number in range(1 if shade == 3 else 3):
            Image.new("RGB", (84, 84), (60 * shade,) * 3).save(tmp_path / f"class-{shade}" / f"{number}.png")
    setup = assemble(Settings("images", "gem-bml+last-layer", ways=2, shots=1, queries=2, filters=2, meta_batch=4))
    holder = holders.own_images(setup, tmp_path, tasks=3, name="anna")
    assert holder.left_out == ("class-3",) and "3 tasks a round of 3 classes" in holder.describe
    held = holder.draw(jax.random.key(0))
    assert held.episodes.support.x.shape == (3, 2, 84, 84, 3) and held.episodes.query.x.shape == (3, 4, 84, 84, 3)
    other = holders.own_images(setup, tmp_path, name="ben")
    assert other.draw(jax.random.key(0)).numbers.size == 4
    assert not set(other.data[0].tolist()) & set(holder.data[0].tolist())
    with pytest.raises(ValueError, match="3 classes with 3 pictures or more, and a task needs 4"):
        holders.own_images(
            assemble(Settings("images", "gem-bml+last-layer", ways=4, shots=1, queries=2, filters=2)), tmp_path
        )
    with pytest.raises(ValueError, match="not made of images"):
        holders.own_images(assemble(SETTINGS), tmp_path)


def test_a_node_names_its_columns_one_by_one(setup, tmp_path):
    (tmp_path / "t.csv").write_text("who,t,v\n" + "anna,1,2\n" * 7)
    config = {"table": str(tmp_path / "t.csv"), "group-column": "who", "x-column-0": "t", "y-column-0": "v"}
    assert "1 groups" in flower.holder_of(setup, config).describe


@pytest.mark.parametrize(
    ("text", "group", "words"),
    [("x,y\n1,2\n", None, "--group-column"), ("x,y\n1,2\n", "g", "no column 'g'"), ("g,x,y\na,1,\n", "g", "line 2"),
     ("g,x,y\na,1,inf\n", "g", "finite"), ("", "g", "no column")],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_said(tmp_path, text, group, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        tables.read_groups(tmp_path / "t.csv", group=group, x=["x"], y=["y"])
