"""Operators, blocks and whole networks on a GPU as Relax programs: one kernel call for each operator, every buffer
planned ahead and nothing that depends on the call, so that TVM's rewriting makes one CUDA graph of the whole.

`main(inputs…, weights and biases…, output)` writes into its last argument and returns it; `new_output()` makes an array
for it. A graph keeps the addresses that it was captured with: a program has to be called with the same arrays every
time, whose contents may change.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from chanas.compiler.cuda.families import FAMILIES
from chanas.compiler.cuda.operators import output_shape
from chanas.compiler.space import Point
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.operators.steps import Step, check_points, device_steps, step_alone
from chanas.operators.workload import Workload

COPIES = 16
"""Copies in one graph of a program that is timed alone, each with weights of its own: starting the graph then costs a
sixteenth, and no run finds its weights in a cache because of the one before."""
_BETWEEN = 2
"""Arrays that take turns between blocks: one is read while the other is written."""


@dataclass(frozen=True)
class Launch:
    """One operator's kernel: a step whose values are numbered in the program, its inputs first, then the output of each
    launch; `array` tells which of the program's arrays the output is written to."""

    step: Step
    point: Point
    array: int

    @property
    def kernel(self) -> tuple[Workload, Point]:
        """The operator and its point, of which there is one kernel in a program."""
        return self.step.workload, self.point


def array_numbers(steps: Sequence[Step], turn: int) -> list[int]:
    """Assign an array number to each step's output. The block's own output alternates from block to block between
    arrays 0 and 1; inner outputs take arrays 2, 3, … in order of falling size, so that blocks can share them
    (`chanas.operators.memory`)."""
    inner = [math.prod(output_shape(step.workload)) for step in steps[:-1]]
    largest = sorted(range(len(inner)), key=lambda i: inner[i], reverse=True)
    return [*(_BETWEEN + largest.index(i) for i in range(len(inner))), turn % _BETWEEN]


def launches_of(chain: Sequence[Sequence[Step]], points: Sequence[Sequence[Point]]) -> list[Launch]:
    """The steps of a chain of blocks, of which each reads the last value of the one before."""
    launches: list[Launch] = []
    for turn, (steps, own) in enumerate(zip(chain, points, strict=True)):
        before = len(launches)
        for step, point, array in zip(steps, own, array_numbers(steps, turn), strict=True):
            moved = Step(step.workload, tuple(before + value for value in step.reads))
            launches.append(Launch(moved, tuple(point), array))
    return launches


def operator_program(workload: Workload, point: Point, target: HardwareTarget, copies: int = COPIES) -> Any:
    """An operator, by default as it is timed: many times in a row.

    Raises:
        ScheduleError: the point is not in its space.
    """
    return _Program(launches_of([[step_alone(workload)]], [[point]]), target).module(copies)


def block_program(block: BlockConfig, points: Sequence[Point], target: HardwareTarget, copies: int = COPIES) -> Any:
    """A block, by default as it is timed: many times in a row.

    Raises:
        ScheduleError: there is not one point per operator, or one is not in its operator's space.
    """
    return network_program([block], [points], target, copies)


