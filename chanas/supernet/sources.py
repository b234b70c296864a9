"""Image sources by name: where images and labels come from, before anything is split, resized or augmented.

`SOURCES` maps a name to a function from a `DataConfig` to an `ImageSource`. Nothing is ever downloaded.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from chanas.errors import DataError, unknown_name
from chanas.preprocess import open_rgb
from chanas.supernet.data_config import DataConfig

IntArray = npt.NDArray[np.int64]

DIGITS_SIZE = 32
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
NUM_FULLY_CHECKED = (
    5_000  # image folders up to this size are decoded once before training starts; larger ones on the way
)


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


class ImageSource(Protocol):
    """N labelled images. `is_test` bool[N] marks an official test split, where the set has one."""

    @property
    def name(self) -> str: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> IntArray: ...
    @property
    def is_test(self) -> npt.NDArray[np.bool_] | None: ...

    def image(self, index: int) -> Image.Image:
        """The RGB image at `index`."""

    def digest(self) -> str:
        """Changes when an image is added, removed or replaced."""


@dataclass(frozen=True)
class ArraySource:
    """Images of one size in memory: `pixels` uint8[N, H, W, 3]."""

    name: str
    class_names: tuple[str, ...]
    labels: IntArray
    pixels: npt.NDArray[np.uint8]
    is_test: npt.NDArray[np.bool_] | None = None

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def digest(self) -> str:
        return _digest(self.labels.tobytes(), self.pixels.tobytes())


@dataclass(frozen=True)
class FileSource:
    """Images in files, decoded when they are asked for."""

    name: str
    class_names: tuple[str, ...]
    labels: IntArray
    paths: tuple[Path, ...]
    root: Path
    convert_rgb: bool
    is_test: npt.NDArray[np.bool_] | None = None

    def image(self, index: int) -> Image.Image:
        return open_rgb(self.paths[index], self.convert_rgb)

    def digest(self) -> str:
        lines = (f"{p.relative_to(self.root)} {p.stat().st_size}\n" for p in self.paths)
        return _digest(*(line.encode() for line in lines))


@dataclass(frozen=True)
class TorchvisionSource:
    """A torchvision set that decodes its images when they are asked for; parts follow one another."""

    name: str
    class_names: tuple[str, ...]
    labels: IntArray
    parts: Sequence[Any]
    convert_rgb: bool
    is_test: npt.NDArray[np.bool_] | None = None
    _starts: IntArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", np.cumsum([0, *(len(part) for part in self.parts)]))

    def image(self, index: int) -> Image.Image:
        part = int(np.searchsorted(self._starts, index, side="right")) - 1
        try:
            image = self.parts[part][index - int(self._starts[part])][0]
        except OSError as error:
            raise DataError(f"image {index} of {self.name} cannot be read ({error}); fetch the set again") from error
        return _rgb(image, f"image {index} of {self.name}", self.convert_rgb)

    def digest(self) -> str:
        return _digest(self.name.encode(), self.labels.tobytes())


def load_source(config: DataConfig) -> ImageSource:
    """The images that `config` names.

    Raises:
        DataError: the name is unknown (the message lists the known ones), or the images are not there or of no use.
    """
    if config.dataset not in SOURCES:
        raise DataError(unknown_name("data set", config.dataset, SOURCES))
    source = SOURCES[config.dataset](config)
    if len(source.class_names) < 2:
        raise DataError(
            f"data set {source.name} has {len(source.class_names)} class ({', '.join(source.class_names)}); "
            "classification needs at least 2"
        )
    return source


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


def _image_folder(config: DataConfig) -> ImageSource:
    """`root/class/image`, or the same under `root/train` with an official test split in `root/test` or `root/val`."""
    root = config.root
    if root is None:
        raise DataError("data set imagefolder needs `root`: a folder with one folder of images per class")
    if not root.is_dir():
        raise DataError(f"image folder {root} does not exist")
    train, test = root, next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if test is not None and _folders(root / "train") and _folders(test):
        train = root / "train"
    else:
        test = None
    class_names = tuple(folder.name for folder in _folders(train))
    if not class_names:
        raise DataError(f"image folder {root} holds no class folders; expected {root}/CLASS/IMAGE")
    paths, labels, flags = [], [], []
    for part in (train,) if test is None else (train, test):
        if extra := {folder.name for folder in _folders(part)} - set(class_names):
            raise DataError(f"{part} has class folder '{min(extra)}' that {train} lacks")
        for label, class_name in enumerate(class_names):
            found = sorted(p for p in (part / class_name).rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not found and part is train:
                raise DataError(
                    f"class folder {part / class_name} holds no images; "
                    f"known endings: {', '.join(sorted(IMAGE_SUFFIXES))}"
                )
            paths += found
            labels += [label] * len(found)
            flags += [part is test] * len(found)
    is_test = None if test is None else np.array(flags)
    source = FileSource(
        f"imagefolder {root}", class_names, np.array(labels), tuple(paths), root, config.convert_rgb, is_test
    )
    if len(paths) <= NUM_FULLY_CHECKED:
        for index in range(len(paths)):
            source.image(index)
    return source


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
            f"data set {config.dataset} does not lie in {root.resolve()} ({str(error).splitlines()[0]}); "
            "put it there or name its folder as `root` (chanas downloads nothing)"
        ) from error
    labels = [_labels(part) for part in parts]
    joined = np.concatenate(labels)
    class_names = tuple(str(n) for n in getattr(parts[0], "classes", range(int(joined.max()) + 1)))
    flags = [part is known.test for part in arguments]
    is_test = None if known.test is None else np.repeat(flags, [len(part) for part in labels])
    source = TorchvisionSource(config.dataset, class_names, joined, parts, config.convert_rgb, is_test)
    if not known.in_memory:
        return source
    pixels = np.stack([np.asarray(source.image(i)) for i in range(len(joined))])
    return ArraySource(config.dataset, class_names, joined, pixels, is_test)


SOURCES: dict[str, Callable[[DataConfig], ImageSource]] = {
    "digits": _digits,
    "imagefolder": _image_folder,
    **dict.fromkeys(TORCHVISION_SETS, _torchvision),
}


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")) if path.is_dir() else []


def _labels(part: Any) -> IntArray:
    """Labels of a torchvision set without decoding its images where it has them in a list."""
    for name in ("targets", "labels", "_labels"):
        if (found := getattr(part, name, None)) is not None:
            return np.asarray(found, dtype=np.int64)
    if (samples := getattr(part, "_samples", None)) is not None:
        return np.asarray([label for _, label in samples], dtype=np.int64)
    return np.asarray([part[i][1] for i in range(len(part))], dtype=np.int64)


def _rgb(image: Image.Image, what: str, convert: bool) -> Image.Image:
    if image.mode == "RGB":
        return image
    if not convert:
        raise DataError(
            f"expected an RGB image of 3 channels, got mode {image.mode} in {what}; set convert_rgb to convert it"
        )
    return image.convert("RGB")


def _digest(*chunks: bytes) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:16]
