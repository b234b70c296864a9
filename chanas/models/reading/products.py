"""Operators that multiply and add along axes: convolutions, products of matrices, windows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, reads
from chanas.models.reading.making import Maker, constant

WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
"""Attributes of a node with a window."""


@dataclass(frozen=True)
class Window:
    """A window that moves along the last axes of maps.

    before, after  padding in front of and behind each axis
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        return (*self.before, *self.after)

    def facts(self) -> dict[str, Any]:
        """Attributes of a node."""
        return {"strides": self.strides, "dilation": self.dilation, "padding": self.padding}

    def outputs(self, extents: Sequence[int], is_ceil: bool = False) -> tuple[int, ...]:
        """The number of places along each axis; with `is_ceil` a last one may reach beyond the padding, but not begin
        there."""
        found = []
        for e, k, s, d, b, a in zip(
            extents, self.kernel, self.strides, self.dilation, self.before, self.after, strict=True
        ):
            room = e + b + a - d * (k - 1) - 1
            num = (-(-room // s) if is_ceil else room // s) + 1
            if is_ceil and (num - 1) * s >= e + b:
                num -= 1
            found.append(num)
        return tuple(found)


def window_of(call: Call, extents: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a node over maps of a size.

    Raises:
        ModelError: its attributes are of another number of axes.
    """
    strides, dilation, before, after, auto = _attributes(call, len(extents), kernel)
    if auto == "VALID":
        before = after = (0,) * len(extents)
    elif auto != "NOTSET":
        total = [
            max((-(-e // s) - 1) * s + d * (k - 1) + 1 - e, 0)
            for e, s, d, k in zip(extents, strides, dilation, kernel, strict=True)
        ]
        before, after = _halves(total, auto == "SAME_UPPER")
    return Window(tuple(kernel), strides, dilation, before, after)


Numbers = tuple[int, ...]


def _attributes(call: Call, num: int, kernel: Sequence[int]) -> tuple[Numbers, Numbers, Numbers, Numbers, str]:
    """Strides, dilation, padding before and after each axis, and `auto_pad`.

    Raises:
        ModelError: they are of another number of axes.
    """
    strides = tuple(call.attribute("strides", (1,) * num))
    dilation = tuple(call.attribute("dilations", (1,) * num))
    pads = tuple(call.attribute("pads", (0,) * (2 * num)))
    if not len(kernel) == len(strides) == len(dilation) == len(pads) // 2 == num or len(pads) % 2:
        raise call.refused(
            f"has a window of {len(kernel)} axes, {len(strides)} strides, {len(dilation)} dilations and {len(pads)} "
            f"numbers of padding, for maps with {num} axes"
        )
    if min(strides) < 1 or min(dilation) < 1:
        raise call.refused(f"has strides {list(strides)} and dilations {list(dilation)}; expected numbers above 0")
    auto = call.choice("auto_pad", "NOTSET", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    return strides, dilation, pads[:num], pads[num:], auto


def _halves(total: Sequence[int], odd_is_after: bool) -> tuple[Numbers, Numbers]:
    """Padding before and after each axis, of so much together."""
    less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return (less, more) if odd_is_after else (more, less)


def _check_places(call: Call, places: Sequence[int], kernel: Sequence[int], extents: Sequence[int]) -> None:
    if min(places) < 1:
        raise call.refused(f"has a window of {list(kernel)} on maps of {list(extents)}, which is larger than they are")


def _moved(
    make: Maker,
    op: str,
    reads: Sequence[Read],
    window: Window,
    out: Sequence[int],
    *,
    bias: Read | None = None,
    dtype: str | None = None,
    **facts: Any,
) -> Read:
    """The result [N, C, …] of a window that moves over maps: a convolution with weights, or a pooling. Maps of one axis
    are computed as such of two, the first of them of one number."""
    shape = tuple(out)
    if len(out) == 3:
        reads = [make.reshape(r, (*make.shape_of(r)[:2], 1, make.shape_of(r)[2])) for r in reads]
        window, shape = _two(window), (*out[:2], 1, out[2])
    if len(reads) == 1:
        facts["pool_size"] = window.kernel
    op = "conv2d" if op == "conv" and len(shape) == 4 else op
    found = make.node(op, reads, shape, dtype, **window.facts(), **facts)
    if bias is not None:
        found = make.each("add", found, make.reshape(bias, (1, out[1], *[1] * (len(shape) - 2))))
    return make.reshape(found, out)


def _two(window: Window) -> Window:
    return Window(
        (1, *window.kernel), (1, *window.strides), (1, *window.dilation), (0, *window.before), (0, *window.after)
    )


@reads("Conv", attributes=[*WINDOW, "group"])
def _conv(call: Call) -> Read:
    shape, own, groups = call.shape(0), call.shape(1), int(call.attribute("group", 1))
    if len(shape) < 3 or len(own) != len(shape):
        raise call.refused(f"has an input {list(shape)} and weights {list(own)}; expected [N, C, …] and [C_out, C, …]")
    if groups < 1 or own[1] * groups != shape[1] or own[0] % groups:
        raise call.refused(
            f"has {shape[1]} input channels in {groups} groups, and weights {list(own)} for {own[1] * groups}"
        )
    window = window_of(call, shape[2:], own[2:])
    out = (shape[0], own[0], *window.outputs(shape[2:]))
    _check_places(call, out[2:], own[2:], shape[2:])
    reads_, bias = [call.input(0), call.input(1)], call.input(2) if call.has(2) else None
    return _moved(call.make, "conv", reads_, window, out, bias=bias, groups=groups)


@reads("ConvTranspose", attributes=[*WINDOW, "group", "output_padding", "output_shape"])
def _conv_transpose(call: Call) -> Read:
    shape, own, groups = call.shape(0), call.shape(1), int(call.attribute("group", 1))
    num = len(shape) - 2
    if len(own) != len(shape) or own[0] != shape[1] or groups < 1 or own[0] % groups:
        raise call.refused(f"has an input {list(shape)} and weights {list(own)} in {groups} groups, which do not go")
    strides, dilation, before, after, auto = _attributes(call, num, own[2:])
    extra = tuple(call.attribute("output_padding", (0,) * num))
    whole = [
        (e - 1) * s + d * (k - 1) + 1 + o
        for e, s, d, k, o in zip(shape[2:], strides, dilation, own[2:], extra, strict=True)
    ]
    wanted = call.attribute("output_shape")
    if auto == "VALID":
        before = after = (0,) * num
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [e * s for e, s in zip(shape[2:], strides, strict=True)] if wanted is None else list(wanted)[-num:]
        before, after = _halves([w - size for w, size in zip(whole, sizes, strict=True)], auto == "SAME_UPPER")
    places = tuple(w - b - a for w, b, a in zip(whole, before, after, strict=True))
    if min(places) < 1:
        raise call.refused(f"gives maps of {list(places)}, which have no numbers")
    window = Window(own[2:], strides, dilation, before, after)
    reads_, bias = [call.input(0), call.input(1)], call.input(2) if call.has(2) else None
    out = (shape[0], own[1] * groups, *places)
    return _moved(call.make, "conv_transpose", reads_, window, out, bias=bias, groups=groups)


# ---- windows --------------------------------------------------------------------------------------------------------
@reads("MaxPool", attributes=[*WINDOW, "ceil_mode", "storage_order"])
def _max_pool(call: Call) -> Sequence[Read]:
    found = [_pool(call, "max_pool2d")]
    if call.outputs > 1:
        column_major = bool(call.attribute("storage_order", 0))
        found.append(_pool(call, "max_pool_place", dtype="int64", column_major=column_major))
    return found


@reads("AveragePool", attributes=[*WINDOW, "ceil_mode", "count_include_pad"])
def _average_pool(call: Call) -> Read:
    return _pool(call, "avg_pool2d", count_include_pad=bool(call.attribute("count_include_pad", 0)))


def _pool(call: Call, op: str, **facts: Any) -> Read:
    shape, kernel = call.shape(0), call.attribute("kernel_shape")
    if kernel is None:
        raise call.refused("has no kernel_shape")
    window = window_of(call, shape[2:], kernel)
    places = window.outputs(shape[2:], bool(call.attribute("ceil_mode", 0)))
    _check_places(call, places, kernel, shape[2:])
    return _moved(call.make, op, [call.input(0)], window, (*shape[:2], *places), **facts)


@reads("LpPool", attributes=[*WINDOW, "ceil_mode", "p"])
def _lp_pool(call: Call) -> Read:
    """(Σ |x|^p)^(1 / p), whose sums are a convolution of ones for each channel: windows beyond the padding then count
    no more than they have."""
    make, p, shape = call.make, float(call.attribute("p", 2)), call.shape(0)
    kernel = tuple(call.attribute("kernel_shape"))
    window = window_of(call, shape[2:], kernel)
    places = window.outputs(shape[2:], bool(call.attribute("ceil_mode", 0)))
    after = tuple(
        max(a, (n - 1) * s + d * (k - 1) + 1 - e - b)
        for a, n, s, d, k, e, b in zip(
            window.after, places, window.strides, window.dilation, kernel, shape[2:], window.before, strict=True
        )
    )
    window, out = dataclasses.replace(window, after=after), (*shape[:2], *places)
    values = [_power(make, call.input(0), p), constant(np.ones((shape[1], 1, *kernel)))]
    return _root(make, _moved(make, "conv", values, window, out, groups=shape[1]), p)


def _power(make: Maker, x: Read, p: float) -> Read:
    if p == 2.0:
        return make.each("multiply", x, x)
    size = make.each("abs", x)
    return size if p == 1.0 else make.each("power", size, make.number(p, size))


def _root(make: Maker, x: Read, p: float) -> Read:
    if p == 2.0:
        return make.each("sqrt", x)
    return x if p == 1.0 else make.each("power", x, make.number(1 / p, x))


@reads("Col2Im", attributes=["dilations", "pads", "strides"])
def _col2im(call: Call) -> Read:
    """Columns of windows, [N, C · kernel, places], added up where these lie: a transposed convolution with ones."""
    make, shape = call.make, call.shape(0)
    extents, kernel = call.whole(1, "shape"), call.whole(2, "window")
    size, window = math.prod(kernel), window_of(call, extents, kernel)
    places, maps = window.outputs(extents), shape[0] * shape[1] // size
    if math.prod(places) != shape[2]:
        raise call.refused(f"has {shape[2]} columns for {math.prod(places)} windows of {list(kernel)}")
    x = make.reshape(call.input(0), (maps, size, *places))
    ones = constant(np.eye(size).reshape(size, 1, *kernel))
    found = make.node("conv_transpose", [x, ones], (maps, 1, *extents), **window.facts(), groups=1)
    return make.reshape(found, (shape[0], shape[1] // size, *extents))


@reads("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", attributes=["p"])
def _global_pool(call: Call) -> Read:
    make, x = call.make, call.input(0)
    axes = range(2, len(call.shape(0)))
    if call.op == "GlobalLpPool":
        p = float(call.attribute("p", 2))
        return _root(make, make.fold("sum", _power(make, x, p), axes, True), p)
    return make.fold("mean" if call.op == "GlobalAveragePool" else "max", x, axes, True)


# ---- products of matrices -------------------------------------------------------------------------------------------
@reads("MatMul")
def _matmul(call: Call) -> Read:
    one, two = call.shape(0), call.shape(1)
    if not one or not two or one[-1] != two[-2 if len(two) > 1 else 0]:
        raise call.refused(f"multiplies {list(one)} with {list(two)}, which do not go")
    return call.make.matmul(call.input(0), call.input(1))


@reads("Gemm", attributes=["alpha", "beta", "transA", "transB", "broadcast"])
def _gemm(call: Call) -> Read:
    make, a, b = call.make, call.input(0), call.input(1)
    a = make.transpose(a, (1, 0)) if call.attribute("transA", 0) else a
    b = make.transpose(b, (1, 0)) if call.attribute("transB", 0) else b
    if make.shape_of(a)[1] != make.shape_of(b)[0]:
        raise call.refused(f"multiplies {list(make.shape_of(a))} with {list(make.shape_of(b))}, which do not go")
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    if isinstance(b, Constant) and alpha != 1.0:
        b, alpha = constant(b.value * np.float32(alpha)), 1.0
    found = make.scaled(make.matmul(a, b), alpha)
    if not call.has(2) or beta == 0.0:
        return found
    return make.each("add", found, make.scaled(call.input(2), beta))


@reads("Det")
def _det(call: Call) -> Read:
    """The product of the diagonal that elimination leaves, with the sign of the rows' order, which stands under it."""
    make, shape = call.make, call.shape(0)
    *batch, n, _ = shape
    num = math.prod(batch)
    left = make.node("eliminated", [make.reshape(call.input(0), (num, n, n))], (num, n + 2, n))
    numbers = make.reshape(left, (num, (n + 2) * n))
    diagonal = [*range(0, n * n, n + 1), n * n]
    return make.reshape(make.fold("prod", make.take(numbers, constant(diagonal, "int64"), 1), (1,), False), batch)


@reads("Einsum", attributes=["equation"])
def _einsum(call: Call) -> Read:
    """Two operands whose letters go are a product of matrices; all else is summed as it stands."""
    make = call.make
    operands, output = _letters(call)
    values = [call.input(i) for i in range(len(operands))]
    extents: dict[str, int] = {}
    for letters, value in zip(operands, values, strict=True):
        for letter, extent in zip(letters, make.shape_of(value), strict=True):
            if extents.setdefault(letter, extent) not in (extent, 1) and extent != 1:
                raise call.refused(f"has axis {letter} of {extents[letter]} and of {extent}")
            extents[letter] = max(extents[letter], extent)
    values = [
        make.broadcast(v, [extents[letter] for letter in letters]) for letters, v in zip(operands, values, strict=True)
    ]
    if len(operands) == 2 and all(len(set(letters)) == len(letters) for letters in operands):
        return _as_matmul(make, operands, values, output, extents)
    shape = [extents[letter] for letter in output]
    return make.node("einsum", values, shape, operands=tuple(operands), output=output)


def _letters(call: Call) -> tuple[list[str], str]:
    """The letters of each operand and of the output, those of `...` as capitals that nothing else uses."""
    text = str(call.attribute("equation", "")).replace(" ", "")
    left, arrow, output = text.partition("->")
    operands = left.split(",")
    if len(operands) != len(call.inputs):
        raise call.refused(f"has {len(call.inputs)} inputs for the equation {text}")
    free = [chr(c) for c in range(0x3B1, 0x3B1 + 24)]
    ranks = [len(call.shape(i)) - len(o.replace("...", "")) for i, o in enumerate(operands)]
    most = max((r for r, o in zip(ranks, operands, strict=True) if "..." in o), default=0)
    found = []
    for rank, operand in zip(ranks, operands, strict=True):
        if rank < 0 or (rank > 0 and "..." not in operand):
            raise call.refused(f"has an equation {text} that does not fit its inputs")
        found.append(operand.replace("...", "".join(free[most - rank : most])))
    if not arrow:
        once = sorted(c for c in set("".join(found)) if "".join(found).count(c) == 1 and c not in free)
        output = "..." * bool(most) + "".join(once)
    return found, output.replace("...", "".join(free[:most]))


def _as_matmul(make: Maker, operands: Sequence[str], values: list[Read], output: str, extents: dict[str, int]) -> Read:
    one, two = operands
    for i, (own, other) in enumerate(((one, two), (two, one))):  # letters of one operand alone that are summed
        alone = [a for a, letter in enumerate(own) if letter not in other and letter not in output]
        if alone:
            values[i] = make.fold("sum", values[i], alone, False)
    one = "".join(letter for letter in one if letter in two or letter in output)
    two = "".join(letter for letter in two if letter in one or letter in output)
    batch = [c for c in one if c in two and c in output]
    summed = [c for c in one if c in two and c not in output]
    rows, columns = [c for c in one if c not in two], [c for c in two if c not in one]

    def size(letters: Sequence[str]) -> int:
        return math.prod(extents[c] for c in letters)

    def ordered(value: Read, own: str, groups: Sequence[Sequence[str]]) -> Read:
        order = [c for group in groups for c in group]
        turned = make.transpose(value, [own.index(c) for c in order])
        return make.reshape(turned, (*(extents[c] for c in groups[0]), *(size(g) for g in groups[1:])))

    a = ordered(values[0], one, (batch, rows, summed))
    b = ordered(values[1], two, (batch, summed, columns))
    product = make.matmul(a, b)
    letters = [*batch, *rows, *columns]
    return make.transpose(make.reshape(product, [extents[c] for c in letters]), [letters.index(c) for c in output])
