"""Accuracies that were measured elsewhere, as a CSV file: with those of an OFA-like supernet one can search for a
device without training again. The columns are described in docs/formats.md."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core.arch import Architecture, SearchSpace, SubSpace
from chanas.core.genome import FloatArray, Genomes, encode
from chanas.errors import ArchitectureError, DataError
from chanas.files.writing import file_digest
from chanas.search.accuracy.predictor import MIN_TRAINING

# The first name is ours; the others are what users of once-for-all call the same thing.
_NAMES = {
    "architecture": ("architecture", "key"),
    "resolution": ("resolution", "r"),
    "width": ("width", "w", "width_multiplier"),
    "depth": ("depth", "d"),
    "kernel": ("kernel", "ks", "k"),
    "expand": ("expand", "e"),
    "top1": ("top1", "top-1", "accuracy", "acc"),
}
_PER_BLOCK = ("kernel", "expand")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SHOWN = 3


@dataclass(frozen=True)
class AccuracyTable:
    """Architectures of one space with their top-1, each once.

    genomes, top1   int16[N, L] and float64[N] in [0, 1]
    num_rows        rows of the file, those outside the space and repetitions among them
    outside         one line for each row that is not in the space, with its line number and why
    digest          SHA-256 of the file
    unknown         sub-spaces of which there is no accuracy at all: searches leave them out
    """

    architectures: tuple[Architecture, ...]
    genomes: Genomes
    top1: FloatArray
    num_rows: int
    outside: tuple[str, ...]
    digest: str
    unknown: tuple[SubSpace, ...] = ()

    @property
    def num_repeated(self) -> int:
        """Rows of an architecture that had a row before; their top-1 is averaged."""
        return self.num_rows - len(self.outside) - len(self.architectures)

    def describe(self) -> str:
        """One line for people; rows outside the space are named."""
        text = f"{len(self.architectures)} architectures"
        if self.num_repeated:
            text += f", {self.num_repeated} repeated rows averaged"
        if self.outside:
            more = f"; and {len(self.outside) - _SHOWN} more" if len(self.outside) > _SHOWN else ""
            text += f", {len(self.outside)} rows outside the space left out ({'; '.join(self.outside[:_SHOWN])}{more})"
        if self.unknown:
            text += f"; none of {len(self.unknown)} sub-spaces, which are left out (the first: {self.unknown[0].key})"
        return text


def load_accuracy_table(path: Path | str, space: SearchSpace) -> AccuracyTable:
    """Read measured accuracies.

    Top-1 is in [0, 1], or in percent when a value of the file exceeds 1.

    Raises:
        DataError: the file cannot be read, lacks a column, has no number for a top-1, or too few rows are in the space.
    """
    path = Path(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = _columns(path, reader.fieldnames or (), space)
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read the accuracy table {path}: {error}") from error
    values = [_top1(path, line, row.get(columns["top1"])) for line, row in rows]
    scale = 100.0 if max(values, default=0.0) > 1.0 else 1.0
    if any(v > scale for v in values):
        raise DataError(f"expected top-1 of at most 1, or of at most 100 percent, in {path}, got {max(values):g}")
    found: dict[Architecture, list[float]] = {}
    outside = []
    for (line, row), value in zip(rows, values, strict=True):
        try:
            architecture = _architecture(row, columns, space)
            space.check(architecture)
        except ArchitectureError as error:
            outside.append(f"line {line}: {error}")
            continue
        found.setdefault(architecture, []).append(value / scale)
    if len(found) < MIN_TRAINING:
        first = f"; the first that is not in space '{space.name}': {outside[0]}" if outside else ""
        raise DataError(
            f"expected at least {MIN_TRAINING} architectures with an accuracy in {path}, got {len(found)}{first}"
        )
    architectures = tuple(found)
    top1 = np.array([float(np.mean(v)) for v in found.values()])
    genomes = encode(space, architectures)
    known = {a.sub_space for a in architectures}
    unknown = tuple(s for s in space.sub_spaces if s not in known)
    return AccuracyTable(architectures, genomes, top1, len(rows), tuple(outside), file_digest(path), unknown)


def _columns(path: Path, header: Sequence[str], space: SearchSpace) -> dict[str, str]:
    """Our name of each column -> the file's. Per-block columns may also be many, `kernel1`, `kernel2` and so on."""
    names = {name.strip().lower(): name for name in header}
    found = {}
    for ours, known in _NAMES.items():
        for name in known:
            if name in names:
                found[ours] = names[name]
            elif f"{name}1" in names:
                found[ours] = name
            else:
                continue
            break
    if "top1" not in found:
        raise DataError(f"the accuracy table {path} has no column top1; its columns: {', '.join(header) or 'none'}")
    missing = [c for c in ("resolution", "width", "depth", *_PER_BLOCK) if c not in found]
    if "architecture" not in found and missing:
        raise DataError(
            f"expected a column architecture, or columns resolution, width, depth, kernel and expand, in {path}; "
            f"missing: {', '.join(missing)} (width is the width multiplier: {list(space.width_multipliers)})"
        )
    return found


def _top1(path: Path, line: int, text: str | None) -> float:
    try:
        value = float((text or "").strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise DataError(f"{path}, line {line}: expected a top-1, got '{text}'")
    return value


def _architecture(row: Mapping[str, str], columns: Mapping[str, str], space: SearchSpace) -> Architecture:
    """The architecture of a row, as it is written.

    Raises:
        ArchitectureError: the row does not describe one.
    """
    if "architecture" in columns:
        return Architecture.from_key((row[columns["architecture"]] or "").strip())
    num_slots = space.num_stages * space.max_depth
    (resolution,) = _numbers(row, columns["resolution"], "resolution", 1)
    (width,) = _numbers(row, columns["width"], "width", 1)
    depths = [round(d) for d in _numbers(row, columns["depth"], "depth", space.num_stages)]
    kernels, expands = (_numbers(row, columns[name], name, num_slots, optional=True) for name in _PER_BLOCK)
    stages = []
    for stage, depth in enumerate(depths):
        if depth not in space.depths:
            raise ArchitectureError(f"depth {depth} of stage {stage}; expected one of {list(space.depths)}")
        slots = range(stage * space.max_depth, stage * space.max_depth + depth)
        blocks = [(kernels[i], expands[i]) for i in slots]
        if any(not math.isfinite(v) or v != round(v) for block in blocks for v in block):
            raise ArchitectureError(f"expected whole kernel sizes and expand ratios in stage {stage}, got {blocks}")
        stages.append(tuple((round(k), round(e)) for k, e in blocks))
    return Architecture(round(resolution), width, tuple(stages))


def _numbers(row: Mapping[str, str], column: str, what: str, num: int, optional: bool = False) -> list[float]:
    """`num` numbers of a list such as `[3, 5, 7]`, `3 5 7` or `3;5;7`, or of columns `NAME1` to `NAMEnum`.

    In columns of their own, those that are empty are NaN where they are `optional` (slots that the depth leaves out).
    """
    if row.get(column) is not None:
        found = [float(text) for text in _NUMBER.findall(row[column])]
    else:
        cells = {name.strip().lower(): value for name, value in row.items() if isinstance(name, str)}
        texts = [(cells.get(f"{column}{i + 1}") or "").strip() for i in range(num)]
        if any((text and not _NUMBER.fullmatch(text)) or (not text and not optional) for text in texts):
            raise ArchitectureError(f"expected a number in each of {column}1 to {column}{num}, got {texts}")
        found = [float(text) if text else math.nan for text in texts]
    if len(found) != num:
        raise ArchitectureError(f"expected {num} numbers for {what}, got {len(found)}")
    return found
