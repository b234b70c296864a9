"""Networks with latencies on several devices, from a CSV file: what a new device, on which a few of them were measured,
takes for all the others.

A row for each network, a column `DEVICE_ms` for each device, empty where nothing was measured, and columns of any
other names that say what the network is, in numbers or words; a cell may be a list, its words apart by blanks. Columns
of more than 100 words name networks, and `accuracy` and `top1` are no part of what one is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import BoolArray, FloatArray
from chanas.core.effort import MIN_MEASURED
from chanas.core.genome import Genomes, encode
from chanas.errors import ChanasError, ConfigError, DataError, unknown_name
from chanas.files.csv_files import write_csv
from chanas.files.device_columns import LATENCY, DeviceColumns, milliseconds, read_device_columns
from chanas.search.transfer.columns import column_features, names_of_rows
from chanas.search.transfer.features import latency_features
from chanas.search.transfer.latencies import adapt, fit_known, tells_noise

_DOUBT = "_predicted_error"
ACCURACIES = ("accuracy", "top1")
"""Columns of accuracies, from 0 to 1 or in percent."""
# The columns of once-for-all's MobileNetV3 in published files: depths, kernel sizes, expand ratios, pixels.
_ONCE_FOR_ALL = ("d", "ks", "e", "r")
# Known devices whose weights are worth a word.
_SHOWN_WEIGHT = 0.05


# ---- the file -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class NetworkTable:
    """N networks, and their log latencies on D devices.

    path           the file
    columns        cells of all columns by name, as the file has them
    devices        D names
    log_latencies  float64[N, D], of milliseconds; NaN where a cell is no positive number, or what was predicted before
    """

    path: Path
    columns: Mapping[str, Sequence[str]]
    devices: tuple[str, ...]
    log_latencies: FloatArray

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Columns that name networks."""
        return tuple(names_of_rows(self._others))

    @functools.cached_property
    def description(self) -> Mapping[str, Sequence[str]]:
        """Columns that say what each network is."""
        return {name: cells for name, cells in self._others.items() if name not in self.names}

    @property
    def _others(self) -> dict[str, Sequence[str]]:
        return {
            name: cells
            for name, cells in self.columns.items()
            if not name.endswith((LATENCY, _DOUBT)) and name not in ACCURACIES
        }

    @functools.cached_property
    def once_for_all(self) -> tuple[SearchSpace, Genomes] | None:
        """Space and genomes, where the networks are once-for-all's MobileNetV3; None if they are something else."""
        if not set(_ONCE_FOR_ALL) <= set(self.columns):
            return None
        try:
            rows = zip(*(self.columns[name] for name in _ONCE_FOR_ALL), strict=True)
            architectures = [_architecture(*row) for row in rows]
            pixels = tuple(sorted({a.resolution for a in architectures}))
            space = dataclasses.replace(
                SearchSpace.load("mbv3"), name="ofa", resolutions=pixels, width_multipliers=(1.0,)
            )
            return space, encode(space, architectures)
        except (ValueError, KeyError, ZeroDivisionError, ChanasError):
            return None

    @functools.cached_property
    def features(self) -> FloatArray:
        """float64[N, F] of what the networks are.

        Raises:
            DataError: no column says what a network is.
        """
        if self.once_for_all is not None:
            return latency_features(*self.once_for_all)
        features = column_features(self.description) if self.description else np.zeros((len(self.log_latencies), 0))
        if not features.std(axis=0).any():
            raise DataError(f"expected columns that describe networks in {self.path}, got none but latencies")
        return features


def read_networks(path: Path) -> NetworkTable:
    """Read a file, gzipped or not.

    Raises:
        DataError: it cannot be read, has no row, a column twice, or no column of a device.
    """
    read = read_device_columns(path, "network")
    latencies = np.column_stack([_log_latencies(read, device) for device in read.devices])
    return NetworkTable(path, read.columns, read.devices, latencies)


def _log_latencies(read: DeviceColumns, device: str) -> FloatArray:
    cells = read.latencies(device)
    doubts = read.columns.get(device + _DOUBT, [""] * len(cells))
    ms = [math.nan if doubt else milliseconds(cell) for cell, doubt in zip(cells, doubts, strict=True)]
    return np.log(np.array(ms, dtype=np.float64))


def _architecture(depths: str, kernels: str, expands: str, resolution: str) -> Architecture:
    """One of once-for-all's: slots beyond a stage's depth are filled with something."""
    slots = list(zip(*([int(word) for word in words.split()] for words in (kernels, expands)), strict=True))
    numbers = [int(word) for word in depths.split()]
    per_stage = len(slots) // len(numbers)
    stages = tuple(tuple(slots[s * per_stage : s * per_stage + depth]) for s, depth in enumerate(numbers))
    return Architecture(int(resolution), 1.0, stages)


