"""An image data set ready for use: a source with its splits, evaluated through the code that deployed bundles use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core.arrays import Float32Array, IntArray
from chanas.errors import DataError, unknown_name
from chanas.network.preprocess import Preprocess
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.image_source import ImageSource
from chanas.supernet.data.inspection.summary import Inspection
from chanas.supernet.data.places import moved, remember_place
from chanas.supernet.data.sources import IMAGENET, TORCHVISION_SETS, inspect_source
from chanas.supernet.data.splits import SPLITS, Splits, draw_splits, load_splits, make_splits

NUM_DECODE_THREADS = 4


@dataclass(frozen=True)
class ImageData:
    """Images, their splits, and how they become a network's input."""

    source: ImageSource
    splits: Splits
    config: DataConfig
    inspection: Inspection

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.source.class_names

    @property
    def num_classes(self) -> int:
        return len(self.source.class_names)

    def preprocess(self, resolution: int) -> Preprocess:
        """Convert an RGB image to float32[3, resolution, resolution], the same in evaluation and deployment."""
        return Preprocess(resolution, self.config.mean, self.config.std, self.config.crop_ratio)

    def indices(self, split: str, max_images: int | None = None) -> IntArray:
        """Image indices int64[N] of a split, or of its first `max_images`.

        Raises:
            DataError: there is no such split.
        """
        if split not in SPLITS:
            raise DataError(unknown_name("split", split, SPLITS))
        return self.splits.indices[split][:max_images]

    def images(self, indices: Sequence[int] | IntArray, resolution: int) -> Float32Array:
        """float32[N, 3, R, R]: the images at `indices`, preprocessed for evaluation.

        Raises:
            DataError: an image cannot be decoded; the message names it.
        """
        preprocess = self.preprocess(resolution)
        out = np.empty((len(indices), 3, resolution, resolution), dtype=np.float32)

        def fill(row: int) -> None:
            out[row] = preprocess(self.source.image(int(indices[row])))

        with ThreadPoolExecutor(NUM_DECODE_THREADS) as pool:
            list(pool.map(fill, range(len(indices))))
        return out


def load_data(config: DataConfig, seed: int, stored_splits: Path | None = None, *, progress: bool = False) -> ImageData:
    """The data set of `config`, split by `seed`, or as `stored_splits` says. Images that were not read before are read
    once; where that takes long, a bar is shown with `progress`.

    Raises:
        DataError: the images are not there, of no use, or not those of the stored splits.
        CheckpointError: the stored splits are damaged.
    """
    if stored_splits is not None:
        return _stored_data(config, stored_splits, progress)
    source, inspection = inspect_source(config, progress)
    if config.dataset == IMAGENET:
        splits = draw_splits(source, seed)
    else:
        splits = make_splits(source, config.splits, seed)
    return ImageData(source, splits, config, inspection)


def move_images(config: DataConfig, stored_splits: Path, root: Path) -> None:
    """Take the images at `root` for those that were split, from now on.

    Raises:
        DataError: they are other ones, or the set does not lie anywhere.
        CheckpointError: the stored splits are damaged.
    """
    if config.root is None and config.dataset not in TORCHVISION_SETS:
        raise DataError(f"the images of {stored_splits.parent.parent} are the set {config.dataset}, not of {root}")
    there = moved(config, root)
    _stored_data(there, stored_splits, progress=True)
    remember_place(stored_splits, there, config)


def _stored_data(config: DataConfig, stored_splits: Path, progress: bool) -> ImageData:
    try:
        source, inspection = inspect_source(config.model_copy(update={"skip_bad": True}), progress)
    except DataError as error:
        if config.root is None or config.root.exists():
            raise
        run = stored_splits.parent.parent
        raise DataError(f"{error}; if the images were moved: `chanas eval {run} --images THEIR_NEW_PLACE`") from None
    return ImageData(source, load_splits(stored_splits, source, tuple(inspection.bad)), config, inspection)


def export_images(dataset: ImageData, split: str, folder: Path, limit: int | None = None) -> list[Path]:
    """Write images of a split as `folder/CLASS-INDEX.png`, not resized; at most `limit`, classes taking turns.

    Returns the paths in the order written.

    Raises:
        DataError: there is no such split, or an image cannot be decoded.
    """
    indices = dataset.indices(split)
    labels = dataset.source.labels[indices]
    turn = np.empty(len(indices), dtype=np.int64)
    for label in np.unique(labels):
        members = labels == label
        turn[members] = np.arange(members.sum())
    chosen = indices[np.lexsort((labels, turn))][:limit]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in chosen.tolist():
        class_name = re.sub(r"[^\w.-]+", "_", dataset.class_names[dataset.source.labels[index]])
        path = folder / f"{class_name}-{index:05d}.png"
        dataset.source.image(index).save(path)
        paths.append(path)
    return paths
