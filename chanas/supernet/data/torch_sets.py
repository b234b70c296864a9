"""Data sets of PyTorch, of whatever images: anything with a length and pairs of image and label by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from chanas.core.arrays import IntArray
from chanas.errors import DataError
from chanas.network.pictures import DECODING_ERRORS, as_picture
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.image_source import ImageSource, content_digest
from chanas.supernet.data.sources import SOURCES

_NUM_HASHED = 64


@dataclass(frozen=True)
class TorchSource(ImageSource):
    """The images of a PyTorch data set, asked for when they are needed."""

    dataset: Any

    def image(self, index: int) -> Image.Image:
        what = f"image {index} of {self.name}"
        try:
            image = _image(self.dataset[index][0], what)
        except DECODING_ERRORS as error:
            raise DataError(f"{what} cannot be read ({error})") from error
        return as_picture(image, what).image

    def digest(self) -> str:
        """Hash the labels and the pixels of some images."""
        some = np.unique(np.linspace(0, len(self.labels) - 1, _NUM_HASHED).astype(int)).tolist()
        return content_digest((self.labels.tobytes(), *(self.image(index).tobytes() for index in some)))


def use_dataset(name: str, dataset: Dataset[Any], class_names: Sequence[str] | None = None) -> None:
    """Let `dataset: NAME` of configs, and `images=NAME`, mean a data set of PyTorch in this process.

    Args:
        name: none that is taken by others than an earlier call.
        dataset: pairs of an image (PIL, or uint8 or float[3, H, W] from 0 to 1) and a label, an integer; the same image
            at every call, since chanas augments and normalises itself. Where it has its labels as `targets` or
            `labels`, no image is decoded for them.
        class_names: by label; those of its `classes`, or numbers, by default.

    Raises:
        DataError: the name is taken, or there is nothing to ask for by index.
    """
    if name in SOURCES and not isinstance(SOURCES[name], _Open):
        raise DataError(f"the name {name} is taken; choose another than: {', '.join(SOURCES)}")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError("expected a data set with a length and items by index (map-style), got an iterable one")
    SOURCES[name] = _Open(dataset, class_names)


@dataclass(frozen=True)
class _Open:
    """An entry of `SOURCES`."""

    dataset: Any
    class_names: Sequence[str] | None

    def __call__(self, config: DataConfig) -> TorchSource:
        name, labels = config.dataset, _labels(config.dataset, self.dataset)
        names = self.class_names or getattr(self.dataset, "classes", None) or range(int(labels.max(initial=-1)) + 1)
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
            raise DataError(
                f"data set {name} has labels from {labels.min()} to {labels.max()}, but {len(names)} names of classes"
            )
        source = TorchSource(name, tuple(map(str, names)), labels, self.dataset)
        if len(labels) and source.image(0).tobytes() != source.image(0).tobytes():
            raise DataError(
                f"data set {name} gives another image at each call; leave augmentation to chanas (`augment`)"
            )
        return source


def _labels(name: str, dataset: Any) -> IntArray:
    found = next((v for k in ("targets", "labels") if (v := getattr(dataset, k, None)) is not None), None)
    if found is None:
        found = [_pair(name, dataset, i)[1] for i in range(len(dataset))]
    labels = np.asarray([int(v) for v in found] if _are_integers(found) else [-1], dtype=np.int64)
    if len(labels) != len(dataset) or not _are_integers(found):
        raise DataError(f"expected an integer as label of each of {len(dataset)} images of data set {name}")
    return labels


def _are_integers(values: Sequence[Any]) -> bool:
    array = np.asarray(values)
    return array.ndim == 1 and (np.issubdtype(array.dtype, np.integer) or not len(array))


def _pair(name: str, dataset: Any, index: int) -> tuple[Any, Any]:
    item = dataset[index]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"expected pairs of image and label in data set {name}, got {type(item).__name__} at {index}")
    return item[0], item[1]


def _image(item: Any, what: str) -> Image.Image:
    """A PIL image of an item's first part."""
    if isinstance(item, Image.Image):
        return item
    pixels = torch.as_tensor(item)
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise DataError(f"expected a PIL image or a tensor [3, H, W] for {what}, got shape {list(pixels.shape)}")
    if pixels.is_floating_point():
        if pixels.min() < 0.0 or pixels.max() > 1.0:
            raise DataError(f"expected values from 0 to 1 in {what}; leave normalisation to chanas (`mean`, `std`)")
        pixels = (pixels * 255.0).round()
    array = pixels.to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
