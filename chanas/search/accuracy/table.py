"""Accuracies that were measured elsewhere, as a CSV file: with those of an OFA-like supernet one can search for a
device without training again. The columns are described in docs/formats.md.

Every cell is read as it is written, or the file is refused with the line or the column at fault: a table that is read
in another way than it was meant puts accuracies beside networks that never had them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core.arch import Architecture, SearchSpace, SubSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, encode
from chanas.errors import ArchitectureError, DataError
from chanas.files.csv_files import CsvRow, read_csv
from chanas.files.writing import file_digest
from chanas.search.accuracy.predictor import MIN_TRAINING

# The first name is ours; the others are what users of once-for-all and training logs call the same thing. Case, spaces,
# hyphens, underscores and @ in a name don't matter.
_NAMES = {
    "architecture": ("architecture", "key"),
    "resolution": ("resolution", "r"),
    "width": ("width", "w", "widthmultiplier"),
    "depth": ("depth", "d"),
    "kernel": ("kernel", "ks", "k"),
    "expand": ("expand", "e"),
    "top1": ("top1", "accuracy", "acc", "acc1"),
}
_OURS = {name: ours for ours, names in _NAMES.items() for name in names}
_TOP1_IN_PERCENT = {f"{name}{unit}": "top1" for name in _NAMES["top1"] for unit in ("%", "(%)", "[%]")}
_PARTS = ("resolution", "width", "depth", "kernel", "expand")
_BY_SLOT = ("kernel", "expand")
_INDEX = ("", "index", "unnamed:0")  # how spreadsheets and pandas call the numbers of rows
_NUMBERED = re.compile(r"([a-z]+)(\d+)")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+", re.ASCII)
_LIST = re.compile(r"\s*[;,]\s*|\s+")
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
        """Rows that repeat an earlier one."""
        return self.num_rows - len(self.outside) - len(self.architectures)

    def describe(self) -> str:
        """One line for people; rows outside the space are named."""
        text = f"{len(self.architectures)} architectures"
        if self.num_repeated:
            text += f", {self.num_repeated} repeated rows"
        if self.outside:
            more = f"; and {len(self.outside) - _SHOWN} more" if len(self.outside) > _SHOWN else ""
            text += f", {len(self.outside)} rows outside the space left out ({'; '.join(self.outside[:_SHOWN])}{more})"
        if self.unknown:
            text += f"; none of {len(self.unknown)} sub-spaces, which are left out (the first: {self.unknown[0].key})"
        return text


def load_accuracy_table(path: Path | str, space: SearchSpace) -> AccuracyTable:
    """Read measured accuracies.

    Top-1 is in [0, 1] or in percent: of a value with a percent sign, of all in a column whose name has one, or of all
    where all exceed 1.

    Raises:
        DataError: the file cannot be read; it lacks a column, or has one twice or one that is not known; a row has
            more or fewer cells, no number, another accuracy than an earlier row of its architecture, or none of both
            units; or too few rows are in the space.
    """
    path = Path(path)
    header, rows = read_csv(path, "accuracy table")
    columns = _Columns.of(path, header, rows, space)
    top1 = _fractions(path, header[columns.top1], [(row.line, row.cells[columns.top1]) for row in rows])
    found: dict[Architecture, tuple[int, float]] = {}
    outside = []
    for row, value in zip(rows, top1, strict=True):
        try:
            architecture = columns.architecture(path, row, space)
            space.check(architecture)
        except ArchitectureError as error:
            outside.append(f"line {row.line}: {error}")
            continue
        earlier, known = found.setdefault(architecture, (row.line, value))
        if known != value:
            raise DataError(
                f"{path}, lines {earlier} and {row.line}: expected one accuracy of {architecture.key}, got "
                f"{known:.6g} and {value:.6g}; keep one of them"
            )
    if len(found) < MIN_TRAINING:
        first = f"; the first that is not in space '{space.name}': {outside[0]}" if outside else ""
        raise DataError(
            f"expected at least {MIN_TRAINING} architectures with an accuracy in {path}, got {len(found)}{first}"
        )
    architectures = tuple(found)
    genomes = encode(space, architectures)
    known_spaces = {a.sub_space for a in architectures}
    unknown = tuple(s for s in space.sub_spaces if s not in known_spaces)
    accuracies = np.array([value for _, value in found.values()])
    return AccuracyTable(architectures, genomes, accuracies, len(rows), tuple(outside), file_digest(path), unknown)


@dataclass(frozen=True)
class _Columns:
    """The places of the columns: of top-1; and of `architecture`, or of each part of one (the one column of a list, or
    a column for each number of it in order)."""

    top1: int
    parts: Mapping[str, tuple[int, ...]]
    header: Sequence[str]

    @classmethod
    def of(cls, path: Path, header: Sequence[str], rows: Sequence[CsvRow], space: SearchSpace) -> _Columns:
        """Find each column by its name.

        Raises:
            DataError: a column is missing, there twice, or not known; columns of a list are not numbered from 0 or 1.
        """
        names = [re.sub(r"[\s_\-@]", "", name.lower()) for name in header]
        if twice := [header[i] for i, name in enumerate(names) if name and names.index(name) != i]:
            raise DataError(f"the accuracy table {path} has column {twice[0]} twice; keep one of them")
        places: dict[str, list[int]] = {}
        numbered: dict[str, dict[int, int]] = {}
        unread = []
        for place, name in enumerate(names):
            match = _NUMBERED.fullmatch(name)
            if (ours := _OURS.get(name) or _TOP1_IN_PERCENT.get(name)) is not None:
                places.setdefault(ours, []).append(place)
            elif match is not None and _OURS.get(match[1]) in ("depth", *_BY_SLOT):
                of_name = numbered.setdefault(match[1], {})
                if of_name.setdefault(int(match[2]), place) != place:
                    raise DataError(f"the accuracy table {path} has column {header[place]} twice; keep one of them")
            elif not (name in _INDEX and all(cell.isdigit() or not cell for cell in (r.cells[place] for r in rows))):
                unread.append(f"'{header[place]}'")
        for name, of_name in numbered.items():
            num = space.num_stages if _OURS[name] == "depth" else space.num_stages * space.max_depth
            if sorted(of_name) not in ([*range(num)], [*range(1, num + 1)]):
                raise DataError(
                    f"expected columns {name}1 to {name}{num} (or {name}0 to {name}{num - 1}) in {path}, got "
                    f"{', '.join(header[of_name[i]] for i in sorted(of_name))}"[:400]
                )
            places.setdefault(_OURS[name], []).extend(of_name[i] for i in sorted(of_name))
        _check_described(path, header, places, space, [_OURS[name] for name in numbered])
        if unread:
            known = ", ".join(name for names in _NAMES.values() for name in names)
            raise DataError(
                f"the accuracy table {path} has columns that are not read: {', '.join(unread)}; remove them, or give "
                f"them one of the known names: {known}"
            )
        (top1,) = places.pop("top1")
        return cls(top1, {part: tuple(found) for part, found in places.items()}, header)

    def architecture(self, path: Path, row: CsvRow, space: SearchSpace) -> Architecture:
        """The architecture of a row, as it is written.

        Raises:
            ArchitectureError: it has a depth that the space does not have.
            DataError: the row does not describe an architecture.
        """
        if "architecture" in self.parts:
            try:
                return Architecture.from_plain_key(row.cells[self.parts["architecture"][0]])
            except ValueError as error:  # an ArchitectureError, or a number of thousands of digits
                raise DataError(f"{path}, line {row.line}: {error}"[:400]) from None
        num_slots = space.num_stages * space.max_depth
        (resolution,) = self._numbers(path, row, "resolution", 1)
        (width,) = self._numbers(path, row, "width", 1)
        depths = [self._whole(path, row, "depth", d) for d in self._numbers(path, row, "depth", space.num_stages)]
        kernels, expands = (self._numbers(path, row, part, num_slots) for part in _BY_SLOT)
        stages = []
        for stage, depth in enumerate(depths):
            if depth not in space.depths:
                raise ArchitectureError(f"depth {depth} of stage {stage}; expected one of {list(space.depths)}")
            slots = range(stage * space.max_depth, stage * space.max_depth + depth)
            stages.append(
                tuple(
                    (self._whole(path, row, "kernel", kernels[i]), self._whole(path, row, "expand", expands[i]))
                    for i in slots
                )
            )
        return Architecture(self._whole(path, row, "resolution", resolution), width, tuple(stages))

    def _numbers(self, path: Path, row: CsvRow, part: str, num: int) -> list[float]:
        """`num` numbers of a list such as `[3, 5, 7]`, `3 5 7` or `3;5;7`, or of a column each. Of kernels and expand
        ratios, what is no number is NaN: the depth may leave its slot out."""
        texts = [row.cells[place] for place in self.parts[part]]
        if len(texts) == 1:
            inside = texts[0].strip("[]() ").strip(",; ")
            texts = [inside] if num == 1 else _LIST.split(inside)
        found = [_number(text) for text in texts]
        if len(found) != num or (None in found and part not in _BY_SLOT):
            got, what = ", ".join(texts), "a number" if num == 1 else f"{num} numbers"
            raise DataError(
                f"{path}, line {row.line}: expected {what} for {self._name(part)}, got {len(found)}: '{got}'"[:400]
            )
        return [math.nan if value is None else value for value in found]

    def _whole(self, path: Path, row: CsvRow, part: str, value: float) -> int:
        if not value.is_integer():
            got = "none" if math.isnan(value) else f"{value:g}"
            raise DataError(f"{path}, line {row.line}: expected a whole number for {self._name(part)}, got {got}")
        return int(value)

    def _name(self, part: str) -> str:
        return f"{part} (column {self.header[self.parts[part][0]]})"


def _check_described(
    path: Path, header: Sequence[str], places: Mapping[str, Sequence[int]], space: SearchSpace, numbered: Sequence[str]
) -> None:
    """Raises DataError: a column is missing, or two say the same thing. The parts `numbered` have many columns."""
    names = {part: [header[place] for place in found] for part, found in places.items()}
    for part, found in names.items():
        num = space.num_stages if part == "depth" else space.num_stages * space.max_depth
        if len(found) != (num if part in numbered else 1) or numbered.count(part) > 1:
            raise DataError(
                f"the accuracy table {path} says {part} twice, in columns {', '.join(found)}; keep one of them"[:400]
            )
    if "top1" not in names:
        raise DataError(f"the accuracy table {path} has no column top1; its columns: {', '.join(header) or 'none'}")
    missing = [part for part in _PARTS if part not in names]
    if "architecture" in names and len(missing) < len(_PARTS):
        other = next(names[part][0] for part in _PARTS if part in names)
        raise DataError(
            f"the accuracy table {path} says the architecture twice, in columns {names['architecture'][0]} and "
            f"{other}; keep one of them"
        )
    if "architecture" not in names and missing:
        raise DataError(
            f"expected a column architecture, or columns resolution, width, depth, kernel and expand, in {path}; "
            f"missing: {', '.join(missing)} (width is the width multiplier: {list(space.width_multipliers)})"
        )


def _number(text: str) -> float | None:
    """A finite number, with a decimal point or a decimal comma; None if it is none."""
    if _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def _fractions(path: Path, column: str, cells: Sequence[tuple[int, str]]) -> list[float]:
    """Top-1 in [0, 1] of each (line, cell).

    Raises:
        DataError: a cell is no accuracy, or its unit cannot be told: it is below 1 where others are percent.
    """
    signed = [text.endswith("%") or "%" in column for _, text in cells]
    values = []
    for line, text in cells:
        value = _number(text.removesuffix("%").rstrip())
        if value is None or value < 0.0:
            got = f"'{text}'" if text else "an empty cell"
            raise DataError(f"{path}, line {line}: expected a top-1 in column {column}, got {got}")
        values.append(value)
    plain = [i for i, sign in enumerate(signed) if not sign]
    in_percent = [i for i in plain if values[i] > 1.0]
    percents = {*in_percent, *(i for i, sign in enumerate(signed) if sign)}
    odd = next((i for i in plain if in_percent and 0.0 < values[i] <= 1.0), None)
    if odd is not None:
        raise DataError(
            f"{path}, lines {cells[in_percent[0]][0]} and {cells[odd][0]}: top-1 {cells[in_percent[0]][1]} is in "
            f"percent, and of {cells[odd][1]} it cannot be told; write all of them as fractions, or a % after percents"
        )
    small = [i for i in percents if 0.0 < values[i] < 1.0]
    if small and (len(percents) < len(cells) or len(small) == sum(values[i] > 0.0 for i in percents)):
        i = min(small)
        raise DataError(
            f"{path}, line {cells[i][0]}: a top-1 of {values[i]:g} percent, where others are not that small or not in "
            f"percent; write {100 * values[i]:g}% or {values[i]:g} if that is meant"
        )
    out = [round(value / 100.0, 12) if i in percents else value for i, value in enumerate(values)]
    for (line, text), value in zip(cells, out, strict=True):
        if value > 1.0:
            raise DataError(
                f"{path}, line {line}: expected a top-1 of at most 1, or of at most 100 percent, got {text}"
            )
    return out
