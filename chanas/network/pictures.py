"""Pictures as their owner sees them: the one way from a file to 8-bit RGB, with Pillow and numpy alone, so that
training, evaluation and deployed bundles get the same pixels."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import ExifTags, Image, ImageCms, UnidentifiedImageError

from chanas.core.arrays import Array
from chanas.errors import DataError

MAX_PIXELS = 200_000_000  # the largest sensors of phones; 0.8 GB decoded
REDUCED_ABOVE = 89_478_485  # pixels; Pillow's own limit, beyond which it warns at every crop, too
MAX_ASPECT = 1000  # longer against shorter side; beyond it a 224-pixel short side would take over 100 MB
# What Pillow's decoders raise at damaged files.
DECODING_ERRORS = (
    UnidentifiedImageError,
    Image.DecompressionBombError,
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    struct.error,
)
_WITH_PROFILE = ("RGB", "L", "CMYK", "LAB")  # modes that a colour profile speaks of
_TRANSPARENT = "transparency laid on white"
_ONE_PICTURE = ("MPO", "PSD")  # their further frames are depth maps and layers, which no viewer shows
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PHOTOMETRIC, _SAMPLE_FORMAT = 262, 339  # TIFF tags that Pillow leaves to its callers where a sample has over 8 bits
_WHITE_IS_ZERO, _UNSIGNED = 0, 1
_OVERSHOOT = 0.25  # of white: what a resampling filter leaves beyond the ends of a float's range, and is cut
_WIDE = re.compile(";16[BLN]")  # unlike BGR;16, which is 16 bits for all channels together
_LIMIT = threading.Lock()


Pictured = Path | str | Image.Image | Array


@dataclass(frozen=True)
class Picture:
    """`image` is upright 8-bit RGB. `remark` says what was done to what the file holds, in words that are the same for
    every picture of that kind."""

    image: Image.Image
    remark: str | None = None


def read_picture(file: Path | IO[bytes], name: str) -> Picture:
    """The picture in `file`, the first one where there are several; errors call it `name`.

    Raises:
        DataError: there is no such file, it is not a whole picture, or not one that `as_picture` takes.
    """
    with _refused(name):
        if isinstance(file, Path) and file.exists() and not file.is_file():
            raise DataError(f"expected an image file, but {name} is {'a folder' if file.is_dir() else 'no plain file'}")
        with _without_limit():
            opened = Image.open(file)
        with opened:
            return _picture(opened, name, _low_bytes(file, opened))


def as_picture(image: Image.Image, name: str) -> Picture:
    """An image of Pillow's in any mode, as `read_picture` gives it.

    Raises:
        DataError: it cannot be decoded, is too large or too narrow, or has values that are not finite.
    """
    return _picture(image, name, None)


def _picture(image: Image.Image, name: str, low_bytes: Image.Image | None) -> Picture:
    """The picture of an image, of which Pillow decodes colour of 16 bits to its high bytes alone."""
    check_size(image.size, name)
    remarks: list[str] = []
    is_large = image.width * image.height > REDUCED_ABOVE
    with _refused(name), _without_limit() if is_large else contextlib.nullcontext():
        if getattr(image, "is_animated", False) and image.format not in _ONE_PICTURE:
            remarks.append("only the first of several frames")
        if low_bytes is None and _is_wide(image):
            remarks.append("16-bit colour read at 8 bits")
        image.load()
        profile, turn = image.info.get("icc_profile"), _turn(image, remarks)
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            image = _scaled_grey(image, name, remarks)
        if low_bytes is not None:
            image = _scaled_colour(image, low_bytes, remarks)
        if image.has_transparency_data:
            image = _on_white(image, remarks)
        elif image.mode not in _WITH_PROFILE:
            image = image.convert("RGB")
        if (factor := math.ceil(math.sqrt(image.width * image.height / REDUCED_ABOVE))) > 1:
            image = image.reduce(factor)
            remarks.append(f"made {factor} times smaller")
        if profile and (transform := _to_srgb(profile, image.mode)) is not None:
            converted = transform.apply(image)
            remarks.append("colours converted from the file's profile to sRGB")
        else:
            converted = image.convert("RGB")
        if turn is not None:
            converted = converted.transpose(turn)
    converted.info = {}  # saved again, it must be neither turned nor converted once more
    return Picture(converted, ", ".join(remarks) or None)


def open_picture(given: Pictured, name: str) -> Picture:
    """A picture by its path, an image of Pillow's, or an array: uint8[H, W, 3], with an alpha channel
    uint8[H, W, 4], or grey of any depth [H, W].

    Raises:
        DataError: it is none of these, or not one that `read_picture` takes.
    """
    if isinstance(given, str | Path):
        return read_picture(Path(given), str(given))
    if isinstance(given, Image.Image):
        return as_picture(given, name)
    if not isinstance(given, np.ndarray):
        raise DataError(f"expected a path, an image of Pillow's or an array for {name}, got {type(given).__name__}")
    is_colour = given.ndim == 3 and given.shape[2] in (3, 4) and given.dtype == np.uint8
    if given.ndim != 2 and not is_colour:
        raise DataError(f"expected uint8[H, W, 3] or grey [H, W] for {name}, got {given.dtype}{list(given.shape)}")
    with _refused(name):
        return as_picture(Image.fromarray(given), name)


def check_size(size: tuple[int, int], name: str) -> None:
    """Raise DataError if an image of `size` (width, height) is empty, too large, or too long and narrow."""
    width, height = size
    if not width * height:
        raise DataError(f"{name} has {width} × {height} pixels; replace or remove it")
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{name} has {width} × {height} pixels, more than the {MAX_PIXELS:,} that are read: make it smaller"
        )
    if max(size) > MAX_ASPECT * min(size):
        raise DataError(
            f"{name} has {width} × {height} pixels, too long and narrow: one side may be at most {MAX_ASPECT:,} times "
            "the other; cut it into pieces or remove it"
        )


@contextlib.contextmanager
def _refused(name: str) -> Iterator[None]:
    """Raise DataError, which names the image, for whatever Pillow raises at one that is damaged."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"image {name} does not exist") from None
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not an image that can be read (Pillow does not know its format)") from error
    except DECODING_ERRORS as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise DataError(f"{name} is not an image that can be read ({reason}); replace or remove it") from error


