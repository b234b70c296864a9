"""One schedule point compiled: what its kernel uses, or why there is none."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from chanas.compiler.cuda.nvrtc import KernelFigures
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.errors import ChanasError, describe
from chanas.operators.workload import Workload


def compile_point(workload: Workload, point: Point, target: HardwareTarget) -> CompileRecord:
    """Compile a schedule point in this process and return its figures; a failure is a record with its error."""
    from chanas.compiler.cuda.build import build_kernel

    start = time.process_time()
    try:
        _, figures = build_kernel(workload, point, target, target.required_gpu.arch)
    except (ChanasError, RuntimeError, ValueError) as error:  # the compiler's own errors are RuntimeErrors
        return CompileRecord(point, None, describe(error, 300), time.process_time() - start)
    return CompileRecord(point, figures, None, time.process_time() - start)


@dataclass(frozen=True)
class CompileRecord:
    """One compiled schedule point: its figures, or the reason why there are none.

    `build_s` is processor time, from the point to the cubin.
    """

    point: Point
    figures: KernelFigures | None
    error: str | None = None
    build_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        figures = None if self.figures is None else self.figures.to_json()
        return {"point": list(self.point), "figures": figures, "error": self.error, "build_s": self.build_s}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CompileRecord:
        figures = None if data["figures"] is None else KernelFigures(**data["figures"])
        return cls(tuple(data["point"]), figures, data["error"], data["build_s"])
