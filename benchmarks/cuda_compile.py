"""Random points of the GPU schedule spaces, compiled where there is no GPU: how many compile, and what one costs.

    python benchmarks/cuda_compile.py [--quick] [--arch sm_90] [--dtypes f32,f16,tf32] [--batch 1] [--points 60]
                                       [--seed 0]

Operators are those that a GPU tunes for `mbv3`, six points of each, and k×k convolutions over all channels from the
paper's table 3. Figures, each that of the worst kind of operator in the worst type:

  legal_share          points that are within the GPU's limits (`verify_gpu_code`)
  compiled_share       points that are, and compile
  milliseconds_each    processor time from a point to its cubin, median of the points that are legal

The table also has the medians of the stages: the program scheduled and written down (`schedule`), lowered and checked
(`verify`), printed as CUDA (`source`), compiled (`nvrtc`). The compilers run in this process, so that processor time is
theirs; the first point of each kind is left out. Nothing is run on a GPU, so nothing is said of how fast the kernels
are. A full run of all types takes about three minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from common import Figure, finish

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget, gpu_in_dtype, in_batches
from chanas.core.usage import GPU_DTYPES
from chanas.devices.lean_tvm import torch_hidden
from chanas.devices.target_files import arch_target
from chanas.errors import ChanasError

if TYPE_CHECKING:
    from chanas.compiler.cuda.nvrtc import KernelFigures
    from chanas.compiler.space import Point
    from chanas.operators.workload import Workload

SPACE, NUM_CLASSES = "mbv3", 1000
ARCH, ALL_DTYPES = "sm_90", ",".join(GPU_DTYPES)
GOAL_SHARE, GOAL_MS = 0.95, 100.0
POINTS_EACH = 6
STAGES = ("schedule", "verify", "source", "nvrtc")


@dataclass(frozen=True)
class Compiled:
    """What became of a point: milliseconds of processor time of each stage that it got through, and its figures."""

    stages_ms: tuple[float, ...]
    figures: KernelFigures | None = None
    error: str | None = None

    @property
    def legal(self) -> bool:
        return len(self.stages_ms) >= 1 + STAGES.index("verify")


def operators(target: HardwareTarget) -> dict[str, list[Workload]]:
    """The operators that points are drawn of, by kind."""
    from conv_layers import layers

    from chanas.measuring.checks.compile_points import kind_of
    from chanas.operators.steps import tuned_workloads

    further = [dataclasses.replace(workload, dtype=target.dtype, batch=target.batch) for workload in layers().values()]
    kinds: dict[str, list[Workload]] = {}
    blocks = SearchSpace.load(SPACE).all_blocks(NUM_CLASSES)
    for workload in dict.fromkeys((*tuned_workloads(blocks, target), *further)):
        kinds.setdefault(kind_of(workload), []).append(workload)
    return kinds


def compiled(workload: Workload, point: Point, target: HardwareTarget) -> Compiled:
    """One point through all stages, or up to the one at which it fails."""
    from chanas.compiler.backends import schedule_operator
    from chanas.compiler.cuda.build import cuda_source, verify
    from chanas.compiler.cuda.nvrtc import compile_cubin

    ends = [time.process_time()]
    figures = error = None
    try:
        function = schedule_operator(workload, point, target)
        ends.append(time.process_time())
        verified = verify(function, target)
        ends.append(time.process_time())
        source = cuda_source(verified, target)
        ends.append(time.process_time())
        _, figures = compile_cubin(source, target.required_gpu.arch)
        ends.append(time.process_time())
    except (ChanasError, RuntimeError, ValueError) as failure:  # the compiler's own errors are RuntimeErrors
        error = f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
    return Compiled(tuple(1e3 * (end - start) for start, end in itertools.pairwise(ends)), figures, error)


def measure(
    target: HardwareTarget, kind: str, workloads: Sequence[Workload], num_points: int, seed: int
) -> dict[str, Any]:
    """A row of the table: random points of random operators of one kind."""
    from chanas.compiler.backends import schedule_space

    rng = np.random.default_rng(seed)
    found: list[Compiled] = []
    while len(found) <= num_points:
        workload = workloads[int(rng.integers(len(workloads)))]
        points = schedule_space(workload, target).sample(POINTS_EACH, rng)
        found += [compiled(workload, point, target) for point in points]
    found = found[1 : 1 + num_points]
    legal = [one for one in found if one.legal]
    figures = [one.figures for one in found if one.figures is not None]
    each_ms = sorted(sum(one.stages_ms) for one in legal)
    by_stage = itertools.zip_longest(*(one.stages_ms for one in legal))
    stages_ms = [statistics.median(ms for ms in stage if ms is not None) for stage in by_stage]
    return {
        "dtype": target.dtype_name,
        "kind": kind,
        "operators": len(workloads),
        "points": len(found),
        "legal": len(legal),
        "compiled": len(figures),
        "spilled": sum(f.spill_store_bytes > 0 for f in figures),
        "most_registers": max((f.registers for f in figures), default=None),
        "median_ms": statistics.median(each_ms) if each_ms else math.nan,
        "p90_ms": each_ms[int(0.9 * len(each_ms))] if each_ms else math.nan,
        "stages_ms": dict(zip(STAGES, stages_ms, strict=False)),
        "errors": sorted({one.error for one in found if one.error is not None})[:3],
    }


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    stages = "".join(f"{row['stages_ms'].get(stage, math.nan):>10.1f}" for stage in STAGES)
    return (
        f"{row['dtype']:6s}{row['kind']:14s}{row['operators']:>10d}{row['points']:>8d}{row['legal']:>7d}"
        f"{row['compiled']:>10d}{row['spilled']:>7d}{stages}{row['median_ms']:>11.1f}{row['p90_ms']:>9.1f}"
    )


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """The worst row's."""
    shares = {
        what: min((row[what] / row["points"] for row in rows), default=math.nan) for what in ("legal", "compiled")
    }
    slowest = max((row["median_ms"] for row in rows), default=math.nan)
    return {
        **{f"{what}_share": Figure(share, GOAL_SHARE) for what, share in shares.items()},
        "milliseconds_each": Figure(slowest, GOAL_MS, lower_is_better=True),
    }