@contextlib.contextmanager
def _without_limit() -> Iterator[None]:
    """Lift Pillow's limit of pixels, which is lower than ours, for one thread at a time: it belongs to the process."""
    with _LIMIT:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _order(image: Image.Image) -> str:
    """Order of the pixels in the file, such as `RGB;16B`, as long as they are not decoded."""
    tiles: Any = getattr(image, "tile", None)
    return str(tiles[0][3]) if tiles else ""


def _is_wide(image: Image.Image) -> bool:
    """True for colour of 16 bits a channel that is not decoded yet."""
    return bool(_WIDE.search(_order(image))) and len(image.getbands()) > 1


def _low_bytes(file: Path | IO[bytes], image: Image.Image) -> Image.Image | None:
    """The same file opened once more, of which the low bytes are decoded; None unless it has colour of 16 bits.

    Pillow drops the second byte of each channel, so a file that is said to be of the other order of bytes gives it.
    """
    if image.mode not in ("RGB", "RGBA") or not _is_wide(image) or "LA;16" in _order(image):
        return None
    if isinstance(file, Path):
        content = file.read_bytes()
    else:
        file.seek(0)
        content = file.read()
    with _without_limit():
        other: Any = Image.open(io.BytesIO(content))
    other.tile = [tile._replace(args=_other_order(tile.args)) for tile in other.tile]
    low: Image.Image = other
    return low


def _other_order(arguments: Any) -> Any:
    """Arguments of a tile's decoder, whose first is the order: `RGB;16L` of `RGB;16B`."""
    if isinstance(arguments, str):
        native_low_first = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
        return arguments[:-1] + native_low_first[arguments[-1]]
    return (_other_order(arguments[0]), *arguments[1:])


