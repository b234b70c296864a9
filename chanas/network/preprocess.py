"""Conversion of a picture to a network's input, with Pillow and numpy alone: training's evaluation and the deployed
bundle share this code, so that a picture gives the same numbers in both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from chanas.core.arrays import Float32Array
from chanas.core.codec import fields_to_json
from chanas.errors import ConfigError, DataError, unknown_name
from chanas.network.pictures import check_size

_CHOICES: dict[str, tuple[str, ...]] = {
    "resize": ("crop", "stretch"),
    "filter": ("bilinear", "bicubic"),
    "channels": ("rgb", "bgr", "grey"),
    "layout": ("chw", "hwc"),
}
PRESETS: dict[str, dict[str, Any]] = {
    "imagenet": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_ratio": 0.875},
    "inception": {"mean": (0.5,), "std": (0.5,), "crop_ratio": 0.875},
    "unit": {},
    "raw": {"white": 255.0},
}
"""Usual ways of preparing pictures: torchvision's, numbers from -1 to 1, from 0 to 1, and pixels as they are. Colours
are in the order red, green, blue."""


@dataclass(frozen=True)
class Preprocess:
    """Resize the short side to `resolution / crop_ratio`, crop the centre, scale to [0, 1], normalise.

    resolution  rows of the network's input, and columns where `columns` is None
    mean, std   of each channel, in the network's order of channels
    white       what the brightest pixel becomes before mean and deviation
    resize      `stretch`: both sides become those of the input, and nothing is cropped
    filter      of the resizing
    channels    of the network, in order
    layout      of the network's input: channels first or last
    """

    resolution: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_ratio: float = 1.0
    columns: int | None = None
    white: float = 1.0
    resize: str = "crop"
    filter: str = "bilinear"
    channels: str = "rgb"
    layout: str = "chw"

    def __post_init__(self) -> None:
        if not (self.resolution > 0 and 0 < self.crop_ratio <= 1 and all(s > 0 for s in self.std)):
            raise ConfigError(
                "expected a resolution above zero, a crop ratio in (0, 1] and deviations above zero; "
                f"got {self.resolution}, {self.crop_ratio:g} and {list(self.std)}"
            )
        for name, known in _CHOICES.items():
            if (given := getattr(self, name)) not in known:
                raise ConfigError(unknown_name(f"{name} of pictures", given, known))
        if not (self.columns is None or self.columns > 0) or not self.white > 0:
            raise ConfigError(f"expected columns and a range above zero, got {self.columns} and {self.white:g}")
        num = 1 if self.channels == "grey" else 3
        if not len(self.mean) == len(self.std) == num:
            raise ConfigError(
                f"expected {num} means and {num} deviations for {self.channels}, got {list(self.mean)} and "
                f"{list(self.std)}"
            )

    def __call__(self, image: Image.Image) -> Float32Array:
        """float32[channels, rows, columns] of an RGB image, or with the channels last.

        Raises:
            DataError: the image has another mode, or a size that `read_picture` refuses.
        """
        if image.mode != "RGB":
            raise DataError(f"expected an RGB image, got mode {image.mode}; as_picture converts it")
        check_size(image.size, "the image")
        pixels = np.asarray(self._resized(image), dtype=np.float32) / np.float32(255.0 / self.white)
        if self.channels == "grey":
            pixels = pixels[:, :, None]
        elif self.channels == "bgr":
            pixels = pixels[:, :, ::-1]
        normalised = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        ordered = normalised.transpose(2, 0, 1) if self.layout == "chw" else normalised
        return np.ascontiguousarray(ordered, dtype=np.float32)

    def _resized(self, image: Image.Image) -> Image.Image:
        rows, columns = self.resolution, self.columns or self.resolution
        if self.channels == "grey":
            image = image.convert("L")
        short, least = round(rows / self.crop_ratio), round(columns / self.crop_ratio)
        scale = max(short / image.height, least / image.width)
        size = (max(least, round(image.width * scale)), max(short, round(image.height * scale)))
        if self.resize == "stretch":
            size = (columns, rows)
        if size != image.size:
            image = image.resize(size, Image.Resampling[self.filter.upper()])
        left, top = (size[0] - columns) // 2, (size[1] - rows) // 2
        return image.crop((left, top, left + columns, top + rows))

    def to_json(self) -> dict[str, Any]:
        """The first four, and what else is not the default."""
        return fields_to_json(self, [field.name for field in dataclasses.fields(self)[_NUM_STORED:]])

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Preprocess:
        """Inverse of `to_json`.

        Raises:
            ConfigError: a field is missing, has the wrong type or is out of range.
        """
        try:
            columns = data.get("columns")
            return cls(
                int(data["resolution"]),
                tuple(float(m) for m in data["mean"]),
                tuple(float(s) for s in data["std"]),
                float(data["crop_ratio"]),
                None if columns is None else int(columns),
                float(data.get("white", 1.0)),
                **{name: str(data[name]) for name in _CHOICES if name in data},
            )
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"preprocessing is not written as expected ({error!r}): {data!r}") from error


_NUM_STORED = [field.name for field in dataclasses.fields(Preprocess)].index("columns")


def check_crop(changes: Mapping[str, Any], made: Preprocess) -> None:
    """Check that what is cropped by the changes that were asked for is.

    Raises:
        ConfigError: pictures are stretched.
    """
    if made.resize == "stretch" and changes.get("crop_ratio", 1.0) != 1.0:
        raise ConfigError("--crop goes with --resize crop; pictures that are stretched are not cropped, leave it out")


def preprocess_of(shape: Sequence[int], changes: Mapping[str, Any], stored: Preprocess | None = None) -> Preprocess:
    """The preprocessing for a network's input, with its size and order of axes.

    Args:
        shape: [1, C, H, W] or [1, H, W, C] with one channel or three.
        changes: fields of `Preprocess` by name, one number for all channels or one for each; `preset` is a name of
            `PRESETS`, which begins anew.
        stored: what the others are taken from; by default pixels from 0 to 1.

    Raises:
        ConfigError: the shape is no picture's, a name is unknown, or a number is out of range.
    """
    if len(shape) != 4 or shape[0] != 1 or not {shape[1], shape[3]} & {1, 3}:
        raise ConfigError(f"expected an input [1, 3, H, W] or [1, H, W, 3], or with 1 channel, got {list(shape)}")
    first = shape[1] in (1, 3)
    num, rows, columns = (shape[1], *shape[2:]) if first else (shape[3], *shape[1:3])
    size = {
        "resolution": rows,
        "columns": None if rows == columns else columns,
        "layout": "chw" if first else "hwc",
    }
    given = dict(changes)
    begin = {"mean": (0.0,), "std": (1.0,), "channels": "rgb" if num == 3 else "grey"}
    if (preset := given.pop("preset", None)) is not None:
        if preset not in PRESETS:
            raise ConfigError(unknown_name("preset of pictures", preset, PRESETS))
        begin |= PRESETS[preset]
        if given.get("channels") == "bgr":
            begin |= {"mean": begin["mean"][::-1], "std": begin["std"][::-1]}
    elif stored is not None:
        begin = {field.name: getattr(stored, field.name) for field in dataclasses.fields(stored)}
    values = {**begin, **given, **size}
    if (num == 1) != (values["channels"] == "grey"):
        raise ConfigError(f"the network's input {list(shape)} has {num} channels, which are not {values['channels']}")
    for name in ("mean", "std"):
        values[name] = tuple(values[name]) * (num if len(values[name]) == 1 else 1)
    return Preprocess(**values)
