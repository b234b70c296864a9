"""A network as a program: tuned operators with what is fused into them, and all others beside them.

A value is plain, as the framework has it, or blocked, [N · B, M, l], as tuned operators read and write it: N images one
after the other, B channel blocks of l lanes, M pixels. A tuned operator reads and writes blocks of as many lanes as its
value has; all others those of the device's vectors. Channels are the second axis of maps [N, C, H, W] and the last
one of rows [N, T, C] or [T, C], which are one image of N · T pixels.
A number of rows that can't be cut into equal tiles (197) has a few more in memory. Lanes beyond the channels and rows
beyond the last hold any numbers: nothing reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from chanas.compiler.space import Point
from chanas.core.arrays import Array
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget, in_blocks, in_dtype
from chanas.operators.layout import Blocks, num_blocks, pack_channels
from chanas.operators.precision import BFLOAT16, FLOAT32, INT8, precision_of
from chanas.operators.quantised import Grid, Quantised, WholeWeights
from chanas.operators.steps import Step, block_workloads
from chanas.operators.workload import Workload, extra_names

_TILE_ROWS = range(6, 15)


class Form(NamedTuple):
    """The form of what an operator reads and writes: lanes of its channel blocks, and their type, as workloads call
    it."""

    lanes: int
    dtype: str = FLOAT32.dtype

    def __str__(self) -> str:
        """`16`, and where it is not float32 `16-bfloat16`."""
        return f"{self.lanes}" if self.dtype == FLOAT32.dtype else f"{self.lanes}-{self.dtype}"

    def to_json(self) -> list[Any]:
        return list(self)

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Form:
        return cls(*data)

    @classmethod
    def of(cls, target: HardwareTarget) -> Form:
        """The form that a target's operators have."""
        return cls(target.vector_lanes, target.dtype)

    def on(self, target: HardwareTarget) -> HardwareTarget:
        """A processor whose operators have this form.

        Raises:
            TargetError: it has no such blocks.
        """
        return in_dtype(in_blocks(target, self.lanes), self.dtype)


_DTYPES = {precision.storage: precision.dtype for precision in (BFLOAT16, INT8)}


@dataclass(frozen=True)
class Value:
    """The result of an operation: its shape in the framework, its type, and the lanes of its channel blocks in memory;
    0 where it is plain."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    lanes: int = 0

    @property
    def blocked(self) -> bool:
        return self.lanes > 0

    @property
    def form(self) -> Form:
        """The form of a blocked value; what has no type of its own is as operators in float32 read it."""
        return Form(self.lanes, _DTYPES.get(self.dtype, FLOAT32.dtype))

    def in_form(self, form: Form) -> Value:
        """The same numbers in another form."""
        return replace(self, lanes=form.lanes, dtype=precision_of(form.dtype).storage)

    @property
    def channel_axis(self) -> int:
        """The axis of channels of a blocked value."""
        return 1 if len(self.shape) == 4 else len(self.shape) - 1

    @property
    def channels(self) -> int:
        return self.shape[self.channel_axis]

    @property
    def images(self) -> int:
        """Maps, one after the other; rows are one."""
        return self.shape[0] if len(self.shape) == 4 else 1

    @property
    def pixels(self) -> int:
        """Rows of channels: pixels of each map, or tokens of all sequences."""
        return math.prod(self.shape) // (self.images * self.channels)

    @property
    def pixels_in_memory(self) -> int:
        """Rows of channels of a blocked value: those of a map, or tokens and what fills up their last tile."""
        return self.pixels if len(self.shape) == 4 else tiled_rows(self.pixels)

    @property
    def blocks(self) -> int:
        """Channel blocks of each image of a blocked value."""
        return num_blocks(self.channels, self.lanes)

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """Its shape in memory."""
        if not self.blocked:
            return self.shape
        return Blocks(self.lanes).shape(self.channels, self.pixels_in_memory, self.images)

    def change(self, before: Form, after: Form) -> FormChange:
        """Its copy from one form to another."""
        return FormChange(self.channels, self.pixels_in_memory, self.images, before, after)


@dataclass(frozen=True)
class FormChange:
    """A copy of a blocked value in another form: in blocks of other lanes, or in another type. One to or from int8
    reads the grid of the numbers, too."""

    channels: int
    pixels: int
    images: int
    before: Form
    after: Form

    @property
    def is_possible(self) -> bool:
        """False if both lanes and type differ."""
        return self.before.dtype == self.after.dtype or self.before.lanes == self.after.lanes

    @property
    def reads_grid(self) -> bool:
        return INT8.dtype in (self.before.dtype, self.after.dtype) and self.before.dtype != self.after.dtype

    def grid_numbers(self, grid: Grid) -> Array:
        """float32[2]: what it reads of the grid of the numbers."""
        return grid.conversion_numbers(encodes=self.after.dtype == INT8.dtype)

    @classmethod
    def of_block(cls, block: BlockConfig, target: HardwareTarget) -> FormChange:
        """The copy that a block makes which converts between two others."""
        before, after = (Form(target.vector_lanes, dtype) for dtype in (block.input_dtype, block.output_dtype))
        return cls(block.in_channels, block.input_size**2, target.batch, before, after)

    @property
    def key(self) -> str:
        """Name in records: `layout-16to8-128c-49px`, `layout-16to16-bfloat16-128c-49px`."""
        images = "" if self.images == 1 else f"-b{self.images}"
        return f"layout-{self.before}to{self.after}-{self.channels}c-{self.pixels}px{images}"


def tiled_rows(rows: int) -> int:
    """The rows, or the next few more that cut into equal tiles: products of matrices compute a tile at once."""
    while rows > _TILE_ROWS[-1] and not any(rows % tile == 0 for tile in _TILE_ROWS):
        rows += 1
    return rows


Key = tuple[tuple[Workload, ...], int]
"""Operators that compute the same, and the lanes of the channel blocks that they read and write."""


@dataclass(frozen=True, eq=False)
class TunedOperation:
    """An operator of ours with the weights that it reads.

    step     the operator and the values that it reads: input, then gate and residual as far as it has them
    choices  operators that compute the same, the step's among them; the fastest is taken
    weight   float32[C_out, C_in / groups, kh, kw]; None where it has none
    bias     float32[C_out]
    numbers  what the whole numbers of one in int8 stand for
    """

    step: Step
    value: Value
    choices: tuple[Workload, ...]
    weight: Array | None = None
    bias: Array | None = None
    numbers: Quantised | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        return self.step.reads

    @property
    def form(self) -> Form:
        return Form(self.value.lanes, self.choices[0].dtype)

    @property
    def key(self) -> Key:
        return self.choices, self.value.lanes

    def takes_gate(self, position: int) -> bool:
        """True of a value that has a number for each channel of the input."""
        return position > 0 and extra_names(self.choices[0])[position - 1] in ("gate", "shift")

    def read_in(self, position: int, form: Form) -> Form:
        """The form in which it reads a value where it has some form itself: gates are float32 beside int8."""
        return Form(form.lanes) if form.dtype == INT8.dtype and self.takes_gate(position) else form


@dataclass(frozen=True, eq=False)
class TunedBlock:
    """The operators of a search's block as one function, with the schedule of each; or what converts between two.

    Its packed weights (`folding.pack_block`) are one array that the program does not hold.
    """

    block: BlockConfig
    points: tuple[Point, ...]
    reads: tuple[int, ...]
    value: Value
    name: ClassVar[str] = "block"


Emit = Callable[[Any, Sequence[Any], int], Any]
"""Relax's expression of an operation, from a block builder, the expressions that it reads, and lanes."""


