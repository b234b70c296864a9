"""The operator families of CPUs in one table: for each operator in each dtype its points, its expression, its schedules
and the parameters that it reads. A further dtype is further rows.

TVM is loaded when something is computed or scheduled, not when spaces are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from chanas.compiler.cpu import bf16_schedules, schedules, shapes, space
from chanas.compiler.cpu.batches import over_images
from chanas.compiler.space import Decoded, Point, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.workload import Generality, Workload, check_generality, extra_names

Compute = Callable[[Workload, int, str, Any, Sequence[Any], Sequence[Any]], Any]


def _nothing(sch: Any, prefix: str) -> None:
    """Schedules of float32 need nothing more."""


def _as_it_is(function: Any, workload: Workload, lanes: int) -> Any:
    return function


def _mended(function: Any, workload: Workload, lanes: int) -> Any:
    from chanas.compiler.cpu.mending import mended

    return mended(function, workload, lanes)


@dataclass(frozen=True)
class Family(Generic[Decoded]):
    """A family of operators on a CPU in one dtype.

    space             the schedule space of an operator on a target
    expression        load TVM and give the family's expression (arguments as in `operators`)
    schedule          schedule the stages of an operator (by their prefix, in parallel or not) as a point says
    parameter_shapes  shapes of packed weights and bias for so many lanes; `chanas.network.folding` packs them
    takes             ways in which an operator may be more than a square one
    in_rectangles     the output is written as [B, H, W, l], by tiles of rows and columns, not as [B, pixels, l]
    finish            what the scheduled stages need beside
    complete          a scheduled function of an operator in a network, with what follows its stages
    """

    space: Callable[[Workload, HardwareTarget], ScheduleSpace[Decoded]]
    expression: Callable[[], Compute]
    schedule: Callable[[Any, Workload, Decoded, str, bool], None]
    parameter_shapes: Callable[[Workload, int], shapes.Shapes] = shapes.convolution_parameters
    takes: frozenset[Generality] = frozenset()
    in_rectangles: bool = False
    finish: Callable[[Any, str], None] = _nothing
    complete: Callable[[Any, Workload, int], Any] = _as_it_is


def _float32() -> Any:
    from chanas.compiler.cpu import operators

    return operators


def _bfloat16() -> Any:
    from chanas.compiler.cpu import bf16_operators

    return bf16_operators


def _import_bfloat16(sch: Any, prefix: str) -> None:
    from chanas.compiler.cpu.bf16_intrinsics import import_instructions

    import_instructions(sch, sch.get_loops(sch.get_sblock(f"{prefix}out"))[0])


_ANY_MAP: frozenset[Generality] = frozenset({"rectangular maps"})
_ANY_END: frozenset[Generality] = frozenset({"epilogue of its own", "residual", "residual before the epilogue"})
_ANY_STRIDE: frozenset[Generality] = _ANY_MAP | _ANY_END | {"stride", "strides by axis"}
_ANY_WINDOW: frozenset[Generality] = _ANY_STRIDE | {"rectangular kernels", "dilation", "padding of its own"}
_ANY_GROUPS: frozenset[Generality] = _ANY_WINDOW | {"groups"}

_CONV = Family(space.conv, lambda: _float32().conv, schedules.conv, takes=_ANY_WINDOW, in_rectangles=True)
_BLOCKCONV = Family(
    space.blockconv, lambda: _float32().blockconv, schedules.blockconv, takes=_ANY_GROUPS, in_rectangles=True
)
_GROUPCONV = Family(
    space.groupconv,
    lambda: _float32().groupconv,
    schedules.groupconv,
    shapes.grouped_parameters,
    _ANY_GROUPS,
    in_rectangles=True,
)
_WINOGRAD = Family(
    space.winograd,
    lambda: _float32().winograd,
    schedules.winograd,
    shapes.winograd_parameters,
    _ANY_WINDOW - {"dilation", "stride"},
    in_rectangles=True,
    complete=_mended,
)
_WINOGRAD2 = replace(
    _WINOGRAD, space=space.winograd2, expression=lambda: _float32().winograd2, schedule=schedules.winograd2
)
_UPCONV = Family(
    space.upconv,
    lambda: _float32().upconv,
    schedules.upconv,
    shapes.transposed_parameters,
    _ANY_WINDOW - {"dilation", "stride"},
    in_rectangles=True,
    complete=_mended,
)
_POINTWISE: Family[Any] = Family(
    space.pointwise, lambda: _float32().pointwise, schedules.pointwise, takes=_ANY_STRIDE | {"prologue"}
)
_DEPTHWISE = Family(
    space.depthwise,
    lambda: _float32().depthwise,
    schedules.depthwise,
    takes=_ANY_WINDOW | {"several outputs of a channel"},
    in_rectangles=True,
)
_POOL = Family(space.pool, lambda: _float32().pool, schedules.pool, shapes.no_parameters, _ANY_MAP)
_PAIRED_POINTWISE: Family[Any] = Family(
    bf16_schedules.pointwise_space,
    lambda: _bfloat16().pointwise,
    bf16_schedules.pointwise,
    shapes.paired_pointwise_parameters,
)
_PAIRED_DEPTHWISE = replace(
    _DEPTHWISE,
    takes=frozenset(),
    expression=lambda: _bfloat16().depthwise,
    parameter_shapes=shapes.paired_depthwise_parameters,
)

FAMILIES: dict[tuple[str, str], Family[Any]] = {
    ("conv", "float32"): _CONV,
    ("blockconv", "float32"): _BLOCKCONV,
    ("groupconv", "float32"): _GROUPCONV,
    ("winograd", "float32"): _WINOGRAD,
    ("winograd2", "float32"): _WINOGRAD2,
    ("pointwise", "float32"): _POINTWISE,
    ("depthwise", "float32"): _DEPTHWISE,
    ("pool", "float32"): _POOL,
    ("upconv", "float32"): _UPCONV,
    ("conv", "bfloat16"): replace(_CONV, takes=frozenset(), finish=_import_bfloat16),
    ("pointwise", "bfloat16"): replace(_PAIRED_POINTWISE, finish=_import_bfloat16),
    ("depthwise", "bfloat16"): replace(_PAIRED_DEPTHWISE, finish=_import_bfloat16),
    ("pool", "bfloat16"): replace(_POOL, takes=frozenset(), finish=_import_bfloat16),
}


def family_of(workload: Workload) -> Family[Any]:
    """The family of an operator in its dtype.

    Raises:
        ScheduleError: there is none for CPUs, or not for such windows.
    """
    family = FAMILIES.get((workload.op, workload.dtype))
    if family is None:
        is_there = any(op == workload.op for op, _ in FAMILIES)
        where = f"in {workload.dtype}" if is_there else "on CPUs"
        raise ScheduleError(f"operator {workload.op} is not there {where} (workload {workload.key})")
    check_generality(workload, family.takes)
    return family


def cpu_space(workload: Workload, target: HardwareTarget) -> ScheduleSpace[Any]:
    """The schedule space of a workload on a CPU, from its vector width and number of registers.

    Raises:
        ScheduleError: the operator is not there for CPUs in its dtype.
    """
    return family_of(workload).space(workload, target)


def compute(
    workload: Workload, lanes: int, prefix: str, x: Any, parameters: Sequence[Any], extras: Sequence[Any]
) -> Any:
    """The output tensor of an operator on given input, parameters and extras (shapes as in `shapes`)."""
    return family_of(workload).expression()(workload, lanes, prefix, x, parameters, extras)


def operator_arguments(workload: Workload, lanes: int) -> tuple[Any, ...]:
    """The tensors of one operator alone: input, weights, bias, gate, shift, residual (those there are), output."""
    from tvm import te

    parameters = [
        te.placeholder(shape, name=name)
        for shape, name in zip(family_of(workload).parameter_shapes(workload, lanes), ("weights", "bias"), strict=False)
    ]
    x = te.placeholder(shapes.input_shape(workload, lanes), workload.input_storage, name="x")
    extras = [
        te.placeholder(shape, workload.input_storage, name=name)
        for shape, name in zip(shapes.extra_shapes(workload, lanes), extra_names(workload), strict=True)
    ]
    return (x, *parameters, *extras, compute(workload, lanes, "op0_", x, parameters, extras))


def apply_point(sch: Any, workload: Workload, point: Point, target: HardwareTarget, prefix: str) -> None:
    """Schedule one operator in place.

    Raises:
        ScheduleError: the point is not in the workload's space.
    """
    family = family_of(workload)
    decoded = family.space(workload, target).decode(point)
    family.schedule(sch, workload, decoded, prefix, target.num_threads > 1)
    family.finish(sch, prefix)


def flatten_output(sch: Any, workload: Workload, prefix: str) -> None:
    """[B, H, W, l] -> [B, H·W, l] for the output of an operator that a function returns."""
    if family_of(workload).in_rectangles:
        width, block = workload.axes[1].output, sch.get_sblock(f"{prefix}out")
        sch.transform_layout(block, ("write", 0), lambda b, h, w, v: (b, h * width + w, v))


def schedule_operator(workload: Workload, point: Point, target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` of one operator alone, scheduled by `point`; its symbol is `main`."""
    from tvm import s_tir, te

    one = replace(workload, batch=1)
    arguments = operator_arguments(one, target.vector_lanes)
    sch = s_tir.Schedule(te.create_prim_func(list(arguments)), error_render_level="none")
    apply_point(sch, one, point, target, "op0_")
    flatten_output(sch, one, "op0_")
    return over_images(sch.mod["main"], workload.batch, (1, 2) if workload.has_weights else ())
