"""Operators as workloads that are tuned one by one (paper, section 3.5, figure 7).

Batch normalisation is folded into the weights; bias, activation, squeeze-excite's scale and the residual are fused into
the operator that they follow. Activations are stored as [channel blocks, pixels, lanes] (NCHW16c on AVX-512).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from chanas.errors import ScheduleError
from chanas.operators.epilogues import LONG, USUAL, Epilogue, check_epilogue
from chanas.operators.precision import FLOAT32, INT8, Precision, precision_of
from chanas.operators.winograd import Transforms, saved_multiplications, transforms

Operator = Literal[
    "conv", "blockconv", "groupconv", "winograd", "winograd2", "pointwise", "depthwise", "pool", "squeeze", "upconv"
]
Generality = Literal[
    "rectangular maps",
    "rectangular kernels",
    "strides by axis",
    "dilation",
    "groups",
    "several outputs of a channel",
    "padding of its own",
    "stride",
    "epilogue of its own",
    "epilogue of many terms",
    "residual",
    "residual before the epilogue",
    "gate",
    "prologue",
]
"""Ways in which an operator is more than a square one of our own networks; a family of kernels takes some of them.
`stride` is that of a 1×1 convolution, where most kernels have none; an epilogue of its own is one that is not usual, or
any of a pooling; residual and gate are those of other operators than 1×1 convolutions, which have always had them."""

_MAX_FULL_BLOCKS = 3
# Taps of `winograd2`: those of 5×5 and 512 channels lie within 2e-5 of the largest, a fifth of the tolerance.
_TAPS_BOTH_WAYS = range(2, 6)
WINOGRAD: tuple[Operator, ...] = ("winograd", "winograd2")
"""Operators that compute what `blockconv` does, by Winograd's transforms."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Rows or columns of an operator: of the map, of the kernel, and zeros before and after the map."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    is_transposed: bool = False

    @property
    def reach(self) -> int:
        """Rows or columns from a kernel's first tap to its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def has_gaps(self) -> bool:
        """True if strides leave rows between windows that nothing reads."""
        return self.reach < self.stride

    @property
    def output(self) -> int:
        if self.is_transposed:
            return (self.size - 1) * self.stride + self.reach - self.before - self.after
        return (self.size + self.before + self.after - self.reach) // self.stride + 1

    def read_by(self, outputs: int) -> int:
        """Rows or columns of the padded map that so many neighbouring outputs are computed from."""
        return (outputs - 1) * self.stride + self.reach


def _same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Zeros before and after, so that there are as many outputs as strides begin in the map."""
    reach = (kernel - 1) * dilation + 1
    return reach // 2, max(0, (-(-size // stride) - 1) * stride + reach - size - reach // 2)


