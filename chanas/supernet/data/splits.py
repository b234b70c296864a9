"""Four disjoint stratified splits, stored with the checkpoint.

`train` and `gap` are what equation 3 learns from, `holdout` is for the accuracy predictor and the search, and `test` is
touched once, for the report.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arrays import BoolArray, IntArray
from chanas.errors import DataError
from chanas.files.documents import Document
from chanas.files.writing import write_json
from chanas.supernet.data.data_config import SplitFractions
from chanas.supernet.data.image_source import ImageSource, named
from chanas.supernet.data.inspection.copies import leaked, official_part
from chanas.supernet.data.places import place_file

SCHEMA, SCHEMA_OF_SIZES = 2, 1
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
    images: str | None = None
    """8 hex digits of the content of each image, to say which ones changed; None where that is not known. Files of
    schema 1 know names and sizes alone."""
    schema: int = SCHEMA

    @functools.cached_property
    def digest(self) -> str:
        """Hash of the content: which images are in which split."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "source": self.source,
            "source_digest": self.source_digest,
            "num_images": self.num_images,
            "seed": self.seed,
            "indices": {name: self.indices[name].tolist() for name in SPLITS},
            **({} if self.schema == SCHEMA_OF_SIZES else {"images": self.images}),
        }


def make_splits(source: ImageSource, fractions: SplitFractions, seed: int) -> Splits:
    """Split each class on its own, at least one image to each split; deterministic from `seed`.

    Official test and holdout parts stay these splits. Exact copies of an image go where the first of them goes; an
    image of several parts is in the last of train, holdout and test alone, as long as enough are left.

    Raises:
        DataError: classes have too few images to be in every split.
    """
    rng = np.random.default_rng(seed)
    official, left_out = {"test": source.is_test, "holdout": source.is_holdout}, leaked(source)
    parts = {name: [np.flatnonzero(mask & ~left_out)] for name, mask in official.items() if mask is not None}
    drawn = {"gap": fractions.gap, "holdout": fractions.holdout, "test": fractions.test}
    shares = {name: share for name, share in drawn.items() if name not in parts}
    copies = _Copies(source, ~official_part(source) & ~left_out)
    by_class = _by_class(source, copies.first)
    needed = len(shares) + 1
    if few := [f"{name} {len(i)}" for name, i in zip(source.class_names, by_class, strict=True) if len(i) < needed]:
        raise DataError(
            f"{len(few)} of {len(by_class)} classes of {source.name} have too few images: {named(few)}; at least "
            f"{needed} different ones are needed, one for each of train, {', '.join(shares)}"
        )
    for images in by_class:
        members = rng.permutation(images)
        spare = len(members) - needed
        start = 0
        for name, share in shares.items():
            count = 1 + min(spare, max(0, round(share * len(members)) - 1))
            spare -= count - 1
            parts.setdefault(name, []).append(copies.with_copies(members[start : start + count]))
            start += count
        parts.setdefault("train", []).append(copies.with_copies(members[start:]))
    indices = {name: rng.permutation(np.concatenate(parts[name])) for name in SPLITS}
    return _made(source, seed, indices)


