"""Tables in CSV files of what was timed on several devices: a row for each thing, a column `DEVICE_ms` for each device,
and columns of any other names that say what the thing is; a column of more than 100 words names things."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chanas.errors import DataError
from chanas.files.csv_files import as_numbers, read_csv

LATENCY = "_ms"
_MAX_WORDS = 100


class DeviceColumns(NamedTuple):
    """The cells of all columns by name, as the file has them, and the devices in the order of their columns."""

    columns: dict[str, list[str]]
    devices: tuple[str, ...]

    def latencies(self, device: str) -> Sequence[str]:
        """Cells of a device."""
        return self.columns[device + LATENCY]


def read_device_columns(path: Path, what: str) -> DeviceColumns:
    """Read a file, gzipped or not; `what` is a row of it, such as `network`.

    Raises:
        DataError: it cannot be read, has no row, a column twice, or no column of a device.
    """
    header, rows = read_csv(path, f"latencies of {what}s")
    if twice := [name for i, name in enumerate(header) if header.index(name) != i]:
        raise DataError(f"{path} has column '{twice[0]}' twice; keep one of them")
    devices = tuple(name.removesuffix(LATENCY) for name in header if name.endswith(LATENCY) and name != LATENCY)
    if not rows or not devices:
        raise DataError(
            f"expected a column DEVICE{LATENCY} for each device and a row for each {what} in {path}, got "
            f"{len(devices)} such columns and {len(rows)} rows"
        )
    return DeviceColumns({name: [row.cells[place] for row in rows] for place, name in enumerate(header)}, devices)


def milliseconds(cell: str) -> float:
    """A latency; NaN for an empty cell, a word, infinity, zero and less."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if 0.0 < value < math.inf else math.nan


def name_things(cells: Sequence[str]) -> bool:
    """True if there are so many words that these can only be names of rows."""
    return len(set(cells)) > _MAX_WORDS and as_numbers(cells) is None
