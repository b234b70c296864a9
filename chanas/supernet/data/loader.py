"""Training batches: a pure function of (seed, step), so that a resumed run sees what an uninterrupted one would have.

The order of images is an endless row of permutations, one per epoch, drawn from (seed, epoch); a step takes the next
`batch_size` of it. Train and gap images are augmented alike: otherwise equation 3's difference would measure
augmentation.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from chanas import interrupts
from chanas.core.arrays import Array, IntArray
from chanas.errors import ChanasError, DataError, one_line
from chanas.supernet.data.data_config import AugmentConfig, LoaderConfig
from chanas.supernet.data.image_source import ArraySource
from chanas.supernet.data.images import NUM_DECODE_THREADS, ImageData

if TYPE_CHECKING:
    from torchvision.transforms import v2  # seconds to import, so only where files are augmented

_TRAIN_STREAM, _GAP_STREAM, _AUGMENT_STREAM = 11, 12, 13  # keep the random streams of one seed apart
_CPU = torch.device("cpu")
# Room for what workers have fetched ahead, of the largest batches that are trained on; Docker gives 64 MB.
_SHARED_BYTES = 1 << 30
_NUM_LOCKS = 5  # of a queue and its events


@dataclass(frozen=True)
class Batch:
    """Images of one step, or of a rank's part of it: N train images first, then M gap images.

    float[N + M, 3, R, R], labels int64[N + M]; `num_train` is N.
    """

    images_nchw: Tensor
    labels: Tensor
    num_train: int


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


def shard_rows(config: LoaderConfig, shard: tuple[int, int]) -> IntArray:
    """Positions int64[(batch_size + gap_batch_size) / world] within a step that fall to `shard` = (rank, world)."""
    rank, world = shard
    assert 0 <= rank < world
    assert config.batch_size % world == config.gap_batch_size % world == 0
    n, m = config.batch_size // world, config.gap_batch_size // world
    return np.concatenate([np.arange(n) + rank * n, np.arange(m) + config.batch_size + rank * m])


def training_batches(
    data: ImageData,
    config: LoaderConfig,
    steps: Iterable[tuple[int, int]],
    *,
    device: torch.device = _CPU,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
    """The batches of `steps`, each given as (step, resolution); the resolution may change at every step.

    Args:
        data: the images.
        config: how many images the whole step takes.
        steps: which steps.
        device: where the batches shall lie.
        shard: (rank, world size). Each rank gets its part of a step's train and of its gap images, in order, so that
            the parts of all ranks, one after another, are the step; both sizes must be divisible by the world size.

    Raises:
        DataError: an image cannot be decoded; the message names it.
        ChanasError: a worker process died.
    """
    rows = shard_rows(config, shard)
    if isinstance(data.source, ArraySource):
        return _array_batches(data, data.source, config, steps, device, rows)
    return _file_batches(data, config, steps, device, rows)


# ---- sets in memory -----------------------------------------------------------------------------------------------
def in_memory(data: ImageData) -> ImageData:
    """The same images, decoded once.

    Raises:
        DataError: one cannot be decoded, or is of another size than the first.
    """
    source = data.source
    if isinstance(source, ArraySource) or not len(source.labels):
        return data
    size = source.image(0).size
    pixels = np.empty((len(source.labels), size[1], size[0], 3), np.uint8)

    def read(index: int) -> None:
        image = source.image(index)
        if image.size != size:
            raise DataError(
                f"data.in_memory needs images of one size; image 0 of {source.name} has {size[0]} × {size[1]} pixels, "
                f"image {index} {image.width} × {image.height}; set data.in_memory to false"
            )
        pixels[index] = np.asarray(image)

    with ThreadPoolExecutor(NUM_DECODE_THREADS) as pool:
        for _ in pool.map(read, range(len(pixels))):
            pass
    is_test, is_holdout = source.is_test, source.is_holdout
    held = ArraySource(source.name, source.class_names, source.labels, pixels, is_test=is_test, is_holdout=is_holdout)
    return dataclasses.replace(data, source=held)


def _array_batches(
    data: ImageData,
    source: ArraySource,
    config: LoaderConfig,
    steps: Iterable[tuple[int, int]],
    device: torch.device,
    rows: IntArray,
) -> Iterator[Batch]:
    """Everything random is drawn on the CPU for the whole step, so that neither device nor world size changes it."""
    pixels, labels = (torch.from_numpy(array.copy()).to(device) for array in (source.pixels, source.labels))
    mean, std = _normalisation(data, device)
    num_train, mine = int((rows < config.batch_size).sum()), torch.from_numpy(rows)
    for step, resolution in steps:
        chosen = step_indices(data, config, step)
        generator = torch.Generator().manual_seed(_image_seeds(config, step, 1)[0])
        affine = _move(random_affine(len(chosen), data.config.augment, generator)[mine], device)
        indices = _move(torch.from_numpy(chosen[rows]), device)
        images = pixels[indices].permute(0, 3, 1, 2).float() / 255.0
        images = (warp(images, affine, resolution, data.config.augment.padding) - mean) / std
        yield Batch(images, labels[indices], num_train)


def random_affine(n: int, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """float32[n, 2, 3]: from places in an augmented image to places in its original, in units of half a side."""

    def uniform(limit: float) -> Tensor:
        return (torch.rand(n, generator=generator) * 2 - 1) * limit

    angle, zoom = uniform(math.radians(config.rotation_deg)), 1.0 + uniform(config.scale)
    shift_x, shift_y = uniform(2 * config.shift), uniform(2 * config.shift)
    mirror = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0) if config.flip else torch.ones(n)
    cos, sin = angle.cos() / zoom, angle.sin() / zoom
    rows = [torch.stack([cos * mirror, -sin, shift_x], 1), torch.stack([sin * mirror, cos, shift_y], 1)]
    return torch.stack(rows, 1)


def warp(images_nchw: Tensor, affine: Tensor, resolution: int, padding: str) -> Tensor:
    """Rotate, shift, scale and mirror as `affine` says: float[N, C, H, H] -> float[N, C, resolution, resolution].

    `affine` comes from `random_affine`; `padding` is what stands beyond the edges: zeros, border or reflection.
    """
    n, channels, height, _ = images_nchw.shape
    size = max(resolution, height)
    grid = F.affine_grid(affine, [n, channels, size, size], align_corners=False)
    out = F.grid_sample(images_nchw, grid, mode="bilinear", padding_mode=padding, align_corners=False)
    if size == resolution:
        return out
    return F.interpolate(out, (resolution, resolution), mode="bilinear", antialias=True, align_corners=False)


# ---- sets in files ------------------------------------------------------------------------------------------------
_Request = tuple[int, int, int]  # image index, seed, resolution
_Answer = tuple[Tensor | Array, ...] | str  # images and labels, or what is wrong with one of them


class _AugmentedImages(Dataset[tuple[Tensor | str, int]]):
    """Decodes, crops and mirrors one image per request: uint8[3, R, R], a quarter of what floats would cost on the way
    from a worker process to the device. An unreadable image is a value (its error), as worker processes would bury an
    exception in a traceback."""

    def __init__(self, data: ImageData) -> None:
        self.data = data

    def __getitem__(self, request: _Request) -> tuple[Tensor | str, int]:
        index, seed, resolution = request
        augment = self.data.config.augment
        try:
            image = self.data.source.image(index)
        except DataError as error:
            return str(error), 0
        transform = _crop_and_flip(resolution, augment.min_crop_area, augment.flip)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            pixels: Tensor = transform(image)
        return pixels, int(self.data.source.labels[index])


@functools.lru_cache(maxsize=32)
def _crop_and_flip(resolution: int, min_crop_area: float, flip: bool) -> v2.Compose:
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(resolution, scale=(min_crop_area, 1.0), antialias=True)
    return v2.Compose([crop, v2.RandomHorizontalFlip(0.5 if flip else 0.0), v2.PILToTensor()])


def _collate(items: list[tuple[Tensor | str, int]]) -> _Answer:
    for image, _ in items:
        if isinstance(image, str):
            return image
    return torch.stack([cast(Tensor, image) for image, _ in items]), torch.tensor([label for _, label in items])


def _collate_arrays(items: list[tuple[Tensor | str, int]]) -> _Answer:
    """The same for a pipe: the loader puts tensors into shared memory, arrays it copies."""
    answer = _collate(items)
    return answer if isinstance(answer, str) else tuple(np.asarray(part) for part in answer)


def _file_batches(
    data: ImageData,
    config: LoaderConfig,
    steps: Iterable[tuple[int, int]],
    device: torch.device,
    rows: IntArray,
) -> Iterator[Batch]:
    def requests() -> Iterator[list[_Request]]:
        for step, resolution in steps:
            indices = step_indices(data, config, step)
            seeds = _image_seeds(config, step, len(indices))
            yield [(int(indices[row]), seeds[row], resolution) for row in rows]

    def answers(num_workers: int) -> Iterator[_Answer]:
        # One pass over `steps` to the end of the run: workers live and fetch ahead across epochs.
        loader: DataLoader[tuple[Tensor | str, int]] = DataLoader(
            _AugmentedImages(data),
            # a request carries its resolution, so it may change with no loader restart
            batch_sampler=cast(Any, requests()),
            num_workers=num_workers,
            collate_fn=_collate if _has_shared_memory() else _collate_arrays,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # the loader seeds its workers from it; the global one is left alone
            worker_init_fn=_begin_worker,
        )
        return iter(loader)

    mean, std = _normalisation(data, device)
    num_train = int((rows < config.batch_size).sum())
    opened, workers = _opened(answers, data.config.num_workers)
    try:
        for answer in _alive(opened):
            if isinstance(answer, str):
                raise DataError(answer)
            pixels, labels = (torch.as_tensor(part).to(device, non_blocking=True) for part in answer)
            yield Batch(pixels.float().mul_(1.0 / 255.0).sub_(mean).div_(std), labels, num_train)
    finally:
        for worker in workers:  # the loader itself waits for one that hangs
            worker.terminate()


def _has_shared_memory() -> bool:
    """True where there is room for the batches that workers hand over; else they go through pipes."""
    try:
        return shutil.disk_usage("/dev/shm").free >= _SHARED_BYTES
    except OSError:
        return False


def _begin_worker(_number: int) -> None:
    """End with the process that trains, even one that was killed, however long a file takes to be read."""
    interrupts.die_with_parent()


def _opened(
    answers: Callable[[int], Iterator[_Answer]], num_workers: int
) -> tuple[Iterator[_Answer], Sequence[multiprocessing.process.BaseProcess]]:
    """The loader's answers, and its processes; none where the system has no room for their locks."""
    before = multiprocessing.active_children()
    try:
        if num_workers:  # locks lie in shared memory, too: more than the loader needs, and gone before it is opened
            locks = [multiprocessing.Lock() for _ in range(_NUM_LOCKS * (num_workers + 2))]
            del locks
    except (OSError, ImportError) as error:
        reason = f"no shared memory for {num_workers} processes ({one_line(error)})"
        print(f"chanas: {reason}: this one decodes the images", file=sys.stderr)
        num_workers = 0
    opened = answers(num_workers)
    return opened, [process for process in multiprocessing.active_children() if process not in before]


def _alive(answers: Iterator[_Answer]) -> Iterator[_Answer]:
    """`answers`, with one line about a worker process that died instead of the loader's several."""
    while True:
        try:
            answer = next(answers)
        except StopIteration:
            return
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise ChanasError(
                f"a process that decodes images ended ({str(error).splitlines()[0]}); memory or shared memory may have "
                "run out: set fewer num_workers, or a smaller batch"
            ) from error
        yield answer


# ---- both ---------------------------------------------------------------------------------------------------------
def _normalisation(data: ImageData, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the channels, float32[1, 3, 1, 1] each."""
    mean, std = (torch.tensor(v).view(1, 3, 1, 1).to(device) for v in (data.config.mean, data.config.std))
    return mean, std


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, without waiting for what a GPU is still at."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _image_seeds(config: LoaderConfig, step: int, count: int) -> list[int]:
    seeds: list[int] = np.random.default_rng([config.seed, _AUGMENT_STREAM, step]).integers(2**31, size=count).tolist()
    return seeds
