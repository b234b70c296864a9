"""Four disjoint stratified splits, stored with the checkpoint.

`train` and `gap` are what equation 3 learns from, `holdout` is for the accuracy predictor and the search, and `test` is
touched once, for the report.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.errors import DataError
from chanas.files.documents import Document
from chanas.files.writing import write_json
from chanas.supernet.data.data_config import SplitFractions
from chanas.supernet.data.sources import ImageSource, IntArray

SCHEMA = 1
SPLITS = ("train", "gap", "holdout", "test")
MIN_DRAWN = 50
MOST_DRAWN = {"test": 2_000, "holdout": 10_000}
"""Images that tell accuracies to a point and to half a point."""


@dataclass(frozen=True)
class Splits:
    """Image indices of each split, in a random order that is part of it (its first n are a fair sample)."""

    source: str
    source_digest: str
    num_images: int
    seed: int
    indices: Mapping[str, IntArray]

    @functools.cached_property
    def digest(self) -> str:
        """Hash of the content: which images are in which split."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "source": self.source,
            "source_digest": self.source_digest,
            "num_images": self.num_images,
            "seed": self.seed,
            "indices": {name: self.indices[name].tolist() for name in SPLITS},
        }


def make_splits(source: ImageSource, fractions: SplitFractions, seed: int) -> Splits:
    """Split each class on its own, at least one image to each split; deterministic from `seed`.

    An official test split stays the test split.

    Raises:
        DataError: a class has too few images to be in every split.
    """
    rng = np.random.default_rng(seed)
    parts: dict[str, list[IntArray]] = {name: [] for name in SPLITS}
    is_test = np.zeros(len(source.labels), bool) if source.is_test is None else source.is_test
    shares = {"gap": fractions.gap, "holdout": fractions.holdout}
    if source.is_test is None:
        shares["test"] = fractions.test
    else:
        parts["test"].append(np.flatnonzero(is_test))
    for class_name, images in zip(source.class_names, _by_class(source, is_test), strict=True):
        members = rng.permutation(images)
        if len(members) < len(shares) + 1:
            raise DataError(
                f"class '{class_name}' of {source.name} has {len(members)} images; "
                f"at least {len(shares) + 1} are needed, one for each of train, {', '.join(shares)}"
            )
        spare = len(members) - len(shares) - 1
        start = 0
        for name, share in shares.items():
            count = 1 + min(spare, max(0, round(share * len(members)) - 1))
            spare -= count - 1
            parts[name].append(members[start : start + count])
            start += count
        parts["train"].append(members[start:])
    indices = {name: rng.permutation(np.concatenate(parts[name])) for name in SPLITS}
    return Splits(source.name, source.digest(), len(source.labels), seed, indices)


def draw_splits(source: ImageSource, seed: int) -> Splits:
    """Split images at random, whatever their classes, for weights that were trained elsewhere: a fifth is for test, two
    fifths for holdout (at most as many as are of use), a fiftieth for gap, the others for train. Without images all are
    empty.

    Raises:
        DataError: there are images, but too few.
    """
    num_images = len(source.labels)
    if 0 < num_images < MIN_DRAWN:
        raise DataError(f"data set {source.name} has {num_images} images; at least {MIN_DRAWN} are needed")
    sizes = {"test": num_images // 5, "holdout": 2 * num_images // 5, "gap": num_images // 50}
    ends = np.cumsum([min(size, MOST_DRAWN.get(name, size)) for name, size in sizes.items()])
    parts = np.split(np.random.default_rng(seed).permutation(num_images), ends)
    indices = dict(zip((*sizes, "train"), parts, strict=True))
    return Splits(source.name, source.digest(), num_images, seed, indices)


def _by_class(source: ImageSource, is_test: npt.NDArray[np.bool_]) -> list[IntArray]:
    """Indices of each class's images outside the official test part, in ascending order; one sort for all classes."""
    images = np.flatnonzero(~is_test)
    images = images[np.argsort(source.labels[images], kind="stable")]
    ends = np.searchsorted(source.labels[images], np.arange(1, len(source.class_names)))
    return np.split(images, ends)


def save_splits(path: Path, splits: Splits) -> None:
    write_json(path, splits.to_json())


@dataclass(frozen=True)
class _Indices:
    """The splits' names, which are `SPLITS`."""

    train: list[int]
    gap: list[int]
    holdout: list[int]
    test: list[int]


@dataclass(frozen=True)
class _SplitsFile:
    """Content of the file."""

    schema: int
    source: str
    source_digest: str
    num_images: int
    seed: int
    indices: _Indices


_SPLITS = Document("splits file", _SplitsFile, "restore it, or train again with --overwrite", SCHEMA)


def _from_json(data: dict[str, Any]) -> Splits:
    """Raises ValueError: an index is not that of an image."""
    indices = {name: np.asarray(data["indices"][name], dtype=np.int64) for name in SPLITS}
    for name, images in indices.items():
        if len(images) and not 0 <= images.min() <= images.max() < data["num_images"]:
            raise ValueError(f"split {name} has images that are not among {data['num_images']}")
    return Splits(data["source"], data["source_digest"], data["num_images"], data["seed"], indices)


def load_splits(path: Path, source: ImageSource) -> Splits:
    """The stored splits of `source`.

    Raises:
        CheckpointError: the file is missing or damaged.
        DataError: the data set is not the one that was split.
    """
    splits = _SPLITS.read_with(path, _from_json)
    if splits.source_digest != source.digest():
        then, now = splits.num_images, len(source.labels)
        how = f"{then} images then, {now} now" if then != now else f"{now} images as before, but not the same ones"
        raise DataError(
            f"data set {source.name} changed since it was split ({how}); restore it, or train again with --overwrite"
        )
    return splits
