"""Tensor expressions of a graph's operators on values as the framework has them: one function an operator.

Exponentials are written out, without a call for each number, and sums along rows are taken a vector at a time. What
these functions define is scheduled by `generic`, whatever it is; operators in channel blocks are in `others`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from chanas.compiler.cpu.generic import KEPT
from chanas.compiler.expressions import epilogue, exp
from chanas.compiler.program import tiled_rows
from chanas.models import elementwise
from chanas.models.elementwise import ELEMENTWISE
from chanas.models.graph import Node
from chanas.models.loops import IN_ORDER, from_start
from chanas.models.reducers import LARGEST, PRODUCT, SMALLEST
from chanas.models.sampling import SAMPLED
from chanas.models.windows import WINDOWS
from chanas.operators.layout import num_blocks

Definition = Callable[..., Any]
_DEFINED: dict[str, Definition] = {**IN_ORDER, **SAMPLED, **WINDOWS}


def _defines(*ops: str) -> Callable[[Definition], Definition]:
    """Register a function of a node, the lanes of a vector, and the tensors that it reads."""

    def register(definition: Definition) -> Definition:
        _DEFINED.update(dict.fromkeys(ops, definition))
        return definition

    return register


def define(node: Node, lanes: int, *reads: Any) -> Any:
    """The tensor of a node's output, from those that it reads."""
    if node.op in ELEMENTWISE:
        return mapped(ELEMENTWISE[node.op].tir, node.op, *reads)
    return _DEFINED[node.op](node, lanes, *reads)


# ---- one number from one place --------------------------------------------------------------------------------------
def mapped(function: Callable[..., Any], name: str, *reads: Any) -> Any:
    """A function of the numbers at one place of what is read, broadcast as in numpy."""
    shape = np.broadcast_shapes(*(tuple(int(e) for e in x.shape) for x in reads))

    def number(*i: Any) -> Any:
        return function(*(x[place(i, x.shape)].asobject() for x in reads))

    return te.compute(shape, number, name=name.replace(".", "_"))


def place(i: Sequence[Any], shape: Sequence[Any]) -> tuple[Any, ...]:
    """The indices of a tensor of a shape for those of one that it is broadcast to."""
    own = i[len(i) - len(shape) :]
    return tuple(0 if int(extent) == 1 else j for j, extent in zip(own, shape, strict=True))


@_defines("activation")
def _activation(node: Node, lanes: int, x: Any) -> Any:
    name = str(node.attributes["name"])
    return mapped(functools.partial(epilogue, name), name, x)


@_defines("astype")
def _astype(node: Node, lanes: int, x: Any) -> Any:
    return mapped(elementwise.cast(node.dtype), "cast", x)


@_defines("bit_cast")
def _bit_cast(node: Node, lanes: int, x: Any) -> Any:
    return mapped(functools.partial(tirx.reinterpret, node.dtype), "bits", x)


@_defines("clip")
def _clip(node: Node, lanes: int, x: Any) -> Any:
    return mapped(elementwise.clip(node.attributes["low"], node.attributes["high"]), "clip", x)


@_defines("broadcast_to")
def _broadcast_to(node: Node, lanes: int, x: Any) -> Any:
    return te.compute(node.shape, lambda *i: x[place(i, x.shape)], name="broadcast_to")


# ---- numbers that move ----------------------------------------------------------------------------------------------
@_defines("permute_dims")
def _permute_dims(node: Node, lanes: int, x: Any) -> Any:
    return topi.transpose(x, node.attributes["axes"])


