"""Layouts: where the numbers of activations and weights lie in memory. Kernels are made for one, cases and networks are
packed in it.

Notation: B images, C channels, M pixels, N = ceil(C / l) channel blocks of l lanes, of output channels where weights
are meant; k kernel size, R rows (`num_rows`). Images lie one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chanas.core.arrays import Array, Float32Array
from chanas.core.target import HardwareTarget
from chanas.operators.epilogues import value_at_zero
from chanas.operators.grouped import abreast
from chanas.operators.precision import FLOAT32, Precision, precision_of
from chanas.operators.quantised import NUM_GRID_NUMBERS, Quantised, kernel_bias
from chanas.operators.transposed import num_taps, taps_of_phase
from chanas.operators.winograd import as_array, transforms
from chanas.operators.workload import WINOGRAD, Workload, extra_names, winograd_axis, winograd_counts, winograd_plans

Shape = tuple[int, ...]
_ROW_MULTIPLE = 8
"""Maps of 49, 100 or 196 pixels get 7, 4 and 4 rows more; the larger ones of the presets none, nor do 8 images."""


def num_blocks(channels: int, lanes: int) -> int:
    """Channel blocks that hold `channels`."""
    return -(-channels // lanes)


def num_rows(pixels: int) -> int:
    """Rows that maps of so many pixels together have in a GPU's memory: from 8 on rounded up to a multiple of 8."""
    return pixels if pixels < _ROW_MULTIPLE else -(-pixels // _ROW_MULTIPLE) * _ROW_MULTIPLE


@dataclass(frozen=True)
class Argument:
    """Name, shape and type of a tensor that an operator's function takes."""

    name: str
    shape: Shape
    dtype: str


class Layout(Protocol):
    """The order of numbers in memory."""

    def shape(self, channels: int, pixels: int, batch: int = 1) -> Shape:
        """The shape of maps of so many channels and pixels, of so many images."""

    def pack(self, values: Float32Array, precision: Precision = FLOAT32) -> Array:
        """Maps float32[B, C, …] as a kernel reads them."""

    def unpack(
        self, stored: Array, channels: int, pixels: int, batch: int = 1, precision: Precision = FLOAT32
    ) -> Float32Array:
        """Inverse of `pack`: float32[B, C, M]."""

    def expected(self, workload: Workload, values: Float32Array) -> Array:
        """An operator's output float32[B, C, …] as its kernel leaves it and as it is compared."""

    def parameters(self, workload: Workload) -> tuple[Argument, ...]:
        """Weights and bias of an operator as its kernel reads them; nothing of an operator without any."""

    def pack_parameters(self, workload: Workload, weight: Float32Array, bias: Float32Array) -> list[Array]:
        """Weight float32[C_out, C_in / groups, k, k] (or of a dense layer) and bias float32[C_out], packed so."""

    def together(self, parameters: Sequence[Array]) -> list[Array]:
        """The packed parameters of a block's operators as the arguments of a network have them."""


# ---- all channels of an image, one after the other -------------------------------------------------------------------
@dataclass(frozen=True)
class Plain:
    """[B·C, M], as images come; parameters as PyTorch has them."""

    def shape(self, channels: int, pixels: int, batch: int = 1) -> Shape:
        return (batch * channels, pixels)

    def pack(self, values: Float32Array, precision: Precision = FLOAT32) -> Array:
        return precision.encode(np.ascontiguousarray(values.reshape(values.shape[0] * values.shape[1], -1)))

    def unpack(
        self, stored: Array, channels: int, pixels: int, batch: int = 1, precision: Precision = FLOAT32
    ) -> Float32Array:
        return precision.decode(stored).reshape(batch, channels, pixels)

    def expected(self, workload: Workload, values: Float32Array) -> Array:
        return self.pack(values, workload.output_precision)

    def parameters(self, workload: Workload) -> tuple[Argument, ...]:
        rows, columns = workload.axes
        shape = (workload.out_channels, workload.channels_per_group, rows.kernel, columns.kernel)
        return _weights_and_bias(workload, shape, (1, workload.out_channels, 1, 1))

    def pack_parameters(self, workload: Workload, weight: Float32Array, bias: Float32Array) -> list[Array]:
        return [
            part.reshape(argument.shape)
            for part, argument in zip((weight, bias), self.parameters(workload), strict=True)
        ]

    def together(self, parameters: Sequence[Array]) -> list[Array]:
        return list(parameters)


def _weights_and_bias(workload: Workload, weights: Shape, bias: Shape, dtype: str = "float32") -> tuple[Argument, ...]:
    return (Argument("weights", weights, dtype), Argument("bias", bias, "float32")) if workload.has_weights else ()


# ---- channels in blocks of a vector's lanes --------------------------------------------------------------------------
def pack_channels(values: Float32Array, lanes: int) -> Float32Array:
    """float32[C, …] -> float32[N, …, l], with zeros beyond the channels."""
    channels = values.shape[0]
    padded = np.zeros((num_blocks(channels, lanes) * lanes, *values.shape[1:]), dtype=np.float32)
    padded[:channels] = values
    grouped = padded.reshape(-1, lanes, *values.shape[1:])
    return np.ascontiguousarray(np.moveaxis(grouped, 1, -1))


def unpack_channels(packed: Float32Array, channels: int) -> Float32Array:
    """Inverse of `pack_channels`: float32[N, …, l] -> float32[C, …]."""
    moved = np.moveaxis(packed, -1, 1)
    return np.ascontiguousarray(moved.reshape(-1, *moved.shape[2:])[:channels])


@dataclass(frozen=True)
class Blocks:
    """[B·N, M, l], a vector for each pixel and channel block; weights [N, depth, l], biases [N, l].

    The depth of weights is C_in / groups · k · k of plain convolutions; those of other algorithms are transformed.
    Weights of less than 32 bits are words of neighbours in the sum's direction (of a row of taps in depthwise
    convolutions, of channels under one tap in int8), float32 that hold no numbers, so that weights and biases fit in
    one array. Weights that are read with an image are float32. Operators in int8 have the scales of their sums, [N, l],
    and the numbers of their grids behind that.
    """

    lanes: int

    def shape(self, channels: int, pixels: int, batch: int = 1) -> Shape:
        return (batch * num_blocks(channels, self.lanes), pixels, self.lanes)

    def pack(self, values: Float32Array, precision: Precision = FLOAT32) -> Array:
        return precision.encode(self._packed(values))

    def _packed(self, values: Float32Array) -> Float32Array:
        by_image = values.reshape(*values.shape[:2], -1)
        return np.concatenate([pack_channels(image, self.lanes) for image in by_image])

    def unpack(
        self, stored: Array, channels: int, pixels: int, batch: int = 1, precision: Precision = FLOAT32
    ) -> Float32Array:
        by_image = precision.decode(stored).reshape(batch, -1, pixels, self.lanes)
        return np.stack([unpack_channels(image, channels) for image in by_image])

    def expected(self, workload: Workload, values: Float32Array) -> Array:
        packed, beyond = self._packed(values), values.shape[1] % self.lanes
        if beyond:  # there the sums are 0
            packed.reshape(len(values), -1, *packed.shape[1:])[:, -1, :, beyond:] = value_at_zero(workload.epilogue)
        return workload.output_precision.encode(packed)

    def parameters(self, workload: Workload) -> tuple[Argument, ...]:
        grids = (Argument("grids", (1, NUM_GRID_NUMBERS), "float32"),) if workload.is_quantised else ()
        if not workload.has_weights:
            return grids
        blocks = num_blocks(workload.out_channels, self.lanes)
        vectors, depth = blocks, _depth(workload)
        if workload.op == "groupconv":
            shared = abreast(workload, self.lanes)
            vectors = shared.sets * shared.vectors
        run = _run(workload)
        words = depth // run * -(-run // workload.weight_precision.per_word)
        found = _weights_and_bias(workload, (vectors, words, self.lanes), (blocks, self.lanes))
        has_scale = workload.is_quantised and not workload.reads_image
        scale = (Argument("scale", (blocks, self.lanes), "float32"),) if has_scale else ()
        return (*found, *scale, *grids)

    def pack_parameters(self, workload: Workload, weight: Float32Array, bias: Float32Array) -> list[Array]:
        if workload.op == "groupconv":
            packed = _in_lanes_of_groups(workload, weight, self.lanes)
        else:
            arranged = _ARRANGED[workload.op](workload, weight) if workload.op in _ARRANGED else weight
            if _per_word(workload) > 1:
                arranged = _channels_by_tap(weight, _per_word(workload))
            packed = pack_channels(np.ascontiguousarray(arranged).reshape(len(weight), -1), self.lanes)
        if workload.weight_precision.per_word > 1:
            packed = in_words(packed, _run(workload), workload.weight_precision)
        return [packed, pack_channels(bias, self.lanes)]

    def pack_quantised(self, workload: Workload, by: Quantised) -> list[Array]:
        """The parameters of an operator in int8, packed."""
        if by.numbers is None or by.bias is None:
            return [by.grid_numbers]
        packed = self.pack_parameters(workload, by.numbers, kernel_bias(workload, by))
        scale = [] if by.steps is None else [pack_channels(by.scale, self.lanes)]
        return [*packed, *scale, by.grid_numbers]

    def together(self, parameters: Sequence[Array]) -> list[Array]:
        """One array, because a compiled network checks each of its arguments at every call, for about 0.1 µs each."""
        return [np.concatenate([part.ravel() for part in parameters])]


def _depth(workload: Workload) -> int:
    """Weights of an output channel."""
    if workload.op in WINOGRAD:
        return winograd_counts(workload).weights * workload.in_channels
    if workload.op == "upconv":
        return math.prod(axis.stride * num_taps(axis) for axis in workload.axes) * workload.in_channels
    per_word = _per_word(workload)
    return -(-workload.channels_per_group // per_word) * per_word * workload.kernel_area


def _per_word(workload: Workload) -> int:
    """Input channels whose weights share words."""
    return 1 if workload.is_channelwise else workload.weight_precision.per_word


def _channels_by_tap(weight: Float32Array, per_word: int) -> Float32Array:
    """float32[C_out, C_in, kh, kw] -> float32[C_out, kh, kw, ceil(C_in / p) · p]: p neighbouring input channels under
    one tap in a word, zeros beyond the last."""
    out, channels, *taps = weight.shape
    whole = np.zeros((out, -(-channels // per_word) * per_word, *taps), np.float32)
    whole[:, :channels] = weight
    return np.moveaxis(whole, 1, -1)


def _run(workload: Workload) -> int:
    """Neighbours among the weights of an output channel that may share a word."""
    return workload.axes[1].kernel if workload.op == "depthwise" else _depth(workload)


def in_words(packed: Float32Array, run: int, precision: Precision) -> Float32Array:
    """Words of neighbours within runs: float32[N, depth, l] -> float32[N, depth / run · ceil(run / numbers of a word),
    l]. The first number is in a word's lowest bits; what lacks in the last word of a run is zero."""
    blocks, depth, lanes = packed.shape
    per_word, rows = precision.per_word, packed.reshape(blocks * depth // run, run, lanes)
    padded = np.zeros((len(rows), -(-run // per_word) * per_word, lanes), np.float32)
    padded[:, :run] = rows
    numbers = (precision.encode_weights or precision.encode)(padded).reshape(len(rows), -1, per_word, lanes)
    words: Float32Array = np.ascontiguousarray(numbers.transpose(0, 1, 3, 2)).view(np.float32)
    return words.reshape(blocks, -1, lanes)


def _winograd_weights(workload: Workload, weight: Float32Array) -> Float32Array:
    """float32[C_out, C_in, kh, kw] -> float32[C_out, t, C_in, k, s]: products, input channels, kernel rows (or columns,
    k of those across the tiles) and phases."""
    axis = winograd_axis(workload)
    rows = weight if axis == 1 else weight.swapaxes(2, 3)
    out, channels, k, size = rows.shape
    stride = workload.axes[axis].stride
    plan = transforms(size, stride)
    taps = np.zeros((out, channels, k, plan.taps * stride))
    taps[..., :size] = rows
    phases = taps.reshape(out, channels, k, plan.taps, stride)
    products: Float32Array = np.einsum("tj,ockjs->otcks", as_array(plan.taps_in), phases).astype(np.float32)
    return products


def _square_tiles_weights(workload: Workload, weight: Float32Array) -> Float32Array:
    """float32[C_out, C_in, kh, kw] -> float32[C_out, t, t, C_in]: products of rows and of columns, input channels."""
    down, along = (as_array(plan.taps_in) for plan in winograd_plans(workload))
    products: Float32Array = np.einsum("ih,jw,ochw->oijc", down, along, weight.astype(np.float64)).astype(np.float32)
    return products


def _weights_of_phases(workload: Workload, weight: Float32Array) -> Float32Array:
    """float32[C_out, C_in, k, k] -> float32[C_out, s, s, C_in, t, t]: phases (rows, columns), input channels and taps
    of a phase, t = ceil(k / s) each way."""
    rows, columns = workload.axes
    whole = [(axis.stride * num_taps(axis)) for axis in (rows, columns)]
    taps = np.zeros((*weight.shape[:2], *whole), np.float32)
    taps[..., : rows.kernel, : columns.kernel] = weight
    by_row, by_column = ([taps_of_phase(a, phase) for phase in range(a.stride)] for a in (rows, columns))
    by_phase = taps[:, :, by_row][..., by_column]  # [C_out, C_in, phase, tap, phase, tap]
    return by_phase.transpose(0, 2, 4, 1, 3, 5)


_ARRANGED: dict[str, Callable[[Workload, Float32Array], Float32Array]] = {
    "winograd": _winograd_weights,
    "winograd2": _square_tiles_weights,
    "upconv": _weights_of_phases,
}
"""Operators whose weights are not in the order of input channels and taps."""


def _in_lanes_of_groups(workload: Workload, weight: Float32Array, lanes: int) -> Float32Array:
    """Weight float32[C_out, C_in / groups, kh, kw] in the lanes of groups abreast: float32[N, C_in / groups · kh · kw,
    l], N vectors of whole sets of groups."""
    shared, groups = abreast(workload, lanes), workload.num_groups
    whole = np.zeros((shared.sets * shared.groups, shared.vectors, shared.outputs, weight[0].size), np.float32)
    whole[:groups] = weight.reshape(groups, *whole.shape[1:])
    in_sets = whole.reshape(shared.sets, shared.groups, *whole.shape[1:])  # [sets, G, vectors, outputs, depth]
    return np.ascontiguousarray(in_sets.transpose(0, 2, 4, 3, 1).reshape(-1, weight[0].size, lanes))


# ---- a row of channels for each pixel --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rows:
    """[R, C], the rows of one image after those of another and a few more, so that tiles divide them; weights
    [k·k, C_in, C_out], of depthwise convolutions [k·k, C], biases [C_out].

    Weights of less than 32 bits have neighbours of C_in next to each other: [k·k, C_in / 2, C_out, 2]. Weights that are
    read with an image are float32.
    """

    def shape(self, channels: int, pixels: int, batch: int = 1) -> Shape:
        return (num_rows(batch * pixels), channels)

    def pack(self, values: Float32Array, precision: Precision = FLOAT32) -> Array:
        """Rows beyond the pixels are not a number, to be found out if they are used."""
        pixels = _pixel_rows(values)
        rows = np.full((num_rows(len(pixels)), values.shape[1]), np.nan, np.float32)
        rows[: len(pixels)] = pixels
        return precision.encode(rows)

    def unpack(
        self, stored: Array, channels: int, pixels: int, batch: int = 1, precision: Precision = FLOAT32
    ) -> Float32Array:
        by_image = precision.decode(stored[: batch * pixels]).reshape(batch, pixels, channels)
        return np.ascontiguousarray(by_image.transpose(0, 2, 1))

    def expected(self, workload: Workload, values: Float32Array) -> Array:
        """float32 in any precision, without rows beyond the pixels."""
        return _pixel_rows(values)

    def parameters(self, workload: Workload) -> tuple[Argument, ...]:
        precision, out = workload.input_precision, workload.out_channels
        taps, per_word = workload.kernel_area, precision.per_word
        channels = workload.channels_per_group
        shape: Shape = (taps, channels, out)
        if workload.op == "depthwise":
            shape = (taps, out)
        elif per_word > 1:
            shape = (taps, -(-channels // per_word), out, per_word)
        return _weights_and_bias(workload, shape, (out,), precision.storage)

    def pack_parameters(self, workload: Workload, weight: Float32Array, bias: Float32Array) -> list[Array]:
        by_channel, precision = weight.reshape(*weight.shape[:2], -1), workload.input_precision
        is_depthwise = workload.op == "depthwise"
        by_tap = precision.encode(by_channel[:, 0].T if is_depthwise else by_channel.transpose(2, 1, 0))
        if precision.per_word > 1 and not is_depthwise:
            taps, inp, out = by_tap.shape
            by_tap = by_tap.reshape(taps, inp // precision.per_word, precision.per_word, out).transpose(0, 1, 3, 2)
        return [np.ascontiguousarray(by_tap), np.ascontiguousarray(bias)]

    def together(self, parameters: Sequence[Array]) -> list[Array]:
        return list(parameters)


def _pixel_rows(values: Float32Array) -> Float32Array:
    """float32[B, C, …] -> [B·M, C]"""
    by_image = values.reshape(*values.shape[:2], -1)
    return np.ascontiguousarray(by_image.transpose(0, 2, 1)).reshape(-1, values.shape[1])


# ---- of devices, and of an operator's tensors ------------------------------------------------------------------------
PLAIN, ROWS = Plain(), Rows()


def layout_of(target: HardwareTarget) -> Layout:
    """The layout of our own networks on a device."""
    return Blocks(target.vector_lanes) if target.gpu is None else ROWS


def input_layout(workload: Workload, layout: Layout) -> Layout:
    """The layout of an operator's input: images are plain."""
    return PLAIN if workload.reads_image else layout


def input_shape(workload: Workload, layout: Layout) -> Shape:
    """The shape of an operator's input."""
    return input_layout(workload, layout).shape(workload.in_channels, workload.input_pixels, workload.batch)


def output_shape(workload: Workload, layout: Layout) -> Shape:
    """The shape of an operator's output."""
    return layout.shape(workload.out_channels, workload.output_pixels, workload.batch)


def operator_inputs(workload: Workload, layout: Layout) -> list[Argument]:
    """The arguments of an operator's function before the output: input, weights, bias, gate, shift, residual (those
    that it has)."""
    by_channel = layout.shape(workload.in_channels, 1, workload.batch)
    stored: Any = workload.input_storage
    extras = {
        "gate": Argument("gate", by_channel, workload.gate_storage),
        "shift": Argument("shift", by_channel, workload.gate_storage),
        "residual": Argument("residual", output_shape(workload, layout), precision_of(workload.dtype).storage),
    }
    return [
        Argument("x", input_shape(workload, layout), stored),
        *layout.parameters(workload),
        *(extras[name] for name in extra_names(workload)),
    ]
