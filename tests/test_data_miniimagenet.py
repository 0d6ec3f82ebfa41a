"""miniImageNet: mosaics and CSV files give the images they hold, whatever is wrong is named, and no pickle is loaded."""

import io
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_data
from PIL import Image

from metaprior.data import DataError, ImageSet, contents, images, load

DOCS = Path(__file__).parents[1] / "docs" / "data.md"


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(contents, "MINIIMAGENET", tiny_data.MINIIMAGENET)


@pytest.fixture
def folder(tmp_path):
    return tiny_data.write_folder(tmp_path, tiny_data.miniimagenet_files())


def problems(folder) -> str:
    with pytest.raises(DataError) as caught:
        load("miniimagenet", folder)
    assert str(caught.value).startswith(f"miniimagenet in {folder} cannot be used: ")
    return "\n".join(caught.value.problems)


# --- images and CSV files ---------------------------------------------------------------------------------------------


def test_tables_say_which_image_is_of_which_class(folder):
    found = load("miniimagenet", folder)
    photographs = tiny_data.photographs()
    for split, names in tiny_data.MINIIMAGENET.classes.items():
        part = found.splits[split]
        assert part.classes == names
        assert part.counts.tolist() == [2] * len(names) and part.starts.tolist() == [0, 2][: len(names)]
        wanted = [photographs[f"{name}0{number}.png"] for name in names for number in (1, 2)]
        np.testing.assert_array_equal(part.pixels, np.stack(wanted))


def test_images_of_another_size_are_resized(folder):
    large = np.random.default_rng(2).integers(0, 256, (200, 300, 3), np.uint8)
    (folder / "images" / "n0301.png").write_bytes(tiny_data.encoded(large))
    wanted = Image.fromarray(large).resize((84, 84), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(load("miniimagenet", folder).validation.pixels[0], np.asarray(wanted))


def test_all_that_is_wrong_is_said_at_once(folder):
    (folder / "images" / "n0101.png").unlink()
    (folder / "images" / "n0202.png").write_bytes(b"no picture")
    whole = tiny_data.encoded(tiny_data.photographs()["n0301.png"], "JPEG")
    (folder / "images" / "n0301.png").write_bytes(whole[: len(whole) // 2])
    (folder / "test.csv").write_text("filename,label\nn0401.png,n04\nn0301.png,n03\n")
    found = problems(folder)
    assert f"{folder / 'images' / 'n0101.png'} is missing: check its name" in found
    assert f"{folder / 'images' / 'n0202.png'} cannot be read as a picture (neither JPEG nor PNG" in found
    assert re.search(r"n0301.png cannot be read as a picture \(image file is truncated", found)
    assert "test has 1 of 2 images of n04: correct test.csv to the split that docs/data.md names" in found
    assert "test has 1 classes of other splits or none (n03): correct test.csv to" in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "val.csv is missing: save a table of the columns filename,label there"),
        (
            "filename,label\n",
            "validation lacks 1 of 1 classes (n03): correct val.csv to the split that docs/data.md names",
        ),
        (
            "file,class\nn0301.png,n03\n",
            "val.csv, line 2, has no filename and label: its header must be filename,label",
        ),
        ("filename,label\nn0301.png\n", "val.csv, line 2, has no filename and label"),
        ("filename,label\nn0301.png,n03\nn0301.png,n03\n", "val.csv, line 3: n0301.png is listed twice"),
        (
            "filename,label\n../../secret.png,n03\n",
            "val.csv, line 2: ../../secret.png is listed twice, or is not a plain",
        ),
        (
            "filename,label\n/etc/motd,n03\n",
            "/etc/motd is listed twice, or is not a plain file name: list each picture of images once, by its name alone",
        ),
    ],
)
def test_tables_are_checked(folder, text, words):
    if text is None:
        (folder / "val.csv").unlink()
    else:
        (folder / "val.csv").write_text(text)
    assert words in problems(folder)


