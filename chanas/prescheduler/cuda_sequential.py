"""GPU schedules carried out by this machine's processor, to be compared with PyTorch where there is no GPU: kernels as
they are printed, by all their threads at once (`cuda_emulator`). What the CUDA compiler makes of them is not tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.folding import pack_rows, unpack_channels
from chanas.prescheduler.cuda_build import kernel_program, verify
from chanas.prescheduler.cuda_emulator import run_kernel
from chanas.prescheduler.cuda_operators import num_rows, output_shape
from chanas.prescheduler.cuda_schedules import schedule_gpu_operator
from chanas.prescheduler.reference import ReferenceCase, operator_case
from chanas.prescheduler.space import Point
from chanas.prescheduler.worker import relative_error
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

Array = npt.NDArray[np.float32]
Stored = npt.NDArray[Any]


def gpu_case(workload: Workload) -> ReferenceCase:
    """`operator_case` with its arrays as GPU kernels read them (`cuda_operators`); what is expected is float32."""
    case, stored = operator_case(workload, 1), workload.input_storage
    kept = [np.ascontiguousarray(a, dtype=np.float32) for a in case.arguments]
    x = kept.pop(0)
    arguments: list[Stored] = [x if workload.op == "conv" else as_rows(x, workload.input_size, stored)]
    if workload.op != "pool":
        weights, bias = kept.pop(0), kept.pop(0)
        weights = weights.reshape(len(weights), -1, workload.kernel_size**2)
        arguments += pack_rows(workload.op, weights, bias.reshape(-1), workload.dtype)
    if workload.scaled:
        arguments.append(kept.pop(0).reshape(-1).astype(stored))
    if workload.residual:
        arguments.append(as_rows(kept.pop(0), workload.output_size, stored))
    expected = unpack_channels(np.ascontiguousarray(case.expected, dtype=np.float32), workload.out_channels).T
    return ReferenceCase(tuple(arguments), case.weights, np.ascontiguousarray(expected), case.tolerance)


def as_rows(values: Array, size: int, dtype: str = "float32") -> Stored:
    """float32[C, …] of `size`·`size` pixels -> [R, C], a map's rows; those beyond its pixels are not a number, to be
    found out if they are used."""
    rows = np.full((num_rows(size), len(values)), np.nan, dtype=dtype)
    rows[: size**2] = values.reshape(len(values), -1).T
    return rows


def kernel_error(function: Any, workload: Workload, target: HardwareTarget) -> float:
    """Largest error of a kernel, carried out here, relative to the largest magnitude that PyTorch gives.

    Raises:
        KernelError: its threads get in each other's way.
    """
    case, output = gpu_case(workload), _nothing(workload)
    arguments = dict(zip((str(p.name) for p in function.params), [*case.arguments, output], strict=True))
    run_kernel(kernel_program(verify(function, target), target), arguments)
    got = output.astype(np.float32).reshape(-1, workload.out_channels)[: workload.output_size**2]
    return relative_error(got, case.expected)


def sequential_error(workload: Workload, point: Point, target: HardwareTarget) -> float:
    """`kernel_error` of a schedule point.

    Raises:
        ScheduleError: the point is not in the workload's space.
        KernelError: the kernel's threads get in each other's way.
    """
    return kernel_error(schedule_gpu_operator(workload, point, target), workload, target)


def _nothing(workload: Workload) -> Stored:
    return np.full(output_shape(workload), np.nan, dtype=workload.output_storage)