@_defines("shuffle")
def _shuffle(node: Node, lanes: int, x: Any) -> Any:
    """Channels of `groups` in turns, as `torch.nn.ChannelShuffle`."""
    groups, channels = node.attributes["groups"], node.shape[1]
    each = channels // groups
    return te.compute(node.shape, lambda n, c, *i: x[(n, c % groups * each + c // groups, *i)], name="shuffle")


@_defines("slice")
def _slice(node: Node, lanes: int, x: Any) -> Any:
    axis, begin = node.attributes["axis"], node.attributes["begin"]
    return te.compute(node.shape, lambda *i: x[(*i[:axis], i[axis] + begin, *i[axis + 1 :])], name="slice")


@_defines("strided_slice")
def _strided_slice(node: Node, lanes: int, x: Any) -> Any:
    """Attributes `begins` and `steps`, one of each an axis; a step may be negative."""
    begins, steps = node.attributes["begins"], node.attributes["steps"]
    return te.compute(
        node.shape,
        lambda *i: x[tuple(b + j * s for b, j, s in zip(begins, i, steps, strict=True))],
        name="strided_slice",
    )


@_defines("concat")
def _concat(node: Node, lanes: int, *reads: Any) -> Any:
    return topi.concatenate(reads, node.attributes["axis"])


@_defines("repeat")
def _repeat(node: Node, lanes: int, x: Any) -> Any:
    """Each number `times` in a row, one factor an axis."""
    times = node.attributes["times"]
    return te.compute(node.shape, lambda *i: x[tuple(j // n for j, n in zip(i, times, strict=True))], name="repeat")


@_defines("tile")
def _tile(node: Node, lanes: int, x: Any) -> Any:
    return te.compute(node.shape, lambda *i: x[tuple(j % int(e) for j, e in zip(i, x.shape, strict=True))], name="tile")


@_defines("pad")
def _pad(node: Node, lanes: int, x: Any, value: Any = None) -> Any:
    """Padding: `before` numbers in front of each axis and what fills up the shape behind it; negative ones are cut off.
    Outside lies by `mode` one number, read second (constant), the nearest one (edge), or others (reflect, wrap)."""
    before, mode = node.attributes["before"], node.attributes["mode"]
    extents = [int(e) for e in x.shape]

    def inside(position: Any, extent: int) -> Any:
        if mode == "edge":
            return tirx.max(tirx.min(position, extent - 1), 0)
        if mode == "wrap":
            return tirx.floormod(position, extent)
        period = max(2 * extent - 2, 1)
        there = tirx.floormod(position, period)
        return tirx.Select(there < extent, there, period - there)

    def element(*i: Any) -> Any:
        positions = [j - b for j, b in zip(i, before, strict=True)]
        if mode != "constant":
            return x[tuple(inside(p, e) for p, e in zip(positions, extents, strict=True))]
        conditions = [
            tirx.all(p >= 0, p < e)
            for p, b, e, out in zip(positions, before, extents, node.shape, strict=True)
            if b or out != e
        ]
        outside = value[tuple(0 for _ in value.shape)]
        return tirx.if_then_else(tirx.all(*conditions), x[tuple(positions)], outside) if conditions else x[i]

    return te.compute(node.shape, element, name="pad")


@_defines("take")
def _take(node: Node, lanes: int, table: Any, numbers: Any) -> Any:
    """The parts of a table along an axis, by their places."""
    axis, rank = node.attributes["axis"], len(numbers.shape)

    def part(*i: Any) -> Any:
        there = from_start(numbers[i[axis : axis + rank]] if rank else numbers[()], int(table.shape[axis]))
        return table[(*i[:axis], there, *i[axis + rank :])]

    return te.compute(node.shape, part, name="taken")


@_defines("gather_elements")
def _gather_elements(node: Node, lanes: int, x: Any, numbers: Any) -> Any:
    axis = node.attributes["axis"]
    return te.compute(
        node.shape,
        lambda *i: x[(*i[:axis], from_start(numbers[i], int(x.shape[axis])), *i[axis + 1 :])],
        name="gathered",
    )


@_defines("gather_nd")
def _gather_nd(node: Node, lanes: int, x: Any, numbers: Any) -> Any:
    """The parts of x at places along its axes after the first `batch_dims`, which stand in the last axis."""
    batch, rank, size = node.attributes["batch_dims"], len(numbers.shape), int(numbers.shape[-1])

    def part(*i: Any) -> Any:
        there = [from_start(numbers[(*i[: rank - 1], k)], int(x.shape[batch + k])) for k in range(size)]
        return x[(*i[:batch], *there, *i[rank - 1 :])]

    return te.compute(node.shape, part, name="gathered")


@_defines("reverse_sequence")
def _reverse_sequence(node: Node, lanes: int, x: Any, lengths: Any) -> Any:
    """The first numbers of each sequence in reverse, as many as its length says."""
    time, batch = node.attributes["time_axis"], node.attributes["batch_axis"]

    def element(*i: Any) -> Any:
        length = lengths[i[batch]].astype("int32")
        there = tirx.Select(i[time] < length, length - 1 - i[time], i[time])
        return x[(*i[:time], there, *i[time + 1 :])]

    return te.compute(node.shape, element, name="reversed")


# ---- sums and the like ----------------------------------------------------------------------------------------------
_FOLDS: Mapping[str, Any] = {
    "sum": te.sum,
    "mean": te.sum,
    "max": LARGEST,
    "min": SMALLEST,
    "prod": PRODUCT,
}


def _row_fold(kind: str, at: Callable[..., Any], rest: Sequence[Any], length: int, lanes: int, name: str) -> Any:
    """The sum or the like of `at(*i, k)` over k < length, for i in `rest`: whole vectors first, then what each of
    their lanes has and the numbers behind the last whole vector."""
    fold, whole = _FOLDS[kind], length // lanes
    k = te.reduce_axis((0, whole), name="k")
    parts = te.compute(
        (*rest, lanes), lambda *i: fold(at(*i[:-1], k * lanes + i[-1]), axis=k), name=f"{name}_parts", attrs={KEPT: 1}
    )
    j = te.reduce_axis((0, lanes + length % lanes if whole else length), name="j")

    def part(i: Sequence[Any]) -> Any:
        if not whole:
            return at(*i, j)
        inside = parts[(*i, tirx.min(j, lanes - 1))]
        if length % lanes == 0:
            return inside
        return tirx.Select(j < lanes, inside, at(*i, tirx.max(j + (whole - 1) * lanes, 0)))

    return te.compute(rest, lambda *i: fold(part(i), axis=j), name=name, attrs={KEPT: 1})


def _trailing(axes: Sequence[int], rank: int) -> int:
    """The number of axes, if they are the last ones and not all; 0 otherwise."""
    found = sorted(axes)
    return len(found) if found == list(range(rank - len(found), rank)) and len(found) < rank else 0


def _in_one(x: Any, num: int) -> Any:
    """A tensor whose last axes are one."""
    return x if num == 1 else topi.reshape(x, (*x.shape[:-num], math.prod(int(e) for e in x.shape[-num:])))


@_defines("sum", "mean", "max", "min", "prod")
def _folded(node: Node, lanes: int, x: Any) -> Any:
    """Along `axis`, a tuple; the axes stay as ones with `keepdims`."""
    axes, rank = node.attributes["axis"], len(x.shape)
    length = math.prod(int(x.shape[axis]) for axis in axes)
    num = _trailing(axes, rank)
    rest = [int(e) for axis, e in enumerate(x.shape) if axis not in axes]
    if num and node.dtype == "float32":
        flat = _in_one(x, num)
        found = _row_fold(node.op, lambda *i: flat[i], rest, length, lanes, node.op)
    else:
        reduced = {axis: te.reduce_axis((0, int(x.shape[axis])), name=f"k{axis}") for axis in sorted(axes)}

        def at(i: Sequence[Any]) -> tuple[Any, ...]:
            left = list(i)
            return tuple(reduced[axis] if axis in reduced else left.pop(0) for axis in range(rank))

        fold = _FOLDS[node.op]
        found = te.compute(rest, lambda *i: fold(x[at(i)], axis=list(reduced.values())), name=node.op)

    def element(*i: Any) -> Any:
        here = tuple(j for axis, j in enumerate(i) if axis not in axes) if node.attributes["keepdims"] else i
        value = found[here]
        return value * tirx.const(1 / length, node.dtype) if node.op == "mean" else value

    return te.compute(node.shape, element, name="folded")


@_defines("argmax", "argmin")
def _extreme_place(node: Node, lanes: int, x: Any) -> Any:
    """The place of the largest or smallest number along an axis: the first one, or the `last`."""
    axis, length = node.attributes["axis"], int(x.shape[node.attributes["axis"]])
    rest = [int(e) for a, e in enumerate(x.shape) if a != axis]
    k, j = (te.reduce_axis((0, length), name=name) for name in "kj")
    fold = LARGEST if node.op == "argmax" else SMALLEST
    best = te.compute(rest, lambda *i: fold(x[(*i[:axis], k, *i[axis:])], axis=k), name="best", attrs={KEPT: 1})
    is_last = node.attributes["last"]

    def number(*i: Any) -> Any:
        is_best = x[(*i[:axis], j, *i[axis:])] == best[i]
        outside = tirx.const(-1 if is_last else length, "int32")
        there = tirx.Select(is_best, j.astype("int32"), outside)
        return te.max(there, axis=j) if is_last else te.min(there, axis=j)

    places = te.compute(rest, number, name="places", attrs={KEPT: 1})

    def element(*i: Any) -> Any:
        here = (*i[:axis], *i[axis + 1 :]) if node.attributes["keepdims"] else i
        return places[here].astype("int64")

    return te.compute(node.shape, element, name=node.op)


@_defines("softmax", "log_softmax")
def _softmax(node: Node, lanes: int, x: Any) -> Any:
    """e^(x − max) as a share of its sum along an axis, or its logarithm."""
    axis, rank = node.attributes["axis"], len(x.shape)
    rest, length = [e for i, e in enumerate(x.shape) if i != axis] or [1], int(x.shape[axis])

    def at(*i: Any) -> tuple[Any, ...]:
        return (*i[:axis], i[-1], *i[axis:-1]) if rank > 1 else (i[-1],)

    def without(i: Sequence[Any]) -> tuple[Any, ...]:
        return (*i[:axis], *i[axis + 1 :]) if rank > 1 else (0,)

    def fold(kind: str, values: Any, name: str) -> Any:
        if axis == rank - 1:
            return _row_fold(kind, lambda *i: values[at(*i)], rest, length, lanes, name)
        k = te.reduce_axis((0, length), name="k")
        return te.compute(rest, lambda *i: _FOLDS[kind](values[at(*i, k)], axis=k), name=name)

    largest = fold("max", x, "largest")
    powers = te.compute(x.shape, lambda *i: exp(x[i] - largest[without(i)]), name="powers", attrs={KEPT: 1})
    total = fold("sum", powers, "total")
    if node.op == "softmax":
        return te.compute(x.shape, lambda *i: powers[i] / total[without(i)], name="softmax")
    return te.compute(x.shape, lambda *i: x[i] - largest[without(i)] - tirx.log(total[without(i)]), name="log_softmax")


@_defines("layer_norm")
def _layer_norm(node: Node, lanes: int, x: Any, scale: Any, shift: Any) -> Any:
    """(x − mean) / √(variance + ε) along the last `num_axes` axes, times a scale, plus a shift."""
    num, shape = node.attributes["num_axes"], x.shape
    x, scale, shift = (_in_one(tensor, num) for tensor in (x, scale, shift))
    *rest, length = x.shape
    found = normal(lambda *i: x[i], rest, int(length), lanes, float(node.attributes["epsilon"]))
    made = te.compute(x.shape, lambda *i: found(*i) * scale[i[-1]] + shift[i[-1]], name="normal")
    return made if num == 1 else topi.reshape(made, shape)


def normal(at: Callable[..., Any], rest: Sequence[Any], length: int, lanes: int, epsilon: float) -> Callable[..., Any]:
    """(x − mean) / √(variance + ε) of `at(*i, k)` over k < length, as a function of the same arguments. The mean goes
    before the squares are taken, so that rows of one large number give zeros."""
    share = tirx.const(1 / length, "float32")
    total = _row_fold("sum", at, rest, length, lanes, "total")

    def centred(*i: Any) -> Any:
        return at(*i) - total[i[:-1]] * share

    squares = _row_fold("sum", lambda *i: centred(*i) * centred(*i), rest, length, lanes, "squares")
    shift = tirx.const(epsilon, "float32")
    inverse = te.compute(rest, lambda *i: 1.0 / tirx.sqrt(squares[i] * share + shift), "inverse", attrs={KEPT: 1})
    return lambda *i: centred(*i) * inverse[i[:-1]]


# ---- products -------------------------------------------------------------------------------------------------------
@_defines("matmul")
def _matmul(node: Node, lanes: int, a: Any, b: Any, bias: Any = None) -> Any:
    """Products of matrices, [..., M, K] by [..., K, N]. Where rows do not cut into tiles or columns do not fill
    vectors, more are computed than there are."""
    (*batch_a, rows, length), (*batch_b, _, columns) = ([int(e) for e in tensor.shape] for tensor in (a, b))
    batch = np.broadcast_shapes(tuple(batch_a), tuple(batch_b))
    is_tiled = node.dtype == "float32" and min(len(batch_a), len(batch_b)) > 0
    tiled, padded = (tiled_rows(rows), num_blocks(columns, lanes) * lanes) if is_tiled else (rows, columns)
    k = te.reduce_axis((0, length), name="k")

    def column(*i: Any) -> Any:
        zero = tirx.const(0.0, "float32")
        return tirx.if_then_else(i[-1] < columns, b[(*i[:-1], tirx.min(i[-1], columns - 1))], zero)

    wide = b if padded == columns else te.compute((*batch_b, length, padded), column, name="wide", attrs={KEPT: 1})

    def term(*i: Any) -> Any:
        row = i[-2] if tiled == rows else tirx.min(i[-2], rows - 1)
        return te.sum(a[(*place(i[:-2], batch_a), row, k)] * wide[(*place(i[:-2], batch_b), k, i[-1])], axis=k)

    product = te.compute((*batch, tiled, padded), term, name="product", attrs={KEPT: 1})
    if (tiled, padded) != (rows, columns):
        whole = product
        product = te.compute(node.shape, lambda *i: whole[i], name="matmul", attrs={KEPT: 1})
    if bias is None:
        return product
    return te.compute(node.shape, lambda *i: product[i] + bias[place(i, bias.shape)], name="biased")


@_defines("einsum")
def _einsum(node: Node, lanes: int, *reads: Any) -> Any:
    """A sum of products by the letters of each operand's axes, `operands`, and of the output's, `output`."""
    operands, output = node.attributes["operands"], node.attributes["output"]
    extents = {
        letter: int(e)
        for letters, x in zip(operands, reads, strict=True)
        for letter, e in zip(letters, x.shape, strict=True)
    }
    summed = {
        letter: te.reduce_axis((0, extents[letter]), name=f"k{n}")
        for n, letter in enumerate(extents)
        if letter not in output
    }

    def term(*i: Any) -> Any:
        at = {**dict(zip(output, i, strict=True)), **summed}
        factors = [x[tuple(at[letter] for letter in letters)] for letters, x in zip(operands, reads, strict=True)]
        value = functools.reduce(lambda a, b: a * b, factors)
        return te.sum(value, axis=list(summed.values())) if summed else value

    return te.compute(node.shape, term, name="einsum")
