"""A GPU whose kernels are carried out by this machine's processor, in the place of
`chanas.devices.cuda_runtime.CUDADevice`. Run as a program it is the worker of such a GPU, a file of which holds the
program itself instead of machine code."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chanas.compiler.cpu.build import load_module
from chanas.core.target import HardwareTarget
from chanas.devices.driver import FoundGPU
from chanas.devices.target_files import describe_target
from chanas.devices.timing import Call
from chanas.measuring.worker.cuda import serve

WORKER = (str(Path(__file__).resolve()),)


def found() -> FoundGPU:
    """What the driver of a machine with a GPU would say."""
    h100 = describe_target("h100")
    return FoundGPU("stand-in", h100.required_gpu, h100.l2_bytes)


class StandIn:
    """Programs run when they are called. Times are invented, a microsecond and a nanosecond for each number that a
    program is given: one processor takes far too long to be timed in a GPU's place."""

    def tensor(self, array: Any) -> Any:
        import tvm

        return tvm.runtime.tensor(array)

    def load(self, library: Path | str) -> Any:

        from tests.compiler.carried_out import machine

        return machine(load_module(Path(library)))

    def seconds(self, calls: Iterable[Call], cold: bool) -> float:
        return sum(1e-6 + 1e-9 * sum(math.prod(a.shape) for a in arguments) for _, arguments in calls)


def save_program(program: Any, target: HardwareTarget, library: Path) -> None:
    """Stands where `compile_program` stands."""
    import tvm

    assert target.required_gpu.arch == "sm_90"
    library.write_text(tvm.ir.save_json(program))


if __name__ == "__main__":
    serve(save_program, StandIn)
