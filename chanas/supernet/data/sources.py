"""Image sources by name: where images and labels come from, before anything is split, resized or augmented.

`SOURCES` maps a name to a function from a `DataConfig` to an `ImageSource`. Nothing is ever downloaded.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from chanas.core.arrays import IntArray
from chanas.errors import DataError, unknown_name
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.hugging_face import hugging_face
from chanas.supernet.data.image_folder import check_folder, files_of, image_folder
from chanas.supernet.data.image_source import ArraySource, EncodedSource, ImageSource
from chanas.supernet.data.imagenet import imagenet
from chanas.supernet.data.inspection.inspect import inspect_encoded, inspect_sample
from chanas.supernet.data.inspection.summary import Inspection
from chanas.supernet.data.places import kind_of
from chanas.supernet.data.shards import shards

DIGITS_SIZE = 32
IMAGENET = "imagenet"


@dataclass(frozen=True)
class TorchvisionSet:
    """A torchvision class and the arguments of its parts; `test` is its official test part, if it has one."""

    class_name: str
    train: tuple[dict[str, Any], ...]
    test: dict[str, Any] | None
    in_memory: bool
    """Small images of one size, which are kept decoded."""


_BY_FLAG = (({"train": True},), {"train": False})
_BY_NAME = (({"split": "train"},), {"split": "test"})
_WITH_VAL = (({"split": "train"}, {"split": "val"}), {"split": "test"})
TORCHVISION_SETS: dict[str, TorchvisionSet] = {
    "cifar10": TorchvisionSet("CIFAR10", *_BY_FLAG, in_memory=True),
    "cifar100": TorchvisionSet("CIFAR100", *_BY_FLAG, in_memory=True),
    "mnist": TorchvisionSet("MNIST", *_BY_FLAG, in_memory=True),
    "fashion-mnist": TorchvisionSet("FashionMNIST", *_BY_FLAG, in_memory=True),
    "svhn": TorchvisionSet("SVHN", *_BY_NAME, in_memory=True),
    "stl10": TorchvisionSet("STL10", *_BY_NAME, in_memory=True),
    "flowers102": TorchvisionSet("Flowers102", *_WITH_VAL, in_memory=False),
    "dtd": TorchvisionSet("DTD", *_WITH_VAL, in_memory=False),
    "food101": TorchvisionSet("Food101", *_BY_NAME, in_memory=False),
    "gtsrb": TorchvisionSet("GTSRB", *_BY_NAME, in_memory=False),
    "oxford-iiit-pet": TorchvisionSet("OxfordIIITPet", ({"split": "trainval"},), {"split": "test"}, in_memory=False),
    "eurosat": TorchvisionSet("EuroSAT", ({},), None, in_memory=False),
}


def named_images(images: Path | str) -> dict[str, str]:
    """`dataset` and `root` of a config: of a path, whatever kind of data set lies there, or of a set by its name.

    Raises:
        DataError: there is no such folder.
    """
    if isinstance(images, str) and images in SOURCES:
        return {"dataset": images}
    kind = kind_of(Path(images))
    if kind == "imagefolder":
        check_folder(Path(images))
    return {"dataset": kind, "root": str(images)}


def load_source(config: DataConfig, progress: bool = False) -> ImageSource:
    """The images that `config` names, each of which was read."""
    return inspect_source(config, progress)[0]


def inspect_source(config: DataConfig, progress: bool = False) -> tuple[ImageSource, Inspection]:
    """The images that `config` names, each of which was read, and what was found. What was read once is remembered for
    the next time; where that takes long, a bar is shown with `progress`.

    Raises:
        DataError: the name is unknown (the message lists the known ones), or the images are not there or of no use.
    """
    if config.dataset not in SOURCES:
        raise DataError(unknown_name("data set", config.dataset, SOURCES))
    source = SOURCES[config.dataset](config)
    if isinstance(source, EncodedSource):
        source, inspection = inspect_encoded(source, config.skip_bad, progress)
    else:
        inspection = inspect_sample(source)
    if config.dataset != IMAGENET:  # whose classes are given, with or without images
        check_classes(source)
    return source, inspection


def check_classes(source: ImageSource) -> None:
    """Check that there is something to classify, and an official test part that covers it.

    Raises:
        DataError: there are fewer than two classes, fewer images than classes, or a class whose images are all in one
            of the two official parts.
    """
    names, num_images = source.class_names, len(source.labels)
    if len(names) < 2:
        raise DataError(
            f"data set {source.name} has {len(names)} class ({', '.join(names)}); classification needs at least 2"
        )
    if num_images < len(names):
        raise DataError(
            f"data set {source.name} has {num_images} images for {len(names)} classes; every class needs several"
        )
    if source.is_test is None:
        return
    in_test = np.bincount(source.labels[source.is_test], minlength=len(names)) > 0
    in_train = np.bincount(source.labels[~source.is_test], minlength=len(names)) > 0
    if (lonely := np.flatnonzero(in_test != in_train)).size:
        label = int(lonely[0])
        there, lacking = ("training", "official test") if in_train[label] else ("official test", "training")
        raise DataError(
            f"class '{names[label]}' of data set {source.name} has images in its {there} part, but none in its "
            f"{lacking} part; complete the set, or take the class out of both"
        )


def _digits(config: DataConfig) -> ImageSource:
    """scikit-learn's 1,797 scans of handwritten digits, 8×8 of 17 grey levels, enlarged to 32×32 RGB."""
    pixels, labels = _digit_pixels()
    return ArraySource("digits", tuple(str(d) for d in range(10)), labels, pixels)


