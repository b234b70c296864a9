"""The calls of ours that programs for processors may have."""

from __future__ import annotations

from chanas.compiler.cpu.arithmetic import register_bf16
from chanas.compiler.cpu.lanes import register_lanes
from chanas.compiler.expressions import register_bounds


def register_intrinsics() -> None:
    """Make all calls of ours known to the compiler: before it reads a program that has any."""
    register_bf16()
    register_bounds()
    register_lanes()
