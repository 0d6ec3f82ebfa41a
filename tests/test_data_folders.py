"""Anyone's pictures: read as a person would see them, sorted by class, and never passed over in silence."""

import warnings

import numpy as np
import pytest
import tiny_data
from PIL import Image

from metaprior.data import DataError, load_folder, read_image

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (84, 84, 3), np.uint8)
GREY = RNG.integers(0, 256, (84, 84), np.uint8)


@pytest.fixture
def folder(tmp_path):
    files = {"dog/b.PNG": COLOURS, "dog/a.png": 255 - COLOURS, "cat/only.Png": COLOURS[::-1]}
    tiny_data.write_folder(tmp_path, {name: tiny_data.encoded(pixels) for name, pixels in files.items()})
    return tmp_path


def test_classes_and_pictures_come_sorted(folder):
    tiny_data.write_folder(folder, {"dog/notes.txt": b"", "dog/._a.png": b"", ".hidden/a.png": b"", "readme.md": b""})
    found = load_folder(folder)
    assert found.classes == ("cat", "dog")
    assert found.starts.tolist() == [0, 1] and found.counts.tolist() == [1, 2]
    assert found.starts.dtype == found.counts.dtype == np.int32
    np.testing.assert_array_equal(found.pixels, np.stack([COLOURS[::-1], 255 - COLOURS, COLOURS]))


