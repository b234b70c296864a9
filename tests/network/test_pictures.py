"""chanas/network/pictures.py: every file gives the pixels that its owner sees, or is refused by name."""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from chanas.errors import DataError
from chanas.network import pictures
from chanas.network.pictures import Picture, as_picture, read_picture

ORIENTATION = 0x0112
# How a camera held in each way would have stored an upright picture.
STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
LEVELS = np.tile(np.array([0, 40, 90, 140, 190, 255]), (4, 1))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, format_name: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format_name, **options)
    return buffer.getvalue()


def read(image: Image.Image, format_name: str, **options: Any) -> Picture:
    return read_picture(io.BytesIO(encoded(image, format_name, **options)), "the picture")


def grey(values: npt.NDArray[Any], format_name: str = "tiff") -> Picture:
    return read(Image.fromarray(values), format_name)


def levels(picture: Picture) -> npt.NDArray[np.int64]:
    """int64[H, W] of a picture that has to be grey."""
    pixels = np.asarray(picture.image, np.int64)
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0]


def colour(picture: Picture) -> list[int]:
    """The colour of a flat picture."""
    pixels = np.asarray(picture.image).reshape(-1, 3)
    assert (pixels == pixels[0]).all()
    return [int(value) for value in pixels[0]]


@pytest.mark.parametrize("format_name", ["png", "bmp", "tiff", "ppm"])
def test_an_rgb_file_is_read_as_it_is(format_name: str) -> None:
    picture = read(noise(20, 10), format_name)
    np.testing.assert_array_equal(picture.image, noise(20, 10))
    assert (picture.image.mode, picture.remark) == ("RGB", None)


# ---- orientation ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("format_name", ["png", "tiff", "webp", "jpeg"])
@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_photo_is_upright(orientation: int, format_name: str, mode: str) -> None:
    upright = Image.new("RGB", (24, 16), "black")
    upright.paste("white", (0, 0, 12, 8))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    stored = upright.transpose(STORED[orientation]).convert(mode)
    found = read(stored, format_name, exif=exif.tobytes(), quality=95)
    assert np.abs(np.asarray(found.image, np.int64) - np.asarray(upright, np.int64)).max() < 60
    again = read(found.image, format_name)
    assert again.image.size == found.image.size == (24, 16)


def test_grey_of_16_bits_is_upright() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    values = (LEVELS * 257).astype(np.uint16)
    stored = read(Image.fromarray(values), "png", exif=exif.tobytes())
    np.testing.assert_array_equal(levels(stored), np.rot90(LEVELS, -1))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"Exif\x00\x00", b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x05", b"nonsense"])
def test_damaged_exif_data_leave_a_picture_as_it_is(exif: bytes) -> None:
    found = read(noise(8, 6), "png", exif=exif)
    np.testing.assert_array_equal(found.image, noise(8, 6))
    assert found.remark in (None, "damaged EXIF data left aside")


# ---- grey of more than 8 bits ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "factor", "format_name"),
    [
        (np.uint8, 1, "png"),
        (np.uint16, 257, "png"),
        (np.uint16, 257, "tiff"),
        (np.uint16, 257, "ppm"),
        (np.uint16, 4095 / 255, "png"),
        (np.int32, 257, "tiff"),
        (np.int32, 65793, "tiff"),
        (np.float32, 1 / 255, "tiff"),
        (np.float32, 1, "tiff"),
        (np.float32, 257, "tiff"),
    ],
    ids=str,
)
def test_grey_of_any_depth_is_the_8_bit_picture(dtype: Any, factor: float, format_name: str) -> None:
    values = np.rint(LEVELS * factor) if np.issubdtype(dtype, np.integer) else LEVELS * factor
    assert np.abs(levels(grey(values.astype(dtype), format_name)) - LEVELS).max() <= 1


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B"])
def test_grey_of_16_bits_has_any_order_of_bytes(mode: str) -> None:
    data = (LEVELS * 257).astype(">u2" if mode == "I;16B" else "<u2").tobytes()
    image = Image.frombytes(mode, LEVELS.shape[::-1], data)
    np.testing.assert_array_equal(levels(as_picture(image, "it")), LEVELS)


