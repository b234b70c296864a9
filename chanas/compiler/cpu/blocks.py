"""The functions that networks call: an operator, or the operators of a block, each scheduled by a point of its own,
with every intermediate inside.

What such a function needs of weights is one array, an argument, so that one compiled module serves any weights and they
travel once (in safetensors).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir, te

from chanas.compiler.cpu.batches import NO_PARTS, over_images
from chanas.compiler.cpu.changes import changing
from chanas.compiler.cpu.families import apply_point, compute, flatten_output, stages_of
from chanas.compiler.program import FormChange, Part
from chanas.compiler.space import Point
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.operators.layout import Blocks, Shape, layout_of, operator_inputs
from chanas.operators.precision import INT8
from chanas.operators.steps import Step, block_steps, block_target, block_workloads, check_points, step_alone
from chanas.operators.workload import Workload


def num_block_parameters(block: BlockConfig, lanes: int, dtype: str = "float32") -> int:
    """Numbers in a block's packed parameters (as `folding.pack_block` gives them)."""
    if block.converts:
        return 2 if block.dtype == INT8.dtype else 0
    layout = Blocks(lanes)
    parameters = (p for workload in block_workloads(block, dtype) for p in layout.parameters(workload))
    return sum(math.prod(parameter.shape) for parameter in parameters)


@dataclass(frozen=True)
class _View:
    """A part of the one array of a block's parameters, indexed like a tensor of its own shape."""

    packed: Any
    offset: int
    shape: tuple[int, ...]

    def __getitem__(self, indices: Sequence[Any]) -> Any:
        position = indices[0]
        for index, extent in zip(indices[1:], self.shape[1:], strict=True):
            position = position * extent + index
        return self.packed[position + self.offset]


def _views(packed: Any, shapes: Sequence[Sequence[Shape]]) -> list[list[_View]]:
    """The arrays of each operator, of these shapes, one behind the other."""
    offsets = itertools.accumulate((math.prod(shape) for own in shapes for shape in own), initial=0)
    return [[_View(packed, next(offsets), shape) for shape in own] for own in shapes]


def schedule_block(block: BlockConfig, points: Sequence[Point], target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` of a whole block: arguments input, packed parameters (one array, if it has any), output.

    Raises:
        ScheduleError: there is not one point per operator, or one is not in its operator's space.
    """
    if block.converts:
        return changing(FormChange.of_block(block, target), target)
    target = block_target(block, target)
    steps = block_steps(block, target.dtype)
    check_points(block, steps, points)
    return _schedule_steps(steps, points, target, NO_PARTS)


def schedule_packed_operator(
    workload: Workload, point: Point, target: HardwareTarget, parts: Mapping[int, Part] = NO_PARTS
) -> Any:
    """A `tirx.PrimFunc` of one operator: arguments input, packed parameters (one array, if it has any), gate, residual
    (those there are), output. Arguments that are `parts` of other maps are these maps.

    Raises:
        ScheduleError: the point is not in the operator's space.
    """
    return _schedule_steps([step_alone(workload)], [point], target, parts)


def _schedule_steps(
    steps: Sequence[Step], points: Sequence[Point], target: HardwareTarget, parts: Mapping[int, Part]
) -> Any:
    """Steps as one function. The first of them reads all values that come from elsewhere; the others are numbered after
    these. What a family completes (`Stages.complete`) has to stand alone."""
    lanes, layout, num_images = target.vector_lanes, layout_of(target), steps[0].workload.batch
    workloads = [replace(step.workload, batch=1) for step in steps]
    first, last = workloads[0], workloads[-1]
    shapes = [[parameter.shape for parameter in layout.parameters(workload)] for workload in workloads]
    given, *rest = operator_inputs(first, layout)
    inputs = (given, *rest[len(shapes[0]) :])
    x, *extras = (te.placeholder(argument.shape, argument.dtype, name=argument.name) for argument in inputs)
    num_parameters = sum(math.prod(shape) for own in shapes for shape in own)
    packed = te.placeholder((num_parameters,), name="parameters")
    values = [x, *extras]
    each = zip(workloads, points, steps, _views(packed, shapes), strict=True)
    for i, (workload, point, step, parameters) in enumerate(each):
        current, *beside = (values[value] for value in step.reads)
        values.append(compute(workload, point, target, f"op{i}_", current, parameters, beside))
    arguments = [x, *([packed] if num_parameters else []), *extras, values[-1]]
    sch = s_tir.Schedule(te.create_prim_func(arguments), error_render_level="none")
    for i, (workload, point) in enumerate(zip(workloads, points, strict=True)):
        apply_point(sch, workload, point, target, f"op{i}_")
    flatten_output(sch, last, f"op{len(steps) - 1}_")
    function, complete = sch.mod["main"], stages_of(last).complete
    function = function if complete is None else complete(function, last, lanes)
    return over_images(function, num_images, (1,) if num_parameters else (), parts)
