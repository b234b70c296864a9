"""Configurations of one operator or kernel that were timed on several devices, from a CSV file.

A row for each configuration, a column for each parameter, in numbers or words, and a column `DEVICE_ms` for each
device: milliseconds, empty where nothing was measured, a word where the configuration does not work there. Columns of
more than 100 words name configurations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core.arrays import FloatArray
from chanas.errors import ConfigError, DataError, printable, unknown_name
from chanas.files.csv_files import write_csv
from chanas.files.device_columns import LATENCY, milliseconds, name_things, read_device_columns
from chanas.prescheduler.tuning.transfer import encode

_PROPOSED = "_proposed"


@dataclass(frozen=True)
class ConfigurationTable:
    """N configurations, and their log latencies on D devices.

    path           the file
    columns        cells of all columns by name, as the file has them
    devices        D names
    log_latencies  float64[N, D], of milliseconds; infinite where one does not work, NaN where nothing was measured
    """

    path: Path
    columns: Mapping[str, Sequence[str]]
    devices: tuple[str, ...]
    log_latencies: FloatArray

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Columns that name configurations."""
        return tuple(name for name, cells in self._others.items() if name_things(cells))

    @functools.cached_property
    def parameters(self) -> Mapping[str, Sequence[str]]:
        """Columns of parameters that are not the same everywhere."""
        return {n: cells for n, cells in self._others.items() if n not in self.names and len(set(cells)) > 1}

    @property
    def _others(self) -> dict[str, Sequence[str]]:
        proposed = {device + _PROPOSED for device in self.devices}
        return {n: cells for n, cells in self.columns.items() if not n.endswith(LATENCY) and n not in proposed}

    @functools.cached_property
    def x(self) -> FloatArray:
        """float64[N, F] of parameters."""
        cells = list(self.parameters.values())
        return encode(np.column_stack(cells)) if cells else np.zeros((len(self.log_latencies), 0))

    def of(self, device: str) -> FloatArray:
        """float64[N]: log latencies on one device.

        Raises:
            ConfigError: the table has no such device.
        """
        if device not in self.devices:
            known = unknown_name("device", device, self.devices)
            raise ConfigError(f"{known}; a new one has a column {device}{LATENCY} of empty cells")
        return self.log_latencies[:, self.devices.index(device)]

    def others(self, device: str, chosen: Sequence[str] = ()) -> tuple[str, ...]:
        """The `chosen` other devices, or all.

        Raises:
            ConfigError: the table has no such device, or it is the same one.
        """
        for name in chosen:
            self.of(name)
            if name == device:
                raise ConfigError(f"expected another device than {device} to begin from, got the same")
        return tuple(dict.fromkeys(chosen)) or tuple(name for name in self.devices if name != device)

    def sources(self, devices: Sequence[str]) -> FloatArray:
        """float64[N, S] of log latencies."""
        return self.log_latencies[:, [self.devices.index(name) for name in devices]]

    def configuration(self, row: int) -> dict[str, str]:
        """The parameters of a row that are not the same everywhere."""
        return {name: cells[row] for name, cells in self.parameters.items()}

    def told(self, row: int) -> str:
        """The same in words."""
        return printable(", ".join(f"{name} {value}" for name, value in self.configuration(row).items()))

    def save(self, path: Path, device: str, rows: Sequence[int]) -> None:
        """Write the table with some rows first, numbered in a column `DEVICE_proposed`.

        Raises:
            ChanasError: the file cannot be written.
        """
        proposed = device + _PROPOSED
        order = [*rows, *np.setdiff1d(np.arange(len(self.log_latencies)), rows).tolist()]
        columns = {name: [cells[row] for row in order] for name, cells in self.columns.items() if name != proposed}
        places = [str(place) for place in range(1, len(rows) + 1)]
        write_csv(path, columns | {proposed: places + [""] * (len(order) - len(places))})


def read_configurations(path: Path) -> ConfigurationTable:
    """Read a file, gzipped or not.

    Raises:
        DataError: it cannot be read; has no row, a column twice or no column of a device; no parameter tells its rows
            apart, or two rows are the same configuration.
    """
    read = read_device_columns(path, "configuration")
    latencies = np.column_stack([[_log_latency(cell) for cell in read.latencies(d)] for d in read.devices])
    table = ConfigurationTable(path, read.columns, read.devices, latencies)
    if table.x.shape[1] == 0:
        raise DataError(f"expected columns of parameters that differ in {path}, got none but latencies")
    _, first, place = np.unique(table.x, axis=0, return_index=True, return_inverse=True)
    earlier = first[place.reshape(-1)]
    if len(again := np.flatnonzero(earlier != np.arange(len(earlier)))):
        row = int(again[0])
        raise DataError(
            f"{path} has the configuration {table.told(row)} in rows {earlier[row] + 1} and {row + 1}; keep one"
        )
    return table


def _log_latency(cell: str) -> float:
    """NaN for an empty cell, infinity for what is no positive number."""
    if not cell:
        return math.nan
    value = milliseconds(cell)
    return math.inf if math.isnan(value) else math.log(value)
