"""The operator families of CPUs in one table: for each operator in each dtype its points, its expression, its schedules
and what it takes. A further dtype is further rows.

TVM is loaded when something is computed or scheduled, not when spaces are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chanas.compiler.cpu import schedules, space
from chanas.compiler.cpu.batches import over_images
from chanas.compiler.cpu.points import (
    BlockConvPoint,
    ConvPoint,
    DepthwisePoint,
    HalfBlockPoint,
    MatrixConvPoint,
    MatrixPoint,
    Padding,
)
from chanas.compiler.families import Complete, Compute, Families, Family, Stages
from chanas.compiler.space import EXTRA_KNOBS, Decoded, Point, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.layout import layout_of, operator_inputs
from chanas.operators.precision import precision_of
from chanas.operators.workload import Generality, Workload


# ---- operators alone, and parts of functions -------------------------------------------------------------------------
def stages_of(workload: Workload) -> Stages[Any]:
    """The stages of an operator in its dtype.

    Raises:
        ScheduleError: there are no such kernels, or none that can stand in a function with others.
    """
    stages = FAMILIES.of(workload).stages
    if stages is None:
        raise ScheduleError(f"operator {workload.op} stands in no function with others (workload {workload.key})")
    return stages


def compute(
    workload: Workload,
    point: Point,
    target: HardwareTarget,
    prefix: str,
    x: Any,
    parameters: Sequence[Any],
    extras: Sequence[Any],
) -> Any:
    """The output tensor of an operator on given input, parameters and extras (shapes as its layout has them).

    Raises:
        ScheduleError: the point is no schedule of the workload.
    """
    expression = stages_of(workload).expression(FAMILIES.space(workload, target).decode(point))
    return expression(workload, target.vector_lanes, prefix, x, parameters, extras)


def operator_arguments(workload: Workload, point: Point, target: HardwareTarget) -> tuple[Any, ...]:
    """The tensors of one operator alone: input, weights, bias, gate, shift, residual (those there are), output."""
    from tvm import te

    layout = FAMILIES.of(workload).layout(target)
    x, *rest = (te.placeholder(a.shape, a.dtype, name=a.name) for a in operator_inputs(workload, layout))
    num_parameters = len(layout.parameters(workload))
    parameters, extras = rest[:num_parameters], rest[num_parameters:]
    return (x, *rest, compute(workload, point, target, "op0_", x, parameters, extras))


def apply_point(sch: Any, workload: Workload, point: Point, target: HardwareTarget, prefix: str) -> None:
    """Schedule one operator in place.

    Raises:
        ScheduleError: the point is no schedule of the workload.
    """
    from chanas.compiler.cpu.arithmetic import import_instructions

    space = FAMILIES.space(workload, target)
    named = space.groups(point)
    stages_of(workload).schedule(sch, workload, space.read(named), prefix, target.num_threads > 1)
    loop = sch.get_loops(sch.get_sblock(f"{prefix}out"))[0]
    import_instructions(sch, loop, target, precision_of(workload.dtype))
    (steps,), (is_explicit,) = (named.get(name, (0,)) for name in EXTRA_KNOBS)
    if steps:
        schedules.unroll_automatically(sch, loop, steps, bool(is_explicit))


def flatten_output(sch: Any, workload: Workload, prefix: str) -> None:
    """[B, H, W, l] -> [B, H·W, l] for the output of an operator that a function returns."""
    if stages_of(workload).in_rectangles:
        width, block = workload.axes[1].output, sch.get_sblock(f"{prefix}out")
        sch.transform_layout(block, ("write", 0), lambda b, h, w, v: (b, h * width + w, v))


def _alone(workload: Workload, point: Point, target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` of one operator alone."""
    from tvm import s_tir, te

    one = replace(workload, batch=1)
    sch = s_tir.Schedule(te.create_prim_func(list(operator_arguments(one, point, target))), error_render_level="none")
    apply_point(sch, one, point, target, "op0_")
    flatten_output(sch, one, "op0_")
    num_parameters = len(layout_of(target).parameters(one))
    return over_images(sch.mod["main"], workload.batch, tuple(range(1, 1 + num_parameters)))


# ---- the table -------------------------------------------------------------------------------------------------------
def _operators() -> Any:
    from chanas.compiler.cpu import operators

    return operators


def _pointwise(point: Any) -> Compute:
    """The expression of a `HalfBlockPoint`, of a `MatrixPoint` that packs, or of any other one."""
    operators = _operators()
    compute: Compute = operators.half_block_pointwise if isinstance(point, HalfBlockPoint) else operators.pointwise
    if isinstance(point, MatrixPoint) and point.packs:
        compute = operators.packed_pointwise
    return compute


def _blockconv(point: BlockConvPoint | MatrixConvPoint) -> Compute:
    """The expression of a point: matrix registers read packed inputs."""
    operators = _operators()
    compute: Compute = operators.packed_blockconv if isinstance(point, MatrixConvPoint) else operators.blockconv
    return compute


