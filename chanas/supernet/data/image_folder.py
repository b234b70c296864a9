"""Image folders: `root/class/image`, listed in one pass together with the sizes that later tell a replaced file.

ImageNet has 1.3 million files, so nothing here touches a file twice, and listing waits for many folders at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from chanas.errors import DataError
from chanas.network.pictures import read_picture
from chanas.supernet.data.data_config import DataConfig

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
NUM_FULLY_CHECKED = 5_000  # folders up to this size are decoded once before training starts; larger ones on the way
NUM_LIST_THREADS = 8
_TEST_NAMES = ("test", "val")


@dataclass(frozen=True)
class FileSource:
    """N images in files, decoded when they are asked for. `names` are paths below `root`, `sizes` int64[N] bytes."""

    name: str
    class_names: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    root: Path
    names: tuple[str, ...]
    sizes: npt.NDArray[np.int64]
    is_test: npt.NDArray[np.bool_] | None = None

    def image(self, index: int) -> Image.Image:
        path = self.root / self.names[index]
        return read_picture(path, str(path)).image

    def digest(self) -> str:
        return content_digest(name_and_size_lines(self.names, self.sizes))

    def check(self) -> None:
        """Decode every image, if they are not too many.

        Raises:
            DataError: one of them is of no use.
        """
        if len(self.names) <= NUM_FULLY_CHECKED:
            for index in range(len(self.names)):
                self.image(index)


def image_folder(config: DataConfig) -> FileSource:
    """`root/class/image`, or the same under `root/train` with an official test split in `root/test` or `root/val`.

    Class folders may have folders of their own; links to folders inside them are not followed.

    Raises:
        DataError: there is no such folder, its classes are not as described, or an image is of no use.
    """
    root = config.root
    if root is None:
        raise DataError("data set imagefolder needs `root`: a folder with one folder of images per class")
    if not root.is_dir():
        raise DataError(f"image folder {root} does not exist")
    train, test = _parts(root)
    class_names = tuple(class_folders(train))
    if not class_names:
        raise DataError(f"image folder {root} holds no class folders; expected {root}/CLASS/IMAGE")
    if test is not None:
        _check_same_classes(train, test, class_names)
    parts = (train,) if test is None else (train, test)
    names, sizes, counts = list_folders(root, [part / name for part in parts for name in class_names])
    labels = np.repeat(np.tile(np.arange(len(class_names)), len(parts)), counts)
    is_test = None if test is None else np.arange(len(names)) >= sum(counts[: len(class_names)])
    source = FileSource(f"imagefolder {root}", class_names, labels, root, names, sizes, is_test)
    source.check()
    return source


def list_folders(root: Path, folders: Sequence[Path]) -> tuple[tuple[str, ...], npt.NDArray[np.int64], list[int]]:
    """Paths below `root` and int64[N] bytes of all images in `folders`, one after another, and how many each holds.

    Raises:
        DataError: a folder cannot be read, or holds none.
    """
    with ThreadPoolExecutor(NUM_LIST_THREADS) as pool:
        found = list(pool.map(_list_images, folders))
    counts = [len(images) for images in found]
    names: list[str] = []
    sizes = np.empty(sum(counts), np.int64)
    for folder, images in zip(folders, found, strict=True):
        prefix = f"{folder.relative_to(root)}/"
        sizes[len(names) : len(names) + len(images)] = [size for _, size in images]
        names += [prefix + name for name, _ in images]
    return tuple(names), sizes, counts


def name_and_size_lines(names: Iterable[str], sizes: Iterable[int] | npt.NDArray[np.int64]) -> Iterable[bytes]:
    """Yield the lines that a digest is taken of: file names may be of any bytes, as the file system has them."""
    return (f"{name} {size}\n".encode(errors="surrogateescape") for name, size in zip(names, sizes, strict=True))


def content_digest(chunks: Iterable[bytes]) -> str:
    """The first 16 hex digits of the SHA-256 of `chunks`, one after another."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:16]


def _parts(root: Path) -> tuple[Path, Path | None]:
    """The folder of the training classes, and that of the official test classes where there is one."""
    train = root / "train"
    if not class_folders(train):
        return root, None
    tests = [root / name for name in _TEST_NAMES if (root / name).is_dir()]
    if with_classes := [test for test in tests if class_folders(test)]:
        return train, with_classes[0]
    if tests:  # ImageNet's validation images come this way
        raise DataError(
            f"{tests[0]} holds no class folders, unlike {train}; sort its images into {tests[0]}/CLASS/IMAGE, "
            "or move it elsewhere to have test images split from the training ones"
        )
    return (train, None) if class_folders(root) == ["train"] else (root, None)


def _check_same_classes(train: Path, test: Path, class_names: tuple[str, ...]) -> None:
    there = set(class_folders(test))
    if extra := there - set(class_names):
        raise DataError(f"{test} has class folder '{min(extra)}' that {train} lacks")
    if missing := set(class_names) - there:
        raise DataError(
            f"{test} lacks class folder '{min(missing)}' that {train} has; without images of every class its accuracy "
            "would mislead"
        )


def class_folders(path: Path) -> list[str]:
    """Names of the folders in `path`, in order; hidden ones are left out.

    Raises:
        DataError: `path` cannot be read.
    """
    if not path.is_dir():
        return []
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError as error:
        raise _unreadable(error, path) from error


def _list_images(folder: Path) -> list[tuple[str, int]]:
    """(path below `folder`, bytes) of its images, in order of their names, those of sub-folders in their place."""
    found: list[tuple[str, int]] = []
    try:
        _collect(str(folder), "", found)
    except OSError as error:
        raise _unreadable(error, folder) from error
    if not found:
        raise DataError(f"class folder {folder} holds no images; known endings: {', '.join(sorted(IMAGE_SUFFIXES))}")
    return found


def _collect(folder: str, prefix: str, found: list[tuple[str, int]]) -> None:
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            _collect(entry.path, f"{prefix}{entry.name}/", found)
        elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and not entry.is_dir():
            found.append((prefix + entry.name, entry.stat().st_size))


def _unreadable(error: OSError, folder: Path) -> DataError:
    return DataError(f"{error.filename or folder} cannot be read ({error.strerror or error}); repair or remove it")