class _Copies:
    """Images of a source that are split, one for each content (`first`, int64[N], in order): its copies follow it."""

    def __init__(self, source: ImageSource, is_split: BoolArray) -> None:
        free = np.flatnonzero(is_split)
        self.first, self._groups = free, dict[int, IntArray]()
        digests = source.image_digests()
        if digests is None:
            return
        _, where, groups, sizes = np.unique(digests[free], return_index=True, return_inverse=True, return_counts=True)
        self.first = free[np.sort(where)]
        self._groups = {int(free[where[g]]): free[groups == g] for g in np.flatnonzero(sizes > 1).tolist()}

    def with_copies(self, images: IntArray) -> IntArray:
        """The same images, and the copies of each after it."""
        if not self._groups or not len(images):
            return images
        return np.concatenate([self._groups.get(i, np.array([i])) for i in images.tolist()]).astype(np.int64)


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
    copies = _Copies(source, np.ones(num_images, bool))
    members = np.random.default_rng(seed).permutation(copies.first)
    sizes = {"test": len(members) // 5, "holdout": 2 * len(members) // 5, "gap": len(members) // 50}
    ends = np.cumsum([min(size, MOST_DRAWN.get(name, size)) for name, size in sizes.items()])
    parts = map(copies.with_copies, np.split(members, ends))
    indices = dict(zip((*sizes, "train"), parts, strict=True))
    return _made(source, seed, indices)


def _made(source: ImageSource, seed: int, indices: Mapping[str, IntArray]) -> Splits:
    digests = source.image_digests()
    images = None if digests is None else (digests & 0xFFFFFFFF).astype(">u4").tobytes().hex()
    return Splits(source.name, source.digest(), len(source.labels), seed, indices, images)


def _by_class(source: ImageSource, images: IntArray) -> list[IntArray]:
    """The `images` of each class, in ascending order; one sort for all classes."""
    images = images[np.argsort(source.labels[images], kind="stable")]
    ends = np.searchsorted(source.labels[images], np.arange(1, len(source.class_names)))
    return np.split(images, ends)


def save_splits(path: Path, splits: Splits) -> None:
    """Write splits, of images that lie where their config says."""
    write_json(path, splits.to_json())
    place_file(path).unlink(missing_ok=True)


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
    images: str | None = None


_SPLITS = Document(
    "splits file", _SplitsFile, "restore it, or train again with --overwrite", SCHEMA, older=(SCHEMA_OF_SIZES,)
)


def _from_json(data: dict[str, Any]) -> Splits:
    """Raises ValueError: an index is not that of an image."""
    indices = {name: np.asarray(data["indices"][name], dtype=np.int64) for name in SPLITS}
    for name, images in indices.items():
        if len(images) and not 0 <= images.min() <= images.max() < data["num_images"]:
            raise ValueError(f"split {name} has images that are not among {data['num_images']}")
    source, digest, num_images, seed = (data[name] for name in ("source", "source_digest", "num_images", "seed"))
    return Splits(source, digest, num_images, seed, indices, data.get("images"), data["schema"])


def load_splits(path: Path, source: ImageSource, bad: Sequence[str] = ()) -> Splits:
    """The stored splits of `source`; `bad` are images that were left out of it, since they cannot be used.

    Raises:
        CheckpointError: the file is missing or damaged.
        DataError: the data set is not the one that was split.
    """
    splits = _SPLITS.read_with(path, _from_json)
    digest = source.old_digest if splits.schema == SCHEMA_OF_SIZES else source.digest()
    if splits.source_digest != digest:
        raise DataError(
            f"data set {source.name} changed since it was split ({_difference(splits, source, bad)}); restore it, or "
            "train again with --overwrite"
        )
    return splits


def _difference(splits: Splits, source: ImageSource, bad: Sequence[str]) -> str:
    """Differences between a data set as it was split and as it is."""
    then, now = splits.num_images, len(source.labels)
    damaged = f"; cannot be used now: {named(bad)}" if bad and then > now else ""
    digests = source.image_digests()
    if splits.images is None or digests is None:
        return f"{then} images then, {now} now" if then != now else f"{now} images as before, but not the same ones"
    before = np.frombuffer(bytes.fromhex(splits.images), ">u4").astype(np.int64)
    new = np.flatnonzero(~np.isin(digests & 0xFFFFFFFF, before))
    num_gone = int((~np.isin(before, digests & 0xFFFFFFFF)).sum())
    if not len(new) and not num_gone:
        return f"{then} images then, {now} now: the same ones under other names or in other classes"
    which = f": {named([source.key(i) for i in new.tolist()])}" if len(new) else ""
    return f"{then} images then, {now} now; {num_gone} are gone, {len(new)} are new{which}{damaged}"