@functools.cache
def _digit_pixels() -> tuple[npt.NDArray[np.uint8], IntArray]:
    from sklearn.datasets import load_digits

    scans, labels = load_digits(return_X_y=True)
    grey = np.rint(scans.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    size = (DIGITS_SIZE, DIGITS_SIZE)
    images = (Image.fromarray(scan).resize(size, Image.Resampling.BILINEAR).convert("RGB") for scan in grey)
    pixels, labels = np.stack([np.asarray(image) for image in images]), labels.astype(np.int64)
    pixels.flags.writeable = labels.flags.writeable = False
    return pixels, labels


def _torchvision(config: DataConfig) -> ImageSource:
    """A torchvision classification set that lies under `root`."""
    import torchvision.datasets

    known = TORCHVISION_SETS[config.dataset]
    root = config.root or Path("data")
    cls = getattr(torchvision.datasets, known.class_name)
    arguments = known.train if known.test is None else (*known.train, known.test)
    try:
        parts = [cls(str(root), download=False, **part) for part in arguments]
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"data set {config.dataset} is not in {root.resolve()} ({_reason(error)}); put it there, or name its "
            "folder with --root, in a config as `root` (chanas downloads nothing)"
        ) from error
    labels = [_labels(part) for part in parts]
    joined = np.concatenate(labels)
    class_names = tuple(str(n) for n in getattr(parts[0], "classes", range(int(joined.max(initial=-1)) + 1)))
    flags = [part is known.test for part in arguments]
    is_test = None if known.test is None else np.repeat(flags, [len(part) for part in labels])
    if known.in_memory:
        pixels = np.stack([np.asarray(part[i][0].convert("RGB")) for part in parts for i in range(len(part))])
        return ArraySource(config.dataset, class_names, joined, pixels, is_test=is_test)
    try:
        files = [(os.path.relpath(path, root), os.stat(path)) for part in parts for path in map(_path, _files(part))]
    except OSError as error:
        raise DataError(
            f"image {error.filename} of {config.dataset} cannot be read ({error.strerror}); fetch the set again"
        ) from error
    return EncodedSource(config.dataset, class_names, joined, *files_of(root, files), is_test=is_test)


SOURCES: dict[str, Callable[[DataConfig], ImageSource]] = {
    "digits": _digits,
    "imagefolder": image_folder,
    "hf": hugging_face,
    "webdataset": shards,
    IMAGENET: imagenet,
    **dict.fromkeys(TORCHVISION_SETS, _torchvision),
}


def _reason(error: Exception) -> str:
    """Torchvision's message, without its advice to download, which chanas cannot follow."""
    return str(error).splitlines()[0].partition(" You can use download")[0].rstrip(".")


def _files(part: Any) -> Sequence[Any]:
    """The files of a torchvision set, in its order: paths, or tuples of a path and a label."""
    names = ("_image_files", "_images", "_samples", "samples")
    return cast(Sequence[Any], next(found for name in names if (found := getattr(part, name, None)) is not None))


def _path(entry: Any) -> str:
    return str(entry[0] if isinstance(entry, tuple) else entry)


def _labels(part: Any) -> IntArray:
    """Labels of a torchvision set without decoding its images where it has them in a list."""
    for name in ("targets", "labels", "_labels"):
        if (found := getattr(part, name, None)) is not None:
            return np.asarray(found, dtype=np.int64)
    if (samples := getattr(part, "_samples", None)) is not None:
        return np.asarray([label for _, label in samples], dtype=np.int64)
    return np.asarray([part[i][1] for i in range(len(part))], dtype=np.int64)
