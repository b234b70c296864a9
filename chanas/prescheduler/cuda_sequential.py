"""GPU schedules carried out by this machine's processor, to be compared with PyTorch where there is no GPU: kernels as
they are printed, by all their threads at once (`cuda_emulator`). What the CUDA compiler makes of them is not tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.folding import unpack_channels
from chanas.prescheduler.cuda_build import kernel_program, verify
from chanas.prescheduler.cuda_emulator import run_kernel
from chanas.prescheduler.cuda_operators import num_rows, output_shape, parameter_shapes, weight_type
from chanas.prescheduler.cuda_schedules import schedule_gpu_operator
from chanas.prescheduler.reference import ReferenceCase, operator_case
from chanas.prescheduler.space import Point
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

Array = npt.NDArray[np.float32]
Stored = npt.NDArray[Any]


def gpu_case(workload: Workload) -> ReferenceCase:
    """`operator_case` with its arrays as GPU kernels read them (`cuda_operators`); what is expected is float32."""
    case, stored = operator_case(workload, 1), workload.input_storage
    kept = list(case.arguments)
    first = _plain(kept.pop(0)) if workload.op == "conv" else _rows(kept.pop(0), workload.input_size)
    arguments = [first.astype(stored)]
    if workload.op != "pool":
        weights, bias = kept.pop(0), kept.pop(0)
        arguments += [_weights(workload, weights), _plain(bias).reshape(-1)]
    if workload.scaled:
        arguments.append(_plain(kept.pop(0)).reshape(-1).astype(stored))
    if workload.residual:
        arguments.append(_rows(kept.pop(0), workload.output_size).astype(stored))
    expected = unpack_channels(_plain(case.expected), workload.out_channels).T
    return ReferenceCase(tuple(arguments), case.weights, np.ascontiguousarray(expected), case.tolerance)


def _plain(values: Any) -> Array:
    return np.ascontiguousarray(values, dtype=np.float32)


def _rows(values: Any, size: int) -> Array:
    """[C, M, 1] -> [R, C]; the rows beyond the map's pixels are not a number, to be found out if they are used."""
    rows = np.full((num_rows(size), values.shape[0]), np.nan, dtype=np.float32)
    rows[: size**2] = _plain(values).reshape(values.shape[0], -1).T
    return rows


def _weights(workload: Workload, values: Any) -> Stored:
    """[N, C·k·k, 1] -> [k·k, C, N], float16 products [k·k, C / 2, N, 2]; depthwise [C, k·k, 1] -> [k·k, C]."""
    shape, dtype = parameter_shapes(workload)[0], weight_type(workload)
    by_channel = _plain(values).reshape(values.shape[0], -1, shape[0])
    by_tap: Stored = by_channel.transpose(2, 1, 0).astype(dtype)
    if len(shape) == 4:
        by_tap = by_tap.reshape(*shape[:2], 2, shape[2]).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(by_tap).reshape(shape)


def kernel_error(function: Any, workload: Workload, target: HardwareTarget) -> float:
    """Largest error of a kernel, carried out here, relative to the largest magnitude that PyTorch gives.

    Raises:
        KernelError: its threads get in each other's way.
    """
    case, output = gpu_case(workload), _nothing(workload)
    arguments = dict(zip((str(p.name) for p in function.params), [*case.arguments, output], strict=True))
    run_kernel(kernel_program(verify(function, target), target), arguments)
    return _relative_error(workload, case, output)


def sequential_error(workload: Workload, point: Point, target: HardwareTarget) -> float:
    """`kernel_error` of a schedule point.

    Raises:
        ScheduleError: the point is not in the workload's space.
        KernelError: the kernel's threads get in each other's way.
    """
    return kernel_error(schedule_gpu_operator(workload, point, target), workload, target)


def _nothing(workload: Workload) -> Stored:
    return np.full(output_shape(workload), np.nan, dtype=workload.output_storage)


def _relative_error(workload: Workload, case: ReferenceCase, output: Stored) -> float:
    got = output.astype(np.float32).reshape(-1, workload.out_channels)[: workload.output_size**2]
    error = float(np.abs(got - case.expected).max())
    return error / max(1.0, float(np.abs(case.expected).max())) if np.isfinite(error) else float("inf")
