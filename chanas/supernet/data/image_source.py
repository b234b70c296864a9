"""Labelled images, before anything is split, resized or augmented: in memory, or as encoded files."""

from __future__ import annotations

import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from chanas.core.arrays import BoolArray, IntArray
from chanas.errors import DataError
from chanas.network.pictures import read_picture

MAX_NAMED = 10
_INT64 = 2**63 - 1
UNKNOWN = (0, 0, 0, 0, 0)
"""The stamp of an image that nothing tells from a later one."""


@dataclass(frozen=True)
class ImageSource(ABC):
    """N labelled images.

    labels      int64[N], of `class_names`
    is_test     bool[N]: the official test part, where there is one; `is_holdout` likewise
    left_out    number of files that are not used, by reason
    notes       lines about what was found
    """

    name: str
    class_names: tuple[str, ...]
    labels: IntArray
    is_test: BoolArray | None = field(default=None, kw_only=True)
    is_holdout: BoolArray | None = field(default=None, kw_only=True)
    left_out: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """The RGB image at `index`."""

    @abstractmethod
    def digest(self) -> str:
        """Changes when an image is added, removed or replaced."""

    @property
    def old_digest(self) -> str:
        """The digest by which splits files of schema 1 know the set."""
        return self.digest()

    def image_digests(self) -> IntArray | None:
        """int64[N]: the same for the same content; None where that is not known."""
        return None

    def key(self, index: int) -> str:
        """The name of an image, as its owner knows it."""
        return str(index)


@dataclass(frozen=True)
class ArraySource(ImageSource):
    """Images of one size in memory: `pixels` uint8[N, H, W, 3]."""

    pixels: npt.NDArray[np.uint8]

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def digest(self) -> str:
        return content_digest((self.labels.tobytes(), self.pixels.tobytes()))

    def image_digests(self) -> IntArray:
        return np.array([short_digest(image.tobytes()) for image in self.pixels], dtype=np.int64)


class Reader(Protocol):
    """Bytes of the encoded images, by index."""

    def __call__(self, index: int, /) -> bytes: ...


@dataclass(frozen=True)
class EncodedSource(ImageSource):
    """Images that are decoded when they are asked for.

    keys        what people call them: a path below the folder, a row, a member of a shard
    sizes       int64[N]: their bytes
    read        gives these
    stamps      int64[N, 5]: inode, size, and times of change in ns of the file that holds an image, and its place
                there; where they are the same, the image is
    digests     int64[N]: of the bytes of each image; filled in when all have been read
    """

    keys: Sequence[str]
    sizes: IntArray
    read: Reader
    stamps: IntArray
    digests: IntArray | None = None

    def key(self, index: int) -> str:
        return self.keys[index]

    def what(self, index: int) -> str:
        """The name of an image in messages."""
        return f"image {self.keys[index]} of {self.name}"

    def image(self, index: int) -> Image.Image:
        what = self.what(index)
        try:
            return read_picture(io.BytesIO(self.read(index)), what).image
        except OSError as error:
            raise DataError(f"{what} cannot be read ({error.strerror or error})") from error

    def image_digests(self) -> IntArray | None:
        return self.digests

    def digest(self) -> str:
        assert self.digests is not None  # of a source that was inspected
        keys = "\n".join(self.keys).encode(errors="surrogateescape")
        return content_digest((self.labels.tobytes(), keys, self.digests.astype(">i8").tobytes()))

    @property
    def old_digest(self) -> str:
        """Digest of names and sizes: it does not notice another file of the same name and size."""
        labels = () if isinstance(self.read, Files) else (self.labels.tobytes(),)
        lines = zip(self.keys, self.sizes.tolist(), strict=True)
        return content_digest((*labels, *(f"{key} {size}\n".encode(errors="surrogateescape") for key, size in lines)))

    def taking(self, indices: IntArray) -> EncodedSource:
        """The images at `indices` alone."""

        def part(mask: BoolArray | None) -> BoolArray | None:
            return None if mask is None else mask[indices]

        return replace(
            self,
            labels=self.labels[indices],
            keys=[self.keys[i] for i in indices.tolist()],
            sizes=self.sizes[indices],
            read=_Chosen(self.read, indices),
            stamps=self.stamps[indices],
            is_test=part(self.is_test),
            is_holdout=part(self.is_holdout),
            digests=None if self.digests is None else self.digests[indices],
        )


@dataclass(frozen=True)
class Files:
    """Reads images that are files of their own; `names` are paths below `root`."""

    root: Path
    names: Sequence[str]

    def __call__(self, index: int) -> bytes:
        return (self.root / self.names[index]).read_bytes()


@dataclass(frozen=True)
class _Chosen:
    """Reads some of the images of another reader."""

    read: Reader
    indices: IntArray

    def __call__(self, index: int) -> bytes:
        return self.read(int(self.indices[index]))


def stamps_of(stats: Iterable[os.stat_result], place: int = 0) -> IntArray:
    """int64[N, 5]: what tells the files of `stats` from later ones of the same names, and a place in them."""
    rows = [(s.st_ino & _INT64, s.st_size, s.st_mtime_ns, s.st_ctime_ns, place) for s in stats]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def content_digest(chunks: Iterable[bytes]) -> str:
    """The first 16 hex digits of the SHA-256 of `chunks`, one after another."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:16]


def short_digest(data: bytes) -> int:
    """The first 64 bits of the SHA-256, signed."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big", signed=True)


def number_labels(values: Sequence[Hashable]) -> tuple[tuple[str, ...], IntArray]:
    """Names of the classes and int64[N] labels, of integers or texts: the values that occur, in order."""
    names = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    number = {name: i for i, name in enumerate(names)}
    return tuple(map(str, names)), np.array([number[value] for value in values], dtype=np.int64)


def named(names: Sequence[str]) -> str:
    """The first names, and how many there are beyond these."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
