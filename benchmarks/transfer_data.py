"""Files that transfer.py reads: tables of configurations or networks with a latency on each of several devices."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from labels import synthetic

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.genome import FloatArray, Genomes, encode
from chanas.errors import ChanasError
from chanas.search.transfer.columns import choice_columns, codes, column_features, names_of_rows, quantities
from chanas.search.transfer.features import block_columns, latency_features, log_costs, resolutions

LATENCY = "_ms"
ACCURACIES = ("accuracy", "top1")
# The columns of once-for-all's MobileNetV3 in HELP's file, and the device there that is another one times 1.95.
MBV3 = ("d", "ks", "e", "r")
LEFT_OUT = ("titan_rtx_64",)

Columns = dict[str, list[str]]


@dataclass(frozen=True)
class Measured:
    """Networks, and their log latencies float64[N, D] on devices.

    features  float64[N, F]  what `fit_known` reads
    blocks    float64[N, B]  which blocks a network has; each has a time that is a sum over `sizes`
    sizes     float64[N, K]  a constant, and quantities that times grow with
    trees     float64[N, T]  what gradient boosting reads
    top1      float64[N] by a seed, in [0, 1]; None where no accuracies are known
    """

    devices: tuple[str, ...]
    log_latencies: FloatArray
    features: FloatArray
    blocks: FloatArray
    sizes: FloatArray
    trees: FloatArray
    top1: Callable[[int], FloatArray] | None

    @property
    def gpus(self) -> tuple[str, ...]:
        """What each device is without the number of its batch: `v100_32` and `v100_1` are one."""
        return tuple(re.sub(r"_\d+$", "", name) for name in self.devices)


# ---- tables ---------------------------------------------------------------------------------------------------------
def read_columns(path: Path, num: int | None = None) -> Columns:
    """Cells by column of a CSV file, gzipped or not; `num` rows, evenly spaced, where it is given.

    Raises:
        SystemExit: there are no rows, or one has more or fewer cells than there are columns.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        rows = [row for row in reader if row]
    if not rows:
        raise _error(f"expected a row of names and rows of values in {path.name}, got {len(header)} names and no row")
    for line, row in enumerate(rows):
        if len(row) != len(header):
            raise _error(f"expected {len(header)} cells in row {line + 2} of {path.name}, got {len(row)}")
    if num is not None:
        rows = rows[:: max(1, len(rows) // num)][:num]
    return {name: [cell.strip() for cell in cells] for name, cells in zip(header, zip(*rows, strict=True), strict=True)}


def take_latencies(columns: Columns, name: str) -> tuple[tuple[str, ...], FloatArray]:
    """Take the devices out of a table, with their log latencies float64[N, D]: NaN where a cell is no positive number.

    Raises:
        SystemExit: there are fewer than two devices, or one without a single latency.
    """
    found = [column for column in columns if column.endswith(LATENCY) and column != LATENCY]
    if len(found) < 2:
        raise _error(f"expected a column DEVICE{LATENCY} for each of at least two devices in {name}, got {len(found)}")
    latencies = np.array([[latency(cell) for cell in columns.pop(column)] for column in found]).T
    devices = tuple(column.removesuffix(LATENCY) for column in found)
    empty = [device for device, column in zip(devices, latencies.T, strict=True) if np.isnan(column).all()]
    if empty:
        raise _error(
            f"expected a latency of each device in {name}, got none of {', '.join(empty)}: leave the column out"
        )
    return devices, np.log(latencies)


def latency(cell: str) -> float:
    """Milliseconds; NaN for an empty cell, a word, infinity, zero and less."""
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if 0.0 < value < math.inf else math.nan


def _error(text: str) -> SystemExit:
    return SystemExit(f"transfer: error: {text}")


# ---- networks -------------------------------------------------------------------------------------------------------
def read_measured(path: Path, num: int | None = None) -> Measured:
    """The networks of the file; `num` of them, evenly spaced, where it is given. Those without a latency on one of the
    devices are left out."""
    columns = read_columns(path, num)
    space = read_mbv3(columns)
    if space is not None:
        for device in LEFT_OUT:
            columns.pop(device + LATENCY, None)
    devices, y = take_latencies(columns, path.name)
    complete = ~np.isnan(y).any(axis=1)
    if not complete.any():
        raise _error(f"expected networks with a latency on each device in {path.name}, got none")
    if not complete.all():
        print(f"left out: {int((~complete).sum())} of {len(y)} networks that lack a latency on some device")
    y = y[complete]
    if space is not None:
        return _mbv3(space[0], space[1][complete], devices, y)
    kept = {name: [cell for cell, keep in zip(cells, complete, strict=True) if keep] for name, cells in columns.items()}
    return _any_space(kept, devices, y, path.name)


def read_mbv3(columns: Mapping[str, list[str]]) -> tuple[SearchSpace, Genomes] | None:
    """Space and genomes of a table whose columns `MBV3` are once-for-all's; None if they are something else."""
    if not set(MBV3) <= set(columns):
        return None
    mbv3 = SearchSpace.load("mbv3")
    try:
        architectures = [
            _architecture(dict(zip(MBV3, row, strict=True))) for row in zip(*(columns[c] for c in MBV3), strict=True)
        ]
        space = dataclasses.replace(
            mbv3, name="ofa", resolutions=tuple(sorted({a.resolution for a in architectures})), width_multipliers=(1.0,)
        )
        return space, encode(space, architectures)
    except (ValueError, KeyError, ZeroDivisionError, ChanasError):
        return None


def _architecture(row: Mapping[str, str]) -> Architecture:
    depths, kernels, expands = ([int(word) for word in row[name].split()] for name in ("d", "ks", "e"))
    slots = list(zip(kernels, expands, strict=True))
    per_stage = len(slots) // len(depths)
    stages = tuple(tuple(slots[s * per_stage : s * per_stage + depth]) for s, depth in enumerate(depths))
    return Architecture(int(row["r"]), 1.0, stages)


def _mbv3(space: SearchSpace, genomes: Genomes, devices: tuple[str, ...], y: FloatArray) -> Measured:
    area = (resolutions(space, genomes) / space.resolutions[-1]) ** 2
    ones = np.ones(len(area))
    return Measured(
        devices,
        y,
        latency_features(space, genomes),
        blocks=np.column_stack([block_columns(space, genomes), ones]),
        sizes=np.column_stack([ones, area]),
        trees=np.hstack([genomes, log_costs(space, genomes)]),
        top1=lambda seed: synthetic(space, seed)["saturating"](genomes),
    )


def _any_space(columns: Columns, devices: tuple[str, ...], y: FloatArray, name: str) -> Measured:
    accuracies = next((columns.pop(c) for c in ACCURACIES if c in columns), None)
    for column in names_of_rows(columns):
        print(f"left out: column {column}, whose words name rows and don't describe them")
        del columns[column]
    features = column_features(columns) if columns else np.zeros((len(y), 0))
    if not features.std(axis=0).any():
        raise _error(f"expected columns that describe networks in {name}, got none but latencies")
    ones = np.ones((len(y), 1))
    sizes = np.hstack([ones, quantities(columns)])
    blocks = np.hstack([choice_columns(columns), ones])
    top1 = None if accuracies is None else _top1(accuracies, name)
    return Measured(devices, y, features, blocks, sizes, codes(columns), None if top1 is None else lambda _: top1)


def _top1(cells: list[str], name: str) -> FloatArray:
    try:
        values = np.array([float(cell) for cell in cells])
    except ValueError:
        values = np.array([math.nan])
    if not np.isfinite(values).all() or values.min() < 0.0 or values.max() > 100.0:
        raise _error(f"expected accuracies from 0 to 1, or in percent, in {name}, got others")
    return values / 100.0 if values.max() > 1.0 else values
