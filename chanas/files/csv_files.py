"""Tables in CSV files, as people and spreadsheets write them."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chanas.errors import DataError
from chanas.files.writing import replacing

_SEPARATORS = ",;\t"


class CsvRow(NamedTuple):
    """The cells of a row, without blanks around them, and the number of its line."""

    line: int
    cells: list[str]


def read_csv(path: Path, what: str) -> tuple[list[str], list[CsvRow]]:
    """The names of the columns and the rows of a file, gzipped (`.gz`) or not, each with as many cells.

    Cells are apart by commas, semicolons or tabs, whichever are most in the first line. Rows of empty cells alone are
    left out.

    Raises:
        DataError: the file cannot be read, `what` names it in the message; or a row has more or fewer cells.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
        file = io.StringIO(text, newline="")
        separator = max(_SEPARATORS, key=file.readline().count)
        file.seek(0)
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
        lines = [CsvRow(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read the {what} {path}: {error}") from error
    lines = [row for row in lines if any(row.cells)]
    header, rows = (lines[0].cells, lines[1:]) if lines else ([], [])
    for row in rows:
        if len(row.cells) != len(header):
            raise DataError(
                f"{path}, line {row.line}: expected {len(header)} cells, as many as there are columns, got "
                f"{len(row.cells)}; a cell that holds a separator is written in double quotes"
            )
    return header, rows


def write_csv(path: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """Write columns of equally many cells, gzipped where the file's name ends in `.gz`.

    Raises:
        ChanasError: the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode()
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def as_numbers(cells: npt.ArrayLike) -> npt.NDArray[np.float64] | None:
    """float64[N] from N words that are read as numbers; None where one is no finite number."""
    try:
        numbers = np.asarray(cells).astype(np.float64)
    except ValueError:
        return None
    return numbers if bool(np.isfinite(numbers).all()) else None
