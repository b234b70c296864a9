"""Images as encoded files inside other files: rows of a table, members of a tar."""

from __future__ import annotations

import io
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from chanas.errors import DataError
from chanas.network.pictures import read_picture
from chanas.supernet.data.image_folder import NUM_FULLY_CHECKED, content_digest, name_and_size_lines


class Reader(Protocol):
    """Bytes of the encoded images, by index."""

    def __call__(self, index: int, /) -> bytes: ...


@dataclass(frozen=True)
class EncodedSource:
    """N images, decoded when they are asked for. `keys` are what people call them, `sizes` int64[N] their bytes."""

    name: str
    class_names: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    keys: Sequence[str]
    sizes: npt.NDArray[np.int64]
    read: Reader
    is_test: npt.NDArray[np.bool_] | None = None

    def image(self, index: int) -> Image.Image:
        what = f"image {self.keys[index]} of {self.name}"
        try:
            return read_picture(io.BytesIO(self.read(index)), what).image
        except OSError as error:
            raise DataError(f"{what} cannot be read ({error.strerror or error})") from error

    def digest(self) -> str:
        return content_digest((self.labels.tobytes(), *name_and_size_lines(self.keys, self.sizes)))

    def check(self) -> None:
        """Decode every image, if they are not too many.

        Raises:
            DataError: one of them is of no use.
        """
        if len(self.keys) <= NUM_FULLY_CHECKED:
            for index in range(len(self.keys)):
                self.image(index)


def number_labels(values: Sequence[Hashable]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Names of the classes and int64[N] labels, of integers or texts: the values that occur, in order."""
    names = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    number = {name: i for i, name in enumerate(names)}
    return tuple(map(str, names)), np.array([number[value] for value in values], dtype=np.int64)
