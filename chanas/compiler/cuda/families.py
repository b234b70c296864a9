"""The operator families of NVIDIA GPUs in one table: for each operator in each dtype its points and its
kernels. A further dtype is further rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from chanas.compiler.cuda import schedules, space
from chanas.compiler.cuda.operators import check_operator, is_dense
from chanas.compiler.cuda.product import product_kernel
from chanas.compiler.cuda.space import GPUSpace
from chanas.compiler.cuda.squeeze import squeeze_kernel
from chanas.compiler.space import Decoded, Point
from chanas.core.gpu import GPUFeatures
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.workload import Generality, Workload, check_generality


@dataclass(frozen=True)
class Family(Generic[Decoded]):
    """A family of operators on a GPU in one dtype.

    space    the schedule space of an operator within a GPU's limits
    kernel   a `tirx.PrimFunc` `main` of an operator as a point says
    takes    ways in which an operator may be more than a square one
    """

    space: Callable[[Workload, GPUFeatures], GPUSpace[Decoded]]
    kernel: Callable[[Workload, Decoded, GPUFeatures], Any]
    takes: frozenset[Generality] = frozenset()


_PRODUCT = Family(space.product, product_kernel, frozenset({"residual"}))
_BY_OPERATOR: dict[str, Family[Any]] = {
    "conv": _PRODUCT,
    "blockconv": _PRODUCT,
    "pointwise": _PRODUCT,
    "dense": Family(space.reduction, schedules.dense),
    "depthwise": Family(space.depthwise, schedules.depthwise),
    "pool": Family(space.reduction, schedules.pool),
    "squeeze": Family(space.squeeze, squeeze_kernel),
}
FAMILIES = {(op, dtype): f for op, f in _BY_OPERATOR.items() for dtype in ("float32", "float16", "tf32")}
"""Families by operator and dtype; a 1×1 convolution of one pixel is `dense`."""


def family_of(workload: Workload) -> Family[Any]:
    """The family of an operator in its dtype.

    Raises:
        ScheduleError: there is none for GPUs, or not for so many images or of such channels.
    """
    family = FAMILIES.get(("dense" if is_dense(workload) else workload.op, workload.dtype))
    if family is None:
        raise ScheduleError(f"operator {workload.op} is not there for GPUs in {workload.dtype} ({workload.key})")
    check_generality(workload, family.takes)
    check_operator(workload)
    return family


@functools.lru_cache(maxsize=512)
def gpu_space(workload: Workload, target: HardwareTarget) -> GPUSpace[Any]:
    """The space of a workload on a GPU, from the limits of its descriptor.

    Raises:
        ScheduleError: the operator is not there for GPUs.
        TargetError: the target is none.
    """
    gpu = target.required_gpu
    return family_of(workload).space(workload, gpu)


def schedule_gpu_operator(workload: Workload, point: Point, target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` of one operator, scheduled by `point`; its symbol is `main`, the kernel's `main_kernel`.

    Raises:
        ScheduleError: the point is not in the workload's space, or the operator is not there for GPUs.
    """
    decoded = gpu_space(workload, target).decode(point)
    return family_of(workload).kernel(workload, decoded, target.required_gpu)