def test_a_table_that_is_no_text_is_to_be_saved_as_one(folder):
    (folder / "val.csv").write_bytes(b"\xff\xfe\x00")
    words = r"val.csv cannot be read \(.*\): save a table of the columns filename,label there, in UTF-8, with a row for each"
    assert re.search(words, problems(folder))


def test_without_images_that_is_all_there_is_to_say(folder):
    (folder / "images").rename(folder / "pictures")
    assert problems(folder) == (
        f"the folder images is missing: put the pictures that train.csv, val.csv, test.csv list into {folder / 'images'}"
    )


def test_splits_that_share_a_class_are_refused(folder, monkeypatch):
    both = {"train": ("n01", "n02"), "validation": ("n03",), "test": ("n03",)}
    monkeypatch.setattr(contents, "MINIIMAGENET", contents.MiniImageNet(both, 2))
    (folder / "test.csv").write_bytes((folder / "val.csv").read_bytes())
    assert problems_of_sharing(folder) == "validation and test share n03"


def problems_of_sharing(folder) -> str:
    with pytest.raises(DataError) as caught:
        load("miniimagenet", folder)
    return "\n".join(caught.value.problems)


def test_every_pair_of_splits_is_compared(folder):
    found = load("miniimagenet", folder)
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        splits = found.splits | {other: found.splits[one]}
        with pytest.raises(DataError, match=f"{one} and {other} share"):
            images.checked(ImageSet("miniimagenet", **splits))


# --- mosaics ----------------------------------------------------------------------------------------------------------

FILES = {"train_a": ("n01",), "train_b": ("n02",), "val": ("n03",), "test": ("n04",)}


@pytest.fixture(scope="module")
def mosaics():
    """Class -> one JPEG of 20 × 30 tiles: smooth noise, so that every tile differs and compresses well."""
    rng = np.random.default_rng(4)
    coarse = {name: rng.integers(0, 256, (120, 180, 3), np.uint8) for names in FILES.values() for name in names}
    return {name: tiny_data.encoded(pixels.repeat(16, 0).repeat(16, 1), "JPEG") for name, pixels in coarse.items()}


@pytest.fixture
def packed(tmp_path, mosaics, monkeypatch):
    monkeypatch.setattr(contents, "MINIIMAGENET", tiny_data.MINIIMAGENET._replace(images=600))
    for file, names in FILES.items():
        write(tmp_path, file, names, mosaics)
    return tmp_path


def write(folder, file, names, mosaics):
    blobs = [np.frombuffer(mosaics[name], np.uint8) for name in names]
    np.savez(
        folder / f"miniimagenet_{file}.npz",
        classes=np.array(names),
        names=np.array([[f"{name}{number:08d}.jpg" for number in range(600)] for name in names]),
        jpeg=np.concatenate(blobs),
        offset=np.cumsum([0, *map(len, blobs)]),
    )


def test_tiles_are_cut_out_row_by_row(packed, mosaics):
    found = load("miniimagenet", packed)
    assert [part.classes for part in found.splits.values()] == [("n01", "n02"), ("n03",), ("n04",)]
    assert found.train.pixels.shape == (1200, 84, 84, 3) and found.train.starts.tolist() == [0, 600]
    for part in found.splits.values():
        for name, start in zip(part.classes, part.starts, strict=True):
            whole = Image.open(io.BytesIO(mosaics[name])).convert("RGB")
            for number in (0, 1, 29, 30, 331, 599):
                left, top = number % 30 * 96, number // 30 * 96
                tile = whole.crop((left, top, left + 84, top + 84))
                np.testing.assert_array_equal(part.pixels[start + number], np.asarray(tile))


def test_packed_files_go_before_images_and_images_before_pickles(packed):
    tiny_data.write_folder(packed, tiny_data.miniimagenet_files() | {"mini-imagenet-cache-train.pkl": b""})
    assert load("miniimagenet", packed).train.pixels.shape == (1200, 84, 84, 3)
    for file in packed.glob("*.npz"):
        file.unlink()
    assert "train has 2 of 600 images of n01: correct train.csv" in problems(packed)