# ---- the new device -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PredictedNetworks:
    """Latencies of all networks of a table on a new device, as far as they were not measured predicted from others.

    is_measured  bool[N]
    ms           float64[N]   milliseconds
    deviations   float64[N]   relative standard deviations of what is predicted
    weights      by known device: its share in what is predicted
    """

    table: NetworkTable
    device: str
    is_measured: BoolArray
    ms: FloatArray
    deviations: FloatArray
    weights: Mapping[str, float]

    @property
    def num_measured(self) -> int:
        return int(self.is_measured.sum())

    @property
    def typical_error(self) -> float | None:
        """The median of the relative standard deviations; None where all was measured."""
        own = self.deviations[~self.is_measured]
        return float(np.median(own)) if len(own) else None

    def save(self, path: Path) -> None:
        """Write the table with all latencies of the new device, and beside each predicted one its deviation.

        Raises:
            ChanasError: the file cannot be written.
        """
        latency, doubt = self.device + LATENCY, self.device + _DOUBT
        columns = {name: list(cells) for name, cells in self.table.columns.items() if name != doubt}
        predicted = np.flatnonzero(~self.is_measured).tolist()
        columns[doubt] = [""] * len(self.ms)
        for i in predicted:
            columns[latency][i], columns[doubt][i] = f"{self.ms[i]:.6g}", f"{self.deviations[i]:.4f}"
        write_csv(path, columns)

    def lines(self) -> Iterator[str]:
        """The prediction for people."""
        yield (
            f"networks   {len(self.ms)}: {self.num_measured} measured on {self.device}, "
            f"{len(self.ms) - self.num_measured} predicted from {len(self.weights)} other devices"
        )
        for name in self.table.names:
            yield f"left out   column {name}, whose words name rows and don't describe them"
        shown = sorted(self.weights.items(), key=lambda pair: -pair[1])
        alike = ", ".join(f"{name} {weight:.2f}" for name, weight in shown if weight >= _SHOWN_WEIGHT)
        yield f"weights    {alike or 'none above a twentieth'}"
        if self.typical_error is not None:
            yield f"predicted  ± {self.typical_error:.1%} (median)"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "device": self.device,
            "num_networks": len(self.ms),
            "num_measured": self.num_measured,
            "weights": dict(self.weights),
            "predicted_error": self.typical_error,
            "left_out": list(self.table.names),
        }


def predict_networks(table: NetworkTable, device: str) -> PredictedNetworks:
    """Predict what a device takes for all networks of a table, of which some were measured there, from the other
    devices (`latencies`). Networks that lack a latency on one of the others are predicted from what they are.

    Raises:
        ConfigError: the table has no such device.
        DataError: there is no other device, or too few networks were measured on the device or on all others.
    """
    if device not in table.devices:
        raise ConfigError(unknown_name("device", device, table.devices))
    others = [i for i, name in enumerate(table.devices) if name != device]
    measured, known = table.log_latencies[:, table.devices.index(device)], table.log_latencies[:, others]
    is_measured, is_known = ~np.isnan(measured), ~np.isnan(known).any(axis=1)
    if not others:
        raise DataError(f"expected columns DEVICE{LATENCY} of other devices than {device} in {table.path}, got none")
    for rows, where in ((is_measured, device), (is_known, "each other device")):
        if (num := int(rows.sum())) < MIN_MEASURED:
            raise DataError(
                f"expected at least {MIN_MEASURED} networks with a latency on {where} in {table.path}, got {num}"
            )
    if not is_known.all() and not tells_noise(table.features[is_known]):
        raise DataError(
            f"{int((~is_known).sum())} networks in {table.path} lack a latency on another device than {device}, and "
            f"the other {int(is_known.sum())} are too few to predict them from what they are; leave them out"
        )
    devices = fit_known(table.features[is_known], known[is_known])
    whole = devices.on(table.features)
    whole.fitted[is_known], whole.errors[is_known] = devices.fitted, devices.errors
    found = adapt(whole, np.flatnonzero(is_measured), measured[is_measured])
    return PredictedNetworks(
        table,
        device,
        is_measured,
        np.exp(np.where(is_measured, measured, found.log_latencies)),
        found.deviations,
        dict(zip((table.devices[i] for i in others), found.weights.tolist(), strict=True)),
    )
