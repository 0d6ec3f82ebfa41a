"""The codec returns exactly what it was given, and nothing that was damaged on the way."""

import hashlib
import json
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from metaprior import codec


class Widths(NamedTuple):
    mean: Any
    log_std: Any


class State(NamedTuple):
    prior: Widths
    optimiser: Any
    key: Any
    extra: Any


def state(seed=0, impl=None):
    """All that a training state may hold: NamedTuples, Optax, typed keys, bfloat16, 0-d and empty arrays, None."""
    keys = jax.random.split(jax.random.key(seed, impl=impl), 3)
    numbers = np.random.default_rng(seed).standard_normal(15).astype(np.float32)
    params = {"layers": [jnp.asarray(numbers[:12].reshape(4, 3)), jnp.asarray(numbers[12:])]}
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    _, moments = optimiser.update(params, optimiser.init(params), params)
    halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    odd = {
        "none": None,
        "empty": jnp.zeros((0, 2)),
        "flag": jnp.asarray(True),
        "special": np.array([np.nan, -0.0, np.inf, 5e-324]),
        "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "complex": jnp.ones(2, jnp.complex64) * 1j,
    }
    return State(Widths(params, halves), moments, keys, odd)


def bits(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def assert_identical(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.shape, x.dtype, isinstance(x, jax.Array)) == (y.shape, y.dtype, isinstance(y, jax.Array))
        assert bits(x) == bits(y)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_round_trip_is_exact(impl):
    tree = state(impl=impl)
    like = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else jnp.zeros_like(x), tree)
    back = codec.decode(like, codec.encode(tree))
    assert_identical(tree, back)
    # The keys are keys again: they draw the same numbers.
    np.testing.assert_array_equal(jax.random.bits(tree.key[1]), jax.random.bits(back.key[1]))


def test_like_may_be_shapes_only():
    tree = {"key": jax.random.key(3, impl="rbg"), "mean": jnp.arange(3.0), "count": jnp.zeros((), jnp.int32)}
    like = jax.eval_shape(lambda: tree)
    assert_identical(tree, codec.decode(like, codec.encode(tree)))


@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, min_side=0),
    )
)
def test_any_array_round_trips(array):
    for tree in (array, {"a": [array]}, (np.asfortranarray(array), None)):
        assert_identical(tree, codec.decode(tree, codec.encode(tree)))


def test_names_are_paths():
    tree = state()
    assert {"prior.mean.layers.0", "optimiser.1.0.count", "optimiser.1.0.mu.layers.1", "key"} < set(codec.flatten(tree))
    assert codec.flatten(tree)["key"].dtype == np.uint32
    assert codec.flatten(tree)["optimiser.1.0.count"].shape == ()
    assert_identical(tree, codec.unflatten(tree, codec.flatten(tree)))


def test_any_safetensors_reader_reads_it():
    tree = {"mean": np.arange(3.0), "count": np.array(7)}
    arrays = safetensors.numpy.load(codec.encode(tree, {"sha256": "not the checksum", 'x{"sha256":"': 1}))
    assert arrays.keys() == tree.keys()
    for name, array in tree.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_the_checksum_is_that_of_the_blanked_file():
    """The format as documented, computed a second way: with the JSON parsed instead of searched."""
    data = codec.encode({"mean": np.arange(3.0)}, {"note": "é"})
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    stored = json.loads(header["__metadata__"]["metaprior"])["sha256"]
    assert data.count(stored.encode()) == 1
    assert hashlib.sha256(data.replace(stored.encode(), b"0" * 64)).hexdigest() == stored


def test_metadata_and_keys_come_back_and_bytes_are_reproducible():
    metadata = {"method": "gem", "widths": [0.1, 2], "nested": {"ü": None, '"sha256":"': "\\"}}
    data = codec.encode(state(), metadata)
    assert data == codec.encode(state(), metadata)
    contents = codec.unpack(data)
    assert contents.metadata == metadata
    assert contents.keys == {"key": "threefry2x32"}


def small():
    return {"key": jax.random.key(1), "mean": jnp.arange(2, dtype=jnp.bfloat16), "count": jnp.zeros((), jnp.int32)}


def test_every_single_flipped_bit_is_detected():
    data = codec.encode(small(), {"iteration": 3})
    codec.unpack(data)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(codec.CorruptError):
                codec.unpack(bytes(damaged))


def test_every_truncation_and_any_addition_is_detected():
    data = codec.encode(small())
    for length in range(len(data)):
        with pytest.raises(codec.CorruptError):
            codec.decode(small(), data[:length])
    for longer in (data + b"\0", b"\0" + data, data + data):
        with pytest.raises(codec.CorruptError):
            codec.decode(small(), longer)


def sealed(text):
    """A safetensors file with this JSON and a right checksum: what a hostile or confused writer could send."""
    data = safetensors.numpy.save({"mean": np.zeros(1)}, {"metaprior": text})
    digest = hashlib.sha256(data).hexdigest().encode()
    return data.replace(b"0" * 64, digest, 1)


