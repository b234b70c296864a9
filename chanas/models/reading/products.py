"""Operators that multiply and add along axes: convolutions, products of matrices, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.models.graph import Constant, Read
from chanas.models.reading.call import Call, extents_of, reads
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
    num = len(extents)
    strides = tuple(call.attribute("strides", (1,) * num))
    dilation = tuple(call.attribute("dilations", (1,) * num))
    pads = tuple(call.attribute("pads", (0,) * (2 * num)))
    auto = call.choice("auto_pad", "NOTSET", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if not len(kernel) == len(strides) == len(dilation) == len(pads) // 2 == num or len(pads) % 2:
        raise call.refused(
            f"has a window of {len(kernel)} axes, {len(strides)} strides, {len(dilation)} dilations and {len(pads)} "
            f"numbers of padding, for maps with {num} axes"
        )
    if min(strides) < 1 or min(dilation) < 1:
        raise call.refused(f"has strides {list(strides)} and dilations {list(dilation)}; expected numbers above 0")
    before, after = pads[:num], pads[num:]
    if auto == "VALID":
        before = after = (0,) * num
    elif auto != "NOTSET":
        total = [
            max((-(-e // s) - 1) * s + d * (k - 1) + 1 - e, 0)
            for e, s, d, k in zip(extents, strides, dilation, kernel, strict=True)
        ]
        small = tuple(t // 2 for t in total)
        large = tuple(t - t // 2 for t in total)
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Window(tuple(kernel), strides, dilation, before, after)


def _in_two(call: Call, x: Read, weight: Read | None = None) -> tuple[Read, Read | None]:
    """Maps of one axis as such of two, the first of them of one number."""
    make = call.make
    n, c, length = make.shape_of(x)
    wide = None
    if weight is not None:
        o, i, k = make.shape_of(weight)
        wide = make.reshape(weight, (o, i, 1, k))
    return make.reshape(x, (n, c, 1, length)), wide


def _two(window: Window) -> Window:
    return Window(
        (1, *window.kernel), (1, *window.strides), (1, *window.dilation), (0, *window.before), (0, *window.after)
    )


@reads("Conv", attributes=[*WINDOW, "group"])
def _conv(call: Call) -> Read:
    make, x, weight = call.make, call.input(0), call.input(1)
    shape, own, groups = call.shape(0), call.shape(1), int(call.attribute("group", 1))
    if len(shape) < 3 or len(own) != len(shape):
        raise call.refused(f"has an input {list(shape)} and weights {list(own)}; expected [N, C, …] and [C_out, C, …]")
    if groups < 1 or own[1] * groups != shape[1] or own[0] % groups:
        raise call.refused(
            f"has {shape[1]} input channels in {groups} groups, and weights {list(own)} for {own[1] * groups}"
        )
    window = window_of(call, shape[2:], own[2:])
    places = window.outputs(shape[2:])
    if min(places) < 1:
        raise call.refused(
            f"has a window of {list(own[2:])} on maps of {list(shape[2:])}, which is larger than they are"
        )
    out = (shape[0], own[0], *places)
    if len(shape) == 3:
        x, wide = _in_two(call, x, weight)
        assert wide is not None
        weight, window = wide, _two(window)
    places = places if len(places) > 1 else (1, *places)
    op = "conv2d" if len(places) == 2 else "conv"
    found: Read = make.node(
        op, [x, weight], (shape[0], own[0], *places), make.dtype_of(x), **window.facts(), groups=groups
    )
    if call.has(2):
        found = make.each("add", found, make.reshape(call.input(2), (1, own[0], *[1] * len(places))))
    return make.reshape(found, out)


@reads("ConvTranspose", attributes=[*WINDOW, "group", "output_padding", "output_shape"])
def _conv_transpose(call: Call) -> Read:
    make, x, weight = call.make, call.input(0), call.input(1)
    shape, own, groups = call.shape(0), call.shape(1), int(call.attribute("group", 1))
    num = len(shape) - 2
    if len(own) != len(shape) or own[0] != shape[1] or groups < 1 or own[0] % groups:
        raise call.refused(f"has an input {list(shape)} and weights {list(own)} in {groups} groups, which do not go")
    strides = tuple(call.attribute("strides", (1,) * num))
    dilation = tuple(call.attribute("dilations", (1,) * num))
    extra = tuple(call.attribute("output_padding", (0,) * num))
    pads = tuple(call.attribute("pads", (0,) * (2 * num)))
    auto = call.choice("auto_pad", "NOTSET", ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    whole = [
        (e - 1) * s + d * (k - 1) + 1 + o
        for e, s, d, k, o in zip(shape[2:], strides, dilation, own[2:], extra, strict=True)
    ]
    before, after = list(pads[:num]), list(pads[num:])
    wanted = call.attribute("output_shape")
    if auto == "VALID":
        before, after = [0] * num, [0] * num
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [e * s for e, s in zip(shape[2:], strides, strict=True)] if wanted is None else list(wanted)[-num:]
        total = [w - size for w, size in zip(whole, sizes, strict=True)]
        half = [t // 2 for t in total]
        rest = [t - h for t, h in zip(total, half, strict=True)]
        before, after = (half, rest) if auto == "SAME_UPPER" else (rest, half)
    places = tuple(w - b - a for w, b, a in zip(whole, before, after, strict=True))
    if min(places) < 1:
        raise call.refused(f"gives maps of {list(places)}, which have no numbers")
    window = Window(own[2:], strides, dilation, tuple(before), tuple(after))
    out = (shape[0], own[1] * groups, *places)
    if num == 1:
        x, wide = _in_two(call, x, weight)
        assert wide is not None
        weight, window, places = wide, _two(window), (1, *places)
    found: Read = make.node(
        "conv_transpose", [x, weight], (*out[:2], *places), make.dtype_of(x), **window.facts(), groups=groups
    )
    if call.has(2):
        found = make.each("add", found, make.reshape(call.input(2), (1, out[1], *[1] * len(places))))
    return make.reshape(found, out)


# ---- windows --------------------------------------------------------------------------------------------------------
@reads("MaxPool", attributes=[*WINDOW, "ceil_mode", "storage_order"])
def _max_pool(call: Call) -> Sequence[Read]:
    found = [_pool(call, "max_pool2d")]
    if call.outputs > 1:
        found.append(_pool(call, "max_pool_place", column_major=bool(call.attribute("storage_order", 0))))
    return found


@reads("AveragePool", attributes=[*WINDOW, "ceil_mode", "count_include_pad"])
def _average_pool(call: Call) -> Read:
    return _pool(call, "avg_pool2d", count_include_pad=bool(call.attribute("count_include_pad", 0)))


@reads("LpPool", attributes=[*WINDOW, "ceil_mode", "p"])
def _lp_pool(call: Call) -> Read:
    """(Σ |x|^p)^(1 / p): sums are means of windows with their padding, times the numbers of these."""
    make, p = call.make, float(call.attribute("p", 2))
    powers = _power(make, call.input(0), p)
    kernel = tuple(call.attribute("kernel_shape"))
    shape = call.shape(0)
    window = window_of(call, shape[2:], kernel)
    # as a convolution of ones for each channel: windows beyond the padding then count no more than they have
    ones = constant(np.ones((shape[1], 1, *kernel)))
    num = len(kernel)
    is_ceil = bool(call.attribute("ceil_mode", 0))
    places = window.outputs(shape[2:], is_ceil)
    after = [
        max(a, (n - 1) * s + d * (k - 1) + 1 - e - b)
        for a, n, s, d, k, e, b in zip(
            window.after, places, window.strides, window.dilation, kernel, shape[2:], window.before, strict=True
        )
    ]
    window = Window(kernel, window.strides, window.dilation, window.before, tuple(after))
    x, weight = powers, ones
    if num == 1:
        x, wide = _in_two(call, x, ones)
        assert isinstance(wide, Constant)
        weight, window, places = wide, _two(window), (1, *places)
    op = "conv2d" if len(places) == 2 else "conv"
    found: Read = make.node(op, [x, weight], (*shape[:2], *places), **window.facts(), groups=shape[1])
    return make.reshape(_root(make, found, p), (*shape[:2], *places[-num:]))


def _power(make: Maker, x: Read, p: float) -> Read:
    if p == 2.0:
        return make.each("multiply", x, x)
    size = make.each("abs", x)
    return size if p == 1.0 else make.each("power", size, make.number(p, size))


def _root(make: Maker, x: Read, p: float) -> Read:
    if p == 2.0:
        return make.each("sqrt", x)
    return x if p == 1.0 else make.each("power", x, make.number(1 / p, x))


def _pool(call: Call, op: str, **facts: Any) -> Read:
    make, x = call.make, call.input(0)
    shape = call.shape(0)
    kernel = call.attribute("kernel_shape")
    if kernel is None:
        raise call.refused("has no kernel_shape")
    window = window_of(call, shape[2:], kernel)
    places = window.outputs(shape[2:], bool(call.attribute("ceil_mode", 0)))
    if min(places) < 1:
        raise call.refused(
            f"has a window of {list(kernel)} on maps of {list(shape[2:])}, which is larger than they are"
        )
    out = (*shape[:2], *places)
    if len(shape) == 3:
        x, _ = _in_two(call, x)
        window, places = _two(window), (1, *places)
    dtype = "int64" if op == "max_pool_place" else make.dtype_of(x)
    found = make.node(op, [x], (*shape[:2], *places), dtype, **window.facts(), pool_size=window.kernel, **facts)
    return make.reshape(found, out)


@reads("Col2Im", attributes=["dilations", "pads", "strides"])
def _col2im(call: Call) -> Read:
    """Columns of windows, [N, C · kernel, places], added up where these lie: a transposed convolution with ones."""
    make, shape = call.make, call.shape(0)
    extents, kernel = extents_of(call.known(1, "shape")), extents_of(call.known(2, "window"))
    size, window = math.prod(kernel), window_of(call, extents, kernel)
    places, maps = window.outputs(extents), shape[0] * shape[1] // size
    if math.prod(places) != shape[2]:
        raise call.refused(f"has {shape[2]} columns for {math.prod(places)} windows of {list(kernel)}")
    x = make.reshape(call.input(0), (maps, size, *places))
    ones = constant(np.eye(size).reshape(size, 1, *kernel))
    found = make.node("conv_transpose", [x, ones], (maps, 1, *extents), make.dtype_of(x), **window.facts(), groups=1)
    return make.reshape(found, (shape[0], shape[1] // size, *extents))


@reads("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", attributes=["p", "consumed_inputs"])
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
    return make.node("einsum", values, shape, make.dtype_of(values[0]), operands=tuple(operands), output=output)


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