@dataclass(frozen=True, eq=False)
class OtherOperation:
    """An operation that the compiler's own definitions compute, with one schedule for all such (`cpu.generic`).

    name       for people
    reads      values, and constants as they are
    emit       its expression
    is_change  it computes nothing: it only changes the form of a value, or is known
    keeps_form it writes numbers that it reads, in any form, and in the same one
    """

    name: str
    reads: tuple[int | Array, ...]
    value: Value
    emit: Emit
    is_change: bool = False
    keeps_form: bool = False


class Part(NamedTuple):
    """Place of a map in another one's memory: its first channel block there, and all that each image has there."""

    first: int
    blocks: int


@dataclass(frozen=True, eq=False)
class MapView:
    """A map whose channels are in memory already, in that of another value or in its own.

    copied  of what it reads that which has to be copied to its own memory first, and where to
    """

    reads: tuple[int, ...]
    value: Value
    copied: tuple[tuple[int, Part], ...]
    name: ClassVar[str] = "view"


Operation = TunedOperation | TunedBlock | OtherOperation | MapView


@dataclass(frozen=True)
class PartOf:
    """Place of a value in the memory of `whole`, another value or a view."""

    whole: int
    place: Part


@dataclass
class Program:
    """Operations in an order in which they can run. Values are numbered: inputs first, then one for each operation.

    lanes   of the channel blocks of all values but those of tuned operators in another layout
    names   of values as the network that was read calls them, of those that have one
    parts   of values that lie in the memory of others, where
    grids   of values that may be in int8, what its numbers stand for
    shifts  float32[C_out] by values, what is added to the biases of operators in int8
    weights whole weights by values, which operators in int8 have and no others; None: the nearest to what they are
    """

    inputs: tuple[Value, ...]
    lanes: int
    operations: list[Operation] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    names: dict[int, str] = field(default_factory=dict)
    parts: dict[int, PartOf] = field(default_factory=dict)
    grids: dict[int, Grid] = field(default_factory=dict)
    shifts: dict[int, Array] = field(default_factory=dict)
    weights: Mapping[int, WholeWeights] | None = None

    @classmethod
    def from_blocks(
        cls, blocks: Sequence[BlockConfig], points: Sequence[Sequence[Point]], target: HardwareTarget
    ) -> Program:
        """A searched network, one block after the other.

        Its input is an image float32[in_channels, pixels]; of its output, in channel blocks, the first `classes`
        numbers count.
        """
        first = block_workloads(blocks[0], target.dtype)[0]
        made = cls((Value((first.in_channels, first.input_pixels)),), target.vector_lanes, names={0: "image"})
        current = 0
        for block, own in zip(blocks, points, strict=True):
            if block.converts:
                value = made.value(current).in_form(Form(target.vector_lanes, block.output_dtype))
            else:
                last = block_workloads(block, target.dtype)[-1]
                shape = (1, last.out_channels, last.output_size, last.output_size)
                value = Value(shape, last.output_storage, target.vector_lanes)
            current = made.add(TunedBlock(block, tuple(tuple(point) for point in own), (current,), value))
        made.outputs = (current,)
        return made

    def value(self, number: int) -> Value:
        """The form of a value."""
        return self.inputs[number] if number < len(self.inputs) else self.operation(number).value

    def operation(self, number: int) -> Operation:
        """The operation that gives a value."""
        return self.operations[number - len(self.inputs)]

    def add(self, operation: Operation) -> int:
        """Append an operation; returns the number of its value."""
        self.operations.append(operation)
        return len(self.inputs) + len(self.operations) - 1

    @property
    def tuned(self) -> list[TunedOperation]:
        return [o for o in self.operations if isinstance(o, TunedOperation)]

    @property
    def others(self) -> list[OtherOperation]:
        return [o for o in self.operations if isinstance(o, OtherOperation)]

    def tuned_in(self, form: Form) -> list[TunedOperation]:
        """The tuned operators that have this form."""
        return [o for o in self.tuned if o.form == form]

    @property
    def form(self) -> Form:
        """The form of all operators but those of tuned ones in another."""
        return Form(self.lanes)

    def tuned_numbers(self) -> dict[int, TunedOperation]:
        """The tuned operators by the numbers of their values."""
        return {n: o for n, o in enumerate(self.operations, len(self.inputs)) if isinstance(o, TunedOperation)}

    def keeping_form(self) -> dict[int, int]:
        """The values of operations that write what they read in whichever form it is in, and with each the first of
        those that have one form together: views of one memory have."""
        firsts, found = dict[int, int](), dict[int, int]()
        for number, operation in enumerate(self.operations, len(self.inputs)):
            if isinstance(operation, MapView):
                found[number] = firsts.setdefault(self.parts[number].whole, number)
            elif isinstance(operation, OtherOperation) and operation.keeps_form:
                found[number] = number
        return found

    def kept_in(self, number: int, form: Form) -> bool:
        """True if operations that keep a form, the first of which gives this value, can have this one: memory is laid
        out in blocks of the program's lanes, and numbers in int8 are all of one grid."""
        together = [n for n, first in self.keeping_form().items() if first == number]
        if any(isinstance(self.operation(n), MapView) for n in together) and form.lanes != self.lanes:
            return False
        if form.dtype != INT8.dtype:
            return True
        values = {*together, *(read for n in together for read in self.operation(n).reads if isinstance(read, int))}
        grids = {self.grids.get(value) for value in values}
        return len(grids) == 1 and None not in grids and not any(map(self.stays_float32, values))

    def stays_float32(self, number: int) -> bool:
        """True of what operators in int8 write in float32 all the same: values of one pixel, such as what
        squeeze-excite's dense layers read, and those that no tuned operator reads, such as logits."""
        return self.value(number).pixels == 1 or number not in self._read_by_tuned()

    def _read_by_tuned(self) -> set[int]:
        """The values that tuned operators read, some by operations that keep their form."""
        keeping, found = self.keeping_form(), set[int]()
        for number, operation in reversed([*enumerate(self.operations, len(self.inputs))]):
            if isinstance(operation, TunedOperation) or (number in keeping and number in found):
                found |= {read for read in operation.reads if isinstance(read, int)}
        return found

    def written_in(self, number: int, form: Form) -> Form:
        """The form in which a value is written by an operator that has some form itself."""
        return Form(form.lanes) if form.dtype == INT8.dtype and self.stays_float32(number) else form

    def workloads(self) -> list[Workload]:
        """The distinct operators to tune, all choices among them."""
        return workloads_of(self.tuned)


def workloads_of(operations: Sequence[TunedOperation]) -> list[Workload]:
    """The distinct operators among these, all choices among them."""
    return list(dict.fromkeys(w for o in operations for w in o.choices))


def packed_constant(value: Array, lanes: int, images: int = 1) -> Array:
    """Numbers by channel, float32[C], as a blocked value of one pixel, float32[N · B, 1, l]; one number stays one."""
    if value.size == 1:
        return value.reshape(1, 1, 1)
    return np.tile(pack_channels(value.reshape(-1, 1), lanes), (images, 1, 1))
