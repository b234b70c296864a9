"""Fused blocks and whole networks, made of scheduled operators.

A block is one TVM function: the expressions of its operators chained, each scheduled by its own point, with every
intermediate inside. A network is a Relax program that calls its blocks in order; weights are arguments, so that one
compiled module serves any weights and they travel once (in safetensors).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chanas.compiler.cpu.batches import NO_PARTS, Part, over_images
from chanas.compiler.cpu.families import apply_point, compute, flatten_output, operator_arguments, stages_of
from chanas.compiler.space import Point
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.layout import Blocks, Layout, Shape, input_shape, layout_of, output_shape
from chanas.operators.steps import INPUT, block_steps, block_workloads
from chanas.operators.workload import Workload


def num_block_parameters(block: BlockConfig, lanes: int, dtype: str = "float32") -> int:
    """Numbers in a block's packed parameters (as `folding.pack_block` gives them)."""
    workloads = block_workloads(block, dtype)
    return sum(math.prod(shape) for workload in workloads for shape in _parameter_shapes(workload, Blocks(lanes)))


def _parameter_shapes(workload: Workload, layout: Layout) -> list[Shape]:
    return [parameter.shape for parameter in layout.parameters(workload)]


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


def _views(packed: Any, shapes: Sequence[Shape], first: int = 0) -> list[_View]:
    """Arrays of these shapes, one behind the other from number `first` on."""
    offsets = itertools.accumulate((math.prod(shape) for shape in shapes), initial=first)
    return [_View(packed, offset, shape) for offset, shape in zip(offsets, shapes, strict=False)]


def schedule_block(block: BlockConfig, points: Sequence[Point], target: HardwareTarget) -> Any:
    """A `tirx.PrimFunc` of a whole block: arguments input, packed parameters (one array), output.

    Raises:
        ScheduleError: there is not one point per operator, or one is not in its operator's space.
    """
    from tvm import s_tir, te

    steps, lanes, layout = block_steps(block, target.dtype), target.vector_lanes, layout_of(target)
    if len(points) != len(steps):
        raise ScheduleError(f"expected {len(steps)} points for block {block.key}, got {len(points)}")
    first, last = steps[0].workload, steps[-1].workload
    values = [te.placeholder(input_shape(first, layout), first.input_storage, name="x")]
    packed = te.placeholder((num_block_parameters(block, lanes, target.dtype),), name="parameters")
    offset = 0
    for i, step in enumerate(steps):
        shapes = _parameter_shapes(step.workload, layout)
        parameters = _views(packed, shapes, offset)
        offset += sum(math.prod(shape) for shape in shapes)
        current, *extras = (values[value] for value in step.reads)
        values.append(compute(step.workload, lanes, f"op{i}_", current, parameters, extras))
    sch = s_tir.Schedule(te.create_prim_func([values[INPUT], packed, values[-1]]), error_render_level="none")
    for i, (step, point) in enumerate(zip(steps, points, strict=True)):
        apply_point(sch, step.workload, point, target, f"op{i}_")
    flatten_output(sch, last, f"op{len(steps) - 1}_")
    return sch.mod["main"]


def schedule_packed_operator(
    workload: Workload, point: Point, target: HardwareTarget, parts: Mapping[int, Part] = NO_PARTS
) -> Any:
    """A `tirx.PrimFunc` of one operator: arguments input, packed parameters (one array, if it has any), gate, residual
    (those there are), output. Arguments that are `parts` of other maps are these maps.

    Raises:
        ScheduleError: the point is not in the operator's space.
    """
    from tvm import s_tir, te

    lanes, num_images = target.vector_lanes, workload.batch
    workload = replace(workload, batch=1)
    x, *rest = operator_arguments(workload, target)
    shapes = _parameter_shapes(workload, layout_of(target))
    extras = rest[len(shapes) : -1]
    packed = te.placeholder((sum(math.prod(shape) for shape in shapes),), name="parameters")
    out = compute(workload, lanes, "op0_", x, _views(packed, shapes), extras)
    arguments = [x, *([packed] if shapes else []), *extras, out]
    sch = s_tir.Schedule(te.create_prim_func(arguments), error_render_level="none")
    apply_point(sch, workload, point, target, "op0_")
    flatten_output(sch, workload, "op0_")
    function, complete = sch.mod["main"], stages_of(workload).complete
    function = function if complete is None else complete(function, workload, lanes)
    return over_images(function, num_images, (1,) if shapes else (), parts)


def network_module(blocks: Sequence[BlockConfig], points: Sequence[Sequence[Point]], target: HardwareTarget) -> Any:
    """A Relax module `main(image, *packed parameters, one array for each block) -> logits`.

    image float32[in_channels, pixels]; logits float32[ceil(classes / l), 1, l] (only the first `classes` count).
    Blocks of equal shape and schedule share one function.
    """
    from tvm import relax

    lanes, layout = target.vector_lanes, layout_of(target)
    first = block_workloads(blocks[0], target.dtype)[0]
    image = relax.Var("image", relax.TensorType(input_shape(first, layout), "float32"))
    parameters = [
        relax.Var(f"parameters{b}", relax.TensorType((num_block_parameters(block, lanes, target.dtype),), "float32"))
        for b, block in enumerate(blocks)
    ]
    builder = relax.BlockBuilder()
    functions: dict[tuple[BlockConfig, tuple[Point, ...]], Any] = {}
    with builder.function("main", [image, *parameters]):
        with builder.dataflow():
            current = image
            for block, block_points, packed in zip(blocks, points, parameters, strict=True):
                identity = (block, tuple(tuple(p) for p in block_points))
                if identity not in functions:
                    function = schedule_block(block, block_points, target).without_attr("global_symbol")
                    function = function.with_attr("tirx.is_scheduled", True)
                    functions[identity] = builder.add_func(function, f"block{len(functions)}")
                last = block_workloads(block, target.dtype)[-1]
                result = relax.TensorType(output_shape(last, layout), last.output_storage)
                current = builder.emit(relax.call_tir(functions[identity], [current, packed], result))
            out = builder.emit_output(current)
        builder.emit_func_output(out)
    return builder.get()
