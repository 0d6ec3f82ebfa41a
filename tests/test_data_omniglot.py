"""Omniglot: every layout gives the same images, and what a copy lacks is said by name."""

import hashlib
import io
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tiny_data

from metaprior.data import DataError, contents, drawings, load, omniglot


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(contents, "OMNIGLOT", tiny_data.OMNIGLOT)


def slow_shrink(ink):
    """Every pixel cut into 4 × 4, every area the mean of 15 × 15 of these."""
    pieces = np.kron(ink, np.ones((4, 4)))
    return np.floor(255 * pieces.reshape(28, 15, 28, 15).mean((1, 3)) + 0.5).astype(np.uint8)


def expected():
    """Character -> uint8 [3, 28, 28, 1]."""
    return {
        name: np.stack([slow_shrink(ink) for ink in drawn])[..., None] for name, drawn in tiny_data.bitmaps().items()
    }


def nested(folder):
    """Unpacked into folders of the zip files' names."""
    return tiny_data.write_folder(
        folder, {f"{name.split('/')[0]}/{name}": data for name, data in tiny_data.omniglot_files().items()}
    )


def mixed(folder):
    """One half still packed."""
    tiny_data.write_zips(folder, tiny_data.omniglot_files())
    (folder / "images_background.zip").unlink()
    return tiny_data.write_folder(
        folder, {name: data for name, data in tiny_data.omniglot_files().items() if "background" in name}
    )


def packed(folder):
    images = np.stack([expected()[name][..., 0] for name in tiny_data.CHARACTERS])
    np.savez(folder / "omniglot_28x28.npz", images=images, names=np.array(tiny_data.CHARACTERS))
    return folder


LAYOUTS = {
    "folder": lambda folder: tiny_data.write_folder(folder, tiny_data.omniglot_files()),
    "zip": lambda folder: tiny_data.write_zips(folder, tiny_data.omniglot_files()),
    "nested": nested,
    "mixed": mixed,
    "packed": packed,
    "bitmaps": tiny_data.pack_bitmaps,
    "torchvision": lambda folder: tiny_data.write_zips(folder / "omniglot-py", tiny_data.omniglot_files()).parent,
    "clone": lambda folder: tiny_data.write_zips(folder / "omniglot/python", tiny_data.omniglot_files()).parents[1],
}


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_images(layout, tmp_path):
    folder = LAYOUTS[layout](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    found = load("omniglot", folder)
    order = sorted(tiny_data.CHARACTERS, key=lambda name: hashlib.sha256(name.encode()).digest())
    for images, names in ((found.train, order[:4]), (found.validation, order[4:5]), (found.test, order[5:])):
        assert images.classes == tuple(sorted(names))
        assert images.pixels.dtype == np.uint8 and images.starts.dtype == images.counts.dtype == np.int32
        for name, start, count in zip(images.classes, images.starts, images.counts, strict=True):
            np.testing.assert_array_equal(images.pixels[start : start + count], expected()[name])
        assert len(images.pixels) == 3 * len(names)
    assert sorted(tmp_path.rglob("*")) == before, "reading writes nothing"


def test_the_folder_may_be_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(packed(tmp_path)))
    assert load("omniglot").test.classes == load("omniglot", str(tmp_path)).test.classes


def test_packed_files_go_first(tmp_path):
    LAYOUTS["zip"](tmp_path)
    np.savez(
        packed(tmp_path) / "omniglot_28x28.npz",
        images=np.full((7, 3, 28, 28), 9, np.uint8),
        names=np.array(tiny_data.CHARACTERS),
    )
    assert (load("omniglot", tmp_path).train.pixels == 9).all()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_shrinking_is_an_exact_average(share):
    ink = np.random.default_rng(3).random((4, 105, 105)) < share
    np.testing.assert_array_equal(drawings.shrink(ink), np.stack([slow_shrink(each) for each in ink]))


def test_grey_and_colour_copies_of_a_drawing_are_read_alike():
    ink = tiny_data.bitmaps()["Runes/character01"][0]
    grey = np.where(ink, 0, 255).astype(np.uint8)
    for pixels in (~ink, grey, np.repeat(grey[..., None], 3, axis=-1)):
        np.testing.assert_array_equal(drawings.decode(tiny_data.encoded(pixels)), ink)


# Recorded: results on test characters can be compared only as long as these are the same.
SPLIT = {"train": "d8623ed21de62709", "validation": "01c2779090a6e65e", "test": "3825e8d6e30f6d18"}


