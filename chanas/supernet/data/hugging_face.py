"""Data sets of Hugging Face's `datasets` that lie on the disk: what `save_to_disk` writes, or Parquet files.

The library opens them, without a network; images are decoded by chanas. Columns of other kinds than images and labels
are not looked at, and nothing in them is ever executed.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.encoded import EncodedSource, number_labels

_IMAGE_NAMES, _LABEL_NAMES = ("image", "img"), ("label", "labels", "class")
_TEST_NAMES = ("test", "validation", "valid", "val")
_SPLIT = re.compile(rf"(?:^|[-_./])(train|{'|'.join(_TEST_NAMES)})(?=[-_.\d/]|$)")
_SAVED = ("dataset_dict.json", "state.json")
_BATCH = 1000


@dataclass(frozen=True)
class _Rows:
    """Encoded images in a column, of parts that follow one another; `starts` int64[P + 1]."""

    parts: tuple[Any, ...]
    column: str
    starts: npt.NDArray[np.int64]
    root: Path

    def __call__(self, index: int) -> bytes:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        entry = self.parts[number][index - int(self.starts[number])][self.column]
        data: bytes = entry["bytes"] if entry["bytes"] is not None else self.file(entry["path"]).read_bytes()
        return data

    def file(self, path: str) -> Path:
        """Path of an image that is not in the table, but in a file beside it."""
        return self.root / path  # an absolute one stays as it is

    def sizes(self) -> npt.NDArray[np.int64]:
        """int64[N] bytes of all images.

        Raises:
            DataError: a row has no image.
            OSError: a file is not there.
        """
        compute, found = importlib.import_module("pyarrow.compute"), list[int]()
        for part in self.parts:
            for rows in part.with_format("arrow").iter(batch_size=_BATCH):
                entries = rows.column(self.column)
                lengths = compute.binary_length(compute.struct_field(entries, "bytes")).to_pylist()
                paths = compute.struct_field(entries, "path").to_pylist()
                for length, path in zip(lengths, paths, strict=True):
                    if length is None and not path:
                        raise DataError(f"row {len(found)} of {self.root} has no image")
                    found.append(self.file(path).stat().st_size if length is None else length)
        return np.array(found, dtype=np.int64)


def is_saved(root: Path) -> bool:
    """True if `root` is what this module reads."""
    return root.suffix == ".parquet" or any((root / name).is_file() for name in _SAVED) or bool(_parquet_files(root))


def hugging_face(config: DataConfig) -> EncodedSource:
    """The images under `root`; the official test part is `test`, or `validation`, where there is one with labels.

    Raises:
        DataError: the library or the data set is not there, or it has no images or labels that can be used.
    """
    root = config.root
    if root is None:
        raise DataError("data set hf needs `root`: a folder that save_to_disk has written, or Parquet files")
    parts = _open(root)
    train = parts.get("train", next(iter(parts.values())) if len(parts) == 1 else None)
    if train is None:
        raise DataError(f"data set {root} has no part 'train'; its parts: {', '.join(parts)}")
    image, label = _columns(train, root)
    others = {name: parts[name] for name in _TEST_NAMES if name in parts and parts[name] is not train}
    test = next((part for name, part in others.items() if _is_labelled(part, label)), None)
    chosen = [train] if test is None else [train, test]
    if test is not None and any(test.features.get(name) != train.features[name] for name in (image, label)):
        raise DataError(f"the parts of data set {root} differ in their columns {image} and {label}")
    class_names, labels = _labels(chosen, label, root)
    undecoded = _library().Image(decode=False)
    columns = tuple(part.select_columns([image]).cast_column(image, undecoded).with_format(None) for part in chosen)
    rows = _Rows(columns, image, np.cumsum([0, *map(len, chosen)]), root if root.is_dir() else root.parent)
    try:
        sizes = rows.sizes()
    except OSError as error:
        raise DataError(f"image {error.filename} of {root} cannot be read ({error.strerror})") from error
    is_test = None if test is None else np.arange(len(labels)) >= len(train)
    keys = tuple(f"row {i}" if i < len(train) else f"test row {i - len(train)}" for i in range(len(labels)))
    source = EncodedSource(str(root), class_names, labels, keys, sizes, rows, is_test)
    source.check()
    return source


def _library() -> Any:
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")  # read when the library is imported; nothing is downloaded
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise DataError("data set hf needs the library `datasets`; install it with pip install 'chanas[hf]'") from None


def _open(root: Path) -> dict[str, Any]:
    """Parts by their names; a single one is called `train`."""
    library = _library()
    if not root.exists():
        raise DataError(f"data set {root} does not exist")
    by_part: dict[str, list[str]] = {}
    for file in _parquet_files(root):
        found = _SPLIT.search(file.relative_to(root).as_posix() if root.is_dir() else file.name)
        by_part.setdefault("train" if found is None else found[1], []).append(str(file))
    try:
        if any((root / name).is_file() for name in _SAVED):
            saved = library.load_from_disk(str(root))
            return dict(saved) if isinstance(saved, Mapping) else {"train": saved}
        if by_part:
            return {name: library.Dataset.from_parquet(files) for name, files in by_part.items()}
    except (OSError, ValueError, KeyError, TypeError, library.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).splitlines() or [type(error).__name__]
        raise DataError(f"data set {root} cannot be read by datasets {library.__version__}: {reason[0]}") from error
    raise DataError(f"expected what save_to_disk writes ({' or '.join(_SAVED)}), or Parquet files, in {root}")


def _parquet_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root] if root.suffix == ".parquet" else []
    return sorted([*root.glob("*.parquet"), *root.glob("data/*.parquet")])


def _columns(part: Any, root: Path) -> tuple[str, str]:
    """Names of the columns of images and of labels."""
    kinds = {name: type(feature).__name__ for name, feature in part.features.items()}
    image = _choose(_IMAGE_NAMES, [name for name, kind in kinds.items() if kind == "Image"])
    text = ", ".join(f"{name} ({getattr(part.features[name], 'dtype', kind)})" for name, kind in kinds.items())
    if image is None:
        raise DataError(f"data set {root} has no column of images, or several; its columns: {text}")
    usable = [name for name, kind in kinds.items() if kind == "ClassLabel" or _is_plain(part.features[name])]
    of_classes = [name for name in usable if kinds[name] == "ClassLabel"]
    label = next((name for name in _LABEL_NAMES if name in usable), None) or _choose((), of_classes)
    if label is None:
        raise DataError(f"data set {root} has no column of labels, or several; its columns: {text}")
    return image, label


def _choose(names: Sequence[str], usable: Sequence[str]) -> str | None:
    """The usable column of a usual name, else the only one."""
    named = [name for name in names if name in usable]
    return named[0] if named else usable[0] if len(usable) == 1 else None


def _is_plain(feature: Any) -> bool:
    dtype = str(getattr(feature, "dtype", ""))
    return type(feature).__name__ == "Value" and ("int" in dtype or "string" in dtype)


def _values(part: Any, column: str) -> list[Any]:
    return list(part.select_columns([column]).with_format(None)[:][column])


def _is_labelled(part: Any, column: str) -> bool:
    """False for parts whose labels are kept secret, as those of contests are."""
    return column in part.features and any(value is not None and value != -1 for value in _values(part, column))


def _labels(parts: Sequence[Any], column: str, root: Path) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    feature = parts[0].features[column]
    values = [value for part in parts for value in _values(part, column)]
    missing = [i for i, v in enumerate(values) if v is None or (v == -1 and type(feature).__name__ == "ClassLabel")]
    if missing:
        raise DataError(f"{len(missing)} images of data set {root} have no label; the first: row {missing[0]}")
    if not values:
        raise DataError(f"data set {root} has no images")
    if type(feature).__name__ == "ClassLabel":
        return tuple(feature.names), np.array(values, dtype=np.int64)
    return number_labels(values)
