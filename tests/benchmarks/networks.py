"""A file of networks as HELP's, on made-up devices."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.genome import decode, sample

DEVICES = ("fast_1", "fast_32", "slow_1", "slow_32", "titan_rtx_64")


def write_mbv3(path: Path, rng: np.random.Generator, names: str = "d ks e r") -> Path:
    """40 networks; devices differ in what a multiply-add and a kernel cost. Slots beyond a depth are filled."""
    space = SearchSpace.load("mbv3")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names.split(), *(f"{name}_ms" for name in DEVICES)])
        for a in decode(space, sample(space, 40, rng)):
            slots = [pair for stage in a.stages for pair in (*stage, *[(7, 3)] * (4 - len(stage)))]
            macs, kernels = a.num_macs(space) * 1e-8, sum(a.depths) * 0.1
            columns = [a.depths, [k for k, _ in slots], [e for _, e in slots]]
            times = [(macs * (1 + i) + kernels / (1 + i)) * rng.normal(1, 0.01) for i in range(len(DEVICES))]
            writer.writerow([*(" ".join(map(str, c)) for c in columns), a.resolution, *times])
    return path
