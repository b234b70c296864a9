"""A schedule as a sequence of primitives, so that a model can read it (TLP: Zhai et al., 2023; Verma et al., 2024).

Our schedules come from points and not from a search that lists its primitives. So the sequence is derived from the
point: what each of its coordinates makes the schedule do, with its factors. A primitive is a row: which one it is
(one-hot over `SLOTS`), then `NUM_VALUES` numbers; logarithms are to the base of two.

    WL op    the operator: pixels, input channels of a sum, output channels, kernel area, stride, gate, residual, FLOPs
    DV       the device: lanes, registers, threads, L1, L2, bytes of a value, GPU or not, images at once
    CHW      sums kept in registers: pixels of the tile, vectors of it, both together, as a share of the registers
    SP loop  a loop is split: its factors from outer to inner (the inner one always third), then its extent
    AN vec   the innermost loop becomes a vector, and the outermost one runs in parallel: lanes, threads
    FU       outer loops become one, that of the threads: how many
    RE       another order: of the loops over the output, or of those over a sum's terms
    PR       a loop is written out, or a tile is loaded while another is used: whether, how far
    CA       a producer is computed inside a loop: padding by bands, the gate tile by tile
    CI       padding belongs to the loads
    CHR      a GPU's threads load so many values at once, or through shared memory
    RF       threads of a GPU share a sum: how many
    AN mma   products are made by tensor cores
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from chanas.compiler.space import Named, Point, ScheduleSpace
from chanas.core.arrays import Float32Array, IntArray
from chanas.core.target import HardwareTarget
from chanas.operators.workload import Operator, Workload

_LOOPS = ("m", "n", "k", "h", "w", "c", "tap")
_CHOICES = {
    "order": "RE order",
    "reduce": "RE sum",
    "fuse": "FU",
    "unroll": "PR unroll",
    "stages": "PR stages",
    "pad_at": "CA pad",
    "scale_at": "CA gate",
    "load_input": "CHR input",
    "load_weights": "CHR weights",
    "cache": "CHR shared",
    "shares": "RF",
    "mma": "AN mma",
}
_INLINE = 2
"""Choice of `pad_at` that makes padding a part of the loads."""
_WORKLOADS = tuple(f"WL {op}" for op in get_args(Operator))
_SPLITS = tuple(f"SP {loop}" for loop in _LOOPS)
SLOTS = (*_WORKLOADS, "DV", "CHW", *_SPLITS, "SP other", *_CHOICES.values(), "CI pad", "AN vec", "AN other")
NUM_VALUES = 8
WIDTH = len(SLOTS) + NUM_VALUES
_SLOT = {name: i for i, name in enumerate(SLOTS)}
_MAX_FACTORS = 3

Primitive = tuple[str, tuple[float, ...]]
"""A slot and its numbers."""


_BYTES = {"float64": 8, "int64": 8, "bfloat16": 2, "float16": 2, "int16": 2, "int8": 1, "uint8": 1}


def offsets_of(lengths: npt.ArrayLike) -> IntArray:
    """int64[N + 1]: where each of N parts that follow one another begins, and the end; lengths int64[N]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of N records, as many as each has: values float32[R, F], offsets int64[N + 1]; those of record i are
    `values[offsets[i] : offsets[i + 1]]`."""

    values: Float32Array
    offsets: IntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """int64[N]: rows of each record."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> IntArray:
        """int64[R]: the record of each row."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def of(self, chosen: IntArray) -> Rows:
        """The rows of some records, in that order."""
        lengths = self.lengths[chosen]
        offsets = offsets_of(lengths)
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[chosen], lengths)
        return Rows(self.values[places], offsets)

    @classmethod
    def join(cls, parts: Sequence[Float32Array]) -> Rows:
        """Rows from those of each record."""
        return cls(np.concatenate(parts).astype(np.float32), offsets_of([len(part) for part in parts]))


def primitive_rows(space: ScheduleSpace[Any], points: Sequence[Point], target: HardwareTarget) -> Rows:
    """The sequences of points, F = `WIDTH`.

    Raises:
        ScheduleError: a point is not one of the space.
    """
    return Rows.join([encode(primitives(space, space.groups(point), target)) for point in points])


def primitives(space: ScheduleSpace[Any], named: Named, target: HardwareTarget) -> list[Primitive]:
    """The sequence of one point."""
    vectors = ("AN vec", (math.log2(target.vector_lanes), math.log2(target.num_threads)))
    made = [_primitive(name, group) for name, group in named.items()]
    return [_workload(space.workload), device(target), _sums(named, target), *made, vectors]


def encode(sequence: Sequence[Primitive]) -> Float32Array:
    """float32[R, WIDTH] of a sequence."""
    rows = np.zeros((len(sequence), WIDTH), dtype=np.float32)
    for row, (slot, values) in zip(rows, sequence, strict=True):
        row[_SLOT[slot]] = 1.0
        row[len(SLOTS) : len(SLOTS) + len(values)] = values
    return rows


def flatten(rows: Rows) -> Float32Array:
    """float32[N, len(SLOTS) · (1 + NUM_VALUES)]: each primitive's numbers at a place of their own, for models that take
    no sequences; whether it is there, then its values. A primitive occurs at most once in a sequence of ours; where one
    of others has it several times, how often, and sums of its values."""
    num = len(SLOTS)
    flat = np.zeros((len(rows) * num, 1 + NUM_VALUES), dtype=np.float32)
    places = rows.owners * num + rows.values[:, :num].argmax(axis=1)
    np.add.at(flat, places, np.hstack([np.ones((len(places), 1), dtype=np.float32), rows.values[:, num:]]))
    return flat.reshape(len(rows), -1)


def factor_numbers(factors: Sequence[int]) -> tuple[float, ...]:
    """log2 of the innermost factors of a loop, those of missing ones 0, and of their product."""
    logs = [math.log2(factor) for factor in factors]
    inner = logs[-_MAX_FACTORS:]
    return (*[0.0] * (_MAX_FACTORS - len(inner)), *inner, sum(logs))


def _primitive(name: str, group: tuple[int, ...]) -> Primitive:
    if name.startswith("split_"):
        slot = f"SP {name.removeprefix('split_')}"
        return (slot if slot in _SLOT else "SP other"), factor_numbers(group)
    if name == "pad_at" and group[0] == _INLINE:
        return "CI pad", (1.0,)
    return _CHOICES.get(name, "AN other"), tuple(float(v) for v in group[:NUM_VALUES])


def _workload(workload: Workload) -> Primitive:
    rows, columns = workload.axes
    logs = [
        workload.input_pixels,
        workload.channels_per_group,
        workload.out_channels,
        workload.kernel_area,
        rows.stride * columns.stride,
    ]
    flags = [float(workload.scaled), float(workload.residual)]
    return f"WL {workload.op}", (*(math.log2(v) for v in logs), *flags, math.log2(workload.num_flops))


def device(target: HardwareTarget) -> Primitive:
    """The device, first in every sequence; what is not known of it is zero."""
    logs = [
        target.vector_lanes,
        target.num_vector_registers,
        target.num_threads,
        max(1, target.l1_bytes),
        max(1, target.l2_bytes),
        _BYTES.get(target.dtype, 4),
    ]
    return "DV", (*(math.log2(v) for v in logs), float(target.gpu is not None), math.log2(target.batch))


def _sums(named: Named, target: HardwareTarget) -> Primitive:
    pixels = math.prod(named[name][-1] for name in ("split_m", "split_h", "split_w") if name in named)
    vectors = named.get("split_n", named.get("split_c", (1,)))[-1]
    share = pixels * vectors / target.num_vector_registers
    return "CHW", (math.log2(pixels), math.log2(vectors), math.log2(pixels * vectors), share)
