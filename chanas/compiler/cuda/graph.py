"""Operators, blocks and whole networks on a GPU as Relax programs: one kernel call for each operator, every buffer
planned ahead and nothing that depends on the call, so that TVM's rewriting makes one CUDA graph of the whole.

`main(inputs…, weights and biases…, output)` writes into its last argument and returns it; `new_output()` makes an array
for it. A graph keeps the addresses that it was captured with: a program has to be called with the same arrays every
time, whose contents may change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chanas.compiler.cuda.families import FAMILIES
from chanas.compiler.cuda.operators import output_shape
from chanas.compiler.space import Point
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.errors import ScheduleError
from chanas.operators.steps import device_steps
from chanas.operators.workload import Workload

COPIES = 16
"""Copies in one graph of a program that is timed alone, each with weights of its own: starting the graph then costs a
sixteenth, and no run finds its weights in a cache because of the one before."""
_BETWEEN = 2
"""Arrays that take turns between blocks: one is read while the other is written."""


@dataclass(frozen=True)
class Launch:
    """One operator's kernel: the values that it reads (input, then gate and residual as far as it has them).

    Values are numbered as in `chanas.operators.steps`: the program's inputs first, then the output of each launch.
    `array` tells which of the program's arrays the output is written to.
    """

    workload: Workload
    point: Point
    reads: tuple[int, ...]
    array: int


def operator_launches(workload: Workload, point: Point) -> tuple[list[Launch], int]:
    """One operator alone, and its number of inputs: input, gate, residual."""
    num_inputs = 1 + workload.scaled + workload.residual
    return [Launch(workload, point, tuple(range(num_inputs)), 0)], num_inputs


def array_numbers(workloads: Sequence[Workload], turn: int) -> list[int]:
    """Assign an array number to each operator's output. The block's own output alternates from block to block between
    arrays 0 and 1; inner outputs take arrays 2, 3, … in order of falling size, so that blocks can share them
    (`chanas.operators.memory`)."""
    inner = workloads[:-1]
    largest = sorted(range(len(inner)), key=lambda i: math.prod(output_shape(inner[i])), reverse=True)
    return [*(_BETWEEN + largest.index(i) for i in range(len(inner))), turn % _BETWEEN]


def block_launches(
    block: BlockConfig, points: Sequence[Point], target: HardwareTarget, before: int = 0, turn: int = 0
) -> list[Launch]:
    """The operators of a block that follows `before` launches of a program with one input and reads the last one's
    output; the block is number `turn` of the program.

    Raises:
        ScheduleError: there is not one point per operator.
    """
    steps = device_steps(block, target)
    if len(points) != len(steps):
        raise ScheduleError(f"expected {len(steps)} points for block {block.key}, got {len(points)}")
    arrays = array_numbers([step.workload for step in steps], turn)
    return [
        Launch(step.workload, tuple(point), tuple(before + value for value in step.reads), array)
        for step, point, array in zip(steps, points, arrays, strict=True)
    ]


def network_launches(
    blocks: Sequence[BlockConfig], points: Sequence[Sequence[Point]], target: HardwareTarget
) -> list[Launch]:
    """The operators of a chain of blocks."""
    launches: list[Launch] = []
    for turn, (block, block_points) in enumerate(zip(blocks, points, strict=True)):
        launches += block_launches(block, block_points, target, before=len(launches), turn=turn)
    return launches


def gpu_program(launches: Sequence[Launch], num_inputs: int, target: HardwareTarget, copies: int = 1) -> Any:
    """The Relax module of some launches, run `copies` times over, each time with weights of its own.

    Arguments: the inputs, weights and biases of each copy in the order of the launches, the output of the last one.

    Raises:
        ScheduleError: a point is not in its operator's space.
    """
    return _Program(launches, num_inputs, target).module(copies)


def operator_program(workload: Workload, point: Point, target: HardwareTarget) -> Any:
    """An operator as it is timed: `COPIES` times in a row."""
    return gpu_program(*operator_launches(workload, point), target, COPIES)


def block_program(block: BlockConfig, points: Sequence[Point], target: HardwareTarget) -> Any:
    """A block as it is timed: `COPIES` times in a row."""
    return gpu_program(block_launches(block, points, target), 1, target, COPIES)


def network_program(blocks: Sequence[BlockConfig], points: Sequence[Sequence[Point]], target: HardwareTarget) -> Any:
    """A whole network, from the batch's images [B·C, pixels] to their logits [B, classes]; from 8 images on there are
    rows of logits beyond those, up to a multiple of 8 (`operators.layout.num_rows`)."""
    return gpu_program(network_launches(blocks, points, target), 1, target)


@dataclass(frozen=True)
class _Array:
    """Shape and type of a kernel's argument."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        bits = int("".join(c for c in self.dtype if c.isdigit()))
        return math.prod(self.shape) * bits // 8


