"""Sub-networks judged as they would be deployed: inherited weights, own BN statistics, the bundle's preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import Float32Array, IntArray
from chanas.errors import CheckpointError, DataError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.network.preprocess import Preprocess
from chanas.network.static import StaticNetwork, for_inference
from chanas.supernet.data.images import ImageData, load_data
from chanas.supernet.data.places import placed
from chanas.supernet.elastic.calibrate import num_correct, recalibrate
from chanas.supernet.elastic.distributed import World
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training.checkpoint import Checkpoint, checkpoint_path, read_checkpoint, splits_path
from chanas.supernet.training.phases import TrainConfig

MAX_BATCH = 128  # larger ones fall out of a core's cache and are no faster
MAX_CACHE_BYTES = 2 << 30


_Key = tuple[str, int, int | None, tuple[int, int]]  # split, resolution, how many, shard


class EvaluationImages:
    """Preprocessed images in batches, kept in memory by what they are of while they are few."""

    def __init__(self, data: ImageData, device: torch.device) -> None:
        self.data, self.device = data, device
        self._cache: dict[_Key, list[tuple[Tensor, Tensor]]] = {}

    def batches(
        self, split: str, resolution: int, max_images: int | None = None, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """float[n, 3, R, R] in channels-last layout with labels int64[n], n <= MAX_BATCH, sizes as equal as can be.

        Args:
            split: where the images are from.
            resolution: R.
            max_images: only the first ones of the split.
            shard: (i, k): of these, every k-th from the i-th on.
        """
        key = (split, resolution, max_images, shard)
        if key in self._cache:
            yield from self._cache[key]
            return
        indices = self.data.indices(split, max_images)[shard[0] :: shard[1]]
        if not len(indices):
            return
        keep = len(indices) * 12 * resolution**2 <= MAX_CACHE_BYTES
        kept: list[tuple[Tensor, Tensor]] = []
        for part in np.array_split(indices, -(-len(indices) // MAX_BATCH)):
            images = torch.from_numpy(self.data.images(part, resolution)).to(self.device)
            labels = torch.from_numpy(self.data.source.labels[part]).to(self.device)
            kept_batch = (images.contiguous(memory_format=torch.channels_last), labels)
            if keep:
                kept.append(kept_batch)
            yield kept_batch
        if keep:
            self._keep(key, kept)

    def _keep(self, key: _Key, batches: list[tuple[Tensor, Tensor]]) -> None:
        """The batches, at the cost of those that were kept first when the memory for all is used up."""
        self._cache[key] = batches
        sizes = {k: sum(x.nbytes for x, _ in kept) for k, kept in self._cache.items()}
        while sum(sizes.values()) > MAX_CACHE_BYTES and len(sizes) > 1:
            oldest = next(iter(sizes))
            del sizes[oldest], self._cache[oldest]


def calibrated_subnet(
    supernet: Supernet, architecture: Architecture, images: EvaluationImages, recalibration_images: int
) -> StaticNetwork:
    """A static copy with inherited weights and BN statistics from the first `recalibration_images` training images;
    with the supernet's own where there are no images."""
    static = supernet.extract(architecture)
    if len(images.data.indices("train")):
        recalibrate(static, (x for x, _ in images.batches("train", architecture.resolution, recalibration_images)))
    return static


def top1(
    network: Callable[[Tensor], Tensor],
    resolution: int,
    images: EvaluationImages,
    split: str,
    max_images: int | None,
    world: World = World(),  # noqa: B008 (frozen)
) -> float:
    """Share in [0, 1] of images of `split` whose class gets the largest logit, of a network or of any function from
    images float[n, 3, R, R]; each rank takes its part of them."""
    correct = total = 0
    for x_nchw, labels in images.batches(split, resolution, max_images, (world.rank, world.size)):
        correct += num_correct(network, x_nchw, labels)
        total += len(labels)
    correct, total = world.sum(correct, total, device=images.device)
    return correct / total


