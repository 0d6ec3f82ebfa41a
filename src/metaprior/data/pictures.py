"""One picture from a file, as bytes of the size asked for."""

import io
import warnings
from pathlib import Path
from threading import Lock

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG")
MODES = {1: "L", 3: "RGB"}  # channels -> Pillow's word
ROOM = 4  # a JPEG may be decoded at half its size and less, as long as this many times what is wanted remains
OPENING = Lock()  # which warnings are shown is decided for all threads at once


def read_image(path: str | Path, *, size: tuple[int, int], channels: int) -> UInt8[np.ndarray, "H W C"]:
    """A JPEG or PNG file, turned upright, on white where it is transparent, resized to (height, width) by Lanczos.

    The picture is stretched to fit, as is usual for miniImageNet; crop it before if that matters.

    Raises:
        ValueError: with the name of a file that is missing, too large, or cannot be decoded to its end.
    """
    if channels not in MODES or min(size) < 1:
        raise ValueError(f"pictures are read with 1 or 3 channels and at least one pixel, got {channels} and {size}")
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: check its name") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder: name the pictures in it") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): make it readable") from None
    try:
        return _decode(data, size, MODES[channels])
    except Image.DecompressionBombError:
        raise ValueError(f"{path} is too large, it would take too much memory: make it smaller") from None
    except Exception as error:  # decoders raise whatever a broken file makes them stumble over
        mended = "convert it" if isinstance(error, UnidentifiedImageError) else "replace it by a whole copy"
        raise ValueError(f"{path} cannot be read as a picture ({reason(error)}): {mended}") from None


def reason(error: Exception) -> str:
    """Why a picture could not be decoded, without the addresses of Python objects.

    >>> reason(OSError("cannot identify image file <_io.BytesIO object at 0x7f0>"))
    'neither JPEG nor PNG, or broken from its first bytes on'
    """
    if "cannot identify" in str(error):
        return f"neither {' nor '.join(FORMATS)}, or broken from its first bytes on"
    return str(error) or type(error).__name__


def _decode(data: bytes, size: tuple[int, int], mode: str) -> UInt8[np.ndarray, "H W C"]:
    height, width = size
    with _opened(data) as image:
        image.draft(None, (ROOM * max(size), ROOM * max(size)))  # many times faster for photographs
        _require_room(image)
        upright = ImageOps.exif_transpose(image)
        small = _flat(upright, mode).resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(small, np.uint8).reshape(height, width, -1)


def _opened(data: bytes) -> Image.Image:
    """Without Pillow's warning of many pixels: a draft of a photograph has few. What is beyond all reason it refuses."""
    with OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(data), formats=FORMATS)


def _require_room(image: Image.Image) -> None:
    """Refuse what Pillow warns of, as far as it is to be decoded: several threads do so at a time."""
    if Image.MAX_IMAGE_PIXELS is not None and image.width * image.height > Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError


def _flat(image: Image.Image, mode: str) -> Image.Image:
    """Eight bits deep and opaque."""
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255 instead of scaling
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