def test_sizes_and_channels(folder):
    for name in ("a.JPG", "b.jpeg", "c.jfif", "d.JPE"):
        (folder / "cat" / name).write_bytes(tiny_data.encoded(RNG.integers(0, 256, (50, 70, 3), np.uint8), "JPEG"))
    found = load_folder(str(folder), size=(20, 30), channels=1)
    assert found.pixels.shape == (7, 20, 30, 1) and found.counts.tolist() == [5, 2]
    wanted = Image.fromarray(COLOURS).convert("L").resize((30, 20), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(found.pixels[-1, ..., 0], np.asarray(wanted))


def test_all_that_cannot_be_used_is_named_at_once(folder):
    picture = tiny_data.encoded(COLOURS, "JPEG")
    broken = {"dog/cut.jpg": picture[:1500], "dog/fake.jpg": b"<html>", "dog/empty.png": b"", "dog/phone.HEIC": b"heic"}
    tiny_data.write_folder(folder, broken | {"loose.png": picture, "deep/inner/a.jpg": picture})
    (folder / "bird").mkdir()
    with pytest.raises(DataError) as caught:
        load_folder(folder)
    assert sorted(caught.value.problems) == sorted(
        [
            f"loose.png in {folder} belongs to no class: move it into the folder of its class",
            f"{folder / 'bird'} holds no pictures: add some, or remove it",
            f"{folder / 'deep'} holds no pictures: its sub-folders do, so {folder / 'deep'} may be the folder to name",
            f"{folder / 'dog/phone.HEIC'} cannot be read: convert it to JPEG or PNG, or remove it",
            *(problem for problem in caught.value.problems if "cannot be read as a picture" in problem),
        ]
    )
    for name in ("cut.jpg", "fake.jpg", "empty.png"):
        assert f"{folder / 'dog' / name} cannot be read as a picture" in str(caught.value)
    for name, mended in (("cut.jpg", "replace it by a whole copy"), ("fake.jpg", "convert it")):
        (problem,) = [problem for problem in caught.value.problems if name in problem]
        assert problem.endswith(f"): {mended}, or remove it")


def test_pictures_below_a_class_are_not_passed_over(folder):
    """Whose class they are nobody can tell; what a Mac packs beside them is none of anybody's."""
    picture = tiny_data.encoded(COLOURS)
    tiny_data.write_folder(
        folder, {"cat/kittens/1.png": picture, "__MACOSX/cat/._only.Png": b"", "__MACOSX/a.png": b""}
    )
    with pytest.raises(DataError) as caught:
        load_folder(folder)
    inner = folder / "cat" / "kittens"
    assert caught.value.problems == (
        f"{inner} lies within a class: move its pictures up into {folder / 'cat'}, or out of {folder}",
    )


@pytest.mark.parametrize("ending", ["jxl", "DNG", "cr2", "NEF", "arw", "webp"])
def test_pictures_in_other_formats_are_named(folder, ending):
    tiny_data.write_folder(folder, {f"cat/other.{ending}": b"", "cat/notes.pdf": b""})
    with pytest.raises(DataError) as caught:
        load_folder(folder)
    other = folder / "cat" / f"other.{ending}"
    assert caught.value.problems == (f"{other} cannot be read: convert it to JPEG or PNG, or remove it",)


def test_pictures_are_found_however_deep_they_lie_and_links_in_a_circle_end(folder):
    tiny_data.write_folder(
        folder, {f"{place}/0.png": b"" for place in ("cat/a/b", "cat/a/b/c/d", "cat/.hidden", "deep/1/2")}
    )
    (folder / "cat" / "a" / "back").symlink_to(folder / "cat")
    with pytest.raises(DataError) as caught:
        load_folder(folder)
    inside = "lies within a class: move its pictures up into"
    assert caught.value.problems == (
        *(f"{folder / inner} {inside} {folder / 'cat'}, or out of {folder}" for inner in ("cat/a/b", "cat/a/b/c/d")),
        f"{folder / 'deep'} holds no pictures: its sub-folders do, so {folder / 'deep' / '1'} may be the folder to name",
    )


def test_several_pictures_outside_of_classes(folder):
    tiny_data.write_folder(folder, {name: tiny_data.encoded(COLOURS) for name in ("a.png", "b.png")})
    with pytest.raises(
        DataError, match=r"a.png, b.png in .* belong to no class: move each into the folder of its class"
    ):
        load_folder(folder)


def test_a_folder_that_is_none_and_one_without_classes(tmp_path):
    with pytest.raises(ValueError, match="nothing is not a folder: name one that holds a sub-folder"):
        load_folder(tmp_path / "nothing")
    with pytest.raises(ValueError, match="has no sub-folders: make one for each class"):
        load_folder(tmp_path)
    with pytest.raises(ValueError, match=r"1 or 3 channels and at least one pixel, got 2 and \(84, 84\)"):
        load_folder(tmp_path, channels=2)


# --- one picture ------------------------------------------------------------------------------------------------------


def saved(tmp_path, image, kind="PNG", **options):
    path = tmp_path / f"picture.{kind.lower()}"
    image.save(path, kind, **options)
    return path


def test_a_picture_of_the_right_size_is_left_as_it_is(tmp_path):
    path = saved(tmp_path, Image.fromarray(COLOURS))
    np.testing.assert_array_equal(read_image(path, size=(84, 84), channels=3), COLOURS)
    path = saved(tmp_path, Image.fromarray(GREY))
    np.testing.assert_array_equal(read_image(str(path), size=(84, 84), channels=1), GREY[..., None])
    np.testing.assert_array_equal(read_image(path, size=(84, 84), channels=3), np.repeat(GREY[..., None], 3, axis=-1))


def test_height_comes_before_width(tmp_path):
    path = saved(tmp_path, Image.fromarray(COLOURS[:40, :10]))
    np.testing.assert_array_equal(read_image(path, size=(40, 10), channels=3), COLOURS[:40, :10])


def test_pictures_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    path = saved(tmp_path, Image.fromarray(COLOURS), exif=exif)
    np.testing.assert_array_equal(read_image(path, size=(84, 84), channels=3), np.rot90(COLOURS, -1))


def test_what_is_transparent_is_white(tmp_path):
    alpha = np.where(np.arange(84) < 40, 255, 0).astype(np.uint8)
    pixels = np.dstack([COLOURS, np.tile(alpha, (84, 1))])
    found = read_image(saved(tmp_path, Image.fromarray(pixels)), size=(84, 84), channels=3)
    np.testing.assert_array_equal(found[:, :40], COLOURS[:, :40])
    assert (found[:, 40:] == 255).all()


def test_a_transparent_palette_is_white_too(tmp_path):
    image = Image.fromarray((GREY > 128).astype(np.uint8)).convert("P")
    image.putpalette([10, 20, 30, 200, 0, 0])
    found = read_image(saved(tmp_path, image, transparency=0), size=(84, 84), channels=3)
    np.testing.assert_array_equal(found, np.where((GREY > 128)[..., None], np.array([200, 0, 0]), 255))


def test_sixteen_bits_keep_their_upper_half(tmp_path):
    deep = GREY.astype(np.uint16) * 256 + 77
    np.testing.assert_array_equal(
        read_image(saved(tmp_path, Image.fromarray(deep)), size=(84, 84), channels=1), GREY[..., None]
    )


def test_photographs_are_decoded_in_small_without_a_difference_to_see(tmp_path):
    smooth = Image.fromarray(RNG.integers(0, 256, (9, 12, 3), np.uint8)).resize((1600, 1200), Image.Resampling.BICUBIC)
    path = saved(tmp_path, smooth, "JPEG", quality=95)
    with Image.open(path) as image:
        whole = np.asarray(image.resize((84, 84), Image.Resampling.LANCZOS), float)
    difference = np.abs(read_image(path, size=(84, 84), channels=3) - whole)
    assert difference.max() <= 4 and difference.mean() < 0.5


def test_large_photographs_are_read_and_what_would_fill_the_memory_is_refused(folder, monkeypatch):
    """Pillow warns beyond its limit, and refuses beyond twice that: the limit is made small here, the pictures are."""
    plain = Image.fromarray(GREY).resize((160, 160))
    large = {f"cat/{number}.jpg": tiny_data.encoded(np.asarray(plain), "JPEG") for number in range(20)}
    tiny_data.write_folder(folder, large)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 160 * 160 - 1)
    filters = list(warnings.filters)
    assert load_folder(folder, size=(9, 9)).counts.tolist() == [
        21,
        2,
    ]  # in several threads; a warning would be an error
    assert warnings.filters == filters
    words = "is too large, it would take too much memory: make it smaller, or remove it"
    (folder / "cat" / "large.png").write_bytes(tiny_data.encoded(np.asarray(plain)))  # has no draft
    with pytest.raises(DataError) as caught:
        load_folder(folder, size=(9, 9))
    assert caught.value.problems == (f"{folder / 'cat' / 'large.png'} {words}",)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 160 * 160 // 2 - 1)
    with pytest.raises(DataError, match=rf"0\.jpg {words}"):
        load_folder(folder, size=(9, 9))


def test_print_colours_and_two_levels(tmp_path):
    path = saved(tmp_path, Image.new("CMYK", (20, 20), (0, 0, 0, 0)), "JPEG")
    assert (read_image(path, size=(84, 84), channels=3) >= 254).all()
    path = saved(tmp_path, Image.fromarray(GREY > 128))
    np.testing.assert_array_equal(read_image(path, size=(84, 84), channels=1)[..., 0], np.where(GREY > 128, 255, 0))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_broken_pictures_are_named_wherever_they_break(tmp_path, kind):
    whole = tiny_data.encoded(COLOURS, kind)
    path = tmp_path / "broken"
    for end in range(0, len(whole) - 100, len(whole) // 20):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"broken cannot be read as a picture \(.+\)") as caught:
            read_image(path, size=(84, 84), channels=3)
        assert "0x" not in str(caught.value)


def test_files_that_cannot_be_opened_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.png is missing: check its name"):
        read_image(tmp_path / "none.png", size=(84, 84), channels=3)
    with pytest.raises(ValueError, match="is a folder: name the pictures in it"):
        read_image(tmp_path, size=(84, 84), channels=3)
    with pytest.raises(ValueError, match="at least one pixel"):
        read_image(tmp_path, size=(0, 84), channels=3)
