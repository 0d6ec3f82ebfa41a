"""Published priors: read back they are the same, and what does not fit is refused in words. Exported models too."""

import hashlib
import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from metaprior import MetaClassifier, MetaRegressor, codec, exported, load, published
from metaprior.cli import main
from metaprior.learned import Learned
from metaprior.settings import Settings, assemble
from metaprior.training import Trained, calibrate_steps, initial_state

pytestmark = pytest.mark.usefixtures("quick_compile", "few_validation_tasks")
QUICK: dict[str, Any] = dict(max_iter=20, hidden=(4,), meta_batch=4, shots=4, queries=4, random_state=0)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(12), 6)
    x = rng.normal(size=(72, 2))
    x[rng.random((72, 2)) < 0.1] = np.nan
    return x, np.nan_to_num(x[:, 0]) + rng.normal(size=12)[group], group


@pytest.fixture(scope="module")
def regressor(table):
    return MetaRegressor(**QUICK).fit(*table)


@pytest.fixture(scope="module")
def folder(regressor, tmp_path_factory):
    place = tmp_path_factory.mktemp("published") / "prior"
    regressor.save(place)
    return place


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_a_loaded_estimator_is_the_one_that_was_saved(table, regressor, folder):
    x, y, group = table
    back = load(folder)
    assert back.get_params() | {"random_state": 0} == regressor.get_params()
    before, after = (model.adapt(x[:4], y[:4]) for model in (regressor, back))
    np.testing.assert_array_equal(before.predict(x), after.predict(x))
    np.testing.assert_array_equal(before.predict_interval(x), after.predict_interval(x))
    assert back.score(x, y, group) == regressor.score(x, y, group)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "prior.json", "prior.safetensors"]
    about = json.loads((folder / "prior.json").read_text())
    assert about["shapes"]["prior.dist.mean"] == list(regressor.prior_.prior.dist.mean.shape)
    assert {"jax", "metaprior"} <= set(about["facts"]["versions"])
    card = (folder / "README.md").read_text()
    assert "gem-bml+last-layer" in card and "| groups held out | 12 |" in card  # each in turn


def test_classes_come_back_as_they_were(table, tmp_path):
    x, y, group = table
    model = MetaClassifier(**QUICK).fit(x, np.where(y > 0, "up", "down"), group)
    model.save(tmp_path / "classes")
    back = load(tmp_path / "classes")
    adapted, again = (one.adapt(x[:4], ["up", "down", "up", "up"]) for one in (model, back))
    np.testing.assert_array_equal(adapted.predict_proba(x), again.predict_proba(x))
    assert back.classes_.tolist() == ["down", "up"]
    adapted.export(tmp_path / "classes.hlo")
    np.testing.assert_allclose(
        exported(tmp_path / "classes.hlo").predict_proba(x), adapted.predict_proba(x), rtol=1e-12
    )


