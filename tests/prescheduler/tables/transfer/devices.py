"""Devices that are invented: an operator takes a sum of its costs, so that what a prediction should be is known."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.target import tvm_version
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.tables.transfer.shares import costs

from ....compiler.workbench import HOST

SPACE = SearchSpace.load("mbv3-32")
BLOCKS = SPACE.all_blocks(10)


@dataclass(frozen=True)
class Invented:
    """flops_per_s and bytes_per_s: its rates; `depthwise` is how much longer that takes; `luck` the share by which
    operators are off at random, each by its own."""

    flops_per_s: float = 5e10
    bytes_per_s: float = 2e10
    depthwise: float = 1.0
    luck: float = 0.0

    def operator_s(self, workload: Workload) -> float:
        flops, read, written, weights, _ = costs(workload)
        seconds = flops / self.flops_per_s + (read + written + weights) / self.bytes_per_s + 1e-6
        rng = np.random.default_rng(zlib.crc32(f"{workload.key}{self.flops_per_s}".encode()))
        return float(seconds * (self.depthwise if workload.op == "depthwise" else 1.0) * (1 + self.luck * rng.normal()))

    def block_s(self, block: BlockConfig) -> float:
        return sum(self.operator_s(w) for w in block_workloads(block))

    def log_seconds(self, blocks: Sequence[BlockConfig]) -> np.ndarray:
        return np.log([self.block_s(b) for b in blocks])

    def table(self, blocks: Sequence[BlockConfig]) -> LatencyLUT:
        """Its latency table, without schedules."""
        header = LUTHeader(HOST, tvm_version(), SPACE.name, SPACE.digest)
        return LatencyLUT(header, {b.key: LUTRow(self.block_s(b), 0.0, 4, ()) for b in blocks})


KNOWN = Invented()
NEW = Invented(flops_per_s=2e10, bytes_per_s=3e10, depthwise=1.6)