def test_dark_pictures_stay_dark() -> None:
    dark, bright = ((LEVELS // 4 + base) for base in (20, 170))
    for factor, dtype in ((257, np.uint16), (16, np.uint16), (1 / 255, np.float32)):
        found = [levels(grey((part * factor).astype(dtype))) for part in (dark, bright)]
        assert found[1].mean() - found[0].mean() == pytest.approx(150, abs=2)


@pytest.mark.parametrize("value", [0, 7, 300, 40_000, 65_535])
def test_a_flat_picture_is_flat(value: int) -> None:
    white = 255 if value < 256 else 4095 if value < 4096 else 65535
    assert colour(grey(np.full((4, 5), value, np.uint16), "png")) == 3 * [round(value * 255 / white)]


def test_what_a_filter_leaves_beyond_the_ends_of_a_float_is_cut() -> None:
    values = (LEVELS / 255).astype(np.float32)
    values[0, 0], values[0, -1] = -0.05, 1.1
    np.testing.assert_array_equal(levels(grey(values)), LEVELS)


def test_signed_values_have_zero_in_the_middle() -> None:
    found = levels(grey(np.array([[-1000, 0, 3000]], np.int32)))
    assert found.tolist() == [[96, 128, 221]]
    assert levels(grey(np.array([[-1.0, 0.0, 1.0]], np.float32))).tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(DataError, match=r"the picture .* not finite"):
        grey(np.array([[0.5, value]], np.float32))


def tiff(values: npt.NDArray[Any], photometric: int, sample_format: int) -> io.BytesIO:
    """A TIFF of one channel, with tags that Pillow does not write."""
    height, width = values.shape
    data = values.tobytes()
    entries = {256: width, 257: height, 258: 8 * values.itemsize, 259: 1, 262: photometric, 273: 8, 277: 1}
    entries |= {278: height, 279: len(data), 339: sample_format}
    head = struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(entries))
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries.items())
    return io.BytesIO(head + tags + bytes(4))


def test_a_negative_of_an_x_ray_is_shown_as_its_picture() -> None:
    values = (LEVELS * 257).astype("<u2")
    np.testing.assert_array_equal(levels(read_picture(tiff(values, 0, 1), "it")), 255 - LEVELS)
    np.testing.assert_array_equal(levels(read_picture(tiff(values, 1, 1), "it")), LEVELS)


