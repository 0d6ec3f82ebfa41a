"""The real data sets, where METAPRIOR_DATA says they are."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from metaprior.data import check, contents, load, miniimagenet, omniglot

FOLDER = Path(os.environ.get("METAPRIOR_DATA") or "no data")
needs = lambda *names: pytest.mark.skipif(
    not all((FOLDER / name).is_file() for name in names),
    reason=f"METAPRIOR_DATA names no folder with {' and '.join(names)}",
)
needs_omniglot = needs(omniglot.PACKED)
needs_miniimagenet = needs(*(file for files in miniimagenet.PACKED.values() for file in files))


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


@pytest.fixture(scope="module")
def characters():
    return load("omniglot", FOLDER)


@needs_omniglot
def test_omniglot_is_whole(characters):
    assert [len(part.classes) for part in characters.splits.values()] == [1100, 100, 423]
    assert [part.pixels.shape for part in characters.splits.values()] == [
        (22_000, 28, 28, 1), (2_000, 28, 28, 1), (8_460, 28, 28, 1),
    ]  # fmt: skip
    for part in characters.splits.values():
        assert part.pixels.dtype == np.uint8 and (part.counts == 20).all()
        np.testing.assert_array_equal(part.starts, 20 * np.arange(len(part.classes)))
        assert part.pixels.min() == 0 and part.pixels.max() == 255 and part.pixels.mean() < 30, "little ink"
    assert len({name for part in characters.splits.values() for name in part.classes}) == 1623


@needs_omniglot
def test_one_drawing_is_the_recorded_one(characters):
    assert characters.test.classes[0] == "Alphabet_of_the_Magi/character01"
    assert digest(characters.test.pixels[0]) == "c85179dd649b5b1e"


@needs(omniglot.PACKED, omniglot.BITMAPS)
def test_bitmaps_shrink_to_the_packed_drawings(characters):
    for part, other in zip(characters.splits.values(), omniglot.read_bitmaps(FOLDER).splits.values(), strict=True):
        assert part.classes == other.classes
        np.testing.assert_array_equal(part.pixels, other.pixels)


@needs_miniimagenet
def test_miniimagenet_has_the_classes_of_ravi_and_larochelle():
    sources = {split: miniimagenet.open_packed(FOLDER, split) for split in miniimagenet.PACKED}
    assert [len(source.counts) for source, _ in sources.values()] == [64, 16, 20]
    for split, (source, problems) in sources.items():
        assert problems == []
        assert source.counts == dict.fromkeys(contents.MINIIMAGENET.classes[split], 600)


@needs_miniimagenet
def test_one_photograph_is_the_recorded_one():
    source, _ = miniimagenet.open_packed(FOLDER, "validation")
    room = np.empty((600, 84, 84, 3), np.uint8)
    assert source.read("n01855672", room) == []
    # Means, not a checksum: decoders of JPEG may differ in the last bit.
    np.testing.assert_allclose(room[0].mean((0, 1)), [139.56, 140.34, 121.32], atol=0.2)
    np.testing.assert_allclose(room.mean(), 118.85, atol=0.2)


@pytest.mark.slow
@needs_omniglot
@needs_miniimagenet
def test_the_check_finds_both_and_reads_every_image():
    reports = check(FOLDER)
    assert [(report.name, report.problems) for report in reports] == [("omniglot", ()), ("miniimagenet", ())]
    splits = reports[1].splits
    shapes = {"train": (38_400, 84, 84, 3), "validation": (9_600, 84, 84, 3), "test": (12_000, 84, 84, 3)}
    assert {split: part.pixels.shape for split, part in splits.items()} == shapes
    for split, part in splits.items():
        assert part.pixels.dtype == np.uint8 and (part.counts == 600).all()
        assert part.classes == contents.MINIIMAGENET.classes[split]
        means = part.pixels.reshape(len(part.classes), -1)[:, ::97].mean(1)
        assert 60 < means.min() and means.max() < 190 and means.std() > 5, "photographs, and classes that differ"
    assert len({name for part in splits.values() for name in part.classes}) == 100