class _Program:
    """A program under construction; what each kernel's arguments are is read from the kernel."""

    def __init__(self, launches: Sequence[Launch], num_inputs: int, target: HardwareTarget) -> None:
        self.launches, self.num_inputs = tuple(launches), num_inputs
        distinct = dict.fromkeys((launch.workload, launch.point) for launch in launches)
        self.kernels = {key: FAMILIES.program(*key, target) for key in distinct}

    def arguments(self, launch: Launch) -> tuple[_Array, list[_Array], list[_Array], _Array]:
        """Input, weights and bias (as far as there are), gate and residual (as far as there are), output."""
        params = self.kernels[launch.workload, launch.point].params
        arrays = [_Array(tuple(int(extent) for extent in p.shape), str(p.dtype)) for p in params]
        num_extras = len(launch.reads) - 1
        end = len(arrays) - 1 - num_extras
        return arrays[0], arrays[1:end], arrays[end:-1], arrays[-1]

    def input_arrays(self) -> list[_Array]:
        """The inputs, each as its first reader declares it."""
        found: dict[int, _Array] = {}
        for launch in self.launches:
            first, _, extras, _ = self.arguments(launch)
            for value, array in zip(launch.reads, (first, *extras), strict=True):
                if value < self.num_inputs:
                    found.setdefault(value, array)
        return [found[i] for i in range(self.num_inputs)]

    def slots(self) -> tuple[list[int], list[int]]:
        """The array of each value between the launches (all but the last one's output), and the arrays' bytes."""
        between = range(len(self.launches) - 1)
        num_bytes = [self.arguments(self.launches[i])[3].num_bytes for i in between]
        for launch in self.launches:
            first, _, extras, _ = self.arguments(launch)
            for value, array in zip(launch.reads, (first, *extras), strict=True):
                if value >= self.num_inputs:
                    i = value - self.num_inputs
                    num_bytes[i] = max(num_bytes[i], array.num_bytes)  # a map's spare rows
        numbers = sorted({self.launches[i].array for i in between})
        slots = [numbers.index(self.launches[i].array) for i in between]
        return slots, [
            max(size for s, size in zip(slots, num_bytes, strict=True) if s == n) for n in range(len(numbers))
        ]

    def module(self, copies: int) -> Any:
        from tvm import relax

        def variable(name: str, array: _Array) -> Any:
            return relax.Var(name, relax.TensorType(array.shape, array.dtype))

        inputs = [variable(f"input{i}", array) for i, array in enumerate(self.input_arrays())]
        weights = [
            [variable(f"parameter{copy}_{i}_{j}", a) for j, a in enumerate(self.arguments(launch)[1])]
            for copy, (i, launch) in itertools.product(range(copies), enumerate(self.launches))
        ]
        output = variable("output", self.arguments(self.launches[-1])[3])
        builder = relax.BlockBuilder()
        parameters = [*inputs, *itertools.chain.from_iterable(weights), output]
        # no argument is another one in the next call (`num_input`): all of it can be captured
        with builder.function("main", parameters, attrs={"num_input": 0}, pure=False):
            functions = {}
            for i, (key, kernel) in enumerate(self.kernels.items()):
                plain = kernel.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
                functions[key] = builder.add_func(plain, f"kernel{i}")
            slots, sizes = self.slots()
            memory = relax.op.memory
            storages = [
                builder.emit(memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8")) for size in sizes
            ]
            views: dict[tuple[int, _Array], Any] = {}

            def view(value: int, array: _Array) -> Any:
                """A value as a kernel takes it: the same memory may be seen in several shapes."""
                if value < self.num_inputs:
                    return inputs[value]
                slot = slots[value - self.num_inputs]
                if (slot, array) not in views:
                    shape = relax.ShapeExpr(array.shape)
                    views[slot, array] = builder.emit(memory.alloc_tensor(storages[slot], 0, shape, array.dtype))
                return views[slot, array]

            for position, own in enumerate(weights):
                i = position % len(self.launches)
                launch = self.launches[i]
                first, _, extras, out = self.arguments(launch)
                read = [view(value, array) for value, array in zip(launch.reads, (first, *extras), strict=True)]
                is_last = i == len(self.launches) - 1
                written = output if is_last else view(self.num_inputs + i, out)
                builder.emit(relax.Call(functions[launch.workload, launch.point], [read[0], *own, *read[1:], written]))
            builder.emit_func_output(output)
        array = self.arguments(self.launches[-1])[3]
        with builder.function("new_output", [], pure=False):
            storage = builder.emit(memory.alloc_storage(relax.ShapeExpr([array.num_bytes]), 0, "global", "uint8"))
            made = builder.emit(memory.alloc_tensor(storage, 0, relax.ShapeExpr(array.shape), array.dtype))
            builder.emit_func_output(made)
        return builder.get()