def test_32_bits_without_a_sign_have_none() -> None:
    values = (LEVELS * (2**32 // 256 + 1)).clip(0, 2**32 - 1).astype("<u4")
    assert np.abs(levels(read_picture(tiff(values, 1, 1), "it")) - LEVELS).max() <= 1


# ---- colour of 16 bits ----------------------------------------------------------------------------------------------
def wide_png(values: npt.NDArray[np.int64], transparent: tuple[int, ...] = ()) -> io.BytesIO:
    """A PNG of 16 bits a channel: int[H, W, C], C of 2 (grey and alpha), 3 or 4."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    clear = chunk(b"tRNS", struct.pack(">HHH", *transparent)) if transparent else b""
    body = chunk(b"IHDR", head) + clear + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + body)


COLOURS = np.random.default_rng(0).integers(0, 256, (6, 5, 3))


@pytest.mark.parametrize(("factor", "white"), [(257, 65535), (4095 / 255, 4095)])
@pytest.mark.parametrize("channels", [3, 4])
def test_colour_of_16_bits_is_the_8_bit_picture(tmp_path: Path, channels: int, factor: float, white: int) -> None:
    values = np.rint(COLOURS * factor).astype(np.int64)
    values = np.dstack([values, np.full((6, 5), 65535)]) if channels == 4 else values
    (tmp_path / "a.png").write_bytes(wide_png(values).getvalue())
    for found in (read_picture(wide_png(values), "it"), read_picture(tmp_path / "a.png", "it")):
        assert np.abs(np.asarray(found.image, np.int64) - COLOURS).max() <= 1
        assert found.remark == f"colour from 0 to {white} scaled to 8 bits"


def test_16_bits_for_all_channels_together_are_8_bit_colour() -> None:
    pixels = np.full((4, 4), 0b11111_000000_00000, "<u2").tobytes()
    head = struct.pack("<IiiHHIIiiII3I", 40, 4, 4, 1, 16, 3, len(pixels), 0, 0, 0, 0, 0xF800, 0x7E0, 0x1F)
    bmp = struct.pack("<2sIHHI", b"BM", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels
    found = read_picture(io.BytesIO(bmp), "it")
    assert (colour(found), found.remark) == ([255, 0, 0], None)


def test_one_colour_of_16_bits_is_transparent() -> None:
    values = COLOURS * 257
    found = np.asarray(read_picture(wide_png(values, tuple(values[0, 0])), "it").image)
    assert found[0, 0].tolist() == [255, 255, 255]
    np.testing.assert_array_equal(found[1:], COLOURS[1:])


def test_grey_of_16_bits_with_alpha_is_read_at_8() -> None:
    found = read_picture(wide_png(np.full((4, 4, 2), 65535)), "it")
    assert (colour(found), found.remark) == ([255, 255, 255], "16-bit colour read at 8 bits")


# ---- colour and transparency ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "RGB", "LAB", "HSV", "LA", "RGBA", "PA"])
def test_every_mode_keeps_its_colour(mode: str) -> None:
    red = Image.new("RGB", (6, 5), (255, 0, 0) if mode not in ("1", "L", "LA") else "white")
    if mode == "LAB":
        srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        image = ImageCms.profileToProfile(red, srgb, lab, outputMode="LAB")
        assert image is not None
    else:
        image = red.convert("P").convert("PA") if mode == "PA" else red.convert(mode)
    assert colour(as_picture(image, "it")) == pytest.approx(colour(Picture(red)), abs=6)


@pytest.mark.parametrize("adobe", [True, False])
def test_cmyk_of_a_jpeg_is_not_inverted(adobe: bool) -> None:
    data = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "jpeg", quality=95)
    assert b"Adobe" in data
    found = read_picture(io.BytesIO(data), "it")
    assert colour(found) == pytest.approx([255, 0, 0], abs=6)


TRANSPARENT: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "RGBA": (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), {}),
    "LA": (Image.new("LA", (4, 4), (0, 0)), {}),
    "grey with tRNS": (Image.new("L", (4, 4), 9), {"transparency": 9}),
    "RGB with tRNS": (Image.new("RGB", (4, 4), (1, 2, 3)), {"transparency": (1, 2, 3)}),
    "1 with tRNS": (Image.new("1", (4, 4), 0), {"transparency": 0}),
    "palette with one": (Image.new("RGB", (4, 4), "blue").convert("P", palette=Image.Palette.ADAPTIVE), {}),
    "palette with many": (Image.new("RGB", (4, 4), "blue").convert("P", palette=Image.Palette.ADAPTIVE), {}),
    "16-bit grey with tRNS": (Image.fromarray(np.full((4, 4), 300, np.uint16)), {"transparency": 300}),
}
TRANSPARENT["palette with one"][1]["transparency"] = 0
TRANSPARENT["palette with many"][1]["transparency"] = bytes(256)


@pytest.mark.parametrize("kind", TRANSPARENT)
def test_what_is_transparent_is_white(kind: str) -> None:
    image, options = TRANSPARENT[kind]
    found = read(image, "png", **options)
    assert colour(found) == [255, 255, 255]
    assert found.remark is not None
    assert "transparency laid on white" in found.remark


def test_half_transparent_is_half_white() -> None:
    assert colour(read(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), "png")) == [127, 127, 127]


def test_an_opaque_alpha_channel_is_no_remark() -> None:
    assert read(Image.new("RGBA", (4, 4), (9, 8, 7, 255)), "png") == Picture(Image.new("RGB", (4, 4), (9, 8, 7)), None)


# ---- colour profiles -------------------------------------------------------------------------------------------------
def test_a_profile_of_srgb_changes_nothing() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    found = read(noise(6, 5), "png", icc_profile=profile)
    np.testing.assert_array_equal(found.image, noise(6, 5))
    assert found.remark is None


def test_colours_of_another_profile_are_converted_once() -> None:
    values = Image.new("RGB", (6, 5), (100, 120, 140))
    profile = wide_profile()
    found = read(values, "png", icc_profile=profile)
    opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    theirs = ImageCms.profileToProfile(values, opened, ImageCms.createProfile("sRGB"))
    assert theirs is not None
    assert colour(found) == colour(Picture(theirs)) != [100, 120, 140]
    assert found.remark == "colours converted from the file's profile to sRGB"
    assert colour(read(found.image, "png")) == colour(found)


@pytest.mark.parametrize("profile", [b"", b"nonsense", bytes(200)])
def test_a_damaged_profile_is_left_aside(profile: bytes) -> None:
    np.testing.assert_array_equal(read(noise(6, 5), "png", icc_profile=profile).image, noise(6, 5))


def test_a_profile_of_another_mode_is_left_aside() -> None:
    assert colour(read(Image.new("L", (6, 5), 77), "png", icc_profile=wide_profile())) == [77, 77, 77]


def wide_profile() -> bytes:
    """A minimal ICC profile with a gamma of 1 and the primaries of sRGB."""

    def number(value: float) -> bytes:
        return struct.pack(">i", round(value * 65536))

    def xyz(*values: float) -> bytes:
        return b"XYZ " + bytes(4) + b"".join(map(number, values))

    text = b"linear light"
    described = b"desc" + bytes(4) + struct.pack(">I", len(text) + 1) + text + bytes(1 + 4 + 4 + 2 + 1 + 67)
    tags = {
        b"desc": described + bytes(-len(described) % 4),
        b"wtpt": xyz(0.9642, 1.0, 0.8249),
        b"rXYZ": xyz(0.4361, 0.2225, 0.0139),
        b"gXYZ": xyz(0.3851, 0.7169, 0.0971),
        b"bXYZ": xyz(0.1431, 0.0606, 0.7141),
        **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), b"curv" + bytes(8)),
    }
    table, content, start = b"", b"", 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        table += name + struct.pack(">II", start + len(content), len(data))
        content += data
    head = b"".join([bytes(8), struct.pack(">I", 0x02100000), b"mntrRGB XYZ ", bytes(12), b"acsp", bytes(28)])
    head += number(0.9642) + number(1.0) + number(0.8249)
    body = head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + content
    return struct.pack(">I", len(body) + 4)[:4] + body[4:]


# ---- several frames, large and narrow pictures -----------------------------------------------------------------------
@pytest.mark.parametrize("format_name", ["gif", "png", "webp", "tiff"])
def test_of_several_frames_the_first_is_taken(format_name: str) -> None:
    frames = [Image.new("RGB", (8, 8), value) for value in ("white", "black", "black")]
    found = read(frames[0], format_name, save_all=True, append_images=frames[1:])
    assert colour(found) == pytest.approx([255, 255, 255], abs=2)
    assert found.remark == "only the first of several frames"
    assert read(frames[0], format_name).remark is None


def test_a_photo_with_a_depth_map_is_one_picture() -> None:
    photo = noise(16, 16)
    found = read(photo, "mpo", save_all=True, append_images=[Image.new("RGB", (16, 16))])
    assert found.remark is None


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of large pictures, a thousandth as large."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    monkeypatch.setattr(pictures, "REDUCED_ABOVE", 2_000)
    monkeypatch.setattr(pictures, "MAX_PIXELS", 5_000)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("format_name", ["png", "jpeg", "gif", "tiff"])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK", "RGBA"])
def test_a_large_scan_is_used_without_a_warning(format_name: str, mode: str) -> None:
    if (mode, format_name) in (("CMYK", "png"), ("CMYK", "gif"), ("RGBA", "jpeg")):
        pytest.skip("a format without this mode")
    whole = Image.new(mode, (60, 45), (0, 0, 0, 0) if mode == "CMYK" else "white")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read(whole, format_name)
    assert (found.image.size, colour(found), caught) == ((30, 23), [255, 255, 255], [])
    assert found.remark == "made 2 times smaller"
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.usefixtures("small_limits")
def test_a_picture_of_too_many_pixels_is_refused_by_its_size_before_it_is_decoded() -> None:
    data = encoded(Image.new("L", (100, 51)), "png")
    with pytest.raises(DataError, match=r"scan\.png has 100 × 51 pixels.* 5,000 .*smaller"):
        read_picture(io.BytesIO(data[:60]), "scan.png")


@pytest.mark.parametrize("size", [(1, 1001), (1500, 1)])
def test_a_strip_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=rf"the picture has {size[0]} × {size[1]} pixels"):
        read(Image.new("RGB", size), "png")
    assert read(Image.new("RGB", (1, 1000)), "png").image.size == (1, 1000)


def test_threads_leave_the_limit_of_pillow_as_it_was() -> None:
    before, data = Image.MAX_IMAGE_PIXELS, encoded(noise(8, 8), "png")

    def many() -> None:
        for _ in range(50):
            read_picture(io.BytesIO(data), "it")

    threads = [threading.Thread(target=many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before == Image.MAX_IMAGE_PIXELS


# ---- what is refused -------------------------------------------------------------------------------------------------
def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.png does not exist"):
        read_picture(tmp_path / "none.png", "none.png")


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"image\.png is not an image that can be read") as refused:
        read_picture(file, "image.png")
    assert "object at" not in str(refused.value)


def test_folders_and_pipes_are_no_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected an image file.*folder"):
        read_picture(tmp_path, "it")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"expected an image file"):
        read_picture(tmp_path / "pipe.png", "it")


@pytest.mark.parametrize("format_name", ["png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm", "jpeg2000"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
def test_a_file_that_is_cut_short_is_named(tmp_path: Path, format_name: str, share: float) -> None:
    file = tmp_path / "image"
    content = encoded(noise(64, 64), format_name)
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match="the picture is not an image that can be read"):
        read_picture(file, "the picture")


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it reads past
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm"]),
    st.sampled_from(["RGB", "L", "P", "RGBA", "I;16", "F"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_a_damaged_file_is_an_image_or_one_error(format_name: str, mode: str, damage: list[tuple[float, int]]) -> None:
    try:
        content = bytearray(encoded(noise(9, 7).convert("L").convert(mode), format_name))
    except OSError:
        return  # a format without this mode
    for position, byte in damage:
        content[int(position * len(content))] = byte
    try:
        assert read_picture(io.BytesIO(content), "the picture").image.mode == "RGB"
    except DataError as error:
        assert "the picture" in str(error)
