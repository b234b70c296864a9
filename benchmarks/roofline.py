"""What a network must take on one core: its arithmetic at the multiply-add peak, plus its weights at the rate at which
the core reads as many bytes again and again. What it takes beyond that, operator by operator, is what is left to gain.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders import timing_core
from operator_peak import FmaPeak

from chanas.core.blocks import BlockConfig
from chanas.measuring.messages import Outcome
from chanas.operators.steps import block_workloads
from chanas.operators.workload import Workload

READ_S = 0.4


def read_bandwidth_gbs(num_bytes: int, folder: Path) -> float:
    """GB/s at which the timing core reads an array of `num_bytes` over and over (the median of several stretches)."""
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise SystemExit("roofline: error: no C compiler found: expected cc, gcc or clang; install gcc")
    program = folder / "read_bandwidth"
    source = Path(__file__).resolve().parent / "read_bandwidth.c"
    subprocess.run([compiler, "-O3", "-march=native", "-o", str(program), str(source)], check=True)
    command = [str(program), str(timing_core()), str(num_bytes), str(READ_S)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return statistics.median(float(v) for v in output.split())


@dataclass(frozen=True)
class Limits:
    """What the core can do: GFLOP/s of float32 multiply-adds from registers, and GB/s of weights read."""

    peak_gflops: float
    read_gbs: float

    def arithmetic_s(self, workload: Workload) -> float:
        return workload.num_flops / self.peak_gflops / 1e9

    def weights_s(self, workload: Workload) -> float:
        return workload.weight_bytes / self.read_gbs / 1e9


def measured_limits(blocks: Sequence[BlockConfig], folder: Path) -> Limits:
    """The limits of the timing core for a network of these blocks."""
    peak = FmaPeak(folder)
    peak.sample()
    num_bytes = sum(w.weight_bytes for block in blocks for w in block_workloads(block))
    return Limits(max(peak.samples), read_bandwidth_gbs(num_bytes, folder))


def breakdown(
    blocks: Sequence[BlockConfig], timed: Mapping[Workload, Outcome], limits: Limits
) -> dict[str, dict[str, float]]:
    """Seconds by kind of operator: at the limits (arithmetic, weights), and as measured one by one with cold weights.

    Dense layers are apart from other 1×1 convolutions.
    """
    rows: dict[str, dict[str, float]] = {}
    for workload in (w for block in blocks for w in block_workloads(block)):
        dense = workload.op == "pointwise" and workload.input_size == 1
        row = rows.setdefault(
            "dense" if dense else workload.op, dict.fromkeys(("arithmetic_s", "weights_s", "measured_s"), 0.0)
        )
        row["arithmetic_s"] += limits.arithmetic_s(workload)
        row["weights_s"] += limits.weights_s(workload)
        row["measured_s"] += timed[workload].seconds or float("nan")
    return rows


def print_breakdown(rows: Mapping[str, Mapping[str, float]], whole_s: float) -> None:
    """The table, and how far the whole network is from its limit."""
    print(f"\n{'operators':12s} {'arithmetic':>11s} {'weights':>9s} {'measured':>9s}   ms; one by one, weights cold")
    for kind, row in rows.items():
        cells = [row[k] * 1e3 for k in ("arithmetic_s", "weights_s", "measured_s")]
        print(f"{kind:12s} {cells[0]:11.3f} {cells[1]:9.3f} {cells[2]:9.3f}")
    limit_s = sum(row["arithmetic_s"] + row["weights_s"] for row in rows.values())
    print(f"limit {limit_s * 1e3:.3f} ms, whole network {whole_s * 1e3:.3f} ms: {limit_s / whole_s:.0%} of the limit")


def to_json(rows: Mapping[str, Mapping[str, float]], limits: Limits, whole_s: float) -> dict[str, Any]:
    """What the result file keeps."""
    limit_s = sum(row["arithmetic_s"] + row["weights_s"] for row in rows.values())
    return {
        "peak_gflops": limits.peak_gflops,
        "read_gbs": limits.read_gbs,
        "operators": {kind: dict(row) for kind, row in rows.items()},
        "limit_s": limit_s,
        "share_of_limit": limit_s / whole_s,
    }
