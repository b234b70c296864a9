"""GPU schedules carried out by this machine's processor, to be compared with PyTorch where there is no GPU: kernels as
they are printed, by all their threads at once (`cuda_emulator`). What the CUDA compiler makes of them is not tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chanas.folding import pack_rows
from chanas.prescheduler.cuda_build import kernel_program, verify
from chanas.prescheduler.cuda_emulator import run_kernel
from chanas.prescheduler.cuda_operators import num_rows, output_shape
from chanas.prescheduler.cuda_schedules import schedule_gpu_operator
from chanas.prescheduler.reference import ReferenceCase, operator_tensors, operator_tolerance
from chanas.prescheduler.space import Point
from chanas.prescheduler.worker import relative_error
from chanas.prescheduler.workload import Workload
from chanas.target import HardwareTarget

Array = npt.NDArray[np.float32]
Stored = npt.NDArray[Any]


def gpu_case(workload: Workload) -> ReferenceCase:
    """`operator_tensors` as GPU kernels read them (`cuda_operators`); what is expected is float32."""
    tensors, stored = operator_tensors(workload), workload.input_storage
    arguments: list[Stored] = [image_planes(tensors.x) if workload.op == "conv" else as_rows(tensors.x, stored)]
    weights: tuple[int, ...] = ()
    if tensors.weight is not None and tensors.bias is not None:
        arguments += pack_rows(workload.op, tensors.weight, tensors.bias, workload.dtype)
        weights = (1, 2)
    arguments += [as_rows(extra, stored) for extra in (tensors.gate, tensors.residual) if extra is not None]
    return ReferenceCase(tuple(arguments), weights, pixel_rows(tensors.out), operator_tolerance(workload))


def image_planes(images: Array) -> Array:
    """float32[B, C, H, W] -> [B·C, H·W], as the first convolution reads them."""
    return np.ascontiguousarray(images.reshape(images.shape[0] * images.shape[1], -1))


def pixel_rows(values: Array) -> Array:
    """float32[B, C, …] -> [B·pixels, C]"""
    by_image = values.reshape(*values.shape[:2], -1)
    return np.ascontiguousarray(by_image.transpose(0, 2, 1)).reshape(-1, values.shape[1])


def as_rows(values: Array, dtype: str = "float32") -> Stored:
    """float32[B, C, H, W] (or [B, C]) -> [R, C]; the rows beyond the pixels are not a number, to be found out if they
    are used."""
    pixels = pixel_rows(values)
    rows = np.full((num_rows(values.shape[2] if values.ndim > 2 else 1, len(values)), values.shape[1]), np.nan, dtype)
    rows[: len(pixels)] = pixels
    return rows


def kernel_error(function: Any, workload: Workload, target: HardwareTarget) -> float:
    """Largest error of a kernel, carried out here, relative to the largest magnitude that PyTorch gives.

    Raises:
        KernelError: its threads get in each other's way.
    """
    case, output = gpu_case(workload), _nothing(workload)
    arguments = dict(zip((str(p.name) for p in function.params), [*case.arguments, output], strict=True))
    run_kernel(kernel_program(verify(function, target), target), arguments)
    got = output.astype(np.float32).reshape(-1, workload.out_channels)[: len(case.expected)]
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
