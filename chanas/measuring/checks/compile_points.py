"""Compiling the schedules of a space for a GPU that is not there: for each operator some random points are lowered,
checked against the GPU's limits and compiled. Nothing is run or timed but the compiler."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chanas.compiler.backends import schedule_space
from chanas.compiler.cuda.build import CompileRecord
from chanas.compiler.cuda.nvrtc import library_for
from chanas.compiler.cuda.operators import is_dense
from chanas.compiler.space import Point
from chanas.core.codec import from_json
from chanas.core.progress import progress_bar
from chanas.core.target import HardwareTarget
from chanas.errors import MeasureError
from chanas.measuring.messages import CompilePoint
from chanas.measuring.worker.compiler import Compiler, open_compiler, readable
from chanas.operators.workload import Workload

_TIMEOUT_S = 120.0  # one kernel; most take well under a second
_KINDS = {
    "pointwise": "1x1",
    "conv": "kxk (image)",
    "blockconv": "kxk",
    "depthwise": "depthwise",
    "pool": "pooling",
    "squeeze": "squeeze",
}


@dataclass(frozen=True)
class KindSummary:
    """All points of one kind of operator together."""

    kind: str
    num_points: int
    num_compiled: int
    num_spilled: int
    build_s: float
    """Median seconds of processor time of a point, from its integers to the cubin."""
    registers: tuple[int, int] = (0, 0)
    """Fewest and most of a thread."""
    shared_bytes: int = 0
    """Most of a block."""

    @property
    def share(self) -> float:
        return self.num_compiled / self.num_points

    def line(self) -> str:
        low, high = self.registers
        return (
            f"{self.kind:12s} {self.num_compiled:4d} of {self.num_points:4d} compile ({self.share:.0%}), "
            f"{1e3 * self.build_s:4.0f} ms each, {low}–{high} registers, {self.num_spilled} spill, "
            f"shared memory up to {self.shared_bytes / 1024:.1f} KiB"
        )


@dataclass(frozen=True)
class CompileSummary:
    """The result of a run of `compile_points`."""

    target: HardwareTarget
    compiler: str
    num_workloads: int
    num_points: int
    kinds: tuple[KindSummary, ...]
    most_frequent_error: str | None = field(default=None)


def kind_of(workload: Workload) -> str:
    """Return the workload's kind as a summary calls it."""
    return "dense" if is_dense(workload) else _KINDS.get(workload.op, workload.op)


def compile_elsewhere(compiler: Compiler, workload: Workload, point: Point) -> CompileRecord:
    """`compile_point` in the compiler's process; where that ends or takes too long the record says so."""
    answer = compiler.call(CompilePoint(target=compiler.target, workload=workload, point=point), _TIMEOUT_S)
    if answer.error is not None:
        return CompileRecord(point, None, readable(answer.error), answer.wall_s)
    record: CompileRecord = from_json(CompileRecord, answer.result)
    return record


def compile_points(
    workloads: Sequence[Workload],
    target: HardwareTarget,
    num_points: int,
    seed: int = 0,
    progress: bool = True,
) -> CompileSummary:
    """Compile random points of each workload; what they use, by kind of operator.

    Raises:
        TargetError: NVRTC is not there, or does not have the architecture.
        MeasureError: not one point compiles.
    """
    arch = target.required_gpu.arch
    nvrtc = library_for(arch)
    groups: dict[str, list[CompileRecord]] = defaultdict(list)
    with (
        open_compiler(target) as compiler,
        progress_bar(len(workloads), "compiling kernels", "operator", progress) as bar,
    ):
        for workload in workloads:
            points = schedule_space(workload, target).sample(num_points, np.random.default_rng(seed))
            groups[kind_of(workload)] += [compile_elsewhere(compiler, workload, point) for point in points]
            bar.update()
    records = [record for found in groups.values() for record in found]
    errors = [r.error for r in records if r.error is not None]
    most = statistics.mode(errors) if errors else None
    if len(errors) == len(records):
        raise MeasureError(f"no kernel compiles for {arch}: {most}")
    kinds = tuple(_summarise(groups))
    return CompileSummary(target, nvrtc.name, len(workloads), len(records), kinds, most)


def _summarise(groups: Mapping[str, list[CompileRecord]]) -> Iterable[KindSummary]:
    for kind, found in groups.items():
        figures = [r.figures for r in found if r.figures is not None]
        registers = [f.registers for f in figures] or [0]
        yield KindSummary(
            kind=kind,
            num_points=len(found),
            num_compiled=len(figures),
            num_spilled=sum(f.spill_store_bytes + f.spill_load_bytes > 0 for f in figures),
            build_s=statistics.median(r.build_s for r in found),
            registers=(min(registers), max(registers)),
            shared_bytes=max((f.shared_bytes for f in figures), default=0),
        )
