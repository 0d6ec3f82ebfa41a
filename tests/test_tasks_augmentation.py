"""Images varied at random: photographs mirrored and shifted, characters bent by affine maps and mirrored class by class."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.tasks.augmentation import Bend, affine, augmented, augmented_characters, bent
from metaprior.types import Data, Episode


def test_augmented_images_are_mirrored_and_shifted_copies():
    picture = np.random.default_rng(1).random((20, 20, 1))
    episode = Episode(*(Data(jnp.asarray(picture)[None], jnp.zeros(1, int)) for _ in range(2)))
    wide = np.pad(picture, ((2, 2), (2, 2), (0, 0)), mode="edge")
    allowed = {
        np.ascontiguousarray(side[r : r + 20, c : c + 20]).tobytes()
        for side in (wide, wide[:, ::-1]) for r in range(5) for c in range(5)
    }  # fmt: skip
    found = [
        np.asarray(part.x[0]).tobytes()
        for seed in range(120) for part in augmented(jax.random.key(seed), episode)
    ]  # fmt: skip
    assert set(found) <= allowed and len(set(found)) > 40


AS_IT_IS, STILL = ((1.0, 0.0), (0.0, 1.0)), Bend(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_character_that_may_not_bend_stays_as_it_is(dtype):
    picture = jnp.asarray(np.random.default_rng(2).random((9, 12, 2)), dtype)
    for same in (bent(jax.random.key(0), picture, STILL), affine(picture, AS_IT_IS, (0.0, 0.0))):
        assert same.dtype == dtype
        np.testing.assert_array_equal(same, picture)


@pytest.mark.parametrize("down, right", [(2, 0), (-1, 3), (0, -4)])
def test_shifted_characters_are_rolled_and_the_edge_goes_on(down, right):
    picture = np.random.default_rng(3).random((9, 12, 2))
    wide = np.pad(picture, ((5, 5), (5, 5), (0, 0)), mode="edge")
    expected = wide[5 - down : 14 - down, 5 - right : 17 - right]
    np.testing.assert_allclose(affine(jnp.asarray(picture), AS_IT_IS, (down, right)), expected, rtol=1e-12)


def test_affine_maps_are_those_of_scipy():
    """Turned by a quarter exactly; by any map as scipy interpolates, which takes the place that values come from."""
    import scipy.ndimage

    picture = np.random.default_rng(4).random((9, 9, 1))
    np.testing.assert_allclose(affine(jnp.asarray(picture), ((0, 1), (-1, 0)), (0, 0)), np.rot90(picture), rtol=1e-12)
    matrix, centre, shift = np.array([[0.9, -0.2], [0.3, 1.05]]), np.full(2, 4.0), np.array([0.7, -0.4])
    begin: Any = centre - shift - matrix @ centre
    expected = scipy.ndimage.affine_transform(picture[:, :, 0], matrix, begin, order=1, mode="nearest")
    np.testing.assert_allclose(affine(jnp.asarray(picture), matrix, shift)[:, :, 0], expected, rtol=1e-10)


def test_bends_are_of_every_kind_and_never_larger_than_allowed():
    """A picture that holds its own coordinates says where each value came from: the map, read off far from the edge."""
    side, count = 61, 400
    places = jnp.stack(jnp.meshgrid(*(jnp.arange(side) - 30.0,) * 2, indexing="ij"), axis=-1)
    found = jax.vmap(lambda key: bent(key, places, Bend()))(jax.random.split(jax.random.key(0), count))
    shift, matrix = -np.asarray(found[:, 30, 30]), np.asarray(
        jnp.stack([found[:, 40, 30] - found[:, 30, 30], found[:, 30, 40] - found[:, 30, 30]], axis=-1) / 10
    )  # fmt: skip
    angle = np.degrees(np.arctan2(-matrix[:, 0, 1], matrix[:, 1, 1]))
    wide = np.hypot(matrix[:, 0, 1], matrix[:, 1, 1])
    tall = np.linalg.det(matrix) / wide
    slant = (matrix[:, :, 0] * matrix[:, :, 1]).sum(axis=1) / (tall * wide)
    for values, most in ((shift[:, 0] / side, 0.1), (shift[:, 1] / side, 0.1), (angle, 10), (tall - 1, 0.1),
                         (wide - 1, 0.1), (slant, 0.1)):  # fmt: skip
        assert abs(values).max() <= most + 1e-9 and values.max() > 0.95 * most and values.min() < -0.95 * most
        assert abs(values.mean()) < 4 * most / (3 * count) ** 0.5


def character_episode(classes=6, dtype=np.float64):
    rng = np.random.default_rng(5)
    data = lambda each: Data(
        jnp.asarray(rng.random((classes * each, 14, 14, 1)), dtype), jnp.repeat(jnp.arange(classes), each)
    )
    return Episode(data(2), data(3))


def test_a_class_of_characters_is_mirrored_as_a_whole():
    episode, mirrored = character_episode(), []
    vary = jax.jit(lambda key: augmented_characters(key, episode, classes=6, bend=STILL))
    for seed in range(50):
        changed = vary(jax.random.key(seed))
        of_class = {label: set() for label in range(6)}
        for before, after in zip(episode, changed, strict=True):
            np.testing.assert_array_equal(before.y, after.y)
            for old, new, label in zip(before.x, after.x, before.y.tolist(), strict=True):
                of_class[label].add(bool((new == old[:, ::-1]).all()))
                assert (new == old[:, ::-1]).all() or (new == old).all()
        assert all(len(how) == 1 for how in of_class.values())  # support and query alike
        mirrored += [how.pop() for how in of_class.values()]
    assert abs(np.mean(mirrored) - 0.5) < 4 * 0.5 / 300**0.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_characters_keep_their_form_and_each_image_is_bent_by_itself(dtype):
    episode = character_episode(dtype=dtype)
    copies = episode._replace(
        query=episode.query._replace(x=jnp.broadcast_to(episode.query.x[:1], episode.query.x.shape))
    )
    changed = jax.jit(lambda key: augmented_characters(key, copies, classes=6))(jax.random.key(0))
    for before, after in zip(copies, changed, strict=True):
        assert after.x.shape == before.x.shape and after.x.dtype == dtype
        assert (
            before.x.min() - 1e-6 <= after.x.min() and after.x.max() <= before.x.max() + 1e-6
        )  # interpolated, never beyond
    assert len({np.asarray(image).tobytes() for image in changed.query.x}) == len(changed.query.x)
    even = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.25) if leaf.ndim == 4 else leaf, episode)
    np.testing.assert_allclose(augmented_characters(jax.random.key(1), even, classes=6).support.x, 0.25, rtol=1e-6)
