"""Training batches: a pure function of (seed, step), so that a resumed run sees what an uninterrupted one would have.

The order of images is an endless row of permutations, one per epoch, drawn from (seed, epoch); a step takes the next
`batch_size` of it. Train and gap images are augmented alike: otherwise Eq. 3's difference would measure augmentation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from chanas.errors import DataError
from chanas.supernet.data import ImageData
from chanas.supernet.data_config import AugmentConfig
from chanas.supernet.sources import ArraySource, IntArray

_TRAIN_STREAM, _GAP_STREAM, _AUGMENT_STREAM = 11, 12, 13  # keep the random streams of one seed apart


@dataclass(frozen=True)
class Batch:
    """Images of one step: train images first, then gap images. float[N + M, 3, R, R], labels int64[N + M]."""

    images_nchw: Tensor
    labels: Tensor
    num_train: int


@dataclass(frozen=True)
class LoaderConfig:
    """How many images a step takes from each split (0 gap images: none), and from which seed."""

    batch_size: int
    gap_batch_size: int
    seed: int
    add_gap_to_train: bool = False


@functools.lru_cache(maxsize=8)
def _permutation(num_images: int, seed: int, stream: int, epoch: int) -> IntArray:
    return np.random.default_rng([seed, stream, epoch]).permutation(num_images)


def in_order(indices: IntArray, seed: int, stream: int, start: int, count: int) -> IntArray:
    """`count` of `indices` from position `start` on in the endless row of permutations: every epoch sees each once."""
    positions = np.arange(start, start + count)
    epochs, offsets = np.divmod(positions, len(indices))
    places = [_permutation(len(indices), seed, stream, int(e))[o] for e, o in zip(epochs, offsets, strict=True)]
    return indices[np.asarray(places, dtype=np.int64)]


def step_indices(data: ImageData, config: LoaderConfig, step: int) -> IntArray:
    """Image indices int64[batch_size + gap_batch_size] of a step, train images first."""
    train = data.indices("train")
    if config.add_gap_to_train:
        train = np.concatenate([train, data.indices("gap")])
    n, m = config.batch_size, config.gap_batch_size
    chosen = in_order(train, config.seed, _TRAIN_STREAM, step * n, n)
    if not m:
        return chosen
    return np.concatenate([chosen, in_order(data.indices("gap"), config.seed, _GAP_STREAM, step * m, m)])


def training_batches(data: ImageData, config: LoaderConfig, steps: Iterable[tuple[int, int]]) -> Iterator[Batch]:
    """The batches of `steps`, each given as (step, resolution); the resolution may change at every step.

    Raises:
        DataError: an image cannot be decoded; the message names it.
    """
    if isinstance(data.source, ArraySource):
        return _array_batches(data, data.source, config, steps)
    return _file_batches(data, config, steps)


# ---- sets in memory -----------------------------------------------------------------------------------------------
def _array_batches(
    data: ImageData, source: ArraySource, config: LoaderConfig, steps: Iterable[tuple[int, int]]
) -> Iterator[Batch]:
    pixels, labels = torch.from_numpy(source.pixels.copy()), torch.from_numpy(source.labels.copy())
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (data.config.mean, data.config.std))
    for step, resolution in steps:
        indices = torch.from_numpy(step_indices(data, config, step))
        generator = torch.Generator().manual_seed(_image_seeds(config, step, 1)[0])
        images = pixels[indices].permute(0, 3, 1, 2).float() / 255.0
        images = (augment(images, resolution, data.config.augment, generator) - mean) / std
        yield Batch(images, labels[indices], config.batch_size)


def augment(images_nchw: Tensor, resolution: int, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Rotate, shift, scale and mirror at random: float[N, C, H, H] -> float[N, C, resolution, resolution]."""
    n, channels, height, _ = images_nchw.shape

    def uniform(limit: float) -> Tensor:
        return (torch.rand(n, generator=generator) * 2 - 1) * limit

    angle, zoom = uniform(math.radians(config.rotation_deg)), 1.0 + uniform(config.scale)
    # affine_grid maps output places to input places, in units of half a side
    shift_x, shift_y = uniform(2 * config.shift), uniform(2 * config.shift)
    mirror = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0) if config.flip else torch.ones(n)
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    rows = [torch.stack([cos * mirror, -sin, shift_x], 1), torch.stack([sin * mirror, cos, shift_y], 1)]
    size = max(resolution, height)
    grid = F.affine_grid(torch.stack(rows, 1), [n, channels, size, size], align_corners=False)
    out = F.grid_sample(images_nchw, grid, mode="bilinear", padding_mode=config.padding, align_corners=False)
    if size == resolution:
        return out
    return F.interpolate(out, (resolution, resolution), mode="bilinear", antialias=True, align_corners=False)


# ---- sets in files ------------------------------------------------------------------------------------------------
_Request = tuple[int, int, int]  # image index, seed, resolution


class _AugmentedImages(Dataset[tuple[Tensor | str, int]]):
    """Decodes and augments one image per request. An unreadable image is a value (its error), as worker processes would
    bury an exception in a traceback."""

    def __init__(self, data: ImageData) -> None:
        self.data = data

    def __getitem__(self, request: _Request) -> tuple[Tensor | str, int]:
        index, seed, resolution = request
        config = self.data.config
        try:
            image = self.data.source.image(index)
        except DataError as error:
            return str(error), 0
        transform = _crop_and_flip(resolution, config.augment.min_crop_area, config.augment.flip)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tensor = v2.functional.to_dtype(v2.functional.to_image(transform(image)), torch.float32, scale=True)
        normalised = v2.functional.normalize(tensor, list(config.mean), list(config.std))
        return normalised.as_subclass(Tensor), int(self.data.source.labels[index])


@functools.lru_cache(maxsize=32)
def _crop_and_flip(resolution: int, min_crop_area: float, flip: bool) -> v2.Compose:
    crop = v2.RandomResizedCrop(resolution, scale=(min_crop_area, 1.0), antialias=True)
    return v2.Compose([crop, v2.RandomHorizontalFlip(0.5 if flip else 0.0)])


def _collate(items: list[tuple[Tensor | str, int]]) -> tuple[Tensor, Tensor] | str:
    for image, _ in items:
        if isinstance(image, str):
            return image
    return torch.stack([cast(Tensor, image) for image, _ in items]), torch.tensor([label for _, label in items])


def _file_batches(data: ImageData, config: LoaderConfig, steps: Iterable[tuple[int, int]]) -> Iterator[Batch]:
    def requests() -> Iterator[list[_Request]]:
        for step, resolution in steps:
            indices = step_indices(data, config, step).tolist()
            seeds = _image_seeds(config, step, len(indices))
            yield [(index, seed, resolution) for index, seed in zip(indices, seeds, strict=True)]

    loader: DataLoader[tuple[Tensor | str, int]] = DataLoader(
        _AugmentedImages(data),
        batch_sampler=cast(
            Any, requests()
        ),  # a request carries its resolution, so it may change with no loader restart
        num_workers=data.config.num_workers,
        collate_fn=_collate,
        generator=torch.Generator(),  # the loader seeds its workers from it; the global one is left alone
    )
    for answer in loader:
        if isinstance(answer, str):
            raise DataError(answer)
        images, labels = answer
        yield Batch(images, labels, config.batch_size)


def _image_seeds(config: LoaderConfig, step: int, count: int) -> list[int]:
    seeds: list[int] = np.random.default_rng([config.seed, _AUGMENT_STREAM, step]).integers(2**31, size=count).tolist()
    return seeds