@pytest.mark.parametrize("rest", ["", ',"format":1', ',"format":1,"keys":3,"metadata":{}', ',"x":' + "[" * 100_000])
def test_nonsense_with_a_right_checksum_is_corrupt(rest):
    with pytest.raises(codec.CorruptError, match="header makes no sense"):
        codec.unpack(sealed('{"sha256":"' + "0" * 64 + '"' + rest + "}"))


def test_a_newer_format_is_not_called_corrupt():
    text = '{"sha256":"' + "0" * 64 + '","format":2,"keys":{},"metadata":{}}'
    codec.unpack(sealed(text.replace(":2", ":1")))
    with pytest.raises(ValueError, match=r"format 2.*use the version that wrote it") as caught:
        codec.unpack(sealed(text))
    assert not isinstance(caught.value, codec.CorruptError)


def test_foreign_bytes_are_refused():
    for data in (b"", b"\x80\x04K\x01.", safetensors.numpy.save({"mean": np.zeros(2)})):
        with pytest.raises(codec.CorruptError, match="not written by metaprior"):
            codec.decode({"mean": np.zeros(2)}, data)


MEAN = {"mean": jnp.zeros((2, 3), jnp.float32)}


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({**MEAN, "log_std": jnp.zeros(3)}, "missing: log_std"),
        ({}, "unexpected: mean"),
        ({"average": jnp.zeros((2, 3))}, "missing: average; unexpected: mean"),
        ({"mean": jnp.zeros((3, 2), jnp.float32)}, r"mean has the wrong shape: expected \(3, 2\), found \(2, 3\)"),
        ({"mean": jnp.zeros((1, 3), jnp.float32)}, "mean has the wrong shape"),
        ({"mean": jnp.zeros((2, 3), jnp.bfloat16)}, "mean has the wrong dtype: expected bfloat16, found float32"),
        ({f"w{i}": jnp.zeros(1) for i in range(9)}, "missing: w0, w1, w2, w3, w4 and 4 more"),
    ],
)
def test_wrong_structure_is_named(like, words):
    with pytest.raises(ValueError, match=words):
        codec.decode(like, codec.encode(MEAN))
    with pytest.raises(ValueError, match=words):
        codec.unflatten(like, codec.flatten(MEAN))


def test_other_kinds_of_keys_are_refused():
    """Keys of two implementations with data of one shape would draw different numbers in silence."""
    data = codec.encode({"key": jax.random.key(0, impl="rbg")})
    with pytest.raises(ValueError, match="key was stored as rbg, expected unsafe_rbg"):
        codec.decode({"key": jax.random.key(0, impl="unsafe_rbg")}, data)
    with pytest.raises(ValueError, match="key was stored as rbg, expected no random key"):
        codec.decode({"key": jnp.zeros(4, jnp.uint32)}, data)
    with pytest.raises(ValueError, match="key was stored as no random key, expected rbg"):
        codec.decode({"key": jax.random.key(0, impl="rbg")}, codec.encode({"key": jnp.zeros(4, jnp.uint32)}))


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"step": 3}, "step is a int, not an array"),
        ({"a": {"rate": 0.1}}, r"a\.rate is a float, not an array.*jnp\.asarray"),
        ({"rate": np.float32(1)}, "rate is a float32, not an array"),
        ([jnp.tanh], "0 is a .*not an array.*equinox"),
        ({"name": "gem"}, "name is a str"),
        ({"a.b": np.zeros(1), "a": {"b": np.ones(1)}}, r"the name a\.b is taken"),
        ({"__metadata__": np.zeros(1)}, "the name __metadata__ is taken"),
        ({"big": np.zeros(1, np.complex128)}, "big has dtype complex128, which cannot be stored"),
        ({"objects": np.array([{}])}, "objects has dtype object, which cannot be stored"),
        ({"swapped": np.zeros(1, ">f4")}, "swapped has dtype >f4, which cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_words(tree, words):
    with pytest.raises(ValueError, match=words):
        codec.encode(tree)


@pytest.mark.parametrize("metadata", [{"x": float("nan")}, {"x": object()}, {"x": np.zeros(2)}])
def test_metadata_must_be_json(metadata):
    with pytest.raises(ValueError, match="the metadata must be plain JSON"):
        codec.encode({}, metadata)


def test_restored_arrays_do_not_share_memory():
    arrays = {"mean": np.zeros(1000)}
    tree = codec.unflatten({"mean": jnp.zeros(1000)}, arrays)
    host = codec.unflatten({"mean": np.zeros(1000)}, arrays)
    arrays["mean"][:] = 1.0
    assert tree["mean"].sum() == 0.0
    host["mean"][:] = 2.0  # and are writable
    assert arrays["mean"].sum() == 1000.0
