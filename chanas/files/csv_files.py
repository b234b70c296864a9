"""Tables in CSV files, as people and spreadsheets write them."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path
from typing import NamedTuple

from chanas.errors import DataError

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
