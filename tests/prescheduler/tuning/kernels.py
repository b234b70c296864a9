"""A made-up GPU kernel in 720 configurations, on devices that differ as GPUs do.

Work takes the longer of computing and of moving data. Tiles are read again where they are small, lanes idle where a
block is no multiple of a warp, latencies are hidden by as many threads as registers and shared memory leave room for;
where not one block fits, the configuration does not work.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from chanas.core.genome import FloatArray

_SIDE, _TAPS = 4096.0, 7.0


@dataclass(frozen=True)
class Device:
    """A GPU: bytes and operations per second, blocks at once, KiB of shared memory, lanes of a warp, and the share of
    all threads that hides latencies."""

    bandwidth: float
    speed: float
    shared_kib: float
    num_registers: float
    warp: float
    need: float


SMALL = Device(450e9, 12e12, 16, 32768, 32, 0.4)
LARGE = Device(900e9, 26e12, 24, 40000, 32, 0.45)
OTHER = Device(500e9, 9e12, 12, 24576, 64, 0.8)

_VALUES = ((16, 32, 64, 128, 256), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4), ("row", "column"), (False, True))
GRID = list(itertools.product(*_VALUES))
TABLE = np.array([[str(cell) for cell in row] for row in GRID])


def log_seconds(device: Device, seed: int, own: float = 0.03) -> FloatArray:
    """float64[720]; NaN where a configuration does not work. `own` is the deviation of what each takes for itself."""
    threads, height, across, down = (np.array([row[i] for row in GRID], dtype=np.float64) for i in range(4))
    by_column = np.array([row[4] == "column" for row in GRID])
    shared = np.array([row[5] for row in GRID])
    warps = np.ceil(threads * height / device.warp)
    lanes = warps * device.warp
    wide, high = threads * across + _TAPS, height * down + _TAPS
    kib = np.where(shared, wide * high / 256.0, 0.0)
    registers = 16.0 + 3.0 * across * down
    room = np.minimum(device.num_registers / (registers * lanes), device.shared_kib / np.maximum(kib, 1e-9))
    blocks = np.minimum(np.floor(np.minimum(room, 2048.0 / lanes)), 16.0)
    hidden = np.clip(blocks * lanes / 2048.0 * (1.0 + 0.25 * np.log2(across * down)) / device.need, 0.05, 1.0)
    compute = (
        2.0 * _SIDE**2 * _TAPS**2 / device.speed * lanes / (threads * height) * (1.0 + 0.3 / np.sqrt(across * down))
    )
    again = np.where(shared, wide * high / (threads * across * height * down), 1.0 + _TAPS / np.sqrt(across * down))
    move = 4.0 * _SIDE**2 * (1.0 + again) / device.bandwidth * np.where(by_column, 1.3, 1.0)
    seconds = (np.maximum(compute, move) + 0.3 * np.minimum(compute, move)) / hidden
    noise = np.random.default_rng(seed).normal(0.0, own, len(GRID))
    return np.where((blocks >= 1) & (lanes <= 1024), np.log(seconds) + noise, np.nan)