def result_name(arch: str, dtypes: str, batch: int) -> str:
    """Name of the results of these options, without what is usual: `cuda_compile-sm_80-f16-b32`."""
    parts = (
        "" if arch == ARCH else arch,
        "" if dtypes == ALL_DTYPES else dtypes.replace(",", "-"),
        "" if batch == 1 else f"b{batch}",
    )
    return "-".join(["cuda_compile", *filter(None, parts)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few points; nothing is written")
    parser.add_argument("--arch", default=ARCH)
    parser.add_argument("--dtypes", default=ALL_DTYPES, help="one or several of " + ", ".join(GPU_DTYPES))
    parser.add_argument("--points", type=int, default=60, help="of each kind of operator in each type")
    parser.add_argument("--batch", type=int, default=1, help="images at once")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    num_points = min(6, options.points) if options.quick else options.points

    rows = []
    with torch_hidden():
        from chanas.compiler.cuda.nvrtc import library_for

        try:
            nvrtc = library_for(options.arch)
            gpu = arch_target(options.arch)
            targets = [in_batches(gpu_in_dtype(gpu, dtype), options.batch) for dtype in options.dtypes.split(",")]
        except ChanasError as error:
            raise SystemExit(f"cuda_compile: error: {error}") from error
        print(f"{options.arch}, batch {options.batch}, {nvrtc.name}, {SPACE}")
        print("milliseconds of processor time, medians\n")
        stages = "".join(f"{stage:>10s}" for stage in STAGES)
        print(
            f"{'dtype':6s}{'kind':14s}{'operators':>10s}{'points':>8s}{'legal':>7s}{'compile':>10s}{'spill':>7s}{stages}"
            f"{'median ms':>11s}{'90 % ms':>9s}"
        )
        for target in targets:
            for kind, workloads in operators(target).items():
                rows.append(measure(target, kind, workloads, num_points, options.seed))
                print(line(rows[-1]), flush=True)
    finish(
        result_name(options.arch, options.dtypes, options.batch),
        figures_of(rows),
        options.quick,
        {
            "seed": options.seed,
            "arch": options.arch,
            "dtypes": options.dtypes,
            "batch": options.batch,
            "compiler": nvrtc.name,
            "space": SPACE,
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