def test_the_split_of_the_real_characters_never_changes(monkeypatch):
    monkeypatch.undo()
    halves = {half: contents.OMNIGLOT.characters(half) for half in omniglot.HALVES}
    assert [len(names) for names in halves.values()] == [964, 659]
    parts = omniglot.split([name for names in halves.values() for name in names])
    assert tuple(len(set(names)) for names in parts) == contents.OMNIGLOT.split == (1100, 100, 423)
    digest = lambda names: hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]
    assert [digest(names) for names in parts] == list(SPLIT.values())


# --- what is refused --------------------------------------------------------------------------------------------------


def problems(folder) -> str:
    with pytest.raises(DataError) as caught:
        load("omniglot", folder)
    assert str(folder) in str(caught.value) and "omniglot" in str(caught.value)
    return "\n".join(caught.value.problems)


FOLDERS = "{1} downloads {0}.zip, which is read instead of the folder"


def get(folder):
    return f"metaprior data get omniglot --out {folder}"


@pytest.mark.parametrize("write", [tiny_data.write_folder, tiny_data.write_zips])
def test_all_that_is_wrong_is_said_at_once(write, tmp_path):
    files = tiny_data.omniglot_files()
    name = "images_background/Runes/character01/0000_0{}.png"
    files[name.format(1)] = b"no picture"
    files[name.format(2)] = files[name.format(2)][:-40]  # cut in the middle of the pixels
    files[name.format(3)] = tiny_data.encoded(np.ones((28, 28), bool))
    del files["images_background/Runes/character02/0001_02.png"]
    files = {
        key: data for key, data in files.items() if "Dots/character01" not in key and "Knots/character02" not in key
    }
    files |= {
        f"images_evaluation/Klingon/character01/0009_0{drawer}.png": files[name.format(2)] for drawer in (1, 2, 3)
    }
    found = problems(write(tmp_path, files))
    way = "move {0}.zip away, and {1} downloads it again" if write is tiny_data.write_zips else FOLDERS
    ways = [way.format(half, get(tmp_path)) for half in omniglot.HALVES]
    assert all(
        line.endswith(": " + ways["images_evaluation/" in line or "images_evaluation " in line])
        for line in found.splitlines()
    )
    assert f"{name.format(1)} is broken (neither JPEG nor PNG" in found
    assert f"{name.format(2)} is broken (" in found
    assert f"{name.format(3)} is broken (28 × 28 pixels instead of 105 × 105): " in found
    assert "images_background/Runes/character02 has 2 of 3 drawings, without 0001_02.png: " in found
    assert "images_background lacks 1 of 5 characters (Dots/character01): " in found
    assert "images_evaluation lacks 1 of 2 characters (Knots/character02): " in found
    assert "images_evaluation has 1 characters that Omniglot has not (Klingon/character01): " in found
    assert len(found.splitlines()) == 10  # the three foreign drawings are cut short as well


def test_a_message_holds_the_first_ten_problems_and_counts_the_others(tmp_path):
    files = {name: b"" for name in tiny_data.omniglot_files()}
    tiny_data.write_folder(tmp_path, files)
    with pytest.raises(DataError) as caught:
        load("omniglot", tmp_path)
    assert len(caught.value.problems) == 21
    assert str(caught.value).count("is broken") == 10 and str(caught.value).endswith(" and 11 more")


def test_half_of_it_is_not_it(tmp_path):
    tiny_data.write_zips(tmp_path, tiny_data.omniglot_files())
    (tmp_path / "images_evaluation.zip").unlink()
    assert problems(tmp_path) == (
        f"images_evaluation.zip is missing, and so is the folder images_evaluation: {get(tmp_path)} downloads it"
    )


def test_a_character_in_both_halves_is_named(tmp_path):
    files = tiny_data.omniglot_files()
    moved = {
        name.replace("background", "evaluation"): data for name, data in files.items() if "Dots/character02" in name
    }
    found = problems(tiny_data.write_folder(tmp_path, files | moved))
    assert found == (
        "images_evaluation has 1 characters that Omniglot has not (Dots/character02): "
        + FOLDERS.format("images_evaluation", get(tmp_path))
    )


def test_a_zip_file_cut_short_is_named(tmp_path):
    path = tiny_data.write_zips(tmp_path, tiny_data.omniglot_files()) / "images_background.zip"
    path.write_bytes(path.read_bytes()[:2000])
    assert re.fullmatch(
        rf"images_background.zip is not a whole zip file \(.*\): move images_background.zip away, and {get(tmp_path)} .* again",
        problems(tmp_path),
    )


