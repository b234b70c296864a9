"""A graph that is built operator by operator: shapes and types follow from what is read; what is known is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chanas.core.arrays import Array
from chanas.models.elementwise import result_dtype
from chanas.models.graph import Constant, Node, Read, Rewriter
from chanas.models.known import computed


class Maker(Rewriter):
    """The nodes so far. Values that are given and returned are numbers of nodes and inputs, or constants."""

    def node(
        self, op: str, reads: Sequence[Read], shape: Sequence[int], dtype: str | None = None, **attributes: Any
    ) -> Read:
        """Append a node; where all that it reads is known, or it has no numbers, its output is a constant.

        Args:
            dtype: of the output; that of the first read, where it is not given.
        """
        dtype = self.dtype_of(reads[0]) if dtype is None else dtype
        made = Node(op, tuple(reads), tuple(int(e) for e in shape), dtype, attributes)
        if 0 in made.shape:
            return Constant(np.zeros(made.shape, dtype))
        known = [r.value for r in reads if isinstance(r, Constant)]
        return Constant(computed(made, known)) if len(known) == len(reads) else self.add(made)

    def rank(self, read: Read) -> int:
        return len(self.shape_of(read))

    # ---- one number from one place -------------------------------------------------------------------------------
    def each(self, op: str, *reads: Read) -> Read:
        """An operator of `elementwise`, broadcast as in numpy."""
        shape = np.broadcast_shapes(*(self.shape_of(r) for r in reads))
        return self.node(op, reads, shape, result_dtype(op, tuple(self.dtype_of(r) for r in reads)))

    def number(self, value: float, like: Read) -> Constant:
        """A number of the type of another value."""
        return Constant(np.asarray(value, dtype=self.dtype_of(like)))

    def scaled(self, x: Read, factor: float = 1.0, shift: float = 0.0) -> Read:
        """x · factor + shift."""
        x = x if factor == 1.0 else self.each("multiply", x, self.number(factor, x))
        return x if shift == 0.0 else self.each("add", x, self.number(shift, x))

    def clip(self, x: Read, low: float | None, high: float | None) -> Read:
        """A value within bounds that are known."""
        return x if low is None and high is None else self.node("clip", [x], self.shape_of(x), low=low, high=high)

    def activation(self, x: Read, name: str) -> Read:
        return self.node("activation", [x], self.shape_of(x), name=name)

    def cast(self, x: Read, dtype: str) -> Read:
        return x if self.dtype_of(x) == dtype else self.node("astype", [x], self.shape_of(x), dtype)

    # ---- numbers that move ---------------------------------------------------------------------------------------
    def reshape(self, x: Read, shape: Sequence[int]) -> Read:
        shape = tuple(int(e) for e in shape)
        if shape == self.shape_of(x):
            return x
        if math.prod(shape) != math.prod(self.shape_of(x)):
            raise ValueError(f"{list(self.shape_of(x))} has no numbers for {list(shape)}")
        return self.node("reshape", [x], shape)

    def along(self, x: Read, axis: int, rank: int) -> Read:
        """Numbers as those along one of `rank` axes."""
        axis %= rank
        return self.reshape(x, (*[1] * axis, math.prod(self.shape_of(x)), *[1] * (rank - axis - 1)))

    def transpose(self, x: Read, axes: Sequence[int]) -> Read:
        axes, before = tuple(int(a) for a in axes), self.shape_of(x)
        if axes == tuple(range(len(axes))):
            return x
        return self.node("permute_dims", [x], [before[a] for a in axes], axes=axes)

    def slice(self, x: Read, axis: int, begin: int, length: int) -> Read:
        """A part along an axis."""
        shape = resized(self.shape_of(x), axis, length)
        return x if shape == self.shape_of(x) else self.node("slice", [x], shape, axis=axis, begin=begin)

    def concat(self, reads: Sequence[Read], axis: int) -> Read:
        if len(reads) == 1:
            return reads[0]
        shapes = [self.shape_of(r) for r in reads]
        return self.node("concat", reads, resized(shapes[0], axis, sum(s[axis] for s in shapes)), axis=axis)

    def stack(self, reads: Sequence[Read], axis: int) -> Read:
        """Values of one shape along a new axis."""
        shape, *others = (self.shape_of(read) for read in reads)
        if any(other != shape for other in others):
            raise ValueError(f"values of {[list(s) for s in (shape, *others)]} along a new axis")
        return self.concat([self.reshape(read, (*shape[:axis], 1, *shape[axis:])) for read in reads], axis)

    def without_axis(self, x: Read, axis: int) -> Read:
        """A value without an axis, which has one place."""
        return self.reshape(x, resized(self.shape_of(x), axis))

    def broadcast(self, x: Read, shape: Sequence[int]) -> Read:
        return x if tuple(shape) == self.shape_of(x) else self.node("broadcast_to", [x], shape)

    def pad(self, x: Read, before: Sequence[int], after: Sequence[int], value: Read, mode: str = "constant") -> Read:
        """Numbers in front of and behind each axis; negative ones are cut off."""
        if not any(before) and not any(after):
            return x
        shape = [b + e + a for b, e, a in zip(before, self.shape_of(x), after, strict=True)]
        return self.node("pad", [x, value] if mode == "constant" else [x], shape, before=tuple(before), mode=mode)

    def tile(self, x: Read, times: Sequence[int]) -> Read:
        """Each axis as often as `times` says."""
        shape = [e * t for e, t in zip(self.shape_of(x), times, strict=True)]
        if all(e == 1 or t == 1 for e, t in zip(self.shape_of(x), times, strict=True)):
            return self.broadcast(x, shape)
        return self.node("tile", [x], shape)

    def part(self, x: Read, ranges: Sequence[range]) -> Read:
        """The places of each axis that a range has, whose step may be negative."""
        shape = [len(r) for r in ranges]
        if all(r.step == 1 for r in ranges) and sum(n != e for n, e in zip(shape, self.shape_of(x), strict=True)) <= 1:
            for axis, places in enumerate(ranges):
                x = self.slice(x, axis, places.start, len(places))
            return x
        begins = tuple(r.start if len(r) else 0 for r in ranges)
        return self.node("strided_slice", [x], shape, begins=begins, steps=tuple(r.step for r in ranges))

    def take(self, x: Read, numbers: Read, axis: int) -> Read:
        """Parts along an axis by their places, which negative ones count from the end."""
        before = self.shape_of(x)
        if isinstance(numbers, Constant):
            numbers = Constant(np.where(numbers.value < 0, numbers.value + before[axis], numbers.value))
        return self.node("take", [x, numbers], resized(before, axis, *self.shape_of(numbers)), axis=axis)

    # ---- products and sums -----------------------------------------------------------------------------------------
    def matmul(self, a: Read, b: Read) -> Read:
        """Products of matrices, or of vectors, as numpy's."""
        one, two = self.shape_of(a), self.shape_of(b)
        a = self.reshape(a, (1, *one)) if len(one) == 1 else a
        b = self.reshape(b, (*two, 1)) if len(two) == 1 else b
        left, right = self.shape_of(a), self.shape_of(b)
        batch = np.broadcast_shapes(left[:-2], right[:-2])
        found = self.node("matmul", [a, b], (*batch, left[-2], right[-1]))
        rows, columns = [left[-2]] if len(one) > 1 else [], [right[-1]] if len(two) > 1 else []
        return self.reshape(found, (*batch, *rows, *columns))

    def fold(self, op: str, x: Read, axes: Sequence[int], keepdims: bool) -> Read:
        """Sums and the like along axes."""
        before = self.shape_of(x)
        axes = tuple(sorted(a % max(len(before), 1) for a in axes))
        kept = [1 if a in axes else e for a, e in enumerate(before)]
        shape = kept if keepdims else [e for a, e in enumerate(before) if a not in axes]
        if not axes or math.prod(before[a] for a in axes) == 1:
            return self.reshape(x, shape)
        if math.prod(before[a] for a in axes) == 0:
            return self.broadcast(Constant(_of_nothing(op, self.dtype_of(x))), shape)
        return self.node(op, [x], shape, axis=axes, keepdims=keepdims)


def resized(shape: Sequence[int], axis: int, *extents: int) -> tuple[int, ...]:
    """A shape with other extents in place of an axis: one, or none."""
    return (*shape[:axis], *extents, *shape[axis + 1 :])


def _of_nothing(op: str, dtype: str) -> Array:
    """The result of a reduction of no numbers."""
    if op in ("sum", "mean", "prod"):
        return np.asarray({"sum": 0, "mean": math.nan, "prod": 1}[op], dtype)
    sign = -1 if op == "max" else 1
    if dtype == "float32":
        return np.asarray(sign * math.inf, dtype)
    limits = np.iinfo(dtype)
    return np.asarray(limits.min if op == "max" else limits.max, dtype)


def constant(value: Any, dtype: str = "float32") -> Constant:
    """A constant of a type."""
    array: Array = np.asarray(value, dtype=dtype)
    return Constant(np.ascontiguousarray(array).reshape(array.shape))
