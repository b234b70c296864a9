"""GPU schedules carried out by this machine's processor, to be compared with PyTorch where there is no GPU: kernels as
they are printed, by all their threads at once (`emulator`). What the CUDA compiler makes of them is not
tested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.compiler.cases import operator_case, relative_error
from chanas.compiler.cuda.build import kernel_program, verify
from chanas.compiler.cuda.emulator import run_kernel
from chanas.compiler.cuda.families import FAMILIES
from chanas.compiler.cuda.operators import output_shape
from chanas.compiler.space import Point
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Workload


def kernel_error(function: Any, workload: Workload, target: HardwareTarget, odd: Sequence[float] = ()) -> float:
    """Largest error of a kernel, carried out here, relative to the largest magnitude that PyTorch gives; the input has
    numbers such as NaN if `odd` has some.

    Raises:
        KernelError: its threads get in each other's way.
    """
    output = np.full(output_shape(workload), np.nan, dtype=workload.output_storage)
    case = operator_case(workload, target, odd)
    arguments = dict(zip((str(p.name) for p in function.params), [*case.arguments, output], strict=True))
    run_kernel(kernel_program(verify(function, target), target), arguments)
    got = output.astype(np.float32).reshape(-1, workload.out_channels)[: len(case.expected)]
    return relative_error(got, case.expected)


def sequential_error(workload: Workload, point: Point, target: HardwareTarget, odd: Sequence[float] = ()) -> float:
    """`kernel_error` of a schedule point.

    Raises:
        ScheduleError: the point is not in the workload's space.
        KernelError: the kernel's threads get in each other's way.
    """
    return kernel_error(FAMILIES.program(workload, point, target), workload, target, odd)