def _conv(point: ConvPoint | MatrixConvPoint) -> Compute:
    """The same of a convolution of an image."""
    operators = _operators()
    compute: Compute = operators.packed_conv if isinstance(point, MatrixConvPoint) else operators.conv
    return compute


def _depthwise(point: DepthwisePoint) -> Compute:
    """The expression of a point: in bfloat16 maps are padded in float32."""
    operators = _operators()
    compute: Compute = operators.widened_depthwise if point.padding is Padding.BY_BAND else operators.depthwise
    return compute


def _depthwise_in_int8(point: DepthwisePoint) -> Compute:
    operators = _operators()
    compute: Compute = operators.dotted_depthwise if point.padding is Padding.IN_WORDS else operators.depthwise
    return compute


def _mended(function: Any, workload: Workload, lanes: int) -> Any:
    from chanas.compiler.cpu.mending import mended

    return mended(function, workload, lanes)


_ANY_MAP: frozenset[Generality] = frozenset({"rectangular maps"})
_ANY_END: frozenset[Generality] = frozenset(
    {"epilogue of its own", "epilogue of many terms", "residual", "residual before the epilogue"}
)
_ANY_STRIDE: frozenset[Generality] = _ANY_MAP | _ANY_END | {"stride", "strides by axis"}
_ANY_WINDOW: frozenset[Generality] = _ANY_STRIDE | {"rectangular kernels", "dilation", "padding of its own"}
_ANY_GROUPS: frozenset[Generality] = _ANY_WINDOW | {"groups"}
_ANY_PLAIN_WINDOW: frozenset[Generality] = _ANY_WINDOW - {"dilation", "stride"}


def family(
    space: Callable[[Workload, HardwareTarget], ScheduleSpace[Decoded]],
    expression: Callable[[Decoded], Compute],
    schedule: Callable[[Any, Workload, Decoded, str, bool], None],
    takes: frozenset[Generality] = frozenset(),
    *,
    in_rectangles: bool = True,
    complete: Complete | None = None,
    computes: str | None = None,
) -> Family[Decoded]:
    """A family of operators of processors, alone and in functions with others."""
    return Family(
        space, _alone, takes=takes, stages=Stages(expression, schedule, in_rectangles, complete), computes=computes
    )


def _family(
    op: str, takes: frozenset[Generality], expression: Callable[[Any], Compute] | None = None, **facts: Any
) -> Family[Any]:
    """The family whose space and schedule have the operator's name, and its expression where points do not choose
    one."""
    expression = expression or (lambda _: getattr(_operators(), op))
    return family(getattr(space, op), expression, getattr(schedules, op), takes, **facts)


def _transformed(op: str, **facts: Any) -> Family[Any]:
    """The family of an operator whose expression is in `transformed`."""

    def expression(_: Any) -> Compute:
        from chanas.compiler.cpu import transformed

        compute: Compute = getattr(transformed, op)
        return compute

    return _family(op, _ANY_PLAIN_WINDOW, expression, complete=_mended, **facts)


_BY_OPERATOR = {
    "conv": _family("conv", _ANY_WINDOW, _conv),
    "blockconv": _family("blockconv", _ANY_GROUPS, _blockconv),
    "groupconv": _family("groupconv", _ANY_GROUPS),
    "winograd": _transformed("winograd", computes="blockconv"),
    "winograd2": _transformed("winograd2", computes="blockconv"),
    "upconv": _transformed("upconv"),
    "pointwise": _family("pointwise", _ANY_STRIDE | {"prologue"}, _pointwise, in_rectangles=False),
    "depthwise": _family("depthwise", _ANY_WINDOW | {"several outputs of a channel"}, _depthwise),
    "pool": _family("pool", _ANY_MAP, in_rectangles=False),
}
_IN_BFLOAT16 = {
    **{op: replace(_BY_OPERATOR[op], takes=_ANY_WINDOW) for op in ("conv", "blockconv")},
    "pointwise": replace(_BY_OPERATOR["pointwise"], takes=_ANY_STRIDE),
    "depthwise": replace(_BY_OPERATOR["depthwise"], takes=_ANY_WINDOW),
    "pool": _BY_OPERATOR["pool"],
}
# Epilogues of many terms are not computed to the bit.
_IN_INT8 = {
    **{op: replace(_BY_OPERATOR[op], takes=_ANY_WINDOW - {"epilogue of many terms"}) for op in ("conv", "blockconv")},
    "pointwise": replace(_BY_OPERATOR["pointwise"], takes=_ANY_STRIDE - {"epilogue of many terms"}),
    "depthwise": _family("depthwise", _ANY_WINDOW - {"epilogue of many terms"}, _depthwise_in_int8),
    "pool": _BY_OPERATOR["pool"],
}
FAMILIES = Families(
    "llvm",
    "CPUs",
    {
        **{(op, "float32"): family for op, family in _BY_OPERATOR.items()},
        **{(op, "bfloat16"): family for op, family in _IN_BFLOAT16.items()},
        **{(op, "int8"): family for op, family in _IN_INT8.items()},
    },
)