class SupernetEvaluator:
    """A trained supernet with its data; made by `load`."""

    def __init__(
        self, supernet: Supernet, data: ImageData, config: TrainConfig, digest: str, finished: bool, step: int
    ) -> None:
        self._supernet = supernet
        self.config = config
        """The settings of the training run."""
        self._images = EvaluationImages(data, next(supernet.parameters()).device)
        self.data = data
        self.digest = digest
        """First 16 hex digits of the SHA-256 of the checkpoint."""
        self.finished = finished
        """True if training ran to its end; an unfinished supernet can be used, its accuracies are of that step."""
        self.step = step

    @classmethod
    def load(cls, run: RunDirectory, device: str = "cpu") -> SupernetEvaluator:
        """The supernet of a run directory.

        Raises:
            StageOrderError: there is no checkpoint yet.
            CheckpointError: the checkpoint or its splits are cut short, damaged, or don't fit each other.
            DataError: the data set is not there, or changed since training.
        """
        checkpoint = read_checkpoint(run)
        header = checkpoint.header
        config = TrainConfig.from_json(header["config"], "checkpoint config")
        config = config.model_copy(update={"data": placed(config.data, splits_path(run))})
        data = load_data(config.data, config.seed, splits_path(run), progress=True)
        if data.splits.digest != header["splits_digest"]:
            raise CheckpointError(
                f"{splits_path(run)} is not the one of the checkpoint beside it; restore it, "
                "or train again with --overwrite"
            )
        supernet = read_supernet(checkpoint).to(device)
        digest = file_digest(checkpoint_path(run))
        return cls(supernet, data, config, digest, bool(header["done"]), int(header["step"]))

    @property
    def space(self) -> SearchSpace:
        return self._supernet.space

    @property
    def only(self) -> Architecture | None:
        """The architecture, where it was trained alone."""
        return self._supernet.only

    @property
    def num_classes(self) -> int:
        return self._supernet.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.data.class_names

    def preprocess(self, resolution: int) -> Preprocess:
        """Convert an RGB image to the network's input, as every image here was treated."""
        return self.data.preprocess(resolution)

    def extract(self, architecture: Architecture) -> StaticNetwork:
        """The sub-network in eval mode: weights inherited, BN statistics recalibrated on training images.

        Raises:
            ArchitectureError: it is not in the space.
        """
        return calibrated_subnet(self._supernet, architecture, self._images, self.config.recalibration_images)

    def top1(self, architecture: Architecture, split: str = "holdout", max_images: int | None = None) -> float:
        """Accuracy in [0, 1] of the extracted sub-network on a split, or on its first `max_images` images.

        Raises:
            ArchitectureError: it is not in the space.
            DataError: there is no such split, or no image in it.
        """
        if not len(self.data.indices(split)):
            raise DataError(
                f"there are no {split} images to measure accuracies with; import the supernet with --images FOLDER, or "
                "search with --accuracy-table FILE"
            )
        return top1(for_inference(self.extract(architecture)), architecture.resolution, self._images, split, max_images)

    @property
    def recalibrates(self) -> bool:
        """True if there are images to take BN statistics from."""
        return len(self.data.indices("train")) > 0

    def images(self, split: str, resolution: int, max_images: int | None = None) -> tuple[Float32Array, IntArray]:
        """float32[N, 3, R, R] preprocessed images of a split, or of its first `max_images`, and their labels int64[N].

        Raises:
            DataError: there is no such split.
        """
        indices = self.data.indices(split, max_images)
        images = np.empty((len(indices), self.space.in_channels, resolution, resolution), np.float32)
        filled = 0
        for x_nchw, _ in self._images.batches(split, resolution, max_images):
            images[filled : filled + len(x_nchw)] = x_nchw.cpu().numpy()
            filled += len(x_nchw)
        return images, self.data.source.labels[indices]


def read_supernet(checkpoint: Checkpoint) -> Supernet:
    """The frozen supernet (or network of one architecture) of a checkpoint: the weights that are handed on.

    Raises:
        CheckpointError: names or shapes are not those of the checkpoint's space.
    """
    header = checkpoint.header
    key = header.get("architecture")
    only = None if key is None else Architecture.from_plain_key(key)
    supernet = Supernet(SearchSpace.from_json(header["space"]), header["num_classes"], only)
    load_weights(supernet, checkpoint.part("ema") or checkpoint.part("supernet"))
    return supernet.eval().requires_grad_(False)


def load_weights(supernet: Supernet, tensors: dict[str, Tensor]) -> None:
    """Copy a checkpoint's weights into a supernet.

    Raises:
        CheckpointError: names or shapes are not those of the supernet's space.
    """
    try:
        supernet.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(
            f"checkpoint does not fit space '{supernet.space.name}' ({str(error).splitlines()[-1].strip()}); "
            "train again with --overwrite"
        ) from error