def test_an_exported_model_predicts_the_same_without_the_prior(table, regressor, tmp_path):
    """Any number of rows, missing values too, whatever JAX is set to."""
    x, y, _ = table
    adapted = regressor.adapt(x[:4], y[:4])
    adapted.export(tmp_path / "model")
    again = exported(tmp_path / "model")
    for rows in (x[:1], x[:9], x):
        with jax.enable_x64(False):
            np.testing.assert_allclose(
                again.predict(rows, return_std=True), adapted.predict(rows, return_std=True), rtol=1e-12
            )
        np.testing.assert_allclose(again.predict_interval(rows), adapted.predict_interval(rows), rtol=1e-9)
    with pytest.raises(ValueError, match="numbers have intervals"):
        again.predict_proba(x)
    with pytest.raises(ValueError, match="must have 2 columns"):
        again.predict(x[:, :1])
    data = bytearray((tmp_path / "model").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model").write_bytes(bytes(data))
    with pytest.raises(ValueError, match="checksum"):
        exported(tmp_path / "model")


def rewritten(folder, **changes):
    """prior.json changed by hand, and the digest in the other file made to fit, as a forger would."""
    about = json.loads((folder / "prior.json").read_text()) | changes
    text = json.dumps(about).encode()
    contents = codec.unpack((folder / "prior.safetensors").read_bytes())
    digest = hashlib.sha256(text).hexdigest()
    # names with dots are those of a flat tree
    (folder / "prior.safetensors").write_bytes(codec.encode(contents.arrays, {"about": digest}))
    (folder / "prior.json").write_bytes(text)


def spec(folder, **changes):
    return {"spec": json.loads((folder / "prior.json").read_text())["spec"] | changes}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "prior.json").unlink(), "not a run"),
        (lambda f: (f / "prior.safetensors").unlink(), "prior.safetensors cannot be read"),
        (lambda f: (f / "prior.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "prior.json").write_text("[]"), "does not describe a prior"),
        (lambda f: (f / "prior.json").write_text("[" * 100_000), "cannot be read"),
        (lambda f: (f / "prior.json").write_text((f / "prior.json").read_text() + " "), "not the one that"),
        (lambda f: rewritten(f, format=7), "has format 7, this metaprior reads 1"),
        (lambda f: rewritten(f, kind="poems"), "of kind 'poems'"),
        (lambda f: rewritten(f, **spec(f, hidden=[5])), "does not fit what its prior.json describes.*shape"),
        (lambda f: rewritten(f, **spec(f, method="os.system")), "unknown method"),
        (lambda f: rewritten(f, **spec(f, inputs=9)), "contradicts itself"),
        (lambda f: rewritten(f, **spec(f, surprise=1)), "names this version does not know"),
        (lambda f: rewritten(f, columns="x"), "does not describe a prior over tables|not described"),
        (lambda f: rewritten(f, params=[1]), "does not describe a prior over tables"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(copy, change, words):
    change(copy)
    with pytest.raises(ValueError, match=words):
        load(copy)


def test_every_flipped_byte_of_the_numbers_is_noticed(copy):
    data = (copy / "prior.safetensors").read_bytes()
    for place in np.random.default_rng(0).integers(0, len(data), 40):
        changed = bytearray(data)
        changed[place] ^= 1 << int(place % 8)
        (copy / "prior.safetensors").write_bytes(bytes(changed))
        with pytest.raises(published.PublishedError):
            published.read(copy)


def test_nothing_that_is_there_is_replaced(folder, regressor, tmp_path):
    before = (folder / "prior.json").read_bytes()
    with pytest.raises(published.PublishedError, match="not empty"):
        regressor.save(folder)
    assert (folder / "prior.json").read_bytes() == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(published.PublishedError, match="choose another folder"):
        regressor.save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_is_published_and_read_back(tmp_path):
    """What `metaprior train` leaves, with no trace of where its data lay."""
    setup = assemble(Settings("sinusoid", method="gem-bml+last-layer", hidden=(4,), iterations=1))
    state = initial_state(setup)
    run = Learned(Trained(setup, state, calibrate_steps(setup, state, steps=2, num_tasks=3), []))
    run.save(tmp_path / "sine")
    back = load(tmp_path / "sine")
    x, y = [-1.0, 0.5], [0.2, 0.7]
    before, after = (prior.adapt(x, y, steps=2).predict([0.0, 1.0]) for prior in (run, back))
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.std, after.std)
    assert json.loads((tmp_path / "sine" / "prior.json").read_text())["settings"]["data_dir"] is None
    rewritten(tmp_path / "sine", settings={"tasks": "sinusoid", "hidden": [5]})
    with pytest.raises(published.PublishedError, match=r"does not fit|missing"):
        load(tmp_path / "sine")


def test_the_command_line_says_where_a_prior_over_tables_is_used(folder, tmp_path, capsys):
    points = tmp_path / "points.csv"
    points.write_text("x,y\n1,2\n")
    for argv in (["evaluate", str(folder)], ["adapt", str(folder), str(points), "--out", str(tmp_path / "out")]):
        assert main(argv) == 2
        assert "is a prior over tables: use it in Python" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"nowhere is missing: name the folder of a run .* or of a published prior"):
        load(tmp_path / "nowhere")
