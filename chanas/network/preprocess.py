"""Conversion of a picture to a network's input, with Pillow and numpy alone: training's evaluation and the deployed
bundle share this code, so that a picture gives the same numbers in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from chanas.errors import ConfigError, DataError
from chanas.network.pictures import check_size


@dataclass(frozen=True)
class Preprocess:
    """Resize the short side to `resolution / crop_ratio` (bilinear), crop the centre, scale to [0, 1], normalise."""

    resolution: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop_ratio: float = 1.0

    def __post_init__(self) -> None:
        if not (self.resolution > 0 and 0 < self.crop_ratio <= 1 and all(s > 0 for s in self.std)):
            raise ConfigError(
                "expected a resolution above zero, a crop ratio in (0, 1] and deviations above zero; "
                f"got {self.resolution}, {self.crop_ratio:g} and {list(self.std)}"
            )

    def __call__(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """float32[3, resolution, resolution] of an RGB image.

        Raises:
            DataError: the image has another mode, or a size that `read_picture` refuses.
        """
        if image.mode != "RGB":
            raise DataError(f"expected an RGB image, got mode {image.mode}; as_picture converts it")
        check_size(image.size, "the image")
        short = round(self.resolution / self.crop_ratio)
        scale = short / min(image.size)
        size = (max(short, round(image.width * scale)), max(short, round(image.height * scale)))
        if size != image.size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        left, top = (size[0] - self.resolution) // 2, (size[1] - self.resolution) // 2
        image = image.crop((left, top, left + self.resolution, top + self.resolution))
        pixels = np.asarray(image, dtype=np.float32) / np.float32(255.0)
        normalised = (pixels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(normalised.transpose(2, 0, 1), dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        return {
            "resolution": self.resolution,
            "mean": list(self.mean),
            "std": list(self.std),
            "crop_ratio": self.crop_ratio,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Preprocess:
        """Inverse of `to_json`.

        Raises:
            ConfigError: a field is missing, has the wrong type or is out of range.
        """
        try:
            (mean_r, mean_g, mean_b), (std_r, std_g, std_b) = data["mean"], data["std"]
            return cls(
                int(data["resolution"]),
                (float(mean_r), float(mean_g), float(mean_b)),
                (float(std_r), float(std_g), float(std_b)),
                float(data["crop_ratio"]),
            )
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"preprocessing is not written as expected ({error!r}): {data!r}") from error
