"""Random points of the GPU schedule spaces, compiled where there is no GPU: how many compile, and what one costs.

    python benchmarks/cuda_compile.py [--quick] [--arch sm_90] [--dtype f32] [--points 60] [--seed 0]

Operators are drawn from `mbv3`, six points of each, and k×k convolutions over all channels from the paper's table 3.
Figures, each that of the worst kind of operator:

  compiled_share       points that are within the GPU's limits and compile
  milliseconds_each    processor time from a point to its cubin, median of the points

The compilers run in this process, so that processor time is theirs; the first point of each kind is left out. Nothing
is run on a GPU, so nothing is said of how fast the kernels are.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from common import Figure, finish

from chanas.arch import SearchSpace
from chanas.lean_tvm import torch_hidden
from chanas.target import GPU_DTYPES
from chanas.target_files import arch_target

if TYPE_CHECKING:
    from chanas.prescheduler.workload import Workload

SPACE, NUM_CLASSES = "mbv3", 1000
GOAL_SHARE, GOAL_MS = 0.95, 100.0
POINTS_EACH = 6


def operators(dtype: str = "float32") -> dict[str, list[Workload]]:
    """The operators that points are drawn of, by kind, in a type."""
    from conv_layers import layers

    from chanas.prescheduler.cuda_compile import kind_of
    from chanas.prescheduler.workload import block_workloads, squeezed

    blocks = SearchSpace.load(SPACE).all_blocks(NUM_CLASSES)
    alone = [block_workloads(block) for block in blocks]
    together = [squeezed(operators) for operators in alone]
    kinds: dict[str, list[Workload]] = {}
    for workload in dict.fromkeys((*(w for ws in alone + together for w in ws), *layers().values())):
        kinds.setdefault(kind_of(workload), []).append(dataclasses.replace(workload, dtype=dtype))
    return kinds


def measure(arch: str, kind: str, workloads: Sequence[Workload], num_points: int, seed: int) -> dict[str, Any]:
    """A row of the table: random points of random operators of one kind."""
    from chanas.prescheduler.cuda_compile import compile_point
    from chanas.prescheduler.cuda_space import gpu_space

    target, rng = arch_target(arch), np.random.default_rng(seed)
    records: list[Any] = []
    while len(records) <= num_points:
        workload = workloads[rng.integers(len(workloads))]
        points = gpu_space(workload, target).sample(POINTS_EACH, rng)
        records += [compile_point(workload, point, target) for point in points]
    records = records[1 : 1 + num_points]
    figures = [r.figures for r in records if r.figures is not None]
    build_ms = sorted(1e3 * r.build_s for r in records)
    return {
        "kind": kind,
        "operators": len(workloads),
        "points": len(records),
        "compiled": len(figures),
        "spilled": sum(f.spill_store_bytes > 0 for f in figures),
        "most_registers": max((f.registers for f in figures), default=None),
        "median_ms": statistics.median(build_ms),
        "p90_ms": build_ms[int(0.9 * len(build_ms))],
        "errors": sorted({r.error for r in records if r.error is not None})[:3],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few points; nothing is written")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--dtype", default="f32", choices=tuple(GPU_DTYPES))
    parser.add_argument("--points", type=int, default=60, help="of each kind of operator")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    num_points = min(6, options.points) if options.quick else options.points

    rows = []
    with torch_hidden():
        from chanas.prescheduler.cuda_nvrtc import check_arch, compiler_name

        check_arch(options.arch)
        print(f"{options.arch}, {options.dtype}, {compiler_name(options.arch)}, {SPACE}\n")
        print(f"{'kind':14s}{'operators':>10s}{'compile':>12s}{'spill':>7s}{'median ms':>11s}{'90 % ms':>9s}")
        for kind, workloads in operators(GPU_DTYPES[options.dtype]).items():
            row = measure(options.arch, kind, workloads, num_points, options.seed)
            rows.append(row)
            share = f"{row['compiled']}/{row['points']}"
            print(
                f"{kind:14s}{row['operators']:>10d}{share:>12s}{row['spilled']:>7d}{row['median_ms']:>11.0f}"
                f"{row['p90_ms']:>9.0f}",
                flush=True,
            )
    share = min((row["compiled"] / row["points"] for row in rows), default=math.nan)
    slowest = max((row["median_ms"] for row in rows), default=math.nan)
    finish(
        "cuda_compile" if options.dtype == "f32" else f"cuda_compile_{options.dtype}",
        {
            "compiled_share": Figure(share, GOAL_SHARE),
            "milliseconds_each": Figure(slowest, GOAL_MS, lower_is_better=True),
        },
        options.quick,
        {
            "seed": options.seed,
            "arch": options.arch,
            "compiler": compiler_name(options.arch),
            "space": SPACE,
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