def test_all_that_is_wrong_with_packed_files_is_said_at_once(packed, mosaics):
    (packed / "miniimagenet_train_a.npz").unlink()
    write(packed, "train_b", ("n02",), {"n02": mosaics["n02"][:-5000]})
    write(packed, "val", ("n03",), {"n03": tiny_data.encoded(np.zeros((96, 96, 3), np.uint8), "JPEG")})
    (packed / "miniimagenet_test.npz").write_bytes(b"PK")
    found = problems(packed)
    assert "miniimagenet_train_a.npz is missing: copy miniimagenet_train_a.npz anew" in found
    assert "the mosaic of n02 in miniimagenet_train_b.npz is broken (image file is truncated" in found
    assert "the mosaic of n03 in miniimagenet_val.npz is broken (96 × 96 pixels instead of 2880 × 1920): copy" in found
    assert "miniimagenet_test.npz cannot be read as an npz file" in found
    assert all("anew from where you have it, docs/data.md says" in line for line in found.splitlines())
    assert len(found.splitlines()) == 4


def test_a_flipped_byte_is_noticed(packed):
    path = packed / "miniimagenet_val.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    assert "miniimagenet_val.npz cannot be read as an npz file" in problems(packed)


def test_arrays_that_do_not_fit_are_refused(packed):
    path = packed / "miniimagenet_val.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"offset": arrays["offset"][:1]})
    assert "miniimagenet_val.npz has arrays that do not fit each other: copy miniimagenet_val.npz anew" in problems(
        packed
    )


# --- pickles ----------------------------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_pickles_are_refused_unopened(tmp_path):
    mark = tmp_path / "exploded"
    (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(Bomb(mark)))
    (tmp_path / "mini-imagenet-cache-val.pkl").mkdir()  # to open it would fail in other words
    with pytest.raises(
        DataError, match=r"train\.pkl is a pickle, and loading a pickle runs .*code.*recipe in docs/data.md"
    ):
        load("miniimagenet", tmp_path)
    assert not mark.exists()
    pickle.loads((tmp_path / "mini-imagenet-cache-train.pkl").read_bytes())
    assert mark.exists(), "the bomb works"


def recipe(tmp_path) -> Path:
    if not DOCS.exists():
        pytest.skip("docs/ comes with the repository, not with the source distribution")
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.S)
    (program,) = [block for block in blocks if "pickle.Unpickler" in block]
    path = tmp_path / "convert.py"
    path.write_text(program)
    return path


@pytest.mark.parametrize("protocol", [2, 5])
def test_the_recipe_of_the_documentation_converts_them(tmp_path, protocol):
    program, photographs = recipe(tmp_path), tiny_data.photographs()
    for split, file in (("train", "train"), ("validation", "val"), ("test", "test")):
        names = [name for name in sorted(photographs) if name[:3] in tiny_data.MINIIMAGENET.classes[split]]
        places = {
            label: [place for place, name in enumerate(names) if name[:3] == label] for label in {n[:3] for n in names}
        }
        content = {"image_data": np.stack([photographs[name] for name in names]), "class_dict": places}
        # Where NumPy kept its arrays when these pickles were made.
        data = pickle.dumps(content, protocol=protocol).replace(b"cnumpy._core.", b"cnumpy.core.")
        (tmp_path / "cache.pkl").write_bytes(data)
        subprocess.run([sys.executable, program, tmp_path / "cache.pkl", file, tmp_path / "out"], check=True)
    found = load("miniimagenet", tmp_path / "out")
    np.testing.assert_array_equal(found.train.pixels, [photographs[name] for name in sorted(photographs)[:4]])
    np.testing.assert_array_equal(found.test.pixels, [photographs[name] for name in sorted(photographs)[6:]])


def test_the_recipe_of_the_documentation_runs_no_code(tmp_path):
    (tmp_path / "cache.pkl").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    argv = [sys.executable, recipe(tmp_path), tmp_path / "cache.pkl", "train", tmp_path / "out"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode != 0 and "which no array needs: delete it" in done.stderr
    assert not (tmp_path / "exploded").exists()
