"""WebDataset shards: tar files in which the files of a sample share a name, `000017.jpg` and `000017.cls` say.

The members are listed once, so that any image can be read on its own. Images and labels alone are looked at: what else
a sample has, pickled arrays among it, is never decoded.
"""

from __future__ import annotations

import itertools
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from chanas.core.arrays import IntArray
from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.folders.layout import HOLDOUT, TEST, TRAIN, parts_of_files
from chanas.supernet.data.folders.walk import image_endings, is_generated, look_into, walk
from chanas.supernet.data.image_source import EncodedSource, named, number_labels, stamps_of

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_CLASS_NAMES = ("classnames.txt", "classes.txt")
_MAX_LABEL_BYTES = 1 << 20
_SHOWN = 8


@dataclass
class _Sample:
    """The members of one sample: its image's place, its label, and the endings of all."""

    image: tuple[int, int] | None = None
    label: int | str | None = None
    endings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Members:
    """Places of the images: `shard` int64[N] into `files`, `offsets` and `sizes` int64[N] in bytes."""

    files: tuple[Path, ...]
    shard: IntArray
    offsets: IntArray
    sizes: IntArray

    def __call__(self, index: int) -> bytes:
        with open(self.files[self.shard[index]], "rb") as file:
            file.seek(int(self.offsets[index]))
            return file.read(int(self.sizes[index]))


def are_shards(root: Path) -> bool:
    """True if `root` is what this module reads, not folders of images with the archive that they came in."""
    if not root.is_dir():
        return root.suffix == ".tar"
    return bool(_tars(root)) and not any(walk(root / name).images for name in look_into(root).folders)


def _tars(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.tar") if not is_generated(file.name))


def shards(config: DataConfig) -> EncodedSource:
    """Images of the shards that `root` names: `shards-{000..003}.tar`, one file, or a folder of them.

    A label is a number or a name in the member `KEY.cls`, or the entry `label` of `KEY.json`. Names of numbered classes
    are the lines of `classnames.txt` next to the shards, where there is one. Shards that are named after parts
    (`train-000.tar`, `val-000.tar`) are these parts.

    Raises:
        DataError: a shard is not there or damaged, or a sample lacks its image or its label, or is of no use.
    """
    if config.root is None:
        raise DataError("data set webdataset needs `root`: tar files, such as shards-{000..003}.tar")
    files = _shard_files(config.root)
    keys: list[str] = []
    values: list[int | str] = []
    places: list[tuple[int, int, int]] = []
    faults: list[str] = []
    for number, file in enumerate(files):
        for key, sample in _samples(file).items():
            if sample.image is None or sample.label is None:
                lacks = "image" if sample.image is None else "label (KEY.cls, or `label` in KEY.json)"
                faults.append(f"{key} of {file} has no {lacks}; it has: {', '.join(sample.endings[:_SHOWN])}")
                continue
            keys.append(f"{file.name}/{key}")
            values.append(sample.label)
            places.append((number, *sample.image))
    if faults and not config.skip_bad:
        raise DataError(f"{len(faults)} samples cannot be used: {named(faults)}; leave them out with --skip-bad")
    if not keys:
        raise DataError(f"{config.root} holds no samples; expected members such as 000017.jpg and 000017.cls")
    class_names, labels = _classes(values, files[0].parent)
    shard, offsets, sizes = np.array(places, dtype=np.int64).T.copy()
    stamps = stamps_of(file.stat() for file in files)[shard]
    stamps[:, 4] = offsets
    roles = parts_of_files([file.name for file in files])
    part = np.array([roles.get(file.name, TRAIN) for file in files])[shard]
    return EncodedSource(
        str(config.root),
        class_names,
        labels,
        keys,
        sizes,
        _Members(files, shard, offsets, sizes),
        stamps,
        is_test=part == TEST if TEST in part else None,
        is_holdout=part == HOLDOUT if HOLDOUT in part else None,
        left_out={"samples without image or label": len(faults)} if faults else {},
    )


def expand_braces(text: str) -> list[str]:
    """`a-{00..02}.tar` as three names, `{train,more}.tar` as two; several groups multiply."""
    parts = _GROUP.split(text)
    choices = [_choices(part) if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(group: str) -> list[str]:
    if (bounds := _RANGE.fullmatch(group)) is None:
        return group.split(",")
    first, last = bounds.groups()
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]


def _shard_files(root: Path) -> tuple[Path, ...]:
    files = _tars(root) if root.is_dir() else [Path(text) for text in expand_braces(str(root))]
    if not files:
        raise DataError(f"{root} holds no tar files" if root.is_dir() else f"{root} names no shard")
    for file in files:
        if not file.is_file():
            raise DataError(f"shard {file} does not exist" + (f", one of {len(files)}" if len(files) > 1 else ""))
    return tuple(files)


def _samples(file: Path) -> dict[str, _Sample]:
    """The samples of a shard by their keys, in order."""
    samples: dict[str, _Sample] = {}
    try:
        with tarfile.open(file, "r:") as tar, open(file, "rb") as content:
            for member in _files_of(tar):
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                sample = samples.setdefault(key, _Sample())
                sample.endings.append(ending)
                if f".{ending.lower()}" in image_endings():
                    if sample.image is not None:
                        raise DataError(f"sample {key} of {file} has several images: {', '.join(sample.endings)}")
                    sample.image = (member.offset_data, member.size)
                elif ending in ("cls", "json"):
                    label = _label(member, content, f"{key}.{ending} of {file}")
                    if label is not None and (ending == "cls" or sample.label is None):
                        sample.label = label
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"shard {file} is not a whole tar file without compression ({error})") from error
    return samples


def _files_of(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield plain files but for hidden and generated ones. What was seen is forgotten, millions as there may be."""
    for member in tar:
        if member.isreg() and not any(is_generated(part) for part in member.name.removeprefix("./").split("/")):
            yield member
        tar.members = []  # type: ignore[attr-defined]


def _label(member: tarfile.TarInfo, content: IO[bytes], what: str) -> int | str | None:
    """The label in a member; None where a JSON document has none."""
    if member.size > _MAX_LABEL_BYTES:
        raise DataError(f"{what} has {member.size} bytes, too many for a label")
    content.seek(member.offset_data)
    data = content.read(member.size)
    try:
        text = data.decode().strip()
        value = json.loads(text).get("label") if member.name.endswith(".json") else text
    except (ValueError, AttributeError) as error:
        raise DataError(f"{what} is no label that can be read ({error})") from error
    if value is None or isinstance(value, int | str):
        return int(value) if isinstance(value, str) and value.isdecimal() else value
    raise DataError(f"expected a number or a name as label in {what}, got {value!r}"[:300])


def _classes(values: Sequence[int | str], folder: Path) -> tuple[tuple[str, ...], IntArray]:
    """Names and labels; the names are those of a file beside the shards if there is one and labels are numbers."""
    listed = next((folder / name for name in _CLASS_NAMES if (folder / name).is_file()), None)
    if listed is None or any(isinstance(value, str) for value in values):
        return number_labels(values)
    names = tuple(line.strip() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip())
    labels = np.array(values, dtype=np.int64)
    if not 0 <= labels.min() <= labels.max() < len(names):
        raise DataError(f"{listed} names {len(names)} classes, but labels go from {labels.min()} to {labels.max()}")
    return names, labels