def test_a_flipped_bit_in_a_zip_file_is_named(tmp_path):
    name = "images_background/Runes/character03/0002_02.png"
    path = tiny_data.write_zips(tmp_path, tiny_data.omniglot_files()) / "images_background.zip"
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo(name).header_offset + 30 + len(name) + 60
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert problems(tmp_path).startswith(f"{name} is broken (")


def test_hostile_and_hidden_members_of_a_zip_file_do_nothing(tmp_path):
    folder = tiny_data.write_zips(tmp_path / "inner" / "data", tiny_data.omniglot_files())
    picture = tiny_data.encoded(np.ones((105, 105), bool))
    before = sorted(tmp_path.rglob("*"))
    strangers = (
        "../../evil/character01/0000_01.png", "/evil/character01/0000_01.png", "../character01/0000_01.png",
        "images_background/../evil/character01/0000_01.png", "__MACOSX/images_background/Runes/character01/._0000_01.png",
        "images_background/Runes/character01/._0000_01.png", "images_background/Runes/notes.txt",
    )  # fmt: skip
    with zipfile.ZipFile(folder / "images_background.zip", "a") as archive:
        for name in strangers:
            archive.writestr(name, picture)
    assert load("omniglot", folder).train.pixels.shape == (12, 28, 28, 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_drawing_that_would_fill_the_memory_is_not_unpacked(tmp_path):
    files = tiny_data.omniglot_files()
    name = next(iter(files))
    files[name] = bytes(omniglot.LARGEST + 1)
    found = problems(tiny_data.write_zips(tmp_path, files))
    assert found.startswith(f"{name} is broken (1,048,577 bytes, too many for a drawing): move ")


def test_packed_files_are_checked(tmp_path):
    path = tmp_path / "omniglot_28x28.npz"
    way = f": move {path.name} away, and {get(tmp_path)} downloads zip files that are read in its place"
    images, names = np.zeros((7, 3, 28, 28), np.uint8), np.array(tiny_data.CHARACTERS)
    np.savez(path, images=images[:, :, :27], names=names)
    assert "holds uint8 (7, 3, 27, 28) instead of uint8 (7, 3, 28, 28): " in problems(tmp_path)
    np.savez(path, images=images.astype(float), names=names)
    assert "holds float64" in problems(tmp_path)
    np.savez(path, images=images[:5], names=names[:5])
    assert problems(tmp_path) == f"{path.name} lacks 2 of 7 characters (Knots/character01, Knots/character02){way}"
    np.savez(path, pictures=images, names=names)
    assert f"{path.name} cannot be read as an npz file with images, names" in problems(tmp_path)
    assert problems(tmp_path).endswith(way)
    np.savez(path, images=images, names=names)
    path.write_bytes(path.read_bytes()[:1000])
    assert f"{path.name} cannot be read as an npz file" in problems(tmp_path)


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("disguise", ["object array", "plain pickle"])
def test_a_pickle_in_a_packed_file_is_not_loaded(disguise, tmp_path):
    path, mark = tmp_path / "omniglot_28x28.npz", tmp_path / "exploded"
    if disguise == "plain pickle":
        path.write_bytes(pickle.dumps(Bomb(mark)))
    else:
        inner = io.BytesIO()
        np.lib.format.write_array(inner, np.array([Bomb(mark)], object), allow_pickle=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", inner.getvalue())
            archive.writestr("names.npy", inner.getvalue())
    assert "cannot be read as an npz file" in problems(tmp_path)
    assert not mark.exists()


# --- where to look ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["omniglot", "miniimagenet"])
def test_without_a_folder_the_way_out_is_named(name, monkeypatch, tmp_path):
    monkeypatch.delenv("METAPRIOR_DATA", raising=False)
    way = "metaprior data get omniglot" if name == "omniglot" else "docs/data.md"
    with pytest.raises(ValueError, match=f"where is {name}.*--data-dir.*METAPRIOR_DATA.*{way}"):
        load(name)
    with pytest.raises(ValueError, match=f"nowhere is not a folder.*--data-dir.*{way}"):
        load(name, tmp_path / "nowhere")
    with pytest.raises(ValueError, match=f"holds no {name}.*--data-dir.*{way}"):
        load(name, tmp_path)


def test_unknown_names_are_met_with_the_nearest():
    with pytest.raises(ValueError, match="unknown data set 'omniglott': did you mean omniglot"):
        load("omniglott")
