"""From settings to networks and tasks of images; what makes no sense is refused before anything is read."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior import families, recipes
from metaprior.inference.preconditioned import preconditioned
from metaprior.methods import METHODS
from metaprior.settings import IMAGES_ONLY, Settings, as_dict, assemble, from_dict, method_of
from metaprior.tasks import IMAGE_SETS
from metaprior.types import Data


@pytest.mark.parametrize("tasks", IMAGE_SETS)
@pytest.mark.parametrize("method", [method.name for method in METHODS])
def test_every_method_can_be_assembled_on_images_without_reading_them(tasks, method, tmp_path):
    setup = assemble(Settings(tasks=tasks, method=method, filters=2, data_dir=tmp_path / "nowhere",
                              head="own" if method == "pmaml" else None))  # fmt: skip
    params = setup.model.init(jax.random.key(0))
    shape = IMAGE_SETS[tasks].shape
    assert setup.tasks.shape == shape
    outputs = jax.eval_shape(lambda: setup.model.apply(params, jax.numpy.zeros((3, *shape))))
    assert outputs.shape == (3, setup.tasks.outputs)


def test_the_recipe_of_a_task_set_goes_under_what_is_given():
    row = method_of(Settings(tasks="omniglot", method="maml"))
    assert row.rate == recipes.recipe("omniglot", "maml")["rate"] and row.meta_batch != 5
    assert method_of(Settings(tasks="omniglot", method="maml", rate=0.125)).rate == 0.125
    assert method_of(Settings(method="maml")).meta_batch == 5


GIVEN = {
    "ways": 5, "train_ways": 8, "train_shots": 2, "data_dir": Path("x"), "network": "conv4", "filters": 3, "pooling": "mean",
    "precision": "tf32", "head": "own", "augmented": True,
}  # fmt: skip


@pytest.mark.parametrize("name, value", GIVEN.items())
def test_flags_of_images_are_refused_for_curves(name, value):
    assert set(GIVEN) == set(IMAGES_ONLY)
    with pytest.raises(ValueError, match=f"no classes or images: leave out --{name.replace('_', '-')}"):
        given: Any = {name: value}
        Settings(tasks="sinusoid", **given)


def test_unknown_networks_and_heads_are_refused():
    for field, words in (
        ("network", "network 'convnet'"),
        ("head", "head 'convnet'"),
        ("pooling", "pooling 'convnet'"),
    ):
        given: Any = {field: "convnet"}
        with pytest.raises(ValueError, match=words):
            assemble(Settings(tasks="omniglot", **given))


@pytest.mark.parametrize("filters", [0, -3])
def test_a_network_of_no_filters_is_refused(filters):
    with pytest.raises(ValueError, match=f"filters of at least 1, got {filters}: pass for example --filters 32"):
        Settings(tasks="omniglot", filters=filters)


def test_settings_of_images_survive_json(tmp_path):
    settings = Settings(tasks="omniglot", ways=20, data_dir=tmp_path, augmented=True)
    values = as_dict(settings)
    assert from_dict({**values, "data_dir": str(tmp_path)}) == settings


def test_networks_have_the_sizes_of_the_literature():
    """MAML's network for Omniglot has 111,749 weights without batch normalisation, that for miniImageNet 32,645.

    Ours have the scales and offsets of normalisation in place of the biases before it.
    """
    for tasks, count, filters in (("omniglot", 111_749, 64), ("miniimagenet", 32_645, 32)):
        params = assemble(Settings(tasks=tasks, method="maml")).model.init(jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count - 4 * filters + 2 * 4 * filters


@pytest.mark.parametrize(("tasks", "filters"), [("omniglot", 64), ("miniimagenet", 32)])
def test_an_exact_head_sees_means_over_positions_unless_told_otherwise(tasks, filters):
    settings = Settings(tasks=tasks, method="gem-bml+last-layer")
    size = lambda settings: jax.eval_shape(assemble(settings).model.init, jax.random.key(0)).head.shape[0]
    assert size(settings) == filters + 1
    assert (
        size(dataclasses.replace(settings, pooling="flatten"))
        == {"omniglot": 4, "miniimagenet": 25}[tasks] * filters + 1
    )


def test_where_images_are_missing_the_words_say_how_to_get_them(monkeypatch):
    monkeypatch.delenv("METAPRIOR_DATA", raising=False)
    with pytest.raises(ValueError, match="metaprior data get omniglot"):
        assemble(Settings(tasks="omniglot")).tasks.pool("train")
    with pytest.raises(ValueError, match="where are your images"):
        assemble(Settings(tasks="images")).tasks.pool("train")


def test_curvature_at_the_start_binds_no_rate_where_weights_have_no_scale():
    """Batch-normalised: the same rate that a plain network is refused is let through, and one step does not blow up."""
    rng = np.random.default_rng(0)
    data = Data(jnp.asarray(rng.normal(size=(5, 28, 28, 1))), jnp.arange(5))
    setup = assemble(Settings(tasks="omniglot", filters=4, rate=50.0))
    state = setup.learner.init(jax.random.key(0), setup.model.init(jax.random.key(1)))
    assert setup.likelihood.normalised and setup.learner.check(state, data) is None
    plain = setup.likelihood._replace(normalised=False)
    words = preconditioned(plain, families.delta(), rate=50.0).check(state.prior, data)
    assert words is not None and "would diverge" in words
    losses = [
        float(-setup.likelihood.log_prob(jax.tree.map(lambda leaf, k=k: leaf[k], steps.mean), data)) / 5
        for steps in [setup.learner.adapt(jax.random.key(2), state, data, 20)] for k in (0, 20)
    ]  # fmt: skip
    assert losses[1] < losses[0]