def _turn(image: Image.Image, remarks: list[str]) -> Image.Transpose | None:
    """The turn that makes a decoded image upright, by its EXIF data; none where these are damaged."""
    try:
        return _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except DECODING_ERRORS:
        remarks.append("damaged EXIF data left aside")
        return None


def _scaled_grey(image: Image.Image, name: str, remarks: list[str]) -> Image.Image:
    """8-bit grey of an image that has one channel of more bits, or floats.

    White is the smallest of 255, 4095, 65535, 2^20 - 1 ... that holds the brightest value, and of 1 and 15, too, for
    floats, a little beyond which is cut; black is 0, or minus white where values are negative. This keeps scans of 12
    bits in 16 bright, and dark pictures dark, which a stretch of each picture to its own range would not.
    """
    values, tags = np.asarray(image), getattr(image, "tag_v2", None)
    if tags is not None and image.mode == "I" and tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0] == _UNSIGNED:
        values = values.view(np.uint32)
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DataError(f"{name} has values that are not finite (NaN or infinity); replace or remove it")
    is_float = image.mode == "F"
    slack = _OVERSHOOT if is_float else 0.0
    white = _white(max(high, -low), 0 if is_float else 2, slack)
    black = -white if low < -slack * white else 0
    grey = (values.astype(np.float32) - np.float32(black)) * np.float32(255 / (white - black))
    grey = np.rint(grey).clip(0, 255).astype(np.uint8)
    if tags is not None and tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        grey = 255 - grey
    remarks.append(f"grey from {black} to {white} scaled to 8 bits")
    if "transparency" in image.info:
        grey[values == image.info["transparency"]] = 255
        remarks.append(_TRANSPARENT)
    return Image.fromarray(grey)


def _white(brightest: float, fewest_digits: int, slack: float) -> int:
    """The smallest of 1, 15, 255, 4095 ... that holds a value: those of `fewest_digits` hexadecimal digits and more."""
    digits = fewest_digits
    while brightest > max(16**digits - 1, 1) * (1 + slack):
        digits += 1
    return int(max(16**digits - 1, 1))


def _scaled_colour(image: Image.Image, low_bytes: Image.Image, remarks: list[str]) -> Image.Image:
    """8-bit RGB, or RGBA, of the high and the low bytes of colour of 16 bits, scaled as grey is."""
    values = np.asarray(image).astype(np.uint16) << 8 | np.asarray(low_bytes)
    white = _white(float(values[..., :3].max()), 2, 0.0)
    pixels = np.rint(np.arange(white + 1) * (255 / white)).astype(np.uint8)[values[..., :3]]
    remarks.append(f"colour from 0 to {white} scaled to 8 bits")
    if "transparency" in image.info:
        is_opaque = (values != np.array(image.info["transparency"], np.uint16)).any(axis=2)
        pixels = np.dstack([pixels, is_opaque.astype(np.uint8) * np.uint8(255)])
    elif image.mode == "RGBA":
        pixels = np.dstack([pixels, (values[..., 3] >> 8).astype(np.uint8)])
    return Image.fromarray(pixels)


def _on_white(image: Image.Image, remarks: list[str]) -> Image.Image:
    """RGB of an image with an alpha channel, or with one transparent colour, over white."""
    colour = image.info.get("transparency")
    if isinstance(colour, tuple) and max(colour) > 255:  # of 16 bits, as the pixels were
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in colour)
    rgba = image.convert("RGBA")
    alpha = rgba.getchannel("A")
    if alpha.getextrema() == (255, 255):
        return rgba.convert("RGB")
    remarks.append(_TRANSPARENT)
    white = Image.new("RGB", image.size, "white")
    white.paste(rgba.convert("RGB"), mask=alpha)
    return white


@functools.lru_cache(maxsize=32)
def _to_srgb(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """The way from a colour profile to sRGB; None where it is sRGB, damaged, or of another mode."""
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(opened).lower():
            return None
        return ImageCms.buildTransform(opened, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ImportError):
        return None
