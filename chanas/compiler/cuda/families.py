"""The operator families of NVIDIA GPUs in one table: for each operator in each dtype its points and its
kernels. A further dtype is further rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chanas.compiler.cuda import schedules, space
from chanas.compiler.cuda.operators import check_operator, is_dense
from chanas.compiler.cuda.product import product_kernel
from chanas.compiler.cuda.space import GPUSpace
from chanas.compiler.cuda.squeeze import squeeze_kernel
from chanas.compiler.families import Families, Family
from chanas.compiler.space import Point
from chanas.core.gpu import GPUFeatures
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Generality, Workload

Space = Callable[[Workload, GPUFeatures], GPUSpace[Any]]
Kernel = Callable[[Workload, Any, GPUFeatures], Any]


def _family(spaces: Space, kernel: Kernel, takes: frozenset[Generality] = frozenset()) -> Family[Any]:
    """A family by the limits of a GPU's descriptor."""

    def space_of(workload: Workload, target: HardwareTarget) -> GPUSpace[Any]:
        check_operator(workload)
        return spaces(workload, target.required_gpu)

    def program(workload: Workload, point: Point, target: HardwareTarget) -> Any:
        return kernel(workload, FAMILIES.space(workload, target).decode(point), target.required_gpu)

    return Family(space_of, program, takes=takes)


def _pointwise_space(workload: Workload, gpu: GPUFeatures) -> GPUSpace[Any]:
    return space.reduction(workload, gpu) if is_dense(workload) else space.product(workload, gpu)


def _pointwise(workload: Workload, point: Any, gpu: GPUFeatures) -> Any:
    """A 1×1 convolution; one of a single pixel is a dense layer."""
    return (schedules.dense if is_dense(workload) else product_kernel)(workload, point, gpu)


_PRODUCT = _family(space.product, product_kernel, frozenset({"residual"}))
_BY_OPERATOR: dict[str, Family[Any]] = {
    "conv": _PRODUCT,
    "blockconv": _PRODUCT,
    "pointwise": _family(_pointwise_space, _pointwise),
    "depthwise": _family(space.depthwise, schedules.depthwise),
    "pool": _family(space.reduction, schedules.pool),
    "squeeze": _family(space.squeeze, squeeze_kernel),
}
FAMILIES = Families(
    "cuda", "GPUs", {(op, dtype): f for op, f in _BY_OPERATOR.items() for dtype in ("float32", "float16", "tf32")}
)