def network_program(
    blocks: Sequence[BlockConfig], points: Sequence[Sequence[Point]], target: HardwareTarget, copies: int = 1
) -> Any:
    """A whole network, from the batch's images [B·C, pixels] to their logits [B, classes]; from 8 images on there are
    rows of logits beyond those, up to a multiple of 8 (`operators.layout.num_rows`).

    Arguments: the input, weights and biases of each copy in the order of the launches, the output of the last one.

    Raises:
        ScheduleError: as for a block.
    """
    chain = [device_steps(block, target) for block in blocks]
    for block, steps, own in zip(blocks, chain, points, strict=True):
        check_points(block, steps, own)
    return _Program(launches_of(chain, points), target).module(copies)


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

    def __init__(self, launches: Sequence[Launch], target: HardwareTarget) -> None:
        self.launches, self.num_inputs = launches, len(launches[0].step.reads)
        self.kernels = {key: FAMILIES.program(*key, target) for key in dict.fromkeys(la.kernel for la in launches)}
        self.arguments = [self._arguments(launch) for launch in launches]
        # each value as it is written and as its readers declare it: the same memory may be seen in several shapes
        self.forms: dict[int, list[_Array]] = defaultdict(list)
        for written, (launch, (reads, _, out)) in enumerate(
            zip(launches, self.arguments, strict=True), self.num_inputs
        ):
            for value, array in zip(launch.step.reads, reads, strict=True):
                self.forms[value].append(array)
            self.forms[written].append(out)

    def _arguments(self, launch: Launch) -> tuple[list[_Array], list[_Array], _Array]:
        """Values that a kernel reads, its weights and bias (as far as there are), its output."""
        params = self.kernels[launch.kernel].params
        first, *rest, out = (_Array(tuple(int(extent) for extent in p.shape), str(p.dtype)) for p in params)
        num_own = len(rest) - (len(launch.step.reads) - 1)
        return [first, *rest[num_own:]], rest[:num_own], out

    def array_bytes(self) -> dict[int, int]:
        """Bytes of the program's arrays, the largest form of a value in each; the last output is the caller's."""
        found: dict[int, int] = {}
        for i, launch in enumerate(self.launches[:-1]):
            sizes = [form.num_bytes for form in self.forms[self.num_inputs + i]]
            found[launch.array] = max(found.get(launch.array, 0), *sizes)
        return dict(sorted(found.items()))

    def module(self, copies: int) -> Any:
        inputs = [_variable(f"input{i}", self.forms[i][0]) for i in range(self.num_inputs)]
        weights = [
            [_variable(f"parameter{copy}_{i}_{j}", array) for j, array in enumerate(own)]
            for copy, (i, (_, own, _)) in itertools.product(range(copies), enumerate(self.arguments))
        ]
        last = self.arguments[-1][2]
        output = _variable("output", last)
        builder = relax.BlockBuilder()
        parameters = [*inputs, *itertools.chain.from_iterable(weights), output]
        # no argument is another one in the next call (`num_input`): all of it can be captured
        with builder.function("main", parameters, attrs={"num_input": 0}, pure=False):
            functions = {}
            for i, (key, kernel) in enumerate(self.kernels.items()):
                plain = kernel.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
                functions[key] = builder.add_func(plain, f"kernel{i}")
            storages = {number: _storage(builder, size) for number, size in self.array_bytes().items()}
            views: dict[tuple[int, _Array], Any] = {}

            def view(value: int, array: _Array) -> Any:
                """A value as a kernel takes it."""
                if value < self.num_inputs:
                    return inputs[value]
                number = self.launches[value - self.num_inputs].array
                if (number, array) not in views:
                    views[number, array] = _tensor(builder, storages[number], array)
                return views[number, array]

            for position, own in enumerate(weights):
                i = position % len(self.launches)
                launch, (reads, _, out) = self.launches[i], self.arguments[i]
                read = [view(value, array) for value, array in zip(launch.step.reads, reads, strict=True)]
                is_last = i == len(self.launches) - 1
                written = output if is_last else view(self.num_inputs + i, out)
                builder.emit(relax.Call(functions[launch.kernel], [read[0], *own, *read[1:], written]))
            builder.emit_func_output(output)
        with builder.function("new_output", [], pure=False):
            builder.emit_func_output(_tensor(builder, _storage(builder, last.num_bytes), last))
        return builder.get()


def _variable(name: str, array: _Array) -> Any:
    return relax.Var(name, relax.TensorType(array.shape, array.dtype))


def _storage(builder: Any, num_bytes: int) -> Any:
    return builder.emit(relax.op.memory.alloc_storage(relax.ShapeExpr([num_bytes]), 0, "global", "uint8"))


def _tensor(builder: Any, storage: Any, array: _Array) -> Any:
    return builder.emit(relax.op.memory.alloc_tensor(storage, 0, relax.ShapeExpr(array.shape), array.dtype))
