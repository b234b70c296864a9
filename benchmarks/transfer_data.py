"""Networks with latencies on several devices, as transfer.py compares them: what `chanas lut predict` reads, and what
its contenders read besides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from labels import synthetic

from chanas.core.arrays import FloatArray
from chanas.errors import DataError
from chanas.files.csv_files import as_numbers
from chanas.search.transfer.columns import choice_columns, quantities, slots_of
from chanas.search.transfer.features import block_columns, log_costs, resolutions
from chanas.search.transfer.networks import ACCURACIES, NetworkTable, read_networks

# A device of HELP's file that is another one times 1.95.
LEFT_OUT = ("titan_rtx_64",)


@dataclass(frozen=True)
class Measured:
    """Networks, and their log latencies float64[N, D] on devices.

    table     what they were read from
    rows      int64[N]  their rows there
    features  float64[N, F]  what `fit_known` reads
    blocks    float64[N, B]  which blocks a network has; each has a time that is a sum over `sizes`
    sizes     float64[N, K]  a constant, and quantities that times grow with
    trees     float64[N, T]  what gradient boosting reads
    top1      float64[N] by a seed, in [0, 1]; None where no accuracies are known
    """

    table: NetworkTable
    rows: np.ndarray
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


def read_measured(path: Path, num: int | None = None) -> Measured:
    """The networks of the file; `num` of them, evenly spaced, where it is given. Those without a latency on one of the
    devices are left out.

    Raises:
        DataError: it cannot be read, or has not what is compared.
    """
    table = read_networks(path)
    devices = [d for d in table.devices if table.once_for_all is None or d not in LEFT_OUT]
    if len(devices) < 2:
        raise DataError(f"expected a column DEVICE_ms for each of at least two devices in {path}, got {len(devices)}")
    y = table.log_latencies[:, [table.devices.index(d) for d in devices]]
    complete = ~np.isnan(y).any(axis=1)
    if not complete.any():
        raise DataError(f"expected networks with a latency on each device in {path}, got none")
    if not complete.all():
        print(f"left out: {int((~complete).sum())} of {len(y)} networks that lack a latency on some device")
    for name in table.names:
        print(f"left out: column {name}, whose words name rows and don't describe them")
    rows = np.flatnonzero(complete)
    if num is not None:
        rows = rows[:: max(1, len(rows) // num)][:num]
    blocks, sizes, trees = _of_once_for_all(table) if table.once_for_all is not None else _of_any_space(table)
    x, top1 = table.features[rows], _accuracies(table, rows)
    return Measured(table, rows, tuple(devices), y[rows], x, blocks[rows], sizes[rows], trees[rows], top1)


def _of_once_for_all(table: NetworkTable) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Blocks, sizes and what trees read."""
    assert table.once_for_all is not None
    space, genomes = table.once_for_all
    area = (resolutions(space, genomes) / space.resolutions[-1]) ** 2
    ones = np.ones(len(area))
    return (
        np.column_stack([block_columns(space, genomes), ones]),
        np.column_stack([ones, area]),
        np.hstack([genomes, log_costs(space, genomes)]),
    )


def _of_any_space(table: NetworkTable) -> tuple[FloatArray, FloatArray, FloatArray]:
    ones, described = np.ones((len(table.log_latencies), 1)), table.description
    if not described:
        raise DataError(f"expected columns that describe networks in {table.path}, got none but latencies")
    blocks = np.hstack([choice_columns(described), ones])
    return blocks, np.hstack([ones, quantities(described)]), codes(described)


def codes(columns: Mapping[str, Sequence[str]]) -> FloatArray:
    """float64[N, P], for trees: the number in each slot, or that of its word among the slot's words."""
    out = []
    for slot in slots_of(columns):
        numbers = as_numbers(slot)
        out.append(np.unique(slot, return_inverse=True)[1].astype(np.float64) if numbers is None else numbers)
    return np.column_stack(out)


def _accuracies(table: NetworkTable, rows: np.ndarray) -> Callable[[int], FloatArray] | None:
    """SYNTHETIC ones of once-for-all's networks, of others those of the file."""
    if table.once_for_all is not None:
        space, genomes = table.once_for_all
        return lambda seed: synthetic(space, seed)["saturating"](genomes[rows])
    cells = next((table.columns[name] for name in ACCURACIES if name in table.columns), None)
    if cells is None:
        return None
    values = as_numbers(np.array(cells)[rows])
    if values is None or values.min() < 0.0 or values.max() > 100.0:
        raise DataError(f"expected accuracies from 0 to 1, or in percent, in {table.path}, got others")
    top1 = values / 100.0 if values.max() > 1.0 else values
    return lambda _: top1