def _same_cropping(kernel: int, stride: int) -> tuple[int, int]:
    """Rows cut off before and after, so that a transposed convolution has a stride of outputs for each row."""
    before = max(0, (kernel - stride + 1) // 2)
    return before, kernel - stride - before


@dataclass(frozen=True, slots=True)
class Workload:
    """One operator with its shapes and its fused neighbours.

    conv       k×k, input [in_channels, pixels] as an image comes (the stem)
    blockconv  k×k over all channels, input in channel blocks like everything after the stem
    groupconv  the same as blockconv, of groups that do not fill vectors (`chanas.operators.grouped`)
    winograd   the same as blockconv, with fewer multiplications (`chanas.operators.winograd`)
    winograd2  the same, with fewer multiplications both ways: stride 1, two to five taps each way
    pointwise  1×1; a dense layer is one of input size 1
    depthwise  k×k, one filter per channel, or several: output channel o reads input channel o // (outputs / inputs)
    pool       mean over all pixels
    squeeze    mean over all pixels and a dense layer of that: two operators that GPUs have one kernel for (`squeezed`)
    upconv     k×k transposed: each pixel adds to k×k outputs, those of neighbours a stride apart; `padding` is cut off
               the whole, or added to it where it is negative (output padding)
    scaled     the input is multiplied by a gate per channel first (squeeze-excite)
    prologue   the product with the gate, plus a shift per channel, goes through this function first (normalisation and
               activation before a convolution)
    residual   a tensor of the output's shape is added last, or with `residual_first` before the epilogue
    dtype      of weights and activations; sums and biases are float32, and so is the image that `conv` reads, with its
               weights. In int8 numbers stand for others (`chanas.operators.quantised`): gates are float32
    wide       the output is float32 whatever the dtype (logits)
    batch      images that one call computes, one after the other on processors

    Maps, kernels and strides are square unless columns have numbers of their own. Without `padding` (top, left, bottom,
    right) a map is padded so that its output has a row for each stride. `groups` of channels are convolved apart;
    depthwise convolutions have one for each channel without saying so.

    Raises:
        ScheduleError: groups do not divide the channels, there is no such epilogue, there is no output, or a prologue
            without a gate.
    """

    op: Operator
    input_size: int
    in_channels: int
    out_channels: int
    kernel_size: int = 1
    stride: int = 1
    epilogue: Epilogue = "none"
    scaled: bool = False
    residual: bool = False
    dtype: str = "float32"
    wide: bool = False
    batch: int = 1
    input_width: int | None = None
    kernel_width: int | None = None
    column_stride: int | None = None
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    padding: tuple[int, int, int, int] | None = None
    residual_first: bool = False
    prologue: Epilogue | None = None

    def __post_init__(self) -> None:
        """Leave out what is the default and what no window reads, so that equal operators are equal."""
        check_epilogue(self.epilogue)
        if self.prologue is not None:
            check_epilogue(self.prologue)
            if not self.scaled:
                raise ScheduleError(f"expected a gate before the prologue {self.prologue} (operator {self.op})")
        of_rows = {"input_width": "input_size", "kernel_width": "kernel_size", "column_stride": "stride"}
        for name, default in of_rows.items():
            if getattr(self, name) == getattr(self, default):
                object.__setattr__(self, name, None)
        object.__setattr__(self, "dilation", tuple(self.dilation))
        object.__setattr__(self, "residual_first", self.residual_first and self.residual and self.epilogue != "none")
        if self.padding is not None:
            given = self._read_padding()
            object.__setattr__(self, "padding", None)
            object.__setattr__(self, "padding", None if given == self._read_padding() else given)
        groups = self.num_groups
        if self.in_channels % groups or self.out_channels % groups:
            raise ScheduleError(f"expected groups that divide the channels, got {groups} (workload {self.key})")
        if min(axis.output for axis in self.axes) < 1:
            raise ScheduleError(f"expected a map that the kernel fits on, got workload {self.key}")

    def _read_padding(self) -> tuple[int, int, int, int]:
        """Zeros at the top, left, bottom and right, without those that no window reaches."""
        rows, columns = self.axes
        if self.op == "upconv":
            return rows.before, columns.before, rows.after, columns.after
        below, beyond = (max(0, axis.read_by(axis.output) - axis.size - axis.before) for axis in self.axes)
        return rows.before, columns.before, below, beyond

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns."""
        top, left, bottom, right = self.padding or (None, None, None, None)
        sizes = (self.input_size, self.input_width or self.input_size)
        kernels = (self.kernel_size, self.kernel_width or self.kernel_size)
        strides = (self.stride, self.column_stride or self.stride)
        pads = ((top, bottom), (left, right))
        found = []
        for size, kernel, stride, dilation, pad in zip(sizes, kernels, strides, self.dilation, pads, strict=True):
            before, after = pad
            if before is None or after is None:
                is_same = self.op != "upconv"
                before, after = (
                    _same_padding(size, kernel, stride, dilation) if is_same else _same_cropping(kernel, stride)
                )
            found.append(Axis(size, kernel, stride, dilation, before, after, self.op == "upconv"))
        return found[0], found[1]

    @property
    def generalities(self) -> tuple[Generality, ...]:
        """Ways in which it is more than a square operator."""
        found: dict[Generality, bool] = {
            "rectangular maps": self.input_width is not None,
            "rectangular kernels": self.kernel_width is not None,
            "strides by axis": self.column_stride is not None,
            "dilation": self.dilation != (1, 1),
            "groups": self.groups > 1,
            "several outputs of a channel": self.op == "depthwise" and self.out_channels > self.in_channels,
            "padding of its own": self.padding is not None,
            "stride": self.op == "pointwise" and max(axis.stride for axis in self.axes) > 1,
            "epilogue of its own": self.epilogue not in (("none",) if self.op == "pool" else USUAL),
            "epilogue of many terms": self.epilogue in LONG,
            "residual": self.residual and self.op != "pointwise",
            "residual before the epilogue": self.residual_first,
            "gate": self.scaled and self.op not in ("pointwise", "squeeze"),
            "prologue": self.prologue is not None,
        }
        return tuple(name for name, there in found.items() if there)

    @property
    def output_size(self) -> int:
        """Rows of the output, and columns of a square one."""
        return 1 if self.takes_mean else self.axes[0].output

    @property
    def input_pixels(self) -> int:
        rows, columns = self.axes
        return rows.size * columns.size

    @property
    def output_pixels(self) -> int:
        rows, columns = self.axes
        return 1 if self.takes_mean else rows.output * columns.output

    @property
    def kernel_area(self) -> int:
        """Taps of the kernel."""
        rows, columns = self.axes
        return rows.kernel * columns.kernel

    @property
    def key(self) -> str:
        """Readable and unique: the key of records and schedules. Those of batch 1 don't name it."""
        residual = ("-sum" if self.residual_first else "-res") if self.residual else ""
        scaled = f"-scaled{f'.{self.prologue}' if self.prologue else ''}" if self.scaled else ""
        flags = scaled + residual + ("-wide" if self.wide else "")
        size, kernel, stride = (
            str(rows) if columns is None else f"{rows}x{columns}"
            for rows, columns in (
                (self.input_size, self.input_width),
                (self.kernel_size, self.kernel_width),
                (self.stride, self.column_stride),
            )
        )
        window = f"d{self.dilation[0]}x{self.dilation[1]}" if self.dilation != (1, 1) else ""
        window += f"g{self.groups}" if self.groups > 1 else ""
        window += "p" + ".".join(map(str, self.padding)) if self.padding else ""
        return (
            f"{self.op}-{size}px-{self.in_channels}x{self.out_channels}-k{kernel}s{stride}{window}"
            f"-{self.epilogue}{flags}-{self.dtype}{f'-b{self.batch}' if self.batch > 1 else ''}"
        )

    @property
    def reads_image(self) -> bool:
        """True if the input is an image, [channels, pixels] in float32, and not an activation."""
        return self.op == "conv"

    @property
    def has_weights(self) -> bool:
        """True of all but pooling."""
        return self.op != "pool"

    @property
    def takes_mean(self) -> bool:
        """True if it reads all pixels of a channel at once, and leaves one."""
        return self.op in ("pool", "squeeze")

    @property
    def is_channelwise(self) -> bool:
        """True if each output channel is computed from its own input channel alone."""
        return self.op in ("depthwise", "pool")

    @property
    def num_groups(self) -> int:
        """Groups of channels that are computed apart."""
        return self.in_channels if self.is_channelwise else self.groups

    @property
    def channels_per_group(self) -> int:
        """Input channels that an output channel is summed over."""
        return self.in_channels // self.num_groups

    @property
    def outputs_per_group(self) -> int:
        """Output channels that are summed over the same input channels."""
        return self.out_channels // self.num_groups

    @property
    def input_precision(self) -> Precision:
        """Format of the input activations."""
        return FLOAT32 if self.reads_image else precision_of(self.dtype)

    @property
    def weight_precision(self) -> Precision:
        """Format of the weights: that of what they are multiplied with. Of depthwise convolutions in int8 whole numbers
        in float32, in which they are computed."""
        in_float32 = not self.has_weights or (self.is_quantised and self.is_channelwise)
        return FLOAT32 if in_float32 else self.input_precision

    @property
    def is_quantised(self) -> bool:
        """True if its numbers are whole ones that stand for others."""
        return self.dtype == INT8.dtype

    @property
    def gate_storage(self) -> str:
        """Type of its numbers by channel in memory."""
        return FLOAT32.storage if self.is_quantised else self.input_storage

    @property
    def output_precision(self) -> Precision:
        """Format of the output activations."""
        return FLOAT32 if self.wide else precision_of(self.dtype)

    @property
    def input_storage(self) -> str:
        """Type of the input activations in memory."""
        return self.input_precision.storage

    @property
    def output_storage(self) -> str:
        """Type of the output activations in memory."""
        return self.output_precision.storage

    @property
    def num_flops(self) -> int:
        """Floating-point operations of the operator itself (2 per multiply-accumulate), without padding or epilogue.

        Those of the definition, whatever the algorithm; of all images."""
        if self.op == "pool":
            return self.batch * self.input_pixels * self.in_channels
        if self.op == "squeeze":
            return self.batch * (self.input_pixels + 2 * self.out_channels) * self.in_channels
        pixels = self.input_pixels if self.op == "upconv" else self.output_pixels
        return 2 * self.batch * pixels * self.kernel_area * self.channels_per_group * self.out_channels

    def gflops(self, seconds: float) -> float:
        """GFLOP/s of the operator's definition, whatever its algorithm multiplies."""
        return self.num_flops / seconds / 1e9

    @property
    def num_flops_done(self) -> int:
        """The same as the algorithm has them: Winograd's products, without its transforms, are fewer."""
        if self.op not in WINOGRAD:
            return self.num_flops
        weights, places = winograd_counts(self)
        return 2 * self.batch * weights * places * self.channels_per_group * self.out_channels

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights and bias, unpadded."""
        if not self.has_weights:
            return 0
        per_pair = winograd_counts(self).weights if self.op in WINOGRAD else self.kernel_area
        per_output = per_pair * self.channels_per_group
        return self.out_channels * (self.weight_precision.item_bytes * per_output + 4)

    def to_json(self) -> dict[str, Any]:
        """Everything of a square operator; of what is more general only what it has."""
        data = dataclasses.asdict(self)
        general = {field.name: field.default for field in dataclasses.fields(self)[_NUM_SQUARE_FIELDS:]}
        return {name: value for name, value in data.items() if name not in general or value != general[name]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Workload:
        return cls(**data)


_NUM_SQUARE_FIELDS = [field.name for field in dataclasses.fields(Workload)].index("input_width")


def check_generality(workload: Workload, takes: Collection[Generality]) -> None:
    """
    Raises:
        ScheduleError: the operator is more than a square one in a way that its kernels do not take.
    """
    for generality in workload.generalities:
        if generality not in takes:
            raise ScheduleError(
                f"operator {workload.op} with {generality} is not there in {workload.dtype} (workload {workload.key})"
            )


def winograd_axis(workload: Workload) -> int:
    """The axis that the tiles of `winograd` lie along: 0 for tiles of rows, 1 for tiles of columns. The one along which
    more multiplications are saved, columns if it is equal."""
    rows, columns = (saved_multiplications(axis.kernel, axis.stride) for axis in workload.axes)
    return 0 if rows > columns else 1


def winograd_plans(workload: Workload) -> tuple[Transforms, Transforms]:
    """Transforms of rows and of columns of `winograd2`.

    Raises:
        ScheduleError: it has strides, or so few or many taps that nothing is saved, or too much accuracy lost.
    """
    for axis in workload.axes:
        if axis.stride != 1 or axis.kernel not in _TAPS_BOTH_WAYS:
            raise ScheduleError(
                f"expected stride 1 and {_TAPS_BOTH_WAYS[0]} to {_TAPS_BOTH_WAYS[-1]} taps each way for winograd2, got "
                f"workload {workload.key}"
            )
    rows, columns = workload.axes
    return transforms(rows.kernel, 1), transforms(columns.kernel, 1)


class WinogradCounts(NamedTuple):
    """Transformed weights of a pair of input and output channels, and places where each is multiplied."""

    weights: int
    places: int


def winograd_counts(workload: Workload) -> WinogradCounts:
    """Count weights and places of `winograd` or `winograd2`; places of tiles that reach beyond the map count too.

    Raises:
        ScheduleError: there are too many taps, or strides.
    """
    if workload.op == "winograd2":
        plans = winograd_plans(workload)
        tiles = [-(-axis.output // plan.outputs) for axis, plan in zip(workload.axes, plans, strict=True)]
        return WinogradCounts(math.prod(plan.products for plan in plans), math.prod(tiles))
    number = winograd_axis(workload)
    along, across = workload.axes[number], workload.axes[1 - number]
    plan = transforms(along.kernel, along.stride)
    weights = plan.products * along.stride * across.kernel
    return WinogradCounts(weights, -(-along.output // plan.outputs) * across.output)


def spreads_input(workload: Workload) -> bool:
    """True of depthwise convolutions with several outputs of a channel: lanes of one vector of sums read neighbouring
    ones."""
    return workload.op == "depthwise" and workload.outputs_per_group > 1


def ends_in_half_a_block(workload: Workload, lanes: int) -> bool:
    """True if the last channel block of a 1×1 convolution is at most half full, and that costs enough to have a kernel
    of its own: a quarter of all multiply-adds at 24 channels in vectors of 16, a sixteenth at 120.

    Channels are counted in eights: shorter vectors are full anyway. In bfloat16 a single full block beside it is too
    little work for each load.
    """
    full, rest = divmod(workload.out_channels, lanes)
    fewest = workload.weight_precision.per_word  # full blocks
    worth_it = lanes >= 16 and 0 < rest <= lanes // 2 and fewest <= full <= _MAX_FULL_BLOCKS
    return (
        workload.op == "pointwise"
        and worth_it
        and workload.in_channels % (2 * fewest) == 0
        and workload.output_pixels > 1
    )


def extra_names(workload: Workload) -> tuple[str, ...]:
    """Names of the tensors that an operator reads beside its input and its parameters, in order."""
    there = {
        "gate": workload.scaled,
        "shift": workload.prologue is not None,
        "residual": workload.residual,
    }
    return tuple(name for name, is_there in there.items() if is_there)


def scales_weights(workload: Workload) -> bool:
    """True if squeeze-excite's gate multiplies the weights, not the input: if there are fewer of them, they are not
    whole numbers, and nothing else comes before the product."""
    is_free = workload.prologue is None and not workload.is_quantised
    return workload.scaled and is_free and workload.output_pixels > workload.out_channels
