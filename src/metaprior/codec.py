r"""One codec for disk and wire: a pytree of arrays ↔ `{path: array}` ↔ bytes.

The bytes are a plain safetensors file, so other tools can read the arrays and nothing is ever executed on loading. Its
one metadata entry is JSON of ours, and that JSON begins with a checksum, because safetensors has none:

$$\text{sha256} = \operatorname{SHA256}(\text{the whole file, with the checksum's own 64 digits written as zeros}).$$

Every bit of the file is thus vouched for: a flip in arrays, names or the checksum itself is a `CorruptError`.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import PyTree

FORMAT = 1
_BLANK = b"0" * 64
# The opening of our JSON as it stands inside the JSON of the header, where quotes are escaped. Text from elsewhere can
# only come later in the file, so the first occurrence is the checksum.
_MARKER = rb"{\"sha256\":\""
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"I{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(jnp.bfloat16),
    "C64": np.dtype(np.complex64),
}


class CorruptError(ValueError):
    """The bytes are not what was written: damaged, cut short, or never ours."""


class Contents(NamedTuple):
    """What an encoded tree holds, before it is put into any structure."""

    arrays: dict[str, np.ndarray]
    keys: dict[str, str]  # for each random key among the arrays, the name of its implementation
    metadata: dict[str, Any]


def flatten(tree: PyTree) -> dict[str, np.ndarray]:
    """Name every leaf by its path in the tree and bring it to the host; random keys become their `key_data`.

    >>> {name: array.shape for name, array in flatten({"layers": [jnp.zeros((2, 3)), jnp.zeros(3)]}).items()}
    {'layers.0': (2, 3), 'layers.1': (3,)}
    """
    arrays = {}
    for name, leaf in _named_leaves(tree):
        data = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        array = np.array(data, order="C")  # np.ascontiguousarray would turn 0-d into 1-d
        if array.dtype not in _DTYPES.values():
            raise ValueError(f"{name} has dtype {array.dtype}, which cannot be stored: convert it, say to float32")
        arrays[name] = array
    return arrays


def unflatten(like: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """Put named arrays into the structure of `like`, bit for bit: the inverse of `flatten`.

    Args:
        like: a tree of the wanted structure; of its leaves only shape, dtype and kind (JAX, NumPy, random key) are
            used, so `jax.ShapeDtypeStruct` will do. JAX leaves come back strongly typed.
        arrays: one array per leaf, by the names that `flatten(like)` gives.

    >>> unflatten({"mean": np.zeros(2)}, {"mean": np.array([1.0, 2.0])})
    {'mean': array([1., 2.])}
    """
    leaves = _named_leaves(like)
    names = [name for name, _ in leaves]
    missing = [name for name in names if name not in arrays]
    unexpected = [name for name in arrays if name not in set(names)]
    if missing or unexpected:
        words = "; ".join([*_listing("missing", missing), *_listing("unexpected", unexpected)])
        raise ValueError(f"the entries do not fit ({words}): use the settings they were saved with")
    restored = [_restore(name, leaf, arrays[name]) for name, leaf in leaves]
    return jax.tree.unflatten(jax.tree.structure(like), restored)


def encode(tree: PyTree, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The tree and its metadata (anything JSON can hold) as one checksummed file. Equal input gives equal bytes."""
    keys = {name: _implementation(name, leaf) for name, leaf in _named_leaves(tree) if _is_key(leaf)}
    header = {"sha256": _BLANK.decode(), "format": FORMAT, "keys": keys, "metadata": dict(metadata or {})}
    try:
        text = json.dumps(header, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the metadata must be plain JSON (text, finite numbers, lists, dicts): {error}") from None
    # One metadata entry only: safetensors writes several in random order.
    data = safetensors.numpy.save(flatten(tree), {"metaprior": text})
    start = data.index(_MARKER) + len(_MARKER)
    return data[:start] + _digest(data, start) + data[start + len(_BLANK) :]


def decode(like: PyTree, data: bytes) -> PyTree:
    """The tree that `encode` was given, in the structure of `like`; see `unflatten` for what `like` may be.

    >>> decode({"mean": np.zeros(2)}, encode({"mean": np.array([1.0, 2.0])}))
    {'mean': array([1., 2.])}
    """
    return rebuild(like, unpack(data))


def rebuild(like: PyTree, contents: Contents) -> PyTree:
    """`unflatten`, and check that random keys are of the kind that `like` has: another kind draws other numbers."""
    tree = unflatten(like, contents.arrays)
    expected = {name: _implementation(name, leaf) for name, leaf in _named_leaves(like) if _is_key(leaf)}
    for name in sorted({*expected, *contents.keys}):
        found, wanted = (kinds.get(name, "no random key") for kinds in (contents.keys, expected))
        if found != wanted:
            raise ValueError(f"{name} was stored as {found}, expected {wanted}: use the same jax_default_prng_impl")
    return tree


def unpack(data: bytes) -> Contents:
    """Verify the checksum and read everything, without knowing the structure of the tree."""
    start = data.find(_MARKER) + len(_MARKER)
    if start < len(_MARKER):
        raise CorruptError("the header is damaged, or this was not written by metaprior")
    if data[start : start + len(_BLANK)] != _digest(data, start):
        raise CorruptError("the checksum does not match: the contents are damaged or cut short")
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["metaprior"])
        version, keys, metadata = header["format"], dict(header["keys"]), dict(header["metadata"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"the header makes no sense ({error!r})") from None
    if version != FORMAT:
        raise ValueError(f"it has format {version}, this metaprior reads {FORMAT}: use the version that wrote it")
    return Contents(_arrays(data), keys, metadata)


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    try:
        entries = safetensors.deserialize(data)
        # safetensors.numpy.load knows no bfloat16
        return {name: np.frombuffer(x["data"], _DTYPES[x["dtype"]]).reshape(x["shape"]) for name, x in entries}
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CorruptError(f"the arrays make no sense ({error!r})") from None


def _digest(data: bytes, start: int) -> bytes:
    """The 64 hexadecimal digits that belong at `start`."""
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(_BLANK)
    digest.update(view[start + len(_BLANK) :])
    return digest.hexdigest().encode()


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    paths, _ = tree_flatten_with_path(tree)
    named = [(keystr(path, simple=True, separator=".") or "value", leaf) for path, leaf in paths]
    seen = set()
    for name, leaf in named:
        if not isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
            raise ValueError(
                f"{name} is a {type(leaf).__name__}, not an array: keep only arrays in the tree "
                "(jnp.asarray for numbers, equinox.filter(tree, equinox.is_array) for modules)"
            )
        if name in seen or name == "__metadata__":
            raise ValueError(f"the name {name} is taken: rename one of the entries that are called so")
        seen.add(name)
    return named


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _implementation(name: str, key: Any) -> str:
    found = []
    # Asked while tracing, so that a ShapeDtypeStruct can answer too.
    jax.eval_shape(lambda k: found.append(jax.random.key_impl(k)), key)
    if not isinstance(found[0], str):
        raise ValueError(f"{name} is a random key of a private kind, {found[0]}: use one that JAX knows by name")
    return found[0]


def _restore(name: str, like: Any, array: np.ndarray) -> Any:
    expected = jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
    if array.shape != expected.shape:
        raise ValueError(f"{name} has the wrong shape: expected {expected.shape}, found {array.shape}")
    if array.dtype != expected.dtype:
        raise ValueError(f"{name} has the wrong dtype: expected {expected.dtype}, found {array.dtype}")
    if isinstance(like, np.ndarray):
        return array.copy()
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.array(array), impl=_implementation(name, like))
    return jnp.array(array)  # a copy: the caller's memory must not live on inside what looks immutable


def _listing(what: str, names: list[str], most: int = 5) -> list[str]:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [f"{what}: {', '.join(names[:most])}{more}"] if names else []
