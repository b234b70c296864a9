"""Any map-style data set of PyTorch, under a name of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig, LoaderConfig
from chanas.supernet.data.images import ImageData, load_data
from chanas.supernet.data.loader import training_batches
from chanas.supernet.data.sources import SOURCES, named_images
from chanas.supernet.data.splits import SPLITS
from chanas.supernet.data.torch_sets import use_dataset


class Made(Dataset[Any]):
    """Images that a function makes of their numbers."""

    def __init__(self, make: Callable[[int], Any], num: int = 40) -> None:
        self.make, self.num = make, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.make(index), index % 2


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    SOURCES.pop("mine", None)


def load(dataset: Any, **options: Any) -> ImageData:
    use_dataset("mine", dataset, **options)
    return load_data(DataConfig(**named_images("mine")), seed=0)


def pil(index: int) -> Image.Image:
    return Image.new("RGB", (9, 7), (index, index, index))


IMAGES = {
    "PIL": pil,
    "uint8": lambda i: torch.full((3, 7, 9), i, dtype=torch.uint8),
    "float": lambda i: torch.full((3, 7, 9), i / 255.0),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_images_and_labels_are_split_like_any_others(kind: str) -> None:
    data = load(Made(IMAGES[kind]), class_names=["even", "odd"])
    assert data.class_names == ("even", "odd")
    assert sorted(np.concatenate([data.indices(split) for split in SPLITS]).tolist()) == list(range(40))
    assert np.asarray(data.source.image(17))[0, 0].tolist() == [17, 17, 17]
    assert data.source.image(17).size == (9, 7)
    (batch,) = training_batches(data, LoaderConfig(4, 2, seed=0), [(0, 8)])
    assert batch.images_nchw.shape == (6, 3, 8, 8)


def test_one_set_takes_the_place_of_another_with_other_images() -> None:
    before = load(Made(pil)).source.digest()
    assert load(Made(pil)).source.digest() == before
    assert load(Made(lambda i: pil(i + 1))).source.digest() != before


def test_a_set_of_tensors_is_one() -> None:
    dataset = TensorDataset(torch.rand(20, 3, 8, 8), torch.arange(20) % 2)
    assert load(dataset).class_names == ("0", "1")


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


FAULTS = {
    "with a length and items by index": Endless(),
    "expected values from 0 to 1": Made(lambda i: torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(i))),
    r"expected a PIL image or a tensor \[3, H, W\]": Made(lambda i: torch.zeros(8, 8)),
    "another image at each call": Made(lambda i: torch.rand(3, 8, 8)),
    "expected an integer as label": TensorDataset(torch.rand(8, 3, 8, 8), torch.rand(8)),
    "expected pairs of image and label": TensorDataset(torch.rand(8, 3, 8, 8)),
    "has 1 class": TensorDataset(torch.rand(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64)),
}


@pytest.mark.parametrize("says", FAULTS)
def test_what_cannot_be_used_is_one_line(says: str) -> None:
    with pytest.raises(DataError, match=says):
        load(FAULTS[says])


def test_names_of_other_sets_are_not_taken() -> None:
    with pytest.raises(DataError, match="the name digits is taken"):
        use_dataset("digits", Made(pil))
