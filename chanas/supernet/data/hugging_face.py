"""Data sets of Hugging Face's `datasets` that lie on the disk: what `save_to_disk` writes, or Parquet files.

The library opens them, without a network; images are decoded by chanas. Columns of other kinds than images and labels
are not looked at, and nothing in them is ever executed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arrays import IntArray
from chanas.errors import DataError
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.folders.layout import HOLDOUT, TEST, TRAIN, part_notes, parts_of, parts_of_files
from chanas.supernet.data.folders.walk import is_generated
from chanas.supernet.data.image_source import UNKNOWN, EncodedSource, number_labels, short_digest, stamps_of

_IMAGE_NAMES, _LABEL_NAMES = ("image", "img"), ("label", "labels", "class")
_SAVED = ("dataset_dict.json", "state.json")
_BATCH = 1000


@dataclass(frozen=True)
class _Rows:
    """Encoded images in a column, of parts that follow one another; `starts` int64[P + 1]."""

    parts: tuple[Any, ...]
    column: str
    starts: IntArray
    root: Path

    def __call__(self, index: int) -> bytes:
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        entry = self.parts[number][index - int(self.starts[number])][self.column]
        data: bytes = entry["bytes"] if entry["bytes"] is not None else self.file(entry["path"]).read_bytes()
        return data

    def file(self, path: str) -> Path:
        """Path of an image that is not in the table, but in a file beside it."""
        return self.root / path  # an absolute one stays as it is

    def sizes_and_stamps(self, tables: Sequence[Any]) -> tuple[IntArray, IntArray]:
        """int64[N] bytes of all images, and int64[N, 5] as `EncodedSource` has them; `tables` are the files of each
        part.

        Raises:
            DataError: a row has no image.
            OSError: a file is not there.
        """
        compute, sizes, stamps = importlib.import_module("pyarrow.compute"), list[int](), list[Any]()
        for part, files in zip(self.parts, tables, strict=True):
            facts = [stamps_of([os.stat(file["filename"])]).tolist() for file in files]
            table = short_digest(repr(facts).encode()) if facts else None
            start = len(sizes)
            for rows in part.with_format("arrow").iter(batch_size=_BATCH):
                entries = rows.column(self.column)
                lengths = compute.binary_length(compute.struct_field(entries, "bytes")).to_pylist()
                paths = compute.struct_field(entries, "path").to_pylist()
                for length, path in zip(lengths, paths, strict=True):
                    if length is None and not path:
                        raise DataError(f"row {len(sizes)} of {self.root} has no image")
                    if length is None:
                        stamps.append(stamps_of([self.file(path).stat()])[0])
                        length = stamps[-1][1]
                    else:
                        stamps.append(UNKNOWN if table is None else (table, length, 0, 0, len(sizes) - start))
                    sizes.append(length)
        return np.array(sizes, dtype=np.int64), np.array(stamps, dtype=np.int64).reshape(-1, 5)


def is_saved(root: Path) -> bool:
    """True if `root` is what this module reads."""
    return root.suffix == ".parquet" or any((root / name).is_file() for name in _SAVED) or bool(_parquet_files(root))


def hugging_face(config: DataConfig) -> EncodedSource:
    """The images under `root`, of parts that have labels: of `train`, `validation` and `test` together, `validation` is
    the holdout split, and next to `train` alone it is the test split.

    Raises:
        DataError: the library or the data set is not there, or it has no images or labels that can be used.
    """
    root = config.root
    if root is None:
        raise DataError("data set hf needs `root`: a folder that save_to_disk has written, or Parquet files")
    parts = _open(root)
    chosen = _chosen(parts, root)
    used = {role: parts[name] for role, name in chosen.items()}
    image, label = _columns(used[TRAIN], root)
    class_names, labels = _labels(list(used.values()), label, root)
    undecoded = _library().Image(decode=False)
    columns = [part.select_columns([image]).cast_column(image, undecoded).with_format(None) for part in used.values()]
    rows = _Rows(tuple(columns), image, np.cumsum([0, *map(len, columns)]), root if root.is_dir() else root.parent)
    try:
        sizes, stamps = rows.sizes_and_stamps([part.cache_files for part in used.values()])
    except OSError as error:
        raise DataError(f"image {error.filename} of {root} cannot be read ({error.strerror})") from error
    part = np.repeat(list(used), [len(rows) for rows in columns])
    return EncodedSource(
        str(root),
        class_names,
        labels,
        [f"{'' if role == TRAIN else f'{role} '}row {i}" for role, rows in used.items() for i in range(len(rows))],
        sizes,
        rows,
        stamps,
        is_test=part == TEST if TEST in used else None,
        is_holdout=part == HOLDOUT if HOLDOUT in used else None,
        left_out={f"rows of part {name}": len(parts[name]) for name in parts if name not in chosen.values()},
        notes=part_notes({name: role for role, name in chosen.items()}),
    )


def _chosen(parts: Mapping[str, Any], root: Path) -> dict[str, str]:
    """The name of the part to train on, and of those for holdout and test, where there are some with labels."""
    roles = parts_of(list(parts)) if len(parts) > 1 else dict.fromkeys(parts, TRAIN)
    train = next((name for name, role in roles.items() if role == TRAIN), None)
    if train is None:
        raise DataError(f"data set {root} has no part 'train'; its parts: {', '.join(parts)}")
    chosen = {TRAIN: train}
    columns = _columns(parts[train], root)
    for name, role in roles.items():
        if not _is_labelled(parts[name], columns[1]):
            continue
        if any(parts[name].features.get(column) != parts[train].features[column] for column in columns):
            raise DataError(f"the parts of data set {root} differ in their columns {' and '.join(columns)}")
        if chosen.setdefault(role, name) != name:
            raise DataError(f"both {chosen[role]} and {name} of data set {root} look like its {role} part")
    if HOLDOUT in chosen and TEST not in chosen:
        chosen[TEST] = chosen.pop(HOLDOUT)
    return {role: chosen[role] for role in (TRAIN, HOLDOUT, TEST) if role in chosen}


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise DataError("data set hf needs the library `datasets`; install it with pip install 'chanas[hf]'") from None


def _open(root: Path) -> dict[str, Any]:
    """Parts by their names; a single one is called `train`."""
    library = _library()
    if not root.exists():
        raise DataError(f"data set {root} does not exist")
    files = {
        file.relative_to(root).as_posix() if root.is_dir() else file.name: str(file) for file in _parquet_files(root)
    }
    roles, by_part = parts_of_files(list(files)), dict[str, list[str]]()
    for name, file in files.items():
        by_part.setdefault(roles.get(name, TRAIN), []).append(file)
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
    found = [*root.glob("*.parquet"), *root.glob("data/*.parquet")]
    return sorted(file for file in found if not is_generated(file.name))


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


def _labels(parts: Sequence[Any], column: str, root: Path) -> tuple[tuple[str, ...], IntArray]:
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
